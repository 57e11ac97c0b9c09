"""Dense tables [.., q, k] brought into the layout of the weights, one tile at a time.

Queries are the lanes, while such a table (a bias, a boolean mask) is contiguous along the keys.
Reading it a lane at a time would cost more than the products; transposing blocks of w queries by w
keys costs a few instructions for each vector.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llvmlite import ir

from sdpakit.backends.numba_cpu import storage, vecmath
from sdpakit.backends.numba_cpu.irtypes import Value
from sdpakit.backends.numba_cpu.layout import PanelLayout
from sdpakit.backends.numba_cpu.vector import VectorEmitter

Locate = Callable[[VectorEmitter, Value, Value, Value], tuple[Value, Value, Value]]


@dataclass(frozen=True)
class Staged:
    """A table that is staged.

    Attributes
    ----------
    dtype : str
        "bool" or a float dtype.
    locate : callable
        (emitter, ctx, b, h) -> address of the element of row 0 and key 0, byte stride of rows, byte
        stride of keys (i64).
    for_mask : bool
        Whether only the mask reads it, so that tiles without masking need not stage it.
    """

    dtype: str
    locate: Locate
    for_mask: bool


def place(
    e: VectorEmitter, layout: PanelLayout, table: Staged, tile: Value, key: Value, v: int | Value
) -> Value:
    """Return where a tile holds vector v of a key.

    Floats lie as the weights do, [Bc + R][W]. Booleans take a byte each, [NV][Bc + R][w], so that
    several keys fill a vector.
    """
    vector = e.c(v) if isinstance(v, int) else v
    if table.dtype == "bool":
        keys = e.iadd(e.imul(vector, e.c(layout.block_kv + layout.rows)), key)
        return e.offset(tile, e.imul(keys, e.c(e.w)))
    row = e.imul(key, e.c(layout.row_bytes))
    return e.offset(tile, e.iadd(row, e.imul(vector, e.c(e.w * e.esz))))


def read(e: VectorEmitter, table: Staged, address: Value) -> Value:
    """Return one vector of a staged table: <w x i1> of a boolean one, else the element."""
    if table.dtype != "bool":
        return e.load(address)
    return e.icmp("!=", e.load(address, e.IV(8), align=1), e.iconst(0, 8))


class StagingLoop:
    """Emits the transposition of one table into its tile.

    Parameters
    ----------
    e : VectorEmitter
        Emitter at the right position.
    layout : PanelLayout
        Sizes.
    table : Staged
        What is staged.
    arg : mapping
        Arguments of the panel step by name.
    tile : i64
        Address of the tile, see `place`.
    """

    def __init__(
        self,
        e: VectorEmitter,
        layout: PanelLayout,
        table: Staged,
        arg: dict[str, Value],
        tile: Value,
    ) -> None:
        self.e, self.layout, self.table, self.arg, self.tile = e, layout, table, arg, tile
        base, self.q_stride, self.k_stride = table.locate(e, arg["ctx"], arg["b"], arg["h"])
        self.base = e.iadd(base, e.imul(arg["j0"], self.k_stride))
        self.itemsize = storage.itemsize(table.dtype)

    def emit(self) -> None:
        """Emit blocks where keys are adjacent and fill a vector, single elements elsewhere."""
        e, n = self.e, self.arg["n"]
        adjacent = e.icmp("==", self.k_stride, e.c(self.itemsize))
        enough = e.icmp("<=", e.c(e.w), n)
        with e.b.if_else(e.and_(adjacent, enough)) as (on_true, on_false):
            with on_true:
                e.loop(e.c(self.layout.vectors), self._blocks, (), "stage.vectors", guard=False)
            with on_false:
                e.loop(n, self._elements, (), "stage.elements", guard=False)

    def next_rows(self) -> tuple[Value, Value]:
        """Return where the rows of the next panel start, and the bytes from one to the next."""
        row = self.e.iadd(self.arg["i0"], self.e.c(self.layout.width))
        return self.e.iadd(self.base, self.e.imul(row, self.q_stride)), self.q_stride

    def _row(self, lane: Value) -> Value:
        """Return the address of key 0 of the row of a lane; lanes past the last row repeat it."""
        e = self.e
        last = e.isub(self.arg["nq"], e.c(1))
        row = e.iadd(self.arg["i0"], e.imin(lane, last))
        return e.iadd(self.base, e.imul(row, self.q_stride))

    def _blocks(self, v: Value, _: list[Value]) -> Sequence[Value]:
        """Transpose all keys for the w lanes of a vector, w keys at a time.

        Blocks after the first start where those of the memory do, lest rows that lie some KiB apart
        are read over two cache lines, which share one set of the first-level cache with the others.
        The last block is moved back to end with the last key.
        """
        e, n = self.e, self.arg["n"]
        rows = [self._row(e.iadd(e.imul(v, e.c(e.w)), e.c(r))) for r in range(e.w)]
        before = self._keys_before_a_block()
        last = e.isub(n, e.c(e.w))

        def block(i: Value, _: list[Value]) -> Sequence[Value]:
            key = e.isub(e.imul(i, e.c(e.w)), before)
            self._block(rows, e.imax(e.imin(key, last), e.c(0)), v)
            return ()

        count = e.b.sdiv(e.iadd(e.iadd(n, before), e.c(e.w - 1)), e.c(e.w))
        e.loop(count, block, (), "stage.blocks", guard=False)
        return ()

    def _keys_before_a_block(self) -> Value:
        """Return how many elements lie between a multiple of w elements in memory and key 0."""
        e, size = self.e, self.itemsize * self.e.w
        first = self._row(e.c(0))
        together = e.icmp("==", e.b.and_(self.q_stride, e.c(size - 1)), e.c(0))
        before = e.b.sdiv(e.b.and_(first, e.c(size - 1)), e.c(self.itemsize))
        return e.select(together, before, e.c(0))

    def _block(self, rows: Sequence[Value], key: Value, v: Value) -> None:
        """Transpose w keys from one on, for rows that start at some addresses."""
        e, table = self.e, self.table
        kind = ir.VectorType(storage.raw_type(table.dtype), e.w)
        shift = e.imul(key, e.c(self.itemsize))
        raw = [e.load_constant(e.iadd(row, shift), kind, 1) for row in rows]
        target = place(e, self.layout, table, self.tile, key, v)
        if table.dtype == "bool":
            columns = vecmath.transpose_bytes(e, raw)
            stride = e.w * e.w // len(columns)
        else:
            rows = [storage.decode(e, x, table.dtype) for x in raw]
            columns, stride = vecmath.transpose(e, rows), self.layout.row_bytes
        for c, column in enumerate(columns):
            e.store(column, e.offset(target, c * stride), align=1)

    def _elements(self, j: Value, _: list[Value]) -> Sequence[Value]:
        e, table = self.e, self.table
        item = 1 if table.dtype == "bool" else e.esz

        def one(lane: Value, _: list[Value]) -> Sequence[Value]:
            source = e.iadd(self._row(lane), e.imul(j, self.k_stride))
            raw = e.load_constant(source, storage.raw_type(table.dtype), 1)
            value = raw if table.dtype == "bool" else storage.decode(e, raw, table.dtype)
            v, at = e.b.sdiv(lane, e.c(e.w)), e.b.srem(lane, e.c(e.w))
            target = place(e, self.layout, table, self.tile, j, v)
            e.store(value, e.offset(target, e.imul(at, e.c(item))), align=1)
            return ()

        return e.loop(e.c(self.layout.width), one, (), "stage.lanes", guard=False)
