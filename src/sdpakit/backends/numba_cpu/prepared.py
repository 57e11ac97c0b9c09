"""A call that is described in full: it only has to run, once or again and again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sdpakit.backends.numba_cpu import driver, pool
from sdpakit.backends.numba_cpu.context import Array, Ints, address

Worker = Callable[[int, int, int, int, int, int], None]


@dataclass(frozen=True, slots=True)
class Prepared:
    """One call.

    Attributes
    ----------
    worker : callable
        See `driver.worker`; it counts items in the first two fields, as that one does.
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
                lambda: bool(d[driver.DONE_ITEMS] == self.items),
                self.threads,
            )
        finally:
            pool.give_scratch([*buffers, *shared])

    def repeat(self) -> Repeat:
        """Return the call for other arrays, by one thread."""
        size = self.scratch_bytes + self.shared_bytes
        return Repeat(self.worker, self.descriptor, self.where, self.pointers, size)


class Repeat:
    """A small call that one thread does again and again (`sdpakit.backends.base.Repeat`).

    Parameters
    ----------
    worker : callable
        See `driver.worker`.
    descriptor : ndarray of int64
        Descriptor and context of the call; nobody else may use it.
    where : int
        Its address.
    pointers : sequence of int
        Places in it that hold addresses within it.
    scratch_bytes : int
        What the call needs.
    """

    __slots__ = ("_free", "_pointers", "_shelf", "_template", "_where", "_worker")

    def __init__(
        self,
        worker: Worker,
        descriptor: Ints,
        where: int,
        pointers: Sequence[int],
        scratch_bytes: int,
    ) -> None:
        self._worker = worker
        self._template, self._where, self._pointers = descriptor, where, pointers
        self._shelf = pool.shelf(scratch_bytes)
        self._free: list[tuple[int, Ints]] = []  # descriptors that no thread is using

    def __call__(self, q: Array, k: Array, v: Array, out: Array) -> None:
        """Do the call with other arrays."""
        try:
            own = self._free.pop()
        except IndexError:
            own = self._copy()
        buffer = self._shelf.take()
        self._worker(own[0], buffer.address, id(q), id(k), id(v), id(out))
        self._shelf.give(buffer)
        self._free.append(own)

    def _copy(self) -> tuple[int, Ints]:
        """Return the descriptor at another place, and its address."""
        d = self._template.copy()
        where = address(d)
        d[self._pointers] += where - self._where
        return where, d
