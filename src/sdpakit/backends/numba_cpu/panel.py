"""The panel step: one tile of keys against one panel of W queries, as one LLVM function.

Phases, each a loop over the rows (keys) of the tile:

0. stage   dense tables [.., q, k], transposed
1. qk      S[j][:] = <q, k_j> in register tiles
2. logits  the logit expression, the mask (select, never multiply: MASK-3), maximum of each column
3. stats   new running maximum m, a whole number in log2 units, and alpha = 2**(m_old - m_new), an exact power of two
4. exp     P = 2**(logit - m), row sums
5. pv      O = O * alpha + V^T P in register tiles

Two arithmetics. FAST, where a logit is scale * dot: t = fma(S, c, -m) with c = |scale| * log2(e). GENERAL, where an
expression makes the logit x: y = x * log2(e) / 4, t = (y - m) * 4, so that finite logits up to the largest float
stay finite (MASK-5); m is a multiple of 1/4 there.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from sdpakit.backends.numba_cpu import abi, vecmath
from sdpakit.backends.numba_cpu.context import SLOT_SCALE
from sdpakit.backends.numba_cpu.layout import PanelLayout
from sdpakit.backends.numba_cpu.microkernels import pv_tile, qk_tile
from sdpakit.backends.numba_cpu.staging import Staged, StagingLoop, read
from sdpakit.backends.numba_cpu.vector import I64, Lanes, VectorEmitter

Value = Any
LogitFn = Callable[[Lanes, Value], Value]
MaskFn = Callable[[Lanes], Value]

STEP_ARGUMENTS = (
    "ctx",
    "kt",
    "vt",
    "n",
    "j0",
    "flags",
    "qt",
    "ot",
    "p",
    "st",
    "b",
    "h",
    "i0",
    "nq",
)
QUARTER = math.log2(math.e) / 4
FAR = -1000.0  # below every t with a non-zero weight; keeps 0 * t finite in the entropy sum


@dataclass(frozen=True)
class Pairs:
    """What the logit and the mask of a kernel are.

    Attributes
    ----------
    logit : callable or None
        (lanes, raw dot product) -> logit in natural units; None = FAST.
    mask : callable or None
        lanes -> <w x i1>, True = may attend; None = every pair, no tile is PARTIAL.
    int_bits : int
        Width of integer lanes, 32 or 64.
    staged : sequence of Staged
        Dense tables that `Lanes.dense` reads, in the order of `PanelLayout.dense`.
    """

    logit: LogitFn | None = None
    mask: MaskFn | None = None
    int_bits: int = 32
    staged: Sequence[Staged] = ()


class PanelStep:
    """Emits the function `step`."""

    def __init__(self, function: Any, layout: PanelLayout, pairs: Pairs) -> None:
        self.layout = layout
        self.pairs = pairs
        self.e = VectorEmitter(
            ir.IRBuilder(function.append_basic_block("entry")), layout.isa, layout.element
        )
        for argument, name in zip(function.args, STEP_ARGUMENTS, strict=True):
            argument.name = name
        self.arg: dict[str, Value] = dict(zip(STEP_ARGUMENTS, function.args, strict=True))
        self._mantissa = 23 if layout.element == "float32" else 52
        self.unroll = 4 if layout.rows % 4 == 0 else 2

    # --- addresses ---

    def row(self, base: Value, index: Value | int) -> Value:
        """Return the address of a row of W values."""
        if isinstance(index, int):
            return self.e.offset(base, index * self.layout.row_bytes)
        return self.e.offset(base, self.e.imul(index, self.e.c(self.layout.row_bytes)))

    def vector(self, row: Value, v: int) -> Value:
        """Return the address of vector v of a row."""
        return self.e.offset(row, v * self.layout.lanes * self.layout.esz)

    def stat(self, name: str, v: int) -> Value:
        """Return the address of vector v of a row of the statistics."""
        return self.vector(self.row(self.arg["st"], self.layout.stat_rows.index(name)), v)

    # --- the function ---

    def emit(self) -> None:
        """Emit the body."""
        e, b = self.e, self.e.b
        self._skip_first_rows()
        n = self.arg["n"]
        rows = e.c(self.layout.rows)
        groups = b.sdiv(e.iadd(n, e.c(self.layout.rows - 1)), rows)
        self.blocks = b.sdiv(e.iadd(n, e.c(self.unroll - 1)), e.c(self.unroll))
        flag = b.and_(self.arg["flags"], e.c(abi.FLAG_PARTIAL))
        self.partial = e.icmp("!=", flag, e.c(0))
        self._stage()
        b.comment("phase 1: S = K Q^T, raw products")
        self.top = self._qk(groups)
        self.padded = e.imul(groups, rows)
        self._clear_rows(n, self.padded)
        b.comment(
            "phase 2: logits, mask (MASK-3: select), column maximum; a NaN does not enter it (NUM-4)"
        )
        top = self._logits(n)
        b.comment(
            "phase 3: running maximum m stays -inf until a key is seen (NUM-2); alpha is a power of two"
        )
        self._statistics(top)
        b.comment("phase 4: P = 2**(logit - m) and its sums; -0.0 marks an absent pair")
        self._exp_phase()
        b.comment("phase 5: O = O * alpha + V^T P")
        self._pv_phase(n)
        b.ret_void()

    def _skip_first_rows(self) -> None:
        """Move K, n and j0 to the first row that the flags name; V follows group by group."""
        e = self.e
        first = e.b.lshr(self.arg["flags"], e.c(abi.FLAG_FIRST_SHIFT), name="first")
        self.first = first
        self.arg["kt"] = e.iadd(self.arg["kt"], e.imul(first, e.c(self.layout.k_row_bytes)))
        self.arg["n"] = e.isub(self.arg["n"], first)
        self.arg["j0"] = e.iadd(self.arg["j0"], first)

    def _stage(self) -> None:
        """Emit phase 0: staged tables, those of the mask only for a PARTIAL tile."""
        for k, table in enumerate(self.pairs.staged):
            self.e.b.comment(f"phase 0: stage table {k} ({table.dtype})")
            tile = self.e.iadd(self.arg["p"], self.e.c((k + 1) * self.layout.tile_bytes))
            loop = functools.partial(StagingLoop, self.e, self.layout, table, self.arg, tile)
            if table.for_mask:
                with self.e.b.if_then(self.partial):
                    loop().emit()
            else:
                loop().emit()

    def _qk(self, groups: Value) -> list[Value]:
        """Emit the products and return the maximum of each column over all rows, pad rows included."""
        e, layout = self.e, self.layout

        def body(g: Value, top: list[Value]) -> Sequence[Value]:
            k = e.offset(self.arg["kt"], e.imul(g, e.c(layout.rows * layout.k_row_bytes)))
            s = e.offset(self.arg["p"], e.imul(g, e.c(layout.rows * layout.row_bytes)))
            return qk_tile(e, layout, k, e.pointer(self.arg["qt"]), s, top)

        lowest = [e.const(-math.inf)] * layout.vectors
        return e.loop(groups, body, lowest, "phase.qk", guard=False)

    def _clear_rows(self, start: Value, stop: Value) -> None:
        """Make the products of rows past the last key absent."""
        e = self.e

        def body(i: Value, _: list[Value]) -> Sequence[Value]:
            row = self.row(self.arg["p"], e.iadd(start, i))
            for v in range(self.layout.vectors):
                e.store(e.const(-math.inf), self.vector(row, v))
            return ()

        e.loop(e.isub(stop, start), body, (), "clear.rows")

    # --- phase 2 ---

    def _logits(self, n: Value) -> list[Value]:
        """Emit the logits and return the maximum of each column."""
        if self.pairs.mask is None:
            return self._full_rows(n)
        return self.branch(
            self.partial, lambda: self._logit_rows(n, True), lambda: self._full_rows(n), "logits"
        )

    def _full_rows(self, n: Value) -> list[Value]:
        """Emit the logits of a tile without mask; plain ones need a pass only if pad rows spoilt the maximum."""
        if self.pairs.logit is not None:
            return self._logit_rows(n, False)
        ragged = self.e.icmp("!=", n, self.padded)
        return self.branch(ragged, self._max_rows, lambda: self.top, "top")

    def branch(
        self,
        condition: Value,
        then: Callable[[], Sequence[Value]],
        other: Callable[[], Sequence[Value]],
        name: str,
    ) -> list[Value]:
        """Emit if/else and return the values of the side taken."""
        b = self.e.b
        with b.if_else(condition) as (on_true, on_false):
            with on_true:
                a_values = list(then())
                a_block = b.block
            with on_false:
                b_values = list(other())
                b_block = b.block
        merged = []
        for x, y in zip(a_values, b_values, strict=True):
            phi = b.phi(x.type, name=name)
            phi.add_incoming(x, a_block)
            phi.add_incoming(y, b_block)
            merged.append(phi)
        return merged

    def _logit_rows(self, n: Value, masked: bool) -> list[Value]:
        """Emit the pass over the rows: logits and mask in place, column maxima as the result."""
        e, vectors = self.e, self.layout.vectors
        lowest = [e.const(-math.inf)] * vectors
        queries = [self._query_lanes(v) for v in range(vectors)]

        def body(i: Value, top: list[Value]) -> Sequence[Value]:
            row, j = self.row(self.arg["p"], i), e.iadd(self.arg["j0"], i)
            return [
                e.max_seen(
                    self._pair(self.vector(row, v), self._lanes(v, queries[v], i, j), masked),
                    top[v],
                )
                for v in range(vectors)
            ]

        name = "phase.logits.partial" if masked else "phase.logits.full"
        return e.loop(n, body, lowest, name, guard=False)

    def _pair(self, address: Value, lanes: Lanes, masked: bool) -> Value:
        """Emit logit and mask of one vector and return what was stored."""
        e = self.e
        value = e.load(address)
        if self.pairs.logit is not None:
            value = e.mul(self.pairs.logit(lanes, value), e.const(QUARTER))
        if masked and self.pairs.mask is not None:
            value = e.select(self.pairs.mask(lanes), value, e.const(-math.inf))
        e.store(value, address)
        return value

    def _max_rows(self) -> list[Value]:
        """Emit the column maximum alone; rows past the last key hold -inf."""
        e, vectors = self.e, self.layout.vectors
        lowest = [e.const(-math.inf)] * vectors

        def body(i: Value, top: list[Value]) -> Sequence[Value]:
            row = self.row(self.arg["p"], e.imul(i, e.c(self.unroll)))
            new = list(top)
            for u in range(self.unroll):
                for v in range(vectors):
                    k = (u % 2) * vectors + v
                    new[k] = e.max_seen(e.load(self.vector(self.row(row, u), v)), new[k])
            return new

        top = e.loop(self.blocks, body, lowest * 2, "phase.max.full", guard=False)
        return [e.max_seen(top[v], top[vectors + v]) for v in range(vectors)]

    def _query_lanes(self, v: int) -> Value:
        """Return the row index of each lane, the last valid row repeated."""
        e, bits = self.e, self.pairs.int_bits
        lane = e.iadd(e.lane_ids(64), e.iconst(v * e.w, 64))
        last = e.splat(e.isub(self.arg["nq"], e.c(1)))
        return e.resize_int(e.iadd(e.imin(lane, last), e.splat(self.arg["i0"])), bits)

    def _lanes(self, v: int, q: Value, i: Value, j: Value) -> Lanes:
        arg, layout = self.arg, self.layout

        def dense(k: int) -> Value:
            tile = self.e.offset(arg["p"], (k + 1) * layout.tile_bytes)
            return read(self.e, self.pairs.staged[k], self.vector(self.row(tile, i), v))

        return Lanes(self.e, v, q, j, arg["b"], arg["h"], arg["ctx"], self.pairs.int_bits, dense)

    # --- phase 3 ---

    def _statistics(self, top: Sequence[Value]) -> None:
        """Emit the new maxima and the rescaling of l (and of the sums for entropy and sum_p2)."""
        e = self.e
        scale = (
            e.splat(e.load_ctx_float(self.arg["ctx"], SLOT_SCALE))
            if self.pairs.logit is None
            else None
        )
        self.scale, self.base, self.factor = scale, [], []
        for v, column in enumerate(top):
            old = e.load(self.stat("m", v))
            e.store(e.max_seen(column, e.load(self.stat("tmax", v))), self.stat("tmax", v))
            new = e.max_seen(self._whole(column), old)
            e.store(new, self.stat("m", v))
            base = self._guarded(new)
            alpha = vecmath.exp2_integer(e, self._in_log2(e.sub(old, base)))
            e.store(alpha, self.stat("alpha", v))
            self._rescale(v, alpha, self._in_log2(e.sub(self._guarded(old), base)))
            self.base.append(base)
        if scale is not None:
            self._scale_huge(scale)

    def _scale_huge(self, scale: Value) -> None:
        """Scale the rows of lanes with huge logits ahead, so that their t = S * c - m is a difference of rounded numbers.

        m is rounded, S * c inside a multiply-add is not: above the whole numbers of the element their difference could
        be anything up to a last place of m. Each lane decides for itself, so its bits do not depend on its neighbours.
        """
        e, b = self.e, self.e.b
        limit, one = e.const(2.0 ** (self._mantissa - 1)), e.const(1.0)
        huge = [b.fcmp_ordered(">=", e.abs(base), limit) for base in self.base]
        self.factor = [e.select(h, one, scale) for h in huge]
        any_lane = functools.reduce(e.or_, huge)
        lanes = b.bitcast(any_lane, ir.IntType(e.w))
        with b.if_then(b.icmp_unsigned("!=", lanes, ir.Constant(lanes.type, 0)), likely=False):
            ahead = [e.select(h, scale, one) for h in huge]

            def body(i: Value, _: list[Value]) -> Sequence[Value]:
                for v, factor in enumerate(ahead):
                    address = self.vector(self.row(self.arg["p"], i), v)
                    e.store(e.mul(e.load(address), factor), address)
                return ()

            e.loop(self.padded, body, (), "scale.huge", guard=False)

    def _in_log2(self, x: Value) -> Value:
        """Return a difference of maxima in log2 units."""
        return x if self.pairs.logit is None else self.e.mul(x, self.e.const(4.0))

    def _whole(self, column: Value) -> Value:
        """Return a maximum rounded up so that differences of maxima are whole powers of two."""
        e = self.e
        if self.scale is not None:
            return e.ceil(e.mul(column, self.scale))
        rounded = e.mul(e.ceil(e.mul(column, e.const(4.0))), e.const(0.25))
        small = e.b.fcmp_ordered("<", e.abs(column), e.const(2.0 ** (self._mantissa - 2)))
        return e.select(small, rounded, column)  # larger values are multiples of 1/4 already

    def _guarded(self, m: Value) -> Value:
        """NUM-2: 0 for a maximum of -inf; NaN for +inf, whose row is NaN (NUM-4)."""
        e = self.e
        finite = e.select(e.fcmp("==", m, e.const(-math.inf)), e.const(0.0), m)
        return e.select(e.fcmp("==", m, e.const(math.inf)), e.const(math.nan), finite)

    def _rescale(self, v: int, alpha: Value, shift: Value) -> None:
        """Bring l, e1 and p2 to the new maximum; e1 = sum p*t moves with t -> t + shift first."""
        e = self.e
        l_old = e.load(self.stat("l", v))
        e.store(e.mul(l_old, alpha), self.stat("l", v))
        if self.layout.statistics:
            moved = e.fma(self._not_far(shift), l_old, e.load(self.stat("e1", v)))
            e.store(e.mul(moved, alpha), self.stat("e1", v))
            squares = e.mul(e.load(self.stat("p2", v)), e.mul(alpha, alpha))
            e.store(squares, self.stat("p2", v))

    def _not_far(self, t: Value) -> Value:
        """Return max(t, FAR); NaN stays."""
        e = self.e
        return e.select(e.b.fcmp_ordered("<", t, e.const(FAR)), e.const(FAR), t)

    # --- phase 4 ---

    def _exp_phase(self) -> None:
        e, layout = self.e, self.layout
        names = ("l", "e1", "p2") if layout.statistics else ("l",)
        if self.pairs.logit is not None or self.pairs.mask is None:
            sums = self._exp_rows(self.pairs.logit is not None, len(names))
        else:
            partial = lambda: self._exp_rows(True, len(names))  # noqa: E731
            sums = self.branch(
                self.partial, partial, lambda: self._exp_rows(False, len(names)), "sums"
            )
        for k, name in enumerate(names):
            for v in range(layout.vectors):
                address = self.stat(name, v)
                e.store(e.add(e.load(address), sums[k * layout.vectors + v]), address)

    def _exp_rows(self, marked: bool, sums: int) -> list[Value]:
        """Emit the pass that turns logits into weights; returns the sums of p (and p*t, p*p) by vector."""
        vectors = range(self.layout.vectors)
        if self.layout.isa.registers >= 32:
            return self._exp_columns(list(vectors), marked, sums)
        # With 16 registers the constants of one vector fill the file: one pass for each vector of a row.
        columns = [self._exp_columns([v], marked, sums) for v in vectors]
        return [columns[v][k] for k in range(sums) for v in vectors]

    def _exp_columns(self, columns: Sequence[int], marked: bool, sums: int) -> list[Value]:
        """Emit one pass over all rows of some vectors; returns their sums, by kind, then by vector."""
        e, count = self.e, len(columns)

        def body(i: Value, acc: list[Value]) -> Sequence[Value]:
            block = self.row(self.arg["p"], e.imul(i, e.c(self.unroll)))
            new = list(acc)
            for u in range(self.unroll):
                for c, v in enumerate(columns):
                    terms = self._weight(self.vector(self.row(block, u), v), v, marked)[:sums]
                    for k, term in enumerate(terms):
                        new[k * count + c] = e.add(new[k * count + c], term)
            return new

        zero = [e.const(0.0)] * (count * sums)
        name = "phase.exp.partial" if marked else "phase.exp.full"
        return e.loop(self.blocks, body, zero, name, guard=False)

    def _weight(self, address: Value, v: int, marked: bool) -> list[Value]:
        """Emit one vector of weights; return p, p*t, p*p."""
        e = self.e
        s = e.load(address)
        if self.scale is not None:
            t = e.fma(s, self.factor[v], e.neg(self.base[v]))
        else:
            t = e.mul(e.sub(s, self.base[v]), e.const(4.0))
        weight = vecmath.exp2_weight(e, t)
        if marked:
            weight = e.select(e.fcmp("==", s, e.const(-math.inf)), e.const(-0.0), weight)
        e.store(weight, address)
        if not self.layout.statistics:
            return [weight]
        return [weight, e.mul(weight, self._not_far(t)), e.mul(weight, weight)]

    # --- phase 5 ---

    def _pv_phase(self, n: Value) -> None:
        """Emit the products with V; the guarded ones run only where a poisoned V meets an absent pair."""
        e, b = self.e, self.e.b
        if self.layout.v_head_dim == 0:
            return
        if self.pairs.logit is None and self.pairs.mask is None:
            self._pv(n, False)
            return
        flag = b.and_(self.arg["flags"], e.c(abi.FLAG_NONFINITE_V))
        poisoned = e.icmp("!=", flag, e.c(0))
        if self.pairs.logit is None:
            poisoned = e.and_(poisoned, self.partial)
        with b.if_else(poisoned, likely=False) as (on_true, on_false):
            with on_true:
                self._pv(n, True)
            with on_false:
                self._pv(n, False)

    def _pv(self, n: Value, guarded: bool) -> None:
        """Emit the loop over groups of columns of V, one loop for each of the (at most two) group sizes."""
        groups = self.layout.v_groups
        for size in sorted({size for _, size, _ in groups}, reverse=True):
            d0, _, start = next(group for group in groups if group[1] == size)
            count = sum(group[1] == size for group in groups)
            self._pv_groups(n, size, count, d0, start, guarded)

    def _pv_groups(
        self, n: Value, size: int, count: int, d0: int, start: int, guarded: bool
    ) -> None:
        e, layout = self.e, self.layout
        skipped = e.imul(self.first, e.c(size * layout.esz))
        v_start = e.iadd(e.iadd(self.arg["vt"], e.c(start)), skipped)
        out_start = e.iadd(self.arg["ot"], e.c(d0 * layout.row_bytes))

        def body(g: Value, _: list[Value]) -> Sequence[Value]:
            v = e.offset(v_start, e.imul(g, e.c(layout.v_group_bytes(size))))
            out = e.offset(out_start, e.imul(g, e.c(size * layout.row_bytes)))
            alpha = [e.load(self.stat("alpha", i)) for i in range(layout.vectors)]
            pv_tile(e, layout, size, v, e.pointer(self.arg["p"]), out, alpha, n, guarded)
            return ()

        e.loop(e.c(count), body, (), f"phase.pv.{size}{'.absent' if guarded else ''}", guard=False)


def declare_step(module: Any) -> Any:
    """Return the declared function `step` of a module."""
    kind = ir.FunctionType(ir.VoidType(), [I64] * len(STEP_ARGUMENTS))
    function = ir.Function(module, kind, "step")
    function.attributes.add("nounwind")
    return function
