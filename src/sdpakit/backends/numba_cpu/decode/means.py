"""Weighted sums of values: acc[row][:] = acc[row][:] * alpha + sum_j P[row][j] v_j.

Head dims are the lanes. A strip of columns is summed over a run of keys before the next one, its
accumulators in registers; each is one chain over the keys. The order of the strips is not that of
the memory, which is fetched ahead in its own order, spread evenly over the rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from sdpakit.backends.numba_cpu.decode.layout import RUN_KEYS, DecodeLayout
from sdpakit.backends.numba_cpu.decode.products import address_of_row
from sdpakit.backends.numba_cpu.functions import new_function
from sdpakit.backends.numba_cpu.irtypes import Value
from sdpakit.backends.numba_cpu.microkernels import CACHE_LINE, prefetch
from sdpakit.backends.numba_cpu.packing import load_lanes
from sdpakit.backends.numba_cpu.vector import VectorEmitter

ARGUMENTS = ("v", "v_step", "n", "p", "state")


class Means:
    """Emits `means_<rows>`, or `means_present`, which leaves out absent pairs (MASK-3).

    For `v` and `v_step` see `products.address_of_row`.

    Parameters
    ----------
    module : llvmlite.ir.Module
        Where the function goes.
    layout : DecodeLayout
        Sizes.
    rows : int
        Rows of weights that it serves.
    guarded : bool
        Replace v by 0 where the weight has the bits of -0.0, so that NaN or inf there cannot reach
        the row.
    """

    def __init__(
        self, module: Any, layout: DecodeLayout, rows: int, *, guarded: bool = False
    ) -> None:
        name = "means_present" if guarded else f"means_{rows}"
        b = new_function(module, layout.named(name), ARGUMENTS, result=ir.VoidType())
        self.arg: dict[str, Value] = dict(zip(ARGUMENTS, b.function.args, strict=True))
        self.e = VectorEmitter(b, layout.isa, layout.element)
        self.layout, self.rows, self.guarded = layout, rows, guarded
        self.strip = 1 if guarded else min(layout.accumulators // rows, 8)  # vectors
        self.strip_bytes = self.strip * layout.lanes * layout.panel.itemsize
        self.strips = -(-layout.panel.v_head_dim // (self.strip * layout.lanes))

    def emit(self) -> None:
        """Emit the loop over runs of keys."""
        e, n = self.e, self.arg["n"]

        def run(i: Value, _: list[Value]) -> Sequence[Value]:
            first = e.imul(i, e.c(RUN_KEYS))
            count = e.imin(e.isub(n, first), e.c(RUN_KEYS))
            factors = [self._factor(r, e.icmp("==", i, e.c(0))) for r in range(self.rows)]
            self._strips(first, count, factors)
            return ()

        runs = e.b.sdiv(e.iadd(n, e.c(RUN_KEYS - 1)), e.c(RUN_KEYS))
        e.loop(runs, run, (), "runs", guard=False)
        e.b.ret_void()

    def _factor(self, row: int, is_first: Value) -> Value:
        """Return what the accumulator of a row is multiplied by before a run: alpha, then 1."""
        e, layout = self.e, self.layout
        at = row * layout.state_bytes + layout.stat_rows.index("alpha") * layout.vector_bytes
        return e.select(is_first, e.load(e.offset(self.arg["state"], at)), e.const(1.0))

    def _strips(self, first: Value, count: Value, factors: Sequence[Value]) -> None:
        """Emit the strips of a run, whole ones in a loop."""
        e, lanes = self.e, self.strip * self.layout.lanes

        def body(s: Value, _: list[Value]) -> Sequence[Value]:
            self._strip(s, lanes, first, count, factors)
            return ()

        whole, rest = divmod(self.layout.panel.v_head_dim, lanes)
        if whole:
            e.loop(e.c(whole), body, (), "strips", guard=False)
        if rest:
            self._strip(e.c(whole), rest, first, count, factors)

    def _strip(
        self, s: Value, width: int, first: Value, count: Value, factors: Sequence[Value]
    ) -> None:
        """Emit the sums of strip `s`, `width` columns, over `count` keys from `first` on."""
        e, layout, arg, w = self.e, self.layout, self.arg, self.layout.lanes
        sizes = [min(w, width - start) for start in range(0, width, w)]
        column = e.imul(s, e.c(self.strip_bytes))
        weights = e.imul(first, e.c(layout.esz))
        acc_at = e.iadd(e.imul(s, e.c(self.strip * layout.vector_bytes)), e.c(layout.acc_at))
        acc_at = e.offset(arg["state"], acc_at)
        places = [
            e.offset(acc_at, r * layout.state_bytes + c * layout.vector_bytes)
            for r in range(self.rows)
            for c in range(len(sizes))
        ]

        def body(j: Value, acc: list[Value]) -> Sequence[Value]:
            if not self.guarded:
                self._fetch(first, e.iadd(e.imul(s, count), j))
            at = e.offset(self._value(e.iadd(first, j)), column)
            step = w * layout.panel.itemsize
            v = [
                load_lanes(e, e.offset(at, c * step), size, layout.panel.dtype)
                for c, size in enumerate(sizes)
            ]
            return self._add(acc, v, e.iadd(weights, e.imul(j, e.c(layout.esz))))

        acc = [e.mul(e.load(at), factors[i // len(sizes)]) for i, at in enumerate(places)]
        acc = e.loop(count, body, acc, "keys", guard=False)
        for value, at in zip(acc, places, strict=True):
            e.store(value, at)

    def _add(self, acc: list[Value], v: list[Value], at: Value) -> list[Value]:
        """Return the accumulators with one key more, whose weights lie at byte `at` of the rows."""
        e, new = self.e, []
        for r in range(self.rows):
            place = e.offset(e.offset(self.arg["p"], at), r * self.layout.p_row_bytes)
            p, seen = e.load(place, e.S), v
            if self.guarded:
                bits = ir.IntType(8 * e.esz)
                mark = ir.Constant(bits, -(1 << (8 * e.esz - 1)))
                absent = e.icmp("==", e.b.bitcast(p, bits), mark)
                seen = [e.select(absent, e.const(0.0), x) for x in v]
            weight = e.splat(p)
            new += [e.fma(weight, x, acc[r * len(v) + c]) for c, x in enumerate(seen)]
        return new

    def _value(self, row: Value) -> Value:
        return address_of_row(self.e, self.layout, self.arg["v"], self.arg["v_step"], row)

    def _fetch(self, first: Value, rounds: Value) -> None:
        """Prefetch the share of a round in the rows some way ahead, in the order of memory."""
        e = self.e
        strips = e.c(self.strips)
        key = e.iadd(e.iadd(first, e.b.udiv(rounds, strips)), e.c(self.layout.v_rows_ahead))
        part = e.imul(e.b.urem(rounds, strips), e.c(self.strip_bytes))
        at = e.offset(self._value(key), part)
        for line in range(0, self.strip_bytes, CACHE_LINE):
            prefetch(e, e.offset(at, line), near=True)
