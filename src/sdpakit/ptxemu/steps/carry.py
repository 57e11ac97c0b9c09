"""Arithmetic of several words: ``add.cc``, ``addc``, ``sub.cc``, ``subc``, ``mad.cc``, ``madc``.

The carry flag is one bit a lane, `Machine.carry`. A subtraction adds the complement, as hardware
does it, so the flag is set where there is no borrow: PTX says otherwise, but CUDA's division of
128-bit integers has ``addc`` read what ``subc.cc`` left.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from sdpakit.ptxemu.operands import Reader, read, write
from sdpakit.ptxemu.program import Instruction
from sdpakit.ptxemu.registry import Step, instruction
from sdpakit.ptxemu.scalars import Array
from sdpakit.ptxemu.steps.elementwise import bits_type, check_form, check_type
from sdpakit.ptxemu.steps.integer import high_product

if TYPE_CHECKING:
    from sdpakit.ptxemu.machine import Lanes, Machine

_TYPES = ("u32", "s32", "u64", "s64", "b32", "b64")
Chain = Callable[[Array, Array, Array], tuple[Array, Array]]


@instruction("addc")
def add(ins: Instruction) -> Step:
    """``add.cc``, ``addc``, ``addc.cc``."""
    check_form(ins, 3, "cc")
    kind = bits_type(ins.type)
    a, b = (read(operand, kind) for operand in ins.operands[1:])
    return _chain(ins, _sum, a, b)


@instruction("subc")
def subtract(ins: Instruction) -> Step:
    """``sub.cc``, ``subc``, ``subc.cc``."""
    check_form(ins, 3, "cc")
    kind = bits_type(ins.type)
    a, b = (read(operand, kind) for operand in ins.operands[1:])
    return _chain(ins, _difference, a, b)


@instruction("madc")
def multiply_add(ins: Instruction) -> Step:
    """``mad.cc``, ``madc``, ``madc.cc``."""
    check_form(ins, 4, "cc", "lo", "hi")
    part = high_product(ins.type) if ins.has("hi") else np.multiply
    a, b = (read(operand, ins.type) for operand in ins.operands[1:3])
    c = read(ins.operands[3], bits_type(ins.type))
    storage = ins.type.storage

    def product(machine: Machine, lanes: Lanes) -> Array:
        return part(a(machine, lanes), b(machine, lanes)).view(storage)

    return _chain(ins, _sum, product, c)


def _chain(ins: Instruction, function: Chain, a: Reader, b: Reader) -> Step:
    check_type(ins, ins.type, *_TYPES)
    put, keeps_carry = write(ins.operands[0], bits_type(ins.type)), ins.has("cc")
    takes_carry, start = ins.opcode.endswith("c"), np.array([function is _difference])

    def step(machine: Machine, lanes: Lanes) -> None:
        lanes = machine.quick(lanes)
        carry = machine.carry[lanes] if takes_carry else start
        result, carry_out = function(a(machine, lanes), b(machine, lanes), carry)
        put(machine, lanes, result)
        if keeps_carry:
            machine.carry[lanes] = carry_out

    return step


def _sum(a: Array, b: Array, carry: Array) -> tuple[Array, Array]:
    total = a + b + carry
    return total, (total < a) | (carry & (total == a))


def _difference(a: Array, b: Array, carry: Array) -> tuple[Array, Array]:
    return a - b - ~carry, (a > b) | (carry & (a == b))
