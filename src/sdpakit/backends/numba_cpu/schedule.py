"""How a call is dealt out: items for threads, and what lies where in the scratch of a thread.

Bits never depend on anything decided here (DET-1); speed and memory do. The sizes of tiles, on
which bits do depend, are functions of the kernel alone (`layout.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sdpakit.backends.numba_cpu import abi
from sdpakit.backends.numba_cpu.costs import choice
from sdpakit.backends.numba_cpu.layout import PanelLayout
from sdpakit.backends.numba_cpu.machine import caches

Array = np.ndarray[Any, np.dtype[np.int64]]

# Panels of one item share each packed tile of K and V: with two thousand rows packing takes 1 % of
# the time. Their state streams by once a group of tiles, so it may be larger than a near cache.
STATE_BYTES = 2 * 1024 * 1024
ITEMS_PER_THREAD = 4  # the last items are unequal: with so many, a thread waits for a small part
MIN_ITEM_PANELS = 4  # fewer would pack K and V more often than it helps the balance
SERIAL_FLOPS = 10_000_000  # about 0.2 ms of one core: waking a thread costs a tenth of it


@dataclass(frozen=True, slots=True)
class Partition:
    """The items of a call: row chunks x head chunks of every kv head of every batch entry."""

    row_chunks: int
    chunk_rows: int
    head_chunks: int
    chunk_heads: int
    items: int
    panels: int  # of an item, at most


@dataclass(frozen=True, slots=True)
class Shape:
    """Lengths of one call, as the driver sees it.

    Attributes
    ----------
    batch, kv_heads, group, q_len, kv_len : int
        Sizes; `group` query heads read one kv head.
    heads_as_rows : int
        1, or the number of query heads that stand in as the rows (`q_len`) of a single head.
    rows, pairs : int
        Of one query head, query rows and pairs with keys in all batch entries together, where
        entries differ; lengths are then those of the longest. 0 where they are alike.
    """

    batch: int
    kv_heads: int
    group: int
    q_len: int
    kv_len: int
    heads_as_rows: int = 1
    rows: int = 0
    pairs: int = 0


def partition(layout: PanelLayout, shape: Shape, threads: int) -> Partition:
    """Return items that keep `threads` threads busy and hold at most `STATE_BYTES` of panels.

    Parameters
    ----------
    layout : PanelLayout
        Sizes of a panel.
    shape : Shape
        No length may be 0.
    threads : int
        Threads that will take items.
    """
    most = max(1, STATE_BYTES // panel_bytes(layout))
    row_panels = -(-shape.q_len // layout.width)
    heads = min(shape.group, most)
    rows = min(row_panels, most // heads)
    wanted = ITEMS_PER_THREAD * threads if threads > 1 else 1
    entries = shape.batch

    def items() -> int:
        chunks = entries * -(-row_panels // rows)
        if shape.rows:  # each entry has a last chunk that is not full
            chunks = min(chunks, entries + shape.rows // (rows * layout.width))
        return shape.kv_heads * -(-shape.group // heads) * chunks

    while items() < wanted and rows * heads > MIN_ITEM_PANELS and rows > 1:
        rows = -(-rows // 2)
    while items() < wanted and rows * heads > MIN_ITEM_PANELS and heads > 1:
        heads = -(-heads // 2)
    row_chunks = -(-row_panels // rows)
    rows = -(-row_panels // row_chunks)
    head_chunks = -(-shape.group // heads)
    heads = -(-shape.group // head_chunks)
    return Partition(
        row_chunks=row_chunks,
        chunk_rows=rows * layout.width,
        head_chunks=head_chunks,
        chunk_heads=heads,
        items=entries * shape.kv_heads * head_chunks * row_chunks,
        panels=rows * heads,
    )


def useful_threads(layout: PanelLayout, shape: Shape, threads: int) -> int:
    """Return how many of `threads` threads are worth waking for a call."""
    pairs = shape.pairs or shape.batch * shape.q_len * shape.kv_len
    flops = 2 * pairs * shape.kv_heads * shape.group * (layout.head_dim + layout.v_head_dim)
    return 1 if flops < SERIAL_FLOPS else threads


def order(q_rows: Array, kv_len: Array, chunk_rows: int) -> Array:
    """Return (batch entry, chunk of its rows) of the items of one kv head, most work first.

    Parameters
    ----------
    q_rows, kv_len : (B,) int64
        Rows and keys of each entry.
    chunk_rows : int
        Rows of an item.

    Returns
    -------
    (items, 2) int64
        Of equal work, later rows come first: they see most keys under a causal mask.
    """
    chunks = -(-q_rows // chunk_rows)
    b = np.repeat(np.arange(len(q_rows)), chunks)
    chunk = np.arange(len(b)) - np.repeat(np.cumsum(chunks) - chunks, chunks)
    rows = np.minimum(q_rows[b] - chunk * chunk_rows, chunk_rows)
    work = rows * kv_len[b]
    return np.stack((b, chunk), axis=1)[np.lexsort((-chunk, -work))]


def panel_bytes(layout: PanelLayout) -> int:
    """Return the bytes of the state of one panel: packed q, accumulator, statistics."""
    return layout.qt_bytes + layout.ot_bytes + layout.st_bytes


@dataclass(frozen=True, slots=True)
class ScratchPlan:
    """Byte offsets into the scratch of a thread; parts are aligned to 64 bytes."""

    tile_group: int  # tiles packed at a time; the rest are offsets, and `size` is where they end
    pairs: int
    packed: int
    p: int
    staging: int
    factors: int
    ranges: int
    panels: int
    size: int

    @classmethod
    def of(cls, layout: PanelLayout, panels: int) -> ScratchPlan:
        """Return the plan for items of at most `panels` panels."""
        pair = layout.k_tile_bytes + layout.v_tile_bytes
        tile_group = choice.tile_group(pair, caches())
        sizes = (
            tile_group * pair,
            tile_group * 8,
            layout.p_bytes,
            layout.staging_bytes,
            layout.row_bytes,
            panels * abi.RANGE_BYTES,
            panels * panel_bytes(layout),
        )
        offsets = [0]
        for size in sizes:
            offsets.append(offsets[-1] + -(-size // 64) * 64)
        return cls(tile_group, *offsets)
