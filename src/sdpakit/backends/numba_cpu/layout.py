"""Sizes of packed tiles and scratch, for the emitter and for the driver; needs no LLVM.

A panel is W = NV * w queries, one in each lane of NV vectors. Keys come in tiles of up to Bc on the
absolute grid of multiples of Bc, so that the bits of a row never depend on how rows are dealt out
to workers (DET-1).
"""

from __future__ import annotations

from dataclasses import dataclass

from sdpakit.backends.numba_cpu.costs import choice
from sdpakit.backends.numba_cpu.costs.choice import Widths
from sdpakit.backends.numba_cpu.forks import computed_once
from sdpakit.backends.numba_cpu.isa import Element, Isa
from sdpakit.dtypes import ACCUM_DTYPE, DTYPES


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


@dataclass(frozen=True)
class PanelLayout:
    """Shapes of one kernel.

    Parameters
    ----------
    isa : Isa
        What the code runs on.
    dtype, out_dtype : str
        Storage of q, k, v and of out.
    head_dim, v_head_dim : int
        D >= 1 and Dv >= 0.
    statistics : bool
        Whether the sums for entropy and sum_p2 are kept.
    row_maximum : bool
        Whether the largest logit of each row is kept.
    dense : tuple of str
        Storage dtypes of the tables [..., q, k] that are staged (transposed) for each tile.
    block_kv_wish : int or None
        Keys a tile; None lets the cost model choose for this machine. Rounded down to a multiple of
        R.
    """

    isa: Isa
    dtype: str
    out_dtype: str
    head_dim: int
    v_head_dim: int
    statistics: bool = False
    row_maximum: bool = True
    dense: tuple[str, ...] = ()
    block_kv_wish: int | None = None

    @computed_once
    def element(self) -> Element:
        """Compute element (NUM-1)."""
        return "float64" if ACCUM_DTYPE[self.dtype] == "float64" else "float32"

    @computed_once
    def esz(self) -> int:
        """Bytes of the compute element."""
        return 8 if self.element == "float64" else 4

    @computed_once
    def itemsize(self) -> int:
        """Bytes of a stored element of q, k, v."""
        return DTYPES[self.dtype].itemsize

    @computed_once
    def lanes(self) -> int:
        """Lanes w of a vector."""
        return self.isa.lanes(self.element)

    @computed_once
    def rows(self) -> int:
        """Rows R of the register tile."""
        return self.isa.tile()[0]

    @computed_once
    def vectors(self) -> int:
        """Vectors NV of a panel."""
        return self.isa.tile()[1]

    @computed_once
    def width(self) -> int:
        """Queries W of a panel."""
        return self.vectors * self.lanes

    @computed_once
    def row_bytes(self) -> int:
        """Bytes of one row of W values."""
        return self.width * self.esz

    @computed_once
    def block_kv(self) -> int:
        """Keys Bc of a tile."""
        wish = self.block_kv_wish or choice.block_kv(self.widths)
        return max(wish // self.rows, 1) * self.rows

    @computed_once
    def widths(self) -> Widths:
        """What the keys of a tile are chosen for."""
        return Widths(self.isa, self.esz, self.head_dim, self.v_head_dim)

    @computed_once
    def k_row_bytes(self) -> int:
        """Stride of packed K rows.

        R rows at a multiple of 1 KiB would share too few sets of the first-level cache.
        """
        plain = self.head_dim * self.esz
        return plain + 64 if plain % 1024 == 0 else plain

    @computed_once
    def k_tile_bytes(self) -> int:
        """Bytes of one packed K tile."""
        return _round_up(self.block_kv * self.k_row_bytes, 64)

    @computed_once
    def v_groups(self) -> tuple[tuple[int, int, int], ...]:
        """Groups (d0, size, byte offset) of packed V, sizes as equal as can be, the larger first.

        A group is [Bc][size]. Behind it a vector of slack: rows are stored a whole vector at a
        time.
        """
        if self.v_head_dim == 0:
            return ()
        count = -(-self.v_head_dim // self.rows)
        base, larger = divmod(self.v_head_dim, count)
        groups, d0, at = [], 0, 0
        for g in range(count):
            size = base + (g < larger)
            groups.append((d0, size, at))
            d0 += size
            at += self.v_group_bytes(size)
        return tuple(groups)

    def v_group_bytes(self, size: int) -> int:
        """Bytes from one group of this size to the next."""
        return (self.block_kv * size + self.lanes) * self.esz

    @computed_once
    def v_tile_bytes(self) -> int:
        """Bytes of one packed V tile."""
        return _round_up(sum(self.v_group_bytes(size) for _, size, _ in self.v_groups), 64)

    @computed_once
    def qt_bytes(self) -> int:
        """Bytes of the packed queries [D][W] of a panel."""
        return _round_up(self.head_dim * self.row_bytes, 64)

    @computed_once
    def ot_bytes(self) -> int:
        """Bytes of the accumulator [Dv][W] of a panel."""
        return _round_up(self.v_head_dim * self.row_bytes, 64)

    @computed_once
    def tile_bytes(self) -> int:
        """Bytes of one tile [Bc + R][W] of weights or of a staged table."""
        return _round_up((self.block_kv + self.rows) * self.row_bytes, 64)

    @computed_once
    def p_bytes(self) -> int:
        """Bytes of the scratch `p` of a worker: the weights, then the staged tables."""
        return self.tile_bytes * (1 + len(self.dense))

    @computed_once
    def fused(self) -> bool:
        """Whether tiles of plain logits are tried without a look at their maxima (`fused.py`).

        It gains nothing where `scalef` makes the weights of the phases one by one cheaper.
        """
        return not (self.row_maximum or self.statistics or self.isa.scalef)

    @computed_once
    def stat_rows(self) -> tuple[str, ...]:
        """Names of the rows of `st`, each W values; the first lane of "missed" counts tiles."""
        rows = ["m", "l", "tmax", "alpha"]
        rows += ["missed"] if self.fused else []
        return (*rows, *(("e1", "p2") if self.statistics else ()))

    @computed_once
    def st_bytes(self) -> int:
        """Bytes of the statistics of a panel."""
        return _round_up(len(self.stat_rows) * self.row_bytes, 64)

    @computed_once
    def staging_bytes(self) -> int:
        """Bytes of the scratch of `pack_v`: one row of V as compute elements."""
        return _round_up(max(self.v_head_dim, 1) * self.esz, 64)
