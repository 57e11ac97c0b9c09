"""Moves: ``mov`` with packing and unpacking, ``cvta``, ``isspacep``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sdpakit.ptxemu.memory import (
    GLOBAL_BASE,
    LOCAL_BASE,
    PARAM_BASE,
    SHARED_BASE,
    SHARED_RANK_SHIFT,
)
from sdpakit.ptxemu.operands import read, write
from sdpakit.ptxemu.program import Instruction, Register, Sink, Symbol, Vector
from sdpakit.ptxemu.registry import Step, instruction, unsupported
from sdpakit.ptxemu.scalars import PREDICATE, TYPES, U64, Array
from sdpakit.ptxemu.steps.elementwise import bits_type, check_form, combine, copy

if TYPE_CHECKING:
    from sdpakit.ptxemu.machine import Lanes, Machine


@instruction("mov")
def _mov(ins: Instruction) -> Step:
    check_form(ins, 2)
    target, source = ins.operands
    if isinstance(source, Vector):
        return _pack(ins, source)
    if isinstance(target, Vector):
        return _unpack(ins, target)
    # Literals are read as the type says; registers keep their bits.
    kind = ins.type if not isinstance(source, Register) else bits_type(ins.type)
    return copy(write(target), read(source, kind))


def _part(ins: Instruction, vector: Vector) -> str:
    bits, odd = divmod(ins.type.bits, len(vector.items))
    name = f"b{bits}"
    if odd or name not in TYPES:
        raise unsupported(ins, f"mov of {len(vector.items)} parts of {ins.type.name}")
    return name


def _pack(ins: Instruction, source: Vector) -> Step:
    part = TYPES[_part(ins, source)]
    readers = [read(item, part) for item in source.items]
    target, count, dtype = ins.operands[0], len(readers), part.storage
    if isinstance(target, Sink):
        return lambda machine, lanes: None
    if not isinstance(target, Register) or target.type.bits != ins.type.bits:
        raise unsupported(ins, f"mov of parts to what is no register of {ins.type.bits} bits")
    slot, storage, put = target.slot, target.type.storage, write(target)

    def step(machine: Machine, lanes: Lanes) -> None:
        chosen, everybody = machine.quick(lanes), isinstance(lanes, slice)
        if everybody:
            parts = machine.registers[slot].view(dtype).reshape(-1, count)
        else:
            parts = np.empty((machine.size(lanes), count), dtype)
        for place, reader in enumerate(readers):
            parts[:, place] = reader(machine, chosen)
        if not everybody:
            put(machine, chosen, parts.view(storage).reshape(-1))

    return step


def _unpack(ins: Instruction, target: Vector) -> Step:
    dtype, count = TYPES[_part(ins, target)].storage, len(target.items)
    writers = [
        (place, write(item))
        for place, item in enumerate(target.items)
        if not isinstance(item, Sink)
    ]
    get = read(ins.operands[1], bits_type(ins.type))

    def step(machine: Machine, lanes: Lanes) -> None:
        lanes = machine.quick(lanes)
        parts = get(machine, lanes).view(dtype).reshape(-1, count)
        for place, put in writers:
            put(machine, lanes, parts[:, place])

    return step


# Generic addresses of these spaces are the space's own addresses.
_IDENTICAL = frozenset({"global", "const"})
_BASES = {"shared": SHARED_BASE, "local": LOCAL_BASE, "param": PARAM_BASE}


@instruction("cvta")
def _cvta(ins: Instruction) -> Step:
    spaces = ("shared::cta", "shared::cluster", "param::entry", *_IDENTICAL, *_BASES)
    check_form(ins, 2, "to", *spaces)
    space = ins.space.split("::")[0]
    put, get = write(ins.operands[0]), read(ins.operands[1], ins.type)
    if space in _IDENTICAL:
        return copy(put, get)
    if space not in _BASES or ins.type.bits != 64:
        raise unsupported(ins, f"cvta of {ins.type.bits}-bit addresses of the space {space}")
    base = np.uint64(_BASES[space])
    if ins.has("to"):
        return combine(put, lambda address: address - base, get)
    return combine(put, lambda address: address + base, get)


@instruction("isspacep")
def _isspacep(ins: Instruction) -> Step:
    put, get = write(ins.operands[0], PREDICATE), read(ins.operands[1], U64)
    space = ins.space
    if space == "const":
        return _is_constant(ins)
    if space not in _WINDOWS:
        raise unsupported(ins, f"isspacep of {space}, only of {', '.join(_WINDOWS)}")
    low, high = (np.uint64(bound) for bound in _WINDOWS[space])
    return combine(put, lambda address: (address >= low) & (address < high), get)


_WINDOWS = {
    "global": (GLOBAL_BASE, 2**64 - 1),
    "shared": (SHARED_BASE, SHARED_BASE + (1 << SHARED_RANK_SHIFT)),
    "shared::cta": (SHARED_BASE, SHARED_BASE + (1 << SHARED_RANK_SHIFT)),
    "shared::cluster": (SHARED_BASE, GLOBAL_BASE),
    "local": (LOCAL_BASE, SHARED_BASE),
    "param": (PARAM_BASE, LOCAL_BASE),
    "param::entry": (PARAM_BASE, LOCAL_BASE),
}


def _is_constant(ins: Instruction) -> Step:
    """Constant variables lie among global ones; the program knows where."""
    put, get = write(ins.operands[0], PREDICATE), read(ins.operands[1], U64)

    def step(machine: Machine, lanes: Lanes) -> None:
        offsets = get(machine, lanes) - np.uint64(machine.symbol(Symbol("", "const", 0)))
        inside: Array = np.zeros(offsets.shape, bool)
        for start, stop in machine.program.constant_ranges:
            inside |= (offsets >= np.uint64(start)) & (offsets < np.uint64(stop))
        put(machine, lanes, inside)

    return step
