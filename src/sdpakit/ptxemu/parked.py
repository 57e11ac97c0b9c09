"""Lanes that wait in the middle of a block for the rest of their warp."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sdpakit.ptxemu.machine import WAITING
from sdpakit.ptxemu.planning import Apart, Gate

if TYPE_CHECKING:
    from sdpakit.ptxemu.machine import Machine


class Parked:
    """Lanes before instructions for a whole warp that they reached without the rest of it.

    Attributes
    ----------
    places : dict
        By (block, step in it): what is waited for there, and the lanes.
    ready : list of (int, int, numpy.ndarray)
        Places and lanes that have all their company now; the scheduler takes them from here,
        and only then sets their state.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.places: dict[tuple[int, int], tuple[Gate, NDArray[np.intp]]] = {}
        self.ready: list[tuple[int, int, NDArray[np.intp]]] = []

    def add(self, block: int, apart: Apart) -> None:
        """Have more lanes wait at a place, and release those that this completes."""
        self._machine.state[apart.lanes] = WAITING
        self._machine.position[apart.lanes] = block
        place, lanes = (block, apart.at), apart.lanes
        if place in self.places:
            lanes = np.union1d(self.places[place][1], lanes)
            self._release(place, apart.gate, lanes)
        else:
            self.places[place] = apart.gate, lanes

    def settle(self) -> bool:
        """Release lanes whose company has ended; return whether there are any."""
        for place, (gate, lanes) in list(self.places.items()):
            self._release(place, gate, lanes)
        return bool(self.ready)

    def _release(self, place: tuple[int, int], gate: Gate, lanes: NDArray[np.intp]) -> None:
        late = gate.late(self._machine, lanes)
        released = lanes if late is None else lanes[~late]
        if len(released):
            self.ready.append((*place, released))
        if late is None:
            self.places.pop(place, None)
        else:
            self.places[place] = gate, lanes[late]
