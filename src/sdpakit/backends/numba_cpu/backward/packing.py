"""Packers of the backward kernel, and the way of its sums back to the caller.

Like those of the forward kernel: any strides and alignment, every conversion of a dtype happens
here, and nothing past the last element of a row is read or written. Those that return an int64
return 1 if an element is NaN or infinite: only then do products pick their terms (MASK-3).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

from sdpakit.backends.numba_cpu import storage, vecmath
from sdpakit.backends.numba_cpu.backward.layout import BackwardLayout
from sdpakit.backends.numba_cpu.irtypes import I64, Value
from sdpakit.backends.numba_cpu.layout import PanelLayout
from sdpakit.backends.numba_cpu.packing import Packer

ROWS = ("src", "row_stride", "el_stride", "n", "dst")
LANES = ("src", "row_stride", "el_stride", "rows", "dst", "factors")

VECTORS_AT_ONCE = 8  # of a row that is copied


class RowPacker(Packer):
    """A packer of rows of one width and one stored dtype.

    Parameters
    ----------
    module : llvmlite.ir.Module
        Where the function goes.
    layout : PanelLayout
        Element and ISA.
    name : str
        Name of the function.
    arguments : sequence of str
        Names of its arguments.
    width : int
        Elements of a row.
    dtype : str
        How they are stored.
    checks : bool
        Whether the function returns 1 if a stored element is not finite.
    """

    def __init__(
        self,
        module: Any,
        layout: PanelLayout,
        name: str,
        arguments: Sequence[str],
        *,
        width: int,
        dtype: str,
        checks: bool = False,
    ) -> None:
        super().__init__(module, layout, name, arguments, returns=checks)
        self.width, self.dtype, self.checks = width, dtype, checks
        self.item = storage.itemsize(dtype)
        if checks:
            self.poison = self.e.b.alloca(self.e.V, name="poison")
            self.e.store(self.e.const(0.0), self.poison)

    def see(self, value: Value) -> Value:
        """Remember whether a value, vector or scalar, is not finite; return it."""
        if self.checks:
            e = self.e
            vector = value if isinstance(value.type, ir.VectorType) else e.splat(value)
            zeros = e.mul(vector, e.const(0.0))  # 0 unless it is NaN or infinite
            e.store(e.add(e.load(self.poison), zeros), self.poison)
        return value

    def finish(self) -> None:
        """Return from the function."""
        e, b = self.e, self.e.b
        if not self.checks:
            b.ret_void()
            return
        bits = b.bitcast(
            b.fcmp_unordered("uno", e.load(self.poison), e.const(0.0)), ir.IntType(e.w)
        )
        b.ret(b.zext(b.icmp_unsigned("!=", bits, ir.Constant(bits.type, 0)), I64))

    def see_all(self, values: Sequence[Value]) -> None:
        """Remember whether some of the vectors are not finite: in a tree, not one long chain."""
        e = self.e
        sums = [e.mul(value, e.const(0.0)) for value in values]
        while len(sums) > 1:
            sums = [functools.reduce(e.add, sums[at : at + 2]) for at in range(0, len(sums), 2)]
        e.store(e.add(e.load(self.poison), sums[0]), self.poison)

    def row_blocks(
        self, row: Value, then: Callable[[Value, Value, int | None], None], name: str
    ) -> None:
        """Emit `then(d, values, count)` for all columns of the row at an address.

        In vectors of `count` columns where elements are adjacent, else one by one (count None).
        """

        def block(d: Value, count: int) -> None:
            source = self.at(row, (d, self.item))
            then(d, self.load_lanes(source, count, self.dtype), count)

        def element(d: Value) -> None:
            source = self.at(row, (d, self.arg["el_stride"]))
            raw = self.e.load(source, storage.raw_type(self.dtype), align=1)
            then(d, storage.decode(self.e, raw, self.dtype), None)

        self.either(
            self.adjacent(self.item),
            lambda: self.blocks(self.width, block, name),
            lambda: self.each(self.e.c(self.width), element, f"{name}.strided"),
        )

    def put(self, value: Value, target: Value, count: int | None) -> None:
        """Store columns of `row_blocks` as elements."""
        if count is None:
            self.e.store(value, target)
        else:
            self.store_lanes(value, target, count, self.layout.element)


def emit_rows(module: Any, layout: PanelLayout, name: str) -> None:
    """Emit NAME(src, row_stride, el_stride, n, dst): rows to be broadcast, then zero rows.

    [n][k_row_bytes], and up to a multiple of R rows of zeros.
    """
    width, dtype = layout.head_dim, layout.dtype
    p = RowPacker(module, layout, name, ROWS, width=width, dtype=dtype, checks=True)
    e, arg = p.e, p.arg

    def target(j: Value, d: Value) -> Value:
        return p.at(arg["dst"], (j, layout.k_row_bytes), (d, e.esz))

    def copy(j: Value) -> None:
        """Emit the copy of a row, some vectors at a time."""
        row = p.at(arg["src"], (j, arg["row_stride"]))
        starts = [(d, min(e.w, width - d)) for d in range(0, width, e.w)]

        def part(base: Value, places: Sequence[tuple[int, int]]) -> None:
            values = []
            for d, count in places:
                column = e.iadd(base, e.c(d))
                x = p.load_lanes(p.at(row, (column, p.item)), count, dtype)
                p.put(x, target(j, column), count)
                values.append(x)
            p.see_all(values)

        whole, chunk = width // (VECTORS_AT_ONCE * e.w), VECTORS_AT_ONCE * e.w
        p.each(e.c(whole), lambda i: part(e.imul(i, e.c(chunk)), starts[:VECTORS_AT_ONCE]), "copy")
        if rest := starts[whole * VECTORS_AT_ONCE :]:
            part(e.c(0), rest)

    def strided(j: Value) -> None:
        def one(d: Value) -> None:
            place = p.at(arg["src"], (j, arg["row_stride"]), (d, arg["el_stride"]))
            x = storage.decode(e, e.load(place, storage.raw_type(dtype), align=1), dtype)
            e.store(p.see(x), target(j, d))

        p.each(e.c(width), one, "element")

    def zero(i: Value) -> None:
        j = e.iadd(arg["n"], i)
        p.blocks(width, lambda d, count: p.put(e.const(0.0), target(j, d), count), "zero")

    if width:
        p.either(
            p.adjacent(p.item),
            lambda: p.each(arg["n"], copy, "rows"),
            lambda: p.each(arg["n"], strided, "strided"),
        )
    rest = e.b.srem(arg["n"], e.c(layout.rows))
    p.each(e.b.srem(e.isub(e.c(layout.rows), rest), e.c(layout.rows)), zero, "pad")
    p.finish()


def emit_columns(module: Any, layout: BackwardLayout, name: str) -> None:
    """Emit NAME(rows, n, dst): packed rows of K to groups of columns, as `pack_v` packs V.

    A row of a group is stored a whole vector at a time: what spills over is the start of the next
    row, written later, or the slack behind the group.
    """
    values, row_bytes = layout.values, layout.keys.k_row_bytes
    p = Packer(module, values, name, ("rows", "n", "dst"))
    e, arg = p.e, p.arg

    def scatter(j: Value) -> None:
        row = p.at(arg["rows"], (j, row_bytes))
        for d0, size, start in values.v_groups:
            for c in range(0, size, e.w):
                count = min(e.w, values.v_head_dim - d0 - c)
                x = p.load_lanes(e.offset(row, (d0 + c) * e.esz), count, values.element)
                target = p.at(arg["dst"], (j, size * e.esz))
                e.store(x, e.offset(target, start + c * e.esz))

    p.each(arg["n"], scatter, "rows")
    e.b.ret_void()


def emit_lanes(module: Any, layout: PanelLayout, name: str, width: int, dtype: str) -> None:
    """Emit NAME(src, row_stride, el_stride, rows, dst, factors): rows become lanes, [width][W].

    Each row times its factor; lanes past the last row are zero.
    """
    p = RowPacker(module, layout, name, LANES, width=width, dtype=dtype)
    e, arg = p.e, p.arg
    last = e.isub(arg["rows"], e.c(1))

    def target(d: Value, lane: Value) -> Value:
        return p.at(arg["dst"], (d, layout.row_bytes), (lane, e.esz))

    def block(first: Value, d: Value, count: int) -> None:
        rows = []
        for r in range(e.w):
            row = e.imin(e.iadd(first, e.c(r)), last)
            rows.append(
                p.load_lanes(
                    p.at(arg["src"], (row, arg["row_stride"]), (d, p.item)), count, p.dtype
                )
            )
        valid = e.icmp("<", e.iadd(e.lane_ids(64), e.splat(first)), e.splat(arg["rows"]))
        factor = e.load(p.at(arg["factors"], (first, e.esz)))
        for c, column in enumerate(vecmath.transpose(e, rows)[:count]):
            value = e.select(valid, e.mul(column, factor), e.const(0.0))
            e.store(value, target(e.iadd(d, e.c(c)), first))

    def vectors() -> None:
        def group(v: Value) -> None:
            first = e.imul(v, e.c(e.w))
            p.blocks(width, lambda d, count: block(first, d, count), "transpose")

        p.each(e.c(layout.vectors), group, "vectors")

    def one(d: Value, lane: Value) -> None:
        place = p.at(arg["src"], (e.imin(lane, last), arg["row_stride"]), (d, arg["el_stride"]))
        x = storage.decode(e, e.load(place, storage.raw_type(dtype), align=1), dtype)
        x = e.mul(x, e.load(p.at(arg["factors"], (lane, e.esz)), e.S))
        e.store(e.select(e.icmp("<", lane, arg["rows"]), x, ir.Constant(e.S, 0.0)), target(d, lane))

    def elements() -> None:
        p.each(
            e.c(width),
            lambda d: p.each(e.c(layout.width), lambda lane: one(d, lane), "lane"),
            "strided",
        )

    if width:
        p.either(p.adjacent(p.item), vectors, elements)
    p.finish()


def emit_factors(module: Any, layout: BackwardLayout, name: str, width: int, dtype: str) -> None:
    """Emit NAME(src, row_stride, el_stride, rows, dst, factors): the right side of `outer`.

    [blocks][W][columns]: row i, times its factor, in blocks of as many columns as a register tile
    has; zero past the last row and the last column.
    """
    keys, esz = layout.keys, layout.keys.esz
    p = RowPacker(module, keys, name, LANES, width=width, dtype=dtype, checks=True)
    e, arg = p.e, p.arg
    block_bytes = keys.width * keys.row_bytes
    vectors = e.c(layout.blocks(width) * keys.width * keys.vectors)
    p.each(vectors, lambda i: e.store(e.const(0.0), p.at(arg["dst"], (i, e.w * esz))), "zero")

    def row(i: Value) -> None:
        factor = e.load(p.at(arg["factors"], (i, esz)), e.S)
        base = p.at(arg["dst"], (i, keys.row_bytes))

        def copy(d: Value, x: Value, count: int | None) -> None:
            block, column = (op(d, e.c(layout.columns)) for op in (e.b.sdiv, e.b.srem))
            target = p.at(base, (block, block_bytes), (column, esz))
            scaled = e.mul(x, factor if count is None else e.splat(factor))
            p.put(p.see(scaled), target, count)

        p.row_blocks(p.at(arg["src"], (i, arg["row_stride"])), copy, "copy")

    if width:
        p.each(arg["rows"], row, "rows")
    p.finish()


def emit_delta(module: Any, layout: PanelLayout, name: str, width: int) -> None:
    """Emit NAME(a, b, dst): dst[0:W] = sum_d a[d][0:W] * b[d][0:W] over `width` rows."""
    p = Packer(module, layout, name, ("a", "b", "dst"))
    e, arg = p.e, p.arg

    def row(d: Value, carried: list[Value]) -> list[Value]:
        places = [[p.at(arg[x], (d, layout.row_bytes)) for x in "ab"]] * layout.vectors
        pairs = [
            [e.load(e.offset(at, v * e.w * e.esz)) for at in place]
            for v, place in enumerate(places)
        ]
        return [e.fma(a, b, acc) for (a, b), acc in zip(pairs, carried, strict=True)]

    start = [e.const(0.0)] * layout.vectors
    for v, total in enumerate(e.loop(e.c(width), row, start, "delta")):
        e.store(total, e.offset(arg["dst"], v * e.w * e.esz))
    e.b.ret_void()


def emit_clear(module: Any, layout: PanelLayout, name: str) -> None:
    """Emit NAME(address, size): zeros in a number of bytes that is a multiple of a panel row."""
    p = Packer(module, layout, name, ("address", "size"))
    e, arg = p.e, p.arg

    def row(i: Value) -> None:
        base = p.at(arg["address"], (i, layout.row_bytes))
        for v in range(layout.vectors):
            e.store(e.const(0.0), e.offset(base, v * e.w * e.esz))

    p.each(e.b.sdiv(arg["size"], e.c(layout.row_bytes)), row, "rows")
    e.b.ret_void()


def emit_sums(module: Any, layout: PanelLayout, name: str, width: int, row_bytes: int) -> None:
    """Emit NAME(src, dst, row_stride, el_stride, n, factor): rows of sums, rounded once (GRAD-3).

    The factor, the bits of a float64, is that of all rows.
    """
    arguments = ("src", "dst", "row_stride", "el_stride", "n", "factor")
    p = RowPacker(module, layout, name, arguments, width=width, dtype=layout.dtype)
    e, arg = p.e, p.arg
    wide = e.b.bitcast(arg["factor"], ir.DoubleType())
    factor = wide if e.element == "float64" else e.b.fptrunc(wide, e.S)

    def row(j: Value) -> None:
        source = p.at(arg["src"], (j, row_bytes))
        target = p.at(arg["dst"], (j, arg["row_stride"]))

        def block(d: Value, count: int) -> None:
            x = e.mul(e.load(p.at(source, (d, e.esz))), e.splat(factor))
            p.store_lanes(x, p.at(target, (d, p.item)), count, p.dtype)

        def element(d: Value) -> None:
            x = e.mul(e.load(p.at(source, (d, e.esz)), e.S), factor)
            stored = storage.encode(e, x, p.dtype)
            e.store(stored, p.at(target, (d, arg["el_stride"])), align=1)

        p.either(
            p.adjacent(p.item),
            lambda: p.blocks(width, block, "store"),
            lambda: p.each(e.c(width), element, "store.strided"),
        )

    if width:
        p.each(arg["n"], row, "rows")
    p.finish()
