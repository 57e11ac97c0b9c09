"""mbarrier objects: phases, arrivals, transaction counts, and who waits. STUB: owner F."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sdpakit.ptxemu.machine import Machine


class MBarriers:
    """mbarrier objects of a batch, by offset into `Memory.shared`."""

    def __init__(self, machine: Machine) -> None: ...

    def waiting(self) -> list[str]:
        """Return one line for each object that somebody waits at: phase, arrivals and bytes missing."""
        return []
