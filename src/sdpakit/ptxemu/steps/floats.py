"""Float operands as NumPy floats and back: halves are float32, subnormals may be flushed.

The sign and payload of a NaN follow NumPy, except where PTX asks for the canonical NaN.
"""

from __future__ import annotations

import numpy as np

from sdpakit.ptxemu.operands import Reader, Writer, read, write
from sdpakit.ptxemu.program import Operand
from sdpakit.ptxemu.rounding import directed
from sdpakit.ptxemu.scalars import TYPES, Array, ScalarType, bf16_to_f32, f32_to_bf16
from sdpakit.ptxemu.steps.elementwise import Function, bits_type, pairs, put_pairs

F32, F64 = np.dtype(np.float32), np.dtype(np.float64)
HALVES = frozenset({"f16", "bf16", "f16x2", "bf16x2"})

# Of halves: sign bit, exponent field; of all: the smallest normal number.
_SIGN = np.uint16(0x8000)
_EXPONENT = {"f16": np.uint16(0x7C00), "bf16": np.uint16(0x7F80)}
_NORMAL = {"f16": np.float32(2.0**-14), "bf16": np.float32(2.0**-126), "f32": np.float32(2.0**-126)}
_CANONICAL = {
    F32: np.array([0x7FFF_FFFF], "u4").view("f4"),
    F64: np.array([2**63 - 1], "u8").view("f8"),
}


def element(kind: ScalarType) -> str:
    """Return the type of one value: ``f16`` of ``f16x2``."""
    return kind.name.removesuffix("x2")


def computed_as(kind: ScalarType) -> np.dtype[np.generic]:
    """Return the dtype that NumPy computes a type with."""
    return F64 if kind.name == "f64" else F32


def read_values(operand: Operand, kind: ScalarType, *, flush: bool = False) -> Reader:
    """Return a reader of floats; pairs have the shape (n, 2)."""
    values = _wide_reader(operand, kind)
    if not flush or kind.name == "f64":
        return values
    normal = _NORMAL[element(kind)]
    return lambda machine, lanes: _flushed(values(machine, lanes), normal)


def _wide_reader(operand: Operand, kind: ScalarType) -> Reader:
    name = element(kind)
    if kind.kind == "packed":
        stored = pairs(read(operand, bits_type(kind)), TYPES[name].value)
    else:
        stored = read(operand, kind)
    if name == "f16":
        return lambda machine, lanes: stored(machine, lanes).astype(F32)
    if name == "bf16":
        return lambda machine, lanes: bf16_to_f32(stored(machine, lanes))
    return stored


def write_values(
    operand: Operand, kind: ScalarType, *, flush: bool = False, direction: str = "rn"
) -> Writer:
    """Return a writer of what `read_values` reads; halves are rounded from float32."""
    name = element(kind)
    if kind.name not in HALVES:
        put = put_pairs(operand, kind) if kind.kind == "packed" else write(operand, kind)
        if not flush or name == "f64":
            return put
        return lambda machine, lanes, values: put(machine, lanes, _flushed(values, _NORMAL[name]))
    put = put_pairs(operand, kind) if kind.kind == "packed" else write(operand, TYPES["b16"])
    rounded = half_rounding(name, direction)
    if not flush:
        return lambda machine, lanes, values: put(machine, lanes, rounded(values))
    exponent = _EXPONENT[name]

    def flushed(values: Array) -> Array:
        bits = rounded(values)
        return np.where(bits & exponent, bits, bits & _SIGN)

    return lambda machine, lanes, values: put(machine, lanes, flushed(values))


def half_rounding(name: str, direction: str) -> Function:
    """Return the function from float32 to bits of ``f16`` or ``bf16``, rounded in a direction."""
    if name == "f16":
        return lambda values: _to_f16(values, direction)
    if direction == "rn":
        return f32_to_bf16
    return lambda values: _to_bf16(values, direction)


def _to_f16(values: Array, direction: str) -> Array:
    half = values.astype(np.float16)
    if direction != "rn":
        half = directed(half, values - half.astype(F32), direction)
    nan = np.isnan(values)
    bits = half.view(np.uint16)
    return np.where(nan, np.uint16(0x7FFF), bits) if nan.any() else bits


def _to_bf16(values: Array, direction: str) -> Array:
    bits = np.ascontiguousarray(values).view(np.uint32)
    towards_zero = (bits >> np.uint32(16)).astype(np.uint16)
    if direction != "rz":
        away = np.signbit(values) == (direction == "rm")
        inexact = (bits & np.uint32(0xFFFF)) != 0
        towards_zero = towards_zero + (away & inexact)
    return np.where(np.isnan(values), np.uint16(0x7FFF), towards_zero)


def _flushed(values: Array, normal: np.float32) -> Array:
    """Return float32 with zeros of the same sign for subnormals."""
    small = np.abs(values) < normal
    if small.any():
        small &= values != 0  # zeros are many, subnormals are few
        if small.any():
            return np.where(small, values * np.float32(0), values)
    return values


def saturated(values: Array) -> Array:
    """Return values clamped to [0, 1]; NaN becomes 0."""
    one, zero = values.dtype.type(1), values.dtype.type(0)
    # fmax leaves out a NaN; adding 0 makes a negative zero positive.
    result: Array = np.fmin(np.fmax(values, zero), one) + zero
    return result


def rectified(values: Array) -> Array:
    """Return values with 0 for negative ones, and canonical NaN."""
    zero = values.dtype.type(0)
    return canonical(np.maximum(values, zero) + zero)


def canonical(values: Array) -> Array:
    """Return values with every NaN the canonical one."""
    nan = np.isnan(values)
    return np.where(nan, _CANONICAL[values.dtype], values) if nan.any() else values
