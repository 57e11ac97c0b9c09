"""Copies under way: cp.async groups, bulk and tensor copies; done as late as legal."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sdpakit.ptxemu.bulkcopies import Load, StoreGroups
from sdpakit.ptxemu.chunkcopies import ChunkCopies, LateArrivals
from sdpakit.ptxemu.errors import MissingWait
from sdpakit.ptxemu.program import Instruction

if TYPE_CHECKING:
    from sdpakit.ptxemu.machine import Lanes, Machine

Entry: TypeAlias = Load | LateArrivals


class AsyncCopies:
    """What was issued and has not landed.

    Attributes
    ----------
    chunks : ChunkCopies
        ``cp.async``.
    stores : StoreGroups
        Bulk and tensor copies from shared to global memory.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.chunks = ChunkCopies(machine)
        self.stores = StoreGroups(machine)
        self._cluster = machine.shape.cluster_size
        clusters = len(machine.blocks) // self._cluster
        self._queues: list[deque[Entry]] = [deque() for _ in range(clusters)]

    def load(self, load: Load) -> None:
        """Let a load land when nobody in its cluster can run."""
        block = int(self._machine.lane_block[load.issue.lane])
        self._queues[block // self._cluster].append(load)

    def arrive_late(
        self, ins: Instruction, lanes: Lanes, barriers: NDArray[np.int64], *, counted: bool
    ) -> None:
        """Let lanes arrive at mbarriers (offsets) when their ``cp.async`` land: late."""
        late = self.chunks.arrive_late(ins, lanes, barriers, counted=counted)
        for cluster in np.unique(self._clusters(late.lanes)).tolist():
            self._queues[cluster].append(late)

    def _clusters(self, lanes: NDArray[np.intp]) -> NDArray[np.intp]:
        clusters: NDArray[np.intp] = self._machine.lane_block[lanes] // self._cluster
        return clusters

    def settle(self) -> bool:
        """Land the oldest copy of each cluster that nobody waits for by number.

        Clusters do not see each other's shared memory, so one copy in each is as late as one in
        all. Without a copy, waits that may return false do. Returns whether anything happened.
        """
        late: dict[int, tuple[LateArrivals, list[int]]] = {}
        found = False
        for cluster, queue in enumerate(self._queues):
            if not queue:
                continue
            found = True
            entry = queue.popleft()
            if isinstance(entry, Load):
                entry.land()
            else:
                late.setdefault(id(entry), (entry, []))[1].append(cluster)
        for arrivals, clusters in late.values():
            mine = np.isin(self._clusters(arrivals.lanes), clusters)
            self.chunks.land_arrivals(arrivals, arrivals.lanes[mine])
        return found or self._machine.mbarriers.time_out()

    def finish(self) -> None:
        """All threads are done: land stores; refuse loads, whose memory is no more."""
        self.stores.finish()
        for queue in self._queues:
            for entry in queue:
                if isinstance(entry, Load) and self._machine.checks.wait:
                    raise self._machine.fault(
                        MissingWait,
                        entry.issue.ins,
                        entry.issue.lanes,
                        "all threads ended while this copy into shared memory was under way",
                        "Wait for its mbarrier before the block ends, or do not issue it.",
                    )
