"""Memory of a batch: shared memory, local frames, and the way to global memory. STUB: owner C."""

from __future__ import annotations

from typing import TYPE_CHECKING

from numpy.typing import NDArray

from sdpakit.ptxemu.program import Instruction, Symbol
from sdpakit.ptxemu.scalars import Array

if TYPE_CHECKING:
    import numpy as np

    from sdpakit.ptxemu.machine import Lanes, Machine

# Where the windows of the state spaces lie among generic addresses.
GLOBAL_BASE, SHARED_BASE = 0x7F00_0000_0000, 0x7E00_0000_0000
LOCAL_BASE, PARAM_BASE = 0x7D00_0000_0000, 0x7C00_0000_0000
# A shared address names the block of a cluster in its upper bits: rank + 1; 0 is one's own.
SHARED_RANK_SHIFT = 24

# States of a byte of shared memory.
UNWRITTEN, IN_FLIGHT, WRITTEN, BARRIER = 0, 2, 3, 4


class Memory:
    """Attributes: `shared` (uint8, all blocks, `stride` bytes each), `shared_state` (uint8, same size)."""

    shared: Array
    shared_state: Array
    stride: int

    def __init__(self, machine: Machine) -> None: ...

    def symbol(self, symbol: Symbol) -> int:
        """Return the address of a variable in its own space; global address for global and const."""
        raise NotImplementedError

    def locate_shared(
        self, ins: Instruction, lanes: Lanes, addresses: NDArray[np.int64], width: int
    ) -> NDArray[np.int64]:
        """Return offsets into `shared` of shared-window addresses (rank resolved); bounds, alignment."""
        raise NotImplementedError

    def read_shared(
        self, ins: Instruction, lanes: Lanes, addresses: NDArray[np.int64], width: int
    ) -> NDArray[np.int64]:
        """As `locate_shared`, for a read by the lanes: also uninitialised, in flight, and `races.read`."""
        raise NotImplementedError

    def write_shared(
        self, ins: Instruction, lanes: Lanes, addresses: NDArray[np.int64], width: int
    ) -> NDArray[np.int64]:
        """As `locate_shared`, for an ordinary write: in flight, `races.write`; marks bytes WRITTEN."""
        raise NotImplementedError

    def read_global(
        self, ins: Instruction, lanes: Lanes, addresses: NDArray[np.int64], width: int
    ) -> NDArray[np.int64]:
        """Return offsets into `machine.device.arena` for a read: bounds, alignment, initialised."""
        raise NotImplementedError

    def write_global(
        self, ins: Instruction, lanes: Lanes, addresses: NDArray[np.int64], width: int
    ) -> NDArray[np.int64]:
        """The same for a write; marks bytes initialised."""
        raise NotImplementedError


def gather(memory: Array, offsets: NDArray[np.int64], width: int) -> Array:
    """Return `width` bytes at each aligned offset, as uint8 of shape (n, width), fast for 1 to 16."""
    raise NotImplementedError


def scatter(memory: Array, offsets: NDArray[np.int64], data: Array) -> None:
    """Write uint8 data of shape (n, width) to aligned offsets."""
    raise NotImplementedError
