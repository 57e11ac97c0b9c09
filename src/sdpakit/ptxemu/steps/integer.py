"""Integer arithmetic.

Where a result is only defined modulo two to the width, values are computed as unsigned bits,
whatever the type's sign. Division by zero, which PTX leaves open, gives all ones; its remainder is
the dividend.
"""

from __future__ import annotations

import numpy as np

from sdpakit.ptxemu.operands import read, write
from sdpakit.ptxemu.program import Instruction
from sdpakit.ptxemu.registry import Step, instruction, unsupported
from sdpakit.ptxemu.scalars import B32, TYPES, Array, ScalarType
from sdpakit.ptxemu.steps.elementwise import (
    Function,
    bits_type,
    check_form,
    check_type,
    combine,
    combine_ufunc,
    pairs,
    put_pairs,
    sources,
)

_WIDER = {"u8": "u16", "s8": "s16", "u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}
_PAIRS = {"u16x2": np.dtype(np.uint16), "s16x2": np.dtype(np.int16)}
_LOW_WORD = np.uint64(0xFFFF_FFFF)
_WORD = np.uint64(32)


def add(ins: Instruction) -> Step:
    """``add{.sat}``."""
    return _modular(ins, np.add)


def subtract(ins: Instruction) -> Step:
    """``sub{.sat}``."""
    return _modular(ins, np.subtract)


def _modular(ins: Instruction, ufunc: np.ufunc) -> Step:
    check_form(ins, 3, "sat")
    kind, target = ins.type, ins.operands[0]
    if kind.name in _PAIRS:
        return _packed(ins, ufunc)
    if not ins.has("sat"):
        bits = bits_type(kind)
        return combine_ufunc(target, bits, ufunc, *sources(ins, bits))
    check_type(ins, kind, "s32")
    saturated = _saturating(ufunc, np.int32)
    return combine(write(target, kind), saturated, *sources(ins, kind))


def _packed(ins: Instruction, function: Function) -> Step:
    readers = (pairs(reader, _PAIRS[ins.type.name]) for reader in sources(ins, B32))
    return combine(put_pairs(ins.operands[0], B32), function, *readers)


def _saturating(function: Function, dtype: type[np.signedinteger]) -> Function:
    limits = np.iinfo(dtype)

    def saturated(*values: Array) -> Array:
        wide = function(*(value.astype(np.int64) for value in values))
        return np.clip(wide, limits.min, limits.max).astype(dtype)

    return saturated


def multiply(ins: Instruction) -> Step:
    """``mul.lo``, ``mul.hi``, ``mul.wide``."""
    check_form(ins, 3, "lo", "hi", "wide")
    kind, target = ins.type, ins.operands[0]
    if ins.has("lo"):
        bits = bits_type(kind)
        return combine_ufunc(target, bits, np.multiply, *sources(ins, bits))
    if ins.has("wide"):
        wide = _wider(ins, kind)
        return combine(write(target, wide), _wide_product(wide), *sources(ins, kind))
    if not ins.has("hi"):
        raise unsupported(ins, "mul of integers without .lo, .hi or .wide")
    return combine(write(target, kind), high_product(kind), *sources(ins, kind))


def multiply_add(ins: Instruction) -> Step:
    """``mad.lo``, ``mad.hi{.sat}``, ``mad.wide``."""
    check_form(ins, 4, "lo", "hi", "wide", "sat")
    kind, target = ins.type, ins.operands[0]
    a, b = (read(operand, kind) for operand in ins.operands[1:3])
    if ins.has("wide"):
        wide = _wider(ins, kind)
        product = _wide_product(wide)
        c = read(ins.operands[3], wide)
        return combine(write(target, wide), lambda x, y, z: product(x, y) + z, a, b, c)
    c = read(ins.operands[3], kind)
    part = high_product(kind) if ins.has("hi") else np.multiply
    if ins.has("sat"):
        check_type(ins, kind, "s32")
        saturated = _saturating(np.add, np.int32)
        return combine(write(target, kind), lambda x, y, z: saturated(part(x, y), z), a, b, c)
    return combine(write(target, kind), lambda x, y, z: part(x, y) + z, a, b, c)


def _wider(ins: Instruction, kind: ScalarType) -> ScalarType:
    if kind.name not in _WIDER:
        raise unsupported(ins, f".wide of type {kind.name}")
    return TYPES[_WIDER[kind.name]]


def _wide_product(wide: ScalarType) -> Function:
    value = wide.value
    return lambda a, b: np.multiply(a.astype(value), b.astype(value))


def high_product(kind: ScalarType) -> Function:
    """Return the function for the upper half of a product."""
    if kind.bits < 64:
        wide, value, bits = TYPES[_WIDER[kind.name]], kind.value, kind.bits
        product, shift = _wide_product(wide), wide.value.type(bits)
        return lambda a, b: (product(a, b) >> shift).astype(value)
    if kind.kind != "signed":
        return _high_product_u64
    return _high_product_s64


def _high_product_u64(a: Array, b: Array) -> Array:
    a_low, a_high, b_low, b_high = a & _LOW_WORD, a >> _WORD, b & _LOW_WORD, b >> _WORD
    first = a_high * b_low + ((a_low * b_low) >> _WORD)
    second = a_low * b_high + (first & _LOW_WORD)
    result: Array = a_high * b_high + (first >> _WORD) + (second >> _WORD)
    return result


def _high_product_s64(a: Array, b: Array) -> Array:
    # As unsigned, a negative factor is 2**64 too large: the other is added to the upper half.
    high = _high_product_u64(a.view(np.uint64), b.view(np.uint64)).view(np.int64)
    return high - np.where(a < 0, b, 0) - np.where(b < 0, a, 0)


@instruction("mul24", "mad24")
def _of_24_bits(ins: Instruction) -> Step:
    """Products of the lower 24 bits: lower or upper 32 of their 48 bits."""
    mad = ins.opcode == "mad24"
    check_form(ins, 4 if mad else 3, "lo", "hi", "sat")
    kind = ins.type
    check_type(ins, kind, "u32", "s32")
    shift, value = np.int64(16 if ins.has("hi") else 0), kind.value
    add_on = _saturating(np.add, np.int32) if ins.has("sat") else np.add

    def product(a: Array, b: Array) -> Array:
        # Up and down again by 8 bits extends by the type's sign.
        factors = ((x << value.type(8)) >> value.type(8) for x in (a, b))
        first, second = (x.astype(np.int64) for x in factors)
        result: Array = (first * second >> shift).astype(np.uint32).view(value)
        return result

    put = write(ins.operands[0], kind)
    if mad:
        return combine(put, lambda a, b, c: add_on(product(a, b), c), *sources(ins, kind))
    return combine(put, product, *sources(ins, kind))


@instruction("sad")
def _sad(ins: Instruction) -> Step:
    check_form(ins, 4)
    kind = ins.type

    def function(a: Array, b: Array, c: Array) -> Array:
        result: Array = c + (np.maximum(a, b) - np.minimum(a, b))
        return result

    return combine(write(ins.operands[0], kind), function, *sources(ins, kind))


def divide(ins: Instruction) -> Step:
    """``div``, towards zero."""
    check_form(ins, 3)
    return combine(write(ins.operands[0], ins.type), _quotient, *sources(ins, ins.type))


@instruction("rem")
def _rem(ins: Instruction) -> Step:
    check_form(ins, 3)
    return combine(write(ins.operands[0], ins.type), _remainder, *sources(ins, ins.type))


def _quotient(a: Array, b: Array) -> Array:
    zero = b == 0
    divisor = np.where(zero, b.dtype.type(1), b) if zero.any() else b
    quotient = (a - np.fmod(a, divisor)) // divisor
    return np.where(zero, ~b.dtype.type(0), quotient) if zero.any() else quotient


def _remainder(a: Array, b: Array) -> Array:
    zero = b == 0
    if not zero.any():
        return np.fmod(a, b)
    return np.where(zero, a, np.fmod(a, np.where(zero, b.dtype.type(1), b)))


def absolute(ins: Instruction) -> Step:
    """``abs``; the smallest integer stays."""
    check_form(ins, 2)
    return combine_ufunc(ins.operands[0], ins.type, np.absolute, *sources(ins, ins.type))


def negate(ins: Instruction) -> Step:
    """``neg``; the smallest integer stays."""
    check_form(ins, 2)
    return combine_ufunc(ins.operands[0], ins.type, np.negative, *sources(ins, ins.type))


def minimum(ins: Instruction) -> Step:
    """``min{.relu}``."""
    return _extreme(ins, np.minimum)


def maximum(ins: Instruction) -> Step:
    """``max{.relu}``."""
    return _extreme(ins, np.maximum)


def _extreme(ins: Instruction, ufunc: np.ufunc) -> Step:
    check_form(ins, 3, "relu")
    kind = ins.type
    function: Function = ufunc
    if ins.has("relu"):
        check_type(ins, kind, "s32", "s16x2")

        def function(a: Array, b: Array) -> Array:
            result: Array = np.maximum(ufunc(a, b), a.dtype.type(0))
            return result

    if kind.name in _PAIRS:
        return _packed(ins, function)
    if function is ufunc:
        return combine_ufunc(ins.operands[0], kind, ufunc, *sources(ins, kind))
    return combine(write(ins.operands[0], kind), function, *sources(ins, kind))


@instruction("dp4a")
def _dp4a(ins: Instruction) -> Step:
    check_form(ins, 4)
    first, second = (_parts_of(kind, 1) for kind in ins.types)

    def function(a: Array, b: Array, c: Array) -> Array:
        return c + _dot(first(a), second(b))

    return combine(write(ins.operands[0], B32), function, *sources(ins, B32))


@instruction("dp2a")
def _dp2a(ins: Instruction) -> Step:
    check_form(ins, 4, "lo", "hi")
    halves, quarters = _parts_of(ins.types[0], 2), _parts_of(ins.types[1], 1)
    chosen = slice(2, 4) if ins.has("hi") else slice(0, 2)

    def function(a: Array, b: Array, c: Array) -> Array:
        return c + _dot(halves(a), quarters(b)[:, chosen])

    return combine(write(ins.operands[0], B32), function, *sources(ins, B32))


def _parts_of(kind: ScalarType, size: int) -> Function:
    dtype = np.dtype(f"{kind.value.kind}{size}")
    return lambda values: values.view(dtype).reshape(-1, 4 // size).astype(np.int64)


def _dot(a: Array, b: Array) -> Array:
    result: Array = (a * b).sum(axis=1).astype(np.uint32)
    return result
