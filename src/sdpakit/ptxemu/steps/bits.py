"""Logic, shifts, and everything that looks at single bits or bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sdpakit.ptxemu.operands import constant, read, write
from sdpakit.ptxemu.program import Immediate, Instruction, Pair
from sdpakit.ptxemu.registry import Step, instruction, unsupported
from sdpakit.ptxemu.scalars import B32, PREDICATE, U32, Array, ScalarType
from sdpakit.ptxemu.steps.elementwise import (
    Function,
    bits_type,
    check_form,
    check_type,
    combine,
    combine_ufunc,
    sources,
)

if TYPE_CHECKING:
    from sdpakit.ptxemu.machine import Lanes, Machine

_LOGIC = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}


@instruction("and", "or", "xor")
def _logic(ins: Instruction) -> Step:
    check_form(ins, 3)
    kind = bits_type(ins.type)
    return combine_ufunc(ins.operands[0], kind, _LOGIC[ins.opcode], *sources(ins, kind))


@instruction("not")
def _not(ins: Instruction) -> Step:
    check_form(ins, 2)
    kind = bits_type(ins.type)
    return combine_ufunc(ins.operands[0], kind, np.invert, *sources(ins, kind))


@instruction("cnot")
def _cnot(ins: Instruction) -> Step:
    check_form(ins, 2)
    kind = bits_type(ins.type)
    return combine(
        write(ins.operands[0]), lambda a: (a == 0).astype(kind.storage), *sources(ins, kind)
    )


# ------------------------------------------------------------------------------------------- shifts


@instruction("shl", "shr")
def _shift(ins: Instruction) -> Step:
    """Shift; by the width or more, nothing is left, or the sign."""
    check_form(ins, 3)
    kind = ins.type if ins.opcode == "shr" else bits_type(ins.type)
    amount = ins.operands[2]
    ufunc = np.left_shift if ins.opcode == "shl" else np.right_shift
    a = read(ins.operands[1], kind)
    if isinstance(amount, Immediate):
        amounts = _clamp_amount(constant(amount, U32), kind)
        return combine_ufunc(ins.operands[0], kind, ufunc, a, lambda machine, lanes: amounts)
    b = read(amount, U32)
    return combine_ufunc(
        ins.operands[0],
        kind,
        ufunc,
        a,
        lambda machine, lanes: _clamp_amount(b(machine, lanes), kind),
    )


def _clamp_amount(amounts: Array, kind: ScalarType) -> Array:
    # NumPy defines shifts by the whole width as PTX does.
    return np.minimum(amounts, np.uint32(kind.bits)).astype(kind.value)


@instruction("shf")
def _funnel_shift(ins: Instruction) -> Step:
    check_form(ins, 4, "l", "r", "wrap", "clamp")
    clamp, left = ins.has("clamp"), ins.has("l")
    word = np.uint64(32)

    def function(low: Array, high: Array, amounts: Array) -> Array:
        both = (high.astype(np.uint64) << word) | low
        count = np.minimum(amounts, np.uint32(32)) if clamp else amounts & np.uint32(31)
        shifted = (both << count) >> word if left else both >> count
        return shifted.astype(np.uint32)

    return combine(write(ins.operands[0]), function, *sources(ins, U32))


# -------------------------------------------------------------------------------- counting, finding


def _log2(values: Array) -> Array:
    """Return the place of the highest bit of unsigned numbers, int64; -1 for zero."""
    if values.dtype.itemsize == 8:
        high = _log2((values >> np.uint64(32)).astype(np.uint32))
        low = _log2(values.astype(np.uint32))
        return np.where(high >= 0, high + 32, low)
    exponents = values.astype(np.float64).view(np.uint64) >> np.uint64(52)
    return np.maximum(exponents.astype(np.int64) - 1023, -1)


@instruction("popc")
def _popc(ins: Instruction) -> Step:
    check_form(ins, 2)

    def function(a: Array) -> Array:
        return np.bitwise_count(a).astype(np.uint32)

    return combine(write(ins.operands[0], U32), function, *sources(ins, bits_type(ins.type)))


@instruction("clz")
def _clz(ins: Instruction) -> Step:
    check_form(ins, 2)
    top = ins.type.bits - 1

    def function(a: Array) -> Array:
        return (top - _log2(a)).astype(np.uint32)

    return combine(write(ins.operands[0], U32), function, *sources(ins, bits_type(ins.type)))


@instruction("bfind")
def _bfind(ins: Instruction) -> Step:
    """Find the highest bit that differs from the sign; all ones if there is none."""
    check_form(ins, 2, "shiftamt")
    kind = ins.type
    top, signed, from_top = kind.bits - 1, kind.kind == "signed", ins.has("shiftamt")

    def function(a: Array) -> Array:
        magnitude = np.where(a < 0, ~a, a).view(kind.storage) if signed else a
        place = _log2(magnitude)
        if from_top:
            place = np.where(place >= 0, top - place, -1)
        return place.astype(np.uint32)

    return combine(write(ins.operands[0], U32), function, *sources(ins, kind))


@instruction("brev")
def _brev(ins: Instruction) -> Step:
    check_form(ins, 2)
    kind = bits_type(ins.type)
    masks = [kind.storage.type(mask & (2**kind.bits - 1)) for mask in _SWAPS]
    shifts = [kind.storage.type(shift) for shift in (1, 2, 4)]

    def function(a: Array) -> Array:
        for mask, shift in zip(masks, shifts, strict=True):
            a = ((a >> shift) & mask) | ((a & mask) << shift)
        return a.byteswap()

    return combine(write(ins.operands[0]), function, *sources(ins, kind))


_SWAPS = (0x5555_5555_5555_5555, 0x3333_3333_3333_3333, 0x0F0F_0F0F_0F0F_0F0F)


# ------------------------------------------------------------------------------------------- fields


def _ones(count: Array, kind: ScalarType) -> Array:
    """Return numbers with so many lower bits set; NumPy shifts a one out by the whole width."""
    one = kind.storage.type(1)
    result: Array = (one << count.astype(kind.storage)) - one
    return result


def _field(position: Array, length: Array, kind: ScalarType) -> tuple[Array, Array]:
    """Return the position of a field and how many of its bits lie in the register, unsigned."""
    byte = np.uint32(0xFF)
    position = np.minimum(position & byte, np.uint32(kind.bits))
    return position, np.minimum(length & byte, np.uint32(kind.bits) - position)


@instruction("bfe")
def _bfe(ins: Instruction) -> Step:
    check_form(ins, 4)
    kind = ins.type
    check_type(ins, kind, "u32", "s32", "u64", "s64")
    bits, signed = bits_type(kind), kind.kind == "signed"
    top = np.int64(kind.bits - 1)

    def function(a: Array, position: Array, length: Array) -> Array:
        start, count = _field(position, length, kind)
        mask = _ones(count, kind)
        field: Array = (a >> start.astype(kind.storage)) & mask
        if not signed:
            return field
        # The sign is the field's last bit, or the register's where the field reaches beyond it.
        wanted = (length & np.uint32(0xFF)).astype(np.int64)
        last = np.minimum((position & np.uint32(0xFF)).astype(np.int64) + wanted - 1, top)
        sign = (a >> np.maximum(last, 0).astype(kind.storage)) & kind.storage.type(1)
        return np.where((wanted > 0) & (sign != 0), field | ~mask, field)

    a, position, length = ins.operands[1:]
    readers = (read(a, bits), read(position, U32), read(length, U32))
    return combine(write(ins.operands[0]), function, *readers)


@instruction("bfi")
def _bfi(ins: Instruction) -> Step:
    check_form(ins, 5)
    kind = bits_type(ins.type)

    def function(a: Array, b: Array, position: Array, length: Array) -> Array:
        start, count = _field(position, length, kind)
        start = start.astype(kind.storage)
        mask = _ones(count, kind) << start
        return (b & ~mask) | ((a << start) & mask)

    a, b, position, length = ins.operands[1:]
    readers = (read(a, kind), read(b, kind), read(position, U32), read(length, U32))
    return combine(write(ins.operands[0]), function, *readers)


@instruction("bmsk")
def _bmsk(ins: Instruction) -> Step:
    """Set so many bits from a position on."""
    check_form(ins, 3, "clamp", "wrap")
    limit = np.uint32(32) if ins.has("clamp") else np.uint32(31)

    def function(position: Array, length: Array) -> Array:
        if limit == 31:
            position, length = position & limit, length & limit
        start = np.minimum(position, limit)
        count = np.minimum(length, np.uint32(32) - start)
        return _ones(count, B32) << start

    return combine(write(ins.operands[0]), function, *sources(ins, U32))


@instruction("szext")
def _szext(ins: Instruction) -> Step:
    """Take the lower bits of a number, extended by zeros or their sign."""
    check_form(ins, 3, "clamp", "wrap")
    kind, clamp = ins.type, ins.has("clamp")
    signed = kind.kind == "signed"
    full, one = np.uint32(32), np.uint32(1)

    def function(a: Array, length: Array) -> Array:
        count = np.minimum(length, full) if clamp else length & np.uint32(31)
        mask = _ones(count, B32)
        if not signed:
            return a & mask
        sign = (a >> np.where(count > 0, count - one, one)) & one
        return np.where((count > 0) & (sign != 0), a | ~mask, a & mask)

    return combine(write(ins.operands[0]), function, *sources(ins, U32))


# ------------------------------------------------------------------------------------------- tables

# Functions of two bits, by their truth table: bit 2*b + c is the result for b and c.
_OF_TWO: tuple[Function, ...] = (
    lambda b, c: np.zeros(1, np.uint32),
    lambda b, c: ~(b | c),
    lambda b, c: ~b & c,
    lambda b, c: ~b,
    lambda b, c: b & ~c,
    lambda b, c: ~c,
    lambda b, c: b ^ c,
    lambda b, c: ~(b & c),
    lambda b, c: b & c,
    lambda b, c: ~(b ^ c),
    lambda b, c: c,
    lambda b, c: ~b | c,
    lambda b, c: b,
    lambda b, c: b | ~c,
    lambda b, c: b | c,
    lambda b, c: np.full(1, 0xFFFF_FFFF, np.uint32),
)


def _of_three(table: int) -> Function:
    """Return the function of three bits with a truth table; bit 4*a + 2*b + c is its result."""
    without, changed = _OF_TWO[table & 15], (table & 15) ^ (table >> 4)
    change = _OF_TWO[changed]
    if changed == 0:
        return lambda a, b, c: without(b, c)
    if changed == 15:
        return lambda a, b, c: without(b, c) ^ a
    if table & 15 == 0:
        return lambda a, b, c: change(b, c) & a
    return lambda a, b, c: without(b, c) ^ (change(b, c) & a)


@instruction("lop3")
def _lop3(ins: Instruction) -> Step:
    check_form(ins, (5, 6), "and", "or")
    table, target = ins.operands[4], ins.operands[0]
    if not isinstance(table, Immediate):
        raise unsupported(ins, "lop3 with a truth table that is no constant")
    function = _of_three(table.value & 0xFF)
    readers = tuple(read(operand, B32) for operand in ins.operands[1:4])
    if not isinstance(target, Pair):
        return combine(write(target), function, *readers)
    put, put_predicate = write(target.first), write(target.second)
    q = read(ins.operands[5], PREDICATE)
    join = np.logical_and if ins.has("and") else np.logical_or

    def step(machine: Machine, lanes: Lanes) -> None:
        lanes = machine.quick(lanes)
        result = function(*(reader(machine, lanes) for reader in readers))
        put_predicate(machine, lanes, join(result != 0, q(machine, lanes)))
        put(machine, lanes, result)

    return step


# What the modes of prmt select, for each value of the lower two bits of the third operand.
_SELECTORS = {
    "f4e": (0x3210, 0x4321, 0x5432, 0x6543),
    "b4e": (0x5670, 0x6701, 0x7012, 0x0123),
    "rc8": (0x0000, 0x1111, 0x2222, 0x3333),
    "ecl": (0x3210, 0x3211, 0x3222, 0x3333),
    "ecr": (0x0000, 0x1110, 0x2210, 0x3210),
    "rc16": (0x1010, 0x3232, 0x1010, 0x3232),
}


@instruction("prmt")
def _prmt(ins: Instruction) -> Step:
    check_form(ins, 4, *_SELECTORS)
    put, selector = write(ins.operands[0]), ins.operands[3]
    a, b, c = sources(ins, U32)
    mode = next((modifier for modifier in ins.modifiers if modifier in _SELECTORS), None)
    if mode is not None:
        table = np.array(_SELECTORS[mode], np.uint32)
        return combine(put, lambda x, y, z: _permute(x, y, table[z & np.uint32(3)]), a, b, c)
    if isinstance(selector, Immediate) and not selector.value & 0x8888:
        return combine(put, _fixed_permutation(selector.value), a, b)
    return combine(put, _permute, a, b, c)


def _permute(a: Array, b: Array, selectors: Array) -> Array:
    a, b, selectors = np.broadcast_arrays(a, b, selectors)
    found = np.stack([a, b], axis=1).view(np.uint8)
    nibbles = (selectors[:, None] >> np.arange(0, 16, 4, dtype=np.uint32)) & np.uint32(15)
    chosen = np.take_along_axis(found, (nibbles & np.uint32(7)).astype(np.intp), axis=1)
    signs = (chosen.view(np.int8) >> np.int8(7)).view(np.uint8)
    return np.where(nibbles & np.uint32(8), signs, chosen).view(np.uint32).reshape(-1)


def _fixed_permutation(selector: int) -> Function:
    """Return a permutation of bytes as shifts and masks: bytes that move alike move together."""
    masks: dict[tuple[bool, int], int] = {}
    for place in range(4):
        from_second, byte = divmod(selector >> 4 * place & 7, 4)
        move = (bool(from_second), place - byte)
        masks[move] = masks.get(move, 0) | 0xFF << 8 * place
    moves = [(second, 8 * by, np.uint32(mask)) for (second, by), mask in masks.items()]

    def function(a: Array, b: Array) -> Array:
        result = np.zeros(1, np.uint32)
        for second, by, mask in moves:
            word = b if second else a
            shifted = word << np.uint32(by) if by > 0 else word >> np.uint32(-by)
            result = result | (shifted & mask)
        return result

    return function
