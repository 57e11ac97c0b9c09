"""The SIMT family: for every dtype, width and mask (`kernels/simt_forward.cu`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sdpakit.backends.cupy.families import Geometry, Operands
from sdpakit.backends.cupy.heads import Variant, assemble
from sdpakit.backends.cupy.source import Source
from sdpakit.dtypes import DTYPES

if TYPE_CHECKING:
    from sdpakit.backends.gpu.architectures import Architecture
    from sdpakit.ir.program import Program

THREADS = 128
LANES = 16  # threads that share the rows of a group
_KEYS = 2  # keys of a thread
_CHUNK_V = 64  # channels of v that are in shared memory at a time
# 32-bit registers of a thread for its sums.
_SUM_REGISTERS = 96


class Simt:
    """See `families.Family`."""

    name = "simt"

    def reasons_against(self, operands: Operands, arch: Architecture) -> list[str]:
        """Return no reason: it is the family for everything."""
        return []

    def geometry(self, program: Program) -> Geometry:
        """Return the sizes of blocks; shared memory is static."""
        block_q = THREADS // LANES * _rows(program)
        return Geometry(THREADS, block_q, LANES * _KEYS, shared_bytes=0)

    def source(self, program: Program, variant: Variant) -> str:
        """Return CUDA C++."""
        constants = {"THREADS": THREADS, "LANES": LANES, "ROWS": _rows(program), "COLS": _KEYS}
        title = "Attention by sdpakit, SIMT family."
        names = ("softmax", "tiles", "simt_products", "simt_forward", "merge")
        return assemble(title, program, variant, constants, simple_weights(), *names)


def simple_weights() -> str:
    """Return how weights are made: by an exponential of full accuracy."""
    text = Source()
    text.line("constexpr accum_t ONE = 1;")
    with text.braces("__device__ __forceinline__ accum_t weight(accum_t x, accum_t m)"):
        text.line("return exp_of(x - m);")
    return text.text()


def rows_for(program: Program, *widths: int) -> int:
    """Return the rows of a thread: as many as have their sums of some widths in registers."""
    words = DTYPES[program.accum_dtype].itemsize // 4
    channels = sum(-(-width // _CHUNK_V) * (_CHUNK_V // LANES) for width in widths)
    room = _SUM_REGISTERS // max(1, channels * words)
    return 4 if room >= 4 else 2 if room >= 2 else 1


def _rows(program: Program) -> int:
    return rows_for(program, program.v_head_dim)
