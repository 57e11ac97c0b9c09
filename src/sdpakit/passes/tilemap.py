"""How many tiles of a call are empty, full or partial, counted without a block mask.

The key sets of a q tile decide whole runs of its tiles at once. Where they are not final, the tiles
that they leave undecided are classified by halving, so that what a mask hides there costs the
logarithm of its length.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field

import numpy as np

from sdpakit.expr.nodes import Expr, Index, Load, postorder
from sdpakit.ir.program import Program
from sdpakit.passes import spans
from sdpakit.passes.classify import KeySets, key_sets, tile_class
from sdpakit.passes.intervals import Box
from sdpakit.passes.spans import Span
from sdpakit.passes.tables import Array
from sdpakit.passes.vectors import VectorOps

_BATCH = frozenset({"b"})
_HEAD = frozenset({"h"})

# Q tiles, or boxes, looked at together: some fifty vectors of so many int64 are alive at a time.
_CHUNK = 2 << 10

# About so many boxes of a call are looked at outside of the key sets; the rest is unresolved.
_MAX_BOXES = 1 << 18

# Runs that are tried first where there are too many tiles to look at all.
_SAMPLE = 64


@dataclass(frozen=True, slots=True)
class Sizes:
    """Lengths of a call.

    Attributes
    ----------
    q_heads : int
        Query heads.
    q_rows, kv_rows : int
        Lengths of the arrays q and k.
    q_len, kv_len, q_offset : (B,) arrays of int
        True lengths and offset of every batch entry.
    """

    q_heads: int
    q_rows: int
    kv_rows: int
    q_len: Array
    kv_len: Array
    q_offset: Array


@dataclass(slots=True)
class TileMap:
    """Tiles of a call by class, over all batch entries and heads.

    Attributes
    ----------
    empty, full, partial : int
        Tiles without any pair to attend; with nothing but such pairs; the rest, where pairs are
        selected one by one. EMPTY and FULL are proven, which a kernel that asks about one tile at a
        time may miss where a mask is joined from others. Rows past q_len and keys past kv_len are
        empty, and do not keep a tile from being full.
    unresolved : int
        Of the partial ones those that were not looked at one by one, because there were too many.
    """

    empty: int = field(default=0)
    full: int = field(default=0)
    partial: int = field(default=0)
    unresolved: int = field(default=0)

    @property
    def total(self) -> int:
        """All tiles."""
        return self.empty + self.full + self.partial

    def add(self, other: TileMap, times: int = 1) -> None:
        """Add the counts of another map, so many times."""
        self.empty += times * other.empty
        self.full += times * other.full
        self.partial += times * other.partial
        self.unresolved += times * other.unresolved


def tile_map(
    program: Program,
    sizes: Sizes,
    scalars: Mapping[str, int | float],
    tables: Mapping[str, Array],
    *,
    q_tile: int,
    k_tile: int,
    unread: Set[str] = frozenset(),
) -> TileMap:
    """Count the tiles of a call by class.

    Parameters
    ----------
    program : Program
        Whose integers are proven for the call (`passes.integers.prove_integers`).
    sizes : Sizes
        Lengths of the call.
    scalars, tables : mappings
        Run-time numbers and arrays by name.
    q_tile, k_tile : int
        Rows and keys of a tile; tiles start at row and key 0.
    unread : set of str, optional
        Tables that are not looked into, so that they prove no tile EMPTY or FULL. Any other of rows
        and keys, such as a dense mask, is read.

    Returns
    -------
    TileMap
        Counts over all batch entries and heads.
    """
    ops = VectorOps(scalars, tables, unread)
    heads = sizes.q_heads
    of_b = _entries(program.mask, sizes, tables)
    of_h = range(heads if _varies(program.mask, _HEAD, tables) else min(heads, 1))
    q_tiles, k_tiles = -(-sizes.q_rows // q_tile), -(-sizes.kv_rows // k_tile)
    chunks = len(of_b) * len(of_h) * -(-q_tiles // _CHUNK)
    found = TileMap()
    if q_tiles == 0 or k_tiles == 0:
        return found
    for b, times in of_b:
        for h in of_h:
            grid = _Grid(program.mask, ops, _fixed(ops, sizes, b, h), q_tile, k_tile, k_tiles)
            boxes = max(1 << 12, _MAX_BOXES // max(1, chunks))
            counts = grid.count(q_tiles, int(sizes.q_len[b]), int(sizes.kv_len[b]), boxes)
            found.add(counts, times * (heads // len(of_h)))
    return found


def _entries(mask: Expr, sizes: Sizes, tables: Mapping[str, Array]) -> list[tuple[int, int]]:
    """Return batch entries to look at, each with the number of entries that have its tiles."""
    batch = sizes.q_len.shape[0]
    if _varies(mask, _BATCH, tables):
        return [(b, 1) for b in range(batch)]
    numbers = zip(sizes.q_len.tolist(), sizes.kv_len.tolist(), sizes.q_offset.tolist(), strict=True)
    entries: dict[tuple[int, int, int], list[int]] = {}
    for b, key in enumerate(numbers):
        entries.setdefault(key, []).append(b)
    return [(alike[0], len(alike)) for alike in entries.values()]


def _varies(mask: Expr, names: frozenset[str], tables: Mapping[str, Array]) -> bool:
    """Return whether a mask depends on one of the indices `names`, axes that broadcast left out."""
    used: set[Expr] = {mask}
    for node in postorder(mask):
        children = node.children()
        if isinstance(node, Load):
            table = tables[node.table]
            children = tuple(
                index
                for index, stride, size in zip(
                    node.indices, table.strides, table.shape, strict=True
                )
                if not (isinstance(index, Index) and (size == 1 or stride == 0))
            )
        used.update(children)
    return any(isinstance(node, Index) and node.name in names for node in used)


def _fixed(ops: VectorOps, sizes: Sizes, b: int, h: int) -> Box[Array]:
    values = {
        "b": b,
        "h": h,
        "q_len": int(sizes.q_len[b]),
        "kv_len": int(sizes.kv_len[b]),
        "q_offset": int(sizes.q_offset[b]),
    }
    return {name: (ops.const(value),) * 2 for name, value in values.items()}


def _chunks(count: int) -> Iterator[Array]:
    for start in range(0, count, _CHUNK):
        yield np.arange(start, min(start + _CHUNK, count), dtype=np.int64)


def _single_tiles(runs: Array) -> Array:
    """Return runs of k tiles taken apart into runs of one tile."""
    sizes = runs[2] - runs[1]
    before = np.cumsum(sizes) - sizes
    first = np.arange(int(sizes.sum())) + np.repeat(runs[1] - before, sizes)
    return np.stack((np.repeat(runs[0], sizes), first, first + 1))


def _quarters(runs: Array) -> Array:
    """Return runs of k tiles each cut into up to four."""
    cuts = runs[1] + (runs[2] - runs[1]) * np.arange(5)[:, None] // 4
    pieces = np.stack((np.broadcast_to(runs[0], cuts[1:].shape), cuts[:-1], cuts[1:]))
    return pieces[:, cuts[:-1] < cuts[1:]]


def _sum(found: Sequence[Span], count: int) -> int:
    """Return the length of spans, each of which is of size `count` or 1."""
    sizes = (np.asarray(end - first) for first, end in found)
    return sum(int(size.sum()) * (count // size.size) for size in sizes)


def _runs(tiles: Array, wanted: Array, touched: Sequence[Span], left_open: Sequence[Span]) -> Array:
    """Return what is touched and open of the q tiles that are wanted: (q tile, first, end)."""
    at = np.flatnonzero(np.broadcast_to(wanted, tiles.shape))
    parts = [np.empty((3, 0), np.int64)]
    if at.size:
        some, open_ = (
            [span for span in found if (span[0] < span[1]).any()] for found in (touched, left_open)
        )
        for (a, b), (c, d) in itertools.product(some, open_):
            first = np.broadcast_to(np.maximum(a, c), tiles.shape)[at]
            end = np.broadcast_to(np.minimum(b, d), tiles.shape)[at]
            parts.append(np.stack((tiles[at], first, end))[:, first < end])
    return np.concatenate(parts, axis=1)


@dataclass(frozen=True, slots=True)
class _Grid:
    """The tiles of one batch entry and head."""

    mask: Expr
    ops: VectorOps
    fixed: Box[Array]
    q_tile: int
    k_tile: int
    k_tiles: int

    def count(self, q_tiles: int, q_len: int, kv_len: int, max_boxes: int) -> TileMap:
        """Classify all tiles, looking at no more than about `max_boxes` for each chunk."""
        with_rows = min(q_tiles, -(-q_len // self.q_tile))
        counts = TileMap(empty=(q_tiles - with_rows) * self.k_tiles)
        for tiles in _chunks(with_rows):
            runs = self._count_sets(tiles, q_len, kv_len, counts)
            self._count_boxes(runs, (q_len, kv_len), max_boxes, counts)
        return counts

    def _sets(self, tiles: Array, q_len: int, kv_len: int) -> KeySets[Array, Array]:
        """Return the key sets of q tiles; a bound may be of size 1."""
        box = dict(self.fixed)
        box["q"] = self._rows(tiles, q_len)
        box["k"] = self.ops.const(0), self.ops.const(kv_len - 1)
        return key_sets(self.mask, self.ops, box)

    def _rows(self, tiles: Array, q_len: int) -> tuple[Array, Array]:
        first = tiles * self.q_tile
        return first, np.minimum(first + self.q_tile, q_len) - 1

    def _count_sets(self, tiles: Array, q_len: int, kv_len: int, counts: TileMap) -> Array:
        """Count what the key sets decide; return the rest as rows (q tile, first, end k tile)."""
        keys = self._sets(tiles, q_len, kv_len)
        touched = spans.touched(keys.maybe, self.k_tile)
        left_open = spans.left_open(keys.must, kv_len, self.k_tile)
        with_keys = tiles.size * -(-kv_len // self.k_tile)
        some, not_all = _sum(touched, tiles.size), _sum(left_open, tiles.size)
        runs = _runs(tiles, ~keys.final, touched, left_open)
        counts.empty += tiles.size * self.k_tiles - some
        counts.full += with_keys - not_all
        # The full ones are among those that are touched.
        counts.partial += some - (with_keys - not_all) - int((runs[2] - runs[1]).sum())
        return runs

    def _count_boxes(
        self, runs: Array, lengths: tuple[int, int], max_boxes: int, counts: TileMap
    ) -> None:
        """Classify runs of k tiles by halving those that are not decided as a whole."""
        hopeless = None
        while runs.shape[1]:
            tiles = int((runs[2] - runs[1]).sum())
            if tiles <= max_boxes // 4:
                runs = _single_tiles(runs)
            elif hopeless is None:
                hopeless = self._is_hopeless(runs, lengths)
            if hopeless or runs.shape[1] > max_boxes:
                counts.partial += tiles
                counts.unresolved += tiles
                return
            max_boxes -= runs.shape[1]
            parts = [
                self._decide(runs[:, start : start + _CHUNK], lengths, counts)
                for start in range(0, runs.shape[1], _CHUNK)
            ]
            runs = np.concatenate(parts, axis=1)

    def _is_hopeless(self, runs: Array, lengths: tuple[int, int]) -> bool:
        """Return whether nothing is decided about the quarters of a sample of the longer runs."""
        sample = runs[:, runs[2] - runs[1] > 1]
        sample = _quarters(sample[:, :: max(1, sample.shape[1] // _SAMPLE)])
        if not sample.shape[1]:
            return False
        found = TileMap()
        self._decide(sample, lengths, found)
        return not (found.empty or found.full)

    def _decide(self, runs: Array, lengths: tuple[int, int], counts: TileMap) -> Array:
        """Count the runs that are decided, or are one tile; return the halves of the others."""
        q_len, kv_len = lengths
        tiles, first, end = runs
        box = dict(self.fixed)
        box["q"] = self._rows(tiles, q_len)
        box["k"] = first * self.k_tile, np.minimum(end * self.k_tile, kv_len) - 1
        can_true, can_false = tile_class(self.mask, self.ops, box)
        size = end - first
        mixed = np.broadcast_to(can_true & can_false, size.shape)
        # By products, as truth may be one for all.
        some, undecided = int((size * can_true).sum()), int(size[mixed].sum())
        counts.empty += int(size.sum()) - some
        counts.full += some - undecided
        runs = runs[:, mixed & (size > 1)]
        longer = int((runs[2] - runs[1]).sum())
        counts.partial += undecided - longer
        if not longer:
            return runs
        tiles, first, end = runs
        middle = (first + end) >> 1
        return np.concatenate(
            (np.stack((tiles, first, middle)), np.stack((tiles, middle, end))), axis=1
        )
