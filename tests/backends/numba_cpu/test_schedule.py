"""Items cover every row of every head once, within the memory that they may take."""

import numpy as np
import pytest

from sdpakit.backends.numba_cpu import abi, schedule
from sdpakit.backends.numba_cpu.isa import select_isa
from sdpakit.backends.numba_cpu.layout import PanelLayout
from sdpakit.backends.numba_cpu.schedule import ScratchPlan, Shape, partition, useful_threads

LAYOUTS = [
    PanelLayout(select_isa(), dtype, dtype, width, width)
    for dtype, width in (("float32", 64), ("float16", 1), ("float64", 1024))
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("threads", [1, 2, 64])
@pytest.mark.parametrize(
    "shape",
    [
        Shape(1, 1, 1, 1, 1),
        Shape(1, 8, 1, 2048, 2048),
        Shape(2, 2, 16, 100, 50_000),
        Shape(3, 1, 70, 1, 10**6),
        Shape(1, 1, 1, 10**6, 10**6),
    ],
    ids=str,
)
def test_items(layout, shape, threads):
    parts = partition(layout, shape, threads)
    assert parts.chunk_rows % layout.width == 0
    assert (parts.row_chunks - 1) * parts.chunk_rows < shape.q_len
    assert parts.row_chunks * parts.chunk_rows >= shape.q_len
    assert (parts.head_chunks - 1) * parts.chunk_heads < shape.group
    assert parts.head_chunks * parts.chunk_heads >= shape.group
    assert parts.items == shape.batch * shape.kv_heads * parts.head_chunks * parts.row_chunks
    assert parts.panels == parts.chunk_rows // layout.width * parts.chunk_heads
    state = parts.panels * schedule.panel_bytes(layout)
    assert state <= schedule.STATE_BYTES or parts.panels == 1
    assert ScratchPlan.of(layout, parts.panels).size <= 32 * 2**20


def test_large_calls_have_several_items_for_each_thread():
    shape = Shape(1, 8, 1, 2048, 2048)
    assert partition(LAYOUTS[0], shape, 8).items >= 4 * 8
    assert partition(LAYOUTS[0], Shape(1, 1, 32, 128, 2048), 4).items >= 4 * 4


def test_small_calls_wake_nobody():
    assert useful_threads(LAYOUTS[0], Shape(1, 1, 1, 16, 16), 8) == 1
    assert useful_threads(LAYOUTS[0], Shape(1, 8, 1, 512, 512), 8) == 8


def test_parts_of_the_scratch_do_not_overlap():
    layout = LAYOUTS[0]
    plan = ScratchPlan.of(layout, 3)
    starts = [plan.pairs, plan.packed, plan.p, plan.staging, plan.factors, plan.ranges]
    starts += [plan.panels, plan.size]
    pair = layout.k_tile_bytes + layout.v_tile_bytes
    sizes = [plan.tile_group * pair, 8 * plan.tile_group, layout.p_bytes, layout.staging_bytes]
    sizes += [layout.row_bytes, 3 * abi.RANGE_BYTES, 3 * schedule.panel_bytes(layout)]
    for start, end, size in zip(starts[:-1], starts[1:], sizes, strict=True):
        assert start % 64 == 0
        assert end - start >= size


def test_items_of_unequal_entries_cover_their_rows_most_work_first():
    rows, keys = np.array([0, 70, 1, 32, 33]), np.array([9, 10, 500, 0, 10])
    found = schedule.order(rows, keys, 32)
    assert sorted(map(tuple, found.tolist())) == [
        *((1, 0), (1, 1), (1, 2), (2, 0), (3, 0), (4, 0), (4, 1))
    ]
    assert found.tolist()[0] == [2, 0]  # one row of 500 keys is more than 32 of 10
    work = [min(rows[b] - 32 * chunk, 32) * keys[b] for b, chunk in found]
    assert work == sorted(work, reverse=True)
    assert found.tolist()[1:4] == [[1, 1], [1, 0], [4, 0]]  # of equal work, later rows first


def test_unequal_entries_are_cut_by_the_rows_that_they_have():
    layout = LAYOUTS[0]
    alike = partition(layout, Shape(64, 1, 1, 4096, 4096), 2)
    one_long = partition(layout, Shape(64, 1, 1, 4096, 4096, rows=4096 + 63, pairs=4096**2), 2)
    assert one_long.chunk_rows <= alike.chunk_rows
    assert useful_threads(layout, Shape(64, 1, 1, 512, 512, rows=512, pairs=100), 8) == 1
