"""What happens to a row before and after its tiles: its query, its state, its part of `out`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from sdpakit.backends.numba_cpu import abi, storage, vecmath
from sdpakit.backends.numba_cpu.decode.layout import FILLED, DecodeLayout
from sdpakit.backends.numba_cpu.decode.products import address_of_row
from sdpakit.backends.numba_cpu.functions import new_function
from sdpakit.backends.numba_cpu.irtypes import I32, I64, Value
from sdpakit.backends.numba_cpu.packing import load_lanes, store_lanes
from sdpakit.backends.numba_cpu.softmax import FAR
from sdpakit.backends.numba_cpu.vector import VectorEmitter


class _Function:
    """A function of the module, with loops over the vectors and over the elements of a row."""

    def __init__(
        self, module: Any, layout: DecodeLayout, name: str, arguments: Sequence[str]
    ) -> None:
        b = new_function(module, layout.named(name), arguments, result=ir.VoidType())
        self.arg: dict[str, Value] = dict(zip(arguments, b.function.args, strict=True))
        self.e = VectorEmitter(b, layout.isa, layout.element)
        self.layout = layout

    def at(self, base: Value, index: Value, stride: Value | int) -> Value:
        """Return base + index * stride bytes."""
        e = self.e
        step = e.c(stride) if isinstance(stride, int) else stride
        return e.iadd(base, e.imul(index, step))

    def each(self, count: Value, emit: Any, name: str) -> None:
        """Emit a loop that carries nothing."""

        def body(i: Value, _: list[Value]) -> Sequence[Value]:
            emit(i)
            return ()

        self.e.loop(count, body, (), name)

    def blocks(self, width: int, emit: Any, name: str) -> None:
        """Emit `emit(number of the vector, its columns)` for whole vectors and for the rest."""
        e = self.e
        whole, rest = divmod(width, e.w)
        self.each(e.c(whole), lambda i: emit(i, e.w), name)
        if rest:
            emit(e.c(whole), rest)

    def either(self, itemsize: int, adjacent: Any, apart: Any) -> None:
        """Emit one of two ways, by whether the elements of a row are adjacent."""
        near = self.e.icmp("==", self.arg["el_stride"], self.e.c(itemsize))
        with self.e.b.if_else(near, likely=True) as (on_true, on_false):
            with on_true:
                adjacent()
            with on_false:
                apart()

    def stat(self, state: str, name: str) -> Value:
        """Return the address of a vector of statistics of a state."""
        at = self.layout.stat_rows.index(name) * self.layout.vector_bytes
        return self.e.offset(self.arg[state], at)

    def factor(self) -> Value:
        """Return the argument `factor`, bits of a float64, as a scalar of the element."""
        e = self.e
        number = e.b.bitcast(self.arg["factor"], ir.DoubleType())
        return number if e.element == "float64" else e.b.fptrunc(number, e.S)


def emit_pack_row(module: Any, layout: DecodeLayout) -> None:
    """Emit pack_row(src, el_stride, dst, factor): a row of q as elements, zeros behind it."""
    f = _Function(module, layout, "pack_row", ("src", "el_stride", "dst", "factor"))
    e, arg, panel = f.e, f.arg, layout.panel
    factor = f.factor()

    def vector(i: Value, count: int) -> None:
        x = load_lanes(e, f.at(arg["src"], i, e.w * panel.itemsize), count, panel.dtype)
        e.store(e.mul(x, e.splat(factor)), f.at(arg["dst"], i, layout.vector_bytes))

    def one(d: Value) -> None:
        raw = e.load(f.at(arg["src"], d, arg["el_stride"]), storage.raw_type(panel.dtype), align=1)
        e.store(e.mul(storage.decode(e, raw, panel.dtype), factor), f.at(arg["dst"], d, e.esz))

    def apart() -> None:
        last = e.offset(arg["dst"], layout.q_row_bytes - layout.vector_bytes)
        e.store(e.const(0.0), last)
        f.each(e.c(panel.head_dim), one, "element")

    f.either(panel.itemsize, lambda: f.blocks(panel.head_dim, vector, "vector"), apart)
    e.b.ret_void()


def emit_fill_rows(module: Any, layout: DecodeLayout) -> None:
    """Emit fill_rows(table, count, address, stride): addresses of rows, `FILLED` at a time.

    What is written behind the last one, up to `FILLED` - 1 of them, counts for nothing.
    """
    f = _Function(module, layout, "fill_rows", ("table", "count", "address", "stride"))
    e, arg = f.e, f.arg
    kind = ir.VectorType(I64, FILLED)
    nothing, zeros = ir.Constant(kind, ir.Undefined), ir.Constant(ir.VectorType(I32, FILLED), None)

    def splat(x: Value) -> Value:
        return e.b.shuffle_vector(
            e.b.insert_element(nothing, x, ir.Constant(I32, 0)), nothing, zeros
        )

    lanes = ir.Constant(kind, list(range(FILLED)))
    first = e.b.add(splat(arg["address"]), e.b.mul(splat(arg["stride"]), lanes))

    def some(i: Value) -> None:
        done = e.imul(i, e.c(FILLED))
        rows = e.b.add(first, splat(e.imul(done, arg["stride"])))
        e.b.store(rows, e.pointer(f.at(arg["table"], done, 8)), align=8)

    rounds = e.b.sdiv(e.iadd(arg["count"], e.c(FILLED - 1)), e.c(FILLED))
    f.each(rounds, some, "rows")
    e.b.ret_void()


def emit_copy_rows(module: Any, layout: DecodeLayout) -> None:
    """Emit copy_rows(rows, step, el_stride, n, dst, width): rows anew, end to end."""
    names = ("rows", "step", "el_stride", "n", "dst", "width")
    f = _Function(module, layout, "copy_rows", names)
    e, arg, size = f.e, f.arg, layout.panel.itemsize
    kind = storage.raw_type(layout.panel.dtype)

    def row(j: Value) -> None:
        source = address_of_row(e, layout, arg["rows"], arg["step"], j)
        target = f.at(arg["dst"], e.imul(j, arg["width"]), size)

        def one(d: Value) -> None:
            e.store(e.load(f.at(source, d, arg["el_stride"]), kind, 1), f.at(target, d, size), 1)

        f.each(arg["width"], one, "element")

    f.each(arg["n"], row, "row")
    e.b.ret_void()


def emit_begin_row(module: Any, layout: DecodeLayout) -> None:
    """Emit begin_row(state): the state of a row that has seen no key."""
    f = _Function(module, layout, "begin_row", ("state",))
    start = {"m": -math.inf, "tmax": -math.inf, "alpha": 1.0}
    for name in layout.stat_rows:
        f.e.store(f.e.const(start.get(name, 0.0)), f.stat("state", name))
    _each_vector(f, lambda at: f.e.store(f.e.const(0.0), f.e.iadd(f.arg["state"], at)))
    f.e.b.ret_void()


def _each_vector(f: _Function, emit: Any) -> None:
    """Emit a loop over byte offsets of the vectors of the accumulator."""
    layout = f.layout
    vectors = -(-layout.panel.v_head_dim // layout.lanes)
    f.each(
        f.e.c(vectors), lambda i: emit(f.at(f.e.c(layout.acc_at), i, layout.vector_bytes)), "acc"
    )


def emit_merge_row(module: Any, layout: DecodeLayout) -> None:
    """Emit merge_row(state, other): add the state of other keys (MERGE-1).

    Two maxima differ by a whole number of log2 units, so both factors are exact.
    """
    f = _Function(module, layout, "merge_row", ("state", "other"))
    e = f.e
    sides = ("state", "other")
    ms = [e.load(f.stat(side, "m")) for side in sides]
    m = e.max_seen(ms[1], ms[0])
    # NUM-2: 0 for a maximum of -inf; NaN for +inf, whose row is NaN (NUM-4).
    base = e.select(e.fcmp("==", m, e.const(-math.inf)), e.const(0.0), m)
    base = e.select(e.fcmp("==", m, e.const(math.inf)), e.const(math.nan), base)
    shifts = [e.mul(e.sub(x, base), e.const(abi.M_UNIT)) for x in ms]
    alphas = [vecmath.exp2_integer(e, shift) for shift in shifts]
    sums = [e.load(f.stat(side, "l")) for side in sides]
    e.store(m, f.stat("state", "m"))
    e.store(_joined(e, sums, alphas), f.stat("state", "l"))
    tops = [e.load(f.stat(side, "tmax")) for side in sides]
    e.store(e.max_seen(tops[1], tops[0]), f.stat("state", "tmax"))
    _merge_sums(f, sums, alphas, shifts)

    def add(at: Value) -> None:
        parts = [e.load(e.iadd(f.arg[side], at)) for side in sides]
        e.store(_joined(e, parts, alphas), e.iadd(f.arg["state"], at))

    _each_vector(f, add)
    e.b.ret_void()


def _joined(e: VectorEmitter, parts: Sequence[Value], factors: Sequence[Value]) -> Value:
    return e.add(e.mul(parts[0], factors[0]), e.mul(parts[1], factors[1]))


def _merge_sums(
    f: _Function, sums: Sequence[Value], alphas: Sequence[Value], shifts: Sequence[Value]
) -> None:
    """Emit the sums for entropy and sum_p2; e1 = sum p*t moves with t -> t + shift first."""
    e, moved = f.e, []
    for side, total, shift in zip(("state", "other"), sums, shifts, strict=True):
        # A state without keys has a shift of -inf, and nothing that could move.
        near = e.select(e.b.fcmp_ordered("<", shift, e.const(FAR)), e.const(FAR), shift)
        moved.append(e.fma(near, total, e.load(f.stat(side, "e1"))))
    e.store(_joined(e, moved, alphas), f.stat("state", "e1"))
    squares = [e.load(f.stat(side, "p2")) for side in ("state", "other")]
    e.store(_joined(e, squares, [e.mul(alpha, alpha) for alpha in alphas]), f.stat("state", "p2"))


def emit_finish_row(module: Any, layout: DecodeLayout) -> None:
    """Emit finish_row(state): sums of a row instead of sums of its lanes."""
    f = _Function(module, layout, "finish_row", ("state",))
    e = f.e
    for name in ("l", "e1", "p2"):
        total, step = e.load(f.stat("state", name)), 1
        while step < e.w:
            total = e.add(total, e.shuffle(total, total, [lane ^ step for lane in range(e.w)]))
            step *= 2
        e.store(total, f.stat("state", name))
    e.b.ret_void()


def emit_put_row(module: Any, layout: DecodeLayout) -> None:
    """Emit put_row(state, out, el_stride, factor): out = acc * factor, rounded once (NUM-5)."""
    f = _Function(module, layout, "put_row", ("state", "out", "el_stride", "factor"))
    e, arg, dtype = f.e, f.arg, layout.panel.out_dtype
    size, factor = storage.itemsize(dtype), f.factor()
    acc = e.iadd(arg["state"], e.c(layout.acc_at))

    def vector(i: Value, count: int) -> None:
        value = e.mul(e.load(f.at(acc, i, layout.vector_bytes)), e.splat(factor))
        store_lanes(e, value, f.at(arg["out"], i, e.w * size), count, dtype)

    def one(d: Value) -> None:
        value = e.mul(e.load(f.at(acc, d, e.esz), e.S), factor)
        e.store(storage.encode(e, value, dtype), f.at(arg["out"], d, arg["el_stride"]), align=1)

    width = layout.panel.v_head_dim
    f.either(
        size,
        lambda: f.blocks(width, vector, "vector"),
        lambda: f.each(e.c(width), one, "element"),
    )
    e.b.ret_void()
