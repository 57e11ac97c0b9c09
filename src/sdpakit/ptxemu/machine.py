"""The state of a batch of thread blocks that run together, every thread of them a *lane*.

A register is one array over all lanes, so a step works on all lanes that are at the same place at
once. `Lanes` says which: a full slice for all, else their sorted indices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sdpakit.ptxemu.asynccopies import AsyncCopies
from sdpakit.ptxemu.barriers import NamedBarriers
from sdpakit.ptxemu.checks import Checks
from sdpakit.ptxemu.counters import Counters
from sdpakit.ptxemu.errors import KernelFault
from sdpakit.ptxemu.mbarriers import MBarriers
from sdpakit.ptxemu.memory import Memory
from sdpakit.ptxemu.program import Instruction, Program, Symbol
from sdpakit.ptxemu.races import RaceDetector
from sdpakit.ptxemu.scalars import Array
from sdpakit.ptxemu.specials import SpecialRegisters
from sdpakit.ptxemu.warpgroups import PendingProducts
from sdpakit.ptxemu.warps import WARP, WarpViews

if TYPE_CHECKING:
    from sdpakit.ptxemu.device import Device

Lanes: TypeAlias = slice | NDArray[np.intp]
WARPGROUP = 4  # warps

# What a register holds before it is written: a NaN in every width, and a number that stands out.
_POISON = 0x7FF8DEAD7FC0DEAD

RUNNING, WAITING, DONE = 0, 1, 2

# Less than one lane in so many is few: numbers of lanes index faster than a mask. Masks are kept
# for so many groups of lanes.
_FEW, _KEPT_MASKS = 8, 64
# Freed memory to keep, far more than the temporary arrays of a step take.
_KEPT_BYTES = 16 << 20


@dataclass(frozen=True)
class LaunchShape:
    """Sizes of a launch, x fastest. `cluster` is (1, 1, 1) without clusters."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    dynamic_shared: int

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def cluster_size(self) -> int:
        """Blocks of a cluster."""
        return self.cluster[0] * self.cluster[1] * self.cluster[2]

    @property
    def clusters(self) -> tuple[int, int, int]:
        """Clusters of the grid, x first."""
        x, y, z = (size // wide for size, wide in zip(self.grid, self.cluster, strict=True))
        return x, y, z


class Machine:
    """A batch of blocks in the middle of a launch.

    Parameters
    ----------
    program : Program
        What runs.
    shape : LaunchShape
        Sizes of the launch.
    blocks : sequence of tuple of int
        ``%ctaid`` of the blocks of this batch; blocks of a cluster stand together, in the order of
        their rank.
    device : Device
        Global memory and tensor maps.
    parameters : bytes
        The parameter block.
    checks : Checks
        What to check.
    counters : Counters
        Added to.

    Attributes
    ----------
    lanes : int
        Threads of the batch. Lane ``n`` is thread ``n % threads`` of block ``n // threads``.
    threads, warps : int
        Threads and warps of one block.
    lane_block, lane_thread, lane_warp : numpy.ndarray
        Of each lane: its block in this batch, thread in the block, and warp in the batch (block
        times `warps` plus warp in the block).
    registers : list of numpy.ndarray
        By slot, one element a lane, in storage dtypes.
    carry : numpy.ndarray
        Of each lane: the carry flag of ``add.cc`` and the like.
    state : numpy.ndarray
        Of each lane: RUNNING, WAITING or DONE.
    position : numpy.ndarray
        Of each lane: the block of the program that it runs next.
    lane_warpgroup : numpy.ndarray
        Of each lane, its warpgroup in the batch.
    warp_views : WarpViews
        Lanes seen as rows of warps.
    whole_warps : dict of int to numpy.ndarray
        By the identity of index arrays that are whole warps: which rows of 32 of a register they
        are. Only arrays that live as long as the machine are here.
    memory, races, barriers, mbarriers, copies, products
        The parts of the state that have a module of their own.
    """

    def __init__(
        self,
        program: Program,
        shape: LaunchShape,
        blocks: Sequence[tuple[int, int, int]],
        device: Device,
        parameters: bytes,
        checks: Checks,
        counters: Counters,
    ) -> None:
        self.program, self.shape, self.blocks, self.device = program, shape, blocks, device
        self.parameters, self.checks, self.counters = parameters, checks, counters
        _keep_freed_memory()
        self.threads = shape.threads
        self.warps = -(-self.threads // WARP)
        self.lanes = len(blocks) * self.threads
        self.all_lanes = np.arange(self.lanes)
        self.lane_block = self.all_lanes // self.threads
        self.lane_thread = self.all_lanes % self.threads
        self.lane_warp = self.lane_block * self.warps + self.lane_thread // WARP
        groups = -(-self.warps // WARPGROUP)
        self.lane_warpgroup = self.lane_block * groups + self.lane_thread // (WARP * WARPGROUP)
        self.state = np.zeros(self.lanes, np.uint8)
        self.position = np.zeros(self.lanes, np.intp)
        self.registers = [_poisoned(kind.storage, self.lanes) for kind in program.registers]
        self.carry = np.zeros(self.lanes, bool)
        self._masks: dict[int, tuple[NDArray[np.intp], NDArray[Any] | None]] = {}
        self._specials = SpecialRegisters(self)
        self.warp_views = WarpViews(self)
        self.whole_warps: dict[int, NDArray[np.intp]] = {}
        self.memory = Memory(self)
        self.races = RaceDetector(self)
        self.barriers = NamedBarriers(self)
        self.mbarriers = MBarriers(self)
        self.copies = AsyncCopies(self)
        self.products = PendingProducts(self)

    def size(self, lanes: Lanes) -> int:
        """Return how many lanes there are."""
        return self.lanes if isinstance(lanes, slice) else len(lanes)

    def indices(self, lanes: Lanes) -> NDArray[np.intp]:
        """Return the indices of lanes."""
        return self.all_lanes if isinstance(lanes, slice) else lanes

    def quick(self, lanes: Lanes) -> Lanes:
        """Return lanes in the form that indexes registers fastest: a mask if many and no warps."""
        if isinstance(lanes, slice) or id(lanes) in self.whole_warps:
            return lanes
        mask = self.mask(lanes)
        return lanes if mask is None else mask

    def mask(self, lanes: NDArray[np.intp]) -> NDArray[Any] | None:
        """Return which lanes these are, as bools; None if they are few.

        It is kept for the array that was asked for, as groups of lanes run many steps.
        """
        known = self._masks.get(id(lanes))
        if known is not None and known[0] is lanes:
            return known[1]
        mask = None
        if len(lanes) * _FEW > self.lanes:
            mask = np.zeros(self.lanes, bool)
            mask[lanes] = True
        if len(self._masks) >= _KEPT_MASKS:
            self._masks.clear()
        self._masks[id(lanes)] = lanes, mask
        return mask

    def living(self) -> NDArray[np.bool_]:
        """Return which lanes have not ended."""
        living: NDArray[np.bool_] = self.state != DONE
        return living

    def living_rows(self) -> NDArray[np.bool_]:
        """Return the same as one row of 32 for each warp of the batch."""
        rows = np.zeros((len(self.blocks), self.warps * WARP), bool)
        rows[:, : self.threads] = self.living().reshape(-1, self.threads)
        return rows.reshape(-1, WARP)

    def special(self, name: str, lanes: Lanes) -> Array:
        """Return a special register of some lanes (uint64 or narrower, unsigned)."""
        return np.asarray(self._specials.values(name)[lanes])

    def symbol(self, symbol: Symbol) -> int:
        """Return the address of a variable in its own space (a global address for ``const``)."""
        return self.memory.symbol(symbol)

    def fault(
        self,
        kind: type[KernelFault],
        ins: Instruction,
        lanes: Lanes,
        problem: str,
        remedy: str,
        bad: NDArray[np.bool_] | None = None,
    ) -> KernelFault:
        """Return the error for a fault of the first bad lane (of the first lane without `bad`)."""
        first = 0 if bad is None else int(np.flatnonzero(bad)[0])
        lane = int(self.indices(lanes)[first])
        return kind(
            problem,
            remedy,
            line=ins.line,
            text=ins.text,
            block=self.blocks[lane // self.threads],
            thread=lane % self.threads,
        )


def _keep_freed_memory() -> None:
    """Have the C library keep the memory of temporary arrays, which it would return at once.

    Asking for it again, page by page, takes longer than most operations on it. glibc keeps twice
    the size of the largest block that it has mapped on its own and freed, which is this one.
    """
    np.empty(_KEPT_BYTES, np.uint8)


def _poisoned(storage: np.dtype[np.generic], lanes: int) -> Array:
    if storage.kind == "b":
        return np.zeros(lanes, bool)
    bits = 8 * storage.itemsize
    return np.full(lanes, _POISON & ((1 << bits) - 1), storage)
