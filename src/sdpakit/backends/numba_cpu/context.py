"""`ctx`, the int64 array that carries the run-time values of a call to generated code.

A float travels as the bits of a float64. After the fixed slots come the scalars of the program and
then its tables. `fill` writes the slots, the walkers over expressions read them.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from sdpakit.expr.nodes import Index, Load, postorder
from sdpakit.passes.tables import integer_limits, rows_ascend

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sdpakit.backends.base import Call
    from sdpakit.expr.nodes import Type
    from sdpakit.ir.program import Program

Array = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]

SLOT_SCALE = 0  # c = |scale| * log2(e) > 0, a float; used where logits are plain
SLOT_Q_LEN = 1  # addresses of int64 arrays with one value for each batch entry
SLOT_KV_LEN = 2
SLOT_Q_OFFSET = 3
SLOT_FIRST_FREE = 4

BATCH_SLOTS: dict[str, int] = {
    "q_len": SLOT_Q_LEN,
    "kv_len": SLOT_KV_LEN,
    "q_offset": SLOT_Q_OFFSET,
}


@dataclass(frozen=True, slots=True)
class TableSlots:
    """Slots of one table.

    Attributes
    ----------
    base : int
        Its address.
    strides, sizes : tuple of int
        Bytes from one element to the next and number of elements, for each axis; a broadcast axis
        (size 1) has stride 0.
    least, largest : int
        Bounds of its values, if they are integers.
    is_sorted : int
        1 where every row along the last axis is known to ascend.
    """

    base: int
    strides: tuple[int, ...]
    sizes: tuple[int, ...]
    least: int
    largest: int
    is_sorted: int


@dataclass(frozen=True, slots=True)
class ContextLayout:
    """Which slot holds which run-time value of a program.

    Attributes
    ----------
    scalar_slots : mapping of str to int
        Slot of a scalar.
    scalar_kinds : mapping of str to type
        Type of a scalar.
    table_slots : mapping of str to TableSlots
        Slots of a table.
    searched : frozenset of str
        Tables in which ranges of keys may be found by bisection, if their rows ascend.
    slots : int
        Length of the array.
    """

    scalar_slots: Mapping[str, int]
    scalar_kinds: Mapping[str, Type]
    table_slots: Mapping[str, TableSlots]
    searched: frozenset[str]
    slots: int

    @classmethod
    def of(cls, program: Program) -> ContextLayout:
        """Return the layout of a program, a function of its text alone."""
        kinds = dict(program.scalars())
        scalars = {name: SLOT_FIRST_FREE + n for n, name in enumerate(kinds)}
        free = SLOT_FIRST_FREE + len(kinds)
        tables: dict[str, TableSlots] = {}
        for table in program.tables():
            strides = tuple(range(free + 1, free + 1 + table.ndim))
            sizes = tuple(slot + table.ndim for slot in strides)
            facts = free + 1 + 2 * table.ndim
            tables[table.name] = TableSlots(free, strides, sizes, facts, facts + 1, facts + 2)
            free = facts + 3
        searched = frozenset(
            node.table
            for node in postorder(program.mask)
            if isinstance(node, Load) and node.type == "int" and node.indices[-1] is Index("k")
        )
        return cls(scalars, kinds, tables, searched, free)


def float_bits(number: float) -> int:
    """Return the bits of a float64 as an int64."""
    return cast(int, struct.unpack("q", struct.pack("d", number))[0])


def address(array: Array) -> int:
    """Return the address of the first element."""
    return array.ctypes.data


def size(layout: ContextLayout, batch: int) -> int:
    """Return the number of int64 of a context: its slots, then the numbers of each batch entry."""
    return layout.slots + len(BATCH_SLOTS) * batch


def fill(context: Ints, where: int, layout: ContextLayout, call: Call, c: float) -> None:
    """Write the context of a call, whose tables have to outlive it.

    Parameters
    ----------
    context : (size(layout, batch),) int64
        What is written.
    where : int
        Its address.
    layout : ContextLayout
        Of the program that is called.
    call : Call
        The values.
    c : float
        Content of `SLOT_SCALE`.
    """
    context[SLOT_SCALE] = float_bits(c)
    start, batch = layout.slots, len(call.q_len)
    for name, slot in BATCH_SLOTS.items():
        context[slot] = where + 8 * start
        context[start : start + batch] = getattr(call, name)
        start += batch
    for name, slot in layout.scalar_slots.items():
        value = call.scalars[name]
        is_float = layout.scalar_kinds[name] == "float"
        context[slot] = float_bits(float(value)) if is_float else int(value)
    for name, slots in layout.table_slots.items():
        _fill_table(context, slots, call.tables[name], search=name in layout.searched)


def _fill_table(context: Ints, slots: TableSlots, table: Array, *, search: bool) -> None:
    context[slots.base] = address(table)
    for axis, (stride, size) in enumerate(zip(table.strides, table.shape, strict=True)):
        context[slots.strides[axis]] = stride if size > 1 else 0
        context[slots.sizes[axis]] = size
    context[slots.least], context[slots.largest] = _limits(table)
    context[slots.is_sorted] = search and table.shape[-1] > 1 and rows_ascend(table)


def _limits(table: Array) -> tuple[int, int]:
    """Return bounds of the integers in a table, (0, 0) if it holds none."""
    if table.dtype.kind not in "iub" or table.size == 0:
        return 0, 0
    # Exact, as the proof of the call took them: wider bounds may hold a divisor of 0, or overflow.
    return (0, 1) if table.dtype.kind == "b" else integer_limits(table)
