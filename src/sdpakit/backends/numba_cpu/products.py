"""The products of a step as functions: S = K Q^T over a tile, and O += V^T P over its columns.

They depend on widths and the element alone, not on mask or logit. So they are modules for
themselves, compiled once for all kernels, and the steps of the forward and of the backward pass
call the same code. A call comes once for some thousand multiply-adds of a vector.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from llvmlite import ir

from sdpakit.backends.numba_cpu import storage
from sdpakit.backends.numba_cpu.functions import declare, new_function, new_module
from sdpakit.backends.numba_cpu.irtypes import I64, Value
from sdpakit.backends.numba_cpu.layout import PanelLayout
from sdpakit.backends.numba_cpu.microkernels import (
    CACHE_LINE,
    FarRow,
    PvOperands,
    pv_tile,
    qk_rounds,
    qk_tile,
    store_tile,
)
from sdpakit.backends.numba_cpu.recipes import ModuleRecipe
from sdpakit.backends.numba_cpu.vector import VectorEmitter

QK_ARGUMENTS = ("k", "qt", "ahead", "s", "groups", "top")
PV_ARGUMENTS = ("vt", "p", "out", "alpha", "first", "n", "block_kv", "guarded")


def qk_module(layout: PanelLayout, *, far: bool = False) -> ModuleRecipe:
    """Return the module with the function that `call_qk` calls, with tables if `far`."""
    width = replace(_element_only(layout), head_dim=layout.head_dim)
    if far:
        width = replace(width, dense=layout.dense, block_kv_wish=layout.block_kv)
    return ModuleRecipe(_qk_text, (width,))


def pv_module(layout: PanelLayout) -> ModuleRecipe:
    """Return the module with the function that `call_pv` calls."""
    return ModuleRecipe(_pv_text, (replace(_element_only(layout), v_head_dim=layout.v_head_dim),))


def _element_only(layout: PanelLayout) -> PanelLayout:
    """Return a layout that says nothing else; the keys of a tile, here any, are an argument."""
    element = layout.element
    return PanelLayout(layout.isa, element, element, head_dim=1, v_head_dim=0, block_kv_wish=1)


def _qk_name(layout: PanelLayout) -> str:
    return "_".join([f"qk_{layout.head_dim}", *layout.dense])


def _pv_name(layout: PanelLayout) -> str:
    return f"pv_{layout.v_head_dim}"


def _qk_text(layout: PanelLayout) -> str:
    module = new_module("sdpakit_qk")
    tables = [f"{name}{n}" for n in range(len(layout.dense)) for name in ("rows", "stride")]
    names = (*QK_ARGUMENTS, *tables)
    b = new_function(module, _qk_name(layout), names, result=ir.VoidType())
    e = VectorEmitter(b, layout.isa, layout.element)
    k, qt, ahead, s, groups, top, *far = b.function.args
    b.comment("raw products in register tiles, and the maximum of each column of them")

    def body(g: Value, tops: list[Value]) -> Sequence[Value]:
        rows = e.offset(k, e.imul(g, e.c(layout.rows * layout.k_row_bytes)))
        wanted = e.offset(ahead, e.imul(g, e.c(qk_rounds(layout) * CACHE_LINE)))
        products = qk_tile(e, layout, rows, e.pointer(qt), wanted, _far_rows(e, layout, g, far))
        target = e.offset(s, e.imul(g, e.c(layout.rows * layout.row_bytes)))
        return store_tile(e, layout, products, target, tops)

    lowest = [e.const(-math.inf)] * layout.vectors
    for v, value in enumerate(e.loop(groups, body, lowest, "phase.qk", guard=False)):
        e.store(value, e.offset(top, v * e.w * e.esz))
    b.ret_void()
    return str(module)


def _far_rows(
    e: VectorEmitter, layout: PanelLayout, g: Value, far: Sequence[Value]
) -> list[FarRow]:
    """Return the rows of tables that fall to register tile g: all W of them to those of a tile."""
    last, found = e.c(layout.width - 1), []
    for dtype, first, stride in zip(layout.dense, far[::2], far[1::2], strict=True):
        share = -(-layout.width * layout.rows // layout.block_kv)
        lines = -(-layout.block_kv * storage.itemsize(dtype) // CACHE_LINE) + 1
        for n in range(share):
            row = e.imin(e.iadd(e.imul(g, e.c(share)), e.c(n)), last)
            found.append(FarRow(e.pointer(e.iadd(first, e.imul(row, stride))), lines))
    return found


def call_qk(
    e: VectorEmitter,
    layout: PanelLayout,
    operands: Sequence[Value],
    top: Value | None = None,
    far: Sequence[Value] = (),
) -> None:
    """Emit the products S[j][0:W] = <q, k_j> of whole register tiles.

    Parameters
    ----------
    operands : sequence of values
        First packed row of K, packed queries, memory that will be wanted soon, first row of S, and
        how many register tiles (at least one).
    top : pointer or None
        Where the maximum of each column goes, see `store_tile`; None drops it.
    far : sequence of values
        First row and stride of each of the dense tables, where they will be wanted soon.
    """
    place = columns_in_memory(e, layout) if top is None else top
    name = _qk_name(layout if far else replace(layout, dense=()))
    _call(e, name, [*operands, place, *far])


def columns_in_memory(e: VectorEmitter, layout: PanelLayout) -> Value:
    """Return the address of stack memory for a number in each lane of a panel."""
    with e.b.goto_entry_block():
        return e.b.alloca(e.V, layout.vectors)


def _pv_text(layout: PanelLayout) -> str:
    module = new_module("sdpakit_pv")
    b = new_function(module, _pv_name(layout), PV_ARGUMENTS, result=ir.VoidType())
    e = VectorEmitter(b, layout.isa, layout.element)
    columns = _Columns(e, layout, dict(zip(PV_ARGUMENTS, b.function.args, strict=True)))
    b.comment("guarded: some V is not finite and meets an absent pair (MASK-3)")
    guarded = e.icmp("!=", columns.arg["guarded"], e.c(0))
    with b.if_else(guarded, likely=False) as (on_true, on_false):
        with on_true:
            columns.emit(guarded=True)
        with on_false:
            columns.emit(guarded=False)
    b.ret_void()
    return str(module)


def call_pv(e: VectorEmitter, layout: PanelLayout, operands: dict[str, Value]) -> None:
    """Emit OT = OT * alpha + V^T P for all columns of V.

    Parameters
    ----------
    operands : mapping
        Addresses "vt" (packed tile), "p" (weights, from the first key on), "out" and "alpha" (one
        factor for each lane); "first", the first key, and "n", how many; "guarded" (i1): replace V
        by 0 where the pair is absent.
    """
    numbers = operands | {
        "block_kv": e.c(layout.block_kv),
        "guarded": e.b.zext(operands["guarded"], I64),
    }
    _call(e, _pv_name(layout), [numbers[name] for name in PV_ARGUMENTS])


def _call(e: VectorEmitter, name: str, arguments: Sequence[Value]) -> None:
    function = declare(e.b.module, name, ir.VoidType(), [I64] * len(arguments))
    numbers = [e.b.ptrtoint(x, I64) if isinstance(x.type, ir.PointerType) else x for x in arguments]
    e.b.call(function, numbers)


@dataclass(frozen=True)
class _Columns:
    """Emits the loops over groups of columns of V, one for each of the (at most two) group sizes.

    Attributes
    ----------
    e : VectorEmitter
        Where instructions go.
    layout : PanelLayout
        Widths; the keys of a tile are an argument.
    arg : dict
        Arguments by name.
    """

    e: VectorEmitter
    layout: PanelLayout
    arg: dict[str, Value]

    def emit(self, *, guarded: bool) -> None:
        """Emit all loops."""
        groups, start, d0 = self.layout.v_groups, self.arg["vt"], 0
        for size in sorted({size for _, size, _ in groups}, reverse=True):
            count = sum(of == size for _, of, _ in groups)
            start = self._loop(size, count, d0, start, guarded=guarded)
            d0 += size * count

    def _loop(self, size: int, count: int, d0: int, start: Value, *, guarded: bool) -> Value:
        """Emit the loop over `count` groups, the first of column d0; return where they end."""
        e, layout, arg = self.e, self.layout, self.arg
        v_start = e.iadd(start, e.imul(arg["first"], e.c(size * layout.esz)))
        out_start = e.iadd(arg["out"], e.c(d0 * layout.row_bytes))
        numbers = e.iadd(e.imul(arg["block_kv"], e.c(size)), e.c(layout.lanes))
        stride = e.imul(numbers, e.c(layout.esz))  # as `PanelLayout.v_group_bytes`

        def body(g: Value, _: list[Value]) -> Sequence[Value]:
            v = e.offset(v_start, e.imul(g, stride))
            out = e.offset(out_start, e.imul(g, e.c(size * layout.row_bytes)))
            operands = PvOperands(v, e.pointer(arg["p"]), out, e.pointer(arg["alpha"]), arg["n"])
            if guarded:
                self._one_by_one(size, operands)
            else:
                pv_tile(e, layout, size, size, operands, guarded=False)
            return ()

        name = f"phase.pv.{size}{'.present' if guarded else ''}"
        e.loop(e.c(count), body, (), name, guard=False)
        return e.iadd(start, e.imul(e.c(count), stride))

    def _one_by_one(self, size: int, group: PvOperands) -> None:
        """Emit the guarded products one column at a time: rare, so short code counts for more."""
        e, layout = self.e, self.layout

        def body(r: Value, _: list[Value]) -> Sequence[Value]:
            v = e.offset(group.v, e.imul(r, e.c(layout.esz)))
            out = e.offset(group.out, e.imul(r, e.c(layout.row_bytes)))
            column = replace(group, v=v, out=out)
            pv_tile(e, layout, 1, size, column, guarded=True)
            return ()

        e.loop(e.c(size), body, (), "pv.column", guard=False)
