"""Tables as vectors of tiles see them, against brute force."""

from __future__ import annotations

import numpy as np
import pytest

from sdpakit.expr.nodes import Index, Load
from sdpakit.passes.tables import integer_limits, rises, rows_ascend
from sdpakit.passes.vectors import VectorOps

B, Q, K = Index("b"), Index("q"), Index("k")
ROW = Load("t", "int32", (B, K))


def _point(value):
    return np.asarray(value, dtype=np.int64)


def _ranges(rng, size, longest, count=200):
    lo = rng.integers(0, size, count)
    return lo, np.minimum(lo + rng.integers(0, longest, count), size - 1)


@pytest.mark.parametrize("longest", [1, 30, 64, 65, 500, 70_000])
@pytest.mark.parametrize("ascending", [True, False])
def test_range_of_a_row_holds_every_element_and_is_tight_where_short(longest, ascending):
    rng = np.random.default_rng(longest)
    row = rng.integers(-9999, 9999, 100_000).astype(np.int32)
    row = np.sort(row) if ascending else row
    lo, hi = _ranges(rng, row.size, longest)
    ops = VectorOps({}, {"t": row[None]})
    least, largest = ops.table_range(ROW, [_point(0), lo], [_point(0), hi])
    exact_least = np.array([row[a : b + 1].min() for a, b in zip(lo, hi, strict=True)])
    exact_largest = np.array([row[a : b + 1].max() for a, b in zip(lo, hi, strict=True)])
    assert (least <= exact_least).all()
    assert (largest >= exact_largest).all()
    if ascending or longest <= 64:
        assert (least == exact_least).all()
        assert (largest == exact_largest).all()
    elif longest <= 500:
        # Blocks of 64: what is added is less than a block on either side.
        wider = np.array(
            [row[a // 64 * 64 : b // 64 * 64 + 64].min() for a, b in zip(lo, hi, strict=True)]
        )
        assert (least >= wider).all()


@pytest.mark.parametrize("dtype", [bool, np.int8, np.uint64])
@pytest.mark.parametrize("axes", ["qk", "kq", "q and one k", "one q and k"])
def test_range_over_rows_and_keys_is_that_of_the_box(dtype, axes):
    rng = np.random.default_rng(3)
    table = rng.integers(0, 2 if dtype is bool else 100, (2, 3, 40, 50)).astype(dtype)
    if axes == "q and one k":
        table = np.broadcast_to(table[..., :1], table.shape)
    elif axes == "one q and k":
        table = np.broadcast_to(table[:, :, :1], table.shape)
    pair = (K, Q) if axes == "kq" else (Q, K)
    load = Load("t", "bool" if dtype is bool else np.dtype(dtype).name, (B, Index("h"), *pair))
    rows, keys = _ranges(rng, 40, 9), _ranges(rng, 50, 30)
    corner = [(_point(1), _point(1)), (_point(2), _point(2)), rows, keys]
    bounds = [list(ends) for ends in zip(*corner, strict=True)]
    least, largest = VectorOps({}, {"t": table}).table_range(load, *bounds)
    boxes = [table[1, 2, a : b + 1, c : d + 1] for a, b, c, d in zip(*rows, *keys, strict=True)]
    assert np.broadcast_to(least, 200).tolist() == [int(box.min()) for box in boxes]
    assert np.broadcast_to(largest, 200).tolist() == [int(box.max()) for box in boxes]
    unread = VectorOps({}, {"t": table}, frozenset({"t"})).table_range(load, *bounds)
    assert [int(x) for x in unread] == [int(table.min()), int(table.max())]


def test_range_over_an_axis_of_heads_too_is_that_of_the_table():
    table = np.arange(24, dtype=np.int32).reshape(2, 3, 4)
    load = Load("t", "int32", (B, Q, K))
    lo, hi = [_point(0), _point(0), _point(1)], [_point(1), _point(1), _point(2)]
    assert [int(x) for x in VectorOps({}, {"t": table}).table_range(load, lo, hi)] == [0, 23]


def test_a_range_of_no_rows_is_that_of_the_one_it_starts_at():
    table = np.arange(12, dtype=np.int32).reshape(3, 4)
    load = Load("t", "int32", (Q, K))
    lo, hi = [_point(2), _point(0)], [_point(1), _point(3)]
    assert [int(x) for x in VectorOps({}, {"t": table}).table_range(load, lo, hi)] == [8, 11]


def test_bounds_outside_are_clamped_and_size_one_broadcasts():
    ops = VectorOps({}, {"t": np.array([[5, 6, 7]], np.int32)})
    wide = ops.table_range(ROW, [_point(4), _point(-3)], [_point(4), _point(99)])
    assert [int(x) for x in wide] == [5, 7]
    none = ops.table_range(ROW, [_point(0), _point(0)], [_point(0), _point(-1)])
    assert [int(x) for x in none] == [5, 5]


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "uint64"])
@pytest.mark.parametrize("step", [1, 3, -1])
def test_bounds_of_sorted_rows_count_for_values_of_any_size(dtype, step):
    rng = np.random.default_rng(7)
    row = np.sort(rng.integers(0, 100, 300)).astype(dtype)
    info = np.iinfo(dtype)
    row[:3], row[-3:] = info.min, info.max
    row = (row if step > 0 else row[::-1].copy())[::step]
    values = np.concatenate((np.arange(-5, 105), [-(2**62), -200, 127, 128, 255, 300, 2**62]))
    load = Load("t", dtype, (K,))
    ops = VectorOps({}, {"t": row})
    assert bool(ops.is_sorted(load, []))
    exact = [int(x) for x in row]
    for value, low, high in zip(
        values, ops.lower_bound(load, [], values), ops.upper_bound(load, [], values), strict=True
    ):
        assert low == sum(x < value for x in exact)
        assert high == sum(x <= value for x in exact)


def test_a_row_of_one_element_is_not_called_sorted():
    ops = VectorOps({}, {"t": np.zeros((2, 1), np.int32)})
    assert not ops.is_sorted(ROW, [_point(1)])


def test_order_is_seen_across_pieces():
    row = np.arange(300_000, dtype=np.int32)
    assert rows_ascend(row)
    for place in (1, 1 << 16, (1 << 16) - 1, (1 << 16) + 1, 299_999):
        broken = row.copy()
        broken[place] = broken[place - 1] - 1
        assert not rows_ascend(broken)
        assert rises(broken) == (False, None)
        assert not rows_ascend(np.stack((row, broken)))


@pytest.mark.parametrize("many", [2, 1000, 1 << 12, (1 << 12) + 2, 100_000])
def test_places_where_a_row_rises_are_told_unless_they_are_many(many):
    rng = np.random.default_rng(many)
    exact = np.sort(rng.choice(np.arange(1, 300_000), many - 1, replace=False))
    exact[:2] = np.unique([exact[0], 1 << 16])[: many - 1]
    exact = np.concatenate(([0], np.unique(exact)))
    row = np.zeros(300_000, np.int32)
    row[exact[1:]] = 1
    row = np.cumsum(row, dtype=np.int32)
    ascends, places = rises(row)
    assert ascends
    if exact.size > (1 << 12) + 1:
        assert places is None
    else:
        assert places.tolist() == exact.tolist()
    row[-1] = -1
    assert rises(row) == (False, None)


@pytest.mark.parametrize(
    "row", [np.zeros(0, np.int8), np.zeros(1, np.uint64), np.array([False, False, True])]
)
def test_short_rows_ascend(row):
    ascends, places = rises(row)
    assert ascends
    assert (places is None) == (row.size == 0)


def test_limits_are_exact_in_every_integer_dtype():
    for dtype in ("int8", "uint16", "int64", "uint64"):
        info = np.iinfo(dtype)
        table = np.full((2, 70_000), 1, dtype)
        table[1, 69_999], table[0, 3] = info.max, info.min
        assert integer_limits(table) == (info.min, info.max)
    assert integer_limits(np.array(4)) == (4, 4)
    assert integer_limits(np.broadcast_to(np.arange(3), (10**12, 3))) == (0, 2)
