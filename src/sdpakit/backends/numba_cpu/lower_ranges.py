"""Mask -> scalar functions that say which keys a panel needs, by the rules of `passes.classify`.

    key_ranges(ctx, b, h, q_lo, q_hi, out)              stores maybe_lo, maybe_hi, must_lo, must_hi
    tile_class(ctx, b, h, q_lo, q_hi, k_lo, k_hi)       bit 0: can be true, bit 1: can be false

Every argument is an i64, bounds are included. The rules themselves are not here: this file gives
them integers that are values of LLVM.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llvmlite import ir

from sdpakit.backends.numba_cpu.context import BATCH_SLOTS, ContextLayout
from sdpakit.backends.numba_cpu.functions import new_function
from sdpakit.backends.numba_cpu.irtypes import I64, Value, constant
from sdpakit.backends.numba_cpu.vector import VectorEmitter
from sdpakit.expr.nodes import Load
from sdpakit.passes.classify import key_ranges, tile_class

if TYPE_CHECKING:
    from sdpakit.backends.numba_cpu.isa import Isa
    from sdpakit.ir.program import Program

# A box of more elements than this is not read; the bounds of the whole table answer for it. That
# is enough for a tile of a dense mask, and far less work than the products of the tile.
LARGEST_SCAN = 8192

SCAN_BLOCK = 16  # booleans that are read together
_BYTES = ir.VectorType(ir.IntType(8), SCAN_BLOCK)


@dataclass(frozen=True, slots=True)
class LlvmOps:
    """`passes.intervals.IntOps` over i64 and i1 values at the position of an emitter."""

    e: VectorEmitter
    context: ContextLayout
    ctx: Value

    def const(self, value: int) -> Value:
        """Return the integer."""
        return self.e.c(value)

    def true(self) -> Value:
        """Return the condition that holds."""
        return ir.Constant(ir.IntType(1), 1)

    def false(self) -> Value:
        """Return the condition that does not hold."""
        return ir.Constant(ir.IntType(1), 0)

    def add(self, a: Value, b: Value) -> Value:
        """Return a + b."""
        return self.e.iadd(a, b)

    def sub(self, a: Value, b: Value) -> Value:
        """Return a - b."""
        return self.e.isub(a, b)

    def mul(self, a: Value, b: Value) -> Value:
        """Return a * b."""
        return self.e.imul(a, b)

    def floordiv(self, a: Value, b: Value) -> Value:
        """Return floor(a / b), b >= 1."""
        return self.e.floordiv(a, b)

    def minimum(self, a: Value, b: Value) -> Value:
        """Return the smaller."""
        return self.e.imin(a, b)

    def maximum(self, a: Value, b: Value) -> Value:
        """Return the larger."""
        return self.e.imax(a, b)

    def select(self, cond: Value, a: Value, b: Value) -> Value:
        """Return a where `cond`, else b."""
        return self.e.select(cond, a, b)

    def lt(self, a: Value, b: Value) -> Value:
        """Return a < b."""
        return self.e.icmp("<", a, b)

    def le(self, a: Value, b: Value) -> Value:
        """Return a <= b."""
        return self.e.icmp("<=", a, b)

    def eq(self, a: Value, b: Value) -> Value:
        """Return a == b."""
        return self.e.icmp("==", a, b)

    def both(self, a: Value, b: Value) -> Value:
        """Return a and b."""
        return self.e.and_(a, b)

    def either(self, a: Value, b: Value) -> Value:
        """Return a or b."""
        return self.e.or_(a, b)

    def scalar(self, name: str) -> Value:
        """Return the run-time scalar."""
        return self.e.load_ctx_int(self.ctx, self.context.scalar_slots[name])

    def table_range(self, load: Load, lo: Sequence[Value], hi: Sequence[Value]) -> Any:
        """Return least and largest element over a box of indices."""
        function = _range_function(self.e, self.context, load)
        bounds = [bound for pair in zip(lo, hi, strict=True) for bound in pair]
        found = self.e.b.alloca(ir.ArrayType(I64, 2))
        address = self.e.b.ptrtoint(found, I64)
        self.e.b.call(function, [self.ctx, *bounds, address])
        return tuple(self.e.load(self.e.offset(address, 8 * n), I64, 8) for n in range(2))

    def is_sorted(self, load: Load, leading: Sequence[Value]) -> Value:
        """Return whether all rows are known to ascend."""
        slot = self.context.table_slots[load.table].is_sorted
        return self.e.icmp("!=", self.e.load_ctx_int(self.ctx, slot), self.e.c(0))

    def lower_bound(self, load: Load, leading: Sequence[Value], value: Value) -> Value:
        """Return how many elements of a sorted row are < value."""
        slots = self.context.table_slots[load.table]
        row = self.e.load_ctx_int(self.ctx, slots.base)
        for slot, index in zip(slots.strides[:-1], leading, strict=True):
            row = self.add(row, self.mul(index, self.e.load_ctx_int(self.ctx, slot)))
        stride = self.e.load_ctx_int(self.ctx, slots.strides[-1])
        size = self.e.load_ctx_int(self.ctx, slots.sizes[-1])
        return self.e.b.call(_bisection(self.e, load.dtype), [row, stride, size, value])

    def upper_bound(self, load: Load, leading: Sequence[Value], value: Value) -> Value:
        """Return how many elements of a sorted row are <= value: integers, so < value + 1."""
        return self.lower_bound(load, leading, self.add(value, self.const(1)))


def _bisection(e: VectorEmitter, dtype: str) -> Any:
    """Return the function lower_bound(row, stride, size, value) -> number of elements < value."""
    module, name = e.b.module, f"lower_bound_{dtype}"
    if name not in module.globals:
        b = new_function(module, name, ("row", "stride", "size", "value"), private=True)
        row, stride, size, value = b.function.args
        inner = VectorEmitter(b, e.isa, e.element)
        entry, test = b.block, b.append_basic_block("test")
        halve, end = b.append_basic_block("halve"), b.append_basic_block("end")
        b.branch(test)
        b.position_at_end(test)
        lo, hi = b.phi(I64, "lo"), b.phi(I64, "hi")
        b.cbranch(b.icmp_signed("<", lo, hi), halve, end)
        b.position_at_end(halve)
        middle = b.ashr(b.add(lo, hi), inner.c(1))
        element = inner.load_value(dtype, b.add(row, b.mul(middle, stride)))
        below = b.icmp_signed("<", b.zext(element, I64) if dtype == "bool" else element, value)
        for phi, start, new in (
            (lo, inner.c(0), b.select(below, b.add(middle, inner.c(1)), lo)),
            (hi, size, b.select(below, hi, middle)),
        ):
            phi.add_incoming(start, entry)
            phi.add_incoming(new, halve)
        b.branch(test)
        b.position_at_end(end)
        b.ret(lo)
    return module.globals[name]


def _range_function(e: VectorEmitter, context: ContextLayout, load: Load) -> Any:
    """Return the function range_T(ctx, lo, hi of every axis, out), which stores least, largest."""
    module, name = e.b.module, f"range_{load.table}"
    if name not in module.globals:
        axes = range(len(load.indices))
        bounds = [f"{end}{axis}" for axis in axes for end in ("lo", "hi")]
        b = new_function(module, name, ("ctx", *bounds, "out"), private=True)
        scan = _Scan(VectorEmitter(b, e.isa, e.element), context, load)
        for n, value in enumerate(scan.emit()):
            scan.e.store(value, scan.e.offset(b.function.args[-1], 8 * n), 8)
        b.ret(scan.e.c(0))
    return module.globals[name]


class _Scan:
    """Emits the search for the least and the largest element of a table in a box."""

    def __init__(self, e: VectorEmitter, context: ContextLayout, load: Load) -> None:
        self.e = e
        self.dtype = load.dtype
        self.slots = context.table_slots[load.table]
        self.ctx, *bounds, _ = e.b.function.args
        self.axes = [
            self._axis(*pair, *where)
            for *where, pair in zip(
                self.slots.strides,
                self.slots.sizes,
                zip(bounds[::2], bounds[1::2], strict=True),
                strict=True,
            )
        ]

    def _slot(self, slot: int) -> Value:
        return self.e.load_ctx_int(self.ctx, slot)

    def _axis(self, lo: Value, hi: Value, stride_slot: int, size_slot: int) -> Any:
        """Return first index, number of indices and stride; what broadcasts has one index."""
        e, stride = self.e, self._slot(stride_slot)
        last = e.isub(self._slot(size_slot), e.c(1))
        lo, hi = (e.imin(e.imax(x, e.c(0)), last) for x in (lo, hi))
        repeats = e.icmp("==", stride, e.c(0))
        lo = e.select(repeats, e.c(0), lo)
        count = e.imax(e.iadd(e.isub(hi, lo), e.c(1)), e.c(0))
        return lo, e.select(repeats, e.c(1), count), stride

    def emit(self) -> list[Value]:
        """Return least and largest; the bounds of the whole table where the box is large."""
        e = self.e
        start = self._slot(self.slots.base)
        total = e.c(1)
        for lo, count, stride in self.axes:
            start = e.iadd(start, e.imul(lo, stride))
            # Axes are far below 2**31 each, and a product beyond the limit stays there.
            total = e.imin(e.imul(total, count), e.c(LARGEST_SCAN + 1))
        limits = [self._slot(self.slots.least), self._slot(self.slots.largest)]
        small = e.icmp("<=", total, e.c(LARGEST_SCAN))
        small = e.and_(small, e.icmp(">", total, e.c(0)))
        before, read, end = (e.b.block, *(e.b.append_basic_block(n) for n in ("read", "end")))
        e.b.cbranch(small, read, end)
        e.b.position_at_end(read)
        # Neutral: the largest as the least so far, the least as the largest.
        found = self._nest(0, start, limits[::-1])
        last = e.b.block
        e.b.branch(end)
        e.b.position_at_end(end)
        return [self._join(pair, before, last) for pair in zip(limits, found, strict=True)]

    def _join(self, values: tuple[Value, Value], before: Any, last: Any) -> Value:
        phi = self.e.b.phi(I64)
        phi.add_incoming(values[0], before)
        phi.add_incoming(values[1], last)
        return phi

    def _nest(self, axis: int, address: Value, found: list[Value]) -> list[Value]:
        """Emit the loops over an axis and those after it; return least and largest so far."""
        if axis == len(self.axes):
            return self._see(address, found)
        e = self.e
        _, count, stride = self.axes[axis]
        if self.dtype == "bool":  # both values seen: nothing is left to find
            count = e.select(e.icmp("<", found[0], found[1]), e.c(0), count)
            if axis == len(self.axes) - 1:
                count, found = self._see_blocks(address, count, stride, found)

        def body(index: Value, carried: list[Value]) -> list[Value]:
            return self._nest(axis + 1, e.iadd(address, e.imul(index, stride)), carried)

        return e.loop(count, body, found, name=f"axis{axis}")

    def _see_blocks(
        self, address: Value, count: Value, stride: Value, found: list[Value]
    ) -> tuple[Value, list[Value]]:
        """Read a row of adjacent booleans by blocks; return how many are left to read, and found.

        The last block is moved back to end with the row: no harm in reading an element twice.
        """
        e, b = self.e, self.e.b
        size = e.c(SCAN_BLOCK)
        adjacent = e.and_(e.icmp("==", stride, e.c(1)), e.icmp("<=", size, count))
        blocks = e.select(adjacent, b.sdiv(e.iadd(count, e.c(SCAN_BLOCK - 1)), size), e.c(0))
        nothing = constant(_BYTES, 0)

        def body(index: Value, seen: list[Value]) -> list[Value]:
            start = e.imin(e.imul(index, size), e.isub(count, size))
            block = e.load_constant(e.iadd(address, start), _BYTES, 1)
            is_zero = b.sext(b.icmp_signed("==", block, nothing), _BYTES)
            return [e.or_(seen[0], is_zero), e.or_(seen[1], block)]

        seen = e.loop(blocks, body, [nothing, nothing], name="blocks")
        whole = ir.IntType(8 * SCAN_BLOCK)
        false, true = (b.icmp_signed("!=", b.bitcast(x, whole), whole(0)) for x in seen)
        found = [e.select(false, e.c(0), found[0]), e.select(true, e.c(1), found[1])]
        return e.select(adjacent, e.c(0), count), found

    def _see(self, address: Value, found: list[Value]) -> list[Value]:
        value = self.e.load_value(self.dtype, address)
        value = self.e.b.zext(value, I64) if self.dtype == "bool" else value
        return [self.e.imin(found[0], value), self.e.imax(found[1], value)]


def emit_ranges(module: Any, isa: Isa, program: Program) -> None:
    """Add `key_ranges` and `tile_class` of the mask of a program to a module."""
    context = ContextLayout.of(program)
    rows = ("ctx", "b", "h", "q_lo", "q_hi")
    b = new_function(module, "key_ranges", (*rows, "out"))
    b.comment("keys that some row of a panel may see (MASK-1), and keys that every row sees")
    ops, box, (out,) = _start(b, isa, context)
    zero = ops.const(0)
    box["k"] = zero, ops.sub(box["kv_len"][0], ops.const(1))
    found = key_ranges(program.mask, ops, box)
    fields = (found.maybe_lo, found.maybe_hi, found.must_lo, found.must_hi)
    for n, value in enumerate(fields):
        ops.e.store(value, ops.e.offset(out, 8 * n), 8)
    b.ret(zero)

    b = new_function(module, "tile_class", (*rows, "k_lo", "k_hi"))
    b.comment("bit 0: some pair may be attended (else EMPTY), bit 1: some may not (else FULL)")
    ops, box, (k_lo, k_hi) = _start(b, isa, context)
    box["k"] = k_lo, k_hi
    can_true, can_false = tile_class(program.mask, ops, box)
    b.ret(b.or_(b.zext(can_true, I64), b.shl(b.zext(can_false, I64), ops.const(1))))


def _start(b: Any, isa: Isa, context: ContextLayout) -> tuple[LlvmOps, dict[str, Any], Any]:
    """Return operations, the box without k, and the further arguments of a function."""
    ctx, batch, head, q_lo, q_hi, *rest = b.function.args
    ops = LlvmOps(VectorEmitter(b, isa, "float64"), context, ctx)
    box = {"b": (batch, batch), "h": (head, head), "q": (q_lo, q_hi)}
    for name, slot in BATCH_SLOTS.items():
        address = ops.add(ops.e.load_ctx_int(ctx, slot), ops.mul(batch, ops.const(8)))
        value = ops.e.load_i64(address)
        box[name] = value, value
    return ops, box, rest
