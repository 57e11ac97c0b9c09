"""Memory of a batch: shared memory here; local frames, parameters and global memory beside it.

Every byte has a state. The states of an access are compared as one word (see `words`); who is
at fault, and with what, is found out only after a comparison failed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sdpakit.ptxemu.errors import (
    BarrierMisuse,
    KernelFault,
    MissingWait,
    OutOfBounds,
    UninitialisedRead,
)
from sdpakit.ptxemu.frames import LocalFrames, ParameterBlock
from sdpakit.ptxemu.globalmemory import GlobalAccess
from sdpakit.ptxemu.misalignment import misaligned
from sdpakit.ptxemu.program import Instruction, Symbol
from sdpakit.ptxemu.spaces import spaces_of
from sdpakit.ptxemu.windows import GLOBAL_BASE as GLOBAL_BASE
from sdpakit.ptxemu.windows import LOCAL_BASE as LOCAL_BASE
from sdpakit.ptxemu.windows import PARAM_BASE as PARAM_BASE
from sdpakit.ptxemu.windows import POISON
from sdpakit.ptxemu.windows import SHARED_BASE as SHARED_BASE
from sdpakit.ptxemu.words import Offsets, all_equal, any_of_lane, fill, merged
from sdpakit.ptxemu.words import gather as gather
from sdpakit.ptxemu.words import scatter as scatter

if TYPE_CHECKING:
    from sdpakit.ptxemu.machine import Lanes, Machine

# A shared address names the block of a cluster in its upper bits: rank + 1; 0 is one's own.
SHARED_RANK_SHIFT = 24

# States of a byte of shared memory.
UNWRITTEN, IN_FLIGHT, WRITTEN, BARRIER = 0, 2, 3, 4

# Swizzles repeat after it, so that they may be computed on offsets into all blocks' memory.
_TILE = 1024


class Memory:
    """Memory of a batch of blocks.

    Attributes
    ----------
    shared, shared_state : numpy.ndarray
        All blocks' shared memory, `stride` bytes each, and the state of each byte.
    stride : int
        From the shared memory of one block to that of the next.
    shared_bytes : int
        How much of a block's `stride` is its own.
    everywhere : GlobalAccess
        Global memory; `read_global` and `write_global` are two of its methods.
    frames : LocalFrames
        Local memory.
    parameters : ParameterBlock
        What the kernel was given.
    spaces : dict of str to Space
        All of them, by name.
    """

    def __init__(self, machine: Machine) -> None:
        program, dynamic = machine.program, machine.shape.dynamic_shared
        self._machine = machine
        self.shared_bytes = program.static_shared
        if dynamic:
            self.shared_bytes = program.dynamic_shared_start + dynamic
        self.stride = max(-(-self.shared_bytes // _TILE), 1) * _TILE
        self.shared = np.full(len(machine.blocks) * self.stride, POISON, np.uint8)
        self.shared_state = np.zeros(self.shared.shape, np.uint8)
        self._bases = (machine.lane_block * self.stride).astype(np.int64)
        self.frames = LocalFrames(machine)
        self.parameters = ParameterBlock(machine)
        self.everywhere = GlobalAccess(machine)
        self.read_global, self.write_global = self.everywhere.read, self.everywhere.write
        self.spaces = spaces_of(machine, self)
        # Loads the variables, too: a device must not get new memory in the middle of a launch.
        self._data = machine.device.module_address(program)

    def symbol(self, symbol: Symbol) -> int:
        """Return the address of a variable in its space; a global address for global and const."""
        if symbol.space in {"global", "const"}:
            return self._data + symbol.offset
        return symbol.offset

    def locate_shared(
        self, ins: Instruction, lanes: Lanes, addresses: Offsets, width: int
    ) -> Offsets:
        """Return offsets into `shared` of addresses, which may name another block of the cluster.

        Parameters
        ----------
        ins : Instruction
            On whose behalf.
        lanes : slice or numpy.ndarray
            Who accesses it.
        addresses : numpy.ndarray
            In the shared window, one a lane, or one row a lane.
        width : int
            Bytes at each address, a power of two.

        Raises
        ------
        OutOfBounds, Misaligned
            If an access is not inside the block's memory, or at no multiple of its width.
        """
        bases = self._bases[lanes]
        if addresses.ndim > 1:
            bases = bases[:, None]
        bits = merged(addresses)
        if bits >> SHARED_RANK_SHIFT > 0:
            addresses, bases = self._resolve_rank(ins, lanes, addresses, bases)
        if bits & (width - 1) and self._machine.checks.alignment:
            raise misaligned(self._machine, ins, lanes, addresses, width)
        if not 0 <= bits <= self.shared_bytes - width:  # else some may still be inside
            self._check_bounds(ins, lanes, addresses, width)
        return addresses + bases

    def _resolve_rank(
        self, ins: Instruction, lanes: Lanes, addresses: Offsets, bases: Offsets
    ) -> tuple[Offsets, Offsets]:
        """Return addresses in the block that they name, and where that block's memory begins."""
        machine, size = self._machine, self._machine.shape.cluster_size
        rank = (addresses >> SHARED_RANK_SHIFT) - 1
        if (bad := rank >= size).any():
            wrong = int(addresses[bad][0])
            raise machine.fault(
                OutOfBounds,
                ins,
                lanes,
                f"{wrong:#x} is no shared address: a block has {self.shared_bytes} bytes of shared "
                f"memory, its cluster {size} blocks",
                "Compute the address from a shared variable, or by mapa from one.",
                any_of_lane(bad),
            )
        block = bases // self.stride
        named = np.where(rank < 0, block, block - block % size + rank)
        return addresses & (1 << SHARED_RANK_SHIFT) - 1, named * self.stride

    def _check_bounds(self, ins: Instruction, lanes: Lanes, addresses: Offsets, width: int) -> None:
        machine = self._machine
        limit = self.shared_bytes if machine.checks.bounds else self.stride
        bad = (addresses < 0) | (addresses + width > limit)
        if not bad.any():
            return
        static, dynamic = machine.program.static_shared, machine.shape.dynamic_shared
        raise machine.fault(
            OutOfBounds,
            ins,
            lanes,
            f"{width} bytes at shared address {int(addresses[bad][0])}, but the block has "
            f"{self.shared_bytes} bytes of shared memory ({static} static, {dynamic} dynamic)",
            "Correct the index, or launch with more dynamic shared memory (`shared=`).",
            any_of_lane(bad),
        )

    def read_shared(
        self, ins: Instruction, lanes: Lanes, addresses: Offsets, width: int
    ) -> Offsets:
        """Return what `locate_shared` does, for an ordinary read: also checks states and races."""
        offsets = self.locate_shared(ins, lanes, addresses, width)
        self.check_read(ins, lanes, offsets, width)
        self._machine.races.read(ins, lanes, offsets, width)
        return offsets

    def write_shared(
        self, ins: Instruction, lanes: Lanes, addresses: Offsets, width: int
    ) -> Offsets:
        """Return what `locate_shared` does, for an ordinary write: marks the bytes WRITTEN, too."""
        offsets = self.locate_shared(ins, lanes, addresses, width)
        self.check_write(ins, lanes, offsets, width)
        self._machine.races.write(ins, lanes, offsets, width)
        return offsets

    def update_shared(
        self, ins: Instruction, lanes: Lanes, addresses: Offsets, width: int
    ) -> Offsets:
        """Return what `locate_shared` does, for an atomic access: checks as for a read."""
        offsets = self.locate_shared(ins, lanes, addresses, width)
        self.check_read(ins, lanes, offsets, width)
        self._machine.races.atomic(ins, lanes, offsets, width)
        return offsets

    def check_read(self, ins: Instruction, lanes: Lanes, offsets: Offsets, width: int) -> None:
        """Raise if a byte at offsets into `shared` may not be read."""
        if self._machine.counters.accesses:
            self._machine.counters.count_shared(self._machine, lanes, offsets, width)
        if not all_equal(self.shared_state, offsets, width, WRITTEN):
            self._check_states(ins, lanes, offsets, width, reads=True)

    def check_write(self, ins: Instruction, lanes: Lanes, offsets: Offsets, width: int) -> None:
        """Raise if a byte at offsets into `shared` may not be written; mark all WRITTEN."""
        if self._machine.counters.accesses:
            self._machine.counters.count_shared(self._machine, lanes, offsets, width)
        if not all_equal(self.shared_state, offsets, width, WRITTEN):
            self._check_states(ins, lanes, offsets, width, reads=False)
            fill(self.shared_state, offsets, width, WRITTEN)

    def _check_states(
        self, ins: Instruction, lanes: Lanes, offsets: Offsets, width: int, *, reads: bool
    ) -> None:
        checks = self._machine.checks
        states = gather(self.shared_state, offsets, width).reshape(*offsets.shape, width)
        kind: type[KernelFault]
        if checks.wait and (bad := states == IN_FLIGHT).any():
            kind, what = MissingWait, "while an asynchronous copy into it is under way"
            remedy = "Wait for it: cp.async.wait_group and a barrier, or the copy's mbarrier."
        elif checks.barrier and (bad := states == BARRIER).any():
            kind, what = BarrierMisuse, "which holds an mbarrier object"
            remedy = "Keep data and mbarrier objects apart, or end the object by mbarrier.inval."
        elif reads and checks.uninitialised and (bad := states == UNWRITTEN).any():
            kind, what = UninitialisedRead, "which nobody wrote"
            remedy = (
                "Write it first; a tile's padding and its rows beyond the end need values, too."
            )
        else:
            return
        first = np.argwhere(bad)[0]
        address = (int(offsets[tuple(first[:-1])]) + int(first[-1])) % self.stride
        problem = f"touches the byte at shared address {address}, {what}"
        raise self._machine.fault(kind, ins, lanes, problem, remedy, any_of_lane(bad))
