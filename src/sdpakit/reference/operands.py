"""Operands of one call, checked and as float64 in the axis order b, h, length, width.

Entries that are not padded are so here (`packed`), and results go the other way at the end.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from sdpakit.errors import ArgumentError, ArgumentTypeError, format_error
from sdpakit.reference import packed

if TYPE_CHECKING:
    from sdpakit.spec import AttentionSpec

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Operands:
    """One call in float64: q (B, Hq, Lq, D), k (B, Hkv, Lk, D), v (B, Hkv, Lk, Dv), as stored.

    `bias` and `mask` are broadcast to (B, Hq, Lq, Lk); `bias_shape` is the shape that the caller
    gave. Bias, sinks and float tables have the values that they have in accum_dtype (MOD-1).
    `q_len`, `kv_len` and `q_offset` are int64 of shape (B,). In layout "thd" entries are padded to
    the longest, and `q_ends` holds their offsets in the `q_tokens` tokens of the caller.
    """

    spec: AttentionSpec
    q: Array
    k: Array
    v: Array
    bias: Array | None
    bias_shape: tuple[int, ...]
    mask: Array | None
    sinks: Array | None
    q_len: Array
    kv_len: Array
    q_offset: Array | None
    params: Mapping[str, Any]
    scale: float
    q_ends: list[int] | None = None
    q_tokens: int = 0

    @property
    def full_shape(self) -> tuple[int, int, int, int]:
        """(B, Hq, Lq, Lk)."""
        batch, q_heads, q_len, _ = self.q.shape
        return batch, q_heads, q_len, self.k.shape[2]

    @property
    def kv_head(self) -> Array:
        """The kv head that each query head reads (SHAPE-2)."""
        q_heads, kv_heads = self.q.shape[1], self.k.shape[1]
        return np.arange(q_heads) // (q_heads // kv_heads if kv_heads else 1)

    def indices(self, b: int) -> dict[str, Any]:
        """Return the indices of every pair of batch entry b, broadcastable to (Hq, Lq, Lk)."""
        _, q_heads, q_len, kv_len = self.full_shape
        return {
            "b": np.int64(b),
            "h": np.arange(q_heads)[:, None, None],
            "q": np.arange(q_len)[None, :, None],
            "k": np.arange(kv_len)[None, None, :],
            "q_len": self.q_len[b],
            "kv_len": self.kv_len[b],
            "q_offset": self.q_offset[b] if self.q_offset is not None else None,
        }

    def to_layout(self, array: Array, past: float = 0.0) -> Array:
        """Return (B, H, L, width) or (B, H, L) of rows in the layout of the spec (SHAPE-1).

        `past` is what tokens past the last entry hold (RAGGED-1).
        """
        if self.q_ends is not None:
            return packed.to_offsets(array, self.q_ends, self.q_tokens, past)
        return array.swapaxes(1, 2) if self.spec.layout == "bshd" and array.ndim == 4 else array

    def empty_row(self, output: str) -> float:
        """Return what an output holds in a row without keys (EMPTY-1)."""
        nothing = math.nan if self.spec.empty_row == "nan" else 0.0
        return {"out": nothing, "entropy": 0.0, "sum_p2": 0.0}.get(output, -math.inf)


def prepare(spec: AttentionSpec, q: Any, k: Any, v: Any, given: Mapping[str, Any]) -> Operands:
    """Check a call and convert its operands.

    Parameters
    ----------
    spec, q, k, v : AttentionSpec and array_like
        As for `sdpakit.reference.attention`.
    given : mapping of str to array_like
        The further operands; None and a missing name mean the same.

    Returns
    -------
    Operands
        The call in float64.

    Raises
    ------
    ArgumentError
        If shapes, head counts or lengths do not fit the spec, or an operand is missing or not
        asked for.
    """
    q, k, v = (_operand(spec, name, x) for name, x in (("q", q), ("k", k), ("v", v)))
    _check_presence(spec, given)
    tokens = q.shape[0]
    q, k, v, lengths = _padded(spec, q, k, v, given)
    _check_shapes(spec, q, k, v)
    full = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    accum = accum_dtype(spec)
    bias, mask, sinks, q_offset = (given.get(n) for n in ("bias", "mask", "sinks", "q_offset"))
    return Operands(
        spec=spec,
        q=q,
        k=k,
        v=v,
        bias=None if bias is None else _broadcast("bias", as_accum(bias, accum), full),
        bias_shape=() if bias is None else np.shape(bias),
        mask=None if mask is None else _broadcast("mask", _kind("mask", mask, "b"), full),
        sinks=None if sinks is None else _exact("sinks", as_accum(sinks, accum), full[1:2]),
        q_len=_lengths("q_lens", lengths.get("q_lens"), full[0], full[2]),
        kv_len=_lengths("kv_lens", lengths.get("kv_lens"), full[0], full[3]),
        q_offset=None if q_offset is None else _offsets(q_offset, full[0]),
        params=given.get("params") or {},
        scale=1.0 / math.sqrt(spec.head_dim) if spec.scale is None else float(spec.scale),
        q_ends=lengths.get("q_ends"),
        q_tokens=tokens,
    )


def _padded(
    spec: AttentionSpec, q: Array, k: Array, v: Array, given: Mapping[str, Any]
) -> tuple[Array, Array, Array, dict[str, Any]]:
    """Return q, k, v as a padded batch (B, H, L, width), and the true lengths of its entries."""
    lengths: dict[str, Any] = {name: given.get(name) for name in ("q_lens", "kv_lens")}
    if spec.layout == "thd":
        ends = packed.offsets("cu_q_lens", given["cu_q_lens"], q.shape[0])
        q, lengths["q_lens"], lengths["q_ends"] = packed.from_offsets(q, ends), np.diff(ends), ends
    elif spec.layout == "bshd":
        q = q.swapaxes(1, 2)
    if spec.paged:
        used = _exact("kv_lens", _kind("kv_lens", lengths["kv_lens"], "iu"), (q.shape[0],))
        k, v = (packed.from_pages(x, given["block_table"], used) for x in (k, v))
    elif spec.layout == "thd":
        ends = packed.offsets("cu_kv_lens", given["cu_kv_lens"], k.shape[0])
        k, v = (packed.from_offsets(x, ends) for x in (k, v))
        lengths["kv_lens"] = np.diff(ends)
    elif spec.layout == "bshd":
        k, v = k.swapaxes(1, 2), v.swapaxes(1, 2)
    return q, k, v, lengths


def accum_dtype(spec: AttentionSpec) -> np.dtype[Any]:
    """Return accum_dtype of NUM-1 as a NumPy dtype."""
    return np.dtype(spec.accum_dtype)


def as_accum(array: Any, accum: np.dtype[Any]) -> Array:
    """Return as float64 the values that an additive operand has in accum_dtype (MOD-1)."""
    with np.errstate(over="ignore"):
        return np.asarray(array).astype(accum).astype(np.float64)


def _operand(spec: AttentionSpec, name: str, x: Any) -> Array:
    array = np.asarray(x)
    rank = 3 if spec.layout == "thd" and not (spec.paged and name != "q") else 4
    if array.ndim != rank:
        raise ArgumentError(
            format_error(
                name, got=f"shape {array.shape}", allowed=f"{rank} axes", fix="see SHAPE-1"
            )
        )
    if array.dtype.name != spec.dtype:
        raise ArgumentTypeError(
            format_error(
                name, got=array.dtype.name, allowed=spec.dtype, fix="cast it, or change the spec"
            )
        )
    return array.astype(np.float64)


def _check_shapes(spec: AttentionSpec, q: Array, k: Array, v: Array) -> None:
    batch, kv_len = q.shape[0], k.shape[2]
    expected = {
        "q": (q, (batch, spec.q_heads, q.shape[2], spec.head_dim)),
        "k": (k, (batch, spec.kv_heads, kv_len, spec.head_dim)),
        "v": (v, (batch, spec.kv_heads, kv_len, spec.v_head_dim)),
    }
    for name, (array, shape) in expected.items():
        if array.shape != shape:
            raise ArgumentError(
                format_error(
                    name,
                    got=f"shape {array.shape} (b, h, length, width)",
                    allowed=str(shape),
                    fix="see SHAPE-1",
                )
            )


def _check_presence(spec: AttentionSpec, given: Mapping[str, Any]) -> None:
    asked = {
        "bias": spec.bias is not None,
        "sinks": bool(spec.sinks),
        "q_lens": bool(spec.q_lens),
        "kv_lens": bool(spec.kv_lens),
        "cu_q_lens": spec.layout == "thd",
        "cu_kv_lens": spec.layout == "thd" and not spec.paged,
        "block_table": bool(spec.paged),
    }
    for name, wanted in asked.items():
        has = given.get(name) is not None
        if has != wanted:
            raise ArgumentError(
                format_error(
                    name,
                    got="an array" if has else "nothing",
                    allowed="an array" if wanted else "nothing",
                    fix="make the spec and the call agree",
                )
            )


def _kind(name: str, value: Any, kinds: str) -> Array:
    array = np.asarray(value)
    if array.dtype.kind not in kinds:
        allowed = "bool" if kinds == "b" else "integers"
        raise ArgumentTypeError(
            format_error(name, got=array.dtype, allowed=allowed, fix="cast it, or use bias=")
        )
    return array


def _lengths(name: str, value: Any, batch: int, longest: int) -> Array:
    if value is None:
        return np.full(batch, longest, np.int64)
    lengths = _exact(name, _kind(name, value, "iu"), (batch,))
    if ((lengths < 0) | (lengths > longest)).any():
        raise ArgumentError(
            format_error(
                name, got=lengths.tolist(), allowed=f"0 to {longest}", fix="pass true lengths"
            )
        )
    return lengths.astype(np.int64)


def checked_integer(name: str, value: Any) -> int:
    """Return a run-time int, or raise where sums of such with indices could leave 64 bits."""
    found = operator.index(value) if hasattr(value, "__index__") else None
    if found is None or abs(found) >= 2**62:
        raise ArgumentError(
            format_error(
                name,
                got=type(value).__name__ if found is None else found,
                allowed="an integer below 2**62 in magnitude (EXPR-1)",
                fix="give a smaller integer",
            )
        )
    return found


def checked_number(name: str, value: Any) -> float:
    """Return a run-time float, or raise where float64 does not hold it."""
    try:
        return float(value)
    except (OverflowError, TypeError, ValueError) as error:
        raise ArgumentError(
            format_error(
                name,
                got=type(value).__name__,
                allowed="one real number that float64 holds",
                fix="pass such a number",
            )
        ) from error


def _offsets(value: Any, batch: int) -> Array:
    offsets = _broadcast("q_offset", _kind("q_offset", value, "iu"), (batch,))
    if offsets.size:
        for bound in (offsets.min(), offsets.max()):
            checked_integer("q_offset", bound)
    return offsets.astype(np.int64)


def _exact(name: str, array: Array, shape: tuple[int, ...]) -> Array:
    if array.shape != shape:
        raise ArgumentError(
            format_error(name, got=f"shape {array.shape}", allowed=str(shape), fix="reshape it")
        )
    return array


def _broadcast(name: str, array: Array, shape: tuple[int, ...]) -> Array:
    try:
        return np.broadcast_to(array, shape)
    except ValueError as error:
        raise ArgumentError(
            format_error(
                name,
                got=f"shape {array.shape}",
                allowed=f"a shape that broadcasts to {shape}",
                fix="reshape it",
            )
        ) from error
