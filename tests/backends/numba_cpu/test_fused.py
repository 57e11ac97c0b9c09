"""The fused phases of a step give the bits of the phases one by one, whatever tiles hold."""

import math

import numpy as np
import pytest
from tests.backends.numba_cpu.kernels import Kernel

from sdpakit.backends.numba_cpu import abi, fused
from sdpakit.backends.numba_cpu.isa import available_isas, select_isa

ISAS = [name for name in available_isas() if not select_isa(name).scalef]
TARGETS = [*((isa, "float32") for isa in ISAS), (ISAS[-1], "float64")]
LOG2E = math.log2(math.e)
D, DV = 8, 17


def causal(lanes):
    """Return q >= j, in the integers of the lanes."""
    j = lanes.e.resize_int(lanes.j, lanes.int_bits)
    return lanes.e.icmp("<=", lanes.e.splat(j), lanes.q)


class Pair:
    """The same kernel twice: with fused phases, and with none, as it keeps the largest logits."""

    def __init__(self, isa, element, mask=None):
        self.fused = Kernel(isa, element, D, DV, mask=mask, row_maximum=False)
        self.apart = Kernel(isa, element, D, DV, mask=mask)
        self.element = element
        self.block = self.fused.layout.block_kv
        self.width = self.fused.layout.width

    def draw(self, n, seed=0):
        """Return queries of a whole panel, n keys and values; logits are about 1."""
        rng = np.random.default_rng(seed)
        shapes = ((self.width, D), (n, D), (n, DV))
        q, k, v = (rng.standard_normal(shape).astype(self.element) for shape in shapes)
        return q / np.sqrt(D).astype(self.element), k, v

    def run(self, q, k, v, **more):
        """Return what both make of it, the fused one first."""
        return [plain(kernel.run(q, k, v, LOG2E, **more)) for kernel in (self.fused, self.apart)]


def plain(state):
    """Return out, l as a number of [1/2, 1), and m in log2 units with the exponent of l."""
    fraction, exponent = np.frexp(state["l"])
    lse = state["m"].astype(np.float64) * 4 + exponent
    lse = np.where(np.isnan(fraction), np.nan, np.where(fraction == 0, -np.inf, lse))
    return {**state, "m": lse, "l": fraction, "raw": state["m"]}


def assert_same(got, want, rows=slice(None)):
    """Compare bits; any NaN is as good as another."""
    for name in ("out", "l", "m"):
        assert np.array_equal(got[name][rows], want[name][rows], equal_nan=True), name


@pytest.fixture(scope="module", params=TARGETS, ids=str)
def pair(request):
    return Pair(*request.param)


@pytest.fixture(scope="module", params=TARGETS, ids=str)
def masked(request):
    return Pair(*request.param, mask=causal)


@pytest.mark.parametrize("rest", [0, 1, 5, 12, 100])
def test_an_old_maximum_gives_the_same_bits(pair, rest):
    q, k, v = pair.draw(3 * pair.block + rest)
    k[: pair.block] *= 0.1  # the maximum of the first tile is a low one for the others
    got, want = pair.run(q, k, v)
    assert_same(got, want)
    assert (got["missed"] == 0).all()
    assert (got["raw"] < want["raw"]).any()
    assert (got["alpha"] == 1).all()


def test_a_row_that_outgrows_the_old_maximum_sends_the_tile_back(pair):
    q, k, v = pair.draw(3 * pair.block)
    k[pair.block + 7] = 60 * q[3] / (q[3] @ q[3])
    got, want = pair.run(q, k, v)
    assert_same(got, want)
    assert got["missed"][0] > 0
    calm = pair.run(q[[0, 1, 2, 4]], k, v)[0]
    assert_same(
        {n: x[[0, 1, 2, 3]] for n, x in calm.items()}, {n: x[[0, 1, 2, 4]] for n, x in got.items()}
    )


@pytest.mark.parametrize("size", [3.0, 40.0, 1e3, 1e5])
def test_neighbours_do_not_show(pair, size):
    """Whatever another row makes of a tile, a row has the bits that it has alone."""
    q, k, v = pair.draw(3 * pair.block + 5)
    alone = pair.run(q[5:6], k, v)[0]
    crowd = q.copy()
    crowd[:2] *= size
    crowd[-1] = math.nan
    got = pair.run(crowd, k, v)[0]
    assert_same({n: x[:1] for n, x in alone.items()}, {n: x[5:6] for n, x in got.items()})


@pytest.mark.parametrize("size", [1e2, 1e4, 1e6, 1e15, 1e30])
@pytest.mark.parametrize("late", [False, True])
def test_large_logits(pair, size, late):
    q, k, v = pair.draw(3 * pair.block + 5)
    k[2 * pair.block * late :] *= size
    assert_same(*pair.run(q, k, v))
    k[:] = k[0]
    assert_same(*pair.run(q, k, v))


@pytest.mark.parametrize("low", [-60.0, -100.0, -1e3, -1e7, -1e35])
def test_logits_far_below_the_maximum(pair, low):
    """Their weights are +0 or as small as one by one; the tile is not lost by them."""
    q, k, v = pair.draw(3 * pair.block)
    q[:, 0] = 1
    k[:, 0] = 0
    k[pair.block :: 3, 0] = low
    got, want = pair.run(q, k, v)
    assert_same(got, want)
    lowest = -87 if pair.element == "float32" else -708
    assert (got["missed"][0] > 0) == (low < lowest)


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_poison_in_keys_and_queries(pair, poison):
    q, k, v = pair.draw(3 * pair.block + 1)
    q[:, 0] = abs(q[:, 0])
    for key in (pair.block + 3, 3 * pair.block):
        bad = k.copy()
        bad[key] = 0
        bad[key, 0] = poison
        assert_same(*pair.run(q, bad, v))
    q[3, 0] = poison
    assert_same(*pair.run(q, k, v))


def test_a_panel_that_fails_again_and_again_is_left_alone(pair):
    q, k, v = pair.draw(6 * pair.block)
    k *= np.repeat(10.0 ** np.arange(6), pair.block)[:, None].astype(pair.element)
    got, want = pair.run(q, k, v)
    assert_same(got, want)
    assert got["missed"][0] == fused.MISSES


def test_rows_that_see_no_key_before_a_full_tile(masked):
    """NUM-2: a maximum of -inf is none, so the first tile with keys is done phase by phase."""
    q, k, v = masked.draw(masked.block)
    found = []
    for kernel in (masked.fused, masked.apart):
        kernel.ctx[0] = np.float64(LOG2E).view(np.int64)
        kernel.pack_q(q)
        kernel.begin()
        kernel.pack_k(k)
        kernel.pack_v(v)
        kernel.step(masked.block, masked.block, abi.FLAG_PARTIAL, i0=0, nq=masked.width)
        assert np.isneginf(kernel.stat("m")).all()
        for j0 in (0, masked.block):
            kernel.step(masked.block, j0, 0, i0=10_000, nq=masked.width)
        found.append(plain(kernel.finish(masked.width)))
    assert_same(*found)
    assert (found[0]["alpha"] == 1).all()


@pytest.mark.parametrize("partial", [(), (1,), (0, 2), "all"])
def test_full_and_partial_tiles_mix(masked, partial):
    q, k, v = masked.draw(3 * masked.block + 5)
    k[: masked.block] *= 0.1
    got, _ = masked.run(q, k, v, partial=partial, i0=10_000)
    _, want = masked.run(q, k, v, partial="all", i0=10_000)
    assert_same(got, want)
