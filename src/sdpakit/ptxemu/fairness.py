"""When lanes that the order of blocks keeps from running have their turn all the same.

Lanes of a low rank go first (see ordering.py). If they spin until lanes of a higher rank do
something, that would be for ever. So lanes that come back to a block with nothing changed in the
registers named on the way are taken to spin, and the others have a turn. A loop that does change
something may still be one that waits; it is interrupted seldom, and nearly always in favour of
other warps, as lanes that run ahead of the rest share no steps with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sdpakit.ptxemu.scalars import Array

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sdpakit.ptxemu.machine import Machine
    from sdpakit.ptxemu.planning import Group, Unit

# How many blocks a group may run before it is looked at; fewer while it is found to spin.
_SPAN, _SHORTEST = 64, 2
# How many looks that find no spinning lead to a turn, and how many turns to one within the warp.
_LOOKS, _TURNS = 64, 16


@dataclass(slots=True)
class _Probe:
    """A group that is watched from a block on until it comes there again, twice.

    The first time tells which blocks lie on the way, the second whether their registers changed.
    """

    block: int
    group: Group
    way: set[int]
    values: dict[int, Array] | None = None


class Fairness:
    """Watches the groups of a batch run while others could, or wait."""

    def __init__(self, machine: Machine, units: Sequence[Unit]) -> None:
        self._machine, self._units = machine, units
        self._span = self._left = _SPAN
        self._looks = self._turns = 0
        self._probe: _Probe | None = None
        self._last_rank = -1
        self._held_up: Group | None = None  # whose turn is over
        self._within_warp = False

    def permits(self, block: int, group: Group) -> bool:
        """Return whether a group may run one more block; others have their turn if not."""
        probe = self._probe
        self._left -= 1
        if probe is None:
            if self._left <= 0:
                self._probe, self._left = _Probe(block, group, {block}), _SPAN
            return True
        if probe.block != block or probe.group is not group:
            probe.way.add(block)
            return self._left > 0 or self._looked(group)
        if probe.values is None:
            probe.values, self._left = self._held(probe), _SPAN
            return True
        if any(self._changed(slot, group, values) for slot, values in probe.values.items()):
            return self._looked(group)
        self._span = max(self._span // 2, _SHORTEST)
        return self._interrupt(group, within_warp=True)

    def _looked(self, group: Group) -> bool:
        """Go on after a look that found no spinning, but not for ever."""
        self._probe, self._left, self._span = None, _SPAN, _SPAN
        self._looks += 1
        if self._looks < _LOOKS:
            return True
        self._turns += 1
        return self._interrupt(group, within_warp=self._turns % _TURNS == 0)

    @property
    def interrupted(self) -> bool:
        """Whether a group was interrupted, so that others have their turn."""
        return self._held_up is not None

    def turn(self, running: NDArray[np.intp], ranks: NDArray[np.intp]) -> NDArray[np.bool_] | None:
        """Return which of the lanes that can run have their turn; None if there are no others."""
        assert self._held_up is not None
        served = np.zeros(self._machine.lanes, bool)
        served[self._held_up.lanes] = True
        if not self._within_warp:
            warps = self._machine.lane_warp
            served = (np.bincount(warps, weights=served) > 0)[warps]
        self._held_up = None
        waiting = ~served[running]
        if not waiting.any():
            return None
        later = waiting & (ranks > self._last_rank)
        self._last_rank = int(ranks[later if later.any() else waiting].min())
        chosen: NDArray[np.bool_] = waiting & (ranks == self._last_rank)
        return chosen

    def _interrupt(self, group: Group, *, within_warp: bool) -> bool:
        self._held_up, self._within_warp = group, within_warp
        self._probe, self._looks, self._left = None, 0, self._span
        return False

    def _held(self, probe: _Probe) -> dict[int, Array]:
        slots = frozenset[int]().union(*(s for n in probe.way for s in self._units[n].registers))
        registers, lanes = self._machine.registers, probe.group.lanes
        return {slot: registers[slot][lanes].copy() for slot in slots}

    def _changed(self, slot: int, group: Group, values: Array) -> bool:
        return not np.array_equal(self._machine.registers[slot][group.lanes], values)
