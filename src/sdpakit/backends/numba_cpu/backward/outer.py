"""The register tile of dK and dV: C[r][0:columns] += sum over rows i of A[r][i] * B[i][0:columns].

A are weights, or gradients of logits, of R keys: rows of W lanes for each panel of a run. B are
rows of dO or Q. A run is summed from zero, its last row first, and then added, so the roundings
of an element are those of a run and those of adding runs: fewer than of one chain over all rows.
Where runs begin follows from the layout and the mask, never from threads (DET-1).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from sdpakit.backends.numba_cpu.functions import new_function, new_module
from sdpakit.backends.numba_cpu.irtypes import Value
from sdpakit.backends.numba_cpu.layout import PanelLayout
from sdpakit.backends.numba_cpu.microkernels import prefetch
from sdpakit.backends.numba_cpu.recipes import ModuleRecipe
from sdpakit.backends.numba_cpu.vector import VectorEmitter

ARGUMENTS = (
    *("a", "a_stride", "b", "b_stride", "c", "c_row_bytes"),
    *("blocks", "groups", "panels", "guarded"),
)

LANES_AT_ONCE = 8  # between two jumps, at most: more only makes the code longer


def outer_module(layout: PanelLayout) -> ModuleRecipe:
    """Return the module with `outer`, which knows no width: only ISA and element matter."""
    element = layout.element
    plain = PanelLayout(layout.isa, element, element, head_dim=1, v_head_dim=0)
    return ModuleRecipe(_outer_text, (plain,))


def _outer_text(layout: PanelLayout) -> str:
    module = new_module("sdpakit_outer")
    OuterProduct(module, layout).emit()
    return str(module)


class OuterProduct:
    """Emits outer(a, a_stride, b, b_stride, c, c_row_bytes, blocks, groups, panels, guarded).

    `a` and `b` lie `a_stride` and `b_stride` bytes apart for one panel and the next; `blocks`
    register tiles make up a row of C, and C has `groups` times R rows. A block of B is met by all
    groups while it is in the nearest cache. Guarded, a term whose A has the bits of -0.0 (an absent
    pair) is left out, whatever B holds (MASK-3).

    Parameters
    ----------
    module : llvmlite.ir.Module
        Where the function goes.
    layout : PanelLayout
        Element and register tile.
    """

    def __init__(self, module: Any, layout: PanelLayout) -> None:
        b = new_function(module, "outer", ARGUMENTS, result=ir.VoidType())
        self.layout = layout
        self.e = VectorEmitter(b, layout.isa, layout.element)
        self.arg: dict[str, Value] = dict(zip(ARGUMENTS, b.function.args, strict=True))

    def emit(self) -> None:
        """Emit the body."""
        e, b = self.e, self.e.b
        b.comment("C stays in registers while the rows of all panels of the run go by")
        guarded = e.icmp("!=", self.arg["guarded"], e.c(0))
        with b.if_else(guarded, likely=False) as (on_true, on_false):
            with on_true:
                self._blocks(guarded=True)
            with on_false:
                self._blocks(guarded=False)
        b.ret_void()

    def _blocks(self, *, guarded: bool) -> None:
        e, layout = self.e, self.layout

        def block(i: Value, _: list[Value]) -> Sequence[Value]:
            right = e.iadd(self.arg["b"], e.imul(i, e.c(layout.width * layout.row_bytes)))
            c = e.iadd(self.arg["c"], e.imul(i, e.c(layout.row_bytes)))

            def group(g: Value, _: list[Value]) -> Sequence[Value]:
                row = e.imul(g, e.c(layout.rows))
                a = e.iadd(self.arg["a"], e.imul(row, e.c(layout.row_bytes)))
                self._tile(
                    a, right, e.iadd(c, e.imul(row, self.arg["c_row_bytes"])), guarded=guarded
                )
                return ()

            e.loop(self.arg["groups"], group, (), "outer.group", guard=False)
            return ()

        name = "outer.present" if guarded else "outer.block"
        e.loop(self.arg["blocks"], block, (), name)

    def _tile(self, left: Value, right: Value, c: Value, *, guarded: bool) -> None:
        """Emit one register tile over all panels."""
        e, layout = self.e, self.layout
        step = e.w * e.esz
        rows = [e.iadd(c, e.imul(self.arg["c_row_bytes"], e.c(r))) for r in range(layout.rows)]
        places = [e.offset(row, v * step) for row in rows for v in range(layout.vectors)]
        self._fetch_next(rows)
        a_stride, b_stride = self.arg["a_stride"], self.arg["b_stride"]

        def panel(_: Value, carried: list[Value]) -> list[Value]:
            a, b, *acc = carried
            acc = self._panel(a, b, acc, guarded=guarded)
            ahead = (e.offset(a, e.ineg(a_stride)), e.offset(b, e.ineg(b_stride)))
            return [*ahead, *acc]

        last = e.isub(self.arg["panels"], e.c(1))
        sides = ((left, a_stride), (right, b_stride))
        ends = [e.offset(side, e.imul(last, stride)) for side, stride in sides]
        start = [*ends, *[e.const(0.0)] * len(places)]
        done = e.loop(self.arg["panels"], panel, start, "outer.panel", guard=False)
        for added, place in zip(done[2:], places, strict=True):
            e.store(e.add(e.load(place), added), place)

    def _fetch_next(self, rows: Sequence[Value]) -> None:
        """Ask for the rows of the next R keys: the sums of all keys live far away."""
        e = self.e
        ahead = e.imul(self.arg["c_row_bytes"], e.c(self.layout.rows))
        for row in rows:
            prefetch(e, e.offset(row, ahead), write=True)

    def _panel(self, a: Value, b: Value, acc: list[Value], *, guarded: bool) -> list[Value]:
        """Emit the W rows of one panel, the last one first."""
        e, layout = self.e, self.layout
        # Guarded terms are rare: short code counts for more.
        count = 1 if guarded else min(LANES_AT_ONCE, layout.width)

        def lanes(_: Value, carried: list[Value]) -> list[Value]:
            a_at, b_at, *sums = carried
            for lane in reversed(range(count)):
                sums = self._lane(
                    e.offset(a_at, lane * e.esz),
                    e.offset(b_at, lane * layout.row_bytes),
                    sums,
                    guarded=guarded,
                )
            moved = e.offset(a_at, -count * e.esz), e.offset(b_at, -count * layout.row_bytes)
            return [*moved, *sums]

        last = layout.width - count
        start = [e.offset(a, last * e.esz), e.offset(b, last * layout.row_bytes), *acc]
        rounds = e.c(layout.width // count)
        return e.loop(rounds, lanes, start, "outer.lanes", guard=False)[2:]

    def _lane(self, a: Value, b: Value, acc: list[Value], *, guarded: bool) -> list[Value]:
        """Emit one row of B against R elements of A."""
        e, layout = self.e, self.layout
        vectors = [e.load(e.offset(b, v * e.w * e.esz)) for v in range(layout.vectors)]
        out = []
        for r in range(layout.rows):
            scalar = e.load(e.offset(a, r * layout.row_bytes), e.S)
            x = e.splat(scalar)
            for v, vector in enumerate(vectors):
                term = self._present(scalar, vector) if guarded else vector
                out.append(e.fma(x, term, acc[r * layout.vectors + v]))
        return out

    def _present(self, scalar: Value, vector: Value) -> Value:
        """Return the vector, 0 where the scalar has the bits of -0.0."""
        e, bits = self.e, ir.IntType(8 * self.e.esz)
        mark = ir.Constant(bits, -(1 << (bits.width - 1)))
        absent = e.icmp("==", e.b.bitcast(scalar, bits), mark)
        return e.select(absent, e.const(0.0), vector)
