"""`AttentionSpec`: what is meant, checked as a whole, with no word on how it is computed."""

from __future__ import annotations

import inspect
import math
import struct
from collections.abc import Callable, Iterable
from dataclasses import InitVar, dataclass, fields
from difflib import get_close_matches
from functools import partial
from typing import Any, cast

from sdpakit.calling import checked_init
from sdpakit.dtypes import ACCUM_DTYPE, DTYPES, FLOATS, dtype_name, float_dtype
from sdpakit.errors import SpecError, format_error
from sdpakit.expr.names import check_name
from sdpakit.expr.nodes import Const, Expr, Load, Type, check_depth, postorder
from sdpakit.expr.operands import Table
from sdpakit.expr.scope import Scope, scalars_of, tables_of
from sdpakit.expr.values import Value
from sdpakit.lints import warn_of_scale
from sdpakit.logits import Alibi, as_logits
from sdpakit.masks import Mask, as_mask, check_joins, settle
from sdpakit.plain_numbers import plain_number, whole_number

OUTPUTS: tuple[str, ...] = ("out", "lse", "max_logit", "entropy", "sum_p2")
LAYOUTS: tuple[str, ...] = ("bhsd", "bshd", "thd")
EMPTY_ROWS: tuple[str, ...] = ("zero", "nan")

# What other libraries call the fields.
_OTHER_NAMES: dict[str, str] = {
    "num_heads": "q_heads",
    "num_q_heads": "q_heads",
    "num_qo_heads": "q_heads",
    "n_heads": "q_heads",
    "heads": "q_heads",
    "num_kv_heads": "kv_heads",
    "n_kv_heads": "kv_heads",
    "head_size": "head_dim",
    "d_k": "head_dim",
    "d_v": "v_head_dim",
    "head_dim_v": "v_head_dim",
    "sm_scale": "scale",
    "softmax_scale": "scale",
    "logits_soft_cap": "softcap",
    "soft_cap": "softcap",
    "attn_mask": "mask",
    "is_causal": 'mask=Causal(align="top_left" or "bottom_right")',
    "causal": 'mask=Causal(align="top_left" or "bottom_right")',
    "window": "mask=Window(left, right, align=...)",
    "window_size": "mask=Window(left, right, align=...)",
    "sink": "sinks",
    "return_lse": 'outputs=("out", "lse")',
    "varlen": 'layout="thd", and cu_q_lens=, cu_kv_lens= at the call',
    "page_size": "paged=True: the size of a page is that of the arrays of a call",
    "block_size": "paged=True: the size of a page is that of the arrays of a call",
    "block_table": "paged=True, and pass block_table= at the call",
    "batch": "nothing: the batch is that of the arrays of a call",
    "q_len": "nothing: the length is that of the arrays of a call; true lengths are q_lens=True",
    "kv_len": "nothing: the length is that of the arrays of a call; true lengths are kv_lens=True",
}


@checked_init
@dataclass(frozen=True, kw_only=True, slots=True, init=False, repr=False)
class AttentionSpec:
    """What one kernel computes; hashable, comparable by structure, and `repr` evaluates back.

    Lengths, batch and strides belong to a call. Scale, cap and window sizes are run-time values of
    the compiled code: specs that differ in them alone share it. Rules are those of
    ``docs/semantics.md``.

    Parameters
    ----------
    q_heads : int
        Number of query heads, a multiple of `kv_heads` (SHAPE-2).
    kv_heads : int, optional
        Number of key and value heads; default `q_heads`.
    head_dim : int
        Width D of one head of q and k, at least 1 (SHAPE-3).
    v_head_dim : int, optional
        Width Dv of one head of v and out; default `head_dim`, may be 0.
    dtype : str
        Of q, k and v: "float16", "bfloat16", "float32" or "float64", or such an object of NumPy,
        ml_dtypes or torch.
    out_dtype : str, optional
        Of out (NUM-5); default `dtype`.
    accum_dtype : str, optional
        Of logits, sums and statistics; only what NUM-1 says, which is the default.
    layout : {"bhsd", "bshd", "thd"}
        Order of batch, head and length axes of q, k, v and out (SHAPE-1). In "thd" the entries of a
        batch lie one behind the other, and every call brings `cu_q_lens` and `cu_kv_lens`
        (RAGGED-1).
    scale : float, optional
        Factor of <q_i, k_j> (SCALE-1); default 1/sqrt(head_dim). Any finite number (SCALE-2); one
        that looks like a known mistake gives a `ScaleWarning`.
    softcap : float, optional
        c of c * tanh(x / c), above 0 (CAP-1); default none.
    mask : Mask, callable or Expr, optional
        Keys that a row may attend (MASK-1): objects such as `Causal` joined with ``& | ~``, or a
        function such as ``lambda i: i.k <= i.q``. An array is given at the call, for `Dense()`.
    logits : callable, Expr or Alibi, optional
        Change of the logit after cap and bias, such as ``lambda x, i: x + 0.1 * (i.k - i.q)``.
    bias : str, optional
        Dtype of an additive array (B, q_heads, Lq, Lk) that every call brings (MOD-1).
    sinks : bool
        Whether every call brings sinks (q_heads,) (SINK-1).
    q_lens, kv_lens : bool
        Whether every call brings true lengths (B,) (MASK-4).
    paged : bool
        Whether k and v are pages (num_pages, page_size, kv_heads, width) that every call finds by a
        `block_table` (PAGED-1). Needs ``kv_lens=True``.
    equal_lens : bool
        Promises that true query and key lengths are equal at every call, which is checked. Only
        then may an alignment be left open (MASK-2).
    outputs : tuple of str
        Out of "out", "lse", "max_logit", "entropy", "sum_p2" (STAT-1), in the order wanted.
    empty_row : {"zero", "nan"}
        What out holds for a row without keys (EMPTY-1).
    batch_invariant : bool
        Whether a row computed alone, over the same keys and at the same position, must have the
        bits that it has among others (DET-2). Short queries are then slower.

    Raises
    ------
    SpecError
        If a value has no meaning or two contradict each other; the message says what is allowed.

    Warns
    -----
    ScaleWarning
        If the scale looks like a known mistake; nothing is changed.

    Examples
    --------
    >>> from sdpakit import AttentionSpec, Causal
    >>> AttentionSpec(q_heads=8, kv_heads=2, head_dim=64, mask=Causal(align="bottom_right"))
    AttentionSpec(q_heads=8, kv_heads=2, head_dim=64, mask=Causal(align='bottom_right'))
    """

    q_heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    dtype: str
    out_dtype: str
    accum_dtype: str
    layout: str
    scale: float | None
    softcap: float | None
    mask: Mask | None
    logits: Expr | Alibi | None
    bias: str | None
    sinks: bool
    q_lens: bool
    kv_lens: bool
    paged: bool
    equal_lens: bool
    outputs: tuple[str, ...]
    empty_row: str
    batch_invariant: bool
    # `dataclasses.replace` would hand on what was derived from the old values, such as v_head_dim
    # with another head_dim. This makes it refuse, and name what does not.
    call_spec_replace_instead: InitVar[None]

    def __new__(cls, *args: object, **kwargs: object) -> AttentionSpec:
        if args:
            raise SpecError(
                format_error(
                    "AttentionSpec",
                    got=f"{len(args)} positional argument(s)",
                    allowed="keyword arguments: " + ", ".join(field.name for field in fields(cls)),
                    fix="name each one, such as AttentionSpec(q_heads=8, head_dim=64)",
                )
            )
        names = [field.name for field in fields(cls)]
        for name in kwargs:
            if name not in names:
                close = get_close_matches(name, names, n=1)
                raise SpecError(
                    format_error(
                        "AttentionSpec",
                        got=f"an unknown field {name!r}",
                        allowed=", ".join(names),
                        fix=f"say {_OTHER_NAMES.get(name) or ''.join(close) or 'one of these'}",
                    )
                )
        return object.__new__(cls)

    def __init__(  # noqa: PLR0913 - one keyword for each field of the spec
        self,
        *,
        q_heads: int,
        kv_heads: int | None = None,
        head_dim: int,
        v_head_dim: int | None = None,
        dtype: object = "float32",
        out_dtype: object = None,
        accum_dtype: object = None,
        layout: str = "bhsd",
        scale: float | None = None,
        softcap: float | None = None,
        mask: Mask | Expr | Value | Callable[..., Any] | None = None,
        logits: Expr | Value | Alibi | Callable[..., Any] | None = None,
        bias: object = None,
        sinks: bool = False,
        q_lens: bool = False,
        kv_lens: bool = False,
        paged: bool = False,
        equal_lens: bool = False,
        outputs: Iterable[str] = ("out",),
        empty_row: str = "zero",
        batch_invariant: bool = False,
    ) -> None:
        put = partial(object.__setattr__, self)
        put("q_heads", _count("q_heads", q_heads, least=0))
        put("kv_heads", _count("kv_heads", q_heads if kv_heads is None else kv_heads, least=0))
        put("head_dim", _count("head_dim", head_dim, least=1))
        width = head_dim if v_head_dim is None else v_head_dim
        put("v_head_dim", _count("v_head_dim", width, least=0))
        put("dtype", float_dtype("dtype", dtype))
        put("out_dtype", float_dtype("out_dtype", dtype if out_dtype is None else out_dtype))
        put("accum_dtype", _accum_dtype(self.dtype, accum_dtype))
        put("layout", _choice("layout", layout, LAYOUTS))
        put("scale", _real("scale", scale, self.accum_dtype, "None is 1/sqrt(head_dim)"))
        put("softcap", _softcap(softcap, self.accum_dtype))
        put("bias", None if bias is None else _bias(bias))
        for name, value in (("sinks", sinks), ("q_lens", q_lens), ("kv_lens", kv_lens)):
            put(name, _flag(name, value, f"pass the array at the call and say {name}=True here"))
        put("paged", _flag("paged", paged, "pass block_table= at the call and say paged=True here"))
        put("equal_lens", _flag("equal_lens", equal_lens, "True promises q_len == kv_len"))
        put("outputs", _outputs(outputs))
        put("empty_row", _choice("empty_row", empty_row, EMPTY_ROWS))
        put("batch_invariant", _flag("batch_invariant", batch_invariant, "True asks for DET-2"))
        _check_heads(self)
        _check_packing(self)
        _check_lengths(self)
        scope = Scope(equal_lens=self.equal_lens)
        put("mask", None if mask is None else settle(check_joins(as_mask(mask)), scope))
        put("logits", None if logits is None else _settled(as_logits(logits), scope))
        _check_expressions(self)
        warn_of_scale(self.scale, self.q_heads, self.kv_heads, self.head_dim, self.v_head_dim)

    @property
    def group(self) -> int:
        """Number of query heads that read one kv head (SHAPE-2)."""
        return max(1, self.q_heads // max(1, self.kv_heads))

    @property
    def packed(self) -> bool:
        """Whether the arrays of a call do not say alone where its entries lie (thd, paged)."""
        return self.paged or self.layout == "thd"

    @property
    def resolved_scale(self) -> float:
        """The factor of <q_i, k_j>: `scale`, or 1/sqrt(head_dim) (SCALE-1)."""
        return 1.0 / math.sqrt(self.head_dim) if self.scale is None else self.scale

    def tables(self) -> tuple[Table, ...]:
        """Return the arrays that every call brings in `params`, by name.

        Returns
        -------
        tuple of Table
            Without bias, the array of `Dense` and sinks, which have arguments of their own.
        """
        return tables_of(*_built(self)[1])

    def scalars(self) -> tuple[tuple[str, Type], ...]:
        """Return name and type of the numbers that every call brings in `params`, by name.

        Returns
        -------
        tuple of (str, str)
            Without window sizes and the like, whose values the spec holds.
        """
        scope, roots = _built(self)
        return tuple((name, kind) for name, kind in scalars_of(*roots) if name not in scope.values)

    def replace(self, **changes: Any) -> AttentionSpec:
        """Return the spec with other values of some fields.

        Parameters
        ----------
        **changes
            New values by field. A field that is not named keeps its value if `repr` shows it;
            else it takes its default again, which may be the new value of another field.

        Returns
        -------
        AttentionSpec
            Checked as a whole.

        Raises
        ------
        SpecError
            As for `AttentionSpec`.

        Examples
        --------
        >>> from sdpakit import AttentionSpec
        >>> AttentionSpec(q_heads=8, head_dim=64).replace(head_dim=128).v_head_dim
        128
        """
        return AttentionSpec(**(_said(self) | changes))

    __replace__ = replace  # what copy.replace calls

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in _said(self).items())
        return f"AttentionSpec({shown})"


def _signature() -> inspect.Signature:
    """Return the signature of the constructor for `help`, which `__new__` would hide."""
    whole = inspect.signature(AttentionSpec.__init__)
    return whole.replace(parameters=list(whole.parameters.values())[1:])


_SIGNATURE = _signature()
cast(Any, AttentionSpec).__signature__ = _SIGNATURE

# Fields that take the value of another field when left out.
_DEFAULT_FIELDS = {"kv_heads": "q_heads", "v_head_dim": "head_dim", "out_dtype": "dtype"}


def _default(spec: AttentionSpec, name: str) -> object:
    if name == "accum_dtype":
        return ACCUM_DTYPE[spec.dtype]
    other = _DEFAULT_FIELDS.get(name)
    return getattr(spec, other) if other else _SIGNATURE.parameters[name].default


def _said(spec: AttentionSpec) -> dict[str, Any]:
    """Return the fields that make the spec again: those that differ from their defaults."""
    values = {field.name: getattr(spec, field.name) for field in fields(spec)}
    always = ("q_heads", "head_dim")
    return {n: x for n, x in values.items() if n in always or x != _default(spec, n)}


def _built(spec: AttentionSpec) -> tuple[Scope, list[Expr]]:
    """Return the expressions of the spec, with the scope that holds their run-time numbers."""
    scope = Scope(equal_lens=spec.equal_lens)
    roots = [] if spec.mask is None else [spec.mask.build(scope)]
    if isinstance(spec.logits, Alibi):
        roots.append(spec.logits.build(scope))
    elif spec.logits is not None:
        roots.append(spec.logits)
    return scope, roots


def _count(name: str, value: object, *, least: int) -> int:
    return whole_number(name, value, least=least, fix=f"use {least} or more")


def _choice(name: str, value: object, allowed: tuple[str, ...]) -> str:
    if isinstance(value, str) and value in allowed:
        return value
    raise SpecError(
        format_error(
            name,
            got=repr(value),
            allowed=" | ".join(repr(choice) for choice in allowed),
            fix="name one of these",
        )
    )


def _flag(name: str, value: object, fix: str) -> bool:
    flag = plain_number(value)
    if not isinstance(flag, bool):
        raise SpecError(
            format_error(name, got=f"a {type(value).__name__}", allowed="True | False", fix=fix)
        )
    return flag


def _accum_dtype(dtype: str, value: object) -> str:
    wanted = ACCUM_DTYPE[dtype]
    if value is not None and float_dtype("accum_dtype", value) != wanted:
        raise SpecError(
            format_error(
                "accum_dtype",
                got=f"{value!r} with dtype={dtype!r}",
                allowed=f"{wanted!r}: float32 for float16, bfloat16, float32; float64 for float64",
                fix="leave it out, or change dtype (NUM-1)",
            )
        )
    return wanted


def _real(name: str, value: object, accum_dtype: str, fix: str) -> float | None:
    if value is None:
        return None
    number = plain_number(value)
    if number is None or isinstance(number, bool):
        shown = f"{value!r} ({type(value).__name__})"
        raise SpecError(format_error(name, got=shown, allowed="a real number or None", fix=fix))
    if not _is_finite_in(accum_dtype, number):
        raise SpecError(
            format_error(
                name,
                got=repr(value),
                allowed=f"a finite number of accum_dtype {accum_dtype}, or None",
                fix=fix,
            )
        )
    return float(number)


def _is_finite_in(dtype: str, number: float) -> bool:
    rounded = _rounded(dtype, number)
    return rounded is not None and math.isfinite(rounded)


def _rounded(dtype: str, number: float) -> float | None:
    """Return a number rounded to float32 or float64; None where a finite one overflows."""
    code = "f" if dtype == "float32" else "d"
    try:
        return float(struct.unpack(code, struct.pack(code, float(number)))[0])
    except OverflowError:
        return None


def _softcap(value: object, accum_dtype: str) -> float | None:
    cap = _real("softcap", value, accum_dtype, "None is no cap")
    # A cap that rounds to 0 would divide 0 by 0 (CAP-1).
    if cap is not None and (cap <= 0 or _rounded(accum_dtype, cap) == 0):
        raise SpecError(
            format_error(
                "softcap",
                got=repr(value),
                allowed=f"None, or a number above 0 in accum_dtype {accum_dtype}",
                fix="None is no cap; 0 is not 'off'",
            )
        )
    return cap


def _bias(value: object) -> str:
    name = dtype_name(value)
    if name in FLOATS:
        return name
    raise SpecError(
        format_error(
            "bias",
            got=repr(value) if isinstance(value, str | type) else f"a {type(value).__name__}",
            allowed="the dtype of the array: " + " | ".join(FLOATS),
            fix='say bias="float32" here and give the array as bias= at the call; a boolean array '
            "is mask=Dense()",
        )
    )


def _outputs(value: object) -> tuple[str, ...]:
    names = tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else None
    right = (
        names is not None
        and len(names) > 0
        and all(isinstance(name, str) and name in OUTPUTS for name in names)
        and len(set(names)) == len(names)
    )
    if names is None or not right:
        raise SpecError(
            format_error(
                "outputs",
                got=repr(value),
                allowed="a tuple without repetition, out of " + ", ".join(OUTPUTS),
                fix='write a tuple, such as ("out",) or ("out", "lse")',
            )
        )
    return names


def _check_heads(spec: AttentionSpec) -> None:
    if (spec.q_heads % spec.kv_heads) if spec.kv_heads else spec.q_heads:
        raise SpecError(
            format_error(
                "q_heads and kv_heads",
                got=f"q_heads={spec.q_heads}, kv_heads={spec.kv_heads}",
                allowed="q_heads a multiple of kv_heads (SHAPE-2)",
                fix="query head h reads kv head h // (q_heads // kv_heads): correct either count",
            )
        )


def _check_packing(spec: AttentionSpec) -> None:
    """Refuse what says a length twice or not at all (RAGGED-1, PAGED-1), and a bias of pairs."""
    says = "layout='thd'" if spec.layout == "thd" else "paged=True"
    if spec.layout == "thd" and (spec.q_lens or (spec.kv_lens and not spec.paged)):
        raise SpecError(
            format_error(
                "q_lens and kv_lens",
                got=f"q_lens={spec.q_lens}, kv_lens={spec.kv_lens} with layout='thd'",
                allowed="lengths said once: cu_q_lens and cu_kv_lens of a call say them (RAGGED-1)",
                fix="leave both away; kv_lens=True goes with paged=True alone",
            )
        )
    if spec.paged and not spec.kv_lens:
        raise SpecError(
            format_error(
                "paged",
                got="True with kv_lens=False",
                allowed="paged=True with kv_lens=True: pages do not say how many keys there are",
                fix="say kv_lens=True, and pass kv_lens= and block_table= at the call (PAGED-1)",
            )
        )
    if spec.bias is not None and (spec.paged or spec.layout == "thd"):
        raise SpecError(_no_pairs("bias", f"{spec.bias!r}", says))


def _no_pairs(where: str, got: str, says: str) -> str:
    return format_error(
        where,
        got=f"{got} with {says}",
        allowed="operands that are not arrays of pairs: no (B, Hq, Lq, Lk) is there (RAGGED-1)",
        fix="say it as a mask or logit expression, which may read a Table[i.b, i.q, i.k]",
    )


def _check_lengths(spec: AttentionSpec) -> None:
    packed = spec.layout == "thd"
    if spec.equal_lens and (spec.q_lens or packed) != (spec.kv_lens or packed):
        raise SpecError(
            format_error(
                "equal_lens",
                got=f"True with q_lens={spec.q_lens}, kv_lens={spec.kv_lens}",
                allowed="both lengths or neither: true lengths are promised to be equal",
                fix="say q_lens=True, kv_lens=True, or name an alignment and drop equal_lens",
            )
        )


def _settled(logits: Expr | Alibi, scope: Scope) -> Expr | Alibi:
    if isinstance(logits, Alibi):
        return logits
    return scope.resolve("logits: i.pos(align)", logits)


def _check_expressions(spec: AttentionSpec) -> None:
    scope, roots = _built(spec)  # refuses alignments left open
    for root in roots:
        check_depth("mask" if root.type == "bool" else "logits", root)
    numbers = {name for name, _ in scalars_of(*roots)} - scope.values.keys()
    for name in numbers:
        check_name("Scalar", name)
    for table in tables_of(*roots):
        if table.name in numbers:
            raise SpecError(
                format_error(
                    f"run-time operand {table.name!r}",
                    got="a Scalar and a Table of this name",
                    allowed="one meaning for one name within a spec",
                    fix="choose another name for one of them",
                )
            )
    for node in (part for root in roots for part in postorder(root)):
        if isinstance(node, Const) and isinstance(node.value, float):
            _check_literal(spec.accum_dtype, node.value)
        if isinstance(node, Load) and node.table == "mask" and spec.packed:
            says = "layout='thd'" if spec.layout == "thd" else "paged=True"
            raise SpecError(_no_pairs("mask", "Dense()", says))


def _check_literal(accum_dtype: str, value: float) -> None:
    # MASK-5: a finite number must not turn into infinity in silence.
    if math.isfinite(value) and not _is_finite_in(accum_dtype, value):
        raise SpecError(
            format_error(
                "mask or logit expression",
                got=f"the number {value!r}",
                allowed=f"up to {DTYPES[accum_dtype].max:.9g}, the largest of {accum_dtype}",
                fix="write -float('inf') where a key is meant to be absent, or use dtype float64",
            )
        )
