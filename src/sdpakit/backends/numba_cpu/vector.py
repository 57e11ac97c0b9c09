"""A small emitter of vector code over llvmlite, with width and element as parameters.

Operands may be scalars or vectors. No operation carries a fast-math flag: -inf, inf and NaN are
ordinary values (NUM-2, NUM-4). Addresses are 64-bit integers, memory is read and written with the
alignment that the caller promises.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from sdpakit.backends.numba_cpu import storage, vecmath
from sdpakit.backends.numba_cpu.functions import declare
from sdpakit.backends.numba_cpu.irtypes import (
    F64,
    I1,
    I8,
    I32,
    I64,
    PTR,
    IrType,
    Value,
    constant,
    element_of,
    lane_numbers,
    whole,
    with_lanes_of,
)
from sdpakit.backends.numba_cpu.isa import Element, Isa


class VectorEmitter:
    """Emits operations on `w` lanes of `element` at the position of an IRBuilder.

    Parameters
    ----------
    b : llvmlite.ir.IRBuilder
        Where instructions go.
    isa : Isa
        What may be used, and how wide a vector is.
    element : {"float32", "float64"}
        The compute element.

    Attributes
    ----------
    w, esz : int
        Lanes of a vector, bytes of an element.
    S, V : llvmlite.ir.Type
        Scalar and vector of the element.
    """

    def __init__(self, b: Any, isa: Isa, element: Element) -> None:
        self.b = b
        self.isa = isa
        self.element = element
        self.w = isa.lanes(element)
        self.esz = 4 if element == "float32" else 8
        self.S = ir.FloatType() if element == "float32" else ir.DoubleType()
        self.V = ir.VectorType(self.S, self.w)

    # --- constants and splats ---

    def IV(self, bits: int) -> IrType:  # noqa: N802 - beside S and V
        """Return the type of a vector of integers with the lanes of the element."""
        return ir.VectorType(ir.IntType(bits), self.w)

    def c(self, number: int) -> Value:
        """Return an i64 scalar."""
        return whole(number)

    def c1(self, number: int) -> Value:
        """Return an i1 scalar."""
        return ir.Constant(I1, number)

    def const(self, number: float) -> Value:
        """Return a float in all lanes."""
        return constant(self.V, float(number))

    def iconst(self, number: int, bits: int) -> Value:
        """Return an integer in all lanes."""
        return constant(self.IV(bits), number)

    def lane_ids(self, bits: int) -> Value:
        """Return 0, 1, ... w-1."""
        return ir.Constant(self.IV(bits), list(range(self.w)))

    def splat(self, scalar: Value) -> Value:
        """Return a vector of the scalar in all lanes."""
        kind = ir.VectorType(scalar.type, self.w)
        first = self.b.insert_element(ir.Constant(kind, ir.Undefined), scalar, ir.Constant(I32, 0))
        every_first = ir.Constant(self.IV(32), None)
        return self.b.shuffle_vector(first, first, every_first)

    def shuffle(self, a: Value, b: Value, lanes: Sequence[int]) -> Value:
        """Return the lanes of the concatenation (a, b) that are named."""
        return self.b.shuffle_vector(a, b, lane_numbers(tuple(lanes)))

    # --- floats ---

    def intrinsic(self, name: str, *arguments: Value) -> Value:
        """Call `llvm.<name>`; the type of the first argument is also that of the result."""
        kind = arguments[0].type
        lanes = f"v{kind.count}" if isinstance(kind, ir.VectorType) else ""
        element = kind.element if lanes else kind
        letter = {ir.FloatType(): "f32", ir.DoubleType(): "f64"}.get(element) or f"i{element.width}"
        function = declare(
            self.b.module, f"llvm.{name}.{lanes}{letter}", kind, [a.type for a in arguments]
        )
        return self.b.call(function, arguments)

    def add(self, a: Value, b: Value) -> Value:
        """Return a + b."""
        return self.b.fadd(a, b)

    def sub(self, a: Value, b: Value) -> Value:
        """Return a - b."""
        return self.b.fsub(a, b)

    def mul(self, a: Value, b: Value) -> Value:
        """Return a * b."""
        return self.b.fmul(a, b)

    def div(self, a: Value, b: Value) -> Value:
        """Return a / b."""
        return self.b.fdiv(a, b)

    def neg(self, a: Value) -> Value:
        """Return -a, of zeros and NaN too."""
        return self.b.fneg(a)

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """Return a * b + c, rounded once where the ISA can, twice where it cannot."""
        if self.isa.fma:
            return self.intrinsic("fma", a, b, c)
        return self.b.fadd(self.b.fmul(a, b), c)

    def abs(self, a: Value) -> Value:
        """Return |a|."""
        return self.intrinsic("fabs", a)

    def sqrt(self, a: Value) -> Value:
        """Return the square root, NaN below zero."""
        return self.intrinsic("sqrt", a)

    def floor(self, a: Value) -> Value:
        """Return the largest integer <= a."""
        return (
            self.intrinsic("floor", a)
            if self.isa.rounding
            else vecmath.floor_by_conversion(self, a)
        )

    def ceil(self, a: Value) -> Value:
        """Return the smallest integer >= a."""
        if self.isa.rounding:
            return self.intrinsic("ceil", a)
        return self.neg(vecmath.floor_by_conversion(self, self.neg(a)))

    def exp(self, a: Value) -> Value:
        """Return e**a."""
        return vecmath.exp(self, a)

    def log(self, a: Value) -> Value:
        """Return the natural logarithm: -inf at 0, NaN below."""
        return vecmath.log(self, a)

    def tanh(self, a: Value) -> Value:
        """Return the hyperbolic tangent, relatively accurate near 0 too."""
        return vecmath.tanh(self, a)

    def min(self, a: Value, b: Value) -> Value:
        """Return the smaller, NaN if either is NaN."""
        smaller = self.select(self.b.fcmp_ordered("<", a, b), a, b)
        return self.select(self.b.fcmp_unordered("uno", a, a), a, smaller)

    def max(self, a: Value, b: Value) -> Value:
        """Return the larger, NaN if either is NaN."""
        larger = self.select(self.b.fcmp_ordered(">", a, b), a, b)
        return self.select(self.b.fcmp_unordered("uno", a, a), a, larger)

    def max_seen(self, new: Value, old: Value) -> Value:
        """Return new if new > old, else old: a NaN in `new` is not seen (one instruction)."""
        return self.select(self.b.fcmp_ordered(">", new, old), new, old)

    # --- integers ---

    def iadd(self, a: Value, b: Value) -> Value:
        """Return a + b."""
        return self.b.add(a, b)

    def isub(self, a: Value, b: Value) -> Value:
        """Return a - b."""
        return self.b.sub(a, b)

    def imul(self, a: Value, b: Value) -> Value:
        """Return a * b."""
        return self.b.mul(a, b)

    def ineg(self, a: Value) -> Value:
        """Return -a."""
        return self.b.neg(a)

    def iabs(self, a: Value) -> Value:
        """Return |a|."""
        return self.select(self.b.icmp_signed("<", a, constant(a.type, 0)), self.b.neg(a), a)

    def imin(self, a: Value, b: Value) -> Value:
        """Return the smaller, signed."""
        return self.select(self.b.icmp_signed("<", a, b), a, b)

    def imax(self, a: Value, b: Value) -> Value:
        """Return the larger, signed."""
        return self.select(self.b.icmp_signed(">", a, b), a, b)

    def floordiv(self, a: Value, b: Value) -> Value:
        """Return floor(a / b) for b > 0, as Python does."""
        return vecmath.floordiv(self, a, b)

    def mod(self, a: Value, b: Value) -> Value:
        """Return a - floor(a / b) * b for b > 0, as Python does."""
        return self.b.sub(a, self.b.mul(vecmath.floordiv(self, a, b), b))

    # --- comparisons, booleans, conversions ---

    def fcmp(self, op: str, a: Value, b: Value) -> Value:
        """Return a op b of floats; with a NaN only "!=" is true."""
        return self.b.fcmp_unordered(op, a, b) if op == "!=" else self.b.fcmp_ordered(op, a, b)

    def icmp(self, op: str, a: Value, b: Value) -> Value:
        """Return a op b of integers (booleans: "==" and "!=")."""
        return self.b.icmp_signed(op, a, b)

    def and_(self, a: Value, b: Value) -> Value:
        """Return a & b."""
        return self.b.and_(a, b)

    def or_(self, a: Value, b: Value) -> Value:
        """Return a | b."""
        return self.b.or_(a, b)

    def not_(self, a: Value) -> Value:
        """Return ~a."""
        return self.b.not_(a)

    def select(self, condition: Value, a: Value, b: Value) -> Value:
        """Return a where the condition holds, else b; the other side never reaches the result."""
        return self.b.select(condition, a, b)

    def to_float(self, a: Value) -> Value:
        """Return integers or booleans as the element."""
        kind = with_lanes_of(a, self.S)
        if element_of(a.type) == I1:
            return self.select(a, constant(kind, 1.0), constant(kind, 0.0))
        return self.b.sitofp(a, kind)

    def to_int(self, a: Value, bits: int) -> Value:
        """Return booleans as the integers 0 and 1."""
        return self.b.zext(a, with_lanes_of(a, ir.IntType(bits)))

    def resize_int(self, a: Value, bits: int) -> Value:
        """Return signed integers in another width (booleans stay booleans)."""
        width = element_of(a.type).width
        if width in (1, bits):
            return a
        kind = with_lanes_of(a, ir.IntType(bits))
        return self.b.sext(a, kind) if width < bits else self.b.trunc(a, kind)

    # --- memory ---

    def pointer(self, address: Value) -> Value:
        """Return an address as a pointer."""
        return (
            address if isinstance(address.type, ir.PointerType) else self.b.inttoptr(address, PTR)
        )

    def offset(self, pointer: Value, count: int | Value) -> Value:
        """Return the pointer moved by a number of bytes."""
        step = self.c(count) if isinstance(count, int) else count
        return self.b.gep(self.pointer(pointer), [step], source_etype=I8, inbounds=True)

    def load(self, address: Value, kind: IrType = None, align: int | None = None) -> Value:
        """Load a value (default: a vector of the element, aligned to the element)."""
        return self.b.load(self.pointer(address), typ=kind or self.V, align=align or self.esz)

    def store(self, value: Value, address: Value, align: int | None = None) -> None:
        """Store a value (default alignment: that of the element)."""
        self.b.store(value, self.pointer(address), align=align or self.esz)

    def load_constant(self, address: Value, kind: IrType, align: int) -> Value:
        """Load what nobody writes during the call, so that LLVM may move the load out of loops."""
        loaded = self.b.load(self.pointer(address), typ=kind, align=align)
        loaded.set_metadata("invariant.load", self.b.module.add_metadata([]))
        return loaded

    def load_ctx_int(self, ctx: Value, slot: int) -> Value:
        """Load slot `slot` of the context, an argument of the function, as an i64.

        All that is loaded from the context is so on entry: no pass moves it out of loops.
        """
        with self.b.goto_entry_block():
            return self.load_constant(self.offset(ctx, 8 * slot), I64, 8)

    def load_ctx_double(self, ctx: Value, slot: int) -> Value:
        """Load the float64 in a slot of the context."""
        with self.b.goto_entry_block():
            return self.load_constant(self.offset(ctx, 8 * slot), F64, 8)

    def load_ctx_float(self, ctx: Value, slot: int) -> Value:
        """Load the float64 in a slot of the context and return it as a scalar of the element."""
        number = self.load_ctx_double(ctx, slot)
        with self.b.goto_entry_block():
            return self.narrow(number)

    def narrow(self, number: Value) -> Value:
        """Return a float64 as a scalar of the element."""
        return number if self.element == "float64" else self.b.fptrunc(number, self.S)

    def load_i64(self, address: Value) -> Value:
        """Load an aligned int64."""
        return self.load_constant(address, I64, 8)

    def load_value(self, dtype: str, address: Value) -> Value:
        """Load one value of a table, at any alignment.

        bool gives i1, integers give i64, floats give the element.
        """
        raw = self.load_constant(address, storage.raw_type(dtype), 1)
        return storage.decode(self, raw, dtype)

    def gather(self, dtype: str, base: Value, offsets: Value) -> Value:
        """Load a value (see `load_value`) for each lane, at base + offsets bytes (<w x i64>)."""
        kind = storage.raw_type(dtype)
        raw = ir.Constant(ir.VectorType(kind, self.w), ir.Undefined)
        for lane in range(self.w):
            index = ir.Constant(I32, lane)
            address = self.b.add(base, self.b.extract_element(offsets, index))
            raw = self.b.insert_element(raw, self.load_constant(address, kind, 1), index)
        return storage.decode(self, raw, dtype)

    # --- control flow ---

    def loop(
        self,
        count: Value,
        body: Callable[[Value, list[Value]], Sequence[Value]],
        carried: Sequence[Value] = (),
        name: str = "loop",
        *,
        guard: bool = True,
    ) -> list[Value]:
        """Emit `for i in range(count)`; `body(i, carried)` returns the next carried values.

        Parameters
        ----------
        count : i64 value
            Number of rounds; may be 0 or negative only if `guard`.
        name : str
            Name of the block, for the reader of the IR.

        Returns
        -------
        list of values
            The carried values after the last round.
        """
        before, b = self.b.block, self.b
        block, after = b.append_basic_block(name), b.append_basic_block(f"{name}.end")
        if guard:
            b.cbranch(b.icmp_signed(">", count, self.c(0)), block, after)
        else:
            b.branch(block)
        b.position_at_end(block)
        i = b.phi(I64)
        phis = [b.phi(value.type) for value in carried]
        new = list(body(i, list(phis)))
        step, last = b.add(i, self.c(1), flags=("nuw", "nsw")), b.block
        for phi, start, value in zip([i, *phis], [self.c(0), *carried], [step, *new], strict=True):
            phi.add_incoming(start, before)
            phi.add_incoming(value, last)
        b.cbranch(b.icmp_signed("<", step, count), block, after)
        b.position_at_end(after)
        if not guard:
            return new
        pairs = zip(carried, new, strict=True)
        return [self._merge(start, value, before, last) for start, value in pairs]

    def _merge(self, start: Value, end: Value, before: Any, last: Any) -> Value:
        phi = self.b.phi(start.type)
        phi.add_incoming(start, before)
        phi.add_incoming(end, last)
        return phi


@dataclass(frozen=True)
class Lanes:
    """The pairs of one vector: a key and `w` queries, or a query and `w` keys.

    Attributes
    ----------
    e : VectorEmitter
        Emitter at the right position.
    q, j : value
        Row index i and key index: <w x i`int_bits`> for the one that varies over the lanes, i64 for
        the other. Lanes past the last row or key repeat it, so that table reads stay in bounds.
    b, h : i64
        Batch entry, query head.
    ctx : i64
        Address of the context.
    int_bits : int
        Width of integer lanes, 32 or 64.
    dense : callable
        `dense(k)` is the value of the k-th staged table at these pairs.
    """

    e: VectorEmitter
    q: Value
    j: Value
    b: Value
    h: Value
    ctx: Value
    int_bits: int
    dense: Callable[[int], Value]
