"""Who touched which word of shared memory, and whether anything ordered it. STUB: owner F.

Agents of a *domain* (a cluster; a block without clusters) are its warps and its asynchronous engine. Each
has a vector clock over the agents of its domain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from sdpakit.ptxemu.program import Instruction

if TYPE_CHECKING:
    import numpy as np

    from sdpakit.ptxemu.machine import Lanes, Machine


class RaceDetector:
    """Offsets are into `Memory.shared`; `width` bytes from each; all methods return at once if off."""

    def __init__(self, machine: Machine) -> None: ...

    def read(self, ins: Instruction, lanes: Lanes, offsets: NDArray[np.int64], width: int) -> None:
        """Record ordinary reads, one offset a lane (or k a lane, as rows: offsets.shape[0] == lanes)."""

    def write(self, ins: Instruction, lanes: Lanes, offsets: NDArray[np.int64], width: int) -> None:
        """Record ordinary writes. (Also makes the words dirty for the asynchronous proxy.)"""

    def atomic(
        self, ins: Instruction, lanes: Lanes, offsets: NDArray[np.int64], width: int
    ) -> None:
        """Record atomic accesses, which do not race with each other."""

    def open_read(self, ins: Instruction, lane: int, offsets: NDArray[np.int64], width: int) -> Any:
        """Record reads by the asynchronous proxy (wgmma, bulk stores) that go on until `close_read`.

        Raises MissingProxyFence where ordinary stores were not fenced. `lane` is one lane of the issuing warp.
        """

    def close_read(self, token: Any) -> None:
        """The issuing warp waited: the reads of `open_read` are now ordinary reads of its present."""

    def issue_write(
        self, ins: Instruction, lane: int, offsets: NDArray[np.int64], width: int
    ) -> Any:
        """Record a write of the asynchronous engine, ordered after all that the issuing warp saw.

        Returns the clock that waiters acquire.
        """

    def snapshot(self, warps: NDArray[np.intp]) -> Any:
        """Return the joined clock of warps (batch-wide numbers, one domain) and start a new epoch of each."""

    def join(self, clock: Any, other: Any) -> Any:
        """Return the join of two clocks; either may be None."""

    def acquire(self, warps: NDArray[np.intp], clock: Any) -> None:
        """Warps have waited for a clock: all before it is before what they do next."""

    def fence_proxy(self, lanes: Lanes) -> None:
        """``fence.proxy.async`` by lanes: what their warps wrote is clean."""
