"""Steps of ``wmma``, the products of warps whose fragments PTX leaves opaque.

What thread and register hold which element is unspecified, so here a fragment is the matrix in
row-major order, thread after thread: thread t has values ``t * n`` to ``t * n + n - 1``, counted
round and round where a fragment has more room than the matrix (that of ``f16`` has). Kernels may
only treat all elements alike, and any layout serves them. Sums are in the order of ``mma``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sdpakit.ptxemu.elements import ELEMENTS, Element, add, encode
from sdpakit.ptxemu.errors import Misaligned
from sdpakit.ptxemu.operands import Reader, address, read
from sdpakit.ptxemu.program import Operand, Register, Vector
from sdpakit.ptxemu.registry import Step, instruction, unsupported
from sdpakit.ptxemu.scalars import U32, Array
from sdpakit.ptxemu.spaces import Access
from sdpakit.ptxemu.teams import WARP, Team, assemble

if TYPE_CHECKING:
    from sdpakit.ptxemu.machine import Lanes, Machine
    from sdpakit.ptxemu.program import Instruction

_SHAPE = re.compile(r"m(\d+)n(\d+)k(\d+)")
_EVERY = frozenset({(16, 16, 16), (32, 8, 16), (8, 32, 16)})
_SHAPES = {
    **dict.fromkeys(("f16", "bf16", "s8", "u8"), _EVERY),
    "tf32": frozenset({(16, 16, 8)}),
    "f64": frozenset({(8, 8, 4)}),
}
_SUMS = {"f16": {"f16", "f32"}, "bf16": {"f32"}, "tf32": {"f32"}, "f64": {"f64"}}
_SUMS |= {"s8": {"s32"}, "u8": {"s32"}}
_BASE_ALIGNMENT, _STRIDE_ALIGNMENT = 32, 16  # bytes


@dataclass(frozen=True, slots=True)
class _Fragment:
    """A matrix in registers: its size, its elements, and the slots."""

    rows: int
    columns: int
    element: Element
    slots: tuple[int, ...]

    @property
    def values(self) -> int:
        """Elements that a thread holds, copies included."""
        return len(self.slots) * self.element.per_register

    def coordinates(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return row and column of each value (first axis) of each thread."""
        linear = np.arange(WARP) * self.values + np.arange(self.values)[:, None]
        row, column = np.divmod(linear % (self.rows * self.columns), self.columns)
        return row, column

    def read(self, machine: Machine, team: Team) -> Array:
        """Return the matrices of warps as numbers."""
        words = np.stack([team.take(machine.registers[slot]) for slot in self.slots], axis=2)
        raw = words.view(self.element.raw).reshape(team.count, -1)[:, : self.rows * self.columns]
        return self.element.decode(raw.reshape(team.count, self.rows, self.columns))

    def write(self, machine: Machine, team: Team, values: Array) -> None:
        """Set the registers to raw values of each thread: shape (warps, threads, values)."""
        words = np.ascontiguousarray(values).view(f"u{max(self.element.size, 4)}")
        for index, slot in enumerate(self.slots):
            team.put(machine.registers[slot], words[:, :, index])


def _fragment(ins: Instruction, operand: Operand, rows: int, columns: int, kind: str) -> _Fragment:
    items = operand.items if isinstance(operand, Vector) else (operand,)
    slots = tuple(item.slot for item in items if isinstance(item, Register))
    found = _Fragment(rows, columns, ELEMENTS[kind], slots)
    least = rows * columns // WARP
    if len(slots) != len(items) or found.values < least or found.values % least:
        raise unsupported(ins, f"wmma with {len(items)} registers for {rows}x{columns} of {kind}")
    return found


def _sizes(ins: Instruction) -> tuple[int, int, int]:
    shapes = [found for part in ins.modifiers if (found := _SHAPE.fullmatch(part))]
    if len(shapes) != 1:
        raise unsupported(ins, "such form of wmma")
    m, n, k = (int(size) for size in shapes[0].groups())
    return m, n, k


@instruction("wmma")
def wmma(ins: Instruction) -> Step:
    """Build a load, store or product of opaque fragments."""
    match ins.modifiers[:2]:
        case ("mma", "sync"):
            return _product(ins)
        case ("load", "a" | "b" | "c") | ("store", "d"):
            return _Transfer(ins).step
    raise unsupported(ins, f"wmma.{'.'.join(ins.modifiers[:2])}")


def _product(ins: Instruction) -> Step:
    m, n, k = _sizes(ins)
    kinds = [part for part in ins.modifiers if part in ELEMENTS]
    if len(kinds) == 2:  # halves need not be said
        kinds = [kinds[0], "f16", "f16", kinds[1]]
    if len(kinds) != 4 or kinds[1] != kinds[2] or (m, n, k) not in _SHAPES.get(kinds[1], ()):
        raise unsupported(ins, f"wmma of this shape and these types; it has {', '.join(_SHAPES)}")
    if not {kinds[0], kinds[3]} <= _SUMS[kinds[1]]:
        raise unsupported(ins, f"wmma of {kinds[1]} with such accumulators")
    sizes = ((m, n), (m, k), (k, n), (m, n))
    result, left, right, addend = (
        _fragment(ins, operand, *size, kind)
        for operand, size, kind in zip(ins.operands, sizes, kinds, strict=True)
    )
    saturates = ins.has("satfinite")

    def step(machine: Machine, lanes: Lanes) -> None:
        team = assemble(machine, ins, lanes, WARP)
        products = np.matmul(left.read(machine, team), right.read(machine, team))
        total = add(products, addend.read(machine, team), kinds[0], saturates=saturates)
        raw = encode(kinds[0], total).reshape(team.count, WARP, result.values)
        result.write(machine, team, raw)
        machine.counters.matrix_flops += 2 * m * n * k * team.count

    return step


class _Transfer:
    """``wmma.load`` or ``wmma.store``: where each value of each thread is in memory."""

    def __init__(self, ins: Instruction) -> None:
        m, n, k = _sizes(ins)
        self._ins, self._loads = ins, ins.modifiers[0] == "load"
        rows, columns = {"a": (m, k), "b": (k, n), "c": (m, n), "d": (m, n)}[ins.modifiers[1]]
        kinds = [part for part in ins.modifiers if part in ELEMENTS]
        if len(kinds) != 1 or not ins.has("row", "col"):
            raise unsupported(ins, "such form of wmma")
        registers, memory = ins.operands[:2] if self._loads else ins.operands[1::-1]
        self._fragment = _fragment(ins, registers, rows, columns, kinds[0])
        row, column = self._fragment.coordinates()
        self._along, self._across = (column, row) if ins.has("row") else (row, column)
        self._address = address(memory)
        self._dense = columns if ins.has("row") else rows
        self._stride: Reader | None = read(ins.operands[2], U32) if len(ins.operands) > 2 else None
        self._access = Access(ins)

    def _addresses(self, machine: Machine, team: Team) -> NDArray[np.int64]:
        """Return the address of each value: shape (values, all threads)."""
        size = self._fragment.element.size
        base = team.read(machine, self._address)
        stride = np.full(base.shape, self._dense, np.int64)
        if self._stride is not None:
            stride[:] = team.read(machine, self._stride)
        bad = (base % _BASE_ALIGNMENT != 0) | (stride * size % _STRIDE_ALIGNMENT != 0)
        if machine.checks.alignment and bad.any():
            first = int(np.flatnonzero(bad)[0])
            raise machine.fault(
                Misaligned,
                self._ins,
                team.lanes,
                f"a matrix at {int(base.flat[first]):#x}, with "
                f"{int(stride.flat[first]) * size} bytes from row to row",
                f"Begin matrices of wmma at multiples of {_BASE_ALIGNMENT} bytes, and have rows a "
                f"multiple of {_STRIDE_ALIGNMENT} bytes apart.",
                bad.reshape(-1),
            )
        places = self._across[:, None] * stride + self._along[:, None]
        found: NDArray[np.int64] = (base + places * size).reshape(len(places), -1)
        return found

    def step(self, machine: Machine, lanes: Lanes) -> None:
        """Move the fragments of all warps, value by value."""
        team = assemble(machine, self._ins, lanes, WARP)
        addresses, fragment = self._addresses(machine, team), self._fragment
        shape, size = (team.count, WARP, fragment.values), fragment.element.size
        if self._loads:
            raw = np.empty(shape, fragment.element.raw)
            for value, places in enumerate(addresses):
                data = self._access.load(machine, team.lanes, places, size)
                raw[:, :, value] = data.view(raw.dtype).reshape(team.count, WARP)
            fragment.write(machine, team, raw)
            return
        words = np.stack([team.take(machine.registers[slot]) for slot in fragment.slots], axis=2)
        raw = words.view(fragment.element.raw).reshape(shape)
        for value, places in enumerate(addresses):
            data = np.ascontiguousarray(raw[:, :, value]).reshape(-1, 1).view(np.uint8)
            self._access.store(machine, team.lanes, places, data)
