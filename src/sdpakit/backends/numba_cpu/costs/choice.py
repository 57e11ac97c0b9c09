"""Keys of a tile, chosen by what a step costs; known before any code is emitted.

A step pays some costs once, however many keys it has, so long tiles are cheaper for each key; short
ones leave less to a mask and fit into smaller caches. The bits of a result depend on the tile, so
machines should not differ for next to nothing: the usual tile stays where it fits and is nearly the
best.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from sdpakit.backends.numba_cpu.isa import Isa
from sdpakit.backends.numba_cpu.machine import LINE, Caches, Core, caches, core

USUAL_KEYS = 192
MOST_KEYS = 384
# What the usual tile may cost more than the best one: the model missed measured ratios of tiles by
# up to two per cent.
INDIFFERENT = 0.02

# Cycles from the last round of a loop to the first useful ones behind it: the jump out is guessed
# wrongly, and the core fills again. 16 to 20 by the tables.
LOOP_END = 20.0
# Cycles that a line from the second-level cache costs beside arithmetic that never waits for it: it
# takes the port of the first-level cache while it is stored there. `bench.constants` found -1 to 2
# with neighbours about, and both numbers together within a few per cent of a register tile.
LINE_L2 = 1.5
# The statistics of a step are one chain of some 20 operations; the calls of its parts, and what the
# driver decides before it, are some hundred instructions.
STEP_FIXED = 200.0

# Multiply-adds that a weight takes the time of, from product to sum; and those of a mask.
_SOFTMAX_SLOTS = 13
_MASK_SLOTS = 8
_REFERENCE_WIDTH = 64  # of q and k
_REFERENCE_KEYS = 2048  # of a causal call, for which and without a mask the tile is chosen


@dataclass(frozen=True, slots=True)
class Widths:
    """Sizes that a tile is chosen for.

    Attributes
    ----------
    isa : Isa
        What the code runs on.
    esz : int
        Bytes of the compute element.
    head_dim, v_head_dim : int
        D and Dv.
    """

    isa: Isa
    esz: int
    head_dim: int
    v_head_dim: int

    @property
    def row_bytes(self) -> int:
        """Bytes of one weight for each query of a panel."""
        return self.isa.tile()[1] * self.isa.vector_bytes

    @property
    def key_bytes(self) -> int:
        """Bytes of a packed key and its value."""
        return (self.head_dim + self.v_head_dim) * self.esz


@dataclass(frozen=True, slots=True)
class Tile:
    """A number of keys that a tile could have.

    Attributes
    ----------
    keys : int
        A multiple of the rows of the register tile.
    cycles : float
        What a key costs a panel.
    obstacle : str
        Why the tile is not taken, whatever it costs; empty = it fits.
    """

    keys: int
    cycles: float
    obstacle: str


def block_kv(widths: Widths) -> int:
    """Return the keys of a tile on this machine.

    Parameters
    ----------
    widths : Widths
        Sizes of the kernel.
    """
    return chosen(widths, core(widths.isa), caches()).keys


@functools.lru_cache(maxsize=256)
def chosen(widths: Widths, machine: Core, sizes: Caches) -> Tile:
    """Return the tile for a machine: a function of the arguments alone.

    Parameters
    ----------
    widths : Widths
        Sizes of the kernel.
    machine, sizes
        The machine.
    """
    tiles = candidates(widths, machine, sizes)
    fitting = [tile for tile in tiles if not tile.obstacle] or tiles[:1]
    best = min(fitting, key=lambda tile: tile.cycles)
    usual = [tile for tile in fitting if tile.keys == USUAL_KEYS]
    near = [tile for tile in usual if tile.cycles <= (1 + INDIFFERENT) * best.cycles]
    return near[0] if near else best


def candidates(widths: Widths, machine: Core, sizes: Caches) -> list[Tile]:
    """Return every tile up to `MOST_KEYS`, the shortest first."""
    rows = widths.isa.tile()[0]
    return [
        Tile(keys, key_cycles(widths, machine, sizes, keys), _obstacle(widths, sizes, keys))
        for keys in range(rows, MOST_KEYS + 1, rows)
    ]


def key_cycles(widths: Widths, machine: Core, sizes: Caches, keys: int) -> float:
    """Return the cycles that a key of a tile costs a panel.

    Half under a causal mask and half without one; see `chosen` for the parameters.
    """
    rows, vectors = widths.isa.tile()
    product = 1 if widths.isa.fma else 2
    slots = product * (widths.head_dim + widths.v_head_dim) + _SOFTMAX_SLOTS
    arithmetic = keys * vectors * slots / machine.arithmetic
    stores = keys * vectors / machine.stores + keys / rows * LOOP_END
    lines = LINE_L2 * keys * widths.key_bytes / LINE
    # Once a step: the accumulator comes into registers and goes; once a group of tiles, the state.
    accumulator = widths.v_head_dim * vectors * (1 / machine.arithmetic + 1 / machine.stores)
    ends = -(-widths.v_head_dim // rows) * LOOP_END
    state = (widths.head_dim + 2 * widths.v_head_dim) * widths.row_bytes
    moved = state / tile_group(keys * widths.key_bytes, sizes)
    once = accumulator + ends + LINE_L2 * moved / LINE + STEP_FIXED
    # Of a causal call a panel meets half of the keys, and half a tile of them with the mask.
    masked = keys / 2 * keys * vectors * _MASK_SLOTS / machine.arithmetic / _REFERENCE_KEYS
    return (arithmetic + stores + lines + once + masked) / keys


def tile_group(pair_bytes: int, sizes: Caches) -> int:
    """Return how many tiles are packed at a time: no bit depends on it.

    A group, and rows fetched for the next one, stay in the second-level cache while the panels
    stream by. A step fetches the state of the next panel, so one tile at a time will do.

    Parameters
    ----------
    pair_bytes : int
        Bytes of a packed K tile and its V tile.
    sizes : Caches
        The machine.
    """
    return max(1, sizes.l2 // 8 // pair_bytes)


def register_tiles(isa: Isa, machine: Core) -> dict[tuple[int, int], float]:
    """Return the share of its peak that each register tile of an ISA can issue, the best first.

    Parameters
    ----------
    isa : Isa
        Registers.
    machine : Core
        What a core issues.

    Returns
    -------
    dict of (rows, vectors) to float
        Tiles whose accumulators and queries fit into the registers beside the two or three that
        LLVM needs for broadcasts and itself (with fewer it spills), by their share: what the
        multiply-adds take of the longest of them, their loads and their latency, and of the end of
        the tile.
    """
    found = {}
    for vectors in range(1, 5):
        for rows in range(1, isa.registers):
            count = rows * vectors
            if count + vectors + 1 + isa.registers // 16 > isa.registers:
                continue
            products = count / machine.arithmetic
            loads = (rows + vectors) / machine.loads
            issue = (count + rows + vectors) / machine.issue
            needed = max(products, loads, issue, machine.latency)
            # What a tile ends with: accumulators are stored, and the loop is left.
            end = (count / machine.stores + LOOP_END) / _REFERENCE_WIDTH
            found[rows, vectors] = products / (needed + end)
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _obstacle(widths: Widths, sizes: Caches, keys: int) -> str:
    """Return what does not fit; weights need company in their cache, and so do keys and values."""
    if keys * widths.row_bytes > sizes.l1 * 3 // 4:
        return "weights over 3/4 of L1"
    return "keys and values over half of L2" if keys * widths.key_bytes > sizes.l2 // 2 else ""
