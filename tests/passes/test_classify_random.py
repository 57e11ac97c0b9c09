"""Tiles of random masks: what is proven holds for every pair, and much of what holds is proven."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.passes.tiles import World, masks, truth, worlds

from sdpakit.expr.nodes import Expr
from sdpakit.passes.classify import key_ranges, key_sets, tile_class
from sdpakit.passes.vectors import VectorOps

pytestmark = pytest.mark.slow  # brute force over integers, the same on every Python

EXAMPLES = 500
TILES = 40  # of each example: 20,000 pairs of a mask and a tile
_RANGES = ("maybe_lo", "maybe_hi", "must_lo", "must_hi")


def _box(world, ops, b, h, rows, keys):
    points = {
        "b": b,
        "h": h,
        "q_len": world.q_len[b],
        "kv_len": world.kv_len[b],
        "q_offset": world.q_offset[b],
    }
    box = {name: (ops.const(int(value)),) * 2 for name, value in points.items()}
    return box | {"q": rows, "k": keys}


def _intervals(rng, size, count):
    ends = np.sort(rng.integers(0, size, (2, count)), axis=0)
    return ends[0], ends[1]


def _counts(mask: Expr, world: World, seed: int) -> tuple[int, int]:
    """Check one example; return how many tiles are of one kind, and how many of them are proven."""
    rng = np.random.default_rng(seed)
    b, h = int(rng.integers(world.batch)), int(rng.integers(world.heads))
    rows, keys = _intervals(rng, world.q_rows, TILES), _intervals(rng, world.kv_rows, TILES)
    ops = VectorOps(world.scalars, world.tables)
    box = _box(world, ops, b, h, rows, keys)
    can_true, can_false, maybe_lo, maybe_hi, must_lo, must_hi = np.broadcast_arrays(
        *tile_class(mask, ops, box),
        *(getattr(key_ranges(mask, ops, box), name) for name in _RANGES),
        rows[0],
    )[:6]
    value = truth(mask, world, b, h)
    uniform = proven = 0
    for n in range(TILES):
        tile = value[rows[0][n] : rows[1][n] + 1, keys[0][n] : keys[1][n] + 1]
        assert can_true[n] or not tile.any()
        assert can_false[n] or tile.all()
        assert can_true[n] or can_false[n]
        assert keys[0][n] <= maybe_lo[n] <= must_lo[n] <= must_hi[n] <= maybe_hi[n]
        assert maybe_hi[n] <= keys[1][n] + 1
        inside = np.arange(keys[0][n], keys[1][n] + 1)
        assert not tile[:, (inside < maybe_lo[n]) | (inside >= maybe_hi[n])].any()
        assert tile[:, (inside >= must_lo[n]) & (inside < must_hi[n])].all()
        uniform += bool(tile.all() or not tile.any())
        proven += not (can_true[n] and can_false[n])
    return uniform, proven


def test_what_is_proven_holds_and_most_of_what_holds_is_proven():
    """20,000 pairs of a random mask and a random tile, against brute force."""
    uniform = proven = 0

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(masks(), worlds(), st.integers(0, 2**32 - 1))
    def check(mask: Expr, world: World, seed: int) -> None:
        nonlocal uniform, proven
        counts = _counts(mask, world, seed)
        uniform, proven = uniform + counts[0], proven + counts[1]

    check()
    # Without this bar, rules that call every tile partial would pass.
    assert proven >= 0.8 * uniform


def _inside(spans, keys, n):
    """Return which keys of tile n are in one of the spans."""
    ends = [tuple(int(np.broadcast_to(x, TILES)[n]) for x in span) for span in spans]
    return np.any([(keys >= lo) & (keys < hi) for lo, hi in ends], axis=0)


def _final(mask: Expr, world: World, seed: int) -> int:
    """Check the key sets of one example; return of how many tiles they are said to be final."""
    rng = np.random.default_rng(seed)
    b, h = int(rng.integers(world.batch)), int(rng.integers(world.heads))
    rows, keys = _intervals(rng, world.q_rows, TILES), _intervals(rng, world.kv_rows, TILES)
    part = tuple(
        keys[0] + x for x in np.sort(rng.integers(0, keys[1] - keys[0] + 1, (2, TILES)), 0)
    )
    ops = VectorOps(world.scalars, world.tables)
    found = key_sets(mask, ops, _box(world, ops, b, h, rows, keys))
    can_true, can_false = (
        np.broadcast_to(can, TILES)
        for can in tile_class(mask, ops, _box(world, ops, b, h, rows, part))
    )
    final = np.broadcast_to(found.final, TILES)
    value = truth(mask, world, b, h)
    for n in range(TILES):
        tile = value[rows[0][n] : rows[1][n] + 1]
        at = np.arange(world.kv_rows)
        asked = (at >= keys[0][n]) & (at <= keys[1][n])
        maybe, must = _inside(found.maybe, at, n), _inside(found.must, at, n)
        assert not (maybe & ~asked).any()
        assert not tile[:, asked & ~maybe].any()
        assert tile[:, must].all()
        looked = slice(part[0][n], part[1][n] + 1)
        if final[n]:
            assert can_true[n] or not maybe[looked].any()
            assert can_false[n] or must[looked].all()
    return int(final.sum())


def test_key_sets_hold_and_tell_what_a_look_at_a_part_tells_where_they_say_so():
    """20,000 pairs of a random mask and a random tile, against brute force and `tile_class`."""
    final = 0

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(masks(), worlds(), st.integers(0, 2**32 - 1))
    def check(mask: Expr, world: World, seed: int) -> None:
        nonlocal final
        final += _final(mask, world, seed)

    check()
    # Without this bar, sets that are never said to be final would pass.
    assert final >= 0.3 * EXAMPLES * TILES
