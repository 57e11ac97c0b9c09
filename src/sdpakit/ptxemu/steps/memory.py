"""Loads and stores of all state spaces, and hints about caches, which change no values."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sdpakit.ptxemu.operands import Reader, address, full, read, write
from sdpakit.ptxemu.program import Address, Instruction, Operand, Symbol, Vector
from sdpakit.ptxemu.registry import Step, instruction, unsupported
from sdpakit.ptxemu.scalars import B64, TYPES, Array, ScalarType
from sdpakit.ptxemu.spaces import Access

if TYPE_CHECKING:
    from sdpakit.ptxemu.machine import Lanes, Machine

_VECTORS = {"v2": 2, "v4": 4, "v8": 8}
_WIDEST = 32

# What memory models and caches hear: here all lanes see all writes at once, in order.
_ORDERS = frozenset({"weak", "volatile", "relaxed", "acquire", "release", "mmio"})
_SCOPES = frozenset({"cta", "cluster", "gpu", "sys"})
_CACHES = frozenset({"ca", "cg", "cs", "lu", "cv", "nc", "wb", "wt", "unified"})
_SPACES = frozenset({"global", "shared", "local", "param", "const"})
_SILENT = _ORDERS | _SCOPES | _CACHES


def check_modifiers(ins: Instruction, known: frozenset[str]) -> None:
    """Refuse an instruction with a modifier that is neither known nor without effect here."""
    for modifier in ins.modifiers:
        head = modifier.split("::")[0]
        silent = modifier in _SILENT or head in _SPACES or head in {"L1", "L2"}
        if not silent and modifier not in known and modifier not in TYPES:
            raise unsupported(ins, f"{ins.opcode} with .{modifier}")
    if not ins.types or ins.type.kind == "predicate":
        raise unsupported(ins, f"{ins.opcode} of this type")


def items(ins: Instruction, operand: Operand) -> tuple[Operand, ...]:
    """Return the registers of an operand that is a vector if the instruction says so."""
    count = next((_VECTORS[name] for name in ins.modifiers if name in _VECTORS), 1)
    found = operand.items if isinstance(operand, Vector) else (operand,)
    if len(found) != count:
        raise unsupported(ins, f"{ins.opcode} of {count} elements with {len(found)} operands")
    return found


@instruction("ld", "ldu")
def load(ins: Instruction) -> Step:
    """``ld``, ``ldu``."""
    check_modifiers(ins, frozenset(_VECTORS))
    kind = ins.type
    writers = [write(item, kind) for item in items(ins, ins.operands[0])]
    width = kind.size * len(writers)
    if width > _WIDEST:
        raise unsupported(ins, f"load of {width} bytes")
    where, access = ins.operands[1], Access(ins)
    if isinstance(where, Address) and isinstance(where.base, Symbol) and ins.space[:5] == "param":
        return _load_parameter(ins, where, kind)
    addresses = address(where)

    def step(machine: Machine, lanes: Lanes) -> None:
        raw = access.load(machine, lanes, addresses(machine, lanes), width)
        values = kind.see(raw.view(kind.storage))
        for column, writer in enumerate(writers):
            writer(machine, lanes, values[:, column])

    return step


def _load_parameter(ins: Instruction, where: Address, kind: ScalarType) -> Step:
    """Return the step of a load from a parameter by its name, which is the same for all lanes."""
    writers = [write(item, kind) for item in items(ins, ins.operands[0])]
    assert isinstance(where.base, Symbol)
    offset = np.array([where.base.offset + where.offset])
    width = kind.size * len(writers)

    def step(machine: Machine, lanes: Lanes) -> None:
        parameters = machine.memory.parameters
        at = int(parameters.read(ins, lanes, offset, width)[0])
        values = kind.see(parameters.memory[at : at + width].view(kind.storage))
        for column, writer in enumerate(writers):
            writer(machine, lanes, values[column : column + 1])

    return step


@instruction("st")
def store(ins: Instruction) -> Step:
    """``st``."""
    if ins.has("async", "bulk"):
        raise unsupported(ins, "asynchronous st")
    check_modifiers(ins, frozenset(_VECTORS))
    kind = ins.type
    readers = [read(item, kind) for item in items(ins, ins.operands[1])]
    if kind.size * len(readers) > _WIDEST:
        raise unsupported(ins, f"store of {kind.size * len(readers)} bytes")
    addresses, access = address(ins.operands[0]), Access(ins)

    def step(machine: Machine, lanes: Lanes) -> None:
        data = columns(machine, lanes, readers, kind)
        access.store(machine, lanes, addresses(machine, lanes), data.view(np.uint8))

    return step


def columns(machine: Machine, lanes: Lanes, readers: list[Reader], kind: ScalarType) -> Array:
    """Return what readers read, stored, as the columns of an array with one row a lane."""
    size = machine.size(lanes)
    if len(readers) == 1:
        values = full(readers[0](machine, lanes), size)
        return np.ascontiguousarray(kind.store(values)).reshape(size, 1)
    data = np.empty((size, len(readers)), kind.storage)
    for column, reader in enumerate(readers):
        data[:, column] = kind.store(reader(machine, lanes))
    return data


@instruction("prefetch", "prefetchu", "applypriority", "discard")
def hint(ins: Instruction) -> Step:
    """``prefetch`` and others that say how memory will be used."""
    return lambda machine, lanes: None


@instruction("createpolicy")
def create_policy(ins: Instruction) -> Step:
    """``createpolicy``: policies are numbers that nobody looks at."""
    writer, policy = write(ins.operands[0], B64), np.zeros(1, np.uint64)
    return lambda machine, lanes: writer(machine, lanes, policy)
