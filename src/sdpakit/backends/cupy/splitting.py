"""How a call is laid out on blocks: rows packed by groups of heads, keys split among blocks.

Both decide by the shape of the call alone, never by the machine, so that results have the same bits
everywhere (DET-1). `batch_invariant` forbids both: then a row is computed as in any other call
(DET-2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sdpakit.passes.intervals import reads

if TYPE_CHECKING:
    from sdpakit.backends.base import Call
    from sdpakit.backends.cupy.families import Geometry
    from sdpakit.ir.program import Program

# Blocks that fill the largest GPUs of today twice: keys are split until there are so many.
_ENOUGH_BLOCKS = 264
# Tiles of keys that a block has at least: below, merging costs as much as it gains.
_FEWEST_TILES = 4
_HEAD = frozenset({"h"})


@dataclass(frozen=True, slots=True)
class Layout:
    """Blocks of a call.

    Attributes
    ----------
    packed : bool
        Whether the rows of a block are those of all heads of a group.
    q_tiles : int
        Blocks for the rows of a head, or of a group of packed heads.
    splits, keys_of_split : int
        Parts of the keys, and keys of a part.
    blocks : int
        All blocks.
    """

    packed: bool
    q_tiles: int
    splits: int
    keys_of_split: int
    blocks: int


def lay_out(program: Program, call: Call, geometry: Geometry, *, whole: bool = False) -> Layout:
    """Return the blocks of a call.

    Parameters
    ----------
    program : Program
        What is called; a mask that differs between heads keeps them apart.
    call : Call
        The call.
    geometry : Geometry
        Of the kernel.
    whole : bool
        Neither pack nor split.
    """
    heads, kv_heads, rows = call.q.shape[1], call.k.shape[1], call.q_rows
    whole = whole or call.batch_invariant
    group = heads // kv_heads if kv_heads else 1
    packed = not whole and group > 1 and 2 * rows <= geometry.block_q
    packed = packed and not reads(program.mask, _HEAD)
    packed_rows, packed_heads = (rows * group, kv_heads) if packed else (rows, heads)
    q_tiles = -(-packed_rows // geometry.block_q)
    blocks = call.batch * packed_heads * q_tiles
    tiles = -(-call.kv_rows // geometry.block_k)
    splits = 1
    if not whole and blocks and rows <= geometry.block_q:
        splits = max(1, min(-(-_ENOUGH_BLOCKS // blocks), tiles // _FEWEST_TILES))
    tiles_of_split = -(-tiles // splits)
    splits = max(1, -(-tiles // max(1, tiles_of_split)))
    keys_of_split = tiles_of_split * geometry.block_k
    return Layout(packed, q_tiles, splits, keys_of_split, blocks * splits)
