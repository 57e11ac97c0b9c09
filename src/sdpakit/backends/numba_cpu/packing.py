"""Packers between the caller's arrays and the layouts of the kernels.

Every conversion of a dtype happens here. The caller's memory may have any strides and alignment.
Nothing past the last element of a row is read (what lies there may be NaN or unmapped) and nothing
outside the rows is written. A row with adjacent elements goes through vectors, any other one
element at a time.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

from sdpakit.backends.numba_cpu import storage, vecmath
from sdpakit.backends.numba_cpu.functions import new_function
from sdpakit.backends.numba_cpu.irtypes import I64, Value
from sdpakit.backends.numba_cpu.layout import PanelLayout
from sdpakit.backends.numba_cpu.microkernels import CACHE_LINE, prefetch
from sdpakit.backends.numba_cpu.vector import VectorEmitter


def _powers_of_two(count: int) -> list[tuple[int, int]]:
    """Return (start, size) of pieces that make up `count`, sizes falling powers of two."""
    pieces, start = [], 0
    while start < count:
        size = 1 << ((count - start).bit_length() - 1)
        pieces.append((start, size))
        start += size
    return pieces


def load_lanes(e: VectorEmitter, address: Value, count: int, dtype: str) -> Value:
    """Load `count` adjacent stored elements as compute elements, with zeros behind them."""
    kind = storage.raw_type(dtype)
    if count == e.w:
        return storage.decode(e, e.load(address, ir.VectorType(kind, e.w), align=1), dtype)
    raw = ir.Constant(ir.VectorType(kind, e.w), None)
    for start, size in _powers_of_two(count):
        source = e.offset(address, start * storage.itemsize(dtype))
        piece = e.load(source, ir.VectorType(kind, size), align=1)
        wide = e.shuffle(piece, piece, [min(lane, size - 1) for lane in range(e.w)])
        inside = range(start, start + size)
        lanes = [e.w + lane - start if lane in inside else lane for lane in range(e.w)]
        raw = e.shuffle(raw, wide, lanes)
    return storage.decode(e, raw, dtype)


def store_lanes(e: VectorEmitter, value: Value, address: Value, count: int, dtype: str) -> None:
    """Store the first `count` lanes, rounded to a stored dtype, to adjacent elements.

    In pieces of whole powers of two: a masked store costs more, and LLVM 22 writes past the first
    lane for some of those of 16-bit elements.
    """
    raw = storage.encode(e, value, dtype)
    for start, size in _powers_of_two(count):
        piece = raw if size == e.w else e.shuffle(raw, raw, range(start, start + size))
        e.store(piece, e.offset(address, start * storage.itemsize(dtype)), align=1)


class Packer:
    """Emits one packing function.

    Parameters
    ----------
    module : llvmlite.ir.Module
        Where the function goes.
    layout : PanelLayout
        Sizes and dtypes.
    name : str
        Name of the function.
    arguments : sequence of str
        Names of its int64 arguments.
    returns : bool
        Whether it returns an int64.
    """

    def __init__(
        self,
        module: Any,
        layout: PanelLayout,
        name: str,
        arguments: Sequence[str],
        *,
        returns: bool = False,
    ) -> None:
        result = I64 if returns else ir.VoidType()
        b = new_function(module, name, arguments, result=result)
        self.arg: dict[str, Value] = dict(zip(arguments, b.function.args, strict=True))
        self.layout = layout
        self.e = VectorEmitter(b, layout.isa, layout.element)

    # --- memory of the caller ---

    def load_lanes(self, address: Value, count: int, dtype: str) -> Value:
        """Emit `load_lanes` with the emitter of the function."""
        return load_lanes(self.e, address, count, dtype)

    def store_lanes(self, value: Value, address: Value, count: int, dtype: str) -> None:
        """Emit `store_lanes` with the emitter of the function."""
        store_lanes(self.e, value, address, count, dtype)

    def load_one(self, address: Value) -> Value:
        """Load one stored element as a scalar of the compute element."""
        raw = self.e.load(address, storage.raw_type(self.layout.dtype), align=1)
        return storage.decode(self.e, raw, self.layout.dtype)

    def blocks(self, width: int, body: Callable[[Value, int], None], name: str) -> None:
        """Emit `body(d, count)` for blocks of w columns of `width`: whole ones, then the rest."""
        e = self.e
        whole, rest = divmod(width, e.w)

        def block(i: Value, _: list[Value]) -> Sequence[Value]:
            body(e.imul(i, e.c(e.w)), e.w)
            return ()

        if whole:
            e.loop(e.c(whole), block, (), name, guard=False)
        if rest:
            body(e.c(whole * e.w), rest)

    def adjacent(self, itemsize: int) -> Value:
        """Return whether the elements of a row are adjacent."""
        return self.e.icmp("==", self.arg["el_stride"], self.e.c(itemsize))

    def either(self, condition: Value, then: Callable[[], None], other: Callable[[], None]) -> None:
        """Emit if/else."""
        with self.e.b.if_else(condition, likely=True) as (on_true, on_false):
            with on_true:
                then()
            with on_false:
                other()

    def each(self, count: Value, body: Callable[[Value], None], name: str) -> None:
        """Emit a loop without carried values, which may run no round."""

        def once(i: Value, _: list[Value]) -> Sequence[Value]:
            body(i)
            return ()

        self.e.loop(count, once, (), name)

    def fetch_next(self, base: Value, row_bytes: int, *, write: bool) -> None:
        """Prefetch the rows of the next panel: by the time it comes they are near."""
        e, arg = self.e, self.arg
        first = self.at(base, (e.c(self.layout.width), arg["row_stride"]))

        def row(r: Value) -> None:
            start = e.pointer(self.at(first, (r, arg["row_stride"])))
            for at in range(0, row_bytes, CACHE_LINE):
                prefetch(e, e.offset(start, at), write=write)

        # Behind a panel that is not full lies no other one of its rows: of a small call, the only
        # panel would pay for memory that nobody asks for.
        width = e.c(self.layout.width)
        full = e.icmp("==", arg["rows"], width)
        self.each(e.select(full, width, e.c(0)), row, "fetch.next")

    def at(self, base: Value, *terms: tuple[Value, Value | int]) -> Value:
        """Return base + sum of index * stride bytes."""
        e = self.e
        total = base
        for index, stride in terms:
            total = e.iadd(total, e.imul(index, e.c(stride) if isinstance(stride, int) else stride))
        return total


def emit_pack_q(module: Any, layout: PanelLayout) -> None:
    """Emit pack_q(src, row_stride, el_stride, rows, qt, qfactor).

    Rows of q, times a factor, become lanes of QT [D][W].
    """
    names = ("src", "row_stride", "el_stride", "rows", "qt", "qfactor")
    p = Packer(module, layout, "pack_q", names)
    e, arg = p.e, p.arg
    factor = e.b.bitcast(arg["qfactor"], ir.DoubleType())
    scalar = factor if e.element == "float64" else e.b.fptrunc(factor, e.S)
    last = e.isub(arg["rows"], e.c(1))

    def block(first_lane: Value, d: Value, count: int) -> None:
        rows = []
        for r in range(e.w):
            row = e.imin(e.iadd(first_lane, e.c(r)), last)
            source = p.at(arg["src"], (row, arg["row_stride"]), (d, layout.itemsize))
            rows.append(p.load_lanes(source, count, layout.dtype))
        lane = e.iadd(e.lane_ids(64), e.splat(first_lane))
        valid = e.icmp("<", lane, e.splat(arg["rows"]))
        for c, column in enumerate(vecmath.transpose(e, rows)[:count]):
            value = e.select(valid, e.mul(column, e.splat(scalar)), e.const(0.0))
            target = p.at(arg["qt"], (e.iadd(d, e.c(c)), layout.row_bytes), (first_lane, e.esz))
            e.store(value, target)

    def vectors() -> None:
        p.fetch_next(arg["src"], layout.head_dim * layout.itemsize, write=False)

        def group(v: Value) -> None:
            first_lane = e.imul(v, e.c(e.w))
            p.blocks(layout.head_dim, lambda d, count: block(first_lane, d, count), "transpose.q")

        needed = e.b.sdiv(e.iadd(arg["rows"], e.c(e.w - 1)), e.c(e.w))
        p.each(needed, group, "vectors")
        p.each(e.isub(e.c(layout.vectors), needed), lambda v: idle(e.iadd(needed, v)), "idle")

    def idle(v: Value) -> None:
        lanes = p.at(arg["qt"], (v, e.w * e.esz))

        def zero(d: Value) -> None:
            e.store(e.const(0.0), p.at(lanes, (d, layout.row_bytes)))

        p.each(e.c(layout.head_dim), zero, "zero.q")

    def elements() -> None:
        def one(d: Value, lane: Value) -> None:
            row = e.imin(lane, last)
            x = p.load_one(p.at(arg["src"], (row, arg["row_stride"]), (d, arg["el_stride"])))
            value = e.select(
                e.icmp("<", lane, arg["rows"]), e.mul(x, scalar), ir.Constant(e.S, 0.0)
            )
            e.store(value, p.at(arg["qt"], (d, layout.row_bytes), (lane, e.esz)))

        p.each(
            e.c(layout.head_dim),
            lambda d: p.each(e.c(layout.width), lambda lane: one(d, lane), "lane"),
            "strided.q",
        )

    p.either(p.adjacent(layout.itemsize), vectors, elements)
    e.b.ret_void()


def emit_pack_k(module: Any, layout: PanelLayout) -> None:
    """Emit pack_k(src, row_stride, el_stride, n, dst, row, filled).

    Rows [row, row + n) of a tile as compute elements, then zero rows up to row `filled`.
    """
    names = ("src", "row_stride", "el_stride", "n", "dst", "row", "filled")
    p = Packer(module, layout, "pack_k", names)
    e, arg = p.e, p.arg
    first = p.at(arg["dst"], (arg["row"], layout.k_row_bytes))

    def copy(j: Value) -> None:
        def block(d: Value, count: int) -> None:
            source = p.at(arg["src"], (j, arg["row_stride"]), (d, layout.itemsize))
            target = p.at(first, (j, layout.k_row_bytes), (d, e.esz))
            p.store_lanes(p.load_lanes(source, count, layout.dtype), target, count, layout.element)

        p.blocks(layout.head_dim, block, "copy.k")

    def one(j: Value, d: Value) -> None:
        x = p.load_one(p.at(arg["src"], (j, arg["row_stride"]), (d, arg["el_stride"])))
        e.store(x, p.at(first, (j, layout.k_row_bytes), (d, e.esz)))

    def elements(j: Value) -> None:
        p.each(e.c(layout.head_dim), lambda d: one(j, d), "element")

    def zero(i: Value) -> None:
        def block(d: Value, count: int) -> None:
            target = p.at(first, (e.iadd(arg["n"], i), layout.k_row_bytes), (d, e.esz))
            p.store_lanes(e.const(0.0), target, count, layout.element)

        p.blocks(layout.head_dim, block, "zero.k")

    p.either(
        p.adjacent(layout.itemsize),
        lambda: p.each(arg["n"], copy, "rows.k"),
        lambda: p.each(arg["n"], elements, "strided.k"),
    )
    p.each(e.isub(arg["filled"], e.iadd(arg["row"], arg["n"])), zero, "pad.k")
    e.b.ret_void()


def emit_pack_v(module: Any, layout: PanelLayout) -> None:
    """Emit pack_v(src, row_stride, el_stride, n, dst, staging, row) -> 1 if any is NaN or inf.

    They become rows [row, row + n) of a tile, whose rows come in order. A row is stored group by
    group, a whole vector at a time: what spills over is the start of the next row of the group,
    written later, or the slack behind the group.
    """
    names = ("src", "row_stride", "el_stride", "n", "dst", "staging", "row")
    p = Packer(module, layout, "pack_v", names, returns=True)
    e, arg = p.e, p.arg
    poison = e.b.alloca(e.V, name="poison")
    e.store(e.const(0.0), poison)

    def scatter(source: Value, j: Value, dtype: str, itemsize: int) -> None:
        zeros = []
        for d0, size, start in layout.v_groups:
            for c in range(0, size, e.w):
                count = min(e.w, layout.v_head_dim - d0 - c)
                x = p.load_lanes(e.offset(source, (d0 + c) * itemsize), count, dtype)
                zeros.append(e.mul(x, e.const(0.0)))  # 0 unless x is NaN or inf
                target = p.at(arg["dst"], (e.iadd(arg["row"], j), size * e.esz))
                e.store(x, e.offset(target, start + c * e.esz))
        # In a tree: one chain of all groups would take longer than the copies.
        while len(zeros) > 1:
            zeros = [functools.reduce(e.add, zeros[at : at + 2]) for at in range(0, len(zeros), 2)]
        e.store(e.add(e.load(poison), zeros[0]), poison)

    def rows(j: Value) -> None:
        scatter(p.at(arg["src"], (j, arg["row_stride"])), j, layout.dtype, layout.itemsize)

    def gather(j: Value, d: Value) -> None:
        x = p.load_one(p.at(arg["src"], (j, arg["row_stride"]), (d, arg["el_stride"])))
        e.store(x, p.at(arg["staging"], (d, e.esz)))

    def strided(j: Value) -> None:
        p.each(e.c(layout.v_head_dim), lambda d: gather(j, d), "element")
        scatter(arg["staging"], j, layout.element, e.esz)

    if layout.v_head_dim:
        p.either(
            p.adjacent(layout.itemsize),
            lambda: p.each(arg["n"], rows, "rows.v"),
            lambda: p.each(arg["n"], strided, "strided.v"),
        )
    bad = e.b.fcmp_unordered("uno", e.load(poison), e.const(0.0))
    bits = e.b.bitcast(bad, ir.IntType(e.w))
    e.b.ret(e.b.zext(e.b.icmp_unsigned("!=", bits, ir.Constant(bits.type, 0)), I64))


def emit_unpack_o(module: Any, layout: PanelLayout) -> None:
    """Emit unpack_o(ot, inv, out, row_stride, el_stride, rows).

    out[i, d] = OT[d][i] * inv[i], rounded once (NUM-5).
    """
    names = ("ot", "inv", "out", "row_stride", "el_stride", "rows")
    p = Packer(module, layout, "unpack_o", names)
    e, arg = p.e, p.arg
    item = storage.itemsize(layout.out_dtype)

    def block(first_lane: Value, d: Value, count: int) -> None:
        inverse = e.load(p.at(arg["inv"], (first_lane, e.esz)))
        columns = [e.const(0.0)] * e.w
        for c in range(count):
            source = p.at(arg["ot"], (e.iadd(d, e.c(c)), layout.row_bytes), (first_lane, e.esz))
            columns[c] = e.mul(e.load(source), inverse)
        for r, row in enumerate(vecmath.transpose(e, columns)):
            lane = e.iadd(first_lane, e.c(r))
            with e.b.if_then(e.icmp("<", lane, arg["rows"])):
                target = p.at(arg["out"], (lane, arg["row_stride"]), (d, item))
                p.store_lanes(row, target, count, layout.out_dtype)

    def vectors() -> None:
        p.fetch_next(arg["out"], layout.v_head_dim * item, write=True)

        def group(v: Value) -> None:
            first_lane = e.imul(v, e.c(e.w))
            p.blocks(layout.v_head_dim, lambda d, count: block(first_lane, d, count), "transpose.o")

        needed = e.b.sdiv(e.iadd(arg["rows"], e.c(e.w - 1)), e.c(e.w))
        p.each(needed, group, "vectors")

    def one(lane: Value, d: Value) -> None:
        x = e.load(p.at(arg["ot"], (d, layout.row_bytes), (lane, e.esz)), e.S)
        value = e.mul(x, e.load(p.at(arg["inv"], (lane, e.esz)), e.S))
        target = p.at(arg["out"], (lane, arg["row_stride"]), (d, arg["el_stride"]))
        e.store(storage.encode(e, value, layout.out_dtype), target, align=1)

    def elements() -> None:
        p.each(
            arg["rows"],
            lambda lane: p.each(e.c(layout.v_head_dim), lambda d: one(lane, d), "element"),
            "strided.o",
        )

    p.either(p.adjacent(item), vectors, elements)
    e.b.ret_void()


def emit_begin(module: Any, layout: PanelLayout) -> None:
    """Emit begin(ot, st): the state of a panel that has seen no key."""
    p = Packer(module, layout, "begin", ("ot", "st"))
    e, arg = p.e, p.arg
    start = {"m": -math.inf, "tmax": -math.inf, "alpha": 1.0}
    for r, name in enumerate(layout.stat_rows):
        for v in range(layout.vectors):
            address = e.offset(arg["st"], r * layout.row_bytes + v * e.w * e.esz)
            e.store(e.const(start.get(name, 0.0)), address)

    def zero(d: Value) -> None:
        row = p.at(arg["ot"], (d, layout.row_bytes))
        for v in range(layout.vectors):
            e.store(e.const(0.0), e.offset(row, v * e.w * e.esz))

    p.each(e.c(layout.v_head_dim), zero, "zero.o")
    e.b.ret_void()
