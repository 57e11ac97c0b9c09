"""Memory of a batch: shared memory, local frames, parameters, and the way to global memory.

Every byte has a state beside it. An access of 1 to 16 aligned bytes reads its states as one
word, so a check of each byte of each lane costs one gather and one comparison; who is at fault
is found out only after a comparison failed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sdpakit.ptxemu.errors import (
    BarrierMisuse,
    KernelFault,
    Misaligned,
    MissingWait,
    OutOfBounds,
    UninitialisedRead,
)
from sdpakit.ptxemu.program import Instruction, Symbol
from sdpakit.ptxemu.scalars import Array

if TYPE_CHECKING:
    from sdpakit.ptxemu.machine import Lanes, Machine

# Where the windows of the state spaces lie among generic addresses.
GLOBAL_BASE, SHARED_BASE = 0x7F00_0000_0000, 0x7E00_0000_0000
LOCAL_BASE, PARAM_BASE = 0x7D00_0000_0000, 0x7C00_0000_0000
WINDOW_SHIFT = 40
# A shared address names the block of a cluster in its upper bits: rank + 1; 0 is one's own.
SHARED_RANK_SHIFT = 24

# States of a byte of shared memory (and of a local frame, where it is UNWRITTEN or WRITTEN).
UNWRITTEN, IN_FLIGHT, WRITTEN, BARRIER = 0, 2, 3, 4

# Bits of the state of a byte of global memory; 0 is nobody's.
ALLOCATED, INITIALISED, READ_ONLY = 1, 2, 4
PRESENT = ALLOCATED | INITIALISED
CONSTANT = PRESENT | READ_ONLY

# What memory holds before anything is written: as a float, and as an index, it stands out.
POISON = 0xA5

Offsets = NDArray[np.int64]
Bad = NDArray[np.bool_]

# Words that one access moves; complex128 stands for 16 bytes, which NumPy copies as they are.
_WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64, 16: np.complex128}
_TILE = 1024  # a multiple of what swizzles repeat after, so that they may be computed on offsets


def gather(memory: Array, offsets: Offsets, width: int) -> Array:
    """Return `width` bytes at each aligned offset, as uint8 of shape (n, width), fast for 1 to 16."""
    flat = offsets.reshape(-1)
    word = _WORDS.get(width)
    if word is None or _merged(flat) & (width - 1):
        return memory[flat[:, None] + np.arange(width)]
    return memory.view(word).take(flat >> width.bit_length() - 1).view(np.uint8).reshape(-1, width)


def scatter(memory: Array, offsets: Offsets, data: Array) -> None:
    """Write uint8 data of shape (n, width) to aligned offsets; of equal offsets, the last one stays."""
    flat, width = offsets.reshape(-1), data.shape[-1]
    word = _WORDS.get(width)
    if word is None or _merged(flat) & (width - 1):
        memory[flat[:, None] + np.arange(width)] = data
        return
    words = np.ascontiguousarray(data).view(word).reshape(-1)
    memory.view(word)[flat >> width.bit_length() - 1] = words


def fill(memory: Array, offsets: Offsets, width: int, value: int) -> None:
    """Set `width` bytes at each aligned offset to a value."""
    word = _WORDS.get(width)
    if word is None or width == 16 or _merged(offsets) & (width - 1):
        memory[offsets.reshape(-1)[:, None] + np.arange(width)] = value
        return
    pattern = np.full(width, value, np.uint8).view(word)[0]
    memory.view(word)[offsets >> width.bit_length() - 1] = pattern


def all_equal(states: Array, offsets: Offsets, width: int, value: int) -> bool:
    """Return whether all `width` states at each offset have a value."""
    low, high = int(offsets.min()), int(offsets.max()) + width
    if high - low <= 2 * offsets.size * width:  # looking at all between is faster than gathering
        span = states[low & ~7 : -(-high // 8) * 8].view(np.uint64)
        if bool((span == _pattern(value)).all()):
            return True
    found = gather(states, offsets, width)
    if width >= 8:
        return bool((found.view(np.uint64) == _pattern(value)).all())
    word = _WORDS[width]
    return bool((found.view(word) == _pattern(value).astype(word)).all())


def _pattern(value: int) -> np.uint64:
    return np.uint64(value * 0x0101_0101_0101_0101)


def _merged(values: Offsets) -> int:
    """Return the bitwise or of all values: it has a bit that is set in any, and is no less than each."""
    return int(np.bitwise_or.reduce(values, axis=None)) if values.size else 0


def _lanes_with(bad: Bad) -> Bad:
    """Return which lanes have any bad element, for arrays with several a lane."""
    return bad.reshape(bad.shape[0], -1).any(axis=1)


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
    local, local_state : numpy.ndarray
        Frames of all lanes, `local_stride` bytes each.
    parameters : numpy.ndarray
        The parameter block, padded with zeros.
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
        self._shared_base = (machine.lane_block * self.stride).astype(np.int64)
        self.local_stride = -(-program.local_bytes // 32) * 32
        self.local = np.full(machine.lanes * self.local_stride, POISON, np.uint8)
        self.local_state = np.zeros(self.local.shape, np.uint8)
        size = -(-max(len(machine.parameters), 1) // 32) * 32
        self.parameters = np.frombuffer(machine.parameters.ljust(size, b"\0"), np.uint8)

    def symbol(self, symbol: Symbol) -> int:
        """Return the address of a variable in its own space; global address for global and const."""
        if symbol.space in {"global", "const"}:
            return self._machine.device.module_address(self._machine.program) + symbol.offset
        return symbol.offset

    # ------------------------------------------------------------------------------------ shared

    def locate_shared(
        self, ins: Instruction, lanes: Lanes, addresses: Offsets, width: int
    ) -> Offsets:
        """Return offsets into `shared` of shared-window addresses (rank resolved); bounds, alignment."""
        base = self._shared_base[lanes]
        if addresses.ndim > 1:
            base = base[:, None]
        merged = _merged(addresses)
        if merged >> SHARED_RANK_SHIFT > 0:
            addresses, base = self._resolve_rank(ins, lanes, addresses, base)
        if merged & (width - 1):
            self._refuse_misaligned(ins, lanes, addresses, width)
        if merged < 0 or merged + width > self.shared_bytes:
            self._check_shared_bounds(ins, lanes, addresses, width)
        return addresses + base

    def _resolve_rank(
        self, ins: Instruction, lanes: Lanes, addresses: Offsets, base: Offsets
    ) -> tuple[Offsets, Offsets]:
        """Return addresses in the block that they name, and where that block's memory begins."""
        machine = self._machine
        size = machine.shape.cluster_size
        rank = (addresses >> SHARED_RANK_SHIFT) - 1
        if (bad := rank >= size).any():
            wrong = int(addresses[bad][0])
            raise machine.fault(
                OutOfBounds,
                ins,
                lanes,
                f"{wrong:#x} is no shared address: the cluster has {size} blocks, and a block "
                f"{self.shared_bytes} bytes of shared memory",
                "Compute the address from a shared variable, or by `mapa` from one.",
                _lanes_with(bad),
            )
        block = base // self.stride
        named = np.where(rank < 0, block, block - block % size + rank)
        return addresses & (1 << SHARED_RANK_SHIFT) - 1, named * self.stride

    def _check_shared_bounds(
        self, ins: Instruction, lanes: Lanes, addresses: Offsets, width: int
    ) -> None:
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
            _lanes_with(bad),
        )

    def read_shared(
        self, ins: Instruction, lanes: Lanes, addresses: Offsets, width: int
    ) -> Offsets:
        """As `locate_shared`, for a read by the lanes: also uninitialised, in flight, and `races.read`."""
        offsets = self.locate_shared(ins, lanes, addresses, width)
        self.check_shared_read(ins, lanes, offsets, width)
        self._machine.races.read(ins, lanes, offsets, width)
        return offsets

    def write_shared(
        self, ins: Instruction, lanes: Lanes, addresses: Offsets, width: int
    ) -> Offsets:
        """As `locate_shared`, for an ordinary write: in flight, `races.write`; marks bytes WRITTEN."""
        offsets = self.locate_shared(ins, lanes, addresses, width)
        self.check_shared_write(ins, lanes, offsets, width)
        self._machine.races.write(ins, lanes, offsets, width)
        return offsets

    def check_shared_read(
        self, ins: Instruction, lanes: Lanes, offsets: Offsets, width: int
    ) -> None:
        """Raise if any byte at offsets into `shared` may not be read."""
        if offsets.size and not all_equal(self.shared_state, offsets, width, WRITTEN):
            self._refuse_states(ins, lanes, offsets, width, reads=True)

    def check_shared_write(
        self, ins: Instruction, lanes: Lanes, offsets: Offsets, width: int
    ) -> None:
        """Raise if any byte at offsets into `shared` may not be written; mark all WRITTEN."""
        if offsets.size and not all_equal(self.shared_state, offsets, width, WRITTEN):
            self._refuse_states(ins, lanes, offsets, width, reads=False)
            fill(self.shared_state, offsets, width, WRITTEN)

    def _refuse_states(
        self, ins: Instruction, lanes: Lanes, offsets: Offsets, width: int, *, reads: bool
    ) -> None:
        checks = self._machine.checks
        states = gather(self.shared_state, offsets, width).reshape(*offsets.shape, width)
        if checks.wait and (bad := states == IN_FLIGHT).any():
            raise self._shared_fault(
                MissingWait,
                ins,
                lanes,
                (offsets, bad),
                "while an asynchronous copy into it is under way",
                "Wait for the copy first: cp.async.wait_group and a barrier, or the mbarrier of the copy.",
            )
        if checks.barrier and (bad := states == BARRIER).any():
            raise self._shared_fault(
                BarrierMisuse,
                ins,
                lanes,
                (offsets, bad),
                "which holds an mbarrier object",
                "Keep data and mbarrier objects apart, or end the object with mbarrier.inval first.",
            )
        if reads and checks.uninitialised and (bad := states == UNWRITTEN).any():
            raise self._shared_fault(
                UninitialisedRead,
                ins,
                lanes,
                (offsets, bad),
                "which nobody wrote",
                "Write it first; a tile's padding and its rows beyond the end need values, too.",
            )

    def _shared_fault(
        self,
        kind: type[KernelFault],
        ins: Instruction,
        lanes: Lanes,
        where: tuple[Offsets, Bad],
        what: str,
        remedy: str,
    ) -> KernelFault:
        offsets, bad = where
        first = np.argwhere(bad)[0]
        address = (int(offsets[tuple(first[:-1])]) + int(first[-1])) % self.stride
        problem = f"touches the byte at shared address {address}, {what}"
        return self._machine.fault(kind, ins, lanes, problem, remedy, _lanes_with(bad))

    # --------------------------------------------------------------------- local and parameters

    def _locate_local(
        self, ins: Instruction, lanes: Lanes, addresses: Offsets, width: int
    ) -> Offsets:
        machine = self._machine
        merged, size = _merged(addresses), machine.program.local_bytes
        if merged & (width - 1):
            self._refuse_misaligned(ins, lanes, addresses, width)
        if merged < 0 or merged + width > size:
            bad = (addresses < 0) | (addresses + width > size)
            if bad.any():
                raise machine.fault(
                    OutOfBounds,
                    ins,
                    lanes,
                    f"{width} bytes at local address {int(addresses[bad][0])}, but a thread's frame "
                    f"has {size} bytes",
                    "Correct the index into the local array.",
                    bad,
                )
        return addresses + machine.indices(lanes) * self.local_stride

    def read_local(self, ins: Instruction, lanes: Lanes, addresses: Offsets, width: int) -> Offsets:
        """Return offsets into `local` for a read: bounds, alignment, initialised."""
        offsets = self._locate_local(ins, lanes, addresses, width)
        if self._machine.checks.uninitialised and not all_equal(
            self.local_state, offsets, width, WRITTEN
        ):
            bad = (gather(self.local_state, offsets, width) != WRITTEN).any(axis=1)
            raise self._machine.fault(
                UninitialisedRead,
                ins,
                lanes,
                f"reads {width} bytes at local address {int(addresses[bad][0])}, which its thread "
                "did not write",
                "Set all elements of a local array that are read.",
                bad,
            )
        return offsets

    def write_local(
        self, ins: Instruction, lanes: Lanes, addresses: Offsets, width: int
    ) -> Offsets:
        """Return offsets into `local` for a write; marks bytes WRITTEN."""
        offsets = self._locate_local(ins, lanes, addresses, width)
        fill(self.local_state, offsets, width, WRITTEN)
        return offsets

    def read_parameter(
        self, ins: Instruction, lanes: Lanes, addresses: Offsets, width: int
    ) -> Offsets:
        """Return offsets into `parameters`."""
        merged, size = _merged(addresses), len(self._machine.parameters)
        if merged & (width - 1):
            self._refuse_misaligned(ins, lanes, addresses, width)
        bad = (addresses < 0) | (addresses + width > size)
        if bad.any():
            raise self._machine.fault(
                OutOfBounds,
                ins,
                lanes,
                f"{width} bytes at parameter address {int(addresses[bad][0])}, but the kernel's "
                f"parameters have {size} bytes",
                "Correct the offset into the parameter.",
                bad,
            )
        return addresses

    # ------------------------------------------------------------------------------------ global

    def _locate_global(
        self, ins: Instruction, lanes: Lanes, addresses: Offsets, width: int
    ) -> Offsets:
        offsets = addresses - GLOBAL_BASE
        merged = _merged(offsets)
        size = self._machine.device.arena.size
        if merged < 0 or merged + width > size:
            bad = (offsets < 0) | (offsets + width > size)
            if bad.any():
                raise self._outside(ins, lanes, addresses, width, bad)
        if merged & (width - 1):
            self._refuse_misaligned(ins, lanes, addresses, width)
        return offsets

    def read_global(
        self, ins: Instruction, lanes: Lanes, addresses: Offsets, width: int
    ) -> Offsets:
        """Return offsets into `machine.device.arena` for a read: bounds, alignment, initialised."""
        offsets = self._locate_global(ins, lanes, addresses, width)
        states = self._machine.device.arena_state
        if offsets.size and not all_equal(states, offsets, width, PRESENT):
            self._refuse_global_read(ins, lanes, addresses, width)
        return offsets

    def read_const(self, ins: Instruction, lanes: Lanes, addresses: Offsets, width: int) -> Offsets:
        """Return offsets into the arena for a read of constants."""
        offsets = self._locate_global(ins, lanes, addresses, width)
        states = self._machine.device.arena_state
        if self._machine.checks.bounds and not all_equal(states, offsets, width, CONSTANT):
            bad = (gather(states, offsets, width) != CONSTANT).any(axis=1)
            raise self._outside(ins, lanes, addresses, width, bad)
        return offsets

    def _refuse_global_read(
        self, ins: Instruction, lanes: Lanes, addresses: Offsets, width: int
    ) -> None:
        machine = self._machine
        offsets = addresses - GLOBAL_BASE
        states = gather(machine.device.arena_state, offsets, width).reshape(*offsets.shape, width)
        if machine.checks.bounds and (bad := states & ALLOCATED == 0).any():
            raise self._outside(ins, lanes, addresses, width, _lanes_with(bad))
        bad = (states & PRESENT) == ALLOCATED
        if machine.checks.uninitialised and bad.any():
            first = np.argwhere(bad)[0]
            where = int(addresses[tuple(first[:-1])]) + int(first[-1])
            raise machine.fault(
                UninitialisedRead,
                ins,
                lanes,
                f"reads the byte at {machine.device.describe(where)}, which nobody wrote",
                "Write it first, or pass an array with values instead of an output.",
                _lanes_with(bad),
            )

    def write_global(
        self, ins: Instruction, lanes: Lanes, addresses: Offsets, width: int
    ) -> Offsets:
        """The same for a write; marks bytes initialised."""
        offsets = self._locate_global(ins, lanes, addresses, width)
        states = self._machine.device.arena_state
        if offsets.size and not all_equal(states, offsets, width, PRESENT):
            self._refuse_global_write(ins, lanes, addresses, width)
            fill(states, offsets, width, PRESENT)
        return offsets

    def _refuse_global_write(
        self, ins: Instruction, lanes: Lanes, addresses: Offsets, width: int
    ) -> None:
        machine = self._machine
        offsets = addresses - GLOBAL_BASE
        states = gather(machine.device.arena_state, offsets, width).reshape(*offsets.shape, width)
        if machine.checks.bounds and (bad := states & ALLOCATED == 0).any():
            raise self._outside(ins, lanes, addresses, width, _lanes_with(bad))
        if machine.checks.bounds and (bad := states & READ_ONLY != 0).any():
            first = int(addresses[bad.any(axis=-1)][0])
            raise machine.fault(
                OutOfBounds,
                ins,
                lanes,
                f"writes {width} bytes at {machine.device.describe(first)}, which is read-only",
                "Write elsewhere, or pass a writeable array.",
                _lanes_with(bad),
            )

    def _outside(
        self, ins: Instruction, lanes: Lanes, addresses: Offsets, width: int, bad: Bad
    ) -> KernelFault:
        first = int(addresses.reshape(bad.shape[0], -1)[_lanes_with(bad)][0, 0])
        return self._machine.fault(
            OutOfBounds,
            ins,
            lanes,
            f"{width} bytes at {self._machine.device.describe(first, width)}",
            "Guard the access by the size of the array, or correct its index or strides.",
            _lanes_with(bad),
        )

    def _refuse_misaligned(
        self, ins: Instruction, lanes: Lanes, addresses: Offsets, width: int
    ) -> None:
        if not self._machine.checks.alignment:
            return
        bad = addresses & (width - 1) != 0
        wrong = int(addresses[bad][0])
        raise self._machine.fault(
            Misaligned,
            ins,
            lanes,
            f"an access of {width} bytes at address {wrong:#x}, which {width} does not divide",
            f"Keep the address a multiple of {width}, or use narrower accesses.",
            _lanes_with(bad),
        )
