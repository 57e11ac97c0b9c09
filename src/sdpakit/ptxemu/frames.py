"""What each thread has for itself, its frame of local memory, and what all have: parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sdpakit.ptxemu.errors import OutOfBounds, UninitialisedRead
from sdpakit.ptxemu.misalignment import misaligned
from sdpakit.ptxemu.program import Instruction
from sdpakit.ptxemu.windows import POISON
from sdpakit.ptxemu.words import Offsets, all_equal, fill, gather, merged

if TYPE_CHECKING:
    from sdpakit.ptxemu.machine import Lanes, Machine

# The widest access; a frame is a multiple of it, so that each begins aligned.
_WIDEST = 32


class LocalFrames:
    """Local memory of all lanes, one frame after the other.

    Attributes
    ----------
    memory : numpy.ndarray
        As bytes.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._size = machine.program.local_bytes
        self._stride = -(-self._size // _WIDEST) * _WIDEST
        self.memory = np.full(machine.lanes * self._stride, POISON, np.uint8)
        self._written = np.zeros(self.memory.shape, np.uint8)

    def _locate(self, ins: Instruction, lanes: Lanes, addresses: Offsets, width: int) -> Offsets:
        machine, bits = self._machine, merged(addresses)
        if bits & (width - 1) and machine.checks.alignment:
            raise misaligned(machine, ins, lanes, addresses, width)
        if not 0 <= bits <= self._size - width:
            limit = self._size if machine.checks.bounds else self._stride
            bad = (addresses < 0) | (addresses + width > limit)
            if bad.any():
                raise machine.fault(
                    OutOfBounds,
                    ins,
                    lanes,
                    f"{width} bytes at local address {int(addresses[bad][0])}, but a thread's "
                    f"frame has {self._size} bytes",
                    "Correct the index into the local array.",
                    bad,
                )
        return addresses + machine.indices(lanes) * self._stride

    def read(self, ins: Instruction, lanes: Lanes, addresses: Offsets, width: int) -> Offsets:
        """Return offsets into `memory` for a read: bounds, alignment, initialised."""
        offsets = self._locate(ins, lanes, addresses, width)
        if self._machine.checks.uninitialised and not all_equal(self._written, offsets, width, 1):
            bad = (gather(self._written, offsets, width) == 0).any(axis=1)
            raise self._machine.fault(
                UninitialisedRead,
                ins,
                lanes,
                f"reads {width} bytes at local address {int(addresses[bad][0])}, which its thread "
                "did not write, or not all of them",
                "Set each element of a local array before it is read.",
                bad,
            )
        return offsets

    def write(self, ins: Instruction, lanes: Lanes, addresses: Offsets, width: int) -> Offsets:
        """Return offsets into `memory` for a write; marks the bytes as written."""
        offsets = self._locate(ins, lanes, addresses, width)
        fill(self._written, offsets, width, 1)
        return offsets


class ParameterBlock:
    """The bytes of all parameters.

    Attributes
    ----------
    memory : numpy.ndarray
        Padded with zeros.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._size = len(machine.parameters)
        padded = -(-max(self._size, 1) // _WIDEST) * _WIDEST
        self.memory = np.frombuffer(machine.parameters.ljust(padded, b"\0"), np.uint8)

    def read(self, ins: Instruction, lanes: Lanes, addresses: Offsets, width: int) -> Offsets:
        """Return offsets into `memory`, which are the addresses: bounds, alignment."""
        machine, bits = self._machine, merged(addresses)
        if bits & (width - 1) and machine.checks.alignment:
            raise misaligned(machine, ins, lanes, addresses, width)
        bad = (addresses < 0) | (addresses + width > self._size)
        if bad.any():
            raise machine.fault(
                OutOfBounds,
                ins,
                lanes,
                f"{width} bytes at parameter address {int(addresses[bad][0])}, but the kernel's "
                f"parameters have {self._size} bytes",
                "Correct the offset into the parameter.",
                bad,
            )
        return addresses
