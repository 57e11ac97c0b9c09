"""Global memory of the emulated device: allocations with red zones between them, and modules' variables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike

from sdpakit.ptxemu.errors import LaunchError
from sdpakit.ptxemu.windows import ALLOCATED, CONSTANT, GLOBAL_BASE, POISON, PRESENT
from sdpakit.ptxemu.scalars import Array

if TYPE_CHECKING:
    from sdpakit.ptxemu.program import Program

# Allocations begin at multiples of it, as those of drivers do, and are at least so far apart.
_ALIGNMENT = 256


@dataclass(frozen=True, slots=True)
class Allocation:
    """Bytes `offset` to ``offset + size`` of the arena; `label` is what messages call them."""

    offset: int
    size: int
    label: str


class Device:
    """A device that keeps its memory from launch to launch.

    Attributes
    ----------
    arena : numpy.ndarray
        Its memory, as bytes.
    arena_state : numpy.ndarray
        Of each byte: 0 is nobody's; else the bits ALLOCATED, INITIALISED and READ_ONLY of `memory`.
    """

    def __init__(self) -> None:
        self.arena: Array = np.full(4 * _ALIGNMENT, POISON, np.uint8)
        self.arena_state: Array = np.zeros(self.arena.shape, np.uint8)
        self._allocations: list[Allocation] = []
        self._top = _ALIGNMENT
        # A module's variables are one object of bytes, which all its programs share and this keeps alive.
        self._modules: dict[int, tuple[bytes, int]] = {}

    def allocate(self, what: Array | int, *, label: str = "") -> int:
        """Return the address of new memory.

        Parameters
        ----------
        what : numpy.ndarray or int
            An array, whose values are copied there, or a number of bytes, which nobody has written.
        label : str
            What messages call it.
        """
        if isinstance(what, np.ndarray):
            label = label or f"an array {what.dtype}{list(what.shape)}"
            address = self.reserve(what.nbytes, label)
            self.write(address, what)
            return address
        size = int(what)
        if size < 0:
            raise LaunchError(f"cannot allocate {size} bytes; give a number of bytes from 0 on")
        address = self.reserve(size, label or f"an allocation of {size} bytes")
        self.state(address, size)[...] = ALLOCATED
        return address

    def reserve(self, size: int, label: str, *, phase: int = 0) -> int:
        """Return the address of a range that is nobody's yet, `phase` bytes past a multiple of 256."""
        offset = self._top + phase
        self._top = -(-(offset + size + _ALIGNMENT) // _ALIGNMENT) * _ALIGNMENT
        if self._top > self.arena.size:
            self._grow(max(self._top, 2 * self.arena.size))
        self._allocations.append(Allocation(offset, size, label))
        return GLOBAL_BASE + offset

    def _grow(self, size: int) -> None:
        arena, state = np.full(size, POISON, np.uint8), np.zeros(size, np.uint8)
        arena[: self.arena.size], state[: self.arena.size] = self.arena, self.arena_state
        self.arena, self.arena_state = arena, state

    def bytes(self, address: int, size: int) -> Array:
        """Return the memory at an address, no copy."""
        return self.arena[address - GLOBAL_BASE :][:size]

    def state(self, address: int, size: int) -> Array:
        """Return the states of memory at an address, no copy."""
        return self.arena_state[address - GLOBAL_BASE :][:size]

    def write(self, address: int, values: Array) -> None:
        """Copy an array to an address, C order."""
        raw = np.frombuffer(values.tobytes(), np.uint8)
        self.bytes(address, raw.size)[...] = raw
        self.state(address, raw.size)[...] = PRESENT

    def read(self, address: int, shape: int | Sequence[int], dtype: DTypeLike) -> Array:
        """Return a copy of memory as an array.

        Raises
        ------
        LaunchError
            If it is not wholly inside one allocation.
        """
        kind = np.dtype(dtype)
        sizes = (shape,) if isinstance(shape, int) else tuple(shape)
        size = math.prod(sizes) * kind.itemsize
        if size and not (self.state(address, size) & ALLOCATED).all():
            raise LaunchError(f"cannot read {size} bytes at {self.describe(address, size)}")
        return np.frombuffer(self.bytes(address, size).tobytes(), kind).reshape(sizes).copy()

    def module_address(self, program: Program) -> int:
        """Return where the variables of a program's module lie; load them if they are new here."""
        data = program.data
        if id(data) not in self._modules:
            address = self.reserve(len(data), f"the variables of the module of {program.name}")
            self.write(address, np.frombuffer(data, np.uint8))
            for start, stop in program.constant_ranges:
                self.state(address, len(data))[start:stop] = CONSTANT
            self._modules[id(data)] = data, address
        return self._modules[id(data)][1]

    def describe(self, address: int, width: int = 1) -> str:
        """Return an address in words: what it is part of, or which allocation is nearest."""
        offset = address - GLOBAL_BASE
        text = f"global address {address:#x}"
        if not self._allocations:
            return f"{text}; nothing is allocated"

        def distance(allocation: Allocation) -> int:
            before = allocation.offset - offset
            return max(before, offset + width - allocation.offset - allocation.size, 0)

        nearest = min(self._allocations, key=distance)
        inside = offset - nearest.offset
        if distance(nearest) > self.arena.size:
            return f"{text}, far from every allocation; is it an offset, or of another state space?"
        if inside < 0:
            return f"{text}, {-inside} bytes before the begin of {nearest.label}"
        if inside + width > nearest.size:
            return (
                f"{text}, which is byte {inside} of {nearest.label}, which has {nearest.size} bytes"
            )
        return f"{text}, byte {inside} of {nearest.label}"

    def launch(self, code: Any, grid: Any, block: Any, args: Sequence[Any], **options: Any) -> Any:
        """Launch a kernel here, see `sdpakit.ptxemu.launch`; pointers from `allocate` may be arguments."""
        from sdpakit.ptxemu.launching import launch_on

        return launch_on(self, code, grid, block, args, **options)
