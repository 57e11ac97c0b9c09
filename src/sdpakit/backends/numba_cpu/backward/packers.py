"""The module of the packers of a backward kernel: which there are, each kind once.

They depend on widths and dtypes alone, so specs that differ in mask, logit or outputs share it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from sdpakit.backends.numba_cpu.backward import packing
from sdpakit.backends.numba_cpu.backward.layout import BackwardLayout
from sdpakit.backends.numba_cpu.functions import new_module
from sdpakit.backends.numba_cpu.recipes import ModuleRecipe

if TYPE_CHECKING:
    from sdpakit.ir.program import Program


class Stored(NamedTuple):
    """How a program stores its operands, dO, and the output that its forward pass keeps."""

    dtype: str
    out_dtype: str
    accum_dtype: str

    @classmethod
    def of(cls, program: Program) -> Stored:
        """Return the dtypes of a program."""
        return cls(program.dtype, program.out_dtype, program.accum_dtype)


def _packers(layout: BackwardLayout, stored: Stored) -> dict[str, tuple[Any, ...]]:
    """Return what emits each packer: a function, and what it gets beside module and name."""
    keys, values = layout.keys, layout.values
    d, dv = keys.head_dim, keys.v_head_dim
    return {
        "rows_k": (packing.emit_rows, keys),
        "rows_v": (packing.emit_rows, values),
        "columns_k": (packing.emit_columns, layout),
        "lanes_q": (packing.emit_lanes, keys, d, stored.dtype),
        "lanes_do": (packing.emit_lanes, keys, dv, stored.out_dtype),
        "lanes_out": (packing.emit_lanes, keys, dv, stored.accum_dtype),
        "factors_q": (packing.emit_factors, layout, d, stored.dtype),
        "factors_do": (packing.emit_factors, layout, dv, stored.out_dtype),
        "delta": (packing.emit_delta, keys, dv),
        "clear": (packing.emit_clear, keys),
        "sums_k": (packing.emit_sums, keys, d, layout.sum_row_bytes(d)),
        "sums_v": (packing.emit_sums, keys, dv, layout.sum_row_bytes(dv)),
    }


def _without_tables(layout: BackwardLayout) -> BackwardLayout:
    return replace(layout, keys=replace(layout.keys, dense=()))


def packer_symbols(layout: BackwardLayout, stored: Stored) -> dict[str, str]:
    """Return the name of the function that stands for each packer: equal ones are emitted once."""
    first: dict[tuple[Any, ...], str] = {}
    packers = _packers(_without_tables(layout), stored)
    return {name: first.setdefault(how, name) for name, how in packers.items()}


def packers_module(layout: BackwardLayout, stored: Stored) -> ModuleRecipe:
    """Return the module of the packers."""
    return ModuleRecipe(_packers_text, (_without_tables(layout), stored))


def _packers_text(layout: BackwardLayout, stored: Stored) -> str:
    module = new_module("sdpakit_backward_packers")
    symbols = packer_symbols(layout, stored)
    for name, (emit, *numbers) in _packers(layout, stored).items():
        if symbols[name] == name:
            emit(module, numbers[0], name, *numbers[1:])
    return str(module)
