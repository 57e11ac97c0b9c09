"""How steps read and write operands.

A `Reader` returns one value a lane, or an array of one element where all lanes see the same. A
`Writer` takes either. Values have the dtype `ScalarType.value` of the type that was asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from sdpakit.ptxemu.errors import UnsupportedInstruction
from sdpakit.ptxemu.program import (
    Address,
    FloatImmediate,
    Immediate,
    Negated,
    Operand,
    Register,
    Sink,
    Special,
    Symbol,
)
from sdpakit.ptxemu.scalars import PREDICATE, U64, Array, ScalarType, bf16_to_f32, f32_to_bf16
from sdpakit.ptxemu.warps import WARP

if TYPE_CHECKING:
    from sdpakit.ptxemu.machine import Lanes, Machine

Reader: TypeAlias = "Callable[[Machine, Lanes], Array]"
Writer: TypeAlias = "Callable[[Machine, Lanes, Array], None]"


def read(operand: Operand, kind: ScalarType) -> Reader:
    """Return a reader of an operand as a type.

    A register of another width is cut or extended with zeros, as ``ld``, ``st`` and ``cvt`` want.
    """
    match operand:
        case Register():
            return _register_reader(operand, kind)
        case Immediate() | FloatImmediate():
            value = constant(operand, kind)
            return lambda machine, lanes: value
        case Special():
            name = operand.name
            return lambda machine, lanes: kind.see(
                machine.special(name, lanes).astype(kind.storage, copy=False)
            )
        case Symbol():
            symbol = operand
            return lambda machine, lanes: kind.see(
                np.array([machine.symbol(symbol)], np.uint64).astype(kind.storage)
            )
        case Negated():
            inner = read(operand.operand, PREDICATE)
            return lambda machine, lanes: ~inner(machine, lanes)
    raise UnsupportedInstruction(f"an operand {operand} cannot be read as {kind.name}")


def _register_reader(register: Register, kind: ScalarType) -> Reader:
    get = _taker(register)
    if register.type.storage == kind.storage:
        if kind.storage == kind.value:
            return get
        value = kind.value
        return lambda machine, lanes: get(machine, lanes).view(value)
    return lambda machine, lanes: kind.see(get(machine, lanes).astype(kind.storage))


def _taker(register: Register) -> Reader:
    """Return a reader of what is stored; whole warps are copied faster than single lanes."""
    slot, storage = register.slot, register.type.storage
    row = np.dtype((np.void, WARP * storage.itemsize))

    def get(machine: Machine, lanes: Lanes) -> Array:
        if isinstance(lanes, slice):
            return machine.registers[slot]
        warps = machine.whole_warps.get(id(lanes))
        if warps is None:
            return machine.registers[slot][lanes]
        return machine.registers[slot].view(row)[warps].view(storage)

    return get


def constant(operand: Immediate | FloatImmediate, kind: ScalarType) -> Array:
    """Return an immediate as an array of one value of a type."""
    if isinstance(operand, FloatImmediate):
        return _float_constant(operand, kind)
    if kind.kind == "predicate":
        return np.array([bool(operand.value)])
    if kind.value.kind == "f":
        return np.array([operand.value], kind.value)
    bits = operand.value & ((1 << kind.bits) - 1)
    return kind.see(np.array([bits], kind.storage))


def _float_constant(operand: FloatImmediate, kind: ScalarType) -> Array:
    if operand.bits is not None and operand.width == kind.bits:
        return kind.see(np.array([operand.bits], kind.storage))
    if kind.name == "bf16":
        return f32_to_bf16(np.array([operand.value], np.float32))
    if kind.value.kind != "f":
        raise UnsupportedInstruction(f"the literal {operand.value} is no {kind.name}")
    return np.array([operand.value], kind.value)


def read_float(operand: Operand, kind: ScalarType) -> Reader:
    """Return a reader of a float as NumPy computes with it: ``bf16`` comes as float32."""
    reader = read(operand, kind)
    if kind.name != "bf16":
        return reader
    return lambda machine, lanes: bf16_to_f32(reader(machine, lanes))


def write(operand: Operand, kind: ScalarType | None = None) -> Writer:
    """Return a writer of a destination.

    Parameters
    ----------
    operand : Operand
        A register, or ``_``.
    kind : ScalarType, optional
        What the values are of. A wider register takes them extended: by their sign if the type is
        signed, else by zeros, as ``ld`` and ``mul.wide`` do. Without it, values have the
        register's width.
    """
    if isinstance(operand, Sink):
        return lambda machine, lanes, values: None
    if not isinstance(operand, Register):
        raise UnsupportedInstruction(f"{operand} cannot be written")
    slot, storage = operand.slot, operand.type.storage
    row = np.dtype((np.void, WARP * storage.itemsize))

    def put(machine: Machine, lanes: Lanes, values: Array) -> None:
        if values.dtype != storage:
            values = _fit(values, storage)
        if isinstance(lanes, slice):
            machine.registers[slot][...] = values
            return
        warps = machine.whole_warps.get(id(lanes))
        if warps is None or len(values) == 1:
            machine.registers[slot][lanes] = values
        else:
            machine.registers[slot].view(row)[warps] = np.ascontiguousarray(values).view(row)

    return put


def _fit(values: Array, storage: np.dtype[np.generic]) -> Array:
    if values.dtype.itemsize == storage.itemsize and storage.kind != "b":
        return np.ascontiguousarray(values).view(storage)
    if values.dtype.kind == "i":  # the sign goes with it
        return values.astype(f"i{storage.itemsize}").view(storage)
    if values.dtype.kind == "f":  # a narrow float in a wide register keeps its bits
        values = np.ascontiguousarray(values).view(f"u{values.dtype.itemsize}")
    return values.astype(storage)


def address(operand: Operand) -> Reader:
    """Return a reader of an address operand: int64, one element a lane, not to be written to."""
    if not isinstance(operand, Address):
        raise UnsupportedInstruction(f"{operand} is no address")
    base, offset = operand.base, operand.offset
    width = base.type if isinstance(base, Register) else U64
    reader = read(base, width)

    def resolve(machine: Machine, lanes: Lanes) -> Array:
        found = reader(machine, lanes)
        found = found.view(np.int64) if found.itemsize == 8 else found.astype(np.int64)
        return full(found + offset if offset else found, machine.size(lanes))

    return resolve


def full(values: Array, size: int) -> Array:
    """Return values with one element a lane."""
    return values if values.shape[0] == size else np.broadcast_to(values, (size,))
