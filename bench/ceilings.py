"""What the processor can do at most, measured in the same run: flops and bytes read a second.

A ceiling is timed like any target, in the same rounds, since the clock of a processor moves with
its load and its neighbours. Its loop is chosen beforehand: every vector width of the host with
several numbers of accumulators, and for reads several distances of prefetching; the fastest stays.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from bench.native import ELEMENT_BYTES, fma_loop, read_loop, vector_bytes
from bench.workloads import Resource, Workload

# Two pipes of latency 4 need 8 chains; with so few a hiccup is not made up for, with too many
# registers spill.
_ACCUMULATORS = {64: (8, 12, 16), 32: (10, 12), 16: (10, 12)}
_PREFETCH_BYTES = (0, 1024, 4096)
_TRIALS = 3
_UNROLL = 4
_TRIAL_FLOPS = 4e8
_SAMPLE_FLOPS = 4e9
_BLOCK_BYTES = 512


@dataclass(frozen=True)
class Ceiling:
    """A loop that does nothing but use up one resource.

    Attributes
    ----------
    resource : {"fma", "read"}
        What it uses.
    dtype : str
        Element type of the multiply-adds; "int64" for reads.
    variant : str
        The loop that won, in words.
    work : float
        Flops or bytes of one call, over all threads.
    call : callable
        Does it once.
    """

    resource: Resource
    dtype: str
    variant: str
    work: float
    call: Callable[[], object]


class CeilingCache:
    """Makes each ceiling once; the buffers of read ceilings are shared."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._made: dict[tuple[Resource, str | int], Ceiling] = {}

    def of(self, workload: Workload) -> Ceiling:
        """Return the ceiling that bounds a workload.

        Reads are measured over as many bytes as the workload's k and v have, so that a cache which
        can hold them helps both alike.
        """
        key: tuple[Resource, str | int]
        if workload.resource == "read":
            key = ("read", workload.kv_bytes)
        else:
            key = ("fma", "float64" if workload.dtype == "float64" else "float32")
        if key not in self._made:
            self._made[key] = (
                read_ceiling(int(key[1]), self._threads)
                if key[0] == "read"
                else fma_ceiling(str(key[1]), self._threads)
            )
        return self._made[key]


def fma_ceiling(dtype: str, threads: int) -> Ceiling:
    """Return the fastest register-only loop of multiply-adds.

    Parameters
    ----------
    dtype : {"float32", "float64"}
        Element type; half types are computed in float32 (NUM-1) and share its ceiling.
    threads : int
        Threads that run the loop at once.

    Returns
    -------
    Ceiling
        Work in flops, two for each multiply-add.
    """
    state = _fma_state(dtype)
    trials = []
    for size in vector_bytes():
        for accumulators in _ACCUMULATORS[size]:
            function = fma_loop(dtype, size, accumulators, _UNROLL)
            flops = _flops_of_pass(dtype, size, accumulators)
            call = partial(function, int(_TRIAL_FLOPS / flops), state.ctypes.data)
            trials.append((_best_seconds(call), size, accumulators, function))
    _, size, accumulators, function = min(trials, key=lambda trial: trial[0])
    flops = _flops_of_pass(dtype, size, accumulators)
    passes = int(_SAMPLE_FLOPS / flops)
    states = tuple(_fma_state(dtype) for _ in range(threads))
    call_all = _Together(
        tuple(partial(function, passes, own.ctypes.data) for own in states), states
    )
    variant = f"{size * 8}-bit vectors, {accumulators} accumulators"
    return Ceiling("fma", dtype, variant, threads * passes * flops, call_all)


def read_ceiling(size: int, threads: int) -> Ceiling:
    """Return the fastest streaming sum over a buffer.

    Parameters
    ----------
    size : int
        Bytes to read in one call, over all threads; rounded down to whole blocks.
    threads : int
        Threads that share the buffer.

    Returns
    -------
    Ceiling
        Work in bytes.
    """
    share = size // threads // _BLOCK_BYTES * _BLOCK_BYTES
    buffer = aligned(share * threads)
    buffer.fill(1)
    vector = vector_bytes()[0]
    trials = []
    for distance in _PREFETCH_BYTES:
        function = read_loop(vector, distance)
        call = partial(function, buffer.ctypes.data, share)
        trials.append((_best_seconds(call), distance, function))
    _, distance, function = min(trials, key=lambda trial: trial[0])
    starts = range(buffer.ctypes.data, buffer.ctypes.data + share * threads, share)
    call_all = _Together(tuple(partial(function, start, share) for start in starts), buffer)
    variant = f"{vector * 8}-bit loads, prefetch {distance} bytes ahead"
    return Ceiling("read", "int64", variant, float(share * threads), call_all)


def aligned(size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return uninitialised bytes whose address is a multiple of 64."""
    raw = np.empty(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size]


def _fma_state(dtype: str) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return accumulator, factor and addend; a <- a/2 + 1/4 stays a normal number for ever."""
    state = aligned(192)
    for part, value in enumerate((1.0, 0.5, 0.25)):
        state[64 * part : 64 * part + 64].view(dtype)[:] = value
    return state


def _flops_of_pass(dtype: str, size: int, accumulators: int) -> float:
    return 2.0 * _UNROLL * accumulators * (size // ELEMENT_BYTES[dtype])


@dataclass(frozen=True)
class _Together:
    """Runs all calls at once, each in a thread; `memory` keeps alive what they read."""

    calls: tuple[Callable[[], object], ...]
    memory: object

    def __call__(self) -> None:
        helpers = [threading.Thread(target=call) for call in self.calls[1:]]
        for helper in helpers:
            helper.start()
        self.calls[0]()
        for helper in helpers:
            helper.join()


def _best_seconds(call: Callable[[], object]) -> float:
    seconds = []
    for _ in range(_TRIALS):
        start = time.thread_time()
        call()
        seconds.append(time.thread_time() - start)
    return max(min(seconds), 1e-9)
