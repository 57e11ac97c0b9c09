"""The emulated device: allocations with red zones between them, modules' variables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike

from sdpakit.ptxemu.errors import LaunchError
from sdpakit.ptxemu.program import Relocation
from sdpakit.ptxemu.scalars import Array
from sdpakit.ptxemu.windows import (
    ALLOCATED,
    CONSTANT,
    GLOBAL_BASE,
    LOCAL_BASE,
    POISON,
    PRESENT,
    SHARED_BASE,
)

if TYPE_CHECKING:
    from sdpakit.ptxemu.crossings import LaunchWriters
    from sdpakit.ptxemu.program import Program
    from sdpakit.ptxemu.reporting import Report

# Allocations begin at multiples of it, as those of drivers do, and are at least so far apart.
_ALIGNMENT = 256
# An address further than this from all allocations is no running over the end of one.
_FAR = 1 << 30


@dataclass(frozen=True, slots=True)
class _Allocation:
    """Bytes `offset` to ``offset + size`` of the arena; `label` is what messages call them."""

    offset: int
    size: int
    label: str

    def distance(self, offset: int, width: int) -> int:
        """Return how far an access is outside."""
        return max(self.offset - offset, offset + width - self.offset - self.size, 0)


class Device:
    """A device that keeps its memory from launch to launch.

    Attributes
    ----------
    arena : numpy.ndarray
        Its memory, as bytes; an address is `windows.GLOBAL_BASE` and the offset into it.
    arena_state : numpy.ndarray
        Of each byte: 0 is nobody's; else bits of `windows`: ALLOCATED, INITIALISED, READ_ONLY.
    writers : LaunchWriters or None
        Which block wrote what in the launch that runs, if that is checked.
    """

    def __init__(self) -> None:
        self.arena: Array = np.full(4 * _ALIGNMENT, POISON, np.uint8)
        self.arena_state: Array = np.zeros(self.arena.shape, np.uint8)
        self.writers: LaunchWriters | None = None
        self._allocations: dict[int, _Allocation] = {}
        self._top = _after(0)
        # A module's variables are one object of bytes, the same in all its programs, which this
        # keeps alive, so that no other can get its identity.
        self._modules: dict[int, tuple[bytes, int]] = {}

    def allocate(self, what: Array | int, *, label: str = "") -> int:
        """Return the address of new memory.

        Parameters
        ----------
        what : numpy.ndarray or int
            An array, whose values are copied there, or a number of bytes, which nobody has written.
        label : str
            What messages call it.

        Raises
        ------
        LaunchError
            If the number is negative.
        """
        if isinstance(what, np.ndarray):
            address = self.reserve(what.nbytes, label or f"the array {what.dtype}{[*what.shape]}")
            self.write(address, what)
            return address
        size = int(what)
        if size < 0:
            raise LaunchError(f"cannot allocate {size} bytes; give a number of bytes from 0 on")
        address = self.reserve(size, label or f"the allocation of {size} bytes")
        self.state(address, size)[...] = ALLOCATED
        return address

    def reserve(self, size: int, label: str, *, phase: int = 0) -> int:
        """Return the address of a range, nobody's yet, `phase` bytes past a multiple of 256."""
        offset = self._top + phase
        self._top = _after(offset + size)
        if self._top > self.arena.size:
            self._grow(max(self._top, 2 * self.arena.size))
        self._allocations[offset] = _Allocation(offset, size, label)
        return GLOBAL_BASE + offset

    def _grow(self, size: int) -> None:
        arena, state = np.full(size, POISON, np.uint8), np.zeros(size, np.uint8)
        arena[: self.arena.size], state[: self.arena.size] = self.arena, self.arena_state
        self.arena, self.arena_state = arena, state

    def free(self, address: int) -> None:
        """Give memory back; an access to it is out of bounds from then on.

        Raises
        ------
        LaunchError
            If nothing was allocated at this very address.
        """
        allocation = self._allocations.pop(address - GLOBAL_BASE, None)
        if allocation is None:
            raise LaunchError(
                f"cannot free {self.describe(address)}; give an address that allocate returned"
            )
        self.state(address, allocation.size)[...] = 0
        self.bytes(address, allocation.size)[...] = POISON
        last = max((a.offset + a.size for a in self._allocations.values()), default=0)
        self._top = _after(last)

    def bytes(self, address: int, size: int) -> Array:
        """Return memory as bytes, no copy."""
        return self.arena[address - GLOBAL_BASE :][:size]

    def state(self, address: int, size: int) -> Array:
        """Return the states of memory, no copy."""
        return self.arena_state[address - GLOBAL_BASE :][:size]

    def write(self, address: int, values: Array) -> None:
        """Copy an array to memory, elements in C order.

        Raises
        ------
        LaunchError
            If the memory is not wholly inside one allocation.
        """
        self._check_inside("write", address, values.nbytes)
        self.bytes(address, values.nbytes)[...] = np.frombuffer(values.tobytes(), np.uint8)
        self.state(address, values.nbytes)[...] = PRESENT

    def read(self, address: int, shape: int | Sequence[int], dtype: DTypeLike) -> Array:
        """Return a copy of memory as an array.

        Raises
        ------
        LaunchError
            If the memory is not wholly inside one allocation.
        """
        kind = np.dtype(dtype)
        sizes = (shape,) if isinstance(shape, int) else tuple(shape)
        size = math.prod(sizes) * kind.itemsize
        self._check_inside("read", address, size)
        return self.bytes(address, size).copy().view(kind).reshape(sizes)

    def _check_inside(self, verb: str, address: int, size: int) -> None:
        offset = address - GLOBAL_BASE
        if not any(a.distance(offset, size) == 0 for a in self._allocations.values()):
            raise LaunchError(
                f"cannot {verb} {size} bytes at {self.describe(address, size)}; give an address "
                "that allocate returned, and no more bytes than it has"
            )

    def module_address(self, program: Program) -> int:
        """Return where the variables of a program's module are; load them if they are new here."""
        data = program.data
        if not data:
            return GLOBAL_BASE
        if id(data) not in self._modules:
            address = self.reserve(len(data), f"the variables of the module of {program.name}")
            self._modules[id(data)] = data, address
            contents, states = self.bytes(address, len(data)), self.state(address, len(data))
            contents[...] = np.frombuffer(data, np.uint8)
            for start, stop in program.data_ranges:
                states[start:stop] = PRESENT
            for start, stop in program.constant_ranges:
                states[start:stop] = CONSTANT
            for relocation in program.relocations:
                value = np.array([_generic(relocation, address)], np.uint64)
                contents[relocation.offset : relocation.offset + 8] = value.view(np.uint8)
        return self._modules[id(data)][1]

    def describe(self, address: int, width: int = 1) -> str:
        """Return an address in words: what it is part of, or what is nearest."""
        text, offset = f"global address {address:#x}", address - GLOBAL_BASE
        if not self._allocations:
            return f"{text}; nothing is allocated"
        nearest = min(self._allocations.values(), key=lambda a: a.distance(offset, width))
        inside, label = offset - nearest.offset, nearest.label
        if nearest.distance(offset, width) > _FAR:
            return f"{text}, far from all memory; is it an offset, or of another state space?"
        if inside < 0:
            return f"{text}, {-inside} bytes before {label}"
        where = f"{text}, byte {inside} of {label}"
        if inside + width > nearest.size:
            return f"{where}, which has {nearest.size} bytes"
        return where

    def launch(
        self, code: Any, grid: Any, block: Any, args: Sequence[Any], **options: Any
    ) -> Report:
        """Launch a kernel on this device, as `sdpakit.ptxemu.launch` does on a new one.

        Its addresses may be among the arguments. Arrays among them are copied here and back.
        """
        from sdpakit.ptxemu.launching import launch

        return launch(code, grid, block, args, device=self, **options)


def _after(end: int) -> int:
    """Return where the next allocation may begin."""
    return -(-(end + _ALIGNMENT) // _ALIGNMENT) * _ALIGNMENT


def _generic(relocation: Relocation, base: int) -> int:
    symbol = relocation.symbol
    windows = {"shared": SHARED_BASE, "local": LOCAL_BASE}
    return windows.get(symbol.space, base) + symbol.offset
