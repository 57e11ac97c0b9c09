"""Phases 3 and 4 of a panel step: running maximum, rescaling, and logits become weights."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

from llvmlite import ir

from sdpakit.backends.numba_cpu import abi, vecmath
from sdpakit.backends.numba_cpu.context import SLOT_SCALE
from sdpakit.backends.numba_cpu.frame import SoftmaxFrame, SoftmaxLayout
from sdpakit.backends.numba_cpu.irtypes import Value

FAR = -1000.0  # below every t with a non-zero weight; keeps 0 * t finite in the entropy sum


def huge_maximum(layout: SoftmaxLayout) -> float:
    """Return the |m| from which on m in log2 units and products do not go together (FAST)."""
    return 2.0 ** ((23 if layout.element == "float32" else 52) - 4)


class SoftmaxPhase:
    """Emits phases 3 and 4.

    Parameters
    ----------
    frame : SoftmaxFrame
        The step.
    general : bool
        Whether logits are in units of m (GENERAL), else raw products that are scaled here (FAST).
    has_mask : bool
        Whether a tile may hold masked pairs.
    """

    def __init__(self, frame: SoftmaxFrame, *, general: bool, has_mask: bool) -> None:
        self.frame, self.e = frame, frame.e
        self.general, self.has_mask = general, has_mask
        self.mantissa = 23 if frame.layout.element == "float32" else 52
        self.scale = None if general else self._load_scale()
        self.base: list[Value] = []  # guarded maxima, what logits are taken relative to
        self.factor: list[Value] = []  # t = S * factor + offset of a raw product S
        self.offset: list[Value] = []
        self.shift: list[Value] = []  # the offset, see `vecmath.exp2_products`

    def _load_scale(self) -> Value:
        return self.e.splat(self.e.load_ctx_float(self.frame.arg["ctx"], SLOT_SCALE))

    # --- phase 3 ---

    def statistics(self, top: Sequence[Value]) -> None:
        """Emit the new maxima and the rescaling of l (and of the sums for entropy and sum_p2)."""
        e, stat = self.e, self.frame.stat
        for v, column in enumerate(top):
            old = e.load(stat("m", v))
            if self.frame.layout.row_maximum:
                e.store(e.max_seen(column, e.load(stat("tmax", v))), stat("tmax", v))
            new = e.max_seen(self._whole(self._in_units_of_m(column)), old)
            e.store(new, stat("m", v))
            base = self._guarded(new)
            alpha = vecmath.exp2_integer(e, self._in_log2(e.sub(old, base)))
            e.store(alpha, stat("alpha", v))
            # Nothing moves where nothing was seen: a shift from 0 might be infinite.
            start = e.select(e.fcmp("==", old, e.const(-math.inf)), base, old)
            self._rescale(v, alpha, self._in_log2(e.sub(start, base)))
            self.base.append(base)
        if self.scale is not None:
            self._prepare_products(self.scale)

    def _in_units_of_m(self, column: Value) -> Value:
        """Return a stored logit in units of m."""
        e = self.e
        if self.scale is None:
            return column
        return e.mul(column, e.mul(self.scale, e.const(1 / abi.M_UNIT)))

    def _in_log2(self, x: Value) -> Value:
        """Return a difference of maxima or of logits in log2 units."""
        return self.e.mul(x, self.e.const(abi.M_UNIT))

    def _whole(self, column: Value) -> Value:
        """Return a maximum rounded up to an even number of log2 units."""
        e = self.e
        unit = abi.M_UNIT / 2
        rounded = e.mul(e.ceil(e.mul(column, e.const(unit))), e.const(1 / unit))
        small = e.b.fcmp_ordered("<", e.abs(column), e.const(2.0 ** (self.mantissa - 2)))
        return e.select(small, rounded, column)  # larger ones are whole already

    def _guarded(self, m: Value) -> Value:
        """NUM-2: 0 for a maximum of -inf; NaN for +inf, whose row is NaN (NUM-4)."""
        e = self.e
        finite = e.select(e.fcmp("==", m, e.const(-math.inf)), e.const(0.0), m)
        return e.select(e.fcmp("==", m, e.const(math.inf)), e.const(math.nan), finite)

    def _rescale(self, v: int, alpha: Value, shift: Value) -> None:
        """Bring l, e1 and p2 to the new maximum; e1 = sum p*t moves with t -> t + shift first."""
        e, stat = self.e, self.frame.stat
        l_old = e.load(stat("l", v))
        e.store(e.mul(l_old, alpha), stat("l", v))
        if self.frame.layout.statistics:
            moved = e.fma(self._not_far(shift), l_old, e.load(stat("e1", v)))
            e.store(e.mul(moved, alpha), stat("e1", v))
            squares = e.mul(e.load(stat("p2", v)), e.mul(alpha, alpha))
            e.store(squares, stat("p2", v))

    def _not_far(self, t: Value) -> Value:
        """Return max(t, FAR); NaN stays."""
        e = self.e
        return e.select(e.b.fcmp_ordered("<", t, e.const(FAR)), e.const(FAR), t)

    def _prepare_products(self, scale: Value) -> None:
        """Set how t is made of a raw product; where logits are huge, make it ahead.

        m is rounded, S * c inside a multiply-add is not: above the whole numbers of the element
        their difference t could be anything up to a last place of m, and m itself may be too large
        for log2 units, or for a shift. So the rows of such lanes become t here, step by step. Each
        lane decides for itself, so its bits do not depend on its neighbours.
        """
        e, b = self.e, self.e.b
        limit = e.const(huge_maximum(self.frame.layout))
        huge = [b.fcmp_ordered(">=", e.abs(base), limit) for base in self.base]
        self.factor = [e.select(h, e.const(1.0), scale) for h in huge]
        offsets = [e.mul(base, e.const(-abi.M_UNIT)) for base in self.base]
        self.offset = [
            e.select(h, e.const(0.0), offset) for h, offset in zip(huge, offsets, strict=True)
        ]
        zero = e.const(vecmath.rounding_shift(e))
        self.shift = [e.add(offset, zero) for offset in self.offset]
        lanes = b.bitcast(functools.reduce(e.or_, huge), ir.IntType(e.w))
        some = b.icmp_unsigned("!=", lanes, ir.Constant(lanes.type, 0))
        with b.if_then(some, likely=False):
            self._exponents_ahead(huge)

    def _exponents_ahead(self, huge: Sequence[Value]) -> None:
        """Replace the products of some lanes by t."""
        e, frame = self.e, self.frame

        def body(i: Value, _: list[Value]) -> Sequence[Value]:
            for v, lanes in enumerate(huge):
                address = frame.vector(frame.weights(i), v)
                s = e.load(address)
                t = self._in_log2(e.sub(self._in_units_of_m(s), self.base[v]))
                e.store(e.select(lanes, t, s), address)
            return ()

        e.loop(frame.padded, body, (), "exponents.ahead", guard=False)

    # --- phase 4 ---

    def weights(self) -> None:
        """Emit the weights in place and add their sums to the statistics."""
        e, frame = self.e, self.frame
        marked = functools.partial(self._rows, marked=True)
        plain = functools.partial(self._rows, marked=False)
        if self.general:
            sums = marked()
        elif self.has_mask:
            sums = frame.branch(frame.partial, marked, plain)
        else:
            sums = plain()
        places = [frame.stat(k, v) for k in self._kinds() for v in range(frame.layout.vectors)]
        for place, value in zip(places, sums, strict=True):
            e.store(e.add(e.load(place), value), place)

    def _kinds(self) -> tuple[str, ...]:
        return ("l", "e1", "p2") if self.frame.layout.statistics else ("l",)

    def _rows(self, *, marked: bool) -> list[Value]:
        """Emit the pass over the rows; return the sums of p (and p*t, p*p), each by vector."""
        vectors = range(self.frame.layout.vectors)
        if self.frame.layout.isa.registers >= 32:
            return self._columns(list(vectors), marked=marked)
        # With 16 registers the constants of one vector fill the file: a pass for each vector.
        columns = [self._columns([v], marked=marked) for v in vectors]
        return [columns[v][k] for k in range(len(self._kinds())) for v in vectors]

    def _columns(self, columns: Sequence[int], *, marked: bool) -> list[Value]:
        """Emit one pass over all rows of some vectors; return their sums, by kind, then by vector.

        Each sum is one chain in the order of the keys, so that keys without weight, wherever the
        tile ends, do not change its bits.
        """
        e, frame, count = self.e, self.frame, len(columns)

        def body(i: Value, acc: list[Value]) -> Sequence[Value]:
            block = frame.weights(e.imul(i, e.c(frame.unroll)))
            rows = [frame.row(block, u) for u in range(frame.unroll)]
            places = [(frame.vector(row, v), v) for row in rows for v in columns]
            new = list(acc)
            for n, terms in enumerate(self._weights(places, marked=marked)):
                for k, term in enumerate(terms):
                    at = k * count + n % count
                    new[at] = e.add(new[at], term)
            return new

        zero = [e.const(0.0)] * (count * len(self._kinds()))
        name = "phase.exp.partial" if marked else "phase.exp.full"
        return e.loop(frame.blocks, body, zero, name, guard=False)

    def _weights(
        self, places: Sequence[tuple[Value, int]], *, marked: bool
    ) -> list[tuple[Value, ...]]:
        """Emit the weights of some vectors, (address, number in the panel); return p (, p*t, p*p).

        Each operation is emitted for all of them before the next, see `vecmath.exp2_weights`.
        """
        e = self.e
        logits = [e.load(address) for address, _ in places]
        columns = [v for _, v in places]
        weights = self._powers(logits, columns)
        if marked:
            absent = [e.fcmp("==", s, e.const(-math.inf)) for s in logits]
            weights = [e.select(a, e.const(-0.0), p) for a, p in zip(absent, weights, strict=True)]
        for p, (address, _) in zip(weights, places, strict=True):
            e.store(p, address)
        if not self.frame.layout.statistics:
            return [(p,) for p in weights]
        ts = [self._exponent(s, v) for s, v in zip(logits, columns, strict=True)]
        return [
            (p, e.mul(p, self._not_far(t)), e.mul(p, p)) for p, t in zip(weights, ts, strict=True)
        ]

    def _powers(self, logits: Sequence[Value], columns: Sequence[int]) -> list[Value]:
        """Return the weights of stored logits of vectors `columns`, as if none was absent."""
        e = self.e
        if self.general or e.isa.scalef:
            ts = [self._exponent(s, v) for s, v in zip(logits, columns, strict=True)]
            return vecmath.exp2_weights(e, ts)
        factors, shifts = [self.factor[v] for v in columns], [self.shift[v] for v in columns]
        return vecmath.drop_small(e, *vecmath.exp2_products(e, logits, factors, shifts))

    def _exponent(self, s: Value, v: int) -> Value:
        """Return t, the logit in log2 units relative to the maximum, of a stored logit."""
        e = self.e
        if self.general:
            return self._in_log2(e.sub(s, self.base[v]))
        return e.fma(s, self.factor[v], self.offset[v])
