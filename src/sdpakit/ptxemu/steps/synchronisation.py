"""Barriers and fences, and hints that mean nothing here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sdpakit.ptxemu.barriers import Reduction
from sdpakit.ptxemu.operands import read, write
from sdpakit.ptxemu.program import Instruction
from sdpakit.ptxemu.registry import Step, instruction, unsupported
from sdpakit.ptxemu.scalars import PREDICATE, U32, Array

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from sdpakit.ptxemu.machine import Lanes, Machine


@instruction("bar", "barrier")
def _barrier(ins: Instruction) -> Step:
    form = [name for name in ins.modifiers if name not in {"cta", "aligned"}]
    match form:
        case ["sync"]:
            return _meet(ins, waits=True)
        case ["arrive"]:
            return _meet(ins, waits=False)
        case ["red", "popc", "u32"] | ["red", "and" | "or", "pred"]:
            return _reduce(ins, form[1])
        case ["warp", "sync"]:
            return _warp(ins)
        case ["cluster", "arrive" | "wait", *semantics]:
            return _cluster(ins, form[1], semantics)
    raise unsupported(ins, f"form {'.'.join(form)} of a barrier")


def _meet(ins: Instruction, *, waits: bool) -> Step:
    number = read(ins.operands[0], U32)
    count = read(ins.operands[1], U32) if len(ins.operands) > 1 else None

    def step(machine: Machine, lanes: Lanes) -> None:
        counts = None if count is None else count(machine, lanes)
        machine.barriers.arrive(ins, lanes, number(machine, lanes), counts, waits=waits)

    return step


def _reduce(ins: Instruction, what: str) -> Step:
    target, number, *rest = ins.operands
    barrier, predicate = read(number, U32), read(rest[-1], PREDICATE)
    count = read(rest[0], U32) if len(rest) > 1 else None
    put = write(target)

    def step(machine: Machine, lanes: Lanes) -> None:
        def deliver(waited: NDArray[np.intp], true: int, members: int) -> None:
            put(machine, waited, _result(what, true, members))

        predicates = np.broadcast_to(predicate(machine, lanes), machine.size(lanes))
        machine.barriers.arrive(
            ins,
            lanes,
            barrier(machine, lanes),
            None if count is None else count(machine, lanes),
            waits=True,
            reduction=Reduction(predicates, deliver),
        )

    return step


def _result(what: str, true: int, members: int) -> Array:
    if what == "popc":
        return np.array([true], np.uint32)
    return np.array([true == members if what == "and" else true > 0])


def _warp(ins: Instruction) -> Step:
    mask = read(ins.operands[0], U32)

    def step(machine: Machine, lanes: Lanes) -> None:
        machine.barriers.warps.arrive(ins, lanes, mask(machine, lanes))

    return step


def _cluster(ins: Instruction, half: str, semantics: list[str]) -> Step:
    if half == "wait":
        return lambda machine, lanes: machine.barriers.clusters.wait(ins, lanes)
    releases = "relaxed" not in semantics
    return lambda machine, lanes: machine.barriers.clusters.arrive(ins, lanes, releases=releases)


@instruction("membar", "fence")
def _fence(ins: Instruction) -> Step:
    # Memory is sequentially consistent here: fences matter only to who looks for races.
    if ins.modifiers[:2] == ("proxy", "async") and "global" not in ins.modifiers:
        return lambda machine, lanes: machine.races.fence_proxy(lanes)
    if ins.has("proxy", "mbarrier_init"):
        return _nothing
    return lambda machine, lanes: machine.races.fence(lanes)


@instruction("griddepcontrol", "nanosleep", "pmevent", "brkpt")
def _hint(ins: Instruction) -> Step:
    return _nothing


def _nothing(machine: Machine, lanes: Lanes) -> None:
    pass
