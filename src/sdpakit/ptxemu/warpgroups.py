"""Products of warpgroups that are in flight: what was issued, committed, and not yet waited for.

``wgmma`` is asynchronous. Its product is computed when it is issued, but its results appear as late
as legal: accumulators stay here, as matrices, until the last product that adds to them was waited
for, and are written to registers then. So a chain of products on one accumulator reads and writes
registers once, and a kernel that looks too early sees the values from before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sdpakit.ptxemu.descriptors import CHUNK
from sdpakit.ptxemu.errors import AccumulatorInFlight, Deadlock, KernelFault
from sdpakit.ptxemu.program import Operand, registers_in
from sdpakit.ptxemu.scalars import Array

if TYPE_CHECKING:
    from sdpakit.ptxemu.fragments import RegisterTile
    from sdpakit.ptxemu.machine import Lanes, Machine
    from sdpakit.ptxemu.program import Instruction
    from sdpakit.ptxemu.races import OpenRead
    from sdpakit.ptxemu.teams import Team

Groups = NDArray[np.intp]
_UNFENCED, _STALE, _FENCED = 0, 1, 2
_REGISTERS = 65536  # of a multiprocessor, 32 bits each


@dataclass(slots=True)
class Held:
    """The values of an accumulator in flight: `matrix` has one for each of some warpgroups."""

    tile: RegisterTile
    team: Team
    groups: Groups
    matrix: Array


@dataclass(frozen=True, slots=True)
class _Product:
    """One product: its instruction, the slots it uses, and what it reads of shared memory.

    `offsets` are those of runs of 16 bytes in `Memory.shared`, one row a warpgroup.
    """

    ins: Instruction
    results: frozenset[int]
    inputs: frozenset[int]
    offsets: NDArray[np.int64]


@dataclass(slots=True)
class _Batch:
    """Products that the same warpgroups issued and that belong to one group of each of them."""

    team: Team
    groups: Groups
    number: Groups  # of the committed group; -1 before it is committed
    alive: NDArray[np.bool_]
    products: list[_Product] = field(default_factory=list)
    reads: dict[int, OpenRead | None] = field(default_factory=dict)  # by index of the warpgroup


class PendingProducts:
    """``wgmma`` groups of a batch of blocks.

    Attributes
    ----------
    registers : frozenset of int
        Slots that products in flight use, of any warpgroup; empty most of the time. An instruction
        that names none of them needs no call of `refuse`.
    """

    def __init__(self, machine: Machine) -> None:
        self.registers: frozenset[int] = frozenset()
        self._machine = machine
        self._of_lane = machine.lane_warpgroup
        self._count = int(self._of_lane[-1]) + 1
        self._fences = np.full(self._count, _UNFENCED, np.uint8)
        self._committed = np.zeros(self._count, np.intp)
        self._batches: list[_Batch] = []
        # How many products in flight use which accumulators and fragments of A, by warpgroup.
        self._results: dict[frozenset[int], Groups] = {}
        self._inputs: dict[frozenset[int], Groups] = {}
        self._held: dict[frozenset[int], list[Held]] = {}
        self._landed: dict[frozenset[int], dict[int, Array]] = {}
        # What warpgroups asked for by setmaxnreg, a thread, and who asked last.
        self._register_counts = np.zeros(self._count, np.intp)
        self._last_request: Instruction | None = None

    def groups(self, team: Team) -> Groups:
        """Return the numbers of a team's warpgroups in this batch of blocks."""
        return self._of_lane[team.first]

    # ----------------------------------------------------------------------- issue, commit, wait

    def fence(self, team: Team) -> None:
        """``wgmma.fence`` by whole warpgroups."""
        self._fences[self.groups(team)] = _FENCED

    def take(
        self,
        ins: Instruction,
        team: Team,
        tile: RegisterTile,
        inputs: frozenset[int],
        adds: NDArray[np.bool_],
    ) -> Held:
        """Return the accumulator that a product of a team goes to, and count the product.

        Parameters
        ----------
        ins : Instruction
            The ``wgmma``.
        team : Team
            The warpgroups.
        tile : RegisterTile
            The registers of the accumulator.
        inputs : frozenset of int
            The slots of A, if it is in registers.
        adds : numpy.ndarray
            Of each warpgroup, whether it adds to what the accumulator has.
        """
        groups = self.groups(team)
        if self._machine.checks.accumulator:
            self._check_fences(ins, team, groups, tile, adds)
            self._check_overlap(ins, team, groups, tile, inputs)
        self._count_product(self._results, tile.slots, groups)
        if inputs:
            self._count_product(self._inputs, inputs, groups)
        helds = self._held.setdefault(tile.slots, [])
        for held in helds:
            if held.tile.order == tile.order and np.array_equal(held.groups, groups):
                return held
        mine = np.zeros(self._count, bool)
        mine[groups] = True
        self._land(tile.slots, mine)
        # What a chain begins with is needed only if it adds to it.
        matrix = tile.read(self._machine, team) if adds.any() else np.empty(0, tile.dtype)
        held = Held(tile, team, groups, matrix)
        self._held.setdefault(tile.slots, []).append(held)
        return held

    def issue(
        self,
        ins: Instruction,
        team: Team,
        tile: RegisterTile,
        inputs: frozenset[int],
        offsets: NDArray[np.int64],
    ) -> None:
        """Record a product that reads runs of 16 bytes at offsets, one row a warpgroup."""
        groups = self.groups(team)
        batch = self._batches[-1] if self._batches else None
        if batch is None or (batch.number >= 0).any() or not np.array_equal(batch.groups, groups):
            size = len(groups)
            batch = _Batch(team, groups, np.full(size, -1), np.ones(size, bool))
            self._batches.append(batch)
        batch.products.append(_Product(ins, tile.slots, inputs, offsets))

    def commit(self, team: Team) -> None:
        """``wgmma.commit_group``: what was issued becomes a group."""
        groups = self.groups(team)
        mine = np.zeros(self._count, bool)
        mine[groups] = True
        for batch in self._batches:
            chosen = mine[batch.groups] & (batch.number < 0)
            if chosen.any():
                self._open_reads(batch, np.flatnonzero(chosen).tolist())
            batch.number[chosen] = self._committed[batch.groups[chosen]]
        self._committed[groups] += 1

    def _open_reads(self, batch: _Batch, chosen: list[int]) -> None:
        """Record what products of a group read, all at once: that is a few times as fast."""
        races, first = self._machine.races, batch.team.first
        if not races.on:
            return
        offsets = np.concatenate([product.offsets for product in batch.products], axis=1)
        for index in chosen:
            lane = int(first[index])
            try:
                read = races.open_read(batch.products[0].ins, lane, offsets[index], CHUNK)
            except KernelFault:
                for product in batch.products:  # find the one at fault
                    races.open_read(product.ins, lane, product.offsets[index], CHUNK)
                raise
            batch.reads[index] = read

    def wait(self, team: Team, pending: int) -> None:
        """``wgmma.wait_group``: all but the last `pending` groups of each warpgroup are done."""
        groups = self.groups(team)
        # A group is over when its number is below this; of those who do not wait, none is.
        over = np.full(self._count, -1)
        over[groups] = self._committed[groups] - pending
        self._fences[groups] = np.minimum(self._fences[groups], _STALE)
        remaining = []
        for batch in self._batches:
            done = batch.alive & (batch.number >= 0) & (batch.number < over[batch.groups])
            if done.any():
                self._end(batch, done)
            if batch.alive.any():
                remaining.append(batch)
        self._batches = remaining
        self._forget_idle()

    def _end(self, batch: _Batch, done: NDArray[np.bool_]) -> None:
        for index in np.flatnonzero(done).tolist():
            self._machine.races.close_read(batch.reads.pop(index, None))
        ended = batch.groups[done]
        for product in batch.products:
            self._results[product.results][ended] -= 1
            if product.inputs:
                self._inputs[product.inputs][ended] -= 1
        for slots in {product.results for product in batch.products}:
            self._land(slots, self._results[slots] == 0)
        batch.alive &= ~done

    def _count_product(
        self, counts: dict[frozenset[int], Groups], slots: frozenset[int], groups: Groups
    ) -> None:
        found = counts.get(slots)
        if found is None:
            found = counts[slots] = np.zeros(self._count, np.intp)
            self.registers |= slots
        found[groups] += 1

    def _forget_idle(self) -> None:
        for counts in (self._results, self._inputs):
            for slots in [slots for slots, found in counts.items() if not found.any()]:
                del counts[slots]
        self.registers = frozenset().union(*self._results, *self._inputs)

    def _land(self, slots: frozenset[int], chosen: NDArray[np.bool_]) -> None:
        """Write what is held of an accumulator to the registers of the chosen warpgroups."""
        remaining = []
        for held in self._held.pop(slots, []):
            now = chosen[held.groups]
            if not now.any():
                remaining.append(held)
                continue
            team, matrix = (
                (held.team, held.matrix) if now.all() else (held.team.part(now), held.matrix[now])
            )
            held.tile.write(self._machine, team, matrix)
            landed = self._landed.setdefault(slots, {})
            landed.update(zip(held.groups[now].tolist(), matrix, strict=True))
            if not now.all():
                rest = ~now
                held.team, held.groups = held.team.part(rest), held.groups[rest]
                held.matrix = held.matrix[rest]
                remaining.append(held)
        if remaining:
            self._held[slots] = remaining

    def set_registers(self, ins: Instruction, team: Team, count: int) -> None:
        """``setmaxnreg``: threads of the warpgroups have so many registers from now on."""
        self._register_counts[self.groups(team)] = count
        self._last_request = ins

    # ------------------------------------------------------------------------------------ checks

    def _check_fences(
        self,
        ins: Instruction,
        team: Team,
        groups: Groups,
        tile: RegisterTile,
        adds: NDArray[np.bool_],
    ) -> None:
        fences = self._fences[groups]
        if (fences == _FENCED).all():
            return
        bad = fences == _UNFENCED
        problem = "the warpgroup executed no wgmma.fence before its first wgmma"
        if not bad.any():
            bad = self._touched_since(team, groups, tile, adds) & (fences == _STALE)
            problem = (
                "registers of the accumulator were used after the last wgmma.wait_group, and no "
                "wgmma.fence orders that before this product"
            )
        if bad.any():
            raise self._machine.fault(
                AccumulatorInFlight,
                ins,
                team.first,
                problem,
                "Execute wgmma.fence.sync.aligned before the first wgmma, and again between other "
                "uses of its registers and the next.",
                bad,
            )

    def _touched_since(
        self, team: Team, groups: Groups, tile: RegisterTile, adds: NDArray[np.bool_]
    ) -> NDArray[np.bool_]:
        """Return which warpgroups' accumulators differ from what the last product left in them.

        One that is started anew counts as used: who computes a product takes notice of it.
        """
        landed = self._landed.get(tile.slots)
        if landed is None or (self._results.get(tile.slots, np.zeros(1)) > 0).any():
            return np.zeros(len(groups), bool)
        now = tile.read(self._machine, team)
        return np.array(
            [
                group in landed
                and (not adds[index] or landed[group].tobytes() != now[index].tobytes())
                for index, group in enumerate(groups.tolist())
            ]
        )

    def _check_overlap(
        self,
        ins: Instruction,
        team: Team,
        groups: Groups,
        tile: RegisterTile,
        inputs: frozenset[int],
    ) -> None:
        for slots, counts in self._results.items():
            other = slots != tile.slots and not slots.isdisjoint(tile.slots)
            if (other or not slots.isdisjoint(inputs)) and (bad := counts[groups] > 0).any():
                what = "accumulators overlap" if other else "A is the accumulator of"
                raise self._machine.fault(
                    AccumulatorInFlight,
                    ins,
                    team.first,
                    f"its {what} a product in flight",
                    "Wait for that product first: wgmma.commit_group, wgmma.wait_group.",
                    bad,
                )

    def refuse(self, ins: Instruction, lanes: Lanes) -> None:
        """Raise AccumulatorInFlight if lanes touch what their own warpgroup has in flight.

        Accumulators may not be touched at all. Fragments of A may be read, as products in flight
        just read them, too, but not written.
        """
        if not self._machine.checks.accumulator or ins.opcode == "wgmma":
            return
        named = _slots(ins.operands)
        written = _slots(ins.operands[:1])
        if ins.guard is not None:
            named |= {ins.guard.slot}
        groups = self._of_lane[lanes]
        for counts, slots in ((self._results, named), (self._inputs, written)):
            for used, found in counts.items():
                if not used.isdisjoint(slots) and (bad := found[groups] > 0).any():
                    raise self._refusal(ins, lanes, used & slots, bad)

    def _refusal(
        self, ins: Instruction, lanes: Lanes, slots: frozenset[int], bad: NDArray[np.bool_]
    ) -> AccumulatorInFlight:
        names = sorted(
            {register.name for register in registers_in(ins.operands) if register.slot in slots}
        )
        group = int(self._of_lane[lanes][np.flatnonzero(bad)[0]])
        issued = [
            product.ins.line
            for batch in self._batches
            if group in batch.groups[batch.alive]
            for product in batch.products
            if not slots.isdisjoint(product.results | product.inputs)
        ]
        fault = self._machine.fault(
            AccumulatorInFlight,
            ins,
            lanes,
            f"{', '.join(names)} belongs to a wgmma in flight, issued at PTX line {issued[0]}",
            "Execute wgmma.commit_group and wgmma.wait_group before.",
            bad,
        )
        assert isinstance(fault, AccumulatorInFlight)
        return fault

    def finish(self) -> None:
        """All threads are done: raise if products were never waited for, or registers ran out."""
        self._check_registers()
        if not self._batches or not self._machine.checks.accumulator:
            return
        batch = self._batches[0]
        group = int(batch.groups[batch.alive][0])
        lane = np.flatnonzero(self._of_lane == group)[:1]
        committed = bool((batch.number[batch.alive] >= 0)[0])
        raise self._machine.fault(
            AccumulatorInFlight,
            batch.products[0].ins,
            lane,
            "the kernel ended with this product in flight"
            + ("" if committed else ", not even committed"),
            "End with wgmma.commit_group and wgmma.wait_group 0; without, it has no results.",
        )

    def _check_registers(self) -> None:
        machine, ins = self._machine, self._last_request
        if ins is None:
            return
        wanted = 128 * self._register_counts.reshape(len(machine.blocks), -1).sum(axis=1)
        over = np.flatnonzero(wanted > _REGISTERS)
        if len(over):
            block = int(over[0])
            raise machine.fault(
                Deadlock,
                ins,
                np.array([block * machine.threads]),
                f"the warpgroups of a block ask for {int(wanted[block])} registers together, of "
                f"the {_REGISTERS} that there are; the last setmaxnreg.inc would wait for ever",
                "Ask for fewer: the counts of all warpgroups times 128 threads must fit.",
            )


def _slots(operands: Sequence[Operand]) -> frozenset[int]:
    return frozenset(register.slot for register in registers_in(operands))
