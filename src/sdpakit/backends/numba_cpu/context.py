"""Slots of `ctx`, the int64 array that carries the run-time values of a call to generated code.

A float travels as the bits of a float64. After the fixed slots come the scalars of the program and
then its tables. The launcher fills the slots, the walkers over expressions read them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sdpakit.ir.program import Program

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
    """Which slot holds which run-time value of a program; `slots` is the length of the array."""

    scalar_slots: Mapping[str, int]
    table_slots: Mapping[str, TableSlots]
    slots: int

    @classmethod
    def of(cls, program: Program) -> ContextLayout:
        """Return the layout of a program, a function of its scalars and tables alone."""
        free = SLOT_FIRST_FREE
        scalars: dict[str, int] = {}
        for name, _ in program.scalars():
            scalars[name] = free
            free += 1
        tables: dict[str, TableSlots] = {}
        for table in program.tables():
            strides = tuple(range(free + 1, free + 1 + table.ndim))
            sizes = tuple(slot + table.ndim for slot in strides)
            facts = free + 1 + 2 * table.ndim
            tables[table.name] = TableSlots(free, strides, sizes, facts, facts + 1, facts + 2)
            free = facts + 3
        return cls(scalars, tables, free)
