"""Lanes in the words of reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from sdpakit.ptxemu.machine import Machine


def threads_in_words(machine: Machine, lanes: NDArray[np.intp]) -> str:
    """Return lanes of one block as thread numbers in words: ``threads 0-15, 20``."""
    numbers = np.sort(lanes % machine.threads)
    cuts = np.flatnonzero(np.diff(numbers) != 1) + 1
    runs = [(int(part[0]), int(part[-1])) for part in np.split(numbers, cuts)]
    spelt = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
    return f"{'thread' if len(lanes) == 1 else 'threads'} {spelt}"
