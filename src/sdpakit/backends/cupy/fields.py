"""`Call`, the struct that a kernel takes by value: run-time values of a call in fields of 8 bytes.

Addresses, strides in bytes, lengths, and the scalars and tables of the program. Every field is a
u64, an i64 or an f64, so a call is a row of 64-bit words whatever launches it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from sdpakit.backends.cupy.expressions import scalar_field, table_field
from sdpakit.backends.cupy.gradients import table_gradients
from sdpakit.expr.nodes import Index, Load, postorder
from sdpakit.passes.tables import integer_limits, rows_ascend

if TYPE_CHECKING:
    import numpy as np

    from sdpakit.backends.base import Call
    from sdpakit.backends.cupy.splitting import Layout
    from sdpakit.ir.program import Program

Array: TypeAlias = "np.ndarray[Any, Any]"
# Where the launcher has put an array of the call: the address of its first element.
AddressOf = Callable[["Array"], int]

_OPERANDS = ("q", "k", "v")
_STATISTICS = ("lse", "max_logit", "entropy", "sum_p2")
_NUMBERS = (
    "batch",
    "q_heads",
    "kv_heads",
    "q_rows",
    "q_tiles",
    "splits",
    "keys_of_split",
    "kv_rows",
    "pages_of_entry",
    "page_size",
)
# What one kernel leaves for the next: maximum and sum of rows; parts of rows, if keys are split.
_LEFT = ("saved_m", "saved_l", "part_rows", "part_sums")
# Of gradients: what the forward pass saved, what is prepared for each row, and what is summed.
_ROWS = ("saved_out", "row_shift", "row_whole", "row_delta", "row_sink", "sums_sinks")
_GRADIENTS = ("dout", "dq", "dk", "dv")
_AXES = ("batch", "head", "row", "channel")
_ENTRIES = ("q_len", "kv_len", "q_offset", "q_start", "kv_start", "pages")


@dataclass(frozen=True, slots=True)
class Field:
    """A field: its C++ type (u64, i64 or f64) and name."""

    kind: str
    name: str


def fields(program: Program, *, gradients: bool = False) -> tuple[Field, ...]:
    """Return the fields of `Call` for a program, in order; those of its gradients last."""
    found = tuple(_fields(program))
    return (*found, *_gradient_fields(program)) if gradients else found


def _fields(program: Program) -> Iterator[Field]:
    for name in (*_OPERANDS, "out"):
        yield Field("u64", name)
        yield from (Field("i64", f"{name}_{axis}") for axis in _AXES)
    for name in _STATISTICS:
        yield Field("u64", name)
        yield from (Field("i64", f"{name}_{axis}") for axis in ("batch", "head", "row"))
    yield from (Field("u64", name) for name in _ENTRIES)
    yield from (Field("i64", name) for name in _NUMBERS)
    yield from (Field("u64", name) for name in _LEFT)
    for name, kind in program.scalars():
        yield Field("f64" if kind == "float" else "i64", scalar_field(name))
    for table in program.tables():
        name = table_field(table.name)
        yield Field("u64", name)
        for axis in range(table.ndim):
            yield Field("i64", f"{name}_stride{axis}")
            yield Field("i64", f"{name}_size{axis}")
        yield from (Field("i64", f"{name}_{fact}") for fact in ("least", "largest", "ascends"))


def _gradient_fields(program: Program) -> Iterator[Field]:
    yield from (Field("u64", name) for name in _ROWS)
    for name in _GRADIENTS:
        yield Field("u64", name)
        yield from (Field("i64", f"{name}_{axis}") for axis in _AXES)
    for table in table_gradients(program):
        yield from (Field(kind, name) for kind, name in table.fields())


def pack(program: Program, values: Mapping[str, int | float], *, gradients: bool = False) -> bytes:
    """Return the bytes of `Call`; a field without a value is 0.

    Parameters
    ----------
    program : Program
        What is called.
    values : mapping of str to number
        By field.
    gradients : bool
        Whether it is a call of the kernels of its gradients.
    """
    codes = {"u64": "Q", "i64": "q", "f64": "d"}
    found = fields(program, gradients=gradients)
    layout = "<" + "".join(codes[field.kind] for field in found)
    return struct.pack(layout, *(values.get(field.name, 0) for field in found))


def gradient_values(
    program: Program, arrays: Mapping[str, Array], address_of: AddressOf
) -> dict[str, int | float]:
    """Return the values of the fields of gradients.

    Parameters
    ----------
    program : Program
        What is called.
    arrays : mapping of str to ndarray
        Those of `dout`, `dq`, ... in the axis order b, h, row, channel; sums and what belongs to
        rows, contiguous; by field.
    address_of : callable
        Address of the first element of an array, on the device.
    """
    found: dict[str, int | float] = {name: address_of(array) for name, array in arrays.items()}
    for name in _GRADIENTS:
        found |= {f"{name}_{axis}": n for axis, n in zip(_AXES, arrays[name].strides, strict=True)}
    for table in table_gradients(program):
        sums = arrays[table.sums]
        found |= table.values(sums, address_of(sums))
    return found


def call_values(
    program: Program, call: Call, layout: Layout, address_of: AddressOf
) -> dict[str, int | float]:
    """Return the values of the fields that every kernel reads.

    Parameters
    ----------
    program : Program
        What is called.
    call : Call
        The call.
    layout : Layout
        Its blocks.
    address_of : callable
        Address of the first element of an array, on the device.
    """
    found: dict[str, int | float] = {}
    arrays = {"q": call.q, "k": call.k, "v": call.v, **call.outputs}
    for name, array in arrays.items():
        found[name] = address_of(array)
        found |= {f"{name}_{axis}": n for axis, n in zip(_AXES, array.strides, strict=False)}
    entries = {name: getattr(call, name) for name in _ENTRIES}
    found |= {name: address_of(array) for name, array in entries.items() if array is not None}
    found |= {
        "batch": call.batch,
        "q_heads": call.q.shape[1],
        "kv_heads": call.k.shape[1],
        "q_rows": call.q_rows,
        "q_tiles": layout.q_tiles,
        "splits": layout.splits,
        "keys_of_split": layout.keys_of_split,
        "kv_rows": call.kv_rows,
        "pages_of_entry": 0 if call.pages is None else call.pages.shape[1],
        "page_size": 0 if call.pages is None else call.k.shape[2],
    }
    for name, kind in program.scalars():
        value = call.scalars[name]
        found[scalar_field(name)] = float(value) if kind == "float" else int(value)
    searched = _searched(program)
    for name, array in call.tables.items():
        found |= _table(table_field(name), array, address_of, search=name in searched)
    return found


def _searched(program: Program) -> frozenset[str]:
    """Return the tables in which ranges of keys may be found by bisection, if their rows ascend."""
    return frozenset(
        node.table
        for node in postorder(program.mask)
        if isinstance(node, Load) and node.type == "int" and node.indices[-1] is Index("k")
    )


def _table(name: str, array: Array, address_of: AddressOf, *, search: bool) -> dict[str, int]:
    found = {name: address_of(array)}
    for axis, (stride, size) in enumerate(zip(array.strides, array.shape, strict=True)):
        found[f"{name}_stride{axis}"] = stride if size > 1 else 0
        found[f"{name}_size{axis}"] = size
    if array.dtype.kind in "iu" and array.size:
        found[f"{name}_least"], found[f"{name}_largest"] = integer_limits(array)
    elif array.dtype.kind == "b":
        found[f"{name}_largest"] = 1
    found[f"{name}_ascends"] = int(search and array.shape[-1] > 1 and rows_ascend(array))
    return found
