"""Accesses of lanes to global memory: inside allocations, aligned, initialised."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sdpakit.ptxemu.crossings import Crossings
from sdpakit.ptxemu.errors import KernelFault, OutOfBounds, UninitialisedRead
from sdpakit.ptxemu.misalignment import misaligned
from sdpakit.ptxemu.program import Instruction
from sdpakit.ptxemu.windows import ALLOCATED, CONSTANT, GLOBAL_BASE, PRESENT, READ_ONLY
from sdpakit.ptxemu.words import Bad, Offsets, all_equal, any_of_lane, fill, gather, merged

if TYPE_CHECKING:
    from sdpakit.ptxemu.machine import Lanes, Machine


class GlobalAccess:
    """Each method returns offsets into `Device.arena` of addresses, one a lane or a row a lane."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._crossings = Crossings(machine)

    def _locate(self, ins: Instruction, lanes: Lanes, addresses: Offsets, width: int) -> Offsets:
        machine, offsets = self._machine, addresses - GLOBAL_BASE
        bits, size = merged(offsets), machine.device.arena.size
        if not 0 <= bits <= size - width:
            bad = (offsets < 0) | (offsets + width > size)
            if bad.any():  # there is nothing to read even if nobody asked for the check
                raise self._outside(ins, lanes, addresses, width, bad)
        if bits & (width - 1) and machine.checks.alignment:
            raise misaligned(machine, ins, lanes, addresses, width)
        if machine.counters.accesses:
            machine.counters.count_global(machine, lanes, offsets, width)
        return offsets

    def read(self, ins: Instruction, lanes: Lanes, addresses: Offsets, width: int) -> Offsets:
        """For a read: bounds, alignment, initialised."""
        offsets = self._locate(ins, lanes, addresses, width)
        states = self._machine.device.arena_state
        if not any(all_equal(states, offsets, width, state) for state in (PRESENT, CONSTANT)):
            self._check_read(ins, lanes, addresses, width)
        self._crossings.check(ins, lanes, offsets, width, writes=False)
        return offsets

    def write(self, ins: Instruction, lanes: Lanes, addresses: Offsets, width: int) -> Offsets:
        """For a write: bounds, alignment; marks the bytes initialised."""
        offsets = self._locate(ins, lanes, addresses, width)
        states = self._machine.device.arena_state
        if not all_equal(states, offsets, width, PRESENT):
            self._check_write(ins, lanes, addresses, width)
            fill(states, offsets, width, PRESENT)
        self._crossings.check(ins, lanes, offsets, width, writes=True)
        return offsets

    def update(self, ins: Instruction, lanes: Lanes, addresses: Offsets, width: int) -> Offsets:
        """For an atomic access: as for a read and a write."""
        offsets = self._locate(ins, lanes, addresses, width)
        if not all_equal(self._machine.device.arena_state, offsets, width, PRESENT):
            self._check_write(ins, lanes, addresses, width)
            self._check_read(ins, lanes, addresses, width)
        return offsets

    def read_const(self, ins: Instruction, lanes: Lanes, addresses: Offsets, width: int) -> Offsets:
        """For a read of a constant: bounds, alignment."""
        offsets = self._locate(ins, lanes, addresses, width)
        states = self._machine.device.arena_state
        if self._machine.checks.bounds and not all_equal(states, offsets, width, CONSTANT):
            bad = self._states(addresses, width) != CONSTANT
            raise self._outside(ins, lanes, addresses, width, bad)
        return offsets

    def _states(self, addresses: Offsets, width: int) -> NDArray[np.uint8]:
        found = gather(self._machine.device.arena_state, addresses - GLOBAL_BASE, width)
        return found.reshape(*addresses.shape, width)

    def _check_read(self, ins: Instruction, lanes: Lanes, addresses: Offsets, width: int) -> None:
        machine, states = self._machine, self._states(addresses, width)
        if machine.checks.bounds and (bad := states & ALLOCATED == 0).any():
            raise self._outside(ins, lanes, addresses, width, bad)
        if machine.checks.uninitialised and (bad := states & PRESENT == ALLOCATED).any():
            first = np.argwhere(bad)[0]
            where = int(addresses[tuple(first[:-1])]) + int(first[-1])
            raise machine.fault(
                UninitialisedRead,
                ins,
                lanes,
                f"reads the byte at {machine.device.describe(where)}, which nobody wrote",
                "Write it first, or pass an array with values instead of an Output.",
                any_of_lane(bad),
            )

    def _check_write(self, ins: Instruction, lanes: Lanes, addresses: Offsets, width: int) -> None:
        machine, states = self._machine, self._states(addresses, width)
        if not machine.checks.bounds:
            return
        if (bad := states & ALLOCATED == 0).any():
            raise self._outside(ins, lanes, addresses, width, bad)
        if (bad := states & READ_ONLY != 0).any():
            first = int(addresses[bad.any(axis=-1)][0])
            raise machine.fault(
                OutOfBounds,
                ins,
                lanes,
                f"writes {width} bytes at {machine.device.describe(first)}, which is read-only",
                "Write elsewhere, or pass an array that may be written.",
                any_of_lane(bad),
            )

    def _outside(
        self, ins: Instruction, lanes: Lanes, addresses: Offsets, width: int, bad: Bad
    ) -> KernelFault:
        lane = any_of_lane(bad)
        access = bad.reshape(*addresses.shape, -1).any(axis=-1)
        first = int(addresses[access][0])
        return self._machine.fault(
            OutOfBounds,
            ins,
            lanes,
            f"{width} bytes at {self._machine.device.describe(first, width)}",
            "Guard the access by the size of the array, or correct its index or strides.",
            lane,
        )
