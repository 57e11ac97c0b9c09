"""State spaces: where the bytes of an access are, and what has to hold before they are touched.

A *place* is an array and the offsets into it of one access, one a lane. Each space has a function
that finds the place of a read and one for a write; both make all checks of that space. Generic
addresses are sorted by the window that they lie in, lane by lane if they must be.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from sdpakit.ptxemu.errors import OutOfBounds
from sdpakit.ptxemu.memory import (
    GLOBAL_BASE,
    LOCAL_BASE,
    PARAM_BASE,
    SHARED_BASE,
    WINDOW_SHIFT,
    Offsets,
    gather,
    scatter,
)
from sdpakit.ptxemu.program import Instruction
from sdpakit.ptxemu.scalars import Array

if TYPE_CHECKING:
    from sdpakit.ptxemu.machine import Lanes, Machine

Finder: TypeAlias = "Callable[[Machine, Instruction, Lanes, Offsets, int], tuple[Array, Offsets]]"
Part: TypeAlias = "tuple[slice | Array, Lanes, Space, Offsets]"


@dataclass(frozen=True)
class Space:
    """One state space: its window among generic addresses, and its finders."""

    name: str
    base: int
    read: Finder
    write: Finder


def _read_global(
    machine: Machine, ins: Instruction, lanes: Lanes, addresses: Offsets, width: int
) -> tuple[Array, Offsets]:
    return machine.device.arena, machine.memory.read_global(ins, lanes, addresses, width)


def _write_global(
    machine: Machine, ins: Instruction, lanes: Lanes, addresses: Offsets, width: int
) -> tuple[Array, Offsets]:
    return machine.device.arena, machine.memory.write_global(ins, lanes, addresses, width)


def _read_const(
    machine: Machine, ins: Instruction, lanes: Lanes, addresses: Offsets, width: int
) -> tuple[Array, Offsets]:
    return machine.device.arena, machine.memory.read_const(ins, lanes, addresses, width)


def _read_shared(
    machine: Machine, ins: Instruction, lanes: Lanes, addresses: Offsets, width: int
) -> tuple[Array, Offsets]:
    return machine.memory.shared, machine.memory.read_shared(ins, lanes, addresses, width)


def _write_shared(
    machine: Machine, ins: Instruction, lanes: Lanes, addresses: Offsets, width: int
) -> tuple[Array, Offsets]:
    return machine.memory.shared, machine.memory.write_shared(ins, lanes, addresses, width)


def _strong_read_shared(
    machine: Machine, ins: Instruction, lanes: Lanes, addresses: Offsets, width: int
) -> tuple[Array, Offsets]:
    memory = machine.memory
    offsets = memory.locate_shared(ins, lanes, addresses, width)
    memory.check_shared_read(ins, lanes, offsets, width)
    machine.races.atomic(ins, lanes, offsets, width)
    return memory.shared, offsets


def _strong_write_shared(
    machine: Machine, ins: Instruction, lanes: Lanes, addresses: Offsets, width: int
) -> tuple[Array, Offsets]:
    memory = machine.memory
    offsets = memory.locate_shared(ins, lanes, addresses, width)
    memory.check_shared_write(ins, lanes, offsets, width)
    machine.races.atomic(ins, lanes, offsets, width)
    return memory.shared, offsets


def _read_local(
    machine: Machine, ins: Instruction, lanes: Lanes, addresses: Offsets, width: int
) -> tuple[Array, Offsets]:
    return machine.memory.local, machine.memory.read_local(ins, lanes, addresses, width)


def _write_local(
    machine: Machine, ins: Instruction, lanes: Lanes, addresses: Offsets, width: int
) -> tuple[Array, Offsets]:
    return machine.memory.local, machine.memory.write_local(ins, lanes, addresses, width)


def _read_param(
    machine: Machine, ins: Instruction, lanes: Lanes, addresses: Offsets, width: int
) -> tuple[Array, Offsets]:
    return machine.memory.parameters, machine.memory.read_parameter(ins, lanes, addresses, width)


def _refuse_write(
    machine: Machine, ins: Instruction, lanes: Lanes, addresses: Offsets, width: int
) -> tuple[Array, Offsets]:
    raise machine.fault(
        OutOfBounds,
        ins,
        lanes,
        f"writes {width} bytes at address {int(addresses[0]):#x}, which is read-only",
        "Copy parameters and constants to registers or local memory to change them.",
    )


_GLOBAL = Space("global", GLOBAL_BASE, _read_global, _write_global)
_SHARED = Space("shared", SHARED_BASE, _read_shared, _write_shared)
_STRONG_SHARED = Space("shared", SHARED_BASE, _strong_read_shared, _strong_write_shared)
_LOCAL = Space("local", LOCAL_BASE, _read_local, _write_local)
_PARAM = Space("param", PARAM_BASE, _read_param, _refuse_write)
_CONST = Space("const", GLOBAL_BASE, _read_const, _refuse_write)

_BY_NAME = {space.name: space for space in (_GLOBAL, _SHARED, _LOCAL, _PARAM, _CONST)}
_BY_WINDOW = {space.base >> WINDOW_SHIFT: space for space in (_GLOBAL, _SHARED, _LOCAL, _PARAM)}

# Instructions of these kinds are meant to meet each other, so they are no races among themselves.
_STRONG = ("volatile", "relaxed", "acquire", "release", "mmio")


class Spaces:
    """The way from an instruction's addresses to memory, decided once for an instruction."""

    def __init__(self, ins: Instruction) -> None:
        self._ins = ins
        self._strong = ins.has(*_STRONG) or ins.opcode in {"atom", "red"}
        name = ins.space.split("::")[0]
        self._space = None if name == "generic" else self._chosen(_BY_NAME[name])

    def _chosen(self, space: Space) -> Space:
        return _STRONG_SHARED if self._strong and space is _SHARED else space

    def load(self, machine: Machine, lanes: Lanes, addresses: Offsets, width: int) -> Array:
        """Return `width` bytes at each address, as uint8 of shape (n, width)."""
        if self._space is not None:
            memory, offsets = self._space.read(machine, self._ins, lanes, addresses, width)
            return gather(memory, offsets, width)
        data = np.empty((addresses.size, width), np.uint8)
        for chosen, part, space, inside in self.parts(machine, lanes, addresses):
            memory, offsets = space.read(machine, self._ins, part, inside, width)
            data[chosen] = gather(memory, offsets, width)
        return data

    def store(self, machine: Machine, lanes: Lanes, addresses: Offsets, data: Array) -> None:
        """Write uint8 data of shape (n, width) to each address."""
        width = data.shape[1]
        for chosen, part, space, inside in self.parts(machine, lanes, addresses):
            memory, offsets = space.write(machine, self._ins, part, inside, width)
            scatter(memory, offsets, data[chosen])

    def parts(self, machine: Machine, lanes: Lanes, addresses: Offsets) -> list[Part]:
        """Return the access by spaces: which of the lanes, the lanes, the space, addresses in it."""
        if self._space is not None:
            return [(slice(None), lanes, self._space, addresses)]
        windows = addresses >> WINDOW_SHIFT
        if bool((windows == windows[0]).all()):
            space, inside = self._window(machine, lanes, addresses, int(windows[0]))
            return [(slice(None), lanes, space, inside)]
        found: list[Part] = []
        for window in np.unique(windows):
            chosen = np.flatnonzero(windows == window)
            part = machine.indices(lanes)[chosen]
            space, inside = self._window(machine, part, addresses[chosen], int(window))
            found.append((chosen, part, space, inside))
        return found

    def _window(
        self, machine: Machine, lanes: Lanes, addresses: Offsets, window: int
    ) -> tuple[Space, Offsets]:
        space = _BY_WINDOW.get(window)
        if space is None:
            raise machine.fault(
                OutOfBounds,
                self._ins,
                lanes,
                f"{int(addresses[0]):#x} is no generic address",
                "Make generic addresses from pointers that the kernel was given or by cvta; "
                "name the state space (ld.shared) where an address is of one.",
            )
        return self._chosen(space), addresses if space is _GLOBAL else addresses - space.base
