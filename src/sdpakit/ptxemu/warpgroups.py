"""Products of warpgroups that are in flight. STUB: owner D."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sdpakit.ptxemu.machine import Machine
    from sdpakit.ptxemu.program import Instruction


class PendingProducts:
    """``wgmma`` groups; `registers` are the slots of accumulators in flight, empty most of the time."""

    registers: frozenset[int] = frozenset()

    def __init__(self, machine: Machine) -> None: ...

    def refuse(self, ins: Instruction) -> None:
        """Raise AccumulatorInFlight if an instruction (no wgmma) names a register in flight."""

    def finish(self) -> None:
        """All threads are done: raise if products were never waited for."""
