"""Steps that compute each lane for itself, put together from readers, a function and a writer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from sdpakit.ptxemu.operands import Reader, Writer, read, write
from sdpakit.ptxemu.program import Instruction, Operand, Register
from sdpakit.ptxemu.registry import Step, unsupported
from sdpakit.ptxemu.scalars import TYPES, Array, ScalarType

if TYPE_CHECKING:
    from sdpakit.ptxemu.machine import Lanes, Machine

Function: TypeAlias = Callable[..., Array]


def check_form(ins: Instruction, operands: int | tuple[int, ...], *modifiers: str) -> None:
    """Refuse other modifiers than these (and types), and other numbers of operands."""
    for modifier in ins.modifiers:
        if modifier not in modifiers and modifier not in TYPES:
            raise unsupported(ins, f"modifier .{modifier} of {ins.opcode}")
    counts = operands if isinstance(operands, tuple) else (operands,)
    if len(ins.operands) not in counts:
        raise unsupported(ins, f"form of {ins.opcode} with {len(ins.operands)} operands")
    if not ins.types:
        raise unsupported(ins, f"form of {ins.opcode} without a type")


def check_type(ins: Instruction, kind: ScalarType, *names: str) -> None:
    """Refuse an instruction of another type than these."""
    if kind.name not in names:
        raise unsupported(ins, f"{ins.opcode} of type {kind.name}, only of {', '.join(names)}")


def bits_type(kind: ScalarType) -> ScalarType:
    """Return the untyped bits of a type's width."""
    return TYPES[f"b{kind.bits}"] if kind.kind != "predicate" else kind


def sources(ins: Instruction, kind: ScalarType) -> tuple[Reader, ...]:
    """Return readers of all operands but the first as one type."""
    return tuple(read(operand, kind) for operand in ins.operands[1:])


def copy(put: Writer, get: Reader) -> Step:
    """Return the step that writes what is read."""

    def step(machine: Machine, lanes: Lanes) -> None:
        lanes = machine.quick(lanes)
        put(machine, lanes, get(machine, lanes))

    return step


def combine(put: Writer, function: Function, *readers: Reader) -> Step:
    """Return the step that writes a function of what is read."""
    # Written out for each count: building argument lists would cost as much as a small operation.
    if len(readers) == 1:
        return _combine_one(put, function, *readers)
    if len(readers) == 2:
        return _combine_two(put, function, *readers)
    if len(readers) == 3:
        return _combine_three(put, function, *readers)

    def step(machine: Machine, lanes: Lanes) -> None:
        lanes = machine.quick(lanes)
        put(machine, lanes, function(*(reader(machine, lanes) for reader in readers)))

    return step


def _combine_one(put: Writer, function: Function, a: Reader) -> Step:
    def step(machine: Machine, lanes: Lanes) -> None:
        lanes = machine.quick(lanes)
        put(machine, lanes, function(a(machine, lanes)))

    return step


def _combine_two(put: Writer, function: Function, a: Reader, b: Reader) -> Step:
    def step(machine: Machine, lanes: Lanes) -> None:
        lanes = machine.quick(lanes)
        put(machine, lanes, function(a(machine, lanes), b(machine, lanes)))

    return step


def _combine_three(put: Writer, function: Function, a: Reader, b: Reader, c: Reader) -> Step:
    def step(machine: Machine, lanes: Lanes) -> None:
        lanes = machine.quick(lanes)
        put(machine, lanes, function(a(machine, lanes), b(machine, lanes), c(machine, lanes)))

    return step


_EVERYBODY = slice(None)


def combine_ufunc(
    destination: Operand, kind: ScalarType, ufunc: np.ufunc, *readers: Reader
) -> Step:
    """Return the step of one NumPy function whose result has a type's value dtype.

    If many lanes run, it computes into the register itself: neither results nor operands are
    copied, and for the lanes that do not run nothing is written.
    """
    put = write(destination, kind)
    if not isinstance(destination, Register) or destination.type.storage != kind.storage:
        return combine(put, ufunc, *readers)
    slot, value = destination.slot, kind.value

    def step(machine: Machine, lanes: Lanes) -> None:
        if isinstance(lanes, slice):
            values = [reader(machine, lanes) for reader in readers]
            ufunc(*values, out=machine.registers[slot].view(value))
            return
        mask = machine.mask(lanes)
        if mask is None:
            put(machine, lanes, ufunc(*[reader(machine, lanes) for reader in readers]))
        else:
            values = [reader(machine, _EVERYBODY) for reader in readers]
            ufunc(*values, out=machine.registers[slot].view(value), where=mask)

    return step


def pairs(reader: Reader, dtype: np.dtype[Any]) -> Reader:
    """Return a reader of registers as the two values in each: an array of shape (n, 2)."""
    return lambda machine, lanes: reader(machine, lanes).view(dtype).reshape(-1, 2)


def put_pairs(destination: Operand, kind: ScalarType) -> Writer:
    """Return a writer of values of shape (n, 2) to registers of a packed type."""
    put, storage = write(destination, bits_type(kind)), kind.storage
    return lambda machine, lanes, values: put(
        machine, lanes, np.ascontiguousarray(values).view(storage).reshape(-1)
    )
