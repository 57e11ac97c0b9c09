"""Barriers of blocks (named ones), of warps and of clusters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sdpakit.ptxemu.errors import BarrierMisuse, KernelFault
from sdpakit.ptxemu.scalars import Array
from sdpakit.ptxemu.warps import WARP, WarpView
from sdpakit.ptxemu.wording import threads_in_words

if TYPE_CHECKING:
    from sdpakit.ptxemu.machine import Lanes, Machine
    from sdpakit.ptxemu.program import Instruction

NUMBERS = 16  # barriers of a block
_KEPT = 16  # how many groups of lanes, with their barrier, are kept in parts
_RUNNING, _WAITING = 0, 1  # as in machine.py, which imports this module


@dataclass(slots=True)
class Reduction:
    """What ``bar.red`` brings: a predicate of each lane, and what to do when all are there.

    `deliver` gets the lanes that waited, how many predicates were true, and how many there were.
    """

    predicates: NDArray[np.bool_]
    deliver: Callable[[NDArray[np.intp], int, int], None]


@dataclass(slots=True)
class _Part:
    """Lanes of one block that come to one barrier: where they stand among all, and whose."""

    key: tuple[int, int]
    where: slice | NDArray[np.intp]
    lanes: NDArray[np.intp]
    warps: NDArray[np.intp]


@dataclass(slots=True)
class _Round:
    """One round of one barrier, from its first arrival to its completion.

    `everyone` says that it is for all threads of the block that have not ended; else `needs`
    counts. `clock` is what those knew who arrived and went on.
    """

    needs: int
    everyone: bool
    reduces: bool
    ins: Instruction
    arrived: int = 0
    parts: list[_Part] = field(default_factory=list)
    waiting: list[tuple[_Part, Instruction]] = field(default_factory=list)
    results: list[tuple[_Part, Reduction]] = field(default_factory=list)
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
        self._kept: dict[tuple[int, int], tuple[Lanes, list[_Part]]] = {}
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
        machine = self._machine
        parts = self._parts(lanes, numbers)
        if reduction is None and waits and self._all_at_once(lanes, parts, counts):
            return
        if waits:
            machine.state[lanes] = _WAITING
        some_ended = bool(machine.threads % WARP) or not machine.living().all()
        for part in parts:
            entered = self._enter(ins, part, counts, reduces=reduction is not None)
            entered.arrived += len(part.lanes) + (self._ended(part, entered) if some_ended else 0)
            entered.parts.append(part)
            if machine.checks.barrier and entered.arrived > entered.needs:
                raise self._overrun(entered, ins, part)
            if waits:
                entered.waiting.append((part, ins))
            else:
                clock = machine.races.snapshot(part.warps)
                entered.clock = machine.races.join(entered.clock, clock)
            if reduction is not None:
                entered.true += int(np.count_nonzero(reduction.predicates[part.where]))
                entered.results.append((part, reduction))
        self._release([part.key for part in parts if self._is_complete(part.key)])

    def settle(self) -> bool:
        """Release barriers that the end of threads completed; return whether any lane runs."""
        found = self._release([key for key in self._rounds if self._is_complete(key)])
        return any([found, self.warps.settle(), self.clusters.settle()])

    def waiting(self) -> list[str]:
        """Return one line for each barrier that somebody waits at, for the deadlock report."""
        lines = []
        for (block, number), entered in self._rounds.items():
            where = f"block {self._machine.blocks[block]}: barrier {number}"
            has = f"has {entered.arrived} of {entered.needs} threads"
            who = _who(self._machine, [(part.lanes, ins) for part, ins in entered.waiting])
            lines.append(f"{where} {has}; {who}")
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

    def _parts(self, lanes: Lanes, numbers: Array) -> list[_Part]:
        """Return lanes by block and barrier; the parts for one number are kept for next time."""
        number = int(numbers[0])
        if (numbers != number).any():
            return self._split(lanes, numbers)
        key = (-1 if isinstance(lanes, slice) else id(lanes), number)
        found = self._kept.get(key)
        if found is None:
            if len(self._kept) == _KEPT:
                del self._kept[next(iter(self._kept))]
            found = self._kept[key] = lanes, self._split(lanes, numbers)
        return found[1]  # with its lanes, so that no other array has their id

    def _split(self, lanes: Lanes, numbers: Array) -> list[_Part]:
        machine = self._machine
        indices, warps = machine.indices(lanes), machine.lane_warp[lanes]
        keys = machine.lane_block[lanes] * NUMBERS + numbers.astype(np.intp)
        parts = []
        for key in np.unique(keys).tolist():
            where = np.flatnonzero(keys == key)
            of_key = slice(int(where[0]), int(where[-1]) + 1)
            chosen = of_key if of_key.stop - of_key.start == len(where) else where
            block_and_number = divmod(key, NUMBERS)
            parts.append(_Part(block_and_number, chosen, indices[chosen], np.unique(warps[chosen])))
        return parts

    def _all_at_once(self, lanes: Lanes, parts: list[_Part], counts: Array | None) -> bool:
        """Complete barriers that whole blocks reach together, the usual case, cheaply."""
        machine = self._machine
        if any(part.key in self._rounds for part in parts):
            return False
        if counts is not None and (counts != machine.warps * WARP).any():
            return False
        if not isinstance(lanes, slice):
            blocks = machine.living().reshape(-1, machine.threads)
            needed = np.count_nonzero(blocks, axis=1)
            if counts is not None:
                needed[...] = machine.threads  # a count is no less for threads that have ended
            if any(len(part.lanes) != needed[part.key[0]] for part in parts):
                return False
        elif len(parts) != len(machine.blocks):
            return False
        self._exchange([part.warps for part in parts])
        return True

    def _exchange(self, members: list[NDArray[np.intp]]) -> None:
        """Let warps that met know of each other; `members` are those of each barrier."""
        if not self._machine.races.on:
            return
        for size in {len(warps) for warps in members}:
            rows = [warps for warps in members if len(warps) == size]
            self._machine.races.exchange(np.stack(rows))

    def _enter(
        self, ins: Instruction, part: _Part, counts: Array | None, *, reduces: bool
    ) -> _Round:
        """Return the round of a barrier that lanes arrive at, begun if they are the first."""
        needs = self._machine.warps * WARP
        if counts is not None:
            needs = int(counts[0] if len(counts) == 1 else counts[part.where][0])
        entered = self._rounds.get(part.key)
        if entered is None:
            entered = self._rounds[part.key] = _Round(needs, counts is None, reduces, ins)
        elif self._machine.checks.barrier and (
            entered.needs != needs or entered.reduces != reduces
        ):
            raise self._disagreement(entered, ins, part, needs)
        entered.everyone |= counts is None
        return entered

    def _ended(self, part: _Part, entered: _Round) -> int:
        """Return how many threads of warps that are new to the round have ended."""
        before = [other.warps for other in entered.parts]
        new = np.setdiff1d(part.warps, np.concatenate(before)) if before else part.warps
        return WARP * len(new) - int(np.count_nonzero(self._machine.living_rows()[new]))

    def _disagreement(
        self, entered: _Round, ins: Instruction, part: _Part, needs: int
    ) -> KernelFault:
        number, line = part.key[1], entered.ins.line
        if entered.needs != needs:
            problem = (
                f"barrier {number} is for {needs} threads here, "
                f"but for {entered.needs} at line {line}"
            )
            remedy = "all threads that meet at a barrier must give the same count"
        else:
            problem = f"bar.red and bar.sync meet at barrier {number} (the other at line {line})"
            remedy = "let all threads of a round execute the same kind"
        return self._machine.fault(BarrierMisuse, ins, part.lanes, problem, remedy)

    def _overrun(self, entered: _Round, ins: Instruction, part: _Part) -> KernelFault:
        problem = (
            f"{entered.arrived} threads arrived at barrier {part.key[1]}, "
            f"which is for {entered.needs}"
        )
        remedy = "give the barrier the number of all threads that arrive, or use another barrier"
        return self._machine.fault(BarrierMisuse, ins, part.lanes, problem, remedy)

    def _is_complete(self, key: tuple[int, int]) -> bool:
        entered = self._rounds[key]
        if entered.arrived >= entered.needs:
            return True
        if not entered.everyone:
            return False
        machine = self._machine
        missing = machine.living().reshape(-1, machine.threads)[key[0]].copy()
        for part in entered.parts:
            missing[part.lanes % machine.threads] = False
        return not missing.any()

    def _release(self, keys: list[tuple[int, int]]) -> bool:
        """End the rounds of barriers that are complete; return whether anybody waited."""
        machine = self._machine
        rounds = [self._rounds.pop(key) for key in keys]
        for entered in rounds:
            members = sum(len(part.lanes) for part in entered.parts)
            for part, reduction in entered.results:
                reduction.deliver(part.lanes, entered.true, members)
            for part, _ in entered.waiting:
                machine.state[part.lanes] = _RUNNING
                machine.races.acquire(part.warps, entered.clock)
        met = [[part.warps for part, _ in entered.waiting] for entered in rounds]
        self._exchange([w[0] if len(w) == 1 else np.unique(np.concatenate(w)) for w in met if w])
        return any(met)


class WarpBarriers:
    """``bar.warp.sync``: lanes wait until all lanes that they name wait too, or have ended."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._masks = np.zeros(machine.lanes, np.uint32)
        self._waits = np.zeros(machine.lanes, bool)
        self._site = np.empty(machine.lanes, object)

    def arrive(self, ins: Instruction, lanes: Lanes, masks: NDArray[np.uint32]) -> None:
        """Have lanes wait for the lanes that they name."""
        machine = self._machine
        view = machine.warp_views.of(lanes)
        if view.complete(machine, WARP):
            return
        late = view.late_of_masks(machine, masks)
        if not late.any():
            return
        blocked = view.indices[late]
        self._masks[blocked] = np.broadcast_to(masks, len(late))[late]
        self._waits[blocked] = True
        self._site[blocked] = ins
        machine.state[blocked] = _WAITING
        self.settle()

    def settle(self) -> bool:
        """Release lanes that need not wait any longer; return whether there are any."""
        lanes = np.flatnonzero(self._waits)
        if not len(lanes):
            return False
        view = WarpView(self._machine, lanes)
        released = lanes[~view.late_of_masks(self._machine, self._masks[lanes])]
        self._machine.state[released] = _RUNNING
        self._waits[released] = False
        return len(released) > 0

    def waiting(self) -> list[str]:
        """Return one line for each warp of which lanes wait."""
        lines = []
        lanes = np.flatnonzero(self._waits)
        for warp in np.unique(self._machine.lane_warp[lanes]):
            here = lanes[self._machine.lane_warp[lanes] == warp]
            block = self._machine.blocks[here[0] // self._machine.threads]
            mask = int(self._masks[here[0]])
            who = _who(self._machine, [(here, self._site[here[0]])])
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
