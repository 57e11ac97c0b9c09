"""What all phases of a panel step share: arguments, addresses of rows, if/else with values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from llvmlite import ir

from sdpakit.backends.numba_cpu import abi
from sdpakit.backends.numba_cpu.functions import new_function
from sdpakit.backends.numba_cpu.irtypes import Value
from sdpakit.backends.numba_cpu.isa import Element, Isa
from sdpakit.backends.numba_cpu.layout import PanelLayout
from sdpakit.backends.numba_cpu.microkernels import CACHE_LINE, qk_rounds
from sdpakit.backends.numba_cpu.schedule import panel_bytes
from sdpakit.backends.numba_cpu.vector import VectorEmitter

Emit = Callable[[], Sequence[Value]]

STEP_ARGUMENTS = (
    *("ctx", "kt", "vt", "n", "j0", "flags", "qt", "ot", "p", "st"),
    *("b", "h", "i0", "nq", "whole_lo", "whole_hi"),
)


class SoftmaxLayout(Protocol):
    """What the softmax of a step wants to know of its sizes; see `PanelLayout`."""

    @property
    def isa(self) -> Isa:
        """What the code runs on."""

    @property
    def element(self) -> Element:
        """Compute element."""

    @property
    def vectors(self) -> int:
        """Vectors in a row of weights, each with statistics of its own."""

    @property
    def statistics(self) -> bool:
        """Whether the sums for entropy and sum_p2 are kept."""

    @property
    def row_maximum(self) -> bool:
        """Whether the largest logit is kept."""


class SoftmaxFrame(Protocol):
    """Where the softmax of a step finds weights and statistics; see `PanelFrame`."""

    e: VectorEmitter
    arg: dict[str, Value]
    padded: Value
    blocks: Value
    partial: Value
    unroll: int

    @property
    def layout(self) -> SoftmaxLayout:
        """Sizes."""

    def row(self, base: Value, index: Value | int) -> Value:
        """Return the address of a row of weights, counted from another one."""

    def weights(self, index: Value | int) -> Value:
        """Return the address of a row of weights."""

    def vector(self, row: Value, v: int) -> Value:
        """Return the address of vector v of a row."""

    def stat(self, name: str, v: int) -> Value:
        """Return the address of the statistics of vector v."""

    def branch(self, condition: Value, then: Emit, other: Emit) -> list[Value]:
        """Emit if/else and return the values of the side taken."""


class PanelFrame:
    """Arguments and derived numbers of one step.

    Parameters
    ----------
    module : llvmlite.ir.Module
        Where the function `step` goes, which is made here.
    layout : PanelLayout
        Sizes.

    Attributes
    ----------
    e : VectorEmitter
        Where instructions go.
    arg : dict
        Arguments by name; kt, n and j0 are moved to the first row that the flags name.
    first, n, groups, padded, blocks : i64 values
        First row of the tile; rows from there on; register tiles of R rows; their rows; blocks of
        `unroll` rows.
    partial : i1 value
        Whether the mask has to be evaluated.
    unroll : int
        Rows that a pass over weights takes at a time; divides R.
    """

    def __init__(self, module: Any, layout: PanelLayout) -> None:
        b = new_function(module, "step", STEP_ARGUMENTS, result=ir.VoidType())
        self.layout = layout
        self.e = e = VectorEmitter(b, layout.isa, layout.element)
        self.arg: dict[str, Value] = dict(zip(STEP_ARGUMENTS, b.function.args, strict=True))
        self.unroll = 2
        self.first = e.b.lshr(self.arg["flags"], e.c(abi.FLAG_FIRST_SHIFT), name="first")
        self.arg["kt"] = e.iadd(self.arg["kt"], e.imul(self.first, e.c(layout.k_row_bytes)))
        self.arg["j0"] = e.iadd(self.arg["j0"], self.first)
        self.n = self.arg["n"] = e.isub(self.arg["n"], self.first)
        self.groups = e.b.sdiv(e.iadd(self.n, e.c(layout.rows - 1)), e.c(layout.rows))
        self.padded = e.imul(self.groups, e.c(layout.rows))
        self.blocks = e.b.sdiv(e.iadd(self.n, e.c(self.unroll - 1)), e.c(self.unroll))
        self.partial = self.flag(abi.FLAG_PARTIAL)

    def flag(self, bit: int) -> Value:
        """Return whether a flag of the call is set."""
        return self.e.icmp("!=", self.e.b.and_(self.arg["flags"], self.e.c(bit)), self.e.c(0))

    def row(self, base: Value, index: Value | int) -> Value:
        """Return the address of a row of W values."""
        if isinstance(index, int):
            return self.e.offset(base, index * self.layout.row_bytes)
        return self.e.offset(base, self.e.imul(index, self.e.c(self.layout.row_bytes)))

    def vector(self, row: Value, v: int) -> Value:
        """Return the address of vector v of a row."""
        return self.e.offset(row, v * self.layout.lanes * self.layout.esz)

    def weights(self, index: Value | int) -> Value:
        """Return the address of a row of logits or weights."""
        return self.row(self.arg["p"], index)

    def ahead(self) -> Value:
        """Return the address of what the products prefetch.

        That is the state of the next panel, which lies behind this one: with some tens of panels it
        has left the near caches since the last tile of keys.
        """
        return self.e.iadd(self.arg["qt"], self.e.c(panel_bytes(self.layout)))

    def whole(self) -> tuple[Value, Value]:
        """Return where the rows start and end that every query sees for certain.

        Both are multiples of `unroll`; no row may be between them.
        """
        e, even = self.e, self.e.c(-self.unroll)
        lo, hi = (
            e.imin(e.imax(e.isub(self.arg[name], self.arg["j0"]), e.c(0)), self.n)
            for name in ("whole_lo", "whole_hi")
        )
        first = e.b.and_(e.iadd(lo, e.c(self.unroll - 1)), even)
        return e.imin(first, self.n), e.imax(e.b.and_(hi, even), e.imin(first, self.n))

    def qk_operands(self, group: Value) -> tuple[Value, Value, Value]:
        """Return where register tile `group` finds its keys, its queries and what to prefetch."""
        e, layout = self.e, self.layout
        k = e.offset(self.arg["kt"], e.imul(group, e.c(layout.rows * layout.k_row_bytes)))
        done = e.imul(group, e.c(qk_rounds(layout) * CACHE_LINE))
        return k, e.pointer(self.arg["qt"]), e.pointer(e.iadd(self.ahead(), done))

    def stat(self, name: str, v: int) -> Value:
        """Return the address of vector v of a row of the statistics."""
        return self.vector(self.row(self.arg["st"], self.layout.stat_rows.index(name)), v)

    def branch(self, condition: Value, then: Emit, other: Emit) -> list[Value]:
        """Emit if/else and return the values of the side taken."""
        return branch(self.e.b, condition, then, other)


def branch(b: Any, condition: Value, then: Emit, other: Emit) -> list[Value]:
    """Emit if/else with an IRBuilder and return the values of the side taken."""
    sides = []
    with b.if_else(condition) as contexts:
        for context, emit in zip(contexts, (then, other), strict=True):
            with context:
                values = list(emit())
                sides.append((values, b.block))
    (on_true, true_block), (on_false, false_block) = sides
    merged = []
    for x, y in zip(on_true, on_false, strict=True):
        phi = b.phi(x.type)
        phi.add_incoming(x, true_block)
        phi.add_incoming(y, false_block)
        merged.append(phi)
    return merged
