"""Divisors that a table holds: the bounds of a table are exact, so that no tile divides by 0."""

import numpy as np
import pytest

import sdpakit as sk


@pytest.mark.parametrize("dtype", ["uint8", "int32", "int64"])
def test_a_divisor_out_of_a_long_table(dtype):
    # A row of this many elements is not read for its bounds; uint8 itself could hold a 0.
    keys = 10_000
    step = sk.Table("step", dtype, 1)
    spec = sk.AttentionSpec(
        q_heads=1, head_dim=8, mask=sk.Predicate(lambda i: (i.k // step[i.k]) % 2 == 0)
    )
    rng = np.random.default_rng(2)
    q = rng.standard_normal((1, 1, 3, 8)).astype(np.float32)
    k, v = (rng.standard_normal((1, 1, keys, 8)).astype(np.float32) for _ in range(2))
    steps = rng.integers(1, 5, keys).astype(dtype)
    # Masked values are poison, so a single wrong pair shows.
    v[0, 0, (np.arange(keys) // steps) % 2 != 0] = np.nan
    out = sk.compile(spec, backend="numba_cpu")(q, k, v, params={"step": steps})
    assert np.isfinite(out).all()
