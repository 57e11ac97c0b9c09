"""Runs a batch of blocks to their end.

One *group* of lanes that are at the same place runs at a time, block after block of the program,
until its lanes part, wait or end, or lanes with a lower rank wait to be run (see ordering.py). So
lanes of all warps and blocks that do the same share the cost of a step.
"""

from __future__ import annotations

from operator import length_hint
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sdpakit.ptxemu.errors import KernelFault, Trap
from sdpakit.ptxemu.fairness import Fairness
from sdpakit.ptxemu.machine import DONE, RUNNING, WAITING
from sdpakit.ptxemu.parked import Parked
from sdpakit.ptxemu.planning import Apart, Group, Plan, Unit, plan
from sdpakit.ptxemu.stalls import stalled
from sdpakit.ptxemu.warps import WARP

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sdpakit.ptxemu.machine import Machine
    from sdpakit.ptxemu.program import Instruction, Program
    from sdpakit.ptxemu.registry import Step

# Blocks of the program that a batch may run; an endless loop ends within a minute or two.
BLOCK_LIMIT = 1_000_000
# Groups to know again, by the number of their lanes, the first and the last.
KEPT_GROUPS = 256
# No block: the lanes of the group go different ways now, or wait.
PARTED = -1


class Scheduler:
    """Runs batches of one program.

    Parameters
    ----------
    program : Program
        What runs; its steps are built here, once.

    Raises
    ------
    UnsupportedInstruction
        If the emulator lacks an instruction of it, or a form of one.
    """

    def __init__(self, program: Program) -> None:
        self._plan = plan(program)

    def run(self, machine: Machine, limit: int = BLOCK_LIMIT) -> None:
        """Run all threads of a batch to their end.

        Parameters
        ----------
        machine : Machine
            The batch; its counters are added to.
        limit : int
            How many blocks of instructions to run at most.

        Raises
        ------
        KernelFault
            What the kernel did wrong; Deadlock, and Trap for the limit, among it.
        """
        with np.errstate(all="ignore"):  # arithmetic of kernels overflows by rights
            _Run(machine, self._plan, limit).run()
            machine.copies.finish()
            machine.products.finish()
            machine.races.finish()


class _Run:
    def __init__(self, machine: Machine, plan: Plan, limit: int) -> None:
        self.machine, self.plan, self.limit = machine, plan, limit
        self.end = len(plan.units)
        self.ranks = np.array(plan.ranks)
        self.rounds = 0
        self.fairness = Fairness(machine, plan.units)
        self.warp_rounds, self.lane_rounds = [0] * self.end, [0] * self.end
        self.parked = Parked(machine)
        # Which instruction of the program a lane waits at, if it does.
        self.site = np.zeros(machine.lanes, np.intp)
        self.everybody = Group(slice(None), machine.lanes, len(machine.blocks) * machine.warps)
        self.group, self.groups = self.everybody, dict[tuple[int, int, int], list[Group]]()
        self.kept = 0
        # Whether all other lanes have ended, and the lowest rank of those that can run.
        self.alone, self.ceiling = True, self.end + 1
        self.block = 0
        self.steps: Iterator[Step] = iter(())

    def run(self) -> None:
        try:
            while (found := self.choose()) is not None:
                self.group, block, at = found
                self.advance(block, at)
        finally:
            self.count()

    # ---- which lanes run next

    def choose(self) -> tuple[Group, int, int | None] | None:
        """Return lanes that stand at the same place; None if all have ended.

        The place is a block and, for lanes that go on in the middle of it, the number of a step.
        """
        machine, parked = self.machine, self.parked
        state, position = machine.state, machine.position
        if not state.any() and (position == position[0]).all():  # the usual case
            self.ceiling, self.alone = self.end + 1, True
            return self.everybody, int(position[0]), None
        while not (len(running := np.flatnonzero(state == RUNNING)) or parked.ready):
            if (state == DONE).all():
                return None
            if not (parked.settle() or machine.barriers.settle() or machine.copies.settle()):
                raise stalled(machine, self.site, parked)
        self.ceiling, self.alone = self.end + 1, False
        ranks = self.ranks[position[running]]
        if parked.ready:
            block, at, lanes = parked.ready.pop()
            state[lanes] = RUNNING
            self.ceiling = int(ranks.min(initial=self.end + 1))
            return self.grouped(lanes), block, at
        if self.fairness.interrupted:
            chosen = self.fairness.turn(running, ranks)
            if chosen is None:  # time passes for those who spin: a copy that they wait for may land
                machine.copies.settle()
                return self.choose()
        else:
            chosen = self.lowest(ranks)
        lanes = running[chosen]
        return self.grouped(lanes), int(position[lanes[0]]), None

    def lowest(self, ranks: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Return which of the lanes that can run have the lowest rank."""
        chosen: NDArray[np.bool_] = ranks == ranks.min()
        if not chosen.all():
            self.ceiling = int(ranks[~chosen].min())
        else:
            self.alone = not (self.machine.state == WAITING).any()
        return chosen

    def grouped(self, lanes: NDArray[np.intp]) -> Group:
        """Return the group of some lanes, with the array that they had when they ran before."""
        if len(lanes) == self.machine.lanes:
            return self.everybody
        for group in self.groups.get((len(lanes), int(lanes[0]), int(lanes[-1])), ()):
            if np.array_equal(self.machine.indices(group.lanes), lanes):
                return group
        return self.new_group(lanes)

    def new_group(self, lanes: NDArray[np.intp]) -> Group:
        view = self.machine.warp_views.of(lanes)
        group = Group(lanes, len(lanes), len(view.warps))
        self.kept += 1
        if self.kept > KEPT_GROUPS:
            self.kept = 1
            self.groups.clear()
            self.machine.whole_warps.clear()
        self.groups.setdefault((len(lanes), int(lanes[0]), int(lanes[-1])), []).append(group)
        if view.whole and self.machine.threads % WARP == 0:
            self.machine.whole_warps[id(lanes)] = view.warps
        return group

    # ---- running them

    def advance(self, block: int, at: int | None) -> None:
        """Run the group from a place on until it parts, waits, ends, or others go first."""
        while True:
            try:
                self.follow(block, at)
            except Apart as apart:
                self.site[apart.lanes] = self.machine.program.blocks[self.block].start + apart.at
                self.parked.add(self.block, apart)
                rest = np.setdiff1d(self.machine.indices(self.group.lanes), apart.lanes)
                if not len(rest):
                    return
                self.group, block, at = self.grouped(rest), self.block, apart.at
            except Exception as error:
                if not isinstance(error, KernelFault):
                    error.add_note(f"at PTX line {self.here().line}: {self.here().text}")
                raise
            else:
                return

    def follow(self, block: int, at: int | None) -> None:
        machine, units, ranks = self.machine, self.plan.units, self.plan.ranks
        lanes, ceiling, products = self.group.lanes, self.ceiling, machine.products
        while block != self.end:
            unit = units[block]
            self.block = block
            if at is None:
                if not self.admit(block):
                    break
                self.steps = iter(unit.body)
            else:
                self.steps, at = iter(unit.body[at:]), None
            if unit.products or products.registers:
                self.step_carefully(unit)
            else:
                for step in self.steps:
                    step(machine, lanes)
            block = unit.next if unit.last is None else self.leave(unit, block)
            if block == PARTED:
                return
            if unit.wakes or ranks[block] >= ceiling:
                break
        else:
            machine.state[lanes] = DONE
        machine.position[lanes] = block

    def admit(self, block: int) -> bool:
        """Count a block that the group begins; return False if others have their turn first."""
        group = self.group
        if not self.alone and not self.fairness.permits(block, group):
            return False
        self.rounds += 1
        if self.rounds > self.limit:
            raise self.overrun()
        self.warp_rounds[block] += group.warps
        self.lane_rounds[block] += group.size
        return True

    def step_carefully(self, unit: Unit) -> None:
        """Run steps while products of ``wgmma`` may be under way, whose registers are taboo."""
        machine, lanes, products = self.machine, self.group.lanes, self.machine.products
        first = len(unit.body) - length_hint(self.steps)
        for number, step in enumerate(self.steps, first):
            if products.registers:
                ins = unit.instructions[number]
                if ins.opcode != "wgmma" and not products.registers.isdisjoint(
                    unit.registers[number]
                ):
                    products.refuse(ins, lanes)
            step(machine, lanes)

    def leave(self, unit: Unit, block: int) -> int:
        """Execute the last instruction of a block; return the next one, or PARTED."""
        machine, lanes, guard, last = self.machine, self.group.lanes, unit.guard, unit.last
        assert last is not None
        if unit.places:
            machine.position[lanes] = block + 1
            self.site[lanes] = unit.stop
        if guard is not None:
            holds, count = guard.split(machine, lanes)
            if count == 0:
                return unit.next
            if count < len(holds):
                machine.position[lanes] = block + 1
                some = machine.indices(lanes)[holds]
                goes_to = last(machine, some)
                if goes_to is not None:
                    machine.position[some] = goes_to
                return PARTED
        goes_to = last(machine, lanes)
        return PARTED if goes_to is None else goes_to

    # ---- reports

    def here(self) -> Instruction:
        """Return the instruction that runs now."""
        unit = self.plan.units[self.block]
        number = len(unit.body) - length_hint(self.steps) - 1
        if length_hint(self.steps) == 0 and unit.last is not None:
            number = -1  # or the step before it; both stand next to each other
        return unit.instructions[number]

    def overrun(self) -> Trap:
        ins = self.plan.units[self.block].instructions[0]
        return Trap(
            f"the kernel ran {self.limit} blocks of instructions and has not ended",
            "look for a loop whose condition never changes, or raise the limit of the launch",
            line=ins.line,
            text=ins.text,
        )

    def count(self) -> None:
        """Add what ran to the counters of the launch."""
        counters = self.machine.counters
        for unit, warps, lanes in zip(
            self.plan.units, self.warp_rounds, self.lane_rounds, strict=True
        ):
            if not warps:
                continue
            counters.warp_instructions += warps * len(unit.instructions)
            counters.thread_instructions += lanes * len(unit.instructions)
            for ins in unit.instructions:
                counters.by_line[ins.line] += warps
                counters.by_opcode[ins.opcode] += warps
