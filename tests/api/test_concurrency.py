"""Kernels under many threads and after a fork: right answers, the same bits as alone, no hang."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import sdpakit as sk

BACKENDS = ["interp", "numba_cpu"]
CALLERS = 8


def operands(seed, q_len=70, kv_len=150):
    rng = np.random.default_rng(seed)
    shapes = ((2, 4, q_len, 16), (2, 2, kv_len, 16), (2, 2, kv_len, 16))
    return tuple(rng.standard_normal(shape, dtype=np.float32) for shape in shapes)


def kernel_of(backend, number=0):
    """One of three kernels that share no code."""
    spec = sk.AttentionSpec(
        q_heads=4,
        kv_heads=2,
        head_dim=16,
        mask=(None, sk.Causal("bottom_right"), sk.Causal("top_left"))[number % 3],
    )
    return sk.compile(spec, backend=backend)


def at_once(work, count=CALLERS):
    """Run work(0), work(1), ... in as many threads, started together; return the results."""
    together = threading.Barrier(count)

    def start(number):
        together.wait(60)
        return work(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(start, range(count), timeout=120))


@pytest.mark.parametrize("backend", BACKENDS)
def test_many_callers_of_one_kernel(backend):
    kernel = kernel_of(backend)
    inputs = [operands(seed) for seed in range(CALLERS)]
    alone = [kernel(*x, threads=1) for x in inputs]
    for threads in (1, 2):
        for found, expected in zip(
            at_once(lambda n, t=threads: kernel(*inputs[n], threads=t)), alone, strict=True
        ):
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_many_callers_compile_and_call_different_kernels(backend):
    sk.compiler.clear()
    x = operands(1)
    found = at_once(lambda n: kernel_of(backend, n)(*x, threads=2))
    for number, result in enumerate(found):
        np.testing.assert_array_equal(result, kernel_of(backend, number)(*x, threads=1))


@pytest.mark.parametrize("backend", BACKENDS)
def test_callers_that_share_out_of_one_array_write_their_own_part(backend):
    kernel = kernel_of(backend)
    inputs = [operands(seed) for seed in range(CALLERS)]
    out = np.full((CALLERS, 2, 4, 70, 16), np.nan, np.float32)
    at_once(lambda n: kernel(*inputs[n], out=out[n], threads=2))
    for n, x in enumerate(inputs):
        np.testing.assert_array_equal(out[n], kernel(*x))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform has no fork")
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_child_process_calls_the_kernel_of_its_parent(backend):
    kernel, x = kernel_of(backend), operands(3)
    expected = kernel(*x, threads=2)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if np.array_equal(kernel(*x, threads=2), expected) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    np.testing.assert_array_equal(kernel(*x, threads=2), expected)
