"""Loads and stores."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sdpakit.ptxemu.operands import address, full, read, write
from sdpakit.ptxemu.program import Instruction, Operand, Vector
from sdpakit.ptxemu.registry import Step, instruction
from sdpakit.ptxemu.spaces import Access

if TYPE_CHECKING:
    from sdpakit.ptxemu.machine import Lanes, Machine


def _items(operand: Operand) -> tuple[Operand, ...]:
    return operand.items if isinstance(operand, Vector) else (operand,)


@instruction("ld")
def load(ins: Instruction) -> Step:
    """``ld``."""
    kind = ins.type
    writers = [write(item, kind) for item in _items(ins.operands[0])]
    where = address(ins.operands[1])
    width = kind.size * len(writers)
    access = Access(ins)

    def step(machine: Machine, lanes: Lanes) -> None:
        raw = access.load(machine, lanes, where(machine, lanes), width)
        columns = kind.see(raw.view(kind.storage))
        for column, writer in enumerate(writers):
            writer(machine, lanes, columns[:, column])

    return step


@instruction("st")
def store(ins: Instruction) -> Step:
    """``st``."""
    kind = ins.type
    readers = [read(item, kind) for item in _items(ins.operands[1])]
    where = address(ins.operands[0])
    access = Access(ins)

    def step(machine: Machine, lanes: Lanes) -> None:
        size = machine.size(lanes)
        data = np.empty((size, len(readers)), kind.storage)
        for column, reader in enumerate(readers):
            data[:, column] = kind.store(full(reader(machine, lanes), size))
        access.store(machine, lanes, where(machine, lanes), data.view(np.uint8))

    return step
