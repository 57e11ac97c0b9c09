"""Copies under way: cp.async groups, bulk and tensor copies; done as late as legal. STUB: owner F."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sdpakit.ptxemu.machine import Machine


class AsyncCopies:
    """What was issued and has not landed."""

    def __init__(self, machine: Machine) -> None: ...

    def settle(self) -> bool:
        """Land the oldest copy that nobody waits for by number; return whether there was one."""
        return False

    def finish(self) -> None:
        """All threads are done: land what is left."""
