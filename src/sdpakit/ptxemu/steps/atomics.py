"""Atomic operations: ``atom`` and ``red``.

Lanes that name the same address take their turns in the order of lanes. An operation on packed
values or on a vector is one on each element, as PTX promises no more than that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sdpakit.ptxemu.operands import address, read, write
from sdpakit.ptxemu.program import Instruction
from sdpakit.ptxemu.registry import Step, instruction, unsupported
from sdpakit.ptxemu.scalars import TYPES, Array, ScalarType, bf16_to_f32, f32_to_bf16
from sdpakit.ptxemu.spaces import Access
from sdpakit.ptxemu.steps.memory import check_modifiers, columns, items

if TYPE_CHECKING:
    from sdpakit.ptxemu.machine import Lanes, Machine

# Returns new values of memory: of the old ones and of the operands, arrays of one shape.
Update: TypeAlias = Callable[[Array, tuple[Array, ...]], Array]
Indices: TypeAlias = NDArray[np.int64]

_ELEMENTS = {"f16x2": "f16", "bf16x2": "bf16", "u16x2": "u16", "s16x2": "s16"}
_ORDERS = frozenset({"acq_rel", "noftz", "v2", "v4", "v8"})
_OPERATIONS = frozenset({"add", "min", "max", "and", "or", "xor", "inc", "dec", "exch", "cas"})


def _bf16(operation: np.ufunc) -> Update:
    def update(old: Array, values: tuple[Array, ...]) -> Array:
        return f32_to_bf16(operation(bf16_to_f32(old), bf16_to_f32(values[0])))

    return update


def _plain(operation: np.ufunc) -> Update:
    return lambda old, values: np.asarray(operation(old, values[0]))


def _exchange(old: Array, values: tuple[Array, ...]) -> Array:
    return values[0]


def _compare_and_swap(old: Array, values: tuple[Array, ...]) -> Array:
    return np.where(old == values[0], values[1], old)


def _increment(old: Array, values: tuple[Array, ...]) -> Array:
    return np.where(old >= values[0], 0, old + np.uint32(1)).astype(np.uint32)


def _decrement(old: Array, values: tuple[Array, ...]) -> Array:
    out = (old == 0) | (old > values[0])
    return np.where(out, values[0], old - np.uint32(1)).astype(np.uint32)


_OTHERS: dict[str, Update] = {
    "exch": _exchange,
    "cas": _compare_and_swap,
    "inc": _increment,
    "dec": _decrement,
}
_BITWISE = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}
_INTEGER = {"add": np.add, "min": np.minimum, "max": np.maximum}
_FLOAT = {"add": np.add, "min": np.fmin, "max": np.fmax}  # the number if the other is NaN


@dataclass(frozen=True)
class Operation:
    """One operation on elements of a type; `ufunc` if one of NumPy's does it."""

    name: str
    kind: ScalarType
    update: Update
    ufunc: np.ufunc | None

    def apply(self, memory: Array, index: Indices, values: tuple[Array, ...]) -> Array:
        """Update elements of memory in turn and return what each found.

        Parameters
        ----------
        memory : numpy.ndarray
            Elements.
        index : numpy.ndarray
            Which elements, in the order of turns.
        values : tuple of numpy.ndarray
            Operands of each turn.
        """
        if len(index) == 1 or len(np.unique(index)) == len(index):
            old = memory[index]
            memory[index] = self.update(old, values)
            return old
        order = np.argsort(index, kind="stable")
        _, first, count = np.unique(index[order], return_index=True, return_counts=True)
        found = np.empty(len(index), memory.dtype)
        if self.ufunc is not None and len(first) < count.max():
            for start, turns in zip(first.tolist(), count.tolist(), strict=True):
                self._in_a_row(memory, index, values[0], order[start : start + turns], found)
            return found
        for turn in range(int(count.max())):
            chosen = order[first[count > turn] + turn]
            at = index[chosen]
            found[chosen] = memory[at]
            memory[at] = self.update(found[chosen], tuple(value[chosen] for value in values))
        return found

    def _in_a_row(
        self, memory: Array, index: Indices, values: Array, chosen: Indices, found: Array
    ) -> None:
        """Let all turns of one element run as a scan."""
        assert self.ufunc is not None
        at = index[chosen[0]]
        row = np.concatenate((memory[at : at + 1], values[chosen]))
        results = self.ufunc.accumulate(row, dtype=row.dtype)
        found[chosen], memory[at] = results[:-1], results[-1]


def _operation(ins: Instruction) -> Operation:
    name = next((modifier for modifier in ins.modifiers if modifier in _OPERATIONS), "")
    kind = TYPES[_ELEMENTS.get(ins.type.name, ins.type.name)]
    if name in _OTHERS:
        return Operation(name, kind, _OTHERS[name], None)
    if name in _BITWISE:
        return Operation(name, kind, _plain(_BITWISE[name]), _BITWISE[name])
    table = _FLOAT if kind.kind == "float" else _INTEGER
    if name not in table:
        raise unsupported(ins, f"{ins.opcode} without an operation of {sorted(_OPERATIONS)}")
    if kind.name == "bf16":
        return Operation(name, kind, _bf16(table[name]), None)
    return Operation(name, kind, _plain(table[name]), table[name])


@instruction("atom", "red")
def atomic(ins: Instruction) -> Step:
    """``atom``, ``red``."""
    if ins.has("async"):
        raise unsupported(ins, "asynchronous red")
    check_modifiers(ins, _OPERATIONS | _ORDERS)
    operation, kind = _operation(ins), ins.type
    has_result = ins.opcode == "atom"
    where, *rest = ins.operands[has_result:]
    operands = rest[: 1 + (operation.name == "cas")]  # a cache policy may follow
    readers = [[read(item, kind) for item in items(ins, operand)] for operand in operands]
    writers = [write(item, kind) for item in items(ins, ins.operands[0])] if has_result else []
    addresses, access, sees = address(where), Access(ins), operation.kind.value

    def step(machine: Machine, lanes: Lanes) -> None:
        values = [columns(machine, lanes, part, kind).view(sees) for part in readers]
        old = np.empty_like(values[0])
        width = old.shape[1] * sees.itemsize
        for part in access.parts(machine, lanes, addresses(machine, lanes)):
            offsets = part.space.update(ins, part.lanes, part.addresses, width)
            index = offsets[:, None] // sees.itemsize + np.arange(old.shape[1])
            mine = tuple(value[part.chosen].ravel() for value in values)
            found = operation.apply(part.space.memory().view(sees), index.ravel(), mine)
            old[part.chosen] = found.reshape(index.shape)
        results = kind.see(old.view(kind.storage))
        for column, writer in enumerate(writers):
            writer(machine, lanes, results[:, column])

    return step
