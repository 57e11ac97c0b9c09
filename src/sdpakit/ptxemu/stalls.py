"""Says why nobody can run any more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sdpakit.ptxemu.errors import Deadlock, Divergence, KernelFault
from sdpakit.ptxemu.machine import DONE
from sdpakit.ptxemu.warps import WARP
from sdpakit.ptxemu.wording import threads_in_words

if TYPE_CHECKING:
    from sdpakit.ptxemu.machine import Machine
    from sdpakit.ptxemu.parked import Parked

# So many lines tell what a deadlock is about; more of them hide it.
_LINES = 12


def stalled(machine: Machine, site: NDArray[np.intp], parked: Parked) -> KernelFault:
    """Return the fault of a batch whose lanes all wait.

    It is a Divergence if a warp waits for lanes that wait for it at another instruction of that
    kind, else a Deadlock.
    """
    waiting = np.flatnonzero(machine.state != DONE)
    lines = [*machine.barriers.waiting(), *machine.mbarriers.waiting()]
    lines += _apart(machine, site, parked)
    shown = "".join(f"\n    {line}" for line in lines[:_LINES])
    if len(lines) > _LINES:
        shown += f"\n    and {len(lines) - _LINES} more"
    inside = [lanes for _, lanes in parked.places.values()]
    if inside and machine.checks.divergence and sum(map(len, inside)) == len(waiting):
        lanes, kind = inside[0], Divergence
        problem = f"lanes of a warp wait for each other at different instructions:{shown}"
        remedy = (
            "have all lanes of the warp execute the same one, outside of branches that part them"
        )
        return _fault(machine, kind, site, lanes, problem, remedy)
    problem = f"all {len(waiting)} threads that have not ended wait:{shown}"
    remedy = "see who should arrive where these wait, and what keeps it from that"
    return _fault(machine, Deadlock, site, waiting, problem, remedy)


def _fault(
    machine: Machine,
    kind: type[KernelFault],
    site: NDArray[np.intp],
    lanes: NDArray[np.intp],
    problem: str,
    remedy: str,
) -> KernelFault:
    ins = machine.program.instructions[site[lanes[0]]]
    return machine.fault(kind, ins, lanes, problem, remedy)


def _apart(machine: Machine, site: NDArray[np.intp], parked: Parked) -> list[str]:
    """Return one line for each warp of which some lanes wait for others to join them."""
    lines = []
    for _, lanes in parked.places.values():
        ins = machine.program.instructions[site[lanes[0]]]
        for warp in np.unique(machine.lane_warp[lanes]):
            here = lanes[machine.lane_warp[lanes] == warp]
            others = np.flatnonzero((machine.lane_warp == warp) & (machine.state != DONE))
            others = np.setdiff1d(others, here)
            who = f"{_whose(machine, int(here[0]))}: {threads_in_words(machine, here)}"
            where = f"at line {ins.line} ({ins.text})"
            lines.append(f"{who} {where}; {_elsewhere(machine, site, others)}")
    return lines


def _elsewhere(machine: Machine, site: NDArray[np.intp], others: NDArray[np.intp]) -> str:
    if not len(others):
        return "the rest of its warpgroup is not there"
    places = []
    for number in np.unique(site[others]):
        ins = machine.program.instructions[number]
        there = others[site[others] == number]
        places.append(f"{threads_in_words(machine, there)} at line {ins.line} ({ins.text})")
    return "but " + ", ".join(places)


def _whose(machine: Machine, lane: int) -> str:
    block = machine.blocks[lane // machine.threads]
    return f"block {block}, warp {lane % machine.threads // WARP}"
