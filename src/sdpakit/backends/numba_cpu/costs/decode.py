"""What a call of the decode kernel should cost: reading keys and values, and what that cannot hide.

Memory is asked for what comes next in every round, so reading and arithmetic go on at once and the
longer one counts. What a chunk begins and ends with adds to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sdpakit.backends.numba_cpu.costs.choice import LINE_L2, LOOP_END, STEP_FIXED
from sdpakit.backends.numba_cpu.costs.counts import Work
from sdpakit.backends.numba_cpu.costs.prefill import CALL_FIXED, MEMORY_BYTES, Parts
from sdpakit.backends.numba_cpu.decode.layout import MANY, TILE_KEYS, DecodeLayout
from sdpakit.backends.numba_cpu.decode.means import RUN_KEYS
from sdpakit.backends.numba_cpu.machine import LINE, Caches, Core

# A chunk begins with lines that nobody asked for ahead: about ten waits for memory of 100 ns.
CHUNK_FIXED = 2_500.0
# Bytes a cycle from the cache that all cores share, for one core with all its lines in flight.
SHARED_BYTES = 8.0


@dataclass(frozen=True, slots=True)
class DecodeWork:
    """What a call computes.

    Attributes
    ----------
    rows : int
        Rows that read one kv head.
    tiles, partial : float
        Tiles that are met, over all kv heads, and how many of them evaluate the mask.
    chunks : int
        Chunks of all kv heads.
    kv_bytes : int
        Bytes of keys and values that are read.
    """

    rows: int
    tiles: float
    partial: float
    chunks: int
    kv_bytes: float


@dataclass(frozen=True)
class DecodeCosts:
    """Costs of the decode kernel of one spec; see `prefill.StepCosts`."""

    layout: DecodeLayout
    core: Core
    caches: Caches
    works: Mapping[str, Work]

    def bytes_per_cycle(self, kv_bytes: float) -> float:
        """Return how fast so many bytes are read, from where they fit."""
        return SHARED_BYTES if kv_bytes <= self.caches.l3 / 2 else MEMORY_BYTES

    def parts(self, work: DecodeWork, bytes_per_cycle: float) -> Parts:
        """Return the cycles of the parts of a call, over all threads.

        Parameters
        ----------
        work : DecodeWork
            What it computes.
        bytes_per_cycle : float
            What memory yields to one core.
        """
        reading, computing = work.kv_bytes / bytes_per_cycle, self.computing(work)
        states = work.rows * self.layout.state_bytes / LINE
        chunk = CHUNK_FIXED + 3 * LINE_L2 * states + work.rows * STEP_FIXED
        return {
            "reading": reading,
            "arithmetic beyond it": max(0.0, computing - reading),
            "chunks": work.chunks * chunk,
            "call": CALL_FIXED,
        }

    def computing(self, work: DecodeWork) -> float:
        """Return the cycles of the arithmetic, over all threads."""
        plain = (work.tiles - work.partial) * self._tile(work.rows, partial=False)
        return plain + work.partial * self._tile(work.rows, partial=True)

    def _round(self, function: str, loop: str) -> float:
        work = self.works.get(f"{function}:{loop}")
        double = self.layout.element == "float64"
        return 0.0 if work is None else work.cycles(self.core, double=double)

    def _tile(self, rows: int, *, partial: bool) -> float:
        """Return the cycles of one tile for all rows, `MANY` at a time."""
        many, rest = divmod(rows, MANY)
        cycles = many * self._pass(MANY, MANY, partial=partial)
        if rest:  # functions for many rows serve fewer as well, and take as long
            cycles += self._pass(1 if rest == 1 else MANY, rest, partial=partial)
        return cycles + STEP_FIXED

    def _pass(self, wide: int, rows: int, *, partial: bool) -> float:
        """Return the cycles of one tile for the rows of one pass."""
        layout, panel = self.layout, self.layout.panel
        kind = "partial" if partial else "full"
        keys = layout.accumulators // wide
        unroll = max(2, LINE // (layout.lanes * panel.itemsize))
        rounds = panel.head_dim // (unroll * layout.lanes)
        block = rounds * self._round(f"products_{wide}", "width")
        products = TILE_KEYS / keys * (block + self._round(f"products_{wide}", "keys"))
        vectors = TILE_KEYS / layout.lanes
        exponentials = self._round("soften", f"phase.exp.{kind}") or self._round(
            "soften", "phase.exp.partial"
        )
        softened = vectors * self._round("soften", f"logits.{kind}") + 2 * LOOP_END + STEP_FIXED
        softened += vectors / layout.unroll * exponentials
        strips = panel.v_head_dim / (min(layout.accumulators // wide, 8) * layout.lanes)
        strip = RUN_KEYS * self._round(f"means_{wide}", "keys") + LOOP_END
        run = strips * (strip + self._round(f"means_{wide}", "strips"))
        means = TILE_KEYS / RUN_KEYS * (run + self._round(f"means_{wide}", "runs"))
        return products + rows * softened + means
