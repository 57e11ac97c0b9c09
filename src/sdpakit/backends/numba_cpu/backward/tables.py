"""Gradients of tables that the logit reads: each pair adds to the element that it read.

Sums go through the pairs in one fixed order: keys, then lanes, of one tile of one panel after
another. Which pairs share an element decides how far that order can be cut into items (`owned`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from llvmlite import ir

from sdpakit.backends.numba_cpu.irtypes import I32, Value
from sdpakit.backends.numba_cpu.lower_expr import Walker, is_vector
from sdpakit.expr.derivative import derivative, float_loads
from sdpakit.expr.nodes import Expr, Index, Load

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from sdpakit.backends.numba_cpu.context import Ints

INDICES = ("b", "h", "q")  # in the order of the loops around the sums


@dataclass(frozen=True, slots=True)
class TableGradient:
    """One load of a table with its derivative.

    Attributes
    ----------
    load : Load
        Where the pair reads.
    slope : Expr
        d logit / d load.
    slot : int
        Place of the sums in the array `sums` of a call: their address, then a stride in bytes for
        each axis, 0 for one of size 1.
    """

    load: Load
    slope: Expr
    slot: int

    def emit(self, walk: Walker, gradient: Value, present: Value, sums: Value) -> None:
        """Emit the additions for one vector of pairs."""
        e = walk.e
        slope = walk.evaluate_vector(self.slope)
        value = e.select(present, e.mul(gradient, slope), e.const(0.0))  # MASK-3
        address, lanes = self._place(walk, sums)
        if lanes is None:
            self._add(walk, address, _total(walk, value))
            return
        for lane in range(e.w):
            number = ir.Constant(I32, lane)
            at = e.iadd(address, e.b.extract_element(lanes, number))
            self._add(walk, at, e.b.extract_element(value, number))

    def _place(self, walk: Walker, sums: Value) -> tuple[Value, Value | None]:
        e = walk.e
        address = e.load_i64(e.offset(sums, 8 * self.slot))
        lanes: Value = None
        for axis, node in enumerate(self.load.indices):
            index = walk.evaluate(node)
            stride = e.load_i64(e.offset(sums, 8 * (self.slot + 1 + axis)))
            if not is_vector(index):
                address = e.iadd(address, e.imul(index, stride))
                continue
            part = e.imul(e.resize_int(index, 64), e.splat(stride))
            lanes = part if lanes is None else e.iadd(lanes, part)
        return address, lanes

    def _add(self, walk: Walker, address: Value, value: Value) -> None:
        e = walk.e
        e.store(e.add(e.load(address, e.S), value), address)


def _total(walk: Walker, value: Value) -> Value:
    """Return the sum of all lanes, halves first."""
    e, width = walk.e, walk.e.w
    while width > 1:
        width //= 2
        turned = [(lane + width) % e.w for lane in range(e.w)]
        value = e.add(value, e.shuffle(value, value, turned))
    return e.b.extract_element(value, ir.Constant(I32, 0))


def table_gradients(logit: Expr) -> tuple[TableGradient, ...]:
    """Return the loads of a logit on which it depends."""
    found: list[TableGradient] = []
    slots: dict[str, int] = {}
    free = 0
    for load in float_loads(logit):
        slope = derivative(logit, load)
        if slope is None:
            continue
        if load.table not in slots:
            slots[load.table] = free
            free += 1 + len(load.indices)
        found.append(TableGradient(load, slope, slots[load.table]))
    return tuple(found)


def fill_sums(array: Ints, tables: Sequence[TableGradient], sums: Mapping[str, Any]) -> None:
    """Write addresses and strides of the sums of tables into the array of a call.

    Parameters
    ----------
    array : int64 array
        What is written.
    tables : sequence of TableGradient
        The loads.
    sums : mapping of str to ndarray
        Sums in accum_dtype by table.
    """
    for table in tables:
        found = sums[table.load.table]
        steps = (
            stride if size > 1 else 0
            for stride, size in zip(found.strides, found.shape, strict=True)
        )
        place = slice(table.slot, table.slot + 1 + found.ndim)
        array[place] = np.fromiter((found.ctypes.data, *steps), np.int64)


def owned(tables: Sequence[TableGradient], sums: Mapping[str, Any]) -> tuple[bool, ...]:
    """Return, for b, h and q, whether pairs that differ in it never share an element.

    They do not if every load of every table has that index, as it is, for the same axis of the
    table, and the axis is not broadcast.
    """
    return tuple(_is_owned(Index(name), tables, sums) for name in INDICES)


def _is_owned(index: Expr, tables: Sequence[TableGradient], sums: Mapping[str, Any]) -> bool:
    for name, array in sums.items():
        loads = [table.load for table in tables if table.load.table == name]
        axes = [axis for axis, size in enumerate(array.shape) if size > 1]
        if loads and not any(all(load.indices[a] is index for load in loads) for a in axes):
            return False
    return True
