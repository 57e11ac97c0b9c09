"""What a call of the prefill kernel should cost: cycles of each part of its steps and panels.

A step is counted loop by loop: instructions of one round (`counts.py`) against what a core issues
in a cycle, times the rounds that its sizes give. What no instruction shows is a handful of numbers
with a meaning, below and in `choice.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sdpakit.backends.numba_cpu.costs.choice import LINE_L2, LOOP_END, STEP_FIXED
from sdpakit.backends.numba_cpu.costs.counts import Work
from sdpakit.backends.numba_cpu.layout import PanelLayout
from sdpakit.backends.numba_cpu.lower_ranges import SCAN_BLOCK
from sdpakit.backends.numba_cpu.machine import LINE, Caches, Core
from sdpakit.backends.numba_cpu.microkernels import PV_STEPS, qk_rounds
from sdpakit.backends.numba_cpu.schedule import ScratchPlan, panel_bytes
from sdpakit.dtypes import DTYPES

# What the driver does for a row of a panel when it closes it: two divisions and some tests.
ROW_FIXED = 30.0
# A call from Python, argument checks included: `bench.latency`, 4 us.
CALL_FIXED = 10_000.0
# Bytes a cycle for one core with a dozen lines in flight: from memory each is some 90 ns away, from
# the cache that all cores share about half of that.
MEMORY_BYTES = 4.0
SHARED_BYTES = 8.0
# Cycles until a line is there that nobody asked for ahead, the place of its page included, as
# `bench.constants` found it: from memory, and from 4 MiB in a cache that neighbours share.
MEMORY_LATENCY = 340.0
SHARED_LATENCY = 260.0

Parts = dict[str, float]


def bytes_per_cycle(size: float, sizes: Caches) -> float:
    """Return how fast one core reads so many bytes again and again, from where they fit."""
    return SHARED_BYTES if size <= sizes.l3 / 2 else MEMORY_BYTES


def first_line(size: float, sizes: Caches) -> float:
    """Return the cycles of a wait for a line of so many bytes that are read again and again."""
    if size <= sizes.l2 / 2:
        return 0.0
    return SHARED_LATENCY if size <= sizes.l3 / 2 else MEMORY_LATENCY


@dataclass(frozen=True)
class StepCosts:
    """Costs of the steps of one kernel.

    Parameters
    ----------
    layout : PanelLayout
        Sizes.
    core : Core
        What a core issues.
    caches : Caches
        Sizes of the caches.
    works : mapping of str to Work
        Loops of all its modules; those of the products by "qk" and "pv", whatever their widths.
    is_fast, mask_only : bool
        Whether logits are scaled products, and whether staged tables are read by the mask alone.
    table_bytes : float
        Size of the staged tables.
    scanned : mapping of str to ndarray
        Tables of rows and keys that are read to find the class of a tile.
    """

    layout: PanelLayout
    core: Core
    caches: Caches
    works: Mapping[str, Work]
    is_fast: bool
    mask_only: bool
    table_bytes: float
    scanned: Mapping[str, np.ndarray[Any, Any]]

    def round(self, function: str, loop: str) -> float:
        """Return the cycles of one round of a loop, 0 where the kernel has none of the name."""
        work = self.works.get(f"{function}:{loop}")
        double = self.layout.element == "float64"
        return 0.0 if work is None else work.cycles(self.core, double=double)

    def step(self, n: int, *, partial: bool) -> Parts:
        """Return the cycles of a step over n keys, PARTIAL or FULL.

        Parameters
        ----------
        n : int
            Keys.
        partial : bool
            Whether the mask is evaluated.
        """
        fused = self.layout.fused and self.is_fast and not partial
        parts = self._fused(n) if fused else self._apart(n, partial=partial)
        parts["products"] += self._values(n)
        staged = partial or not self.mask_only
        parts["tables"] = self._tables(n) if staged else 0.0
        lines = n * (self.layout.k_row_bytes + self.layout.v_head_dim * self.layout.esz) / LINE
        parts["caches"] = LINE_L2 * (lines + self._state_lines())
        parts["steps"] = STEP_FIXED
        return parts

    def _fused(self, n: int) -> Parts:
        """Return phases 1 to 4 where they are one loop."""
        groups = -(-n // self.layout.rows)
        products = groups * (qk_rounds(self.layout) * self.round("step", "qk.d") + LOOP_END)
        rest = n % self.layout.rows * self.round("step", "fused.rest")
        softmax = groups * self.round("step", "phase.fused") + rest
        return {"products": products, "softmax": softmax, "logits": 0.0}

    def _apart(self, n: int, *, partial: bool) -> Parts:
        """Return phases 1 to 4 one by one."""
        groups, blocks = -(-n // self.layout.rows), -(-n // 2)
        rounds = qk_rounds(self.layout)
        tile = rounds * self.round("qk", "qk.d") + self.round("qk", "phase.qk") + LOOP_END
        marked = partial or not self.is_fast
        logits = n * self.round("step", f"phase.logits.{'partial' if partial else 'full'}")
        if not marked and n % self.layout.rows:
            logits = blocks * self.round("step", "phase.max")
        kind = "partial" if marked else "full"
        softmax = blocks * self.round("step", f"phase.exp.{kind}") + LOOP_END
        return {"products": groups * tile, "softmax": softmax, "logits": logits}

    def _values(self, n: int) -> float:
        """Return phase 5; loops of the (at most two) group sizes are counted together."""
        groups = self.layout.v_groups
        if not groups:
            return 0.0
        sizes = sum({size for _, size, _ in groups})
        rounds, rest = divmod(n, PV_STEPS // self.layout.rows)
        keys = rounds * self.round("pv", "pv.keys") + rest * self.round("pv", "pv.keys.rest")
        whole = keys + self.round("pv", "phase.pv")
        return whole * self.layout.v_head_dim / sizes + len(groups) * LOOP_END

    def _tables(self, n: int) -> float:
        """Return the transposition of staged tables, whose lines come from memory."""
        layout = self.layout
        if not layout.dense:
            return 0.0
        vector = -(-n // layout.lanes) * self.round("step", "stage.blocks")
        blocks = layout.vectors * (vector + self.round("step", "stage.vectors"))
        moved = sum(DTYPES[dtype].itemsize for dtype in layout.dense) * n * layout.width
        return blocks + moved / bytes_per_cycle(self.table_bytes, self.caches)

    def look(self, keys: float, rows: int, *, mixed: bool) -> float:
        """Return the cycles of finding the class of a tile in the tables that decide it.

        Parameters
        ----------
        keys : float
            Keys of the tile.
        rows : int
            Its rows.
        mixed : bool
            Whether the tile is PARTIAL: the first row is taken for one that shows it.
        """
        cycles = 0.0
        for name, table in self.scanned.items():
            blocks = table.dtype == np.bool_ and table.strides[-1] in (0, table.itemsize)
            rounds = math.ceil(keys / SCAN_BLOCK) if blocks else keys
            inner = self.round(f"range_{name}", "blocks" if blocks else f"axis{table.ndim - 1}")
            outer = self.round(f"range_{name}", f"axis{table.ndim - 2}")
            read = 1 if mixed else rows
            # A row is asked for when the one before is known not to decide: each waits anew.
            wait = first_line(math.prod(table.shape) * table.itemsize, self.caches)
            cycles += rows * outer + read * (rounds * inner + LOOP_END + wait)
        return cycles

    def _state_lines(self) -> float:
        """Return the lines of the state of a panel that a step brings near and takes away.

        A panel meets all tiles of a group at a stretch.
        """
        layout = self.layout
        together = ScratchPlan.of(layout, 1).tile_group
        return (panel_bytes(layout) + layout.ot_bytes) / LINE / together

    def pack(self, rows: float) -> float:
        """Return the cycles to pack keys and values of so many rows.

        Each line that is written is first brought near and later taken away.
        """
        layout = self.layout
        whole = layout.head_dim // layout.lanes
        k = whole * self.round("pack_k", "copy.k") + self.round("pack_k", "rows.k")
        v = self.round("pack_v", "rows.v")
        read = (layout.head_dim + layout.v_head_dim) * layout.itemsize
        written = (layout.head_dim + layout.v_head_dim) * layout.esz
        return rows * (k + v + LINE_L2 * (read + 2 * written) / LINE)

    def panel(self, rows: int) -> float:
        """Return the cycles to open and close a panel of so many rows."""
        layout = self.layout
        q_blocks, o_blocks = (d // layout.lanes for d in (layout.head_dim, layout.v_head_dim))
        block = q_blocks * self.round("pack_q", "transpose.q") + self.round("pack_q", "vectors")
        cleared = layout.v_head_dim * self.round("begin", "zero.o")
        opened = layout.vectors * (block + cleared)
        block = o_blocks * self.round("unpack_o", "transpose.o") + self.round("unpack_o", "vectors")
        closed = -(-rows // layout.lanes) * block + rows * ROW_FIXED
        moved = 2 * layout.qt_bytes + 3 * layout.ot_bytes
        moved += rows * (layout.head_dim + 2 * layout.v_head_dim) * layout.itemsize
        return opened + closed + LINE_L2 * moved / LINE


@dataclass(frozen=True, slots=True)
class Tiles:
    """What a call computes, counted in panels of W queries.

    Attributes
    ----------
    panels : int
        Panels of all heads and batch entries.
    panel_rows : float
        Rows of one, on the average.
    full, last, partial : float
        Tiles of keys that panels meet: FULL ones that are whole, those at the end of the keys, and
        PARTIAL ones.
    found_full, found_empty : float
        Tiles that are so by what the arrays of the mask hold, which are read to find it.
    last_keys, partial_keys : float
        Keys that are computed of one at the end, and of one that no proof decides, on the average.
    rows : int
        Rows of a tile for which arrays are read.
    packed_rows : float
        Keys that are packed, over all items.
    """

    panels: int
    panel_rows: float
    full: float
    last: float
    partial: float
    found_full: float
    found_empty: float
    last_keys: float
    partial_keys: float
    rows: int
    packed_rows: float


def call_parts(costs: StepCosts, tiles: Tiles) -> Parts:
    """Return the cycles of the parts of a call, over all threads.

    Parameters
    ----------
    costs : StepCosts
        Of its kernel.
    tiles : Tiles
        What it computes.
    """
    parts: Parts = {}
    kinds = (
        (tiles.full, costs.layout.block_kv, False),
        (tiles.last, tiles.last_keys, False),
        (tiles.found_full, tiles.partial_keys, False),
        (tiles.partial, tiles.partial_keys, True),
    )
    for count, keys, partial in kinds:
        if count and keys:
            for name, cycles in _mean_step(costs, keys, partial=partial).items():
                parts[name] = parts.get(name, 0.0) + count * cycles
    whole = costs.look(tiles.partial_keys, tiles.rows, mixed=False)
    mixed = costs.look(tiles.partial_keys, tiles.rows, mixed=True)
    parts["classes"] = (tiles.found_full + tiles.found_empty) * whole + tiles.partial * mixed
    parts["packing"] = costs.pack(tiles.packed_rows)
    parts["rows"] = tiles.panels * costs.panel(math.ceil(tiles.panel_rows))
    parts["call"] = CALL_FIXED
    return parts


def _mean_step(costs: StepCosts, keys: float, *, partial: bool) -> Parts:
    """Return a step over a number of keys that is a mean: between the whole ones around it."""
    low = math.floor(keys)
    share = keys - low
    if share == 0.0:
        return costs.step(low, partial=partial)
    one, two = costs.step(low, partial=partial), costs.step(low + 1, partial=partial)
    return {name: (1 - share) * one[name] + share * two[name] for name in one}
