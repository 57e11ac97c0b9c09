"""Branches, and the end of threads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sdpakit.ptxemu.errors import OutOfBounds, Trap
from sdpakit.ptxemu.machine import DONE
from sdpakit.ptxemu.operands import read
from sdpakit.ptxemu.ordering import targets
from sdpakit.ptxemu.program import Instruction
from sdpakit.ptxemu.registry import Step, instruction, unsupported
from sdpakit.ptxemu.scalars import U32

if TYPE_CHECKING:
    from sdpakit.ptxemu.machine import Lanes, Machine


@instruction("bra")
def _bra(ins: Instruction) -> Step:
    (block,) = targets(ins.operands)

    def step(machine: Machine, lanes: Lanes) -> int:
        return block

    return step


@instruction("brx")
def _brx(ins: Instruction) -> Step:
    if not ins.has("idx"):
        raise unsupported(ins, "form of brx but brx.idx")
    index = read(ins.operands[0], U32)
    table = np.array(list(targets(ins.operands[1:])), np.intp)

    def step(machine: Machine, lanes: Lanes) -> None:
        chosen = index(machine, lanes)
        bad = chosen >= len(table)
        if bad.any():
            raise machine.fault(
                OutOfBounds,
                ins,
                lanes,
                f"index {chosen[bad][0]} of {len(table)} targets",
                "branch around the brx.idx if the index may be larger",
                np.broadcast_to(bad, machine.size(lanes)),
            )
        machine.position[lanes] = table[chosen]

    return step


@instruction("ret", "exit")
def _end(ins: Instruction) -> Step:
    def step(machine: Machine, lanes: Lanes) -> None:
        machine.state[lanes] = DONE

    return step


@instruction("trap")
def _trap(ins: Instruction) -> Step:
    def step(machine: Machine, lanes: Lanes) -> None:
        raise machine.fault(
            Trap,
            ins,
            lanes,
            "the kernel executed trap",
            "see what the kernel asserts before this instruction",
        )

    return step
