"""``tensormap``: kernels that change tensor maps, or make them from zeros, in memory."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from sdpakit.ptxemu.operands import address, full, read
from sdpakit.ptxemu.program import Immediate, Instruction, Operand
from sdpakit.ptxemu.registry import Step, instruction, unsupported
from sdpakit.ptxemu.scalars import Array
from sdpakit.ptxemu.spaces import Access
from sdpakit.ptxemu.tensormap import CHUNK, MAP_BYTES, field, field_code, mark

if TYPE_CHECKING:
    from sdpakit.ptxemu.machine import Lanes, Machine

# What the emulator has one value for.
_FIXED = {"element_stride": 1, "interleave_layout": 0, "swizzle_atomicity": 0}


@instruction("tensormap")
def tensor_map(ins: Instruction) -> Step:
    """``tensormap.replace`` and ``tensormap.cp_fenceproxy``."""
    if ins.modifiers[:2] == ("replace", "tile"):
        return _replace(ins, ins.modifiers[2])
    if ins.modifiers[0] == "cp_fenceproxy":
        return _copy(ins)
    raise unsupported(ins, f"tensormap.{'.'.join(ins.modifiers[:2])}")


def _replace(ins: Instruction, name: str) -> Step:
    ordinal = ins.operands[1] if len(ins.operands) == 3 else Immediate(0)
    if not isinstance(ordinal, Immediate):
        raise unsupported(ins, "dimension that is known only when the kernel runs")
    values = read(ins.operands[-1], ins.type)
    if name in _FIXED:
        return _require(ins, name, ins.operands[-1])
    found = field(name, ordinal.value)
    if found is None:
        raise unsupported(ins, f"field {name!r} of a tensor map")
    offset, dtype = found
    addresses, access, begin = address(ins.operands[0]), Access(ins), mark()

    def step(machine: Machine, lanes: Lanes) -> None:
        at, size = addresses(machine, lanes), machine.size(lanes)
        codes = [_code(ins, name, int(value)) for value in values(machine, lanes)]
        data = full(np.array(codes, dtype), size).copy().view(np.uint8)
        access.store(machine, lanes, at + offset, data.reshape(size, -1))
        access.store(machine, lanes, at, np.broadcast_to(begin, (size, len(begin))))

    return step


def _code(ins: Instruction, name: str, value: int) -> int:
    code = field_code(name, value)
    if code is None:
        raise unsupported(ins, f"{name} {value} of a tensor map")
    return code


def _require(ins: Instruction, name: str, operand: Operand) -> Step:
    """Return the step of a field that has to have one value."""
    values = read(operand, ins.type)

    def step(machine: Machine, lanes: Lanes) -> None:
        if (values(machine, lanes) != _FIXED[name]).any():
            raise unsupported(ins, f"{name} of a tensor map other than {_FIXED[name]}")

    return step


def _copy(ins: Instruction) -> Step:
    """Return the step of a warp's copy of one map from shared to global memory."""
    target, source = (address(operand) for operand in ins.operands[:2])
    write = Access(ins)
    load = Access(replace(ins, modifiers=tuple(m for m in ins.modifiers if m != "global")))

    def step(machine: Machine, lanes: Lanes) -> None:
        chosen = _first_of_warps(machine, lanes)
        to, start = target(machine, chosen), source(machine, chosen)
        for at in range(0, MAP_BYTES, CHUNK):
            write.store(machine, chosen, to + at, load.load(machine, chosen, start + at, CHUNK))

    return step


def _first_of_warps(machine: Machine, lanes: Lanes) -> Array:
    indices = machine.indices(lanes)
    _, first = np.unique(machine.lane_warp[indices], return_index=True)
    return indices[first]
