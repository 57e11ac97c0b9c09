"""One tile of keys against one panel of query rows, in the backward pass.

Phases, each a loop over the rows (keys) of the tile:

0. stage   dense tables [.., q, k], transposed
1. qk      S[j][:] = <q, k_j>, again
2. dp      dP[j][:] = <dO / l, v_j>
3. pairs   P = 2**(logit - m), the weight times l, and dS = P (dP - delta) x', where delta is that
           of dO / l and x' = d logit / d<q, k>; an absent pair holds -0.0 in both (MASK-3)
4. dq      dQ^T += K^T dS

The sum l of a row rides on dO, so a weight is never divided, and m and l stay apart: one rounded
logarithm of both would cost digits of every weight (NUM-3). Logits are made as in the forward pass
(`panel.py`): FAST, t = S c - m of plain products, x' a constant left to the end; or GENERAL.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from sdpakit.backends.numba_cpu import abi, staging, vecmath
from sdpakit.backends.numba_cpu.backward.layout import BackwardLayout
from sdpakit.backends.numba_cpu.context import SLOT_SCALE
from sdpakit.backends.numba_cpu.functions import new_function
from sdpakit.backends.numba_cpu.irtypes import Value
from sdpakit.backends.numba_cpu.layout import PanelLayout
from sdpakit.backends.numba_cpu.logits import NATURAL
from sdpakit.backends.numba_cpu.products import call_pv, call_qk, columns_in_memory
from sdpakit.backends.numba_cpu.vector import Lanes, VectorEmitter

ARGUMENTS = (
    *("ctx", "tile", "panel", "pairs", "staged", "n", "j0", "flags"),
    *("b", "h", "i0", "nq", "sums"),
)

ROWS_AT_ONCE = 2  # of the pass over weights; divides R


@dataclass(frozen=True)
class PairTerms:
    """What the pairs of a program are.

    Attributes
    ----------
    logit : callable or None
        (lanes, raw product) -> (logit in natural units, its slope x'); None is FAST.
    mask : callable or None
        lanes -> <w x i1>, True = may attend; None = every pair.
    scatter : callable or None
        (lanes, raw product, gradient of the logit, present, address of `sums`) adds to the sums of
        tables; given for the pass of the tables alone.
    int_bits : int
        Width of integer lanes.
    staged : sequence of Staged
        Dense tables.
    """

    logit: Callable[[Lanes, Value], tuple[Value, Value]] | None
    mask: Callable[[Lanes], Value] | None
    scatter: Callable[[Lanes, Value, Value, Value, Value], None] | None
    int_bits: int
    staged: Sequence[staging.Staged]


class BackwardStep:
    """Emits the function NAME(ctx, tile, panel, pairs, staged, n, j0, flags, b, h, i0, nq, sums).

    Parameters
    ----------
    module : llvmlite.ir.Module
        Where it goes.
    name : str
        Its name.
    layout : BackwardLayout
        Sizes.
    terms : PairTerms
        Logit, mask and tables. With `scatter` the step adds to tables and leaves dQ alone.
    """

    def __init__(self, module: Any, name: str, layout: BackwardLayout, terms: PairTerms) -> None:
        b = new_function(module, name, ARGUMENTS, result=ir.VoidType())
        self.sizes, self.layout, self.terms = layout, layout.keys, terms
        self.e = e = VectorEmitter(b, self.layout.isa, self.layout.element)
        self.arg: dict[str, Value] = dict(zip(ARGUMENTS, b.function.args, strict=True))
        rows = self.layout.rows
        self.first = b.lshr(self.arg["flags"], e.c(abi.FLAG_FIRST_SHIFT), name="first")
        self.first_group = b.sdiv(self.first, e.c(rows))
        self.end_group = b.sdiv(e.iadd(self.arg["n"], e.c(rows - 1)), e.c(rows))
        self.count = e.isub(self.arg["n"], self.first)
        self.weights = self.arg["pairs"]
        self.slopes = e.iadd(self.arg["pairs"], e.c(self.layout.tile_bytes))
        self.vectors = range(self.layout.vectors)

    def emit(self) -> None:
        """Emit the body."""
        say = self.e.b.comment
        self._stage()
        say("phase 1: S = K Q^T, recomputed (bits of the forward pass)")
        self._products(self.layout, 0, "qt", self.weights)
        say("phase 2: dP = V (dO / l)^T")
        self._products(self.sizes.values, self.sizes.v_rows_at, "dot", self.slopes)
        say("phase 3: weights, and gradients of the logits")
        self._pairs()
        if self.terms.scatter is None:
            self._clear_rows()
            say("phase 4: dQ^T += K^T dS")
            self._dq()
        self.e.b.ret_void()

    # --- addresses ---

    def _flag(self, bits: int) -> Value:
        return self.e.icmp("!=", self.e.b.and_(self.arg["flags"], self.e.c(bits)), self.e.c(0))

    def row(self, base: Value, index: Value) -> Value:
        """Return the address of a row of W values."""
        return self.e.offset(base, self.e.imul(index, self.e.c(self.layout.row_bytes)))

    def vector(self, row: Value, v: int) -> Value:
        """Return the address of vector v of a row."""
        return self.e.offset(row, v * self.e.w * self.e.esz)

    def part(self, name: str) -> Value:
        """Return the address of a part of the panel, see `BackwardLayout.panel_parts`."""
        return self.e.iadd(self.arg["panel"], self.e.c(self.sizes.panel_parts[name]))

    # --- phases ---

    def _stage(self) -> None:
        """Emit phase 0; rows before `first` are staged, too."""
        e = self.e
        for k, table in enumerate(self.terms.staged):
            e.b.comment(f"phase 0: stage table {k} ({table.dtype})")
            tile = e.iadd(self.arg["staged"], e.c(k * self.layout.tile_bytes))
            with e.b.if_then(self._careful() if table.for_mask else e.c1(1)):
                staging.StagingLoop(e, self.layout, table, self.arg, tile).emit()

    def _careful(self) -> Value:
        """Return whether pairs may be absent, or numbers are not finite."""
        return self._flag(abi.FLAG_PARTIAL | abi.FLAG_NONFINITE_ROWS | abi.FLAG_NONFINITE_KEYS)

    def _products(self, layout: PanelLayout, at: int, lanes: str, target: Value) -> None:
        """Emit the products of packed rows with the lanes of a panel."""
        e, right, group = self.e, self.part(lanes), self.first_group
        source = e.iadd(self.arg["tile"], e.c(at))
        rows = e.iadd(source, e.imul(group, e.c(layout.rows * layout.k_row_bytes)))
        place = self.row(target, e.imul(group, e.c(layout.rows)))
        count = e.isub(self.end_group, group)
        call_qk(e, layout, (rows, right, right, place, count))

    def _pairs(self) -> None:
        """Emit phase 3 in the variants that a tile may need."""
        e, terms = self.e, self.terms
        exponents = _Exponents(self)
        if terms.logit is None:
            exponents.prepare(self.row(self.weights, self.first), self.count)
        careful = functools.partial(self._careful_rows, exponents)
        if terms.logit is not None and terms.mask is None:
            careful(masked=False)
            return
        with e.b.if_else(self._careful(), likely=False) as (on_true, on_false):
            with on_true:
                careful(masked=terms.mask is not None)
            with on_false:
                if terms.logit is None:
                    self._plain_rows(exponents)
                else:
                    careful(masked=False)

    def _delta(self, v: int) -> Value:
        return self.e.load(self.vector(self.part("delta"), v))

    def _plain_rows(self, exponents: _Exponents) -> None:
        """Emit the pass over pairs all of which are present and finite: the hot one.

        Rows past the last key take part, so that blocks are whole; they are cleared afterwards.
        """
        columns = [list(self.vectors)]
        if self.layout.isa.registers < 32:  # the constants of one vector fill the file
            columns = [[v] for v in self.vectors]
        for some in columns:
            self._plain_columns(exponents, some)

    def _plain_columns(self, exponents: _Exponents, columns: Sequence[int]) -> None:
        e, start = self.e, self.first
        delta = {v: self._delta(v) for v in columns}

        def body(i: Value, _: list[Value]) -> Sequence[Value]:
            block = e.iadd(start, e.imul(i, e.c(ROWS_AT_ONCE)))
            rows = [e.iadd(block, e.c(r)) for r in range(ROWS_AT_ONCE)]
            spots = [(self._places(j, v), v) for j in rows for v in columns]
            logits = [(e.load(places[0]), v) for places, v in spots]
            for p, (places, v) in zip(exponents.weights(logits), spots, strict=True):
                e.store(p, places[0])
                e.store(e.mul(p, e.sub(e.load(places[1]), delta[v])), places[1])
            return ()

        padded = e.imul(e.isub(self.end_group, self.first_group), e.c(self.layout.rows))
        e.loop(e.b.sdiv(padded, e.c(ROWS_AT_ONCE)), body, (), "phase.pairs", guard=False)

    def _places(self, j: Value, v: int) -> list[Value]:
        """Return where a vector of logits or weights, and one of dP or dS, is kept."""
        return [self.vector(self.row(base, j), v) for base in (self.weights, self.slopes)]

    def _careful_rows(self, exponents: _Exponents, *, masked: bool) -> None:
        """Emit the pass over the rows of a tile in which pairs may be absent."""
        e = self.e
        queries = [self._queries(v) for v in self.vectors]

        def body(i: Value, _: list[Value]) -> Sequence[Value]:
            j = e.iadd(self.first, i)
            for v in self.vectors:
                lanes = self._lanes(v, queries[v], j)
                self._careful_pair(exponents, lanes, self._places(j, v), masked=masked)
            return ()

        e.loop(self.count, body, (), f"phase.pairs.{'masked' if masked else 'all'}", guard=False)

    def _careful_pair(
        self,
        exponents: _Exponents,
        lanes: _NumberedLanes,
        places: Sequence[Value],
        *,
        masked: bool,
    ) -> None:
        """Emit one vector of pairs some of which may be absent."""
        e, terms, v = self.e, self.terms, lanes.v
        raw, slope = e.load(places[0]), None
        x = raw
        if terms.logit is not None:
            natural, slope = terms.logit(lanes, raw)
            x = e.mul(natural, e.const(NATURAL))
        present = e.fcmp("!=", x, e.const(-math.inf))  # MASK-6
        present = e.and_(present, self._valid(v))
        if masked and terms.mask is not None:
            present = e.and_(present, terms.mask(lanes))
        p = exponents.weights([(x, v)])[0]
        gradient = e.mul(p, e.sub(e.load(places[1]), self._delta(v)))
        if terms.scatter is not None:
            terms.scatter(lanes, raw, gradient, present, self.arg["sums"])
            return
        if slope is not None:
            gradient = e.mul(gradient, slope)
        absent = e.const(-0.0)
        e.store(e.select(present, p, absent), places[0])
        # What is present must not have the bits of the mark.
        e.store(e.select(present, e.add(gradient, e.const(0.0)), absent), places[1])

    def _clear_rows(self) -> None:
        """Make the pairs of rows past the last key, up to whole register tiles, absent."""
        e = self.e
        padded = e.imul(self.end_group, e.c(self.layout.rows))

        def body(i: Value, _: list[Value]) -> Sequence[Value]:
            j = e.iadd(self.arg["n"], i)
            for base in (self.weights, self.slopes):
                for v in self.vectors:
                    e.store(e.const(-0.0), self.vector(self.row(base, j), v))
            return ()

        e.loop(e.isub(padded, self.arg["n"]), body, (), "clear.rows")

    def _dq(self) -> None:
        """Emit phase 4; terms of absent pairs are picked out where K is not finite."""
        e, layout = self.e, self.sizes.values
        ones = columns_in_memory(e, layout)
        for v in self.vectors:
            e.store(e.const(1.0), self.vector(ones, v))
        operands = {
            "vt": e.iadd(self.arg["tile"], e.c(self.sizes.k_columns_at)),
            "p": self.row(self.slopes, self.first),
            "out": self.part("dqt"),
            "alpha": ones,
            "first": self.first,
            "n": self.count,
            "guarded": self._flag(abi.FLAG_NONFINITE_KEYS),
        }
        call_pv(e, layout, operands)

    # --- lanes ---

    def _lane_numbers(self, v: int) -> Value:
        return self.e.iadd(self.e.lane_ids(64), self.e.iconst(v * self.e.w, 64))

    def _valid(self, v: int) -> Value:
        """Return the lanes that hold a row."""
        return self.e.icmp("<", self._lane_numbers(v), self.e.splat(self.arg["nq"]))

    def _queries(self, v: int) -> Value:
        """Return the row index of each lane, the last valid row repeated."""
        e, arg = self.e, self.arg
        last = e.splat(e.isub(arg["nq"], e.c(1)))
        row = e.iadd(e.imin(self._lane_numbers(v), last), e.splat(arg["i0"]))
        return e.resize_int(row, self.terms.int_bits)

    def _lanes(self, v: int, q: Value, j: Value) -> _NumberedLanes:
        e, arg = self.e, self.arg

        def dense(k: int) -> Value:
            tile = e.offset(arg["staged"], k * self.layout.tile_bytes)
            table = self.terms.staged[k]
            return staging.read(e, table, staging.place(e, self.layout, table, tile, j, v))

        key = e.iadd(arg["j0"], j)
        return _NumberedLanes(
            e, q, key, arg["b"], arg["h"], arg["ctx"], self.terms.int_bits, dense, v
        )


@dataclass(frozen=True)
class _NumberedLanes(Lanes):
    """Lanes that know which vector of the panel they are."""

    v: int


class _Exponents:
    """Makes weights of logits: those of one panel, whose maxima are known.

    Parameters
    ----------
    step : BackwardStep
        The step.
    """

    def __init__(self, step: BackwardStep) -> None:
        self.step, self.e = step, step.e
        self.mantissa = 23 if step.layout.element == "float32" else 52
        part = step.part("base")
        self.base = [self.e.load(step.vector(part, v)) for v in step.vectors]
        self.factor: list[Value] = []
        self.offset: list[Value] = []
        self.general = step.terms.logit is not None

    def weights(self, logits: Sequence[tuple[Value, int]]) -> list[Value]:
        """Return 2**t of logits, each with the number of its vector.

        Logits are in units of m (GENERAL), or products as `prepare` left them.
        """
        e = self.e
        if self.general:
            ts = [e.mul(e.sub(x, self.base[v]), e.const(abi.M_UNIT)) for x, v in logits]
        else:
            ts = [e.fma(x, self.factor[v], self.offset[v]) for x, v in logits]
        return vecmath.exp2_weights(e, ts)

    def prepare(self, rows: Value, count: Value) -> None:
        """Set how t is made of a product; make it ahead in lanes whose logits are huge.

        As in the forward pass: m is rounded there, S c inside a multiply-add is not, and their
        difference could be anything up to a last place of m.
        """
        e, b = self.e, self.e.b
        scale = e.splat(e.load_ctx_float(self.step.arg["ctx"], SLOT_SCALE))
        limit = e.const(2.0 ** (self.mantissa - 3))
        huge = [b.fcmp_ordered(">=", e.abs(base), limit) for base in self.base]
        for base, lanes in zip(self.base, huge, strict=True):
            self.factor.append(e.select(lanes, e.const(1.0), scale))
            self.offset.append(e.select(lanes, e.const(0.0), e.mul(base, e.const(-abi.M_UNIT))))
        bits = b.bitcast(functools.reduce(e.or_, huge), ir.IntType(e.w))
        some = b.icmp_unsigned("!=", bits, ir.Constant(bits.type, 0))
        unit = e.mul(scale, e.const(1 / abi.M_UNIT))

        def row(i: Value, _: list[Value]) -> Sequence[Value]:
            for v, lanes in enumerate(huge):
                step = self.step
                at = step.vector(step.row(rows, i), v)
                s = e.load(at)
                t = e.mul(e.sub(e.mul(s, unit), self.base[v]), e.const(abi.M_UNIT))
                e.store(e.select(lanes, t, s), at)
            return ()

        with b.if_then(some, likely=False):
            e.loop(count, row, (), "exponents.ahead", guard=False)
