"""The cost model asked about one call: what it computes, and the share of the peak that follows."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sdpakit.backends.numba_cpu.costs.counts import Work, loop_work
from sdpakit.backends.numba_cpu.costs.decode import DecodeCosts, DecodeWork
from sdpakit.backends.numba_cpu.costs.prefill import (
    Parts,
    StepCosts,
    Tiles,
    bytes_per_cycle,
    call_parts,
)
from sdpakit.backends.numba_cpu.decode.layout import TILE_KEYS, DecodeLayout
from sdpakit.backends.numba_cpu.lower_expr import staged_loads
from sdpakit.backends.numba_cpu.lower_ranges import LARGEST_SCAN
from sdpakit.backends.numba_cpu.machine import caches, core
from sdpakit.expr.nodes import Load, postorder
from sdpakit.passes.intervals import reads
from sdpakit.passes.tilemap import Sizes, TileMap, tile_map

if TYPE_CHECKING:
    from sdpakit.backends.base import Call
    from sdpakit.backends.numba_cpu.lower import Plan
    from sdpakit.backends.numba_cpu.schedule import Partition, Shape

_PAIR = (frozenset({"q"}), frozenset({"k"}))

# The functions of the products name their widths.
_PRODUCT = re.compile(r"^(qk|pv)_\w+")


@dataclass(frozen=True, slots=True)
class Expectation:
    """What a call should cost.

    Attributes
    ----------
    resource : str
        What bounds it at best: "multiply-add" or "read".
    parts : dict of str to float
        Cycles, over all threads.
    work : float
        Bytes of keys and values; or useful flops: of the pairs that the mask admits, half of those
        of a register tile in which it decides pair by pair.
    peak : float
        Flops or bytes a cycle of one core.
    beside : dict of str to float
        Cycles of what goes on at the same time as the longest part.
    """

    resource: str
    parts: Parts
    work: float
    peak: float
    beside: Parts

    @property
    def cycles(self) -> float:
        """All cycles."""
        return sum(self.parts.values())

    @property
    def share(self) -> float:
        """Share of the peak."""
        return self.work / (self.cycles * self.peak)

    def facts(self) -> dict[str, Any]:
        """Return what `explain` shows."""
        return {
            "share": f"{100 * self.share:.1f} % of the {self.resource} peak",
            "cycles": round(self.cycles),
            "parts": {name: round(cycles) for name, cycles in self.parts.items() if cycles},
            **{name: round(cycles) for name, cycles in self.beside.items()},
            "peak_a_cycle": self.peak,
        }


def step_costs(plan: Plan, text: str, call: Call) -> StepCosts:
    """Return the costs of the steps of a kernel with the tables of a call."""
    layout = plan.layout
    is_read = _is_read(call, layout.width, layout.block_kv)
    read_by_logit = staged_loads(plan.program.logit)
    return StepCosts(
        layout,
        core(layout.isa),
        caches(),
        _without_widths(_works(text, layout.isa.vector_bytes)),
        plan.is_fast,
        mask_only=not any(load in read_by_logit for load in plan.staged),
        table_bytes=float(sum(_table_bytes(call.tables[load.table]) for load in plan.staged)),
        scanned={name: call.tables[name] for name in _pair_tables(plan) if is_read},
    )


def expect_prefill(
    plan: Plan, text: str, call: Call, shape: Shape, parts: Partition
) -> Expectation:
    """Return what a call of the prefill kernel should cost.

    Parameters
    ----------
    plan : Plan
        Of the kernel.
    text : str
        Its LLVM IR.
    call : Call
        The call.
    shape, parts
        How it is dealt out.
    """
    layout = plan.layout
    classes = _classes(plan, call)
    tiles = _tiles(plan, call, shape, parts, classes)
    fine = classes.found_fine
    pairs = (fine.full + fine.partial / 2) * layout.rows * layout.width
    dense = float((call.q_len * call.kv_len).sum()) * call.q.shape[1]
    flops = 2 * (layout.head_dim + layout.v_head_dim) * min(pairs, dense)
    parts_of_call = call_parts(step_costs(plan, text, call), tiles)
    return Expectation("multiply-add", parts_of_call, flops, peak(plan), {})


def peak(plan: Plan) -> float:
    """Return the flops a cycle that multiply-adds alone would do."""
    layout = plan.layout
    per_lane = 2 if layout.isa.fma else 1
    return per_lane * layout.lanes * core(layout.isa).arithmetic


def expect_decode(plan: Plan, text: str, call: Call, chunks: int, rows: int) -> Expectation:
    """Return what a call of the decode kernel should cost.

    Parameters
    ----------
    plan : Plan
        Of the kernel.
    text : str
        Its LLVM IR.
    call : Call
        The call.
    chunks, rows : int
        Chunks of all kv heads; rows that read one of them.
    """
    layout = DecodeLayout(plan.layout)
    costs = DecodeCosts(layout, core(layout.isa), _works(text, layout.isa.vector_bytes))
    is_read = _is_read(call, call.q_rows, TILE_KEYS)
    found = _map(plan, call, call.q_rows, TILE_KEYS, reads_pairs=is_read)
    group = call.q.shape[1] / call.k.shape[1]
    tiles = (found.full + found.partial) / group
    keys = min(tiles * TILE_KEYS, float(call.kv_len.sum()) * call.k.shape[1])
    moved = keys * (layout.k_row_bytes + layout.v_row_bytes)
    work = DecodeWork(rows, tiles, found.partial / group, chunks, moved)
    rate = bytes_per_cycle(moved, caches())
    beside = {"products_beside_reading": costs.computing(work)}
    return Expectation("read", costs.parts(work, rate), moved, rate, beside)


def _table_bytes(table: np.ndarray[Any, Any]) -> int:
    """Return the size of a table, not that of what stands in for it."""
    return math.prod(table.shape) * table.itemsize


@functools.lru_cache(maxsize=16)
def _works(text: str, vector_bytes: int) -> Mapping[str, Work]:
    return loop_work(text, vector_bytes)


def _without_widths(works: Mapping[str, Work]) -> dict[str, Work]:
    """Return the same with the functions of the products by their first names."""
    return {_PRODUCT.sub(r"\1", name): work for name, work in works.items()}


def _pair_tables(plan: Plan) -> frozenset[str]:
    """Return the tables of rows and keys that the mask reads."""
    return frozenset(
        node.table
        for node in postorder(plan.program.mask)
        if isinstance(node, Load)
        and all(any(reads(index, name) for index in node.indices) for name in _PAIR)
    )


def _is_read(call: Call, q_tile: int, k_tile: int) -> bool:
    """Return whether the kernel reads a table of rows and keys to find the class of a tile."""
    return min(q_tile, call.q_rows) * min(k_tile, call.kv_rows) <= LARGEST_SCAN


def _map(plan: Plan, call: Call, q_tile: int, k_tile: int, *, reads_pairs: bool = True) -> TileMap:
    """Return the classes of tiles, with or without a look into tables of rows and keys."""
    heads = call.q.shape[1]
    sizes = Sizes(heads, call.q_rows, call.kv_rows, call.q_len, call.kv_len, call.q_offset)
    unread = call.stood_in if reads_pairs else call.stood_in | _pair_tables(plan)
    scalars, tables = call.scalars, call.tables
    return tile_map(
        plan.program, sizes, scalars, tables, q_tile=q_tile, k_tile=k_tile, unread=unread
    )


@dataclass(frozen=True, slots=True)
class _Classes:
    """Classes of the tiles of a panel and of those of its register tiles (`fine`).

    `proven` are those before a look into tables of rows and keys, `found` those after it.
    """

    proven: TileMap
    found: TileMap
    proven_fine: TileMap
    found_fine: TileMap


def _classes(plan: Plan, call: Call) -> _Classes:
    width, block, rows = plan.layout.width, plan.layout.block_kv, plan.layout.rows
    proven, fine = (_map(plan, call, width, keys, reads_pairs=False) for keys in (block, rows))
    if not _pair_tables(plan) - call.stood_in or not _is_read(call, width, block):
        return _Classes(proven, proven, fine, fine)
    return _Classes(proven, _map(plan, call, width, block), fine, _map(plan, call, width, rows))


def _tiles(plan: Plan, call: Call, shape: Shape, parts: Partition, classes: _Classes) -> Tiles:
    """Return what the panels of a call compute, and what is packed for them."""
    width, block, heads = plan.layout.width, plan.layout.block_kv, call.q.shape[1]
    proven, found = classes.proven, classes.found
    row_tiles = -(-call.q_len // width)
    rows, row_heads = call.q_len * shape.heads_as_rows, heads // shape.heads_as_rows
    panels = int((-(-rows // width)).sum()) * row_heads
    # Query heads that stand in as rows share panels, and so the tiles of these.
    shared = panels / max(1, int(row_tiles.sum()) * heads)
    key_tiles = -(-call.kv_len // block)
    of_last = float((row_tiles * (key_tiles > 0)).sum() / max(1, (row_tiles * key_tiles).sum()))
    last_keys = float((call.kv_len - np.maximum(key_tiles - 1, 0) * block).mean())
    full_keys = (1 - of_last) * block + of_last * last_keys
    # Of a tile that no proof decides, what lies beyond the keys that rows may see is left out.
    seen_keys = (classes.proven_fine.full + classes.proven_fine.partial) * plan.layout.rows
    undecided = max(0.0, seen_keys - proven.full * full_keys)
    partial = min(full_keys, undecided / max(1, proven.partial))
    computed = proven.full * full_keys + (found.full - proven.full + found.partial) * partial
    seen = min(1.0, computed / max(1.0, float((call.kv_len * row_tiles).sum()) * heads))
    items = shape.kv_heads * parts.row_chunks * parts.head_chunks
    # Items of one row chunk see all keys that any row sees; those of many see what a row sees.
    packed = float(call.kv_len.sum()) * items * (seen + (1 - seen) / parts.row_chunks)
    return Tiles(
        panels=panels,
        panel_rows=float(rows.sum()) * row_heads / max(1, panels),
        full=proven.full * shared * (1 - of_last),
        last=proven.full * shared * of_last,
        partial=found.partial * shared,
        found_full=(found.full - proven.full) * shared,
        found_empty=(found.empty - proven.empty) * shared,
        last_keys=last_keys,
        partial_keys=partial,
        rows=min(width, call.q_rows),
        packed_rows=packed,
    )
