"""The head of a kernel: what a program says, as CUDA C++ that the kernel of every family builds on.

Types and constants, the struct of the call, and the program's logit, mask, sink and proofs as
device functions. The kernels themselves are files of CUDA C++ in `kernels/`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING

from sdpakit.backends.cupy.expressions import STORED, emit_function
from sdpakit.backends.cupy.fields import fields
from sdpakit.backends.cupy.gradients import emit_slopes, emit_table_kernels
from sdpakit.backends.cupy.ranges import emit_ranges
from sdpakit.backends.cupy.source import Source
from sdpakit.expr.nodes import Const
from sdpakit.ir.printer import to_text
from sdpakit.spec import OUTPUTS

if TYPE_CHECKING:
    from sdpakit.ir.program import Program

_RULER = 99


@dataclass(frozen=True, slots=True)
class Variant:
    """What a call decides of the code: each variant is compiled when a call first needs it.

    Attributes
    ----------
    int_bits : int
        Width in which the integers of expressions are known to fit: 32 or 64.
    aligned : bool
        Whether every element lies at a multiple of its size (SHAPE-5).
    whole_q, whole_k, whole_v, whole_dout : bool
        Whether the rows of an operand can be copied 16 bytes at a time: channels side by side, rows
        at multiples of 16 bytes, and a width that 8 divides.
    ragged_q, ragged_kv, paged : bool
        Where entries lie (RAGGED-1, PAGED-1).
    save : bool
        Whether maximum and sum of each row are stored for the gradients.
    packed : bool
        Whether a block has the rows of all heads of a group.
    split : bool
        Whether keys are split among blocks, whose parts of a row are merged.
    """

    int_bits: int = 32
    aligned: bool = True
    whole_q: bool = True
    whole_k: bool = True
    whole_v: bool = True
    whole_dout: bool = True
    ragged_q: bool = False
    ragged_kv: bool = False
    paged: bool = False
    save: bool = False
    packed: bool = False
    split: bool = False


def assemble(
    title: str,
    program: Program,
    variant: Variant,
    constants: Mapping[str, int],
    text: str,
    *names: str,
    gradients: bool = False,
) -> str:
    """Return the source of a kernel.

    Parameters
    ----------
    title : str
        First line.
    program : Program
        Scheduled.
    variant : Variant
        What calls decide.
    constants : mapping of str to int
        Integers that the family defines, by name.
    text : str
        What the family defines besides.
    *names : str
        Files of `kernels/` behind the head, in order.
    gradients : bool
        Whether the kernels are those of gradients.
    """
    head, middle, family = Source(), Source(), Source()
    head.comment(f"{title}\n{to_text(program)}")
    head.line()
    _emit_types(head, program, variant)
    _emit_flags(head, program, variant)
    for name, number in constants.items():
        head.line(f"constexpr int {name} = {number};")
    head.line()
    _emit_call(head, program, gradients=gradients)
    middle.comment(ruler("what the spec says about a pair"))
    middle.line()
    _emit_program(middle, program)
    if gradients:
        emit_slopes(middle, program)
    family.comment(ruler("the family"))
    parts = [head.text(), *map(_file, ("numbers", "operands", "ranges")), middle.text()]
    kernels = [*parts, family.text() + text, *map(_file, names)]
    if gradients:
        tables = Source()
        emit_table_kernels(tables, program)
        kernels.append(tables.text())
    return "\n".join(kernels)


def ruler(title: str) -> str:
    """Return the title of a section with a rule behind it."""
    return f"---- {title} ".ljust(_RULER - 3, "-")


def _file(name: str) -> str:
    where = files("sdpakit.backends.cupy").joinpath("kernels", f"{name}.cu")
    return where.read_text(encoding="utf-8")


def _emit_types(source: Source, program: Program, variant: Variant) -> None:
    accum = "double" if program.accum_dtype == "float64" else "float"
    types = {
        "i64": "long long",
        "u64": "unsigned long long",
        "f32": "float",
        "f64": "double",
        "accum_t": accum,
        "index_t": "int" if variant.int_bits == 32 else "i64",
    }
    for name, meaning in types.items():
        source.line(f"typedef {meaning} {name};")
    for name, dtype in (("q_t", program.dtype), ("out_t", program.out_dtype)):
        source.line(f"#define {name} {STORED[dtype]}")
    empty = "NOT_A_NUMBER" if program.empty_row == "nan" else "accum_t(0)"
    source.line(f"#define EMPTY_ROW {empty}  // EMPTY-1")
    source.line(f"constexpr int D = {program.head_dim};")
    source.line(f"constexpr int DV = {program.v_head_dim};")


def _emit_flags(source: Source, program: Program, variant: Variant) -> None:
    flags = {
        "ALIGNED": variant.aligned,
        "WHOLE_Q": variant.whole_q,
        "WHOLE_K": variant.whole_k,
        "WHOLE_V": variant.whole_v,
        "WHOLE_DOUT": variant.whole_dout,
        "RAGGED_Q": variant.ragged_q,
        "RAGGED_KV": variant.ragged_kv,
        "PAGED": variant.paged,
        "SAVE": variant.save,
        "PACKED": variant.packed,
        "SPLIT": variant.split,
        "SINK": program.sink is not None,
        **{name.upper(): name in program.outputs for name in OUTPUTS},
    }
    for name, flag in flags.items():
        source.line(f"constexpr bool {name} = {'true' if flag else 'false'};")


def _emit_call(source: Source, program: Program, *, gradients: bool) -> None:
    source.comment(ruler("the call: addresses, strides in bytes, numbers"))
    source.line()
    with source.braces("struct Call", "};"):
        for field in fields(program, gradients=gradients):
            source.line(f"{field.kind} {field.name};")
    source.line()


def _emit_program(source: Source, program: Program) -> None:
    emit_function(source, "logit_of", program.logit, ("i64 q", "i64 k", "accum_t dot"))
    emit_function(source, "mask_of", program.mask, ("i64 q", "i64 k"))
    no_sink = Const(-math.inf)  # what SINK-1 calls none
    emit_function(source, "sink_of", program.sink or no_sink, ())
    emit_ranges(source, program)
