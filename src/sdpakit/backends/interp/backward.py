"""Gradients as NumPy: whole rows of one batch entry and head at a time; slow, clear, complete.

    p = exp(x - m) / (l + exp(sink - m))        dP = dout V^T        delta = sum_j p dP
    dX = p (dP - delta), exactly 0 where a pair is absent (EMPTY-1, MASK-3)
    dV = p^T dout, dQ = (dX x') K, dK = (dX x')^T Q with x' = dx / d<q, k>

and for a table that the logit reads, dX times its derivative, summed over the pairs that read each
element (T. Dao et al., "FlashAttention", 2022, appendix B.4, for the recomputed weights).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from sdpakit.expr.derivative import derivative, float_loads
from sdpakit.expr.evaluate import Environment, evaluate
from sdpakit.expr.nodes import Dot, Expr, Load
from sdpakit.expr.plain_index import is_plain_index
from sdpakit.ir.interp import run

if TYPE_CHECKING:
    from sdpakit.backends.base import BackwardCall, Call
    from sdpakit.ir.program import Program

Array: TypeAlias = "np.ndarray[Any, Any]"

_MAX_PAIRS = 1 << 19  # pairs of query rows and keys held at once


@dataclass(frozen=True, slots=True)
class _Rows:
    """Query rows of one batch entry and head, and all keys; floats in accum_dtype.

    `x` holds the logits, -inf where a pair is absent, `environment` what expressions read.
    """

    b: int
    h: int
    kv_head: int
    rows: slice
    q: Array
    k: Array
    v: Array
    x: Array
    present: Array
    environment: Environment

    @property
    def place(self) -> tuple[int, int, slice]:
        """Where the rows stand in an array (B, Hq, Lq, ...)."""
        return self.b, self.h, self.rows


class InterpretedBackward:
    """Interprets the gradients of one program (`sdpakit.backends.base.BackwardLauncher`).

    Parameters
    ----------
    program : Program
        Any program.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._forward = replace(
            program, out_dtype=program.accum_dtype, outputs=("out",), empty_row="zero"
        )
        self._slope = derivative(program.logit, Dot())
        self._tables = [
            (load, slope)
            for load in float_loads(program.logit)
            if (slope := derivative(program.logit, load)) is not None
        ]

    def forward(self, call: Call) -> Mapping[str, Array]:
        """Return out, and maximum m and sum l of every row without its sink."""
        shape, dtype = call.q.shape[:3], self._program.accum_dtype
        out = np.zeros((*shape, call.v.shape[3]), dtype)
        m, total = np.full(shape, -np.inf, dtype), np.zeros(shape, dtype)
        run(self._forward, replace(call, outputs={"out": out}))
        with np.errstate(all="ignore"):  # NUM-4: NaN and infinities are values
            for block in self._blocks(call):
                top = block.x.max(axis=1, initial=-np.inf)
                m[block.place] = np.where(top == np.inf, top.dtype.type(np.nan), top)
                shift = _guarded(m[block.place])[:, None]
                total[block.place] = np.exp(block.x - shift).sum(axis=1)
        return {"out": out, "m": m, "l": total}

    def __call__(self, call: BackwardCall) -> None:
        """Fill the gradients of a call."""
        dtype = self._program.accum_dtype
        sums = {name: np.zeros(x.shape, dtype) for name, x in call.gradients.items()}
        with np.errstate(all="ignore"):
            for block in self._blocks(call.call):
                dout = call.dout[block.place].astype(dtype)
                self._add(block, dout, call.saved, sums)
            for name, array in call.gradients.items():
                array[...] = sums[name]  # GRAD-3: the one rounding

    def _add(
        self, block: _Rows, dout: Array, saved: Mapping[str, Array], sums: Mapping[str, Array]
    ) -> None:
        """Add what a block of rows gives to every gradient."""
        p, present = self._weights(block, saved), block.present
        dp = np.where(present, dout @ block.v.T, dout.dtype.type(0))
        delta = (p * dp).sum(axis=1, keepdims=True)
        dlogits = _where(present, p * (dp - delta))
        kv = block.b, block.kv_head
        sums["dv"][kv] += _mix(p.T, present.T, dout)
        if self._slope is not None:
            ddot = _where(present, dlogits * evaluate(self._slope, block.environment))
            sums["dq"][block.place] = _mix(ddot, present, block.k)
            sums["dk"][kv] += _mix(ddot.T, present.T, block.q)
        for load, slope in self._tables:
            part = _where(present, dlogits * evaluate(slope, block.environment))
            name = "dbias" if load.table == "bias" else f"dparams.{load.table}"
            _scatter(load, part, block.environment, sums[name])
        if "dsinks" in sums:
            share = self._sink_weights(block, saved) * delta[:, 0]
            sums["dsinks"][block.h] -= _where(np.asarray(present.any(axis=1)), share).sum()

    def _weights(self, block: _Rows, saved: Mapping[str, Array]) -> Array:
        """Return the weights of the rows, 0 where absent (NUM-3: the maximum is out of exp)."""
        m, total = (saved[name][block.place][:, None] for name in ("m", "l"))
        shift = _guarded(m)
        sink = self._sink(block)
        if sink is None:
            return _where(block.present, np.exp(block.x - shift) / total)
        common = np.maximum(shift, sink)
        whole = total * np.exp(shift - common) + np.exp(sink - common)
        return _where(block.present, np.exp(block.x - common) / whole)

    def _sink_weights(self, block: _Rows, saved: Mapping[str, Array]) -> Array:
        m, total = (saved[name][block.place] for name in ("m", "l"))
        shift, sink = _guarded(m), self._sink(block)
        common = np.maximum(shift, sink)
        share = np.exp(sink - common)
        return np.asarray(share / (total * np.exp(shift - common) + share))

    def _sink(self, block: _Rows) -> Any:
        sink = self._program.sink
        return None if sink is None else evaluate(sink, block.environment)

    def _blocks(self, call: Call) -> Iterator[_Rows]:
        batch, q_heads, q_rows, _ = call.q.shape
        kv_heads, kv_rows = call.k.shape[1:3]
        step = max(1, _MAX_PAIRS // kv_rows)
        for b, h in np.ndindex(batch, q_heads):
            for start in range(0, q_rows, step):
                rows = slice(start, min(start + step, q_rows))
                yield self._rows(call, b, h, h // (q_heads // kv_heads), rows)

    def _rows(self, call: Call, b: int, h: int, kv_head: int, rows: slice) -> _Rows:
        program = self._program
        q = call.q[b, h, rows].astype(program.accum_dtype)
        k, v = (x[b, kv_head].astype(program.accum_dtype) for x in (call.k, call.v))
        environment = Environment(
            accum_dtype=program.accum_dtype,
            indices={
                "b": b,
                "h": h,
                "q": np.arange(rows.start, rows.stop, dtype=np.int64)[:, None],
                "k": np.arange(k.shape[0], dtype=np.int64)[None, :],
                "q_len": int(call.q_len[b]),
                "kv_len": int(call.kv_len[b]),
                "q_offset": int(call.q_offset[b]),
            },
            scalars=call.scalars,
            tables=call.tables,
            dot=q @ k.T,
        )
        pairs = (q.shape[0], k.shape[0])
        logits = np.broadcast_to(evaluate(program.logit, environment), pairs)
        mask = np.broadcast_to(evaluate(program.mask, environment), pairs)
        present = mask & (logits != -np.inf)  # MASK-6
        x = np.where(present, logits, logits.dtype.type(-np.inf))
        return _Rows(b, h, kv_head, rows, q, k, v, x, present, environment)


def _guarded(m: Array) -> Array:
    """Return the maximum, 0 for an empty row (NUM-2)."""
    return np.where(m == -np.inf, m.dtype.type(0), m)


def _where(present: Array, value: Array) -> Array:
    """Return the value, 0 where absent: picked, never multiplied (MASK-3)."""
    return np.where(present, value, value.dtype.type(0))


def _mix(weights: Array, present: Array, rows: Array) -> Array:
    """Return weights @ rows; what a row holds takes no part where it is absent (MASK-3)."""
    finite = np.asarray(np.isfinite(rows).all(axis=1))
    zero = rows.dtype.type(0)
    total = np.asarray(weights @ np.where(finite[:, None], rows, zero))
    for j in np.flatnonzero(~finite & present.any(axis=0)):
        total += np.where(present[:, j, None], weights[:, j, None] * rows[j], zero)
    return total


def _scatter(load: Load, part: Array, environment: Environment, total: Array) -> None:
    """Add the gradient of each pair to the element of the table that the pair read."""
    places = [
        np.broadcast_to(_pick(index, size, environment), part.shape)
        for index, size in zip(load.indices, total.shape, strict=True)
    ]
    np.add.at(total, tuple(places), part)


def _pick(index: Expr, size: int, environment: Environment) -> Array:
    pick = evaluate(index, environment)
    return np.zeros_like(pick) if size == 1 and is_plain_index(index) else pick
