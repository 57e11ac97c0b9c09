"""Who touched which word of shared memory, and whether anything ordered it.

The shadow of shared memory is kept by *granules*: 16 bytes at first, halved down to the narrowest
access that a kernel makes, so that neighbours in one word never race and wide kernels stay cheap.
A granule has the stamp and the agent of its last write, and the stamp of the last read and of the
last atomic access by each warp of its domain (`clocks`). Two accesses race if the later one's warp
does not know the earlier one. Most accesses follow a barrier of all; then one comparison with the
warp's floor shows that nothing is new to it, and no agent is looked up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sdpakit.ptxemu.clocks import (
    ENGINE_BIAS,
    EVERYTHING,
    WARPS_OF_GROUP,
    Clock,
    Clocks,
    Warps,
    distinct,
    join,
)
from sdpakit.ptxemu.errors import KernelFault, MissingProxyFence, Race
from sdpakit.ptxemu.handshakes import Handshakes, uses_handshakes
from sdpakit.ptxemu.program import Instruction
from sdpakit.ptxemu.warps import WARP

if TYPE_CHECKING:
    from sdpakit.ptxemu.machine import Lanes, Machine

Offsets = NDArray[np.int64]
Stamps = NDArray[np.int32]

_WIDEST = 4  # a granule has 1 << _WIDEST bytes at first

# Strong accesses do not race with each other, whatever orders them.
_STRONG = frozenset({"volatile", "relaxed", "acquire", "release", "mmio"})

_BARRIER = (
    "Put a barrier between them: bar.sync if both are warps of a block, a wait for the mbarrier "
    "that the other one arrives at, or barrier.cluster between blocks of a cluster."
)
_REUSE = (
    "Wait until every reader is done before the memory is used again: a bar.sync, or an mbarrier "
    "that readers arrive at after their last read (after the wait_group of wgmma and bulk stores)."
)
_FENCE = (
    "Execute fence.proxy.async after the stores and before the barrier (or copy) that follows them."
)


@dataclass(slots=True)
class OpenRead:
    """Reads of the asynchronous proxy that go on: who waits for them, and the granules."""

    agent: int
    warps: Warps
    granules: Offsets
    shift: int
    line: int


class _Accesses:
    """Stamps of the last access of some agents to each granule, and of the latest of all."""

    def __init__(self, first: int, agents: int, granules: int) -> None:
        self.first = first  # the agent of row 0
        # Zeroed memory that nobody touches costs nothing, so rows of idle warps are free.
        self.stamps = np.zeros((agents, granules), np.int32)
        self.latest = np.zeros(granules, np.int32)

    def record(self, rows: Offsets, granules: Offsets, stamp: int) -> None:
        self.stamps.reshape(-1)[(rows - self.first) * self.latest.size + granules] = stamp
        self.latest[granules] = stamp

    def known(self, span: slice, known: Stamps, floor: int) -> bool:
        """Return whether all to a span are known; warps are if their stamps are up to a floor."""
        agents = slice(self.first, self.first + len(self.stamps))
        if not self.first and self.latest[span].max() <= floor:
            return True
        return not (self.stamps[:, span] > known[agents, None]).any()

    def refine(self, factor: int) -> None:
        self.stamps = self.stamps.repeat(factor, axis=1)
        self.latest = self.latest.repeat(factor)


class RaceDetector:
    """Takes offsets into `Memory.shared`, `width` bytes from each; does nothing if off."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._race = machine.checks.race
        self._proxy = machine.checks.proxy and _uses_async_proxy(machine)
        self.on = self._race or self._proxy
        self._domain_warps = machine.warps * machine.shape.cluster_size
        self._shift = _WIDEST
        if self.on:
            self._start()

    def _start(self) -> None:
        machine = self._machine
        size = machine.memory.shared.size
        granules = -(-size >> self._shift)
        warps = machine.warps * len(machine.blocks)
        self.clocks = Clocks(warps, self._domain_warps)
        self._agents = (machine.lane_warp % self._domain_warps).astype(np.int64)
        self._written = np.zeros(granules, np.int32)
        self._writer = np.zeros(granules, np.int16)
        self._reads = _Accesses(0, self._domain_warps, granules)
        self._atomics: _Accesses | None = None
        self._async_reads: _Accesses | None = None
        self._handshakes = Handshakes(self.clocks) if uses_handshakes(machine) else None
        self._open: dict[int, OpenRead] = {}  # by identity
        self._open_count = np.zeros(granules, np.int16)

    # ------------------------------------------------------------------------------- granules

    def _granules(self, offsets: Offsets, width: int) -> Offsets:
        """Return the granules of accesses, one row a lane."""
        if width < 1 << self._shift:
            self._refine(width)
        first = (offsets >> self._shift).reshape(len(offsets), -1)
        count = width >> self._shift
        if count == 1:
            return first
        return (first[:, :, None] + np.arange(count)).reshape(len(offsets), -1)

    def _refine(self, width: int) -> None:
        """Halve granules until one is no wider than an access."""
        shift = width.bit_length() - 1
        factor = 1 << (self._shift - shift)
        self._shift = shift
        self._written, self._writer = self._written.repeat(factor), self._writer.repeat(factor)
        self._open_count = self._open_count.repeat(factor)
        self._reads.refine(factor)
        if self._atomics is not None:
            self._atomics.refine(factor)
        if self._async_reads is not None:
            self._async_reads.refine(factor)

    def _as_granules(self, offsets: Offsets, width: int) -> Offsets:
        """Return the granules that wide accesses cover, each once or more, as one row."""
        count = max(width >> self._shift, 1)
        first = offsets.reshape(-1, 1) >> self._shift
        return (first + np.arange(count)).reshape(-1)

    # ------------------------------------------------------------------------------- ordinary
    # accesses

    def read(self, ins: Instruction, lanes: Lanes, offsets: Offsets, width: int) -> None:
        """Record ordinary reads, one offset a lane, or k of them as a row."""
        if not self._race or not offsets.size:
            return
        if not _STRONG.isdisjoint(ins.modifiers):
            self.atomic(ins, lanes, offsets, width)
            return
        granules = self._granules(offsets, width)
        self._check_written(ins, lanes, granules, "read")
        if self._atomics is not None:
            self._check_accesses(ins, lanes, granules, self._atomics, ("read", "atomic access"))
        self._reads.record(self._rows(lanes), granules, self.clocks.stamp(ins.line))

    def write(self, ins: Instruction, lanes: Lanes, offsets: Offsets, width: int) -> None:
        """Record ordinary writes, which are dirty for the asynchronous proxy, too."""
        if not self.on or not offsets.size:
            return
        if not _STRONG.isdisjoint(ins.modifiers):
            self.atomic(ins, lanes, offsets, width)
            return
        granules = self._granules(offsets, width)
        if self._race:
            self._check_written(ins, lanes, granules, "write")
            self._check_reads(ins, lanes, granules, "write")
            if self._atomics is not None:
                self._check_accesses(
                    ins, lanes, granules, self._atomics, ("write", "atomic access")
                )
        self._writer[granules] = self._rows(lanes)
        self._written[granules] = self.clocks.stamp(ins.line)

    def atomic(self, ins: Instruction, lanes: Lanes, offsets: Offsets, width: int) -> None:
        """Record atomic accesses, which do not race with each other."""
        if not self._race or not offsets.size:
            return
        granules = self._granules(offsets, width)
        self._check_written(ins, lanes, granules, "atomic access")
        self._check_reads(ins, lanes, granules, "atomic access")
        if self._atomics is None:
            self._atomics = _Accesses(0, self._domain_warps, self._written.size)
        self._atomics.record(self._rows(lanes), granules, self.clocks.stamp(ins.line))
        if self._handshakes is not None:
            self._handshakes.access(ins, self._warps(lanes), offsets)

    def land_write(self, ins: Instruction, lanes: Lanes, offsets: Offsets, width: int) -> None:
        """Record that writes which `write` checked when they were issued happen only now."""
        if not self.on or not offsets.size:
            return
        granules = self._granules(offsets, width)
        self._writer[granules] = self._rows(lanes)
        self._written[granules] = self.clocks.stamp(ins.line)

    def _rows(self, lanes: Lanes) -> Offsets:
        return self._agents[lanes][:, None]

    def _warps(self, lanes: Lanes) -> Warps:
        return self._machine.lane_warp[lanes]

    # ------------------------------------------------------------------------------- checks

    def _check_written(self, ins: Instruction, lanes: Lanes, granules: Offsets, what: str) -> None:
        stamps = self._written[granules]
        if stamps.max() <= self.clocks.low:
            return
        row, column = np.nonzero(stamps > self.clocks.floor[self._warps(lanes)][:, None])
        warps, found = self._warps(lanes)[row], granules[row, column]
        late = stamps[row, column]
        unknown = late > self.clocks.known[warps, self._writer[found]]
        if unknown.any():
            first = int(np.argmax(unknown))
            agent = int(self._writer[found[first]])
            raise self._race_fault(
                ins,
                lanes,
                int(row[first]),
                int(found[first]),
                what,
                self._deed("write", agent, int(late[first])),
            )

    def _check_reads(self, ins: Instruction, lanes: Lanes, granules: Offsets, what: str) -> None:
        self._check_accesses(ins, lanes, granules, self._reads, (what, "read"))
        if self._async_reads is not None:
            self._check_rows(ins, lanes, (granules, None), self._async_reads, (what, "read"))
        if self._open:
            row, column = np.nonzero(self._open_count[granules])
            if len(row):
                raise self._open_fault(
                    ins, lanes, int(row[0]), int(granules[row[0], column[0]]), what
                )

    def _check_accesses(
        self,
        ins: Instruction,
        lanes: Lanes,
        granules: Offsets,
        accesses: _Accesses,
        words: tuple[str, str],
    ) -> None:
        stamps = accesses.latest[granules]
        if stamps.max() <= self.clocks.low:
            return
        late = stamps > self.clocks.floor[self._warps(lanes)][:, None]
        if late.any():
            self._check_rows(ins, lanes, (granules, late), accesses, words)

    def _check_rows(
        self,
        ins: Instruction,
        lanes: Lanes,
        where: tuple[Offsets, NDArray[np.bool_] | None],
        accesses: _Accesses,
        words: tuple[str, str],
    ) -> None:
        """Compare stamps of all agents, where a mask is set, with what lanes know."""
        granules, mask = where
        row, column = np.nonzero(np.ones_like(granules, bool) if mask is None else mask)
        found, warps = granules[row, column], self._warps(lanes)[row]
        for agent, stamps in enumerate(accesses.stamps, start=accesses.first):
            done = stamps[found]
            unknown = done > self.clocks.known[warps, agent]
            if unknown.any():
                first = int(np.argmax(unknown))
                deed = self._deed(words[1], agent, int(done[first]))
                raise self._race_fault(
                    ins, lanes, int(row[first]), int(found[first]), words[0], deed
                )

    # -------------------------------------------------------------------------------
    # asynchronous proxy

    def open_read(
        self, ins: Instruction, lane: int, offsets: Offsets, width: int
    ) -> OpenRead | None:
        """Record reads of the asynchronous proxy (wgmma, bulk stores), which `close_read` ends.

        Raises MissingProxyFence where ordinary stores were not fenced. `lane` is one lane of
        the issuing warp.
        """
        if not self.on or not offsets.size:
            return None
        clocks, warp = self.clocks, int(self._machine.lane_warp[lane])
        warps, agent = self._readers(ins, warp)
        granules = self._as_granules(offsets, width)
        known = clocks.known[warps].min(axis=0)
        fenced = np.where(
            clocks.asynchronous[warp // self._domain_warps],
            EVERYTHING,
            clocks.fenced[warps].min(axis=0),
        )
        limit = (known if self._race else fenced).copy()
        if self._race and self._proxy:
            np.minimum(limit, fenced, out=limit)
        stamps, writers = self._written[granules], self._writer[granules]
        late = stamps > limit[writers]
        if late.any():
            first = int(np.argmax(late))
            raise self._async_read_fault(ins, lane, int(granules[first]), known)
        if not self._race:
            return None
        if self._atomics is not None:
            self._check_rows(
                ins,
                np.array([lane]),
                (granules[None], None),
                self._atomics,
                ("read", "atomic access"),
            )
        token = OpenRead(agent, warps, granules, self._shift, ins.line)
        self._open_count[granules] += 1  # repeated granules count once here and once when it ends
        self._open[id(token)] = token
        return token

    def _readers(self, ins: Instruction, warp: int) -> tuple[Warps, int]:
        if ins.opcode != "wgmma":
            return np.array([warp]), warp % self._domain_warps
        first = warp - warp % self._machine.warps % WARPS_OF_GROUP
        return np.arange(first, first + WARPS_OF_GROUP), self.clocks.group(first)

    def close_read(self, token: OpenRead | None) -> None:
        """Make reads of `open_read` ordinary reads of now, as the issuing warp waited."""
        if token is not None:
            self._close(token, token.agent)
            if token.agent >= self._domain_warps:
                self.clocks.note(token.warps, token.agent, self.clocks.now)

    def land_read(self, token: OpenRead | None, clock: Clock | None) -> Clock | None:
        """End reads of a copy that completes on an mbarrier; return its clock with them."""
        if token is None or clock is None:
            return clock
        self._close(token, self.clocks.bulk_reader)
        joined = clock.copy()
        joined[0, self.clocks.bulk_reader] = self.clocks.now
        return joined

    def _close(self, token: OpenRead, agent: int) -> None:
        del self._open[id(token)]
        granules = token.granules
        if token.shift != self._shift:
            finer = token.shift - self._shift
            granules = ((granules[:, None] << finer) + np.arange(1 << finer)).reshape(-1)
        self._open_count[granules] -= 1
        stamp = self.clocks.stamp(token.line)
        if agent < self._domain_warps:
            self._reads.record(np.array([agent]), granules, stamp)
            return
        if self._async_reads is None:
            agents = self.clocks.groups + 1
            self._async_reads = _Accesses(self._domain_warps, agents, self._written.size)
        self._async_reads.record(np.array([agent]), granules, stamp)

    def issue_write(
        self, ins: Instruction, lane: int, start: int, size: int, barrier: int
    ) -> Clock | None:
        """Record a write of the asynchronous engine, ordered after all that the issuing warp saw.

        It fills `size` bytes from `start` on (multiples of 16) and completes on the mbarrier at
        the offset `barrier`. Returns the clock that who waits for it acquires.
        """
        if not self.on:
            return None
        clocks, warp = self.clocks, int(self._machine.lane_warp[lane])
        span = slice(start >> self._shift, -(-(start + size) >> self._shift))
        if self._race and not self._knows_all(span, warp):
            granules, lanes = np.arange(span.start, span.stop)[None], np.array([lane])
            self._check_written(ins, lanes, granules, "write")
            self._check_reads(ins, lanes, granules, "write")
            if self._atomics is not None:
                self._check_accesses(
                    ins, lanes, granules, self._atomics, ("write", "atomic access")
                )
        agent = clocks.engine(warp, barrier, asynchronous=True)
        clock = clocks.snapshot(np.array([warp]))
        clock[0, agent] = stamp = clocks.stamp(ins.line) + ENGINE_BIAS
        self._writer[span] = agent
        self._written[span] = stamp
        return clock

    def _knows_all(self, span: slice, warp: int) -> bool:
        """Return whether a warp knows all accesses to a span, and none goes on."""
        known = self.clocks.known[warp]
        if (self._written[span] > known[self._writer[span]]).any():
            return False
        for accesses in (self._reads, self._atomics, self._async_reads):
            if accesses is not None and not accesses.known(span, known, self.clocks.floor[warp]):
                return False
        return not (self._open and self._open_count[span].any())

    def land_engine_write(
        self, ins: Instruction, lanes: Lanes, offsets: Offsets, width: int, barriers: Offsets
    ) -> dict[int, Clock]:
        """Record landed ``cp.async`` whose completion arrives on mbarriers, one a lane.

        Returns what the arrival on each mbarrier hands on besides what its threads know.
        """
        if not self.on or not offsets.size:
            return {}
        clocks, warps = self.clocks, self._warps(lanes)
        stamp = clocks.stamp(ins.line) + ENGINE_BIAS
        agents, marks = np.zeros(len(barriers), np.int64), {}
        for barrier in np.unique(barriers).tolist():
            members = barriers == barrier
            agent = clocks.engine(int(warps[np.argmax(members)]), barrier, asynchronous=False)
            agents[members] = agent
            marks[barrier] = np.zeros((2, clocks.known.shape[1]), np.int32)
            marks[barrier][0, agent] = stamp
        granules = self._granules(offsets, width)
        self._writer[granules] = agents[:, None]
        self._written[granules] = stamp
        return marks

    # ------------------------------------------------------------------------------- order

    def stamp(self, ins: Instruction) -> int:
        """Return the stamp of something that happens now."""
        return self.clocks.stamp(ins.line) if self.on else 0

    def all_know(self, stamp: int) -> bool:
        """Return whether all warps know what happened at a stamp, or nobody asks."""
        return not self._race or stamp <= self.clocks.low

    def knows(self, warps: Warps, other: int, stamp: int) -> NDArray[np.bool_]:
        """Return which of some warps know what another warp of the batch did at a stamp."""
        agent = other % self._domain_warps
        known: NDArray[np.bool_] = self.clocks.known[warps, agent] >= stamp
        return known

    def snapshot(self, warps: Warps) -> Clock | None:
        """Return what warps (batch-wide numbers, one domain) know and did, to be acquired."""
        return self.clocks.snapshot(warps) if self.on else None

    def join(self, clock: Clock | None, other: Clock | None) -> Clock | None:
        """Return the join of two clocks; either may be None."""
        return join(clock, other)

    def acquire(self, warps: Warps, clock: Clock | None) -> None:
        """Warps have waited for a clock: all before it is before what they do next."""
        if self.on and clock is not None:
            self.clocks.acquire(warps, clock)

    def exchange(self, groups: Warps) -> None:
        """Let the warps of each row (batch-wide numbers, each once) pass a barrier of their own."""
        if self.on and groups.size:
            self.clocks.exchange(groups)

    def fence(self, lanes: Lanes) -> None:
        """``fence`` or ``membar`` by lanes, which strong accesses may hand on."""
        if self._race and self._handshakes is not None:
            self._handshakes.fence(distinct(self._warps(lanes)))

    def fence_proxy(self, lanes: Lanes) -> None:
        """``fence.proxy.async`` by lanes: clean what their warps wrote, or know of."""
        if self._proxy:
            self.clocks.fence(distinct(self._warps(lanes)))

    # ------------------------------------------------------------------------------- the end

    def finish(self) -> None:
        """All threads are done: raise if a block ended before others were done with its memory."""
        if self._race and self._machine.shape.cluster_size > 1:
            for block in range(len(self._machine.blocks)):
                self._check_departure(block)

    def _check_departure(self, block: int) -> None:
        """Compare accesses to the memory of a block with what any of its warps knew at the end."""
        machine, stride = self._machine, self._machine.memory.stride
        warps = slice(block * machine.warps, (block + 1) * machine.warps)
        known = self.clocks.known[warps].max(axis=0)
        span = slice(block * stride >> self._shift, (block + 1) * stride >> self._shift)
        latest = np.zeros_like(known)
        writers = self._writer[span]
        by_warp = writers < self._domain_warps
        np.maximum.at(latest, writers[by_warp], self._written[span][by_warp])
        for accesses in (self._reads, self._atomics):
            if accesses is not None:
                rows = latest[: self._domain_warps]
                np.maximum(rows, accesses.stamps[:, span].max(axis=1, initial=0), out=rows)
        late = np.flatnonzero(latest > known)
        if len(late):
            raise self._departure_fault(block, int(late[0]), int(latest[late[0]]))

    def _departure_fault(self, block: int, agent: int, stamp: int) -> KernelFault:
        machine, line = self._machine, self.clocks.line(stamp)
        ins = next(ins for ins in machine.program.instructions if ins.line == line)
        first = block - block % machine.shape.cluster_size
        rank, warp = divmod(agent, machine.warps)
        lane = (first + rank) * machine.threads + warp * WARP
        return machine.fault(
            Race,
            ins,
            np.array([lane]),
            f"block {machine.blocks[block]} of the cluster, whose shared memory this accesses, may "
            "have ended by then",
            "Let all blocks of a cluster meet (barrier.cluster arrive and wait) after the last "
            "access to the shared memory of others.",
        )

    # ------------------------------------------------------------------------------- reports

    def _race_fault(
        self, ins: Instruction, lanes: Lanes, row: int, granule: int, what: str, deed: str
    ) -> KernelFault:
        remedy = _REUSE if what != "read" and deed.startswith(("a read", "reads")) else _BARRIER
        return self._machine.fault(
            Race,
            ins,
            self._machine.indices(lanes)[row : row + 1],
            f"this {what} of shared memory at {self._place(granule)} is not ordered after {deed}",
            remedy,
        )

    def _open_fault(
        self, ins: Instruction, lanes: Lanes, row: int, granule: int, what: str
    ) -> KernelFault:
        token = next(
            token
            for token in self._open.values()
            if np.any(token.granules == granule >> (token.shift - self._shift))
        )
        deed = f"reads that go on: issued at PTX line {token.line} and not yet waited for"
        return self._race_fault(ins, lanes, row, granule, what, deed)

    def _async_read_fault(
        self, ins: Instruction, lane: int, granule: int, known: Stamps
    ) -> KernelFault:
        stamp, agent = int(self._written[granule]), int(self._writer[granule])
        deed, lanes = self._deed("write", agent, stamp), np.array([lane])
        if self._race and stamp > known[agent]:
            return self._race_fault(ins, lanes, 0, granule, "read", deed)
        return self._machine.fault(
            MissingProxyFence,
            ins,
            lanes,
            f"the asynchronous proxy reads shared memory at {self._place(granule)}; {deed} came "
            "through the generic proxy, and no proxy fence is between them",
            _FENCE,
        )

    def _place(self, granule: int) -> str:
        stride = self._machine.memory.stride
        block, offset = divmod(granule << self._shift, stride)
        size = 1 << self._shift
        span = f"bytes {offset} to {offset + size - 1}" if size > 1 else f"byte {offset}"
        if self._machine.shape.cluster_size == 1:
            return span
        return f"{span} of block {self._machine.blocks[block]}"

    def _deed(self, what: str, agent: int, stamp: int) -> str:
        line = self.clocks.line(stamp)
        if agent < self._domain_warps:
            rank, warp = divmod(agent, self._machine.warps)
            block = "" if self._machine.shape.cluster_size == 1 else f" of block rank {rank}"
            who = f"warp {warp}{block}"
        elif agent < self.clocks.bulk_reader:
            who = f"wgmma of warpgroup {agent - self._domain_warps}"
        else:
            who = "an asynchronous copy"
        article = "an" if what[0] == "a" else "a"
        return f"{article} {what} by {who} at PTX line {line}"


def _uses_async_proxy(machine: Machine) -> bool:
    return any(
        ins.opcode == "wgmma" or (ins.opcode == "cp" and "bulk" in ins.modifiers)
        for ins in machine.program.instructions
    )
