"""Masks: which keys a row may attend, as small frozen objects with `& | ~` (MASK-1, MASK-2).

Each says what is meant; `build` turns it into an expression in which window sizes, steps and
prefixes are run-time numbers, so that changing them compiles nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from sdpakit.calling import checked_init
from sdpakit.dtypes import DTYPES
from sdpakit.errors import SpecError, format_error, shown
from sdpakit.expr.alignment import check_align
from sdpakit.expr.names import check_name, check_table_name
from sdpakit.expr.nodes import Binary, Const, Expr, Index, Load, Unary
from sdpakit.expr.operands import Table, table_dtype
from sdpakit.expr.scope import DENSE, Scope, tables_of
from sdpakit.expr.trace import condition, trace_mask
from sdpakit.expr.values import Value
from sdpakit.plain_numbers import whole_number

MAX_JOINS = 100


class Mask:
    """Base of all masks; joins with `& | ~`, also with a function of the pair."""

    __slots__ = ()
    # NumPy arrays must not take `array & mask` apart into elements.
    __array_ufunc__ = None

    def build(self, scope: Scope) -> Expr:
        """Return the condition of this mask.

        Parameters
        ----------
        scope : Scope
            Gets the run-time numbers.

        Returns
        -------
        Expr
            Bool over the pair; True = may attend.
        """
        raise NotImplementedError

    def tables(self) -> tuple[Table, ...]:
        """Return the run-time arrays that this mask reads from `params`, by name.

        Returns
        -------
        tuple of Table
            Without the array of `Dense`, which has an argument of its own.
        """
        return tables_of(self.build(Scope(equal_lens=True)))

    def __and__(self, other: object) -> Mask:
        return And(self, as_mask(other))

    def __rand__(self, other: object) -> Mask:
        return And(as_mask(other), self)

    def __or__(self, other: object) -> Mask:
        return Or(self, as_mask(other))

    def __ror__(self, other: object) -> Mask:
        return Or(as_mask(other), self)

    def __invert__(self) -> Mask:
        return Not(self)

    def __bool__(self) -> NoReturn:
        raise SpecError(
            format_error(
                "mask",
                got="the truth value of a mask, probably and / or / not instead of & | ~",
                allowed="mask & mask, mask | mask, ~mask",
                fix="write Causal(...) & Window(...) instead of Causal(...) and Window(...)",
            )
        )


@dataclass(frozen=True, slots=True)
class And(Mask):
    """Keys that both masks allow; written `a & b`."""

    a: Mask
    b: Mask

    def build(self, scope: Scope) -> Expr:
        """Return the condition of this mask; see `Mask.build`."""
        return Binary("and", self.a.build(scope), self.b.build(scope))

    def __repr__(self) -> str:
        return f"({self.a!r} & {self.b!r})"


@dataclass(frozen=True, slots=True)
class Or(Mask):
    """Keys that either mask allows; written `a | b`."""

    a: Mask
    b: Mask

    def build(self, scope: Scope) -> Expr:
        """Return the condition of this mask; see `Mask.build`."""
        return Binary("or", self.a.build(scope), self.b.build(scope))

    def __repr__(self) -> str:
        return f"({self.a!r} | {self.b!r})"


@dataclass(frozen=True, slots=True)
class Not(Mask):
    """Keys that the mask does not allow; written `~a`."""

    a: Mask

    def build(self, scope: Scope) -> Expr:
        """Return the condition of this mask; see `Mask.build`."""
        return Unary("not", self.a.build(scope))

    def __repr__(self) -> str:
        return f"~{self.a!r}"


@checked_init
@dataclass(frozen=True, slots=True)
class Causal(Mask):
    """Keys up to the position of the row: k <= p (MASK-2).

    Parameters
    ----------
    align : {"top_left", "bottom_right", "offset"} or None
        Position of row i: i, i + kv_len - q_len, or i + q_offset. None only with equal lengths.
    """

    align: str | None = None

    def __post_init__(self) -> None:
        check_align("Causal", self.align)

    def build(self, scope: Scope) -> Expr:
        """Return the condition of this mask; see `Mask.build`."""
        return Binary("le", Index("k"), scope.position("Causal", self.align))


@checked_init
@dataclass(frozen=True, slots=True)
class Window(Mask):
    """Keys around the position of the row: p - left <= k <= p + right (MASK-2).

    Parameters
    ----------
    left, right : int or None
        Number of keys on each side, the row's own key left out; None = unbounded.
    align : {"top_left", "bottom_right", "offset"} or None
        Position of row i: i, i + kv_len - q_len, or i + q_offset. None only with equal lengths.

    Raises
    ------
    SpecError
        For a negative count.
    """

    left: int | None
    right: int | None
    align: str | None = None

    def __post_init__(self) -> None:
        check_align("Window", self.align)
        for side in ("left", "right"):
            count = getattr(self, side)
            if count is not None:
                fix = "None leaves the side unbounded; a predicate says strictly-left windows"
                number = whole_number(f"Window: {side}", count, least=0, fix=fix)
                object.__setattr__(self, side, number)

    def build(self, scope: Scope) -> Expr:
        """Return the condition of this mask; see `Mask.build`."""
        label = scope.label("window")
        p = scope.position("Window", self.align)
        sides: list[Expr] = []
        if self.left is not None:
            first = Binary("sub", p, scope.hoist(f"{label}_left", self.left))
            sides.append(Binary("le", first, Index("k")))
        if self.right is not None:
            last = Binary("add", p, scope.hoist(f"{label}_right", self.right))
            sides.append(Binary("le", Index("k"), last))
        match sides:
            case [left, right]:
                return Binary("and", left, right)
            case [side]:
                return side
            case _:
                return Const(value=True)


@checked_init
@dataclass(frozen=True, slots=True)
class Prefix(Mask):
    """The first keys: k < length. `Causal(...) | Prefix(n)` is a prefix language model.

    Parameters
    ----------
    length : int or str
        Number of keys, or the name of an array (B,) in `params` with one for each batch entry.
    dtype : str
        Integer dtype of that array.

    Raises
    ------
    SpecError
        For a negative length.
    """

    length: int | str
    dtype: str = "int64"

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", _int_dtype("Prefix: dtype", self.dtype))
        if isinstance(self.length, str):
            check_name("Table", self.length)
        else:
            fix = "give the number of keys, or the name of an integer array (B,) in params"
            number = whole_number("Prefix: length", self.length, least=0, fix=fix)
            object.__setattr__(self, "length", number)

    def build(self, scope: Scope) -> Expr:
        """Return the condition of this mask; see `Mask.build`."""
        if isinstance(self.length, str):
            length: Expr = Load(self.length, self.dtype, (Index("b"),))
        else:
            length = scope.hoist(f"{scope.label('prefix')}_length", self.length)
        return Binary("lt", Index("k"), length)


@checked_init
@dataclass(frozen=True, slots=True)
class Document(Mask):
    """Keys of the row's own document: ids[b, q] == kv_ids[b, k].

    Parameters
    ----------
    ids : str
        Name of an integer array (B or 1, Lq) in `params`: the document of every query row.
    kv_ids : str or None
        Name of the array (B or 1, Lk) for keys; None = `ids` serves both, which needs a length that
        covers rows and keys.
    dtype : str
        Integer dtype of both arrays.
    """

    ids: str = "doc"
    kv_ids: str | None = None
    dtype: str = "int32"

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", _int_dtype("Document: dtype", self.dtype))
        check_table_name("Document", "doc", self.ids)
        if self.kv_ids is not None:
            check_table_name("Document", "doc", self.kv_ids)

    def build(self, scope: Scope) -> Expr:
        """Return the condition of this mask; see `Mask.build`."""
        row = Load(self.ids, self.dtype, (Index("b"), Index("q")))
        key = Load(self.kv_ids or self.ids, self.dtype, (Index("b"), Index("k")))
        return Binary("eq", row, key)


@checked_init
@dataclass(frozen=True, slots=True)
class Dilated(Mask):
    """Every step-th key, counted from the position of the row: (p - k) % step == 0.

    Parameters
    ----------
    step : int
        At least 1; 1 allows every key.
    align : {"top_left", "bottom_right", "offset"} or None
        Position of row i: i, i + kv_len - q_len, or i + q_offset. None only with equal lengths.
    """

    step: int
    align: str | None = None

    def __post_init__(self) -> None:
        check_align("Dilated", self.align)
        number = whole_number("Dilated: step", self.step, least=1, fix="1 keeps every key")
        object.__setattr__(self, "step", number)

    def build(self, scope: Scope) -> Expr:
        """Return the condition of this mask; see `Mask.build`."""
        step = scope.hoist(f"{scope.label('dilated')}_step", self.step)
        distance = Binary("sub", scope.position("Dilated", self.align), Index("k"))
        return Binary("eq", Binary("mod", distance, step), Const(0))


@checked_init
@dataclass(frozen=True, slots=True)
class Dense(Mask):
    """A boolean array `mask=` at the call, broadcast to (B, q_heads, Lq, Lk); True = may attend."""

    def build(self, scope: Scope) -> Expr:
        """Return the condition of this mask; see `Mask.build`."""
        return DENSE


@checked_init
@dataclass(frozen=True, slots=True)
class Predicate(Mask):
    """A condition of your own: `Predicate(lambda i: (i.k <= i.q) & (i.k % 2 == 0))`.

    Parameters
    ----------
    condition : callable or Expr
        A function of the pair `i` (see `sdpakit.expr.trace.Pair`), traced once, or a condition.

    Raises
    ------
    SpecError
        If it leaves the scalar language or is no condition.
    """

    condition: Expr

    def __init__(self, condition: Callable[..., Any] | Expr | Value) -> None:
        object.__setattr__(self, "condition", _condition(condition))

    def build(self, scope: Scope) -> Expr:
        """Return the condition of this mask; see `Mask.build`."""
        return scope.resolve("Predicate: i.pos(align)", self.condition)

    def __repr__(self) -> str:
        return f"Predicate({self.condition!r})"


def as_mask(value: object, where: str = "mask") -> Mask:
    """Return a mask for what a user gave as one.

    Parameters
    ----------
    value : object
        A Mask, a function of the pair, or a condition.
    where : str
        What to name in the message.

    Returns
    -------
    Mask
        `value` itself, or a `Predicate`.

    Raises
    ------
    SpecError
        For arrays, strings, flags and classes, each with its remedy.
    """
    if isinstance(value, Mask):
        return value
    if isinstance(value, Expr | Value):
        return Predicate(value)
    if callable(value) and not isinstance(value, type):
        return Predicate(value)
    raise SpecError(
        format_error(
            where,
            got=shown(value),
            allowed="None, a mask object, or a function of the pair such as lambda i: i.k <= i.q",
            fix=_remedy(value),
        )
    )


def check_joins(mask: Mask) -> Mask:
    """Return the mask, or refuse one that is nested too deep to walk.

    Parameters
    ----------
    mask : Mask
        Any mask.

    Returns
    -------
    Mask
        The same mask.

    Raises
    ------
    SpecError
        If more than `MAX_JOINS` operations lie inside one another.
    """
    level, depth = [mask], 0
    while level:
        depth += 1
        if depth > MAX_JOINS:
            raise SpecError(
                format_error(
                    "mask",
                    got=f"more than {MAX_JOINS} masks joined one inside the other",
                    allowed=f"at most {MAX_JOINS}",
                    fix="let a Document, a Table in a predicate, or Dense say it in one piece",
                )
            )
        level = [part for m in level for part in _parts(m)]
    return mask


def prefix_tables(mask: Mask) -> frozenset[str]:
    """Return the names of the tables that hold lengths of a `Prefix`, which are never negative.

    Parameters
    ----------
    mask : Mask
        Any mask.

    Returns
    -------
    frozenset of str
        Keys of `params`.
    """
    if isinstance(mask, Prefix):
        return frozenset([mask.length] if isinstance(mask.length, str) else [])
    return frozenset().union(*map(prefix_tables, _parts(mask)))


def _parts(mask: Mask) -> tuple[Mask, ...]:
    match mask:
        case And(a, b) | Or(a, b):
            return (a, b)
        case Not(a):
            return (a,)
        case _:
            return ()


def settle(mask: Mask, scope: Scope) -> Mask:
    """Return the mask with no alignment left open in a predicate, where the spec allows that.

    Parameters
    ----------
    mask : Mask
        Any mask.
    scope : Scope
        Knows whether lengths are equal.

    Returns
    -------
    Mask
        Of the same structure.
    """
    match mask:
        case And(a, b) | Or(a, b):
            return type(mask)(settle(a, scope), settle(b, scope))
        case Not(a):
            return Not(settle(a, scope))
        case Predicate():
            return Predicate(mask.build(scope))
        case _:
            return mask


def _remedy(value: object) -> str:
    if isinstance(value, type) and issubclass(value, Mask):
        return f"make an object of the class: {value.__name__}(...)"
    if isinstance(value, str | bool):
        return 'write mask=Causal(align="top_left" or "bottom_right")'
    return "write mask=Dense() in the spec and give the boolean array as mask= at the call"


def _condition(given: object) -> Expr:
    if isinstance(given, Value):
        return condition(given.node)
    if isinstance(given, Expr):
        return condition(given)
    if not callable(given) or isinstance(given, type):
        raise SpecError(
            format_error(
                "Predicate",
                got=shown(given),
                allowed="a function of the pair such as lambda i: i.k <= i.q, or a condition",
                fix=_remedy(given),
            )
        )
    return trace_mask(given)


def _int_dtype(where: str, value: object) -> str:
    name = table_dtype(where, value)
    if DTYPES[name].kind != "int":
        raise SpecError(
            format_error(
                where,
                got=repr(value),
                allowed=" | ".join(n for n, d in DTYPES.items() if d.kind == "int"),
                fix="lengths and document ids are integers; name the dtype of the array",
            )
        )
    return name
