"""What the scheduler runs: the steps of each block of a program, and what it must know of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sdpakit.ptxemu import steps as _registered  # noqa: F401 - registers the builders
from sdpakit.ptxemu.operands import Reader, read
from sdpakit.ptxemu.ordering import ranks, targets
from sdpakit.ptxemu.program import Instruction, Program, registers_in
from sdpakit.ptxemu.registry import Step, build, ends_block
from sdpakit.ptxemu.scalars import U32
from sdpakit.ptxemu.warps import WARP

if TYPE_CHECKING:
    from sdpakit.ptxemu.machine import Lanes, Machine

# Instructions of the lanes that their last operand (of elect: the second) names.
_MASKED = frozenset({"shfl", "vote", "match", "redux", "elect"})
# Instructions that may wake lanes that wait, beside those that end a block.
_WAKING = frozenset({"mbarrier", "cp"})


@dataclass(slots=True)
class Group:
    """Lanes that run together, how many they are, and of how many warps."""

    lanes: Lanes
    size: int
    warps: int


@dataclass(frozen=True, slots=True)
class Gate:
    """What an instruction for a whole warp waits for: all lanes of it that have not ended.

    Attributes
    ----------
    width : int
        Lanes that must be there together: 32, or 128 for a warpgroup.
    mask : Reader or None
        Reads the lanes that each lane names; None stands for all.
    """

    width: int
    mask: Reader | None

    def late(self, machine: Machine, lanes: NDArray[np.intp]) -> NDArray[np.bool_] | None:
        """Return which of the lanes must wait; None if none must."""
        view = machine.warp_views.of(lanes)
        if view.complete(machine, self.width):
            return None
        if self.mask is None:
            return view.late(machine, self.width)
        late = view.late_of_masks(machine, self.mask(machine, lanes))
        return late if late.any() else None


class Apart(Exception):  # noqa: N818 - no error: it tells the scheduler to have lanes wait
    """Some lanes must not execute an instruction before the rest of their warp is there.

    Parameters
    ----------
    lanes : numpy.ndarray
        These lanes.
    at : int
        Which instruction of the block.
    gate : Gate
        What they wait for.
    """

    def __init__(self, lanes: NDArray[np.intp], at: int, gate: Gate) -> None:
        self.lanes, self.at, self.gate = lanes, at, gate


@dataclass(frozen=True, slots=True)
class Guard:
    """The predicate of an instruction."""

    slot: int
    negated: bool

    def split(self, machine: Machine, lanes: Lanes) -> tuple[NDArray[np.bool_], int]:
        """Return which of some lanes execute it, and how many they are."""
        holds = machine.registers[self.slot][lanes]
        if self.negated:
            holds = ~holds
        return holds, int(np.count_nonzero(holds))


@dataclass(frozen=True, slots=True)
class Unit:
    """One block of the program.

    Attributes
    ----------
    body : tuple of Step
        Its steps, guards included, but without `last`.
    last : Step or None
        The step of an instruction that may jump, wait or end.
    guard : Guard or None
        Of `last`.
    next : int
        Where lanes go without `last`, or where it does not send them elsewhere.
    places : bool
        Whether `last` wants `Machine.position` set beforehand, as it may leave it at that.
    wakes : bool
        Whether the body may wake lanes.
    products : bool
        Whether the block has ``wgmma``.
    stop : int
        The number in the program of its last instruction.
    instructions : tuple of Instruction
        All of them.
    registers : tuple of frozenset of int
        The slots that each of them names.
    """

    body: tuple[Step, ...]
    last: Step | None
    guard: Guard | None
    next: int
    places: bool
    wakes: bool
    products: bool
    stop: int
    instructions: tuple[Instruction, ...]
    registers: tuple[frozenset[int], ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """A program, ready for the scheduler: its blocks, and the rank of each (see ordering.py)."""

    program: Program
    units: tuple[Unit, ...]
    ranks: tuple[int, ...]


def plan(program: Program) -> Plan:
    """Build the steps of a program.

    Raises
    ------
    UnsupportedInstruction
        If the emulator lacks an instruction, or a form of it.
    """
    units = tuple(_unit(program, number) for number in range(len(program.blocks)))
    return Plan(program, units, tuple(ranks(program)))


def _unit(program: Program, number: int) -> Unit:
    block = program.blocks[number]
    instructions = program.instructions[block.start : block.stop]
    following, body, last = number + 1, instructions, None
    if instructions and ends_block(instructions[-1].opcode, instructions[-1].modifiers):
        body, last = instructions[:-1], instructions[-1]
    if last is not None and last.opcode == "bra" and last.guard is None:
        (following,), last = targets(last.operands), None
    opcodes = {ins.opcode for ins in instructions}
    waking = any(ins.opcode in _WAKING or ins.has("async") for ins in body)
    return Unit(
        body=tuple(_guarded(_together(ins, at), _guard(ins)) for at, ins in enumerate(body)),
        last=None if last is None else _together(last, len(body)),
        guard=None if last is None else _guard(last),
        next=following,
        places=last is not None and last.opcode != "bra",
        wakes=waking,
        products="wgmma" in opcodes,
        stop=block.stop - 1,
        instructions=instructions,
        registers=tuple(frozenset(_slots(ins)) for ins in instructions),
    )


def _guard(ins: Instruction) -> Guard | None:
    return None if ins.guard is None else Guard(ins.guard.slot, ins.guard_negated)


def _guarded(step: Step, guard: Guard | None) -> Step:
    """Return a step of the lanes whose guard holds."""
    if guard is None:
        return step
    split = guard.split

    def guarded(machine: Machine, lanes: Lanes) -> None:
        holds, count = split(machine, lanes)
        if count == len(holds):
            step(machine, lanes)
        elif count:
            step(machine, machine.indices(lanes)[holds])

    return guarded


def _together(ins: Instruction, at: int) -> Step:
    """Return the step of an instruction; one for a whole warp waits for all lanes of it."""
    step, gate = build(ins), _gate(ins)
    if gate is None:
        return step
    late_lanes = gate.late

    def together(machine: Machine, lanes: Lanes) -> int | None:
        if not isinstance(lanes, slice):
            late = late_lanes(machine, lanes)
            if late is not None:
                raise Apart(lanes[late], at, gate)
        return step(machine, lanes)

    return together


def _gate(ins: Instruction) -> Gate | None:
    if ins.opcode in _MASKED and ins.has("sync"):
        return Gate(WARP, read(ins.operands[1 if ins.opcode == "elect" else -1], U32))
    if ins.has("aligned") or (ins.opcode == "bar" and not ins.has("warp")):
        return Gate(4 * WARP if ins.opcode in {"wgmma", "setmaxnreg"} else WARP, None)
    return None


def _slots(ins: Instruction) -> Iterator[int]:
    if ins.guard is not None:
        yield ins.guard.slot
    yield from (register.slot for register in registers_in(ins.operands))
