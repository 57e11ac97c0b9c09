"""What a program means, as NumPy: the living definition of the IR, slow, clear and complete.

One batch entry and head at a time, a block of query rows at a time, all keys at once. Expressions
are those of `sdpakit.expr.evaluate`; the rules named below are those of `docs/semantics.md`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np

from sdpakit.expr.evaluate import Environment, evaluate
from sdpakit.ir.program import Program

Array: TypeAlias = "np.ndarray[Any, Any]"

# Pairs of query rows and keys held at once: about 30 MiB of intermediate arrays.
_MAX_PAIRS = 1 << 19


class Operands(Protocol):
    """What is read and written; `sdpakit.backends.base.Call` says what each field holds."""

    @property
    def q(self) -> Array:
        """(B, Hq, Lq, D)."""
        ...

    @property
    def k(self) -> Array:
        """(B, Hkv, Lk, D)."""
        ...

    @property
    def v(self) -> Array:
        """(B, Hkv, Lk, Dv)."""
        ...

    @property
    def outputs(self) -> Mapping[str, Array]:
        """Arrays to fill, by output."""
        ...

    @property
    def tables(self) -> Mapping[str, Array]:
        """Run-time arrays, by name."""
        ...

    @property
    def scalars(self) -> Mapping[str, int | float]:
        """Run-time numbers, by name."""
        ...

    @property
    def q_len(self) -> Array:
        """(B,) int64."""
        ...

    @property
    def kv_len(self) -> Array:
        """(B,) int64."""
        ...

    @property
    def q_offset(self) -> Array:
        """(B,) int64."""
        ...

    @property
    def q_start(self) -> Array | None:
        """(B,) int64 where entries lie one behind the other."""
        ...

    @property
    def kv_start(self) -> Array | None:
        """(B,) int64 where entries lie one behind the other."""
        ...

    @property
    def pages(self) -> Array | None:
        """(B, n) int64 where keys lie in pages."""
        ...


def run(program: Program, call: Operands, *, rows_alone: bool = False) -> None:
    """Compute a call; every element of every output is written.

    Parameters
    ----------
    program : Program
        Scheduled or not.
    call : Operands
        Checked operands; `call.outputs` holds an array for each of `program.outputs`.
    rows_alone : bool
        Compute each row as if it was the only one (DET-2): products of many rows may have other
        bits.
    """
    with np.errstate(all="ignore"):  # NUM-4: NaN and infinities are values
        for block in _blocks(program, call, rows_alone=rows_alone):
            results = _compute(program, call, block)
            for name in program.outputs:
                # NUM-5: the one rounding to the dtype of the output.
                call.outputs[name][place(call, block.b, block.h, block.rows)] = results[name]


def place(call: Operands, b: int, h: int, rows: slice) -> tuple[int, int, slice]:
    """Return where query rows of an entry and head stand in q and in outputs (RAGGED-1).

    Parameters
    ----------
    call : Operands
        A call.
    b, h : int
        Batch entry and query head.
    rows : slice
        Rows of the entry.

    Returns
    -------
    tuple
        Index into (B, Hq, Lq, ...).
    """
    if call.q_start is None:
        return b, h, rows
    start = int(call.q_start[b])
    return 0, h, slice(start + rows.start, start + rows.stop)


def rows_of(call: Operands, b: int) -> int:
    """Return the number of query rows that an entry has in q."""
    return call.q.shape[2] if call.q_start is None else int(call.q_len[b])


def keys_of(call: Operands, b: int, kv_head: int) -> tuple[Array, Array]:
    """Return the keys and the values of an entry and kv head, gathered where they lie in pages."""
    length = int(call.kv_len[b])
    if call.pages is not None:  # PAGED-1: no page past the length is looked at
        used = call.pages[b, : -(-length // call.k.shape[2])]
        k, v = (x[used, kv_head].reshape(-1, x.shape[3])[:length] for x in (call.k, call.v))
    elif call.kv_start is not None:
        keys = slice(int(call.kv_start[b]), int(call.kv_start[b]) + length)
        k, v = (x[0, kv_head, keys] for x in (call.k, call.v))
    else:
        k, v = (x[b, kv_head] for x in (call.k, call.v))
    return k, v


@dataclass(frozen=True, slots=True)
class _Block:
    """Query rows of one batch entry and head, with the keys and values that they see."""

    b: int
    h: int
    rows: slice
    k: Array
    v: Array


@dataclass(frozen=True, slots=True)
class _Softmax:
    """Softmax of a block of rows over their present keys, the sink left out (SINK-2).

    `m` and `shift` are (rows, 1): the maximum, -inf for an empty row, and the copy of it that is
    safe to subtract (NUM-2). `e` is exp(x - shift), 0 where absent; `total` its sum.
    """

    x: Array
    present: Array
    m: Array
    shift: Array
    e: Array
    total: Array

    @property
    def empty(self) -> Array:
        """(rows, 1): whether the row has no key at all (EMPTY-1)."""
        return np.asarray(~self.present.any(axis=1, keepdims=True))


def _blocks(program: Program, call: Operands, *, rows_alone: bool) -> Iterator[_Block]:
    q_heads, kv_heads = call.q.shape[1], call.k.shape[1]
    group = max(1, q_heads // max(1, kv_heads))
    for b, h in np.ndindex(len(call.q_len), q_heads):
        k, v = (x.astype(program.accum_dtype) for x in keys_of(call, b, h // group))
        rows = rows_of(call, b)
        step = 1 if rows_alone else max(1, _MAX_PAIRS // max(1, k.shape[0]))
        for start in range(0, rows, step):
            yield _Block(b, h, slice(start, min(start + step, rows)), k, v)


def _compute(program: Program, call: Operands, block: _Block) -> dict[str, Array]:
    q = call.q[place(call, block.b, block.h, block.rows)].astype(program.accum_dtype)
    environment = _environment(program, call, block, q @ block.k.T)
    pairs = (q.shape[0], block.k.shape[0])
    logits = np.broadcast_to(evaluate(program.logit, environment), pairs)
    mask = np.broadcast_to(evaluate(program.mask, environment), pairs)
    soft = _softmax(logits, mask)
    results = _statistics(soft)
    if "out" in program.outputs:
        sink = None if program.sink is None else evaluate(program.sink, environment)
        out = _mean(soft, sink, block.v)
        empty = np.nan if program.empty_row == "nan" else 0.0
        results["out"] = np.where(soft.empty, out.dtype.type(empty), out)
    return results


def _environment(program: Program, call: Operands, block: _Block, dot: Array) -> Environment:
    b = block.b
    rows = np.arange(block.rows.start, block.rows.stop, dtype=np.int64)
    return Environment(
        accum_dtype=program.accum_dtype,
        indices={
            "b": b,
            "h": block.h,
            "q": rows[:, None],
            "k": np.arange(block.k.shape[0], dtype=np.int64)[None, :],
            "q_len": int(call.q_len[b]),
            "kv_len": int(call.kv_len[b]),
            "q_offset": int(call.q_offset[b]),
        },
        scalars=call.scalars,
        tables=call.tables,
        dot=dot,
    )


def _softmax(logits: Array, mask: Array) -> _Softmax:
    # MASK-3, MASK-6: absent is not multiplied away but picked out; a NaN logit is present.
    present = mask & (logits != -np.inf)
    x = np.where(present, logits, logits.dtype.type(-np.inf))
    m = x.max(axis=1, keepdims=True, initial=-np.inf)
    m = np.where(m == np.inf, m.dtype.type(np.nan), m)  # NUM-4
    shift = np.where(m == -np.inf, m.dtype.type(0), m)  # NUM-2
    e = np.exp(x - shift)
    return _Softmax(x, present, m, shift, e, e.sum(axis=1, keepdims=True))


def _statistics(soft: _Softmax) -> dict[str, Array]:
    """Return lse and the row statistics of SOFT-1 and STAT-1."""
    total = np.where(soft.empty, soft.total.dtype.type(1), soft.total)
    p = soft.e / total
    # entropy = lse - sum p x, with the maximum taken out of both: no cancellation of large logits.
    # A weight of 0 adds nothing, however far below the maximum its logit lies: that difference may
    # overflow, and 0 * -inf is NaN.
    counts = soft.present & (p != 0)
    centred = np.where(counts, soft.x - soft.shift, p.dtype.type(0))
    entropy = np.log(total) - (p * centred).sum(axis=1, keepdims=True)
    found = {
        "lse": soft.m + np.log(total),
        "max_logit": soft.m,
        "entropy": np.where(soft.empty, total.dtype.type(0), entropy),
        "sum_p2": (p * p).sum(axis=1, keepdims=True),
    }
    return {name: values[:, 0] for name, values in found.items()}


def _mean(soft: _Softmax, sink: Array | None, v: Array) -> Array:
    """Return the weighted mean of the values; a sink joins the denominator (SINK-1)."""
    weighted = _weighted_sum(soft, v)
    if sink is None:
        return np.asarray(weighted / soft.total)
    # Both parts relative to the common maximum, so that neither overflows whichever is larger.
    common = np.maximum(soft.shift, sink)
    rescale = np.exp(soft.shift - common)
    return np.asarray(weighted * rescale / (soft.total * rescale + np.exp(sink - common)))


def _weighted_sum(soft: _Softmax, v: Array) -> Array:
    """Return e @ v; rows of v of absent keys take no part, whatever they hold (MASK-3)."""
    finite = np.asarray(np.isfinite(v).all(axis=1))
    total = np.asarray(soft.e @ np.where(finite[:, None], v, v.dtype.type(0)))
    for j in np.flatnonzero(~finite & soft.present.any(axis=0)):
        share = soft.e[:, j, None] * v[j]
        total += np.where(soft.present[:, j, None], share, v.dtype.type(0))
    return total
