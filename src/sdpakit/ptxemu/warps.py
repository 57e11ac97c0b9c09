"""Lanes seen as rows of warps, for instructions that work across a warp."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sdpakit.ptxemu.scalars import Array

if TYPE_CHECKING:
    from sdpakit.ptxemu.machine import Lanes, Machine
    from sdpakit.ptxemu.teams import Team

WARP = 32
_BITS = np.uint32(1) << np.arange(WARP, dtype=np.uint32)


class WarpView:
    """Some lanes, and the warps that they belong to.

    Attributes
    ----------
    lanes : slice or numpy.ndarray
        The lanes.
    indices : numpy.ndarray
        Their numbers.
    warps : numpy.ndarray
        The numbers of the warps (batch-wide) that have any of the lanes, ascending; one *row* each.
    whole : bool
        Whether all 32 lanes of each of these warps are there.
    teams : dict
        The lanes as whole warps (key 32) or warpgroups (128), once they were needed as such.
    """

    def __init__(self, machine: Machine, lanes: Lanes) -> None:
        self.lanes = lanes
        self.indices = machine.indices(lanes)
        self._of_lane = machine.lane_warp[lanes]
        first = np.ones(len(self._of_lane), bool)
        np.not_equal(self._of_lane[1:], self._of_lane[:-1], out=first[1:])
        self.warps: NDArray[np.intp] = self._of_lane[first]
        self._first = first
        self._column = machine.lane_thread[lanes] % WARP
        self.whole = len(self._of_lane) == WARP * len(self.warps)
        self._complete: set[int] = set()
        self.teams: dict[int, Team] = {}

    @cached_property
    def row(self) -> NDArray[np.intp]:
        """Of each lane, the row of its warp."""
        return np.cumsum(self._first) - 1

    @property
    def column(self) -> NDArray[np.intp]:
        """Of each lane, its place in its warp."""
        return self._column

    @cached_property
    def present(self) -> NDArray[np.bool_]:
        """Which lanes are there: one row a warp, 32 columns."""
        found = np.zeros((len(self.warps), WARP), bool)
        found[self.row, self.column] = True
        return found

    @cached_property
    def present_bits(self) -> NDArray[np.uint32]:
        """The same, 32 bits a warp."""
        return pack(self.present)

    def spread(self, values: Array) -> Array:
        """Return values of the lanes as rows of 32; zeros where a lane is not there."""
        if len(values) != len(self._of_lane):
            values = np.broadcast_to(values, (len(self._of_lane),))
        if self.whole:
            return values.reshape(-1, WARP)
        found = np.zeros((len(self.warps), WARP), values.dtype)
        found[self.row, self.column] = values
        return found

    def collect(self, rows: Array) -> Array:
        """Return rows of 32 values as values of the lanes."""
        return rows.reshape(-1) if self.whole else rows[self.row, self.column]

    def repeat(self, of_warps: Array) -> Array:
        """Return a value of each warp as one of each lane."""
        return np.repeat(of_warps, WARP) if self.whole else of_warps[self.row]

    def complete(self, machine: Machine, width: int) -> bool:
        """Return whether every lane that has not ended is there, of each group of `width` lanes.

        `width` is 32, or 128 for warpgroups. It stays so once it is so, as lanes only end.
        """
        if isinstance(self.lanes, slice) or width in self._complete:
            return True
        if (self.whole and width == WARP) or not self.late(machine, width).any():
            self._complete.add(width)
            return True
        return False

    def late(self, machine: Machine, width: int) -> NDArray[np.bool_]:
        """Return of each lane whether lanes of its group are missing that have not ended."""
        groups = machine.lane_warp if width == WARP else machine.lane_warpgroup
        living = np.bincount(groups[machine.living()], minlength=groups[-1] + 1)
        here = np.bincount(groups[self.lanes], minlength=groups[-1] + 1)
        late: NDArray[np.bool_] = (here < living)[groups[self.lanes]]
        return late

    def late_of_masks(self, machine: Machine, masks: NDArray[np.uint32]) -> NDArray[np.bool_]:
        """Return of each lane whether lanes that its mask names are missing and have not ended."""
        living = pack(machine.living_rows()[self.warps])
        missing = (living & ~self.present_bits)[self.row]
        late: NDArray[np.bool_] = (masks & missing) != 0
        return late


def pack(rows: NDArray[np.bool_]) -> NDArray[np.uint32]:
    """Return rows of 32 bools as 32 bits each, the first the lowest."""
    return np.packbits(rows, axis=1, bitorder="little").view("<u4")[:, 0]


def unpack(bits: NDArray[np.uint32]) -> NDArray[np.bool_]:
    """Return 32 bits each as rows of 32 bools."""
    found: NDArray[np.bool_] = (bits[:, None] & _BITS) != 0
    return found


class WarpViews:
    """The views of a batch; the last few are kept, as loops run the same lanes again and again."""

    _KEPT = 16

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._views: dict[int, WarpView] = {}
        self._all: WarpView | None = None

    def of(self, lanes: Lanes) -> WarpView:
        """Return the view of some lanes."""
        if isinstance(lanes, slice):
            if self._all is None:
                self._all = WarpView(self._machine, lanes)
            return self._all
        found = self._views.get(id(lanes))
        if found is not None:  # it keeps its lanes alive, so that no other array has their id
            return found
        if len(self._views) == self._KEPT:
            del self._views[next(iter(self._views))]
        found = self._views[id(lanes)] = WarpView(self._machine, lanes)
        return found
