"""Lets registers that are never needed at the same time share a slot.

Compilers name a new register for nearly every value, a few thousand in a kernel of which a few
hundred are alive at once. A register is an array over all lanes, so sharing decides whether the
state of a batch fits the caches, and how many blocks fit a batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from heapq import heappop, heappush

import numpy as np

from sdpakit.ptxemu.ordering import successors
from sdpakit.ptxemu.program import (
    Address,
    Instruction,
    Negated,
    Operand,
    Pair,
    Program,
    Register,
    Vector,
    registers_in,
)
from sdpakit.ptxemu.scalars import ScalarType

# Opcodes whose first operand is written whole by each lane that executes them, and not read. All
# operands of others count as read, which at worst keeps a register apart that could share.
_WRITING = frozenset(
    opcode
    for line in (
        "abs activemask add addc and atom bfe bfi bfind bmsk brev clz cnot copysign cos cvt cvta",
        "div dp2a dp4a elect ex2 fma getctarank isspacep ld ldmatrix ldu lg2 lop3 mad mad24 madc",
        "mapa match max min mma mov movmatrix mul mul24 neg not or popc prmt rcp redux rem rsqrt",
        "sad selp set setp shf shfl shl shr sin slct sqrt sub subc szext tanh testp vote xor",
    )
    for opcode in line.split()
)


def share_slots(program: Program) -> Program:
    """Return a program with fewer slots that does the same.

    Registers that ``wgmma`` names keep a slot of their own, as it reads and writes them after
    it was executed; so do those that may be read before they are written.

    Parameters
    ----------
    program : Program
        Each register has a slot of its own.

    Returns
    -------
    Program
        Slots are shared only by registers whose storage has the same dtype.
    """
    types, slots = _assign(program, _spans(program))
    instructions = tuple(_renamed_instruction(ins, slots) for ins in program.instructions)
    return replace(program, registers=tuple(types), instructions=instructions)


# ----------------------------------------------------------------------------------- when they live


@dataclass(frozen=True, slots=True)
class _Effect:
    """Registers that are read before they are written, and those written, as sets of bits."""

    reads: int
    writes: int

    def before(self, alive: int) -> int:
        """Return what is alive before, given what is alive after."""
        return self.reads | (alive & ~self.writes)


def _effect(ins: Instruction) -> _Effect:
    if ins.guard is None and ins.opcode in _WRITING and ins.operands:
        return _Effect(_bits(ins.operands[1:]), _bits(_written(ins.operands[0])))
    return _Effect(_bits((*ins.operands, *_guard(ins))), 0)


def _guard(ins: Instruction) -> tuple[Register, ...]:
    return () if ins.guard is None else (ins.guard,)


def _written(operand: Operand) -> tuple[Operand, ...]:
    match operand:
        case Vector():
            return operand.items
        case Pair():
            return (operand.first, operand.second)
    return (operand,)


def _bits(operands: Iterable[Operand]) -> int:
    found = 0
    for register in registers_in(operands):
        found |= 1 << register.slot
    return found


def _joined(effects: Iterable[_Effect]) -> _Effect:
    """Return the effect of instructions one after the other."""
    reads = writes = 0
    for effect in effects:
        reads |= effect.reads & ~writes
        writes |= effect.writes
    return _Effect(reads, writes)


def _alive(program: Program, effects: list[_Effect]) -> list[tuple[int, int]]:
    """Return what is alive at the beginning and at the end of each block."""
    blocks = [_joined(effects[block.start : block.stop]) for block in program.blocks]
    after = [successors(program, number) for number in range(len(blocks))]
    begin, end = [0] * (len(blocks) + 1), [0] * len(blocks)
    changed = True
    while changed:
        changed = False
        for number in range(len(blocks) - 1, -1, -1):
            alive = 0
            for following in after[number]:
                alive |= begin[following]
            end[number] = alive
            alive = blocks[number].before(alive)
            changed |= alive != begin[number]
            begin[number] = alive
    return list(zip(begin[:-1], end, strict=True))


def _spans(program: Program) -> list[tuple[int, int]]:
    """Return the first and last instruction at which each register must be kept."""
    effects = [_effect(ins) for ins in program.instructions]
    alive = _alive(program, effects)
    kept = [effect.reads | effect.writes for effect in effects]
    for block, (begin, end) in zip(program.blocks, alive, strict=True):
        kept[block.start] |= begin
        kept[block.stop - 1] |= end
    always = alive[0][0] if alive else 0
    for ins, effect in zip(program.instructions, effects, strict=True):
        if ins.opcode == "wgmma":
            always |= effect.reads
    if kept:
        kept[0] |= always
        kept[-1] |= always
    count = len(program.registers)
    first, last = _met(kept, count), _met(kept[::-1], count)
    return [(start, len(kept) - 1 - back) for start, back in zip(first, last, strict=True)]


def _met(kept: list[int], count: int) -> list[int]:
    """Return where each register is met first."""
    found, seen = [0] * count, 0
    for at, bits in enumerate(kept):
        for slot in _ones(bits & ~seen):
            found[slot] = at
        seen |= bits
    return found


def _ones(bits: int) -> Iterator[int]:
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest


# ---------------------------------------------------------------------------------- who shares what


def _assign(program: Program, spans: list[tuple[int, int]]) -> tuple[list[ScalarType], list[int]]:
    """Return the types of the new slots, and the new slot of each old one."""
    types: list[ScalarType] = []
    table = [0] * len(spans)
    free: dict[np.dtype[np.generic], list[int]] = {}
    busy: list[tuple[int, int]] = []  # until when, and the slot
    for old in sorted(range(len(spans)), key=lambda slot: spans[slot]):
        begin, end = spans[old]
        while busy and busy[0][0] < begin:
            slot = heappop(busy)[1]
            free[types[slot].storage].append(slot)
        unused = free.setdefault(program.registers[old].storage, [])
        if unused:
            new = unused.pop()  # the one used last is the likeliest to be in a cache
        else:
            new = len(types)
            types.append(program.registers[old])
        table[old] = new
        heappush(busy, (end, new))
    return types, table


def _renamed_instruction(ins: Instruction, slots: list[int]) -> Instruction:
    return Instruction(
        ins.opcode,
        ins.modifiers,
        tuple([_renamed(operand, slots) for operand in ins.operands]),
        None if ins.guard is None else _moved(ins.guard, slots),
        ins.guard_negated,
        ins.line,
        ins.text,
    )


def _moved(register: Register, slots: list[int]) -> Register:
    return Register(register.name, slots[register.slot], register.type)


def _renamed(operand: Operand, slots: list[int]) -> Operand:
    match operand:
        case Register():
            return _moved(operand, slots)
        case Address():
            coordinates = tuple(_renamed(each, slots) for each in operand.coordinates)
            return Address(_renamed(operand.base, slots), operand.offset, coordinates)
        case Vector():
            return Vector(tuple(_renamed(each, slots) for each in operand.items))
        case Pair():
            return Pair(_renamed(operand.first, slots), _renamed(operand.second, slots))
        case Negated():
            return Negated(_renamed(operand.operand, slots))
    return operand
