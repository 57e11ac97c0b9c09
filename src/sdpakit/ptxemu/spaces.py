"""The way from the addresses of an instruction to bytes, whatever their state space.

Each space has a function that makes all its checks and returns the offsets of a read into its
memory, and one for a write. Generic addresses are sorted by the window that they lie in, lane by
lane if they must be.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from sdpakit.ptxemu.errors import OutOfBounds, Race
from sdpakit.ptxemu.program import Instruction
from sdpakit.ptxemu.scalars import Array
from sdpakit.ptxemu.windows import (
    GLOBAL_BASE,
    LOCAL_BASE,
    PARAM_BASE,
    SHARED_BASE,
    WINDOW_SHIFT,
)
from sdpakit.ptxemu.words import Offsets, gather, scatter

if TYPE_CHECKING:
    from sdpakit.ptxemu.machine import Lanes, Machine
    from sdpakit.ptxemu.memory import Memory

Locator: TypeAlias = "Callable[[Instruction, Lanes, Offsets, int], Offsets]"


@dataclass(frozen=True, slots=True)
class Space:
    """One state space: how to get its bytes, and to locate what is read, written, or both."""

    memory: Callable[[], Array]
    read: Locator
    write: Locator
    update: Locator


@dataclass(frozen=True, slots=True)
class Part:
    """What lies in one space of an access: `chosen` of its lanes, and their addresses there."""

    chosen: slice | Offsets
    lanes: Lanes
    space: Space
    addresses: Offsets


_WINDOWS = {
    GLOBAL_BASE >> WINDOW_SHIFT: ("global", 0),  # a global address is a generic one
    SHARED_BASE >> WINDOW_SHIFT: ("shared", SHARED_BASE),
    LOCAL_BASE >> WINDOW_SHIFT: ("local", LOCAL_BASE),
    PARAM_BASE >> WINDOW_SHIFT: ("param", PARAM_BASE),
}


# Stores of these kinds are meant to meet, whichever of them wins.
_MEETING = ("volatile", "relaxed", "release", "mmio")


def spaces_of(machine: Machine, memory: Memory) -> dict[str, Space]:
    """Return the spaces of a batch, by name."""

    def refuse(ins: Instruction, lanes: Lanes, addresses: Offsets, width: int) -> Offsets:
        raise machine.fault(
            OutOfBounds,
            ins,
            lanes,
            f"writes {width} bytes at address {int(addresses[0]):#x}, which is read-only",
            "Copy parameters and constants to registers or to local memory to change them.",
        )

    def no_atomics(ins: Instruction, lanes: Lanes, addresses: Offsets, width: int) -> Offsets:
        raise machine.fault(
            OutOfBounds,
            ins,
            lanes,
            f"an atomic access at address {int(addresses[0]):#x}, which is not in global or shared "
            "memory",
            "Use ordinary loads and stores on what a thread has for itself.",
        )

    def arena() -> Array:
        return machine.device.arena

    frames, parameters, everywhere = memory.frames, memory.parameters, memory.everywhere
    return {
        "global": Space(arena, everywhere.read, everywhere.write, everywhere.update),
        "const": Space(arena, everywhere.read_const, refuse, no_atomics),
        "shared": Space(
            lambda: memory.shared, memory.read_shared, memory.write_shared, memory.update_shared
        ),
        "local": Space(lambda: frames.memory, frames.read, frames.write, no_atomics),
        "param": Space(lambda: parameters.memory, parameters.read, refuse, no_atomics),
    }


class Access:
    """An instruction's way to memory, decided once."""

    def __init__(self, ins: Instruction) -> None:
        self._ins = ins
        name = ins.space.split("::")[0]
        self._name = None if name == "generic" else name
        self._decides = name != "local" and not ins.has(*_MEETING)

    def load(self, machine: Machine, lanes: Lanes, addresses: Offsets, width: int) -> Array:
        """Return `width` bytes at each address, as uint8 of shape (n, width)."""
        parts = self.parts(machine, lanes, addresses)
        if len(parts) == 1:
            return self._load_part(parts[0], width)
        data = np.empty((addresses.size, width), np.uint8)
        for part in parts:
            data[part.chosen] = self._load_part(part, width)
        return data

    def _load_part(self, part: Part, width: int) -> Array:
        offsets = part.space.read(self._ins, part.lanes, part.addresses, width)
        return gather(part.space.memory(), offsets, width)

    def store(self, machine: Machine, lanes: Lanes, addresses: Offsets, data: Array) -> None:
        """Write uint8 data of shape (n, width) to the addresses."""
        for part in self.parts(machine, lanes, addresses):
            offsets = part.space.write(self._ins, part.lanes, part.addresses, data.shape[1])
            memory, values = part.space.memory(), data[part.chosen]
            scatter(memory, offsets, values)
            if self._decides and machine.checks.race and len(offsets) > 1:
                self._check_winners(machine, part, memory, offsets, values)

    def _check_winners(
        self, machine: Machine, part: Part, memory: Array, offsets: Offsets, values: Array
    ) -> None:
        """Raise if a store has different values for one place, as any of them may stay there."""
        differs = gather(memory, offsets, values.shape[1]) != values
        if not differs.any():
            return
        lost = differs.any(axis=1)
        first = int(np.flatnonzero(lost)[0])
        winner = int(machine.indices(part.lanes)[np.flatnonzero(offsets == offsets[first])[-1]])
        block, thread = machine.blocks[winner // machine.threads], winner % machine.threads
        raise machine.fault(
            Race,
            self._ins,
            part.lanes,
            f"the same store of block {block}, thread {thread} writes another value to the same "
            f"address {int(part.addresses[first]):#x}, and which one stays is undefined",
            "Let one thread write each address, or use atomic operations.",
            lost,
        )

    def parts(self, machine: Machine, lanes: Lanes, addresses: Offsets) -> list[Part]:
        """Return the access space by space."""
        spaces = machine.memory.spaces
        if self._name is not None:
            return [Part(slice(None), lanes, spaces[self._name], addresses)]
        windows = addresses >> WINDOW_SHIFT
        first = int(windows[0])
        if bool((windows == first).all()):
            return [self._in_window(machine, slice(None), lanes, addresses, first)]
        found = []
        for window in np.unique(windows).tolist():
            chosen = np.flatnonzero(windows == window)
            part = machine.indices(lanes)[chosen]
            found.append(self._in_window(machine, chosen, part, addresses[chosen], window))
        return found

    def _in_window(
        self,
        machine: Machine,
        chosen: slice | Offsets,
        lanes: Lanes,
        addresses: Offsets,
        window: int,
    ) -> Part:
        if window not in _WINDOWS:
            raise machine.fault(
                OutOfBounds,
                self._ins,
                lanes,
                f"{int(addresses[0]):#x} is no generic address",
                "Make generic addresses from pointers that the kernel was given, or by cvta; name "
                "the state space (as in ld.shared) where an address is of one.",
            )
        name, base = _WINDOWS[window]
        return Part(chosen, lanes, machine.memory.spaces[name], addresses - base)
