"""Unions of ranges of keys in tiles, against sets of keys one by one."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sdpakit.passes.spans import left_open, touched

COUNT = 40


@st.composite
def unions(draw):
    """Draw some ranges for three rows at once; a range may be the same for all of them."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    found = []
    for _ in range(draw(st.integers(1, 5))):
        shape = () if rng.random() < 0.3 else (3,)
        first = rng.integers(0, COUNT + 1, shape)
        size = rng.integers(0, draw(st.sampled_from([1, 4, COUNT])), shape)
        found.append((first, np.minimum(first + size, COUNT)))
    return found


def _ones(spans, row):
    """Return the tiles of spans of one row, and hold them against what is promised of spans."""
    tiles, last = [], 0
    for span in spans:
        first, end = (int(np.broadcast_to(x, 3)[row]) for x in span)
        assert last <= first <= end
        tiles += range(first, end)
        last = end
    return tiles


@given(unions(), st.integers(1, 9), st.integers(0, COUNT))
def test_tiles_of_a_union(keys, tile, count):
    keys = [(np.minimum(first, count), np.minimum(end, count)) for first, end in keys]
    some, not_all = touched(keys, tile), left_open(keys, count, tile)
    for row in range(3):
        spans = [tuple(int(np.broadcast_to(x, 3)[row]) for x in span) for span in keys]
        held = {key for first, end in spans for key in range(first, end)}
        assert _ones(some, row) == sorted({key // tile for key in held})
        assert _ones(not_all, row) == sorted({k // tile for k in set(range(count)) - held})
