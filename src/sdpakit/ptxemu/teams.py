"""Whole warps and whole warpgroups that execute an instruction together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sdpakit.ptxemu.errors import Divergence
from sdpakit.ptxemu.operands import Reader
from sdpakit.ptxemu.scalars import Array

if TYPE_CHECKING:
    from sdpakit.ptxemu.machine import Lanes, Machine
    from sdpakit.ptxemu.program import Instruction

WARP = 32
WARPGROUP = 128
_Rows: TypeAlias = slice | NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Team:
    """Members that are whole warps or whole warpgroups.

    Attributes
    ----------
    lanes : slice or numpy.ndarray
        All lanes.
    first : numpy.ndarray
        The first lane of each member.
    size : int
        Lanes of a member.
    rows : slice, numpy.ndarray or None
        Which rows of 32 lanes of a register they are. None where rows of 32 are no warps, as blocks
        end within a warp.
    """

    lanes: Lanes
    first: NDArray[np.intp]
    size: int
    rows: _Rows | None

    @property
    def count(self) -> int:
        """How many members there are."""
        return len(self.first)

    def take(self, register: Array) -> Array:
        """Return the values of a register, one row a member.

        Rows of 32 are copied much faster than single elements are gathered.
        """
        if self.rows is None:
            return register[self.lanes].reshape(self.count, self.size)
        rows = register.reshape(-1, WARP)
        if not isinstance(self.rows, slice):
            rows = rows.take(self.rows, axis=0)
        return rows.reshape(self.count, self.size)

    def put(self, register: Array, values: Array) -> None:
        """Set a register to values, one row a member."""
        if self.rows is None:
            register[self.lanes] = values.reshape(-1)
        elif isinstance(self.rows, slice):
            register.reshape(self.count, self.size)[...] = values
        else:
            register.reshape(-1, WARP)[self.rows] = values.reshape(-1, WARP)

    def read(self, machine: Machine, reader: Reader) -> Array:
        """Return what a reader of an operand gives, one row a member."""
        values = reader(machine, self.lanes)
        if len(values) == 1:
            return np.broadcast_to(values, (self.count, self.size))
        return values.reshape(self.count, self.size)

    def part(self, chosen: NDArray[np.bool_]) -> Team:
        """Return the team of some members."""
        first = self.first[chosen]
        lanes = (first[:, None] + np.arange(self.size)).reshape(-1)
        return Team(lanes, first, self.size, None if self.rows is None else lanes[::WARP] // WARP)


def assemble(machine: Machine, ins: Instruction, lanes: Lanes, size: int) -> Team:
    """Return the warps (`size` 32) or warpgroups (128) that lanes are.

    Raises
    ------
    Divergence
        If one of them is not there as a whole. If that is not checked, the lanes that are missing
        execute the instruction with the others.
    """
    teams = machine.warp_views.of(lanes).teams
    team = teams.get(size)
    if team is None:
        if not _are_whole(machine, lanes, size):
            return _team(machine, _complete(machine, ins, lanes, size), size)
        team = teams[size] = _team(machine, lanes, size)
    return team


def _team(machine: Machine, lanes: Lanes, size: int) -> Team:
    aligned = machine.threads % WARP == 0
    if isinstance(lanes, slice):
        return Team(lanes, machine.all_lanes[::size], size, lanes if aligned else None)
    return Team(lanes, lanes[::size], size, lanes[::WARP] // WARP if aligned else None)


def _are_whole(machine: Machine, lanes: Lanes, size: int) -> bool:
    if isinstance(lanes, slice):
        return machine.threads % size == 0
    if len(lanes) % size:
        return False
    first, last = lanes[::size], lanes[size - 1 :: size]
    thread = machine.lane_thread[first]
    whole = (last - first == size - 1) & (thread % size == 0) & (thread + size <= machine.threads)
    return bool(whole.all())


def _complete(machine: Machine, ins: Instruction, lanes: Lanes, size: int) -> NDArray[np.intp]:
    """Return the lanes of all members that have any of these lanes, if that may be."""
    per_block = -(-machine.threads // size)
    of_lane = machine.lane_block * per_block + machine.lane_thread // size
    members = of_lane[lanes]
    present = np.bincount(members, minlength=int(of_lane[-1]) + 1)
    existing = np.bincount(of_lane)
    partial = (present < size) & (present > 0)
    if machine.checks.divergence or (partial & (existing < size)).any():
        raise _divergence(machine, ins, lanes, size, partial[members])
    return np.flatnonzero(present[of_lane] > 0)


def _divergence(
    machine: Machine,
    ins: Instruction,
    lanes: Lanes,
    size: int,
    bad: NDArray[np.bool_],
) -> Divergence:
    indices = machine.indices(lanes)
    lane = int(indices[np.flatnonzero(bad)[0]])
    number = machine.lane_thread[lane] // size
    same = (machine.lane_block[indices] == machine.lane_block[lane]) & (
        machine.lane_thread[indices] // size == number
    )
    name = "warp" if size == WARP else "warpgroup"
    fault = machine.fault(
        Divergence,
        ins,
        lanes,
        f"{int(same.sum())} of the {size} threads of {name} {number} execute this, "
        f"but it takes the whole {name}",
        f"Have all threads of the {name} reach it together: let none of them branch around it or "
        f"end before, and launch blocks of a multiple of {size} threads.",
        bad,
    )
    assert isinstance(fault, Divergence)
    return fault
