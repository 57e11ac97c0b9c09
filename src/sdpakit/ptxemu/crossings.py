"""Which block wrote what of global memory: no other may touch it in the same launch.

Nothing orders the blocks of a launch but what they make themselves from atomic operations and flags
in global memory. Kernels that read such are not checked; all others have no business with what
another block (with clusters: another cluster) writes.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sdpakit.ptxemu.errors import KernelFault, Race
from sdpakit.ptxemu.program import Instruction, Program
from sdpakit.ptxemu.windows import GLOBAL_BASE
from sdpakit.ptxemu.words import Bad, Offsets, any_of_lane, gather, merged, scatter

if TYPE_CHECKING:
    from sdpakit.ptxemu.machine import Lanes, LaunchShape, Machine

Writers = NDArray[np.int32]

_STRONG = ("volatile", "relaxed", "acquire", "release", "mmio")
# A writer is kept for each granule: 4 bytes at first, less if a kernel has narrower accesses.
_WIDEST = 4


def _meets_other_blocks(program: Program) -> bool:
    """Return whether a kernel reads what other blocks may have said to it."""
    return any(
        ins.opcode == "atom" or (ins.opcode == "ld" and ins.has(*_STRONG))
        for ins in program.instructions
        if ins.space in {"global", "generic"}
    )


class LaunchWriters:
    """The writers of global memory in one launch; `low` to `high` is where they wrote.

    Of each granule it has the number of the cluster that wrote it, from 1; 0 is nobody.
    """

    def __init__(self, size: int) -> None:
        self._granule = _WIDEST
        self._writers = np.zeros(size // _WIDEST, np.int32)  # untouched, it costs nothing
        self.low, self.high = size, 0

    @property
    def granule(self) -> int:
        """Bytes of a granule."""
        return self._granule

    def refine(self, width: int) -> None:
        """Make granules no wider than an access."""
        if width < self._granule:
            self._writers = np.repeat(self._writers, self._granule // width)
            self._granule = width

    def of(self, offsets: Offsets, width: int) -> Writers:
        """Return who wrote the granules of each access, one row an access."""
        scale = _WIDEST // self._granule  # a number has 4 bytes, whatever it stands for
        return gather(self._writers.view(np.uint8), offsets * scale, width * scale).view(np.int32)

    def put(self, offsets: Offsets, numbers: Writers) -> None:
        """Set them."""
        scale, raw = _WIDEST // self._granule, np.ascontiguousarray(numbers).view(np.uint8)
        scatter(self._writers.view(np.uint8), offsets * scale, raw)
        width = numbers.shape[1] * self._granule
        self.low = min(self.low, int(offsets.min()))
        self.high = max(self.high, int(offsets.max()) + width)


def launch_writers(program: Program, shape: LaunchShape, size: int) -> LaunchWriters | None:
    """Return an account of writers for a launch; None if no two blocks can meet by mistake."""
    if math.prod(shape.clusters) == 1 or _meets_other_blocks(program):
        return None
    return LaunchWriters(size)


class Crossings:
    """Checks the accesses of a batch; all accounts are those of its launch."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._writers = machine.device.writers
        shape = machine.shape
        x, y, z = (np.array(machine.blocks)[:, axis] // shape.cluster[axis] for axis in range(3))
        wide, deep, _ = shape.clusters
        self._numbers: Writers = (x + wide * (y + deep * z) + 1).astype(np.int32)

    def check(
        self, ins: Instruction, lanes: Lanes, offsets: Offsets, width: int, *, writes: bool
    ) -> None:
        """Take note of an access at offsets into global memory.

        Raises
        ------
        Race
            If another block wrote any byte of it.
        """
        writers = self._writers
        if writers is None or ins.has(*_STRONG, "reduce"):
            return
        if not writes and (offsets.min() >= writers.high or offsets.max() + width <= writers.low):
            return
        if merged(offsets) & (width - 1):
            return  # only who switched off the check of alignment comes here
        writers.refine(width)
        flat = offsets.reshape(-1)
        own = self._numbers[self._machine.lane_block[lanes]]
        own = np.repeat(own, flat.size // own.size)[:, None]
        found = writers.of(flat, width)
        if found.any() and (bad := (found != 0) & (found != own)).any():
            raise self._fault(ins, lanes, offsets, bad, found[bad][0])
        if not writes:
            return
        writers.put(flat, np.broadcast_to(own, found.shape))
        found = writers.of(flat, width)  # blocks that run this store at once meet only now
        if (bad := found != own).any():
            raise self._fault(ins, lanes, offsets, bad, found[bad][0])

    def _fault(
        self, ins: Instruction, lanes: Lanes, offsets: Offsets, bad: Bad, number: int
    ) -> KernelFault:
        assert self._writers is not None
        shape = self._machine.shape
        access, granule = np.argwhere(bad)[0].tolist()
        address = GLOBAL_BASE + int(offsets.reshape(-1)[access]) + granule * self._writers.granule
        at = np.unravel_index(int(number) - 1, shape.clusters, order="F")
        block = tuple(int(i) * size for i, size in zip(at, shape.cluster, strict=True))
        whose = f"block {block}" if shape.cluster_size == 1 else f"the cluster of block {block}"
        return self._machine.fault(
            Race,
            ins,
            lanes,
            f"touches {self._machine.device.describe(address)}, which {whose} writes in the same "
            "launch, and nothing orders blocks",
            "Let each block write a part of its own, use atomic operations, or launch two kernels.",
            any_of_lane(bad.reshape(offsets.shape[0], -1)),
        )
