"""Sizes of the decode kernel, for the emitter and for whoever deals out a call; needs no LLVM.

A row is one query row of one query head. All rows that read a kv head are served by one pass over
its keys, at most `many` of them by one function at a time. Keys come in tiles, and tiles in chunks,
on an absolute grid that depends on the number of keys and on the spec alone (DET-1).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sdpakit.backends.numba_cpu.context import Ints
from sdpakit.backends.numba_cpu.forks import computed_once
from sdpakit.backends.numba_cpu.isa import Element, Isa
from sdpakit.backends.numba_cpu.layout import PanelLayout

# Keys between two looks at the running maximum. Memory likes long runs: with a quarter as many,
# keys and values take turns so often that 6 % of its speed is lost.
TILE_KEYS = 256
# A strip of columns of v is summed over so many keys before the next one: a few rows, so that what
# is read stays in the nearest cache and in the order of memory, on the whole.
RUN_KEYS = 16

# Bytes ahead of the row that is read: more than arrives within the latency of memory, and little
# enough for the nearest cache.
K_AHEAD_BYTES, V_AHEAD_BYTES = 4096, 8192
MOST_ROWS_AHEAD = TILE_KEYS
FILLED = 8  # addresses of rows that are written at a time
MANY = 4  # rows that share what is loaded of keys and values: more would be short of registers

# A chunk is a sixteenth of the keys, within these limits in tiles: short enough for a few threads
# to share a single head, long enough that starting it (some cache misses) and merging it (a state)
# take a percent.
CHUNKS_WISHED = 16
LEAST_CHUNK_TILES, MOST_CHUNK_TILES = 2, 16


@dataclass(frozen=True)
class DecodeLayout:
    """Shapes of one decode kernel.

    Parameters
    ----------
    panel : PanelLayout
        Sizes of the prefill kernel of the same spec.
    paged : bool
        Whether a table says where each row of keys and values lies.
    """

    panel: PanelLayout
    paged: bool = False

    def named(self, function: str) -> str:
        """Return the name of a function of this kernel."""
        return f"{function}_paged" if self.paged else function

    @computed_once
    def isa(self) -> Isa:
        """What the code runs on."""
        return self.panel.isa

    @computed_once
    def element(self) -> Element:
        """Compute element."""
        return self.panel.element

    @computed_once
    def esz(self) -> int:
        """Bytes of the compute element."""
        return self.panel.esz

    @computed_once
    def lanes(self) -> int:
        """Lanes w of a vector."""
        return self.panel.lanes

    @computed_once
    def vectors(self) -> int:
        """Vectors in a row of weights: the softmax takes one row at a time."""
        return 1

    @computed_once
    def statistics(self) -> bool:
        """Whether the sums for entropy and sum_p2 are kept."""
        return self.panel.statistics

    @computed_once
    def row_maximum(self) -> bool:
        """Whether the largest logit of each row is kept."""
        return self.panel.row_maximum

    @computed_once
    def accumulators(self) -> int:
        """Vectors that a product or a mean carries through its loop: half of the registers."""
        return self.isa.registers // 2

    @computed_once
    def unroll(self) -> int:
        """Vectors of weights that one pass of the softmax takes at a time."""
        return self.isa.registers // 8

    @computed_once
    def vector_bytes(self) -> int:
        """Bytes of one vector of the element."""
        return self.lanes * self.esz

    @computed_once
    def q_row_bytes(self) -> int:
        """Bytes of a row of q: elements, with zeros up to a whole vector."""
        return -(-self.panel.head_dim // self.lanes) * self.vector_bytes

    @computed_once
    def p_row_bytes(self) -> int:
        """Bytes of the weights of a row over one tile."""
        return TILE_KEYS * self.esz

    @computed_once
    def k_row_bytes(self) -> int:
        """Bytes of a row of k in storage."""
        return self.panel.head_dim * self.panel.itemsize

    @computed_once
    def v_row_bytes(self) -> int:
        """Bytes of a row of v in storage."""
        return self.panel.v_head_dim * self.panel.itemsize

    def k_rows_ahead(self, keys: int) -> int:
        """Return the keys between a block of `keys` that is read and the one that is fetched."""
        return min(max(keys, K_AHEAD_BYTES // self.k_row_bytes), MOST_ROWS_AHEAD)

    @computed_once
    def v_rows_ahead(self) -> int:
        """Keys between the value that is read and the one that is fetched."""
        return min(max(RUN_KEYS, V_AHEAD_BYTES // self.v_row_bytes), MOST_ROWS_AHEAD)

    @computed_once
    def rows_ahead(self) -> int:
        """Keys behind a tile whose addresses are wanted as well."""
        return max(self.k_rows_ahead(self.accumulators) + self.accumulators, self.v_rows_ahead)

    @computed_once
    def table_bytes(self) -> int:
        """Bytes of a table of the rows of a tile and behind it."""
        return 8 * (TILE_KEYS + self.rows_ahead + FILLED)

    @computed_once
    def stat_rows(self) -> tuple[str, ...]:
        """Names of the vectors of statistics of a row; all lanes of m, tmax and alpha are equal.

        The last two are there whether or not they are asked for, so that kernels with and without
        them share what only moves states.
        """
        return ("m", "l", "tmax", "alpha", "e1", "p2")

    @computed_once
    def acc_at(self) -> int:
        """Where the accumulator starts in the state of a row."""
        return len(self.stat_rows) * self.vector_bytes

    @computed_once
    def state_bytes(self) -> int:
        """Bytes of the state of a row: statistics, then the accumulator in whole vectors."""
        vectors = -(-self.panel.v_head_dim // self.lanes)
        return -(-(self.acc_at + vectors * self.vector_bytes) // 64) * 64

    def chunk_keys(self, kv_len: int | Ints) -> Ints:
        """Return the keys of a chunk where there are `kv_len` keys in all, or in each entry."""
        wished = -(-kv_len // (CHUNKS_WISHED * TILE_KEYS))
        return np.clip(wished, LEAST_CHUNK_TILES, MOST_CHUNK_TILES) * TILE_KEYS
