"""How many tiles of a call are empty, full or partial, counted without a block mask.

Runs of tiles that the key ranges of a q tile decide are counted at once; what lies between is
classified by halving, so that gaps of a mask cost the logarithm of their length.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from sdpakit.expr.nodes import Expr, Index, Load, postorder
from sdpakit.ir.program import Program
from sdpakit.passes.classify import key_ranges, tile_class
from sdpakit.passes.intervals import Box
from sdpakit.passes.tables import Array
from sdpakit.passes.vectors import VectorOps

_BATCH = frozenset({"b"})
_HEAD = frozenset({"h"})

# Q tiles, or boxes, looked at together: some fifty vectors of so many int64 are alive at a time.
_CHUNK = 1 << 11

# About so many boxes of a call are looked at outside of the key ranges; the rest is unresolved.
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
        selected one by one. EMPTY and FULL are proven. Rows past q_len and keys past kv_len are
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

    Returns
    -------
    TileMap
        Counts over all batch entries and heads.
    """
    ops = VectorOps(scalars, tables)
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
    numbers = np.stack((sizes.q_len, sizes.kv_len, sizes.q_offset))
    _, first, counts = np.unique(numbers, axis=1, return_index=True, return_counts=True)
    return [(int(b), int(times)) for b, times in zip(first, counts, strict=True)]


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
            runs = self._count_runs(tiles, q_len, kv_len, counts)
            self._count_boxes(runs, (q_len, kv_len), max_boxes, counts)
        return counts

    def _ranges(self, tiles: Array, q_len: int, kv_len: int) -> tuple[Array, Array, Array, Array]:
        """Return maybe_lo, maybe_hi, must_lo, must_hi of q tiles; a bound may be of size 1."""
        box = dict(self.fixed)
        box["q"] = self._rows(tiles, q_len)
        box["k"] = self.ops.const(0), self.ops.const(kv_len - 1)
        found = key_ranges(self.mask, self.ops, box)
        return found.maybe_lo, found.maybe_hi, found.must_lo, found.must_hi

    def _rows(self, tiles: Array, q_len: int) -> tuple[Array, Array]:
        first = tiles * self.q_tile
        return first, np.minimum(first + self.q_tile, q_len) - 1

    def _count_runs(self, tiles: Array, q_len: int, kv_len: int, counts: TileMap) -> Array:
        """Count what the key ranges decide; return the rest as rows (q tile, first, end k tile)."""
        maybe_lo, maybe_hi, must_lo, must_hi = np.broadcast_arrays(
            *self._ranges(tiles, q_len, kv_len), tiles
        )[:4]
        some = maybe_lo < maybe_hi
        first = np.where(some, maybe_lo // self.k_tile, 0)
        end = np.where(some, -(-maybe_hi // self.k_tile), 0)
        # A tile is full up to the last key that there is.
        ends_all = must_hi == kv_len
        full_end = np.where(ends_all, -(-kv_len // self.k_tile), must_hi // self.k_tile)
        full = -(-must_lo // self.k_tile)
        none = (full >= full_end) | (must_lo >= must_hi)
        full, full_end = np.where(none, end, full), np.where(none, end, full_end)
        counts.empty += int((self.k_tiles - (end - first)).sum())
        counts.full += int((full_end - full).sum())
        left, right = np.stack((tiles, first, full)), np.stack((tiles, full_end, end))
        runs = np.concatenate((left, right), axis=1)
        return runs[:, runs[1] < runs[2]]

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
        """Return whether halving a sample of the longer runs three times decides nothing."""
        sample = runs[:, runs[2] - runs[1] > 1]
        sample = sample[:, :: max(1, sample.shape[1] // _SAMPLE)]
        some = bool(sample.shape[1])
        for _ in range(3):
            found = TileMap()
            sample = self._decide(sample, lengths, found)
            if found.empty or found.full:
                return False
        return some

    def _decide(self, runs: Array, lengths: tuple[int, int], counts: TileMap) -> Array:
        """Count the runs that are decided, or are one tile; return the halves of the others."""
        q_len, kv_len = lengths
        tiles, first, end = runs
        box = dict(self.fixed)
        box["q"] = self._rows(tiles, q_len)
        box["k"] = first * self.k_tile, np.minimum(end * self.k_tile, kv_len) - 1
        can_true, can_false, size = np.broadcast_arrays(
            *tile_class(self.mask, self.ops, box), end - first
        )
        counts.empty += int(size[~can_true].sum())
        counts.full += int(size[can_true & ~can_false].sum())
        mixed = can_true & can_false
        counts.partial += int((mixed & (size == 1)).sum())
        tiles, first, end = runs[:, mixed & (size > 1)]
        middle = (first + end) >> 1
        return np.concatenate(
            (np.stack((tiles, first, middle)), np.stack((tiles, middle, end))), axis=1
        )
