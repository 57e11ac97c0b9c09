"""Key ranges of the masks that people use are exact: the true hull, and the true common keys."""

from __future__ import annotations

import numpy as np
import pytest
from tests.passes.tiles import World, truth

from sdpakit.expr.nodes import Binary, Const, Expr, Index, Scalar, Unary
from sdpakit.masks import Causal, Dilated, Document, Mask, Prefix, Scope, Window
from sdpakit.passes.classify import KeyRanges, KeySets, key_ranges, key_sets
from sdpakit.passes.intervals import Box
from sdpakit.passes.tables import Array
from sdpakit.passes.vectors import VectorOps

pytestmark = pytest.mark.slow  # brute force over integers, the same on every Python

ALIGNMENTS = ("top_left", "bottom_right", "offset")
LENGTHS = [(1, 1), (1, 17), (17, 1), (9, 9), (7, 20), (20, 7), (16, 12)]
Q, K = Index("q"), Index("k")


def _world(rows, keys, offset=0, tables=None, scalars=None):
    return World(
        batch=1,
        heads=1,
        q_rows=rows,
        kv_rows=keys,
        q_len=np.array([rows]),
        kv_len=np.array([keys]),
        q_offset=np.array([offset]),
        scalars=scalars or {},
        tables=tables or {},
    )


def _box(ops: VectorOps, world: World, first: int, last: int) -> Box[Array]:
    points = {
        "b": 0,
        "h": 0,
        "q_len": world.q_len[0],
        "kv_len": world.kv_len[0],
        "q_offset": world.q_offset[0],
    }
    box = {name: (ops.const(int(value)),) * 2 for name, value in points.items()}
    box |= {
        "q": (ops.const(first), ops.const(last)),
        "k": (ops.const(0), ops.const(world.kv_rows - 1)),
    }
    return box


def _ranges(mask: Expr, world: World, first: int, last: int) -> tuple[KeyRanges, np.ndarray]:
    ops = VectorOps(world.scalars, world.tables)
    found = key_ranges(mask, ops, _box(ops, world, first, last))
    return found, truth(mask, world, 0, 0)[first : last + 1]


def _sets(mask: Expr, world: World, first: int, last: int) -> KeySets:
    ops = VectorOps(world.scalars, world.tables)
    return key_sets(mask, ops, _box(ops, world, first, last))


def _assert_exact(mask: Expr, world: World) -> None:
    """Compare the ranges of every q tile (every first and last row) with brute force."""
    for first in range(world.q_rows):
        for last in range(first, world.q_rows):
            found, tile = _ranges(mask, world, first, last)
            some = np.flatnonzero(tile.any(axis=0))
            hull = (some[0], some[-1] + 1) if some.size else (found.maybe_lo, found.maybe_lo)
            assert (found.maybe_lo, found.maybe_hi) == hull
            common = np.arange(int(found.must_lo), int(found.must_hi))
            assert np.array_equal(common, np.flatnonzero(tile.all(axis=0)))


def _inside(spans, world: World) -> Array:
    keys = np.arange(world.kv_rows)
    found: Array = np.any([(keys >= lo) & (keys < hi) for lo, hi in spans], axis=0)
    return found


def _assert_sets_exact(mask: Expr, world: World, rows: int = 1, *, must: bool = True) -> None:
    """Compare the key sets of every q tile of at least so many rows with brute force."""
    value = truth(mask, world, 0, 0)
    for first in range(world.q_rows):
        for last in range(first + rows - 1, world.q_rows):
            found, tile = _sets(mask, world, first, last), value[first : last + 1]
            assert found.final.all()
            assert np.array_equal(_inside(found.maybe, world), tile.any(axis=0))
            of_all, common = _inside(found.must, world), tile.all(axis=0)
            assert np.array_equal(of_all, common) if must else common[of_all].all()


def _build(mask: Mask) -> tuple[Expr, dict[str, int]]:
    scope = Scope()
    return mask.build(scope), dict(scope.values)


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("align", ALIGNMENTS)
@pytest.mark.parametrize(
    "make",
    [
        Causal,
        lambda align: Window(3, 2, align),
        lambda align: Window(0, 0, align),
        lambda align: Window(None, 1, align),
        lambda align: Window(4, None, align),
        lambda align: Window(30, 30, align),
        lambda align: Causal(align) & Window(3, 5, align),
        lambda align: Causal(align) | Prefix(4),
        lambda align: Causal(align) & Prefix(5),
        lambda align: ~Causal(align),
    ],
    ids=["causal", "window", "self", "right", "left", "wide", "both", "prefix-lm", "cut", "future"],
)
def test_aligned_masks_are_exact(make, align, lengths):
    mask, scalars = _build(make(align))
    for offset in (-8, 0, 5) if align == "offset" else (0,):
        _assert_exact(mask, _world(*lengths, offset=offset, scalars=scalars))


@pytest.mark.parametrize("lengths", [(9, 9), (7, 20), (15, 7)])
@pytest.mark.parametrize("align", ALIGNMENTS)
@pytest.mark.parametrize(
    "make",
    [
        lambda align: Window(3, 2, align) | Prefix(4),
        lambda align: Window(3, 2, align) & Prefix(9),
        lambda align: ~(Window(3, 2, align) | Prefix(4)),
        lambda align: Causal(align) & (Window(3, 2, align) | Prefix(2)),
        lambda align: ~Window(3, 2, align),
        lambda align: Window(1, 0, align) | ~Window(6, 5, align),
        lambda _: ~Document("doc", "kv_doc"),
        lambda _: ~Document("doc", "kv_doc") & ~Prefix(3),
        lambda _: Document("doc", "kv_doc") & Prefix(8),
    ],
    ids=[
        "sink",
        "cut",
        "neither",
        "causal sink",
        "outside",
        "stripes",
        "others",
        "other keys",
        "cut documents",
    ],
)
def test_composed_masks_keep_their_gaps(make, align, lengths):
    mask, scalars = _build(make(align))
    for offset in (-8, 0, 5) if align == "offset" else (0,):
        _assert_sets_exact(mask, _world(*lengths, offset, _documents(*lengths), scalars))


@pytest.mark.parametrize("align", ALIGNMENTS)
@pytest.mark.parametrize("lengths", [(9, 9), (7, 20), (20, 7)])
def test_rows_that_attend_a_key_for_different_reasons(lengths, align):
    for other in (Window(1, 0, align) | Prefix(2), ~Causal(align)):
        mask, scalars = _build(other | Document("doc", "kv_doc"))
        world = _world(*lengths, 2, _documents(*lengths), scalars)
        _assert_sets_exact(mask, world, must=False)


def _documents(rows: int, keys: int) -> dict[str, Array]:
    """Return documents of rows and of keys, with keys of every document."""
    return {
        "doc": (np.arange(rows) * 3 // rows)[None].astype(np.int32),
        "kv_doc": (np.arange(keys) * 3 // keys)[None].astype(np.int32),
    }


@pytest.mark.parametrize("step", [1, 2, 3, 5])
def test_steps_are_exact_for_tiles_of_as_many_rows(step):
    for make in (Dilated(step, "top_left"), ~Dilated(step, "top_left") | Prefix(4)):
        mask, scalars = _build(make)
        _assert_sets_exact(mask, _world(9, 20, scalars=scalars), rows=step)
    mask, scalars = _build(Dilated(4, "top_left"))
    assert not _sets(mask, _world(9, 20, scalars=scalars), 0, 2).final


def test_more_ranges_than_are_kept_stay_sound_and_are_not_called_final():
    mask: Expr = Binary("lt", K, Const(0))
    for n in range(1, 20, 3):
        mask = Binary("or", mask, Binary("eq", K, Const(n)))
    world = _world(3, 24)
    found, tile = _sets(mask, world, 0, 2), truth(mask, world, 0, 0)
    assert not found.final
    assert not tile[:, ~_inside(found.maybe, world)].any()
    assert tile[:, _inside(found.must, world)].all()


@pytest.mark.parametrize("length", [0, 1, 6, 11, 40])
def test_prefix_is_exact(length):
    mask, scalars = _build(Prefix(length))
    _assert_exact(mask, _world(5, 11, scalars=scalars))
    mask, _ = _build(Prefix("n"))
    _assert_exact(mask, _world(5, 11, tables={"n": np.array([length])}))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("causal", [False, True])
def test_sorted_documents_are_exact(seed, causal):
    rng = np.random.default_rng(seed)
    ids = np.sort(rng.integers(-3, 4, (1, 18))).astype(np.int32)
    mask, _ = _build(Document() & Causal("top_left") if causal else Document())
    _assert_exact(mask, _world(18, 18, tables={"doc": ids}))


@pytest.mark.parametrize("seed", range(4))
def test_documents_of_unsorted_rows_are_exact_where_keys_are_sorted(seed):
    rng = np.random.default_rng(seed)
    keys = np.sort(np.concatenate((np.arange(4), rng.integers(0, 4, 12))))[None].astype(np.int32)
    rows = rng.integers(0, 4, (1, 9)).astype(np.int32)
    mask, _ = _build(Document("doc", "kv_doc"))
    world = _world(9, 16, tables={"doc": rows, "kv_doc": keys})
    _assert_exact(mask, world)


def test_one_document_for_all_rows_broadcasts():
    mask, _ = _build(Document("doc", "kv_doc"))
    keys = np.array([[0, 1, 1, 1, 2]], np.int32)
    _assert_exact(mask, _world(4, 5, tables={"doc": np.array([[1]], np.int32), "kv_doc": keys}))
    one = np.array([[1]], np.int32)
    _assert_exact(mask, _world(4, 5, tables={"doc": one, "kv_doc": one}))
    _assert_exact(mask, _world(4, 5, tables={"doc": one, "kv_doc": one + 1}))


N = Scalar("n", "int")


@pytest.mark.parametrize("n", [1, 2, 3, 5, 40])
@pytest.mark.parametrize(
    "mask",
    [
        Binary("le", Unary("abs", Binary("sub", Q, K)), N),
        Binary("eq", Binary("floordiv", Q, N), Binary("floordiv", K, N)),
        Binary("le", Binary("mul", K, Const(2)), Binary("add", Q, N)),
        Binary("le", Binary("mul", K, Const(-3)), Binary("sub", N, Q)),
        Binary("le", Binary("max", K, N), Q),
        Binary("le", Binary("min", K, N), Q),
        Binary("ne", K, Const(0)),
    ],
    ids=["distance", "chunks", "twice", "minus-thrice", "max", "min", "not-first"],
)
def test_predicates_that_are_affine_in_k_are_exact(mask, n):
    _assert_exact(mask, _world(9, 12, scalars={"n": n}))


def test_no_keys_and_parts_of_the_keys():
    mask, _ = _build(Causal("top_left"))
    ops = VectorOps({}, {})
    zero = (ops.const(0),) * 2
    box = dict.fromkeys(("b", "h", "q_len", "kv_len", "q_offset"), zero)
    box["q"] = ops.const(2), ops.const(5)
    none = key_ranges(mask, ops, box | {"k": (ops.const(0), ops.const(-1))})
    assert none == KeyRanges(0, 0, 0, 0)
    part = key_ranges(mask, ops, box | {"k": (ops.const(2), ops.const(4))})
    assert part == KeyRanges(2, 5, 2, 3)


def test_many_nested_splits_stay_sound_and_end():
    # |...|||q - k| - 1| - 1|...| <= 1: each level doubles what could be written out.
    x: Expr = Binary("sub", Q, K)
    for _ in range(40):
        x = Unary("abs", Binary("sub", x, Const(1)))
    world = _world(6, 9)
    found, tile = _ranges(Binary("le", x, Const(1)), world, 0, 5)
    attended = np.flatnonzero(tile.any(axis=0))
    assert found.maybe_lo <= attended[0]
    assert attended[-1] < found.maybe_hi
    assert tile[:, int(found.must_lo) : int(found.must_hi)].all()
