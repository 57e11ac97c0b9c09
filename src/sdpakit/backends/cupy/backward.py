"""The backward pass: what its families can do, and which one compiles a program.

Rows are prepared, and gradients of sinks and tables computed, by the same kernels in every family;
families differ in the gradients of q, k and v.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from sdpakit.backends.base import Artifact, Options
from sdpakit.backends.cupy.compiled import DEFAULT_ARCH, Stages
from sdpakit.backends.cupy.families import Family, Geometry, Operands, choose_family
from sdpakit.backends.cupy.heads import Variant, assemble
from sdpakit.backends.cupy.mma import WARPS, Mma, half_weights, pitch
from sdpakit.backends.cupy.simt import LANES, THREADS, rows_for, simple_weights
from sdpakit.backends.gpu.architectures import ARCHITECTURES
from sdpakit.errors import UnsupportedSpecError, format_error
from sdpakit.ir.printer import to_text

if TYPE_CHECKING:
    from sdpakit.backends.gpu.architectures import Architecture
    from sdpakit.ir.program import Program

_COLS = 2
_BLOCK_N = 32
# Sums of dk and dv together take half of a thread's registers.
_LARGEST_WIDTH = 128


class SimtGradients:
    """See `families.Family`; `block_q` are rows of q or k, and `block_k` those of the other."""

    name = "simt"

    def reasons_against(self, operands: Operands, arch: Architecture) -> list[str]:
        """Return no reason: it is the family for everything."""
        return []

    def geometry(self, program: Program) -> Geometry:
        """Return the sizes of blocks; shared memory is static."""
        return Geometry(THREADS, table_rows(program), LANES * _COLS, shared_bytes=0)

    def source(self, program: Program, variant: Variant) -> str:
        """Return the source of all kernels."""
        title = "Gradients of attention by sdpakit, SIMT family."
        names = ("softmax", "tiles", "backward", "simt_products", "simt_backward", "simt_tables")
        text, constants = simple_weights(), _constants(program)
        return assemble(title, program, variant, constants, text, *names, gradients=True)


class MmaGradients:
    """See `families.Family`; blocks as those of `SimtGradients`."""

    name = "mma"

    def reasons_against(self, operands: Operands, arch: Architecture) -> list[str]:
        """Return what matrix instructions or these kernels cannot do."""
        widths = {"head_dim": operands.head_dim, "v_head_dim": operands.v_head_dim}
        dtypes = operands.dtype, operands.out_dtype
        return [
            *Mma().reasons_against(operands, arch),
            *(f"{name}={n} > {_LARGEST_WIDTH}" for name, n in widths.items() if n > _LARGEST_WIDTH),
            *([f"out_dtype {dtypes[1]} is not {dtypes[0]}"] if dtypes[0] != dtypes[1] else []),
        ]

    def geometry(self, program: Program) -> Geometry:
        """Return the sizes of blocks."""
        rows = 16 * WARPS
        size = 2 * (rows + 2 * _BLOCK_N) * (pitch(program.head_dim) + pitch(program.v_head_dim))
        return Geometry(THREADS, rows, _BLOCK_N, size)

    def source(self, program: Program, variant: Variant) -> str:
        """Return the source of all kernels."""
        title = "Gradients of attention by sdpakit, mma.sync family."
        narrow = int(program.dtype == "float16")
        more = {"WARPS": WARPS, "BLOCK_N": _BLOCK_N, "NARROW": narrow}
        products = ("simt_products", "mma", "mma_products", "mma_backward")
        names = ("softmax", "tiles", "backward", *products, "simt_tables")
        text, constants = half_weights(program.dtype), _constants(program) | more
        return assemble(title, program, variant, constants, text, *names, gradients=True)


def table_rows(program: Program) -> int:
    """Return the query rows of a tile of the kernels of tables, which are those of SIMT."""
    return THREADS // LANES * _rows(program)


def forward_program(program: Program) -> Program:
    """Return the program whose `out` is not rounded and 0 in empty rows, as gradients want it."""
    return replace(program, out_dtype=program.accum_dtype, outputs=("out",), empty_row="zero")


def gradient_family(program: Program, arch: Architecture, wanted: str | None) -> Family:
    """Return the family that was asked for, or the first that can compute gradients.

    Raises
    ------
    UnsupportedSpecError
        If the one that was asked for cannot, though its forward pass may.
    """
    families: tuple[Family, ...] = (MmaGradients(), SimtGradients())
    for family in families:
        reasons = family.reasons_against(program, arch)
        if reasons and wanted == family.name:
            text = format_error(
                f"gradients by family {wanted!r}",
                got="; ".join(reasons),
                allowed="what the family can do",
                fix="leave out the option 'family', which then is one that can",
            )
            raise UnsupportedSpecError(text, {"cupy": reasons})
    return choose_family(program, arch, wanted, families)


def lower_backward(program: Program, options: Options) -> Artifact:
    """Return the source of the plainest variant as an artifact."""
    arch = ARCHITECTURES[cast(str, options.get("arch") or DEFAULT_ARCH)]
    wanted = options.get("family")
    family = gradient_family(program, arch, wanted)
    text, source = to_text(program), family.source(program, Variant())
    key = hashlib.sha256(f"{arch}\n{source}".encode()).hexdigest()
    meta = {
        "arch": arch.name,
        "family": family.name,
        "forward": choose_family(forward_program(program), arch, wanted).name,
        "launcher": options.get("launcher") or "device",
    }
    return Artifact("cupy", key, program, Stages(text, source, arch), meta)


def _constants(program: Program) -> dict[str, int]:
    return {"THREADS": THREADS, "LANES": LANES, "ROWS": _rows(program), "COLS": _COLS}


def _rows(program: Program) -> int:
    """Return the rows of a thread, which has sums of both widths for each."""
    return rows_for(program, program.head_dim, program.v_head_dim)
