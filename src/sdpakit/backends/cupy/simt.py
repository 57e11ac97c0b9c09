"""The SIMT family: the kernel for every dtype, width and mask, as CUDA C++ text.

The kernel itself is a file of CUDA C++ (`kernels/simt_forward.cu`). A program gives it a head: types and
constants, the struct of its call, and its logit, mask and proofs as device functions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING

from sdpakit.backends.cupy.expressions import STORED, emit_function
from sdpakit.backends.cupy.fields import fields
from sdpakit.backends.cupy.ranges import emit_ranges
from sdpakit.backends.cupy.source import Source
from sdpakit.dtypes import DTYPES
from sdpakit.expr.nodes import Const
from sdpakit.ir.printer import to_text

if TYPE_CHECKING:
    from sdpakit.ir.program import Program

ENTRY = "attention_forward"
THREADS = 128
LANES = 16  # threads that share the rows of a group; `LANES` of the kernel
_GROUPS = THREADS // LANES
# 32-bit registers of a thread for its part of the accumulator.
_ACCUMULATOR_REGISTERS = 96


@dataclass(frozen=True, slots=True)
class Variant:
    """What a call decides of the code: each variant is compiled when a call first needs it.

    Attributes
    ----------
    int_bits : int
        Width in which the integers of expressions are known to fit: 32 or 64.
    aligned : bool
        Whether every element lies at a multiple of its size (SHAPE-5).
    ragged_q, ragged_kv, paged : bool
        Where entries lie (RAGGED-1, PAGED-1).
    """

    int_bits: int = 32
    aligned: bool = True
    ragged_q: bool = False
    ragged_kv: bool = False
    paged: bool = False


@dataclass(frozen=True, slots=True)
class Tile:
    """Rows and keys of a thread; a block has 8 times the rows and 16 times the keys."""

    rows: int
    keys: int

    @property
    def block_q(self) -> int:
        """Query rows of a block."""
        return _GROUPS * self.rows

    @property
    def block_k(self) -> int:
        """Keys of a tile."""
        return LANES * self.keys


def choose_tile(program: Program) -> Tile:
    """Return the largest tile whose accumulator stays in registers."""
    words = DTYPES[program.accum_dtype].itemsize // 4
    channels = -(-program.v_head_dim // 64) * 4
    room = _ACCUMULATOR_REGISTERS // max(1, channels * words)
    return Tile(rows=4 if room >= 4 else 2 if room >= 2 else 1, keys=2)


def simt_source(program: Program, variant: Variant) -> str:
    """Return the source of a program's forward kernel.

    Parameters
    ----------
    program : Program
        Scheduled.
    variant : Variant
        What calls decide.
    """
    source = Source()
    source.comment("Attention by sdpakit, SIMT family.\n" + to_text(program))
    source.line()
    _emit_constants(source, program, variant)
    _emit_call(source, program)
    parts = [source.text(), _file("numbers.cu"), _file("operands.cu"), _file("ranges.cu")]
    source = Source()
    source.comment("---- what the spec says about a pair ".ljust(97, "-"))
    source.line()
    emit_function(source, "logit_of", program.logit, ("i64 q", "i64 k", "accum_t dot"))
    emit_function(source, "mask_of", program.mask, ("i64 q", "i64 k"))
    no_sink = Const(-math.inf)  # what SINK-1 calls none
    emit_function(source, "sink_of", program.sink or no_sink, ())
    emit_ranges(source, program)
    source.comment("---- the family ".ljust(97, "-"))
    source.line(f"constexpr int LANES = {LANES};")
    source.line("constexpr accum_t ONE = 1;")
    with source.braces("__device__ __forceinline__ accum_t weight(accum_t x, accum_t m)"):
        source.line("return exp_of(x - m);")
    source.line()
    kernel = [_file(f"{name}.cu") for name in ("softmax", "tiles", "simt_forward")]
    return "\n".join([*parts, source.text(), *kernel])


def _file(name: str) -> str:
    return files("sdpakit.backends.cupy").joinpath("kernels", name).read_text(encoding="utf-8")


def _emit_constants(source: Source, program: Program, variant: Variant) -> None:
    source.line("typedef long long i64;")
    source.line("typedef unsigned long long u64;")
    source.line("typedef float f32;")
    source.line("typedef double f64;")
    for name, dtype in (("q_t", program.dtype), ("out_t", program.out_dtype)):
        source.line(f"#define {name} {STORED[dtype]}")
    source.line(f"typedef {'double' if program.accum_dtype == 'float64' else 'float'} accum_t;")
    source.line(f"typedef {'int' if variant.int_bits == 32 else 'i64'} index_t;")
    tile = choose_tile(program)
    numbers = {
        "D": program.head_dim,
        "DV": program.v_head_dim,
        "THREADS": THREADS,
        "ROWS": tile.rows,
        "KEYS": tile.keys,
    }
    for name, number in numbers.items():
        source.line(f"constexpr int {name} = {number};")
    flags = {
        "ALIGNED": variant.aligned,
        "RAGGED_Q": variant.ragged_q,
        "RAGGED_KV": variant.ragged_kv,
        "PAGED": variant.paged,
        "SINK": program.sink is not None,
        **{name.upper(): name in program.outputs for name in _OUTPUTS},
    }
    for name, flag in flags.items():
        source.line(f"constexpr bool {name} = {'true' if flag else 'false'};")
    empty = "NOT_A_NUMBER" if program.empty_row == "nan" else "accum_t(0)"
    source.line(f"#define EMPTY_ROW {empty}  // EMPTY-1")
    source.line()


_OUTPUTS = ("out", "lse", "max_logit", "entropy", "sum_p2")


def _emit_call(source: Source, program: Program) -> None:
    source.comment("---- the call: addresses, strides in bytes, numbers ".ljust(97, "-"))
    source.line()
    with source.braces("struct Call", "};"):
        for field in fields(program):
            source.line(f"{field.kind} {field.name};")
    source.line()
