"""Named barriers of blocks, warps and clusters. STUB: owner E."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sdpakit.ptxemu.machine import Machine


class NamedBarriers:
    """``bar``, ``barrier``, ``bar.warp.sync``, ``barrier.cluster``."""

    def __init__(self, machine: Machine) -> None: ...

    def settle(self) -> bool:
        """Release barriers that the end of threads completed; return whether any lane runs again."""
        return False

    def waiting(self) -> list[str]:
        """Return one line for each barrier that somebody waits at, for the deadlock report."""
        return []
