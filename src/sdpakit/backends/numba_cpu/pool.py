"""Threads and scratch memory of the CPU backend: who runs the items of a call, in which buffers.

Helpers are daemon threads that sleep on a lock of their own. A caller wakes as many as it may have,
takes part itself, and waits until all *items* are done, not for threads: a helper that the system
has not scheduled in time finds nothing left and goes back to sleep. So callers from any thread,
from inside other pools and beside busy processes neither block each other nor oversubscribe, and a
child of fork, which has no helpers, makes its own.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import numpy as np

ALIGNMENT = 64  # bytes: a cache line, and the widest vector
KEPT_BUFFERS = 64  # free buffers of one size that are kept for later calls


class Job:
    """Items that several threads work on.

    Parameters
    ----------
    work : callable
        `work(slot)` takes items until none are left and returns when its own are done; slot 0 is
        the caller.
    is_done : callable
        Whether every item is done.
    """

    def __init__(self, work: Callable[[int], object], is_done: Callable[[], bool]) -> None:
        self._work = work
        self._is_done = is_done
        self._guard = threading.Lock()
        self._active = 0
        self.is_closed = False
        self._wake = threading.Lock()
        self._wake.acquire()

    def help(self, slot: int) -> None:
        """Work as a helper, unless the caller has already finished everything."""
        with self._guard:
            if self.is_closed:
                return
            self._active += 1
        try:
            self._work(slot)
        finally:
            with self._guard:
                self._active -= 1
                if self._over() and self._wake.locked():
                    self._wake.release()

    def wait(self) -> None:
        """Close the job and return when no item of it is running."""
        try:
            with self._guard:
                self.is_closed = True
            while not self._over():
                self._wake.acquire()
        finally:
            # An interrupt may be raised only when nobody writes to the caller's arrays any more.
            if not (self.is_closed and self._over()):
                self.wait()

    def _over(self) -> bool:
        return self._active == 0 or self._is_done()


class Helper:
    """One daemon thread that helps with the job it was last given.

    Whether it is free follows from what it does and from the job, not from a record that somebody
    has to keep: an interrupt at any point of a caller cannot lose a helper.
    """

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self._wake = threading.Lock()
        self._wake.acquire()
        self._job: Job | None = None
        self._slot = 0
        self._asleep = True
        threading.Thread(target=self._serve, name="sdpakit-helper", daemon=True).start()

    @property
    def is_free(self) -> bool:
        """Whether it sleeps and nobody waits for it to wake; ask and use under the lock."""
        return self._asleep and (self._job is None or self._job.is_closed)

    def start(self, job: Job, slot: int) -> None:
        """Give it a job and wake it; call under the lock."""
        self._job, self._slot = job, slot
        if self._wake.locked():
            self._wake.release()

    def _serve(self) -> None:
        while True:
            self._wake.acquire()
            self._help()

    def _help(self) -> None:
        with self._lock:
            self._asleep = False
            job, slot = self._job, self._slot
        try:
            if job is not None:
                job.help(slot)
        finally:
            with self._lock:
                if self._job is job:
                    self._job = None  # a sleeping helper must not keep a caller's arrays alive
                self._asleep = True


class Pool:
    """The helpers of one process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._helpers: list[Helper] = []

    @property
    def size(self) -> int:
        """Number of helpers, asleep or not."""
        return len(self._helpers)

    def start(self, job: Job, wanted: int) -> None:
        """Let at most `wanted` helpers that are free take part in a job, as slots 1, 2, ...

        The pool grows until it has that many or one for each further core, so that two callers can
        share the cores, and many callers cannot flood them.
        """
        limit = max(wanted, (os.cpu_count() or 1) - 1)
        with self._lock:
            free = [helper for helper in self._helpers if helper.is_free][:wanted]
            for slot in range(1, wanted + 1):
                if slot > len(free) and not self._grow(free, limit):
                    break
                free[slot - 1].start(job, slot)

    def _grow(self, free: list[Helper], limit: int) -> bool:
        """Add a helper to the pool and to `free`; return whether that could be done."""
        if self.size >= limit:
            return False
        try:
            helper = Helper(self._lock)
        except RuntimeError:  # the system has no more threads: the items need none
            return False
        self._helpers.append(helper)
        free.append(helper)
        return True


_POOLS: dict[int, Pool] = {}


def current_pool() -> Pool:
    """Return the pool of this process; a child of fork gets a new one."""
    pid = os.getpid()
    pool = _POOLS.get(pid)
    if pool is None:
        for stale in [other for other in _POOLS if other != pid]:
            _POOLS.pop(stale, None)
        pool = _POOLS.setdefault(pid, Pool())
    return pool


def run(work: Callable[[int], object], is_done: Callable[[], bool], threads: int) -> None:
    """Run a job (see `Job`) on at most `threads` threads, the calling one included."""
    job = Job(work, is_done)
    try:
        current_pool().start(job, threads - 1)
        work(0)
    finally:
        job.wait()


class Buffer:
    """Scratch memory of one thread, aligned to `ALIGNMENT`."""

    __slots__ = ("_memory", "address", "size")

    def __init__(self, size: int) -> None:
        self._memory = np.empty(size + ALIGNMENT, np.uint8)
        self.size = size
        self.address: int = -(-self._memory.ctypes.data // ALIGNMENT) * ALIGNMENT


class FreeList:
    """Free buffers of one size; what they hold is anything."""

    __slots__ = ("_free", "size")

    def __init__(self, size: int) -> None:
        self._free: list[Buffer] = []
        self.size = size

    def take(self) -> Buffer:
        """Return a buffer that nobody else uses until it is given back."""
        try:
            return self._free.pop()
        except IndexError:
            return Buffer(self.size)

    def give(self, buffer: Buffer) -> None:
        """Take a buffer back for later calls."""
        if len(self._free) < KEPT_BUFFERS:
            self._free.append(buffer)


class ScratchSlot:
    """One buffer that machine code takes and gives back by itself, in one step each.

    Attributes
    ----------
    place : (1,) int64
        The address of the buffer, 0 while somebody uses it.
    """

    __slots__ = ("_buffer", "place")

    def __init__(self, size: int) -> None:
        self._buffer = Buffer(size)
        self.place = np.array([self._buffer.address], np.int64)


_FREE_LISTS: dict[int, FreeList] = {}
_SCRATCH_SLOTS: dict[int, ScratchSlot] = {}


def free_list(size: int) -> FreeList:
    """Return where buffers of at least `size` bytes are; they cost memory only where they are used.

    Sizes are rounded up to powers of two, so that a few lists serve all calls.
    """
    rounded = _rounded(size)
    return _FREE_LISTS.setdefault(rounded, FreeList(rounded))


def scratch_slot(size: int) -> ScratchSlot:
    """Return the slot with a buffer of at least `size` bytes, rounded up likewise."""
    rounded = _rounded(size)
    found = _SCRATCH_SLOTS.get(rounded)
    return found or _SCRATCH_SLOTS.setdefault(rounded, ScratchSlot(rounded))


def _rounded(size: int) -> int:
    return 1 << max(12, (size - 1).bit_length())


def take_scratch(size: int, count: int) -> list[Buffer]:
    """Return `count` buffers of at least `size` bytes, see `FreeList.take`."""
    found = free_list(size)
    return [found.take() for _ in range(count)]


def give_scratch(buffers: list[Buffer]) -> None:
    """Take buffers back for later calls."""
    for buffer in buffers:
        free_list(buffer.size).give(buffer)
