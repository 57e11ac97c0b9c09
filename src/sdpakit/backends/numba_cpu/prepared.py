"""A call that is described in full: it only has to run, once or again and again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sdpakit.backends.numba_cpu import pool, workers
from sdpakit.backends.numba_cpu.context import Array, Ints
from sdpakit.backends.numba_cpu.guard import CallSignature, Descriptor, Guard
from sdpakit.backends.numba_cpu.workers import Worker, address_of


@dataclass(frozen=True, slots=True)
class Prepared:
    """One call.

    Attributes
    ----------
    code : object
        What keeps the code alive whose addresses are in the descriptor.
    worker : callable
        See `workers.worker`; it counts items in the first two fields, as that one does.
    descriptor : ndarray of int64
        Descriptor and context of the call; nobody else may use it.
    where : int
        Its address.
    pointers : sequence of int
        Places in it that hold addresses within it.
    threads, items : int
        Threads that take part; items that they share.
    scratch_bytes : int
        Scratch of each thread.
    shared_bytes, shared_field : int
        Scratch of all threads together, if there is any, and the field for its address. A worker
        that repeats a call finds it behind its own scratch.
    """

    code: object
    worker: Worker
    descriptor: Ints
    where: int
    pointers: Sequence[int]
    threads: int
    items: int
    scratch_bytes: int
    shared_bytes: int = 0
    shared_field: int = -1

    def run(self) -> None:
        """Work on the items until all are done."""
        d, where, worker = self.descriptor, self.where, self.worker
        buffers = pool.take_scratch(self.scratch_bytes, self.threads)
        shared = pool.take_scratch(self.shared_bytes, 1) if self.shared_bytes else []
        for buffer in shared:
            d[self.shared_field] = buffer.address
        try:
            if self.threads == 1:
                worker(where, buffers[0].address, 0, 0, 0, 0)
                return
            # A helper that wakes late still reads `d`, which lives as long as the second function.
            pool.run(
                lambda slot: worker(where, buffers[slot].address, 0, 0, 0, 0),
                lambda: bool(d[workers.DONE_ITEMS] == self.items),
                self.threads,
            )
        finally:
            pool.give_scratch([*buffers, *shared])

    def repeat(self, guard: int, arrays: Sequence[Array]) -> Guard:
        """Return the call for other arrays, by one thread (`sdpakit.backends.base.Repeat`).

        Parameters
        ----------
        guard : int
            Address of the generated guard; `code` keeps it alive, too.
        arrays : sequence of ndarray
            q, k, v and out as the caller has them.
        """
        signature = CallSignature(guard, address_of(self.worker), arrays, self.code)
        descriptor = Descriptor(self.descriptor, self.where, self.pointers)
        size = self.scratch_bytes + self.shared_bytes
        guards = _ThreadGuards(signature, descriptor, pool.free_list(size))
        return signature.guard(descriptor, pool.scratch_slot(size).place, guards.run)


class _ThreadGuards:
    """Guards for further threads that do a call at the same time, with scratch of a free list."""

    def __init__(
        self, signature: CallSignature, descriptor: Descriptor, free_list: pool.FreeList
    ) -> None:
        self._signature, self._descriptor, self._free_list = signature, descriptor, free_list
        self._free: list[tuple[Guard, Ints]] = []  # that no thread uses, with places for scratch

    def run(self, q: Any, k: Any, v: Any, out: Any) -> Array | None:
        """Do the call with other arrays, if they are alike."""
        try:
            guard, place = self._free.pop()
        except IndexError:
            place = np.zeros(1, np.int64)
            guard = self._signature.guard(self._descriptor, place, None)
        buffer = self._free_list.take()
        place[0] = buffer.address
        result = guard(q, k, v, out)
        self._free_list.give(buffer)
        self._free.append((guard, place))
        return result
