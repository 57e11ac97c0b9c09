"""Products of a row become weights: logit expression, mask, running maximum, exponential.

The lanes are keys. What is done to a vector is what the prefill kernel does to one (`logits.py`,
`softmax.py`), with a row of q as the only column: so all rules of numbers hold here as there.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from sdpakit.backends.numba_cpu import abi, storage
from sdpakit.backends.numba_cpu.decode.layout import DecodeLayout
from sdpakit.backends.numba_cpu.frame import Emit, branch
from sdpakit.backends.numba_cpu.functions import new_function
from sdpakit.backends.numba_cpu.irtypes import Value
from sdpakit.backends.numba_cpu.logits import NATURAL, Pairs
from sdpakit.backends.numba_cpu.softmax import SoftmaxPhase
from sdpakit.backends.numba_cpu.vector import Lanes, VectorEmitter

ARGUMENTS = ("ctx", "n", "j0", "flags", "p", "st", "b", "h", "q")


class RowFrame:
    """Arguments of `soften` and where a row finds its weights (`frame.SoftmaxFrame`).

    Parameters
    ----------
    module : llvmlite.ir.Module
        Where the function goes, which is made here.
    layout : DecodeLayout
        Sizes.

    Attributes
    ----------
    padded, blocks : i64 values
        Vectors of weights up to a multiple of `unroll`; such multiples.
    partial : i1 value
        Whether the mask has to be evaluated.
    """

    def __init__(self, module: Any, layout: DecodeLayout) -> None:
        b = new_function(module, "soften", ARGUMENTS)
        self.layout = layout
        self.e = e = VectorEmitter(b, layout.isa, layout.element)
        self.arg: dict[str, Value] = dict(zip(ARGUMENTS, b.function.args, strict=True))
        self.unroll = layout.unroll
        together = layout.lanes * self.unroll
        self.blocks = e.b.sdiv(e.iadd(self.arg["n"], e.c(together - 1)), e.c(together))
        self.padded = e.imul(self.blocks, e.c(self.unroll))
        flag = e.b.and_(self.arg["flags"], e.c(abi.FLAG_PARTIAL))
        self.partial = e.icmp("!=", flag, e.c(0))

    def row(self, base: Value, index: Value | int) -> Value:
        """Return the address of a vector of weights, counted from another one."""
        size = self.layout.vector_bytes
        if isinstance(index, int):
            return self.e.offset(base, index * size)
        return self.e.offset(base, self.e.imul(index, self.e.c(size)))

    def weights(self, index: Value | int) -> Value:
        """Return the address of a vector of weights."""
        return self.row(self.arg["p"], index)

    def vector(self, row: Value, v: int) -> Value:
        """Return the address itself: there is one vector in a row of the frame."""
        return self.e.offset(row, v)

    def stat(self, name: str, v: int) -> Value:
        """Return the address of a vector of the statistics."""
        at = (self.layout.stat_rows.index(name) + v) * self.layout.vector_bytes
        return self.e.offset(self.arg["st"], at)

    def branch(self, condition: Value, then: Emit, other: Emit) -> list[Value]:
        """Emit if/else and return the values of the side taken."""
        return branch(self.e.b, condition, then, other)


class Softening:
    """Emits soften(ctx, n, j0, flags, p, st, b, h, q) -> 1 if a pair is absent, else 0.

    Parameters
    ----------
    module : llvmlite.ir.Module
        Where the function goes.
    layout : DecodeLayout
        Sizes.
    pairs : Pairs
        Logit and mask, with the key in the lane.
    """

    def __init__(self, module: Any, layout: DecodeLayout, pairs: Pairs) -> None:
        self.frame, self.pairs = RowFrame(module, layout), pairs
        self.e = self.frame.e

    def emit(self) -> None:
        """Emit the body."""
        e = self.e
        general, has_mask = self.pairs.logit is not None, self.pairs.mask is not None
        softmax = SoftmaxPhase(self.frame, general=general, has_mask=has_mask)
        plain = functools.partial(self._rows, masked=False)
        if has_mask:
            masked = functools.partial(self._rows, masked=True)
            top, absent = self.frame.branch(self.frame.partial, masked, plain)
        else:
            top, absent = plain()
        softmax.statistics([self._largest(top)])
        softmax.weights()
        lanes = e.b.bitcast(e.icmp("!=", absent, self._none()), ir.IntType(e.w))
        e.b.ret(e.b.zext(e.b.icmp_unsigned("!=", lanes, ir.Constant(lanes.type, 0)), e.c(0).type))

    def _none(self) -> Value:
        return self.e.iconst(0, 8 * self.e.esz)

    def _rows(self, *, masked: bool) -> list[Value]:
        """Emit logits and mask in place; return the maximum and the absent pairs of each lane.

        Lanes past the last key hold -inf, but are not absent: no value is read for them.
        """
        e, frame, arg = self.e, self.frame, self.frame.arg
        marks = masked or self.pairs.logit is not None

        def body(i: Value, carried: list[Value]) -> Sequence[Value]:
            top, absent = carried
            lane = e.iadd(e.lane_ids(64), e.splat(e.imul(i, e.c(e.w))))
            inside = e.icmp("<", lane, e.splat(arg["n"]))
            address = frame.weights(i)
            value = self._pair(e.load(address), self._lanes(lane, i), masked=masked)
            if marks:
                away = e.and_(inside, e.fcmp("==", value, e.const(-math.inf)))
                absent = e.or_(absent, e.b.sext(away, absent.type))
            value = e.select(inside, value, e.const(-math.inf))
            e.store(value, address)
            return [e.max_seen(value, top), absent]

        name = "logits.partial" if masked else "logits.full"
        start = [e.const(-math.inf), self._none()]
        return e.loop(frame.padded, body, start, name, guard=False)

    def _pair(self, product: Value, lanes: Lanes, *, masked: bool) -> Value:
        """Return the logits of one vector, -inf where the mask hides the pair (MASK-3)."""
        e, value = self.e, product
        if self.pairs.logit is not None:
            value = e.mul(self.pairs.logit(lanes, value), e.const(NATURAL))
        if masked and self.pairs.mask is not None:
            value = e.select(self.pairs.mask(lanes), value, e.const(-math.inf))
        return value

    def _lanes(self, lane: Value, i: Value) -> Lanes:
        """Return the pairs of vector i; lanes past the last key repeat it."""
        e, arg = self.e, self.frame.arg
        last = e.splat(e.isub(arg["n"], e.c(1)))
        key = e.iadd(e.imin(lane, last), e.splat(arg["j0"]))
        j = e.resize_int(key, self.pairs.int_bits)

        def dense(k: int) -> Value:
            return self._dense(k, key, i)

        return Lanes(e, arg["q"], j, arg["b"], arg["h"], arg["ctx"], self.pairs.int_bits, dense)

    def _dense(self, k: int, key: Value, i: Value) -> Value:
        """Return a table [.., q, k] at one vector of keys: one load if they are adjacent."""
        e, arg, table = self.e, self.frame.arg, self.pairs.staged[k]
        base, q_stride, k_stride = table.locate(e, arg["ctx"], arg["b"], arg["h"])
        row = e.iadd(base, e.imul(arg["q"], q_stride))
        first = e.imul(i, e.c(e.w))
        whole = e.icmp("<=", e.iadd(first, e.c(e.w)), arg["n"])
        adjacent = e.icmp("==", k_stride, e.c(storage.itemsize(table.dtype)))

        def together() -> list[Value]:
            at = e.iadd(row, e.imul(e.iadd(first, arg["j0"]), k_stride))
            raw = e.load_constant(at, ir.VectorType(storage.raw_type(table.dtype), e.w), 1)
            return [storage.decode(e, raw, table.dtype)]

        def apart() -> list[Value]:
            return [e.gather(table.dtype, row, e.imul(key, e.splat(k_stride)))]

        return self.frame.branch(e.and_(whole, adjacent), together, apart)[0]

    def _largest(self, top: Value) -> Value:
        """Return the largest lane in all lanes; none is NaN."""
        e, step = self.e, 1
        while step < e.w:
            other = e.shuffle(top, top, [lane ^ step for lane in range(e.w)])
            top = e.max_seen(other, top)
            step *= 2
        return top
