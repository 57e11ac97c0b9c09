"""What `explain` shows of the cost model: the machine, the tiles and why, and what to expect."""

from __future__ import annotations

from sdpakit.backends.numba_cpu.costs import choice
from sdpakit.backends.numba_cpu.layout import PanelLayout
from sdpakit.backends.numba_cpu.machine import caches, core

_SHOWN_KEYS = (48, 96, 144, 192, 240, 288, 384)
_SHOWN_TILES = 4


def machine_facts(layout: PanelLayout) -> dict[str, str]:
    """Return what the model starts from.

    Parameters
    ----------
    layout : PanelLayout
        Sizes of the kernel.
    """
    sizes, issues = caches(), core(layout.isa)
    levels = (("L1", sizes.l1), ("L2", sizes.l2), ("L3", sizes.l3))
    return {
        "caches": ", ".join(f"{name} {_bytes(size)}" for name, size in levels)
        + f" ({sizes.source})",
        "a_cycle": f"{issues.arithmetic} multiply-adds of {layout.lanes} lanes, "
        f"{issues.loads} loads, {issues.issue} instructions (assumed: {issues.name})",
    }


def tile_facts(layout: PanelLayout) -> dict[str, str]:
    """Return why the tiles of the prefill kernel are what they are, and what others would cost.

    Parameters
    ----------
    layout : PanelLayout
        Sizes of the kernel.
    """
    return {
        "block_kv": _why_keys(layout),
        "other_block_kv": _other_keys(layout),
        "register_tiles": _register_tiles(layout),
    }


def _bytes(size: int) -> str:
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"


def _why_keys(layout: PanelLayout) -> str:
    sizes, pair = caches(), layout.k_tile_bytes + layout.v_tile_bytes
    weights = layout.block_kv * layout.row_bytes
    fit = (
        f"weights {_bytes(weights)}, {100 * weights // sizes.l1} % of L1; "
        f"keys and values {_bytes(pair)}, {100 * pair // sizes.l2} % of L2"
    )
    ours = choice.chosen(layout.widths, core(layout.isa), sizes).keys
    return f"chosen: {fit}" if layout.block_kv == ours else f"asked for (chosen: {ours}): {fit}"


def _other_keys(layout: PanelLayout) -> str:
    """Return what other tiles would cost, in a line."""
    tiles = {
        tile.keys: tile
        for tile in choice.candidates(layout.widths, core(layout.isa), caches())
        if tile.keys in (*_SHOWN_KEYS, layout.block_kv)
    }
    base = choice.key_cycles(layout.widths, core(layout.isa), caches(), layout.block_kv)
    texts = []
    for keys, tile in tiles.items():
        if keys != layout.block_kv:
            too_large = f", {tile.obstacle}" if tile.obstacle else ""
            texts.append(f"{keys} {100 * (tile.cycles / base - 1):+.1f} %{too_large}")
    return "; ".join(texts)


def _register_tiles(layout: PanelLayout) -> str:
    """Return the share of the peak that the register tile and the best others can issue."""
    shares = choice.register_tiles(layout.isa, core(layout.isa))
    shown = dict.fromkeys([layout.isa.tile(), *list(shares)[:_SHOWN_TILES]])
    return "; ".join(f"{rows} x {v} {100 * shares[rows, v]:.1f} %" for rows, v in shown)
