"""Sizes of the backward kernel: tiles of keys, state of a panel, scratch of a thread.

A panel is W query rows of one head, one in each lane. A block of up to `panels` of them meets the
tiles of keys one after another; the weights and the gradients of the logits of all its panels are
held for one tile, so that dK and dV of the tile are summed over the whole block in registers.
"""

from __future__ import annotations

from dataclasses import dataclass

from sdpakit.backends.numba_cpu.forks import computed_once
from sdpakit.backends.numba_cpu.layout import PanelLayout

# A packed tile, the state of the panels of a block and their weights: a second-level cache of 512
# KiB holds most of it, and each block packs every tile that it sees, so larger ones do so less
# often. Speed was the same, within 2 %, for 48 or 96 keys and 8 to 24 panels.
STATE_BYTES = 960 * 1024
RUN_BYTES = 16 * 1024  # half of a first-level cache of 32 KiB
MAX_BLOCK_KV = 96
MIN_BLOCK_KV = 24
MIN_PANELS = 4
MAX_PANELS = 12


def round_up(number: int, multiple: int) -> int:
    """Return the least multiple that is >= number."""
    return -(-number // multiple) * multiple


@dataclass(frozen=True)
class BackwardLayout:
    """Shapes of one backward kernel.

    Parameters
    ----------
    keys : PanelLayout
        Products with K as broadcast rows of width D: S^T = K Q^T. Its block_kv is that of all.
    values : PanelLayout
        Products with V as broadcast rows of width Dv, dP^T = V dO^T, and with columns of K, dQ.
    """

    keys: PanelLayout
    values: PanelLayout

    @computed_once
    def columns(self) -> int:
        """Columns of dK or dV that one register tile of an outer product holds."""
        return self.keys.width

    def blocks(self, width: int) -> int:
        """Return how many register tiles hold a row of this width."""
        return -(-width // self.columns)

    def sum_row_bytes(self, width: int) -> int:
        """Return the bytes of one row of the sums of dK or dV, whole register tiles."""
        return self.blocks(width) * self.keys.row_bytes

    # --- one packed tile: rows of K, rows of V, columns of K ---

    @computed_once
    def v_rows_at(self) -> int:
        """Offset of the rows of V."""
        return self.keys.k_tile_bytes

    @computed_once
    def k_columns_at(self) -> int:
        """Offset of the columns of K."""
        return self.v_rows_at + self.values.k_tile_bytes

    @computed_once
    def tile_bytes(self) -> int:
        """Bytes of a packed tile."""
        return self.k_columns_at + self.values.v_tile_bytes

    # --- state of one panel ---

    @computed_once
    def panel_parts(self) -> dict[str, int]:
        """Offsets of the parts of a panel, and its size under "end".

        qt [D][W], dot [Dv][W] (dO / l), dqt [D][W], q_rows and do_rows [columns / W][W][W] for the
        outer products, and rows of W numbers: base (the maximum), delta (of dO / l).
        """
        layout, row = self.keys, self.keys.row_bytes
        sizes = {
            "qt": layout.qt_bytes,
            "dot": self.values.qt_bytes,
            "dqt": layout.qt_bytes,
            "q_rows": self.blocks(layout.head_dim) * layout.width * row,
            "do_rows": self.blocks(layout.v_head_dim) * layout.width * row,
            "base": row,
            "delta": row,
        }
        parts, at = {}, 0
        for name, size in sizes.items():
            parts[name] = at
            at += round_up(size, 64)
        return parts | {"end": at}

    @computed_once
    def panel_bytes(self) -> int:
        """Bytes of the state of a panel."""
        return self.panel_parts["end"]

    @computed_once
    def pairs_bytes(self) -> int:
        """Bytes of the weights of a panel and of the gradients of its logits, a tile of each."""
        return 2 * self.keys.tile_bytes

    @computed_once
    def panels(self) -> int:
        """Panels of a block."""
        room = STATE_BYTES - self.tile_bytes
        return max(1, min(MAX_PANELS, room // (self.panel_bytes + self.pairs_bytes)))

    @computed_once
    def run_panels(self) -> int:
        """Panels that an outer product takes at a time: their rows of one block stay near."""
        return max(1, RUN_BYTES // (self.keys.width * self.keys.row_bytes))

    @computed_once
    def scratch(self) -> dict[str, int]:
        """Offsets into the scratch of a thread, and its size under "end"."""
        layout = self.keys
        sizes = {
            "tile": self.tile_bytes,
            "staged": len(layout.dense) * layout.tile_bytes,
            "lanes": max(layout.qt_bytes, self.values.qt_bytes),  # out of a panel, transposed
            "factors": 4 * layout.row_bytes,  # of q, of dO, ones, of dQ
            "panels": self.panels * self.panel_bytes,
            "pairs": self.panels * self.pairs_bytes,
            "ranges": self.panels * 8 * PANEL_FIELDS,
        }
        parts, at = {}, 0
        for name, size in sizes.items():
            parts[name] = at
            at += round_up(size, 64)
        return parts | {"end": at}


# int64 for each panel of a block: key ranges (4), first and end row of its step in the tile, flags,
# and head, row, rows.
PANEL_FIELDS = 10


def backward_layout(panel: PanelLayout, wish: int | None) -> BackwardLayout:
    """Return the layout for the operands of a forward layout.

    Parameters
    ----------
    panel : PanelLayout
        ISA, dtypes, widths and staged tables.
    wish : int or None
        Keys of a tile; None chooses.
    """
    block = wish or MAX_BLOCK_KV
    found = _of(panel, block)
    while wish is None and block > MIN_BLOCK_KV and found.panels < MIN_PANELS:
        block //= 2
        found = _of(panel, block)
    return found


def _of(panel: PanelLayout, block: int) -> BackwardLayout:
    def layout(head_dim: int, v_head_dim: int, dense: tuple[str, ...]) -> PanelLayout:
        return PanelLayout(
            isa=panel.isa,
            dtype=panel.dtype,
            out_dtype=panel.dtype,
            head_dim=head_dim,
            v_head_dim=v_head_dim,
            dense=dense,
            block_kv_wish=block,
        )

    d, dv = panel.head_dim, panel.v_head_dim
    return BackwardLayout(layout(d, dv, panel.dense), layout(dv, d, ()))
