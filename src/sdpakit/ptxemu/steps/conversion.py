"""Conversions: ``cvt`` between all types, and its packed forms."""

from __future__ import annotations

from functools import reduce

import numpy as np

from sdpakit.ptxemu import rounding
from sdpakit.ptxemu.operands import Reader, read, write
from sdpakit.ptxemu.program import Instruction
from sdpakit.ptxemu.registry import Step, instruction, unsupported
from sdpakit.ptxemu.rounding import DIRECTIONS, Exact
from sdpakit.ptxemu.scalars import B32, TYPES, Array, ScalarType, f32_to_upper_bf16
from sdpakit.ptxemu.steps.elementwise import Function, check_form, combine, copy
from sdpakit.ptxemu.steps.floats import (
    F32,
    F64,
    HALVES,
    canonical,
    computed_as,
    element,
    half_rounding,
    read_values,
    rectified,
    saturated,
    write_values,
)
from sdpakit.ptxemu.steps.narrow import BYTE_FLOATS, to_tf32

_TO_INTEGRAL: dict[str, Function] = {
    "rni": np.rint,
    "rzi": np.trunc,
    "rmi": np.floor,
    "rpi": np.ceil,
}
_FLOATS = frozenset({"f16", "bf16", "f32", "f64"})
_LARGEST = {"f16": 65504.0, "bf16": 2.0**128 - 2.0**120, "tf32": 2.0**128 - 2.0**117}
_MODIFIERS = (*DIRECTIONS, *_TO_INTEGRAL, "rna", "ftz", "sat", "relu", "satfinite")


@instruction("cvt")
def _cvt(ins: Instruction) -> Step:
    if ins.has("pack"):
        return _saturated_pair(ins)
    check_form(ins, (2, 3), *_MODIFIERS)
    if len(ins.types) != 2:
        raise unsupported(ins, "cvt of other than two types")
    target, source = ins.types
    if target.kind == "packed" or source.kind == "packed":
        return _packed(ins, target, source)
    if target.name == "tf32":
        return _to_tf32(ins, source)
    if target.name in _FLOATS:
        return _float_to_float(ins) if source.name in _FLOATS else _integer_to_float(ins)
    return _float_to_integer(ins) if source.name in _FLOATS else _integer_to_integer(ins)


def _direction(ins: Instruction) -> str:
    return next((modifier for modifier in ins.modifiers if modifier in DIRECTIONS), "rn")


def _compose(functions: list[Function]) -> Function:
    if len(functions) == 1:
        return functions[0]
    return lambda values: reduce(lambda seen, function: function(seen), functions, values)


# ----------------------------------------------------------------------------------------- integers


def _integer_to_integer(ins: Instruction) -> Step:
    target, source = ins.types
    put, get = write(ins.operands[0], target), read(ins.operands[1], source)
    value = target.value
    if ins.has("sat"):
        limits = np.iinfo(value)
        low = max(limits.min, np.iinfo(source.value).min)
        high = min(limits.max, np.iinfo(source.value).max)
        low, high = source.value.type(low), source.value.type(high)
        return combine(put, lambda values: np.clip(values, low, high).astype(value), get)
    if value == source.value:
        return copy(put, get)
    return combine(put, lambda values: values.astype(value), get)


def _float_to_integer(ins: Instruction) -> Step:
    """Round to an integer; what is out of range to the nearest there is, NaN to 0."""
    target, source = ins.types
    whole = next((_TO_INTEGRAL[m] for m in ins.modifiers if m in _TO_INTEGRAL), None)
    if whole is None:
        raise unsupported(ins, "cvt of a float to an integer without .rni, .rzi, .rmi or .rpi")
    limits, dtype, rounded = np.iinfo(target.value), target.value, whole
    # Both bounds are powers of two (or 0), so every float type holds them exactly.
    low, high = float(limits.min), float(limits.max + 1)

    def function(values: Array) -> Array:
        integral = rounded(values)
        inside = (integral >= low) & (integral < high)
        if inside.all():
            return integral.astype(dtype)
        result = np.where(inside, integral, 0).astype(dtype)
        result[integral >= high] = limits.max
        result[integral < low] = limits.min
        return result

    reader = read_values(ins.operands[1], source, flush=ins.has("ftz"))
    return combine(write(ins.operands[0], target), function, reader)


def _integer_to_float(ins: Instruction) -> Step:
    target, source = ins.types
    direction, dtype = _direction(ins), computed_as(target)
    if target.name in HALVES:
        direction_of_put, direction = direction, "odd"  # halves are rounded when written
    else:
        direction_of_put = "rn"
    functions: list[Function] = [_exact_rounding(source, dtype, direction)]
    if ins.has("sat"):
        functions.append(saturated)
    put = write_values(ins.operands[0], target, direction=direction_of_put)
    return combine(put, _compose(functions), read(ins.operands[1], source))


def _exact_rounding(source: ScalarType, dtype: np.dtype[np.generic], direction: str) -> Function:
    """Return the function from integers to floats, rounded once."""
    if direction == "rn":
        return lambda values: values.astype(dtype)
    return lambda values: rounding.round_to(_exact(values), dtype, direction)


def _exact(values: Array) -> Exact:
    if values.dtype.itemsize < 8:
        nearest = values.astype(F64)
        return nearest, np.zeros_like(nearest)
    word = values.dtype.type(32)
    high = (values >> word).astype(F64) * 2.0**32
    low = (values & values.dtype.type(0xFFFF_FFFF)).astype(F64)
    return rounding.exact_sum(high, low)


# ------------------------------------------------------------------------------------------- floats


def _float_to_float(ins: Instruction) -> Step:
    target, source = ins.types
    flush, direction = ins.has("ftz"), _direction(ins)
    functions = [_TO_INTEGRAL[m] for m in ins.modifiers if m in _TO_INTEGRAL]
    half = target.name in HALVES
    if source.name == "f64" and target.name != "f64":
        functions.append(_narrowing("odd" if half else direction))
    elif target.name == "f64" and source.name != "f64":
        functions.append(lambda values: values.astype(F64))
    functions += _clamps(ins, target)
    put = write_values(ins.operands[0], target, flush=flush, direction=direction if half else "rn")
    get = read_values(ins.operands[1], source, flush=flush)
    if not functions:
        return copy(put, get)
    return combine(put, _compose(functions), get)


def _narrowing(direction: str) -> Function:
    if direction == "rn":
        return lambda values: values.astype(F32)
    return lambda values: rounding.round_to((values, np.zeros_like(values)), F32, direction)


def _clamps(ins: Instruction, target: ScalarType) -> list[Function]:
    functions: list[Function] = []
    if ins.has("sat"):
        functions.append(saturated)
    if ins.has("relu"):
        functions.append(rectified)
    if ins.has("satfinite") and element(target) in _LARGEST:
        largest = np.float32(_LARGEST[element(target)])
        functions.append(lambda values: canonical(np.clip(values, -largest, largest)))
    return functions


def _to_tf32(ins: Instruction, source: ScalarType) -> Step:
    if source.name != "f32":
        raise unsupported(ins, "cvt to tf32 of other than f32")
    direction = "rna" if ins.has("rna") else _direction(ins)
    functions = _clamps(ins, TYPES["tf32"])
    functions.append(lambda values: to_tf32(values, direction))
    return combine(write(ins.operands[0], B32), _compose(functions), read(ins.operands[1], source))


# ------------------------------------------------------------------------------------------- packed


def _packed(ins: Instruction, target: ScalarType, source: ScalarType) -> Step:
    pair = (target.name, source.name)
    if source.name == "f32" and len(ins.operands) == 3:
        upper, lower = (read(operand, source) for operand in ins.operands[1:])
        return _pack(ins, target, upper, lower)
    if target.name in BYTE_FLOATS and source.name in ("f16x2", "bf16x2"):
        values = read_values(ins.operands[1], source)
        return _pack(
            ins,
            target,
            lambda machine, lanes: values(machine, lanes)[:, 1],
            lambda machine, lanes: values(machine, lanes)[:, 0],
        )
    if source.name in BYTE_FLOATS and target.name in ("f16x2", "bf16x2"):
        return _from_bytes(ins, target, source)
    raise unsupported(ins, f"cvt from {pair[1]} to {pair[0]}")


def _pack(ins: Instruction, target: ScalarType, upper: Reader, lower: Reader) -> Step:
    """Convert two numbers, the first to the upper part."""
    functions = _clamps(ins, target)
    if target.name == "bf16x2" and not functions and _direction(ins) == "rn":
        return combine(write(ins.operands[0], target), _two_bf16, upper, lower)
    if target.name in BYTE_FLOATS:
        if not ins.has("satfinite"):
            raise unsupported(ins, f"cvt to {target.name} without .satfinite")
        functions.append(BYTE_FLOATS[target.name].encode)
    else:
        functions.append(half_rounding(element(target), _direction(ins)))
    convert = _compose(functions)
    storage, shift = target.storage, target.storage.type(target.bits // 2)

    def function(a: Array, b: Array) -> Array:
        result: Array = (convert(a).astype(storage) << shift) | convert(b)
        return result

    return combine(write(ins.operands[0], target), function, upper, lower)


def _two_bf16(a: Array, b: Array) -> Array:
    packed = f32_to_upper_bf16(a) & np.uint32(0xFFFF_0000)
    return packed | (f32_to_upper_bf16(b) >> np.uint32(16))


def _from_bytes(ins: Instruction, target: ScalarType, source: ScalarType) -> Step:
    table = BYTE_FLOATS[source.name].decode(np.arange(256))
    get = read(ins.operands[1], source)
    functions: list[Function] = [lambda codes: table[codes.view(np.uint8).reshape(-1, 2)]]
    functions += _clamps(ins, target)
    return combine(write_values(ins.operands[0], target), _compose(functions), get)


def _saturated_pair(ins: Instruction) -> Step:
    """Clamp two integers and pack them, below the lower bits of a third if there is one."""
    check_form(ins, (3, 4), "pack", "sat")
    target, source = ins.types[0], ins.types[1]
    if target.name not in ("s8", "u8", "s16", "u16") or source.name != "s32":
        raise unsupported(ins, f"cvt.pack from {source.name} to {target.name}")
    limits, bits = np.iinfo(target.value), np.uint32(target.bits)
    low, high = np.int32(limits.min), np.int32(limits.max)

    def clamp(values: Array) -> Array:
        return (
            np.clip(values, low, high).astype(target.value).view(target.storage).astype(np.uint32)
        )

    def two(a: Array, b: Array) -> Array:
        return (clamp(a) << bits) | clamp(b)

    a, b = (read(operand, source) for operand in ins.operands[1:3])
    if len(ins.operands) == 3:
        return combine(write(ins.operands[0], B32), two, a, b)
    c = read(ins.operands[3], B32)

    def three(x: Array, y: Array, z: Array) -> Array:
        result: Array = two(x, y) | (z << (bits + bits))
        return result

    return combine(write(ins.operands[0], B32), three, a, b, c)
