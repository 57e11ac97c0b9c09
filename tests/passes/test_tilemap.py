"""Counts of tiles against brute force on small calls, and their cost on large ones."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from bench.masks import MASKS as MEASURED
from bench.masks import million
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.passes.tiles import World, masks, truth, worlds

from sdpakit import AttentionSpec
from sdpakit.ir.build import build
from sdpakit.masks import Causal, Dense, Dilated, Document, Prefix, Window
from sdpakit.passes import run_pipeline, tilemap
from sdpakit.passes.classify import key_ranges, key_sets
from sdpakit.passes.tilemap import Sizes, TileMap, tile_map
from sdpakit.passes.vectors import VectorOps

MASKS = {
    "none": None,
    "causal": Causal("bottom_right"),
    "window": Window(5, 3, "top_left"),
    "not window": ~Window(9, 4, "top_left"),
    "prefix": Prefix("n"),
    "prefix-lm": Causal("bottom_right") | Prefix(11),
    "documents": Document("doc", "kv_doc"),
    "dilated": Dilated(9, "top_left"),
    "dense": Dense(),
    "band and sink": Window(4, 0, "bottom_right") | Prefix(3),
    "neither band nor sink": ~(Window(4, 0, "bottom_right") | Prefix(3)),
    "causal band and sink": Causal("top_left") & (Window(4, 7, "top_left") | Prefix("n")),
    "cut band": Window(5, 9, "top_left") & Prefix(20),
    "band, sink and documents": Window(4, 1, "top_left") | Prefix(3) | Document("doc", "kv_doc"),
    "two bands": Window(2, 0, "top_left") | ~Window(25, 14, "top_left"),
    "other documents": ~Document("doc", "kv_doc") | Prefix("n"),
    "band and steps": Window(9, 3, "top_left") | Dilated(3, "top_left"),
}


def _call(mask, rows, keys, *, lens=True):
    rng = np.random.default_rng(5)
    spec = AttentionSpec(q_heads=3, head_dim=8, mask=mask, q_lens=lens, kv_lens=lens)
    program, scalars = build(spec)
    q_len, kv_len = rng.integers(0, rows + 1, 2), rng.integers(0, keys + 1, 2)
    if not lens:
        q_len[:], kv_len[:] = rows, keys
    world = World(
        batch=2,
        heads=3,
        q_rows=rows,
        kv_rows=keys,
        q_len=q_len,
        kv_len=kv_len,
        q_offset=np.array([0, 3]),
        scalars=scalars,
        tables={
            "n": np.array([4, 50]),
            "doc": np.sort(rng.integers(0, 6, (1, rows))).astype(np.int32),
            "kv_doc": np.sort(rng.integers(0, 6, (2, keys))).astype(np.int32),
            "mask": rng.random((2, 1, rows, keys)) < 0.5,
        },
    )
    sizes = Sizes(3, rows, keys, world.q_len, world.kv_len, world.q_offset)
    return run_pipeline(program), sizes, world


def _brute(program, world, q_tile, k_tile):
    """Count tiles by looking at every pair; a tile ends where rows or keys end."""
    counts = TileMap()
    for b in range(world.batch):
        for h in range(world.heads):
            value = truth(program.mask, world, b, h)
            for i in range(0, world.q_rows, q_tile):
                for j in range(0, world.kv_rows, k_tile):
                    rows = min(i + q_tile, int(world.q_len[b]))
                    keys = min(j + k_tile, int(world.kv_len[b]))
                    tile = value[i:rows, j:keys]
                    kind = "partial" if tile.any() and not tile.all() else "full"
                    kind = kind if tile.any() else "empty"
                    setattr(counts, kind, getattr(counts, kind) + 1)
    return counts


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("lens", [False, True])
@pytest.mark.parametrize(("rows", "keys"), [(40, 60), (64, 33), (1, 50), (7, 7)])
def test_counts_agree_with_brute_force(name, rows, keys, lens):
    program, sizes, world = _call(MASKS[name], rows, keys, lens=lens)
    found = tile_map(program, sizes, world.scalars, world.tables, q_tile=8, k_tile=6)
    exact = _brute(program, world, 8, 6)
    assert found.unresolved == 0
    assert found.total == exact.total == 6 * -(-rows // 8) * -(-keys // 6)
    assert found.empty <= exact.empty
    assert found.full <= exact.full
    if name != "dilated":
        assert found == exact


def _blocks(rows, keys):
    """A mask that is the same in every batch entry and head: blocks of True along the diagonal."""
    return (np.arange(rows)[:, None] // 30 == np.arange(keys)[None, :] // 30)[None, None]


@pytest.mark.parametrize("heads", [1, 3])
def test_a_dense_mask_is_read_to_find_what_it_leaves_out(heads):
    program, sizes, world = _call(MASKS["dense"], 300, 240, lens=False)
    world.tables["mask"] = np.broadcast_to(_blocks(300, 240), (2, heads, 300, 240))
    found = tile_map(program, sizes, world.scalars, world.tables, q_tile=8, k_tile=6)
    assert found == _brute(program, world, 8, 6)
    assert min(found.empty, found.full, found.partial) > 0
    assert found.unresolved == 0


def test_a_mask_that_is_not_read_leaves_every_tile_partial():
    program, sizes, world = _call(MASKS["dense"], 40, 60, lens=False)
    for value in (False, True):
        world.tables["mask"] = np.full((1, 1, 40, 60), value)
        found = tile_map(
            program, sizes, world.scalars, world.tables, q_tile=8, k_tile=6, unread={"mask"}
        )
        assert found == TileMap(partial=6 * 5 * 10)


def test_a_mask_of_one_element_is_that_everywhere():
    program, sizes, world = _call(MASKS["dense"], 40, 60, lens=False)
    world.tables["mask"] = np.broadcast_to(True, (2, 3, 40, 60))
    found = tile_map(program, sizes, world.scalars, world.tables, q_tile=8, k_tile=6)
    assert found == TileMap(full=6 * 5 * 10)


def _never_final(mask, ops, box):
    return replace(key_sets(mask, ops, box), final=np.zeros((), bool))


def test_tiles_that_are_not_looked_at_are_counted_as_if_they_were(monkeypatch):
    """Of random masks: claims hold by brute force, and nothing is partial that a look decides."""
    same = 0

    @settings(
        max_examples=150,
        deadline=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(masks(), worlds(), st.integers(1, 5), st.integers(1, 5))
    def check(mask, world, q_tile, k_tile):
        nonlocal same
        program, _ = build(AttentionSpec(q_heads=world.heads, head_dim=8))
        program = replace(program, mask=mask)
        sizes = Sizes(
            world.heads, world.q_rows, world.kv_rows, world.q_len, world.kv_len, world.q_offset
        )

        def counts():
            return tile_map(
                program, sizes, world.scalars, world.tables, q_tile=q_tile, k_tile=k_tile
            )

        found, exact = counts(), _brute(program, world, q_tile, k_tile)
        assert found.total == exact.total
        assert found.empty <= exact.empty
        assert found.full <= exact.full
        with monkeypatch.context() as patch:
            patch.setattr(tilemap, "key_sets", _never_final)
            assert counts() == found
        same += found == exact

    check()
    assert same >= 75


def test_what_was_not_looked_at_is_counted_as_partial():
    program, sizes, world = _call(Dilated(60, "top_left"), 4096, 4096, lens=False)
    found = tile_map(program, sizes, world.scalars, world.tables, q_tile=8, k_tile=8)
    assert found == TileMap(partial=6 * 512 * 512, unresolved=6 * 512 * 512)


def test_gaps_of_a_union_are_found():
    program, sizes, world = _call(MASKS["band and sink"], 3000, 3000, lens=False)
    found = tile_map(program, sizes, world.scalars, world.tables, q_tile=8, k_tile=8)
    assert found.unresolved == 0
    # Two tiles of the band and one of the prefix in a row of tiles, at most.
    assert found.partial <= 6 * 375 * 3
    assert found.full == 0


@pytest.mark.parametrize(("rows", "keys", "batch"), [(0, 5, 2), (5, 0, 2), (5, 5, 0)])
def test_calls_without_pairs_have_no_tiles(rows, keys, batch):
    program, scalars = build(AttentionSpec(q_heads=1, head_dim=8, mask=Document()))
    none = np.zeros(batch, np.int64)
    sizes = Sizes(1, rows, keys, none + rows, none + keys, none)
    tables = {"doc": np.zeros((batch, max(rows, keys)), np.int32)}
    found = tile_map(run_pipeline(program), sizes, scalars, tables, q_tile=8, k_tile=8)
    assert found == TileMap()


def test_ranges_by_q_tile():
    program, _, world = _call(Causal("top_left"), 40, 60, lens=False)
    ops = VectorOps(world.scalars, world.tables)
    rows = np.array([0, 16, 32]), np.array([15, 31, 39])
    found = key_ranges(program.mask, ops, {"q": rows, "k": (ops.const(0), ops.const(59))})
    assert np.broadcast_to(found.maybe_lo, 3).tolist() == [0, 0, 0]
    assert found.maybe_hi.tolist() == [16, 32, 40]
    assert np.broadcast_to(found.must_lo, 3).tolist() == [0, 0, 0]
    assert found.must_hi.tolist() == [1, 17, 33]


@pytest.mark.parametrize("name", MEASURED)
def test_a_million_by_a_million_costs_no_memory(name):
    count = million(name)
    count()
    tracemalloc.start()
    found = count()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.total == -(-1_000_000 // 128) * -(-1_000_000 // 192)
    assert peak <= 1 << 20


@pytest.mark.parametrize("mask", [Causal("bottom_right"), Prefix("n")])
def test_equal_batch_entries_are_asked_once(mask, monkeypatch):
    program, scalars = build(AttentionSpec(q_heads=1, head_dim=8, mask=mask, kv_lens=True))
    batch, asked, count = 3000, [], tilemap._Grid.count
    lens = np.resize([40, 40, 17], batch)
    monkeypatch.setattr(
        tilemap._Grid, "count", lambda self, *args: asked.append(1) or count(self, *args)
    )
    tables = {"n": np.broadcast_to(np.array([9]), batch)}

    def counts(some):
        sizes = Sizes(1, 40, 40, np.full(some, 40), lens[:some], np.zeros(some, int))
        return tile_map(run_pipeline(program), sizes, scalars, tables, q_tile=8, k_tile=8)

    whole = counts(batch)
    assert len(asked) == 2
    three = counts(3)
    assert (whole.empty, whole.full, whole.partial) == tuple(
        batch // 3 * n for n in (three.empty, three.full, three.partial)
    )
