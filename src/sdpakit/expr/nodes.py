"""The scalar language: what a mask or a change of the logits may say about one pair (b, h, q, k).

Every node is one value for one pair of a query row and a key. Three types: `bool`, `int`
(mathematical integers; a backend proves the range it needs before it narrows them) and `float`
(accum_dtype, NUM-1). Rules of the floats: -inf, inf and NaN are ordinary values and no operation
may assume finite operands; `0 * NaN` is NaN, so masking is `Select`, never a product; `Select`
never lets the side not taken reach the result.

Nodes are immutable and hash-consed: equal structure is the same object, so equality is identity and
a program with shared parts costs its number of distinct nodes, not of paths through them.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, Literal, TypeVar

from sdpakit.dtypes import DTYPES
from sdpakit.errors import InternalError, SpecError, format_error

Type = Literal["bool", "int", "float"]
NodeT = TypeVar("NodeT", bound="Expr")

# Indices of a pair, and the run-time integers of its batch entry b (MASK-2, MASK-4):
#   b, h: batch entry, query head.  q: row index i (not shifted by an alignment).  k: key index j.
#   q_len, kv_len: true lengths.  q_offset: position of row 0, given at call time.
INDICES: tuple[str, ...] = ("b", "h", "q", "k", "q_len", "kv_len", "q_offset")

# name -> (operand type, result type or None for "as the operand"); see `sdpakit.expr.evaluate`.
UNARY: dict[str, tuple[tuple[Type, ...], Type | None]] = {
    "neg": (("int", "float"), None),
    "abs": (("int", "float"), None),
    "not": (("bool",), None),
    "exp": (("float",), None),
    "log": (("float",), None),
    "tanh": (("float",), None),
    "sqrt": (("float",), None),
    "floor": (("float",), None),
    "to_float": (("bool", "int"), "float"),
    "to_int": (("bool",), "int"),
}
BINARY: dict[str, tuple[tuple[Type, ...], Type | None]] = {
    "add": (("int", "float"), None),
    "sub": (("int", "float"), None),
    "mul": (("int", "float"), None),
    "div": (("float",), None),
    "floordiv": (("int",), None),  # floor, as Python; the divisor must be provably > 0
    "mod": (("int",), None),  # sign of the divisor, as Python; the divisor must be provably > 0
    "min": (("int", "float"), None),  # NaN if either is NaN
    "max": (("int", "float"), None),
    "lt": (("int", "float"), "bool"),
    "le": (("int", "float"), "bool"),
    "eq": (("bool", "int", "float"), "bool"),
    "ne": (("bool", "int", "float"), "bool"),
    "and": (("bool",), None),
    "or": (("bool",), None),
}


# Levels of operations in a user's expression. Passes and evaluators walk expressions recursively, a
# few frames of Python for each level.
MAX_DEPTH = 128


class Expr:
    """A node of the scalar language: immutable, equal to nothing but itself.

    `depth` is the number of nodes on the longest way down to a leaf, both included.
    """

    __slots__ = ("__weakref__", "_children", "_key", "depth", "type")
    _fields: ClassVar[tuple[str, ...]] = ()
    type: Type
    depth: int
    _children: tuple[Expr, ...]
    _key: tuple[Any, ...]

    def fields(self) -> tuple[Any, ...]:
        """Return the fields of the node in the order of its constructor."""
        return tuple(getattr(self, name) for name in self._fields)

    def children(self) -> tuple[Expr, ...]:
        """Return the operands of the node."""
        return self._children

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), self.fields())

    def __repr__(self) -> str:
        from sdpakit.expr.text import to_text

        return f"formula({to_text(self)!r})"

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"nodes are immutable; {name!r} cannot be set")

    # No operators: `==` on nodes must stay identity, or containers of nodes could not compare.
    # Users write with `sdpakit.expr.values.Value`, which wraps a node.


_LIVE: weakref.WeakValueDictionary[tuple[Any, ...], Expr] = weakref.WeakValueDictionary()
_LOCK = threading.Lock()


def _renew_lock() -> None:
    """Give a forked child a free lock: the thread that held the old one does not exist there."""
    global _LOCK
    _LOCK = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


def _intern(cls: type[NodeT], type_: Type, fields: tuple[Any, ...]) -> NodeT:
    """Return the one node of this structure (floats are told apart by their bits: -0.0, NaN)."""
    bits = tuple(f.hex() if isinstance(f, float) else f for f in fields)
    key = (cls, type_, *((type(f).__name__, f) for f in bits))
    with _LOCK:
        node = _LIVE.get(key)
        if node is None:
            node = object.__new__(cls)
            for name, value in zip(cls._fields, fields, strict=True):
                object.__setattr__(node, name, value)
            object.__setattr__(node, "type", type_)
            object.__setattr__(node, "_key", key)
            children = _operands(fields)
            object.__setattr__(node, "_children", children)
            depth = 1 + max((child.depth for child in children), default=0)
            object.__setattr__(node, "depth", depth)
            _LIVE[key] = node
    return node  # type: ignore[return-value]  # the key holds cls


def _operands(fields: tuple[Any, ...]) -> tuple[Expr, ...]:
    found: list[Expr] = []
    for value in fields:
        if isinstance(value, Expr):
            found.append(value)
        elif isinstance(value, tuple):
            found.extend(item for item in value if isinstance(item, Expr))
    return tuple(found)


class Const(Expr):
    """A literal: bool, int or float."""

    __slots__ = ("value",)
    _fields = ("value",)
    value: bool | int | float

    def __new__(cls, value: bool | int | float) -> Const:
        # Subclasses, such as numpy.float64, print differently and must not be kept.
        match value:
            case bool():
                return _intern(cls, "bool", (value,))
            case int():
                return _intern(cls, "int", (int(value),))
            case float():
                return _intern(cls, "float", (float(value),))
            case _:
                raise InternalError(f"Const: {value!r} is no bool, int or float of Python")


class Index(Expr):
    """One of `INDICES`: an integer that the pair or its batch entry has."""

    __slots__ = ("name",)
    _fields = ("name",)
    name: str

    def __new__(cls, name: str) -> Index:
        if name not in INDICES:
            raise SpecError(
                format_error(
                    "Index", got=name, allowed=", ".join(INDICES), fix="use one of these names"
                )
            )
        return _intern(cls, "int", (name,))


class Scalar(Expr):
    """A run-time number, the same for every pair; given at the call, not compiled in."""

    __slots__ = ("kind", "name")
    _fields = ("name", "kind")
    name: str
    kind: Type

    def __new__(cls, name: str, kind: Type = "float") -> Scalar:
        return _intern(cls, kind, (name, kind))


class Load(Expr):
    """Element of a run-time table; out-of-range indices are refused before anything runs.

    `dtype` is the storage dtype of the table (a key of `sdpakit.dtypes.DTYPES`); the value is bool,
    int or float (rounded to accum_dtype). An axis of size 1 broadcasts where its index is a plain
    `Index`.
    """

    __slots__ = ("dtype", "indices", "table")
    _fields = ("table", "dtype", "indices")
    table: str
    dtype: str
    indices: tuple[Expr, ...]

    def __new__(cls, table: str, dtype: str, indices: tuple[Expr, ...]) -> Load:
        return _intern(cls, DTYPES[dtype].kind, (table, dtype, indices))


class Dot(Expr):
    """The product <q_i, k_j> in accum_dtype, not yet scaled."""

    __slots__ = ()
    _fields = ()

    def __new__(cls) -> Dot:
        return _intern(cls, "float", ())


class Unary(Expr):
    """`UNARY[op]` of one operand."""

    __slots__ = ("op", "x")
    _fields = ("op", "x")
    op: str
    x: Expr

    def __new__(cls, op: str, x: Expr) -> Unary:
        allowed, result = UNARY[op]
        _check(op, allowed, x)
        return _intern(cls, result or x.type, (op, x))


class Binary(Expr):
    """`BINARY[op]` of two operands of one type."""

    __slots__ = ("a", "b", "op")
    _fields = ("op", "a", "b")
    op: str
    a: Expr
    b: Expr

    def __new__(cls, op: str, a: Expr, b: Expr) -> Binary:
        allowed, result = BINARY[op]
        _check(op, allowed, a, b)
        return _intern(cls, result or a.type, (op, a, b))


class Select(Expr):
    """`a` where the condition holds, else `b`; the other side never reaches the result."""

    __slots__ = ("a", "b", "cond")
    _fields = ("cond", "a", "b")
    cond: Expr
    a: Expr
    b: Expr

    def __new__(cls, cond: Expr, a: Expr, b: Expr) -> Select:
        _check("select condition", ("bool",), cond)
        _check("select", (a.type,), b)
        return _intern(cls, a.type, (cond, a, b))


def _check(op: str, allowed: tuple[Type, ...], *operands: Expr) -> None:
    types = tuple(x.type for x in operands)
    if len(set(types)) != 1 or types[0] not in allowed:
        raise SpecError(
            format_error(
                f"operation {op!r}",
                got=", ".join(types),
                allowed=f"operands of one type out of {', '.join(allowed)}",
                fix="convert with to_float(...), or combine bools with & | ~",
            )
        )


def check_depth(where: str, node: Expr) -> Expr:
    """Return the node, or refuse one that is nested deeper than `MAX_DEPTH`.

    Parameters
    ----------
    where : str
        What to name in the message.
    node : Expr
        Any node.

    Returns
    -------
    Expr
        The same node.

    Raises
    ------
    SpecError
        If it is nested too deep to walk.
    """
    if node.depth > MAX_DEPTH:
        raise SpecError(
            format_error(
                where,
                got=f"an expression nested {node.depth} operations deep",
                allowed=f"at most {MAX_DEPTH}",
                fix="read what differs from a Table instead of writing one operation for each",
            )
        )
    return node


def _children(node: Expr) -> Iterable[Expr]:
    return node.children()


def postorder(root: Expr, operands: Callable[[Expr], Iterable[Expr]] = _children) -> Iterator[Expr]:
    """Yield every distinct node below `root` once, operands first.

    The order is decided by the structure alone.

    Parameters
    ----------
    root : Expr
        Where to start; it comes last.
    operands : callable
        Returns what is below a node: fewer than all operands where some are not asked for.
    """
    seen: set[Expr] = set()
    stack: list[tuple[Expr, bool]] = [(root, False)]
    while stack:
        node, expanded = stack.pop()
        if node in seen:
            continue
        if expanded:
            seen.add(node)
            yield node
            continue
        stack.append((node, True))
        stack.extend((child, False) for child in reversed(tuple(operands(node))))
