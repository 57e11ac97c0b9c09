"""What a call of the decode kernel should cost: reading keys and values, and what that cannot hide.

The products ask memory for what comes next in every round, so reading and their arithmetic go on at
once and the longer one counts. The softmax of a tile asks for nothing, and so does what a chunk
begins and ends with: these add to it.

A call whose keys lie in pages costs here what one with keys at one stride does: that its rows are
looked up in a table, which is filled first, is not counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sdpakit.backends.numba_cpu.costs.choice import LINE_L2, LOOP_END, STEP_FIXED
from sdpakit.backends.numba_cpu.costs.counts import Work
from sdpakit.backends.numba_cpu.costs.prefill import CALL_FIXED, MEMORY_LATENCY, Parts
from sdpakit.backends.numba_cpu.decode.layout import MANY, RUN_KEYS, TILE_KEYS, DecodeLayout
from sdpakit.backends.numba_cpu.machine import LINE, Core

# A tile goes from keys to values and back: each time the stream begins anew.
TILE_WAITS = 2
# A chunk begins with queries, states and the description of the call.
CHUNK_WAITS = 10


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
    works: Mapping[str, Work]

    def parts(self, work: DecodeWork, rate: float) -> Parts:
        """Return the cycles of the parts of a call, over all threads.

        Parameters
        ----------
        work : DecodeWork
            What it computes.
        rate : float
            Bytes a cycle that memory yields to one core.
        """
        reading, hidden = work.kv_bytes / rate, self.computing(work)
        whole, partial = work.tiles - work.partial, work.partial
        softmax = whole * self._softmax(partial=False) + partial * self._softmax(partial=True)
        states = work.rows * self.layout.state_bytes / LINE
        chunk = CHUNK_WAITS * MEMORY_LATENCY + 3 * LINE_L2 * states + work.rows * STEP_FIXED
        return {
            "reading": reading,
            "products beyond it": max(0.0, hidden - reading),
            "softmax": work.rows * softmax,
            "tiles": work.tiles * (STEP_FIXED + TILE_WAITS * MEMORY_LATENCY),
            "chunks": work.chunks * chunk,
            "call": CALL_FIXED,
        }

    def computing(self, work: DecodeWork) -> float:
        """Return the cycles of the products, over all threads: `MANY` rows at a time."""
        many, rest = divmod(work.rows, MANY)
        cycles = many * self._products(MANY)
        if rest:  # functions for many rows serve fewer as well, and take as long
            cycles += self._products(1 if rest == 1 else MANY)
        return work.tiles * cycles

    def _round(self, function: str, loop: str) -> float:
        work = self.works.get(f"{function}:{loop}")
        double = self.layout.element == "float64"
        return 0.0 if work is None else work.cycles(self.core, double=double)

    def _products(self, rows: int) -> float:
        """Return the cycles of both products of a tile for the rows of one pass."""
        layout, panel = self.layout, self.layout.panel
        keys = layout.accumulators // rows
        unroll = max(2, LINE // (layout.lanes * panel.itemsize))
        rounds = panel.head_dim // (unroll * layout.lanes)
        block = rounds * self._round(f"products_{rows}", "width")
        logits = TILE_KEYS / keys * (block + self._round(f"products_{rows}", "keys"))
        strips = panel.v_head_dim / (min(keys, 8) * layout.lanes)
        strip = RUN_KEYS * self._round(f"means_{rows}", "keys") + LOOP_END
        run = strips * (strip + self._round(f"means_{rows}", "strips"))
        return logits + TILE_KEYS / RUN_KEYS * (run + self._round(f"means_{rows}", "runs"))

    def _softmax(self, *, partial: bool) -> float:
        """Return the cycles of the softmax of a row of a tile."""
        kind = "partial" if partial else "full"
        vectors = TILE_KEYS / self.layout.lanes
        # Without a mask logits of an expression have one kind of exponentials, which is the other.
        exponentials = [self._round("soften", f"phase.exp.{name}") for name in (kind, "partial")]
        block = exponentials[0] or exponentials[1]
        passes = vectors * self._round("soften", f"logits.{kind}")
        return passes + vectors / self.layout.unroll * block + 2 * LOOP_END + STEP_FIXED
