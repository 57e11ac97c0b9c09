"""Barriers of blocks (named ones), of warps and of clusters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sdpakit.ptxemu.errors import BarrierMisuse
from sdpakit.ptxemu.scalars import Array
from sdpakit.ptxemu.warps import WARP, WarpView
from sdpakit.ptxemu.wording import threads_in_words

if TYPE_CHECKING:
    from sdpakit.ptxemu.machine import Lanes, Machine
    from sdpakit.ptxemu.program import Instruction

NUMBERS = 16  # barriers of a block
_RUNNING, _WAITING = 0, 1  # as in machine.py, which imports this module


@dataclass(slots=True)
class Reduction:
    """What ``bar.red`` brings: a predicate of each lane, and what to do when all are there.

    `deliver` gets the lanes that waited, how many predicates were true, and how many there were.
    """

    predicates: NDArray[np.bool_]
    deliver: Callable[[NDArray[np.intp], int, int], None]


@dataclass(slots=True)
class _Round:
    """One round of one barrier, from its first arrival to its completion.

    `everyone` says that it is for all threads of the block that have not ended; else `needs`
    counts.
    """

    needs: int
    everyone: bool
    reduces: bool
    ins: Instruction
    arrived: int = 0
    lanes: list[NDArray[np.intp]] = field(default_factory=list)
    waiting: list[tuple[NDArray[np.intp], Instruction]] = field(default_factory=list)
    results: list[tuple[NDArray[np.intp], Reduction]] = field(default_factory=list)
    true: int = 0
    clock: Any = None


class NamedBarriers:
    """``bar`` and ``barrier``: barriers 0 to 15 of each block; `warps` and `clusters` have theirs.

    A barrier with a count counts threads. A warp of which some threads have ended counts as 32 when
    the rest arrives, as on the device, and so does the last warp of a block that is no multiple
    of 32.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._rounds: dict[tuple[int, int], _Round] = {}
        self.warps = WarpBarriers(machine)
        self.clusters = ClusterBarriers(machine)

    def arrive(
        self,
        ins: Instruction,
        lanes: Lanes,
        numbers: Array,
        counts: Array | None,
        *,
        waits: bool,
        reduction: Reduction | None = None,
    ) -> None:
        """Have lanes arrive at barriers (a number a lane, or one for all), and wait if `waits`."""
        self._check(ins, lanes, numbers, counts)
        if reduction is None and waits and self._all_at_once(lanes, numbers, counts):
            return
        machine = self._machine
        indices = machine.indices(lanes)
        keys = machine.lane_block[lanes] * NUMBERS + numbers
        for key in np.unique(keys):
            here = np.flatnonzero(keys == key)
            block, number = divmod(int(key), NUMBERS)
            count = None if counts is None else int(counts[here[0] if len(counts) > 1 else 0])
            entered = self._enter(ins, indices[here], (block, number), count, reduction is not None)
            if waits:
                machine.state[indices[here]] = _WAITING
                entered.waiting.append((indices[here], ins))
            if reduction is not None:
                entered.true += int(np.count_nonzero(reduction.predicates[here]))
                entered.results.append((indices[here], reduction))
            self._complete((block, number))

    def settle(self) -> bool:
        """Release barriers that the end of threads completed; return whether any lane runs."""
        found = [self._complete(key) for key in list(self._rounds)]
        return any([*found, self.warps.settle(), self.clusters.settle()])

    def waiting(self) -> list[str]:
        """Return one line for each barrier that somebody waits at, for the deadlock report."""
        lines = []
        for (block, number), entered in self._rounds.items():
            where = f"block {self._machine.blocks[block]}: barrier {number}"
            has = f"has {entered.arrived} of {entered.needs} threads"
            lines.append(f"{where} {has}; {_who(self._machine, entered.waiting)}")
        return [*lines, *self.warps.waiting(), *self.clusters.waiting()]

    def _check(self, ins: Instruction, lanes: Lanes, numbers: Array, counts: Array | None) -> None:
        bad = numbers >= NUMBERS
        problem = f"there is no barrier {numbers.max()}"
        if not bad.any() and counts is not None:
            bad = (counts % WARP != 0) | (counts == 0)
            problem = f"a barrier for {counts[bad][0] if bad.any() else 0} threads"
        if bad.any():
            remedy = "barriers have numbers 0 to 15, and counts that are multiples of 32"
            bad = np.broadcast_to(bad, self._machine.size(lanes))
            raise self._machine.fault(BarrierMisuse, ins, lanes, problem, remedy, bad)

    def _all_at_once(self, lanes: Lanes, numbers: Array, counts: Array | None) -> bool:
        """Complete barriers that whole blocks reach together, the usual case, cheaply."""
        machine = self._machine
        if self._rounds or (numbers != numbers[0]).any():
            return False
        if counts is not None and (counts != machine.warps * WARP).any():
            return False
        blocks = len(machine.blocks)
        here = np.arange(blocks)
        if not isinstance(lanes, slice):
            found = np.bincount(machine.lane_block[lanes], minlength=blocks)
            needed = np.count_nonzero(machine.living().reshape(blocks, -1), axis=1)
            if counts is not None:
                needed[...] = machine.threads  # a count is no less for threads that have ended
            if (needed[found > 0] != found[found > 0]).any():
                return False
            here = np.flatnonzero(found)
        if machine.checks.race:
            warps = machine.warp_views.of(lanes).warps
            for block in here:
                of_block = warps[warps // machine.warps == block]
                machine.races.acquire(of_block, machine.races.snapshot(of_block))
        return True

    def _enter(
        self,
        ins: Instruction,
        lanes: NDArray[np.intp],
        key: tuple[int, int],
        count: int | None,
        reduces: bool,  # noqa: FBT001  of one call
    ) -> _Round:
        """Count lanes of one block at one barrier; return the round."""
        machine = self._machine
        needs = machine.warps * WARP if count is None else count
        entered = self._rounds.get(key)
        if entered is None:
            entered = self._rounds[key] = _Round(needs, count is None, reduces, ins)
        warps = np.unique(machine.lane_warp[lanes])
        entered.arrived += len(lanes) + self._ended(warps, entered)
        entered.everyone |= count is None
        entered.lanes.append(lanes)
        if machine.checks.barrier:
            self._agree(entered, ins, lanes, needs, key[1], reduces=reduces)
        clock = machine.races.snapshot(warps)
        entered.clock = clock if entered.clock is None else machine.races.join(entered.clock, clock)
        return entered

    def _ended(self, warps: NDArray[np.intp], entered: _Round) -> int:
        """Return how many threads of warps that are new to the round have ended."""
        machine = self._machine
        before = [machine.lane_warp[lanes] for lanes in entered.lanes]
        new = np.setdiff1d(warps, np.concatenate(before)) if before else warps
        return WARP * len(new) - int(np.count_nonzero(machine.living_rows()[new]))

    def _agree(
        self,
        entered: _Round,
        ins: Instruction,
        lanes: NDArray[np.intp],
        needs: int,
        number: int,
        *,
        reduces: bool,
    ) -> None:
        """Raise if an arrival does not fit those before it."""
        if entered.needs != needs:
            problem = (
                f"barrier {number} is for {needs} threads here, "
                f"but for {entered.needs} at line {entered.ins.line}"
            )
            remedy = "all threads that meet at a barrier must give the same count"
        elif entered.arrived > entered.needs:
            problem = (
                f"{entered.arrived} threads arrived at barrier {number}, "
                f"which is for {entered.needs}"
            )
            remedy = (
                "give the barrier the number of all threads that arrive, or use another barrier"
            )
        elif entered.reduces != reduces:
            problem = (
                f"bar.red and bar.sync meet at barrier {number} "
                f"(the other at line {entered.ins.line})"
            )
            remedy = "let all threads of a round execute the same kind"
        else:
            return
        raise self._machine.fault(BarrierMisuse, ins, lanes, problem, remedy)

    def _complete(self, key: tuple[int, int]) -> bool:
        """Release a barrier if it is complete; return whether it is, and somebody waited."""
        machine, entered = self._machine, self._rounds[key]
        if entered.arrived < entered.needs:
            if not entered.everyone:
                return False
            missing = machine.living().reshape(-1, machine.threads)[key[0]].copy()
            missing[np.concatenate(entered.lanes) % machine.threads] = False
            if missing.any():
                return False
        del self._rounds[key]
        for lanes, reduction in entered.results:
            members = sum(map(len, entered.lanes))
            reduction.deliver(lanes, entered.true, members)
        for lanes, _ in entered.waiting:
            machine.state[lanes] = _RUNNING
            machine.races.acquire(np.unique(machine.lane_warp[lanes]), entered.clock)
        return bool(entered.waiting)


class WarpBarriers:
    """``bar.warp.sync``: lanes wait until all lanes that they name wait too, or have ended."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._masks = np.zeros(machine.lanes, np.uint32)
        self._site: dict[int, Instruction] = {}

    def arrive(self, ins: Instruction, lanes: Lanes, masks: NDArray[np.uint32]) -> None:
        """Have lanes wait for the lanes that they name."""
        machine = self._machine
        if not self._site and machine.warp_views.of(lanes).complete(machine, WARP):
            return
        indices = machine.indices(lanes)
        self._masks[indices] = masks
        machine.state[indices] = _WAITING
        self._site.update(dict.fromkeys(indices.tolist(), ins))
        self.settle()

    def settle(self) -> bool:
        """Release lanes that need not wait any longer; return whether there are any."""
        if not self._site:
            return False
        lanes = np.array(sorted(self._site))
        view = WarpView(self._machine, lanes)
        released = lanes[~view.late_of_masks(self._machine, self._masks[lanes])]
        self._machine.state[released] = _RUNNING
        for lane in released.tolist():
            del self._site[lane]
        return len(released) > 0

    def waiting(self) -> list[str]:
        """Return one line for each warp of which lanes wait."""
        lines = []
        lanes = np.array(sorted(self._site), np.intp)
        for warp in np.unique(self._machine.lane_warp[lanes]):
            here = lanes[self._machine.lane_warp[lanes] == warp]
            block = self._machine.blocks[here[0] // self._machine.threads]
            mask = int(self._masks[here[0]])
            who = _who(self._machine, [(here, self._site[int(here[0])])])
            lines.append(f"block {block}: bar.warp.sync for lanes 0x{mask:08x}; {who}")
        return lines


# Where a lane stands in the two halves of barrier.cluster.
_AWAY, _ARRIVED, _MAY_PASS = 0, 1, 2


class ClusterBarriers:
    """``barrier.cluster``: each lane arrives, then waits, in turn."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._clusters = machine.lane_block // machine.shape.cluster_size
        self._stage = np.zeros(machine.lanes, np.uint8)
        self._waits = np.zeros(machine.lanes, bool)
        self._site: dict[int, Instruction] = {}
        count = int(self._clusters[-1]) + 1
        self._arriving: list[Any] = [None] * count
        self._passing: list[Any] = [None] * count

    def arrive(self, ins: Instruction, lanes: Lanes, *, releases: bool) -> None:
        """Have lanes arrive; `releases` orders what they did before what waits for them."""
        machine = self._machine
        self._refuse(
            ins, lanes, self._stage[lanes] != _AWAY, "arrives twice", "wait after each arrive"
        )
        self._stage[lanes] = _ARRIVED
        if releases:
            for cluster, warps in self._parts(machine.indices(lanes)):
                clock, before = machine.races.snapshot(warps), self._arriving[cluster]
                joined = clock if before is None else machine.races.join(before, clock)
                self._arriving[cluster] = joined
        self.settle()

    def wait(self, ins: Instruction, lanes: Lanes) -> None:
        """Have lanes wait until all threads of their cluster have arrived that have not ended."""
        self._refuse(
            ins,
            lanes,
            self._stage[lanes] == _AWAY,
            "waits but has not arrived",
            "arrive before the wait",
        )
        indices = self._machine.indices(lanes)
        passes = self._stage[indices] == _MAY_PASS
        self._pass(indices[passes])
        blocked = indices[~passes]
        self._waits[blocked] = True
        self._machine.state[blocked] = _WAITING
        for cluster in np.unique(self._clusters[blocked]):
            self._site[int(cluster)] = ins

    def settle(self) -> bool:
        """Complete rounds that all lanes of a cluster arrived for; return whether any runs."""
        arrived = self._stage == _ARRIVED
        if not arrived.any():
            return False
        missing = np.bincount(self._clusters, weights=self._machine.living() & ~arrived) > 0
        complete = arrived & ~missing[self._clusters]
        if not complete.any():
            return False
        for cluster in np.unique(self._clusters[complete]):
            self._passing[cluster], self._arriving[cluster] = self._arriving[cluster], None
        self._stage[complete] = _MAY_PASS
        released = np.flatnonzero(complete & self._waits)
        self._waits[released] = False
        self._machine.state[released] = _RUNNING
        self._pass(released)
        return len(released) > 0

    def waiting(self) -> list[str]:
        """Return one line for each cluster in which somebody waits."""
        lines = []
        for cluster in np.unique(self._clusters[self._waits]):
            mine = self._clusters == cluster
            living = self._machine.living() & mine
            first = self._machine.blocks[int(np.flatnonzero(mine)[0]) // self._machine.threads]
            arrived = int(np.count_nonzero(living & (self._stage == _ARRIVED)))
            ins = self._site[int(cluster)]
            waiting = int(np.count_nonzero(self._waits & mine))
            lines.append(
                f"cluster of block {first}: barrier.cluster has {arrived} of {int(living.sum())} "
                f"threads; {waiting} wait at line {ins.line} ({ins.text})"
            )
        return lines

    def _pass(self, lanes: NDArray[np.intp]) -> None:
        self._stage[lanes] = _AWAY
        for cluster, warps in self._parts(lanes):
            if self._passing[cluster] is not None:
                self._machine.races.acquire(warps, self._passing[cluster])

    def _parts(self, lanes: NDArray[np.intp]) -> Iterator[tuple[int, NDArray[np.intp]]]:
        """Yield the clusters of lanes with the warps of each that are among them."""
        for cluster in np.unique(self._clusters[lanes]):
            here = lanes[self._clusters[lanes] == cluster]
            yield int(cluster), np.unique(self._machine.lane_warp[here])

    def _refuse(
        self, ins: Instruction, lanes: Lanes, bad: NDArray[np.bool_], what: str, remedy: str
    ) -> None:
        if bad.any() and self._machine.checks.barrier:
            problem = f"a thread {what} at the barrier of its cluster"
            raise self._machine.fault(BarrierMisuse, ins, lanes, problem, remedy, bad)


def _who(machine: Machine, waiting: list[tuple[NDArray[np.intp], Instruction]]) -> str:
    if not waiting:
        return "nobody waits for it"
    lines: dict[Instruction, list[NDArray[np.intp]]] = {}
    for lanes, ins in waiting:
        lines.setdefault(ins, []).append(lanes)
    return ", ".join(
        f"{threads_in_words(machine, np.concatenate(parts))} wait at line {ins.line} ({ins.text})"
        for ins, parts in lines.items()
    )
