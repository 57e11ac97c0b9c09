"""Phase 2 of a panel step: products become logits, masked pairs -inf, columns get a maximum."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sdpakit.backends.numba_cpu import abi, staging
from sdpakit.backends.numba_cpu.frame import PanelFrame
from sdpakit.backends.numba_cpu.irtypes import Value
from sdpakit.backends.numba_cpu.vector import Lanes

LogitFn = Callable[[Lanes, Value], Value]
MaskFn = Callable[[Lanes], Value]

NATURAL = math.log2(math.e) / abi.M_UNIT  # a natural unit in units of m


@dataclass(frozen=True)
class Pairs:
    """What the logit and the mask of a kernel are.

    Attributes
    ----------
    logit : callable or None
        (lanes, raw dot product) -> logit in natural units; None = FAST.
    mask : callable or None
        lanes -> <w x i1>, True = may attend; None = every pair, no tile is PARTIAL.
    int_bits : int
        Width of integer lanes, 32 or 64.
    staged : sequence of Staged
        Dense tables that `Lanes.dense` reads, in the order of `PanelLayout.dense`.
    """

    logit: LogitFn | None = None
    mask: MaskFn | None = None
    int_bits: int = 32
    staged: Sequence[staging.Staged] = ()


class LogitPhase:
    """Emits phase 2.

    Parameters
    ----------
    frame : PanelFrame
        The step.
    pairs : Pairs
        Logit and mask.
    """

    def __init__(self, frame: PanelFrame, pairs: Pairs) -> None:
        self.frame, self.pairs, self.e = frame, pairs, frame.e

    def emit(self, top: Sequence[Value]) -> list[Value]:
        """Emit the pass and return the maximum of each column.

        Parameters
        ----------
        top : sequence of vectors
            Maximum of the raw products, pad rows included.
        """
        full = functools.partial(self._full, top)
        if self.pairs.mask is None:
            return full()
        return self.frame.branch(self.frame.partial, self._partial, full)

    def _full(self, top: Sequence[Value]) -> list[Value]:
        """Emit the logits of a tile without mask.

        Plain ones are there already; they need a pass only if pad rows spoilt the maximum.
        """
        zero, n = self.e.c(0), self.frame.n
        if self.pairs.logit is not None:
            return self._rows(zero, n, self._lowest(), masked=False)
        ragged = self.e.icmp("!=", n, self.frame.padded)
        whole = functools.partial(self._maxima, zero, self.frame.blocks, self._lowest())
        return self.frame.branch(ragged, whole, lambda: top)

    def _partial(self) -> list[Value]:
        """Emit the logits of a tile with mask, which is evaluated only where a query may differ."""
        e, frame = self.e, self.frame
        lo, hi = frame.whole()

        def outside(side: Value, top: list[Value]) -> Sequence[Value]:
            above = e.icmp("!=", side, e.c(0))
            first, end = e.select(above, hi, e.c(0)), e.select(above, frame.n, lo)
            return self._rows(first, end, top, masked=True)

        top = e.loop(e.c(2), outside, self._lowest(), "phase.logits.outside", guard=False)
        if self.pairs.logit is not None:
            return self._rows(lo, hi, top, masked=False)
        first, end = (e.b.sdiv(row, e.c(frame.unroll)) for row in (lo, hi))
        return self._maxima(first, e.isub(end, first), top)

    def _lowest(self) -> list[Value]:
        return [self.e.const(-math.inf)] * self.frame.layout.vectors

    def _rows(self, first: Value, end: Value, top: Sequence[Value], *, masked: bool) -> list[Value]:
        """Emit the pass over some rows: logits and mask in place, `top` raised to their maxima."""
        e, frame, vectors = self.e, self.frame, range(self.frame.layout.vectors)
        queries = [self._queries(v) for v in vectors]

        def body(n: Value, top: list[Value]) -> Sequence[Value]:
            i = e.iadd(first, n)
            row, j = frame.weights(i), e.iadd(frame.arg["j0"], i)
            new = []
            for v in vectors:
                lanes = self._lanes(v, queries[v], i, j)
                new.append(
                    e.max_seen(self._pair(frame.vector(row, v), lanes, masked=masked), top[v])
                )
            return new

        name = "phase.logits.partial" if masked else "phase.logits.full"
        return e.loop(e.isub(end, first), body, top, name)

    def _pair(self, address: Value, lanes: Lanes, *, masked: bool) -> Value:
        """Emit logit and mask of one vector and return what was stored."""
        e, value = self.e, self.e.load(address)
        if self.pairs.logit is not None:
            value = e.mul(self.pairs.logit(lanes, value), e.const(NATURAL))
        if masked and self.pairs.mask is not None:
            value = e.select(self.pairs.mask(lanes), value, e.const(-math.inf))
        e.store(value, address)
        return value

    def _maxima(self, first: Value, count: Value, top: Sequence[Value]) -> list[Value]:
        """Emit the column maximum of blocks of rows alone; rows past the last key hold -inf."""
        e, frame, vectors = self.e, self.frame, self.frame.layout.vectors

        def body(i: Value, top: list[Value]) -> Sequence[Value]:
            block = frame.weights(e.imul(e.iadd(first, i), e.c(frame.unroll)))
            new = list(top)
            for u in range(frame.unroll):
                for v in range(vectors):
                    k = (u % 2) * vectors + v  # two chains for each column hide the latency
                    new[k] = e.max_seen(e.load(frame.vector(frame.row(block, u), v)), new[k])
            return new

        found = e.loop(count, body, [*top, *self._lowest()], "phase.max")
        return [e.max_seen(found[v], found[vectors + v]) for v in range(vectors)]

    def _queries(self, v: int) -> Value:
        """Return the row index of each lane, the last valid row repeated."""
        e, arg = self.e, self.frame.arg
        lane = e.iadd(e.lane_ids(64), e.iconst(v * e.w, 64))
        last = e.splat(e.isub(arg["nq"], e.c(1)))
        row = e.iadd(e.imin(lane, last), e.splat(arg["i0"]))
        return e.resize_int(row, self.pairs.int_bits)

    def _lanes(self, v: int, q: Value, i: Value, j: Value) -> Lanes:
        e, frame, arg = self.e, self.frame, self.frame.arg

        def dense(k: int) -> Value:
            tile = e.offset(arg["p"], (k + 1) * frame.layout.tile_bytes)
            table = self.pairs.staged[k]
            return staging.read(e, table, staging.place(e, frame.layout, table, tile, i, v))

        return Lanes(e, q, j, arg["b"], arg["h"], arg["ctx"], self.pairs.int_bits, dense)
