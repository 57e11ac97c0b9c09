"""Storage dtypes <-> compute element, for scalars and vectors of any number of lanes.

Without conversion instructions (`Isa.half`) float16 goes through integer arithmetic, because LLVM
would turn `fpext` on half into a library call. Every conversion to a narrower float rounds to
nearest even, once (NUM-5).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from llvmlite import ir

from sdpakit.backends.numba_cpu.irtypes import (
    F16,
    F32,
    F64,
    I16,
    I32,
    I64,
    IrType,
    Value,
    constant_like,
    element_of,
    with_lanes_of,
)
from sdpakit.dtypes import DTYPES

if TYPE_CHECKING:
    from sdpakit.backends.numba_cpu.vector import VectorEmitter


def raw_type(dtype: str) -> IrType:
    """Return the IR type that an element is loaded and stored as: half precision as bits."""
    named = {"float64": F64, "float32": F32, "float16": I16, "bfloat16": I16}
    return named.get(dtype) or ir.IntType(8 * DTYPES[dtype].itemsize)


def decode(e: VectorEmitter, raw: Value, dtype: str) -> Value:
    """Return stored values as i1 (bool), i64 (integers) or the element (floats)."""
    kind = DTYPES[dtype].kind
    if kind == "bool":
        return e.b.icmp_unsigned("!=", raw, constant_like(raw, 0))
    if kind == "int":
        extend = e.b.zext if dtype.startswith("u") else e.b.sext
        return raw if DTYPES[dtype].itemsize == 8 else extend(raw, with_lanes_of(raw, I64))
    return _to_element(e, _decode_float(e, raw, dtype))


def _to_element(e: VectorEmitter, x: Value) -> Value:
    """Return a float32 or float64 value as the element."""
    is_double = element_of(x.type) == F64
    if is_double == (e.element == "float64"):
        return x
    return (
        e.b.fptrunc(x, with_lanes_of(x, F32)) if is_double else e.b.fpext(x, with_lanes_of(x, F64))
    )


def _decode_float(e: VectorEmitter, raw: Value, dtype: str) -> Value:
    """Return stored floats as float32 (float64 as itself)."""
    if dtype in ("float32", "float64"):
        return raw
    if dtype == "bfloat16":
        wide = e.b.zext(raw, with_lanes_of(raw, I32))
        return e.b.bitcast(e.b.shl(wide, constant_like(wide, 16)), with_lanes_of(raw, F32))
    if e.isa.half:
        return e.b.fpext(e.b.bitcast(raw, with_lanes_of(raw, F16)), with_lanes_of(raw, F32))
    return _half_bits_to_float(e, raw)


def _half_bits_to_float(e: VectorEmitter, raw: Value) -> Value:
    """float16 -> float32: rebias the exponent; subnormals are multiples of 2**-24."""
    b = e.b
    h = b.zext(raw, with_lanes_of(raw, I32))
    magnitude = b.and_(h, constant_like(h, 0x7FFF))
    shifted = b.shl(magnitude, constant_like(h, 13))
    normal = b.add(shifted, constant_like(h, (127 - 15) << 23))
    special = b.add(shifted, constant_like(h, (255 - 31) << 23))
    kind = with_lanes_of(raw, F32)
    exact = b.sitofp(magnitude, kind)
    tiny = b.bitcast(b.fmul(exact, constant_like(exact, 2.0**-24)), h.type)
    bits = b.select(b.icmp_signed(">=", magnitude, constant_like(h, 0x7C00)), special, normal)
    bits = b.select(b.icmp_signed("<", magnitude, constant_like(h, 0x0400)), tiny, bits)
    sign = b.shl(b.and_(h, constant_like(h, 0x8000)), constant_like(h, 16))
    return b.bitcast(b.or_(bits, sign), kind)


def encode(e: VectorEmitter, x: Value, dtype: str) -> Value:
    """Return values as they are stored in a float dtype, rounded once to nearest even."""
    is_double = element_of(x.type) == F64
    if dtype == "float64":
        return x if is_double else e.b.fpext(x, with_lanes_of(x, F64))
    if dtype == "float32":
        return e.b.fptrunc(x, with_lanes_of(x, F32)) if is_double else x
    single = _round_to_odd(e, x) if is_double else x
    if dtype == "bfloat16":
        return _float_to_bfloat_bits(e, single)
    if e.isa.half:
        return e.b.bitcast(e.b.fptrunc(single, with_lanes_of(x, F16)), with_lanes_of(x, I16))
    return _float_to_half_bits(e, single)


def _round_to_odd(e: VectorEmitter, x: Value) -> Value:
    """float64 -> float32, truncated with a sticky last bit.

    A second rounding, to fewer bits, then acts like the only one (S. Boldo, G. Melquiond, "When
    double rounding is odd", 2005.)
    """
    b = e.b
    near = b.fptrunc(x, with_lanes_of(x, F32))
    back = b.fpext(near, x.type)
    bits = b.bitcast(near, with_lanes_of(x, I32))
    too_large = b.fcmp_ordered(">", e.abs(back), e.abs(x))
    toward_zero = b.select(too_large, b.sub(bits, constant_like(bits, 1)), bits)
    inexact = b.fcmp_ordered("!=", back, x)
    return b.bitcast(b.select(inexact, b.or_(toward_zero, constant_like(bits, 1)), bits), near.type)


def _float_to_bfloat_bits(e: VectorEmitter, x: Value) -> Value:
    """float32 -> bfloat16: add half of the last kept bit, ties to even; a NaN stays one."""
    b = e.b
    bits = b.bitcast(x, with_lanes_of(x, I32))
    odd = b.and_(b.lshr(bits, constant_like(bits, 16)), constant_like(bits, 1))
    rounded = b.add(b.add(bits, constant_like(bits, 0x7FFF)), odd)
    quiet = b.or_(bits, constant_like(bits, 0x0040_0000))
    kept = b.select(b.fcmp_unordered("uno", x, x), quiet, rounded)
    return b.trunc(b.lshr(kept, constant_like(bits, 16)), with_lanes_of(x, I16))


def _float_to_half_bits(e: VectorEmitter, x: Value) -> Value:
    """float32 -> float16; values below 2**-14 are aligned by adding 0.5 as a float."""
    b = e.b
    bits = b.bitcast(x, with_lanes_of(x, I32))
    magnitude = b.and_(bits, constant_like(bits, 0x7FFF_FFFF))
    odd = b.and_(b.lshr(magnitude, constant_like(bits, 13)), constant_like(bits, 1))
    rounded = b.add(b.add(magnitude, constant_like(bits, 0xFFF - ((127 - 15) << 23))), odd)
    normal = b.lshr(rounded, constant_like(bits, 13))
    aligned = b.fadd(b.bitcast(magnitude, x.type), constant_like(x, 0.5))
    tiny = b.sub(b.bitcast(aligned, bits.type), constant_like(bits, 0x3F00_0000))
    half = b.select(b.icmp_signed("<", magnitude, constant_like(bits, 0x3880_0000)), tiny, normal)
    half = b.select(
        b.icmp_signed(">=", magnitude, constant_like(bits, 0x4780_0000)),
        constant_like(bits, 0x7C00),
        half,
    )
    payload = b.or_(
        constant_like(bits, 0x7E00),
        b.and_(b.lshr(magnitude, constant_like(bits, 13)), constant_like(bits, 0x3FF)),
    )
    half = b.select(b.icmp_signed(">", magnitude, constant_like(bits, 0x7F80_0000)), payload, half)
    sign = b.and_(b.lshr(bits, constant_like(bits, 16)), constant_like(bits, 0x8000))
    return b.trunc(b.or_(half, sign), with_lanes_of(x, I16))


def itemsize(dtype: str) -> int:
    """Return the bytes of a stored element."""
    return DTYPES[dtype].itemsize
