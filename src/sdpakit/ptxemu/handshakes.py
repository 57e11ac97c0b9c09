"""Order that strong accesses to shared memory make: locks and flags that kernels build themselves.

A store or atomic operation with ``.release`` hands on what its warp knows; a load or atomic
operation with ``.acquire`` of the same word learns it. Without these words a fence does the same:
one before a store that is ``.relaxed`` or ``.volatile``, and one after such a load.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sdpakit.ptxemu.clocks import Clock, Clocks, Warps, join
from sdpakit.ptxemu.program import Instruction
from sdpakit.ptxemu.words import Offsets

if TYPE_CHECKING:
    from sdpakit.ptxemu.machine import Machine

_READS, _WRITES = frozenset({"ld", "atom"}), frozenset({"st", "red", "atom"})
_ACQUIRES, _RELEASES = ("acquire", "acq_rel"), ("release", "acq_rel")
_WORD = 4


def uses_handshakes(machine: Machine) -> bool:
    """Return whether a program has anything that hands on or learns."""
    return any(
        ins.has("acquire", "release", "acq_rel")
        or (ins.opcode in {"fence", "membar"} and not ins.has("proxy", "mbarrier_init"))
        for ins in machine.program.instructions
        if ins.opcode not in {"mbarrier", "barrier"} and "mbarrier_init" not in ins.modifiers
    )


class Handshakes:
    """What was handed on by words of shared memory, and by fences that wait for an access."""

    def __init__(self, clocks: Clocks) -> None:
        self._clocks = clocks
        self._words: dict[int, Clock] = {}
        self._fenced: dict[int, Clock] = {}  # of each warp, what it knew at its last fence
        self._heard: dict[int, Clock] = {}  # what it learns at its next

    def access(self, ins: Instruction, warps: Warps, offsets: Offsets) -> None:
        """Hand on and learn by strong accesses, one warp a row of offsets."""
        words = offsets.reshape(len(warps), -1)[:, 0] // _WORD
        for word in np.unique(words).tolist():
            some = np.unique(warps[words == word])
            if ins.opcode in _READS and word in self._words:
                self._hear(ins, some, self._words[word])
            if ins.opcode in _WRITES:
                clock = join(self._words.get(word), self._said(ins, some))
                if clock is not None:
                    self._words[word] = clock

    def _hear(self, ins: Instruction, warps: Warps, clock: Clock) -> None:
        if ins.has(*_ACQUIRES):
            self._clocks.acquire(warps, clock)
            return
        for warp in warps.tolist():
            heard = join(self._heard.get(warp), clock)
            assert heard is not None
            self._heard[warp] = heard

    def _said(self, ins: Instruction, warps: Warps) -> Clock | None:
        if ins.has(*_RELEASES):
            return self._clocks.snapshot(warps)
        clock: Clock | None = None
        for warp in warps.tolist():
            clock = join(clock, self._fenced.get(warp))
        return clock

    def fence(self, warps: Warps) -> None:
        """Fence: learn what relaxed accesses read, and let those to come hand on what is known."""
        for warp in warps.tolist():
            one = np.array([warp])
            if warp in self._heard:
                self._clocks.acquire(one, self._heard.pop(warp))
            self._fenced[warp] = self._clocks.snapshot(one)
