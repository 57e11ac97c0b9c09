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


def read(e: VectorEmitter, table: Staged, address: Value) -> Value:
    """Return one vector of a staged table: <w x i1> of a boolean one, else the element."""
    value = e.load(address)
    return e.fcmp("!=", value, e.const(0.0)) if table.dtype == "bool" else value


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
        Address of the tile [Bc + R][W].
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

    def emit(self) -> None:
        """Emit blocks where keys are adjacent and fill a vector, single elements elsewhere."""
        e, n = self.e, self.arg["n"]
        adjacent = e.icmp("==", self.k_stride, e.c(storage.itemsize(self.table.dtype)))
        enough = e.icmp("<=", e.c(e.w), n)
        with e.b.if_else(e.and_(adjacent, enough)) as (on_true, on_false):
            with on_true:
                e.loop(
                    e.b.sdiv(e.iadd(n, e.c(e.w - 1)), e.c(e.w)),
                    self._blocks,
                    (),
                    "stage.blocks",
                    guard=False,
                )
            with on_false:
                e.loop(n, self._elements, (), "stage.elements", guard=False)

    def _row(self, lane: Value) -> Value:
        """Return the address of key 0 of the row of a lane; lanes past the last row repeat it."""
        e = self.e
        last = e.isub(self.arg["nq"], e.c(1))
        row = e.iadd(self.arg["i0"], e.imin(lane, last))
        return e.iadd(self.base, e.imul(row, self.q_stride))

    def _target(self, key: Value) -> Value:
        return self.e.offset(self.tile, self.e.imul(key, self.e.c(self.layout.row_bytes)))

    def _value(self, decoded: Value) -> Value:
        return self.e.to_float(decoded) if self.table.dtype == "bool" else decoded

    def _blocks(self, i: Value, _: list[Value]) -> Sequence[Value]:
        """Transpose w keys for all lanes; the last block is moved back to end with the last key."""
        e, dtype = self.e, self.table.dtype
        key = e.imin(e.imul(i, e.c(e.w)), e.isub(self.arg["n"], e.c(e.w)))
        kind = ir.VectorType(storage.raw_type(dtype), e.w)
        shift = e.imul(key, e.c(storage.itemsize(dtype)))
        for v in range(self.layout.vectors):
            rows = []
            for r in range(e.w):
                raw = e.load_constant(e.iadd(self._row(e.c(v * e.w + r)), shift), kind, 1)
                rows.append(self._value(storage.decode(e, raw, dtype)))
            for c, column in enumerate(vecmath.transpose(e, rows)):
                target = self._target(e.iadd(key, e.c(c)))
                e.store(column, e.offset(target, v * e.w * e.esz))
        return ()

    def _elements(self, j: Value, _: list[Value]) -> Sequence[Value]:
        e = self.e

        def one(lane: Value, _: list[Value]) -> Sequence[Value]:
            value = e.load_value(
                self.table.dtype, e.iadd(self._row(lane), e.imul(j, self.k_stride))
            )
            e.store(self._value(value), e.offset(self._target(j), e.imul(lane, e.c(e.esz))))
            return ()

        return e.loop(e.c(self.layout.width), one, (), "stage.lanes", guard=False)
