import numpy as np
import pytest
from bench.ceilings import CeilingCache, aligned, fma_ceiling, read_ceiling
from bench.native import chain_loop, fma_loop, read_loop, vector_bytes
from bench.workloads import select


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("size", vector_bytes())
def test_the_fma_loop_computes_what_it_counts(dtype, size):
    # Every chain runs a <- a/2 + 1; the sum of all of them shows that none was dropped.
    accumulators, unroll, passes = 10, 4, 3
    state = aligned(192)
    for part, value in enumerate((1.0, 0.5, 1.0)):
        state[64 * part : 64 * part + 64].view(dtype)[:] = value
    fma_loop(dtype, size, accumulators, unroll)(passes, state.ctypes.data)
    a = 1.0
    for _ in range(passes * unroll):
        a = a / 2 + 1.0
    got = state[:size].view(dtype)
    assert np.array_equal(got, np.full_like(got, 1.0 + accumulators * a))


@pytest.mark.parametrize("size", vector_bytes())
@pytest.mark.parametrize("prefetch", [0, 1024])
def test_the_read_loop_reads_every_byte(size, prefetch):
    buffer = aligned(4096)
    buffer.view(np.int64)[:] = np.random.default_rng(0).integers(-(2**40), 2**40, 512)
    got = read_loop(size, prefetch)(buffer.ctypes.data, buffer.nbytes)
    assert got == int(buffer.view(np.int64).sum())


def test_ceilings_count_their_work_over_all_threads():
    one, two = fma_ceiling("float32", 1), fma_ceiling("float32", 2)
    assert 1.5 < two.work / one.work < 2.5  # the winning loops may differ, and with them rounding
    assert read_ceiling(1_000_000, 2).work == 2 * (500_000 // 512 * 512)
    two.call()


def test_half_types_share_the_ceiling_of_float32():
    names = ["f32_l2048_d64", "bf16_l2048_d64", "f64_l2048_d64"]
    f32, bf16, f64 = (w for w in select(None, names))
    cache = CeilingCache(1)
    assert cache.of(f32) is cache.of(bf16)
    assert cache.of(f64).dtype == "float64"


@pytest.mark.parametrize("chains", [1, 4])
def test_the_chains_of_the_probe_do_every_step(chains):
    passes, steps, total = 3, 6, 0
    for value in range(chains):
        for _ in range(passes * steps // 2):
            value = (value + passes) ^ passes
        total ^= value
    assert chain_loop(chains, steps)(passes) == total
