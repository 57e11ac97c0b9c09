"""``cp.async``: chunks of 4 to 16 bytes that threads copy from global to shared memory.

A chunk lands when its thread waits for the group that it is in, or when an mbarrier that tracks
it needs it: not earlier, so that who reads it too early finds it in flight.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sdpakit.ptxemu.clocks import Clock, distinct
from sdpakit.ptxemu.memory import IN_FLIGHT, WRITTEN
from sdpakit.ptxemu.program import Instruction
from sdpakit.ptxemu.scalars import Array
from sdpakit.ptxemu.words import Offsets, fill, gather, scatter

if TYPE_CHECKING:
    from sdpakit.ptxemu.machine import Lanes, Machine

Indices = NDArray[np.intp]
Chosen = NDArray[np.bool_]


@dataclass(slots=True, eq=False)
class Chunks:
    """Chunks that one step issued and that did not land yet, one a lane.

    `sizes` says how many bytes come from global memory, if not all do; the rest is zeros.
    `number` counts steps.
    """

    ins: Instruction
    lanes: Indices
    offsets: Offsets
    sources: Offsets
    groups: Offsets
    width: int
    sizes: Offsets | None
    number: int

    def of(self, chosen: Chosen) -> Chunks:
        """Return some of the chunks."""
        if chosen.all():
            return self
        return Chunks(
            self.ins,
            self.lanes[chosen],
            self.offsets[chosen],
            self.sources[chosen],
            self.groups[chosen],
            self.width,
            None if self.sizes is None else self.sizes[chosen],
            self.number,
        )


@dataclass(slots=True, eq=False)
class LateArrivals:
    """Arrivals of threads that happen when their chunks have landed.

    `barriers` has an offset for each lane, `clocks` what the threads of each know. Chunks of
    steps up to `number` are waited for.
    """

    ins: Instruction
    lanes: Indices
    barriers: Offsets
    clocks: dict[int, Clock | None]
    number: int
    landed: Chosen = field(default_factory=lambda: np.zeros(0, bool))

    def positions(self, lanes: Indices) -> Indices:
        """Return where lanes are among its own, which are sorted; all must be."""
        return np.searchsorted(self.lanes, lanes)


class ChunkCopies:
    """``cp.async`` under way, in the order of issue."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._pending: list[Chunks] = []
        self._arrivals: list[LateArrivals] = []
        self._committed = np.zeros(machine.lanes, np.int64)
        self._number = 0

    def issue(
        self,
        ins: Instruction,
        lanes: Lanes,
        offsets: Offsets,
        sources: Offsets,
        sizes: Offsets | None,
        width: int,
    ) -> None:
        """Begin copies of `width` bytes to offsets into `Memory.shared`.

        `sources` are offsets into the arena, checked already.
        """
        machine = self._machine
        machine.memory.check_write(ins, lanes, offsets, width)
        machine.races.write(ins, lanes, offsets, width)
        fill(machine.memory.shared_state, offsets, width, IN_FLIGHT)
        indices = machine.indices(lanes)
        groups = self._committed[indices]
        self._number += 1
        self._pending.append(
            Chunks(ins, indices, offsets, sources, groups, width, sizes, self._number)
        )
        machine.counters.copied_bytes += width * len(indices)

    def commit(self, lanes: Lanes) -> None:
        """End the group of each lane."""
        self._committed[lanes] += 1

    def wait(self, lanes: Lanes, keep: int | None) -> None:
        """Land all but the newest `keep` groups of lanes; without it, also what has no group."""
        pending, self._pending = self._pending, []
        if not pending:
            return
        waits = np.zeros(self._machine.lanes, bool)
        waits[lanes] = True
        last = self._committed - (0 if keep is None else keep)
        for chunks in pending:
            chosen = waits[chunks.lanes]
            if keep is not None:
                chosen &= chunks.groups < last[chunks.lanes]
            if not chosen.any():
                self._pending.append(chunks)
                continue
            landed = chunks.of(chosen)
            self._land(landed)
            self._machine.races.land_write(landed.ins, landed.lanes, landed.offsets, landed.width)
            self._tell_arrivals(landed)
            if landed is not chunks:
                self._pending.append(chunks.of(~chosen))

    def arrive_late(
        self, ins: Instruction, lanes: Lanes, barriers: Offsets, *, counted: bool
    ) -> LateArrivals:
        """Let lanes arrive at mbarriers when what they issued so far has landed.

        Unless the mbarrier has `counted` these arrivals already, it expects them besides.
        """
        machine = self._machine
        machine.mbarriers.require(ins, lanes, barriers)
        if not counted:
            machine.mbarriers.add_pending(ins, lanes, barriers)
        indices = machine.indices(lanes)
        clocks = {
            barrier: machine.races.snapshot(
                np.unique(machine.lane_warp[indices[barriers == barrier]])
            )
            for barrier in np.unique(barriers).tolist()
        }
        late = LateArrivals(ins, indices, barriers, clocks, self._number)
        late.landed = np.zeros(len(indices), bool)
        self._arrivals.append(late)
        return late

    def land_arrivals(self, late: LateArrivals, lanes: Indices) -> None:
        """Land what some lanes of late arrivals wait for, and let them arrive."""
        machine = self._machine
        mine = np.zeros(machine.lanes, bool)
        mine[lanes] = True
        pending, self._pending = self._pending, []
        for chunks in pending:
            chosen = mine[chunks.lanes] & (chunks.number <= late.number)
            if not chosen.any():
                self._pending.append(chunks)
                continue
            landed = chunks.of(chosen)
            self._land(landed)
            barriers = late.barriers[late.positions(landed.lanes)]
            marks = machine.races.land_engine_write(
                landed.ins, landed.lanes, landed.offsets, landed.width, barriers
            )
            for barrier, mark in marks.items():
                late.clocks[barrier] = machine.races.join(late.clocks[barrier], mark)
            if landed is not chunks:
                self._pending.append(chunks.of(~chosen))
        self._arrive(late, lanes)

    def _arrive(self, late: LateArrivals, lanes: Indices) -> None:
        positions = late.positions(lanes)
        late.landed[positions] = True
        if late.landed.all():
            self._arrivals.remove(late)
        barriers, counts = np.unique(late.barriers[positions], return_counts=True)
        for barrier, count in zip(barriers.tolist(), counts.tolist(), strict=True):
            first = positions[int(np.argmax(late.barriers[positions] == barrier))]
            lane = late.lanes[first : first + 1]
            clock = late.clocks[barrier]
            self._machine.mbarriers.arrive_late(late.ins, lane, barrier, count, clock)

    def _tell_arrivals(self, landed: Chunks) -> None:
        """Let arrivals that are to come hand on chunks that their threads waited for themselves."""
        for late in self._arrivals:
            if landed.number > late.number:
                continue
            lanes = np.intersect1d(late.lanes, landed.lanes, assume_unique=True)
            barriers = late.barriers[late.positions(lanes)]
            for barrier in np.unique(barriers).tolist():
                warps = distinct(self._machine.lane_warp[lanes[barriers == barrier]])
                clock = self._machine.races.snapshot(warps)
                late.clocks[barrier] = self._machine.races.join(late.clocks[barrier], clock)

    def _land(self, chunks: Chunks) -> None:
        memory = self._machine.memory
        data = _data(self._machine.device.arena, chunks)
        scatter(memory.shared, chunks.offsets, data)
        fill(memory.shared_state, chunks.offsets, chunks.width, WRITTEN)


def _data(arena: Array, chunks: Chunks) -> Array:
    if chunks.sizes is None:
        return gather(arena, chunks.sources, chunks.width)
    data = np.zeros((len(chunks.lanes), chunks.width), np.uint8)
    reads = chunks.sizes > 0
    if reads.any():
        data[reads] = gather(arena, chunks.sources[reads], chunks.width)
    data[np.arange(chunks.width) >= chunks.sizes[:, None]] = 0
    return data
