"""The fault of an address that its width does not divide."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sdpakit.ptxemu.errors import KernelFault, Misaligned
from sdpakit.ptxemu.program import Instruction
from sdpakit.ptxemu.words import Bad, Offsets, any_of_lane

if TYPE_CHECKING:
    from sdpakit.ptxemu.machine import Lanes, Machine


def misaligned(
    machine: Machine, ins: Instruction, lanes: Lanes, addresses: Offsets, width: int
) -> KernelFault:
    """Return the error for addresses some of which are no multiples of the width."""
    bad: Bad = addresses & (width - 1) != 0
    return machine.fault(
        Misaligned,
        ins,
        lanes,
        f"an access of {width} bytes at address {int(addresses[bad][0]):#x}, which is no multiple "
        f"of {width}",
        f"Keep the address a multiple of {width}, or use narrower accesses.",
        any_of_lane(bad),
    )
