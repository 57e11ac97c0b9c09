"""Phases 1 to 4 of a panel step in one pass, for tiles in which no maximum has to be looked for.

The maximum m of the tiles before serves this one too: another m would only shift the exponents of
the weights, see `vecmath.exp2_products`, so as long as nothing leaves their range it makes no
difference to any bit of a result. That is looked at afterwards. Then the weights go from the
accumulators to memory, without a pass to find the maximum and another to read the products again.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from llvmlite import ir

from sdpakit.backends.numba_cpu import abi, vecmath
from sdpakit.backends.numba_cpu.frame import PanelFrame
from sdpakit.backends.numba_cpu.irtypes import Value
from sdpakit.backends.numba_cpu.microkernels import qk_tile
from sdpakit.backends.numba_cpu.softmax import huge_maximum

# Row sums of a tile relative to an old maximum that are fine: larger ones would bring sums nearer
# to an overflow than a maximum of their own does.
LARGEST_SUM = 2.0**11
# A panel whose tiles failed so often is left alone: a failure costs the products of a tile.
MISSES = 2


class FusedPhase:
    """Emits phases 1 to 4 of a FAST step whose maximum is known.

    Parameters
    ----------
    frame : PanelFrame
        The step.
    scale : vector
        Factor from products to log2 units.
    has_mask : bool
        Whether a tile may hold masked pairs.
    """

    def __init__(self, frame: PanelFrame, scale: Value, *, has_mask: bool) -> None:
        self.frame, self.e = frame, frame.e
        self.scale, self.has_mask = scale, has_mask
        self.shift: list[Value] = []

    def emit(self) -> Value:
        """Emit the phases; return whether they are done (i1), so that phase 5 may follow."""

        def attempt() -> list[Value]:
            sums, seen = self._weights()
            return [self._settle(sums, seen)]

        return self.frame.branch(self._hopeful(), attempt, lambda: [self.e.c1(0)])[0]

    def _hopeful(self) -> Value:
        """Return whether all keys are present, all lanes have an ordinary m, and few tiles failed.

        No m stands so near to where a lane counts as huge that the tile could carry it there.
        """
        e, frame = self.e, self.frame
        limit = e.const(huge_maximum(frame.layout) / 2)
        ordinary = [
            e.b.fcmp_ordered("<", e.abs(e.load(frame.stat("m", v))), limit)
            for v in range(frame.layout.vectors)
        ]
        hopeful = self._in_every_lane(ordinary)
        misses = e.load(frame.stat("missed", 0), e.S)
        hopeful = e.and_(hopeful, e.fcmp("<", misses, ir.Constant(e.S, float(MISSES))))
        return e.and_(hopeful, e.not_(frame.partial)) if self.has_mask else hopeful

    def _in_every_lane(self, conditions: Sequence[Value]) -> Value:
        e = self.e
        lanes = e.b.bitcast(functools.reduce(e.and_, conditions), ir.IntType(e.w))
        return e.icmp("==", lanes, ir.Constant(lanes.type, -1))

    def _weights(self) -> tuple[list[Value], Value]:
        """Emit weights; return sums of the rows up to n and joined bits of all rounded exponents.

        Each sum is one chain in the order of the keys, as in the phases one by one. Rows past the
        last key must not enter it: the last register tile, if it has some, is summed again.
        """
        e, frame, vectors = self.e, self.frame, self.frame.layout.vectors
        zero = e.const(vecmath.rounding_shift(e))
        olds = [e.load(frame.stat("m", v)) for v in range(vectors)]
        self.shift = [e.add(e.mul(m, e.const(-abi.M_UNIT)), zero) for m in olds]

        def body(g: Value, carried: list[Value]) -> Sequence[Value]:
            sums, seen = self._tile(g, carried[:vectors], carried[-1])
            return [*sums, *carried[:vectors], seen]

        start = [*[e.const(0.0)] * (2 * vectors), vecmath.magic_bits(e)]
        carried = e.loop(frame.groups, body, start, "phase.fused", guard=False)
        rest = e.b.srem(frame.n, e.c(frame.layout.rows))
        ragged = e.icmp("!=", rest, e.c(0))
        sums = [
            e.select(ragged, before, after)
            for after, before in zip(carried[:vectors], carried[vectors:-1], strict=True)
        ]
        return self._add_rows(rest, sums), carried[-1]

    def _tile(self, g: Value, sums: Sequence[Value], seen: Value) -> tuple[list[Value], Value]:
        """Emit one register tile of weights."""
        e, frame, vectors = self.e, self.frame, self.frame.layout.vectors
        products = qk_tile(e, frame.layout, *frame.qk_operands(g))
        row, new = frame.weights(e.imul(g, e.c(frame.layout.rows))), list(sums)
        batch = frame.unroll * vectors  # at a time, see `vecmath.exp2_weights`
        for first in range(0, len(products), batch):
            some = products[first : first + batch]
            shifts = self.shift * (len(some) // vectors)
            weights, rounded = vecmath.exp2_products(e, some, [self.scale] * len(some), shifts)
            for i, (weight, r) in enumerate(zip(weights, rounded, strict=True)):
                e.store(weight, frame.vector(row, first + i))
                new[i % vectors] = e.add(new[i % vectors], weight)
                seen = e.or_(seen, vecmath.float_bits(e, r))
        return new, seen

    def _add_rows(self, count: Value, sums: Sequence[Value]) -> list[Value]:
        """Emit the addition of the last `count` rows of weights to sums."""
        e, frame = self.e, self.frame
        first = e.isub(frame.n, count)

        def body(i: Value, acc: list[Value]) -> Sequence[Value]:
            row = frame.weights(e.iadd(first, i))
            return [e.add(a, e.load(frame.vector(row, v))) for v, a in enumerate(acc)]

        return e.loop(count, body, sums, "fused.rest")

    def _settle(self, sums: Sequence[Value], seen: Value) -> Value:
        """Emit the check, and the statistics of the tile or the count of misses; return i1."""
        e, frame = self.e, self.frame
        limit = e.const(LARGEST_SUM)
        small = [e.b.fcmp_ordered("<", total, limit) for total in sums]
        done = self._in_every_lane([*small, vecmath.in_range(e, seen)])
        with e.b.if_else(done, likely=True) as (on_true, on_false):
            with on_true:
                for v, total in enumerate(sums):
                    e.store(e.add(e.load(frame.stat("l", v)), total), frame.stat("l", v))
                    e.store(e.const(1.0), frame.stat("alpha", v))
            with on_false:
                missed = frame.stat("missed", 0)
                e.store(e.add(e.load(missed), e.const(1.0)), missed)
        return done
