"""mbarrier objects: phases, arrivals, transaction counts, and who waits.

Both kinds of wait may return false: ``test_wait`` at once, ``try_wait`` after some time, and time
means nothing here. So the first wait of a lane for a phase that is not over returns false at once,
which a kernel without a loop around it does not survive. The next one blocks until the phase
completes or, if the lanes would wait for ever otherwise, returns false, too: a kernel may have
something else to do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sdpakit.ptxemu.clocks import Clock, distinct
from sdpakit.ptxemu.errors import BarrierMisuse, KernelFault, Race
from sdpakit.ptxemu.memory import BARRIER, UNWRITTEN
from sdpakit.ptxemu.operands import Writer
from sdpakit.ptxemu.program import Instruction
from sdpakit.ptxemu.scalars import Array
from sdpakit.ptxemu.words import Offsets, fill

if TYPE_CHECKING:
    from sdpakit.ptxemu.machine import Lanes, Machine

_RUNNING, _WAITING = 0, 1  # as in machine.py, which imports this module

BARRIER_BYTES = 8
MOST_ARRIVALS = MOST_TRANSACTIONS = (1 << 20) - 1

# Waits that return false in a row while nothing else happens: more is a deadlock.
_PATIENCE = 4

# A state, as `arrive` returns it: the phase in its upper half, arrivals pending before it in
# the lower.
_PHASE_SHIFT, _PHASE_MASK, _PENDING_MASK = 32, (1 << 31) - 1, (1 << 32) - 1


@dataclass(slots=True, eq=False)
class Wait:
    """Lanes that wait for a phase, and where they want to know it."""

    ins: Instruction
    lanes: NDArray[np.intp]
    phase: NDArray[np.int64]
    parity_only: bool
    writer: Writer
    acquires: bool

    def done(self, phase: int) -> NDArray[np.bool_]:
        """Return which lanes need not wait if a barrier is in a phase."""
        if self.parity_only:
            return ((self.phase ^ phase) & 1).astype(bool)
        other: NDArray[np.bool_] = self.phase != phase & _PHASE_MASK
        return other

    def of(self, chosen: NDArray[np.bool_] | NDArray[np.intp]) -> Wait:
        """Return the wait of some of the lanes."""
        return Wait(
            self.ins,
            self.lanes[chosen],
            self.phase[chosen],
            self.parity_only,
            self.writer,
            self.acquires,
        )


@dataclass(slots=True, eq=False)
class MBarrier:
    """One object.

    Attributes
    ----------
    offset : int
        Into `Memory.shared`.
    expected, pending : int
        Arrivals of a phase, and how many of them are missing.
    transactions : int
        Bytes that were announced and did not arrive; below 0 if they arrived first.
    phase : int
        Phases that completed.
    clock : Clock or None
        What the arrivals of this phase and of all before know.
    completed : Clock or None
        What waiters of completed phases learn.
    maker, made : int
        Warp and stamp of the init, which every use must come after.
    waits : list of Wait
        Who waits.
    """

    offset: int
    expected: int
    pending: int
    maker: int
    made: int
    transactions: int = 0
    phase: int = 0
    clock: Clock | None = None
    completed: Clock | None = None
    waits: list[Wait] = field(default_factory=list)


class MBarriers:
    """mbarrier objects of a batch, by offset into `Memory.shared`."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._barriers: dict[int, MBarrier] = {}
        self._impatience = 0
        self._failed = np.zeros(machine.lanes, bool)  # lanes whose last wait returned false

    # ------------------------------------------------------------------------------- operations

    def initialise(self, ins: Instruction, lanes: Lanes, offsets: Offsets, counts: Array) -> None:
        """Make objects at offsets, one a lane, that expect so many arrivals."""
        machine = self._machine
        bad = (counts < 1) | (counts > MOST_ARRIVALS)
        if bad.any():
            raise machine.fault(
                BarrierMisuse,
                ins,
                lanes,
                f"an mbarrier for {int(counts[bad][0])} arrivals",
                f"Initialise it with a count from 1 to {MOST_ARRIVALS}.",
                bad,
            )
        warps = machine.lane_warp[lanes]
        for index, offset in enumerate(offsets.tolist()):
            if machine.checks.barrier and offset in self._barriers:
                raise self._misuse(
                    ins,
                    lanes,
                    index,
                    f"the mbarrier at {self.place(offset)} is initialised again",
                    "Let one thread initialise it, once; mbarrier.inval frees its place again.",
                )
            count = int(counts[index])
            made = machine.races.stamp(ins)
            self._barriers[offset] = MBarrier(offset, count, count, int(warps[index]), made)
        machine.races.write(ins, lanes, offsets, BARRIER_BYTES)
        fill(machine.memory.shared_state, offsets, BARRIER_BYTES, BARRIER)

    def invalidate(self, ins: Instruction, lanes: Lanes, offsets: Offsets) -> None:
        """End objects, so that their bytes may be used otherwise."""
        for barrier, members in self._each(ins, lanes, offsets):
            if self._machine.checks.barrier and barrier.waits:
                raise self._misuse(
                    ins,
                    lanes,
                    int(members[0]),
                    f"the mbarrier at {self.place(barrier.offset)} ends while threads wait for it",
                    "Put a barrier of all its users before mbarrier.inval.",
                )
            del self._barriers[barrier.offset]
        fill(self._machine.memory.shared_state, offsets, BARRIER_BYTES, UNWRITTEN)

    def expect(self, ins: Instruction, lanes: Lanes, offsets: Offsets, transactions: Array) -> None:
        """Announce bytes, so many a lane."""
        for barrier, members in self._each(ins, lanes, offsets):
            barrier.transactions += int(transactions[members].sum())
            if abs(barrier.transactions) > MOST_TRANSACTIONS and self._machine.checks.barrier:
                raise self._misuse(
                    ins,
                    lanes,
                    int(members[0]),
                    f"{barrier.transactions} bytes expected at {self._name(barrier)}",
                    f"Expect at most {MOST_TRANSACTIONS} bytes in a phase.",
                )

    def arrive(
        self, ins: Instruction, lanes: Lanes, offsets: Offsets, counts: Array, *, drop: bool = False
    ) -> Array:
        """Arrive, so many times a lane; return the states before, one a lane.

        With `drop`, later phases expect so many arrivals fewer.
        """
        states = np.zeros(len(offsets), np.uint64)
        for barrier, members in self._each(ins, lanes, offsets):
            before = barrier.pending - (np.cumsum(counts[members]) - counts[members])
            pending = np.maximum(before, 0).astype(np.uint64)
            phase = (barrier.phase & _PHASE_MASK) << _PHASE_SHIFT
            states[members] = np.uint64(phase) | pending
            if "relaxed" not in ins.modifiers:
                warps = distinct(self._machine.lane_warp[self._machine.indices(lanes)[members]])
                self._release(barrier, self._machine.races.snapshot(warps))
            total = int(counts[members].sum())
            if drop:
                barrier.expected -= total
            self._count(ins, lanes, int(members[0]), barrier, total)
        return states

    def arrive_late(
        self, ins: Instruction, lanes: Lanes, offset: int, count: int, clock: Clock | None
    ) -> None:
        """Arrive for copies that completed, with what they know."""
        barrier = self._find(ins, lanes, 0, offset)
        self._release(barrier, clock)
        self._count(ins, lanes, 0, barrier, count)

    def add_pending(self, ins: Instruction, lanes: Lanes, offsets: Offsets) -> None:
        """Expect one more arrival in this phase for each lane."""
        for barrier, members in self._each(ins, lanes, offsets):
            barrier.pending += len(members)

    def complete(
        self, ins: Instruction, lanes: Lanes, offset: int, transactions: int, clock: Clock | None
    ) -> None:
        """Bytes arrived (by instruction and lane that sent them)."""
        barrier = self._find(ins, lanes, 0, offset)
        self._release(barrier, clock)
        barrier.transactions -= transactions
        self._impatience = 0
        if barrier.transactions < 0 and not barrier.pending and self._machine.checks.barrier:
            raise self._misuse(
                ins,
                lanes,
                0,
                f"{-barrier.transactions} bytes more arrive at {self._name(barrier)} than were "
                "expected, after all its arrivals",
                "Let expect_tx announce all bytes of the copies that complete on the mbarrier.",
            )
        self._advance(barrier)

    def wait(self, offsets: Offsets, wait: Wait) -> None:
        """Let lanes, one offset each, wait: the result is true at once, or they block."""
        for barrier, members in self._each(wait.ins, wait.lanes, offsets):
            part = wait if len(members) == len(offsets) else wait.of(members)
            done = part.done(barrier.phase)
            if done.any():
                self._pass(barrier, part if done.all() else part.of(done))
            if not done.all():
                self._fail_or_block(barrier, part.of(~done))

    def _fail_or_block(self, barrier: MBarrier, wait: Wait) -> None:
        again = self._failed[wait.lanes]
        if again.any():
            blocked = wait if again.all() else wait.of(again)
            self._machine.state[blocked.lanes] = _WAITING
            barrier.waits.append(blocked)
        if not again.all():
            self._resume(wait.of(~again), result=False)

    def require(self, ins: Instruction, lanes: Lanes, offsets: Offsets) -> None:
        """Raise unless there is an object at each offset."""
        for _ in self._each(ins, lanes, offsets):
            pass

    def time_out(self) -> bool:
        """Let all waits return false, as nothing else can happen; return whether that may help."""
        waits = [wait for barrier in self._barriers.values() for wait in barrier.waits]
        self._impatience += 1
        if not waits or self._impatience > _PATIENCE:
            return False
        for barrier in self._barriers.values():
            barrier.waits.clear()
        for wait in waits:
            self._resume(wait, result=False)
        return True

    # ------------------------------------------------------------------------------- phases

    def _release(self, barrier: MBarrier, clock: Clock | None) -> None:
        barrier.clock = self._machine.races.join(barrier.clock, clock)

    def _count(
        self, ins: Instruction, lanes: Lanes, index: int, barrier: MBarrier, count: int
    ) -> None:
        """Count arrivals; more than are missing go on into the next phase if this one completes."""
        self._impatience = 0
        while count:
            if barrier.pending <= 0:
                if not self._machine.checks.barrier:
                    return
                raise self._misuse(
                    ins,
                    lanes,
                    index,
                    f"{self._name(barrier)} is arrived at once more than the {barrier.expected} "
                    f"times that it expects; its phase still lacks {barrier.transactions} bytes",
                    "Let the one who arrives wait first until the phase before is over (an `empty` "
                    "mbarrier), or initialise it with the right count.",
                )
            now = min(count, barrier.pending)
            barrier.pending -= now
            count -= now
            self._advance(barrier)

    def _advance(self, barrier: MBarrier) -> None:
        """Complete the phase if it lacks nothing, and wake who waits for that."""
        if barrier.pending or barrier.transactions:
            return
        barrier.phase += 1
        barrier.pending = barrier.expected
        barrier.completed = barrier.clock
        waits, barrier.waits = barrier.waits, []
        for wait in waits:
            done = wait.done(barrier.phase)
            if done.any():
                self._pass(barrier, wait if done.all() else wait.of(done))
            if not done.all():
                barrier.waits.append(wait.of(~done))

    def _pass(self, barrier: MBarrier, wait: Wait) -> None:
        if wait.acquires and barrier.completed is not None:
            warps = distinct(self._machine.lane_warp[wait.lanes])
            self._machine.races.acquire(warps, barrier.completed)
        self._resume(wait, result=True)

    def _resume(self, wait: Wait, *, result: bool) -> None:
        self._machine.state[wait.lanes] = _RUNNING
        self._failed[wait.lanes] = not result
        wait.writer(self._machine, wait.lanes, np.array([result]))

    # ------------------------------------------------------------------------------- finding

    def _each(
        self, ins: Instruction, lanes: Lanes, offsets: Offsets
    ) -> Iterator[tuple[MBarrier, NDArray[np.intp]]]:
        """Yield each object that lanes name, and their positions among the lanes."""
        if len(offsets) == 1:
            yield self._use(ins, lanes, np.zeros(1, np.intp), int(offsets[0]))
            return
        found, inverse = np.unique(offsets, return_inverse=True)
        order = np.argsort(inverse, kind="stable")
        ends = np.cumsum(np.bincount(inverse))
        for offset, end, begin in zip(found.tolist(), ends, np.r_[0, ends], strict=False):
            yield self._use(ins, lanes, order[begin:end], offset)

    def _use(
        self, ins: Instruction, lanes: Lanes, members: NDArray[np.intp], offset: int
    ) -> tuple[MBarrier, NDArray[np.intp]]:
        barrier = self._find(ins, lanes, int(members[0]), offset)
        if self._machine.races.all_know(barrier.made):
            return barrier, members
        warps = self._machine.lane_warp[self._machine.indices(lanes)[members]]
        unaware = ~self._machine.races.knows(warps, barrier.maker, barrier.made)
        if unaware.any():
            member = int(members[int(np.argmax(unaware))])
            lane = self._machine.indices(lanes)[member : member + 1]
            raise self._machine.fault(
                Race,
                ins,
                lane,
                f"{self._name(barrier)} is used, and nothing orders that after its mbarrier.init",
                "Put a barrier after mbarrier.init: bar.sync in a block; in a cluster "
                "fence.mbarrier_init.release.cluster and barrier.cluster arrive and wait.",
            )
        return barrier, members

    def _find(self, ins: Instruction, lanes: Lanes, index: int, offset: int) -> MBarrier:
        barrier = self._barriers.get(offset)
        if barrier is None:
            raise self._misuse(
                ins,
                lanes,
                index,
                f"there is no mbarrier at {self.place(offset)}",
                "Initialise it with mbarrier.init, then put a barrier, or correct the address.",
            )
        return barrier

    def _misuse(
        self, ins: Instruction, lanes: Lanes, index: int, problem: str, remedy: str
    ) -> KernelFault:
        lane = self._machine.indices(lanes)[index : index + 1]
        return self._machine.fault(BarrierMisuse, ins, lane, problem, remedy)

    # ------------------------------------------------------------------------------- reports

    def place(self, offset: int) -> str:
        """Return an offset into shared memory in words."""
        block, address = divmod(offset, self._machine.memory.stride)
        return f"shared address {address} of block {self._machine.blocks[block]}"

    def _name(self, barrier: MBarrier) -> str:
        return f"the mbarrier at {self.place(barrier.offset)}, in phase {barrier.phase}"

    def waiting(self) -> list[str]:
        """Return one line for each wait: who, for which phase, and what that lacks."""
        return [
            f"{len(wait.lanes)} threads wait at PTX line {wait.ins.line}, the first of them thread "
            f"{int(wait.lanes[0]) % self._machine.threads}, for {self._name(barrier)} "
            f"(parity {barrier.phase & 1}), which lacks {_lacks(barrier)}"
            for barrier in self._barriers.values()
            for wait in barrier.waits
        ]


def _lacks(barrier: MBarrier) -> str:
    parts = [f"{barrier.pending} of {barrier.expected} arrivals"]
    if barrier.transactions > 0:
        parts.append(f"{barrier.transactions} bytes that were expected")
    if barrier.transactions < 0:
        parts.append(f"an announcement of {-barrier.transactions} bytes that came")
    return " and ".join(parts)


def states_phase(states: Array) -> NDArray[np.int64]:
    """Return the phases in states that `arrive` returned."""
    return (states >> np.uint64(_PHASE_SHIFT)).astype(np.int64)


def states_pending(states: Array) -> Array:
    """Return the pending counts in states that `arrive` returned."""
    return (states & np.uint64(_PENDING_MASK)).astype(np.uint32)
