"""What a launch did, in numbers that do not depend on the machine it was emulated on."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from sdpakit.ptxemu.scalars import Array
from sdpakit.ptxemu.words import Offsets

if TYPE_CHECKING:
    from sdpakit.ptxemu.machine import Lanes, Machine

_BANKS = 32
_BANK_WIDTH = 4
_SECTOR = 32


@dataclass
class Counters:
    """Counts of a launch.

    Attributes
    ----------
    accesses : bool
        Whether accesses to memory are counted, which takes time: the figures of shared and global
        memory below stay 0 without it. ``profile=True`` of a launch sets it.
    warp_instructions, thread_instructions : int
        Executed, guards ignored.
    by_line : Counter
        Warp instructions by PTX line.
    by_opcode : Counter
        Warp instructions by opcode.
    matrix_flops : int
        Of mma and wgmma, two for each multiply-add.
    shared_requests : int
        Warp-wide accesses to shared memory, but those of asynchronous copies and products.
    shared_wavefronts, shared_wavefronts_ideal : int
        Passes that the banks need for them, and passes they would need without conflicts: one for
        each 128 bytes that a warp asks for at once. Their difference is `bank_conflicts`.
    global_requests : int
        Warp-wide accesses to global memory.
    global_sectors : int
        The 32-byte sectors that they touch.
    global_bytes : int
        What their threads asked for; `sector_use` is its share of the sectors.
    copied_bytes : int
        Moved by asynchronous copies.
    """

    accesses: bool = False
    warp_instructions: int = 0
    thread_instructions: int = 0
    matrix_flops: int = 0
    shared_requests: int = 0
    shared_wavefronts: int = 0
    shared_wavefronts_ideal: int = 0
    global_requests: int = 0
    global_sectors: int = 0
    global_bytes: int = 0
    copied_bytes: int = 0
    by_line: Counter[int] = field(default_factory=Counter)
    by_opcode: Counter[str] = field(default_factory=Counter)

    @property
    def bank_conflicts(self) -> int:
        """Passes of shared memory that another layout would not need."""
        return self.shared_wavefronts - self.shared_wavefronts_ideal

    @property
    def sector_use(self) -> float:
        """Bytes asked for by bytes of the sectors touched: 1 is coalesced, more is reuse."""
        return self.global_bytes / max(self.global_sectors * _SECTOR, 1)

    def count_shared(self, machine: Machine, lanes: Lanes, offsets: Offsets, width: int) -> None:
        """Count one access of `width` bytes at an offset a lane (or a row of offsets a lane)."""
        rows = offsets.reshape(len(offsets), -1)
        warps, lane = machine.lane_warp[lanes], machine.lane_thread[lanes] % 32
        self.shared_requests += rows.shape[1] * len(np.unique(warps))
        # Accesses of 8 bytes are served by half warps, those of 16 by quarters.
        shares = max(width // _BANK_WIDTH, 1)
        group = warps * shares + lane // (32 // shares)
        for column in rows.T:
            words = column[:, None] // _BANK_WIDTH + np.arange(max(width // _BANK_WIDTH, 1))
            passes = _passes(np.repeat(group, words.shape[1]), words.ravel())
            self.shared_wavefronts += int(passes.sum())
            self.shared_wavefronts_ideal += len(passes)

    def count_global(self, machine: Machine, lanes: Lanes, offsets: Offsets, width: int) -> None:
        """Count the same for global memory."""
        rows = offsets.reshape(len(offsets), -1)
        warps = machine.lane_warp[lanes]
        self.global_requests += rows.shape[1] * len(np.unique(warps))
        self.global_bytes += rows.size * width
        for column in rows.T:
            sectors = column // _SECTOR
            self.global_sectors += len(np.unique(_pairs(warps, sectors)))


def _pairs(first: Array, second: Array) -> Array:
    """Return one number for each pair; the second are below 2**40."""
    return np.asarray((first.astype(np.int64) << 40) | second)


def _passes(group: Array, words: Array) -> Array:
    """Return how many passes each group of lanes needs: the most words that one bank has for it."""
    distinct = np.unique(_pairs(group, words))
    _, number = np.unique(distinct >> 40, return_inverse=True)
    banks = number * _BANKS + distinct % _BANKS
    counts = np.bincount(banks, minlength=_BANKS * (int(number[-1]) + 1))
    return np.asarray(counts.reshape(-1, _BANKS).max(axis=1))
