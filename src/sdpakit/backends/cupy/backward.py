"""The backward pass: kernels of the SIMT family for every dtype, width and mask."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from sdpakit.backends.base import Artifact, Options
from sdpakit.backends.cupy.compiled import DEFAULT_ARCH, Stages
from sdpakit.backends.cupy.families import Geometry
from sdpakit.backends.cupy.heads import Variant, assemble
from sdpakit.backends.cupy.simt import LANES, THREADS, rows_for, simple_weights
from sdpakit.backends.gpu.architectures import ARCHITECTURES
from sdpakit.ir.printer import to_text

if TYPE_CHECKING:
    from sdpakit.ir.program import Program

_COLS = 2


def forward_program(program: Program) -> Program:
    """Return the program whose `out` is not rounded and 0 in empty rows, as gradients want it."""
    return replace(program, out_dtype=program.accum_dtype, outputs=("out",), empty_row="zero")


def backward_geometry(program: Program) -> Geometry:
    """Return the sizes of blocks: `block_q` rows of q or k, and `block_k` of the other."""
    return Geometry(THREADS, THREADS // LANES * _rows(program), LANES * _COLS, shared_bytes=0)


def backward_source(program: Program, variant: Variant) -> str:
    """Return the source of all kernels of the gradients of a program."""
    constants = {"THREADS": THREADS, "LANES": LANES, "ROWS": _rows(program), "COLS": _COLS}
    return assemble(
        "Gradients of attention by sdpakit, SIMT family.",
        program,
        variant,
        constants,
        simple_weights(),
        *("softmax", "tiles", "simt_products", "simt_backward"),
        gradients=True,
    )


def lower_backward(program: Program, options: Options) -> Artifact:
    """Return the source of the plainest variant as an artifact."""
    arch = ARCHITECTURES[cast(str, options.get("arch") or DEFAULT_ARCH)]
    text, source = to_text(program), backward_source(program, Variant())
    key = hashlib.sha256(f"{arch}\n{source}".encode()).hexdigest()
    meta = {"arch": arch.name, "family": None, "launcher": options.get("launcher") or "device"}
    return Artifact("cupy", key, program, Stages(text, source, arch), meta)


def _rows(program: Program) -> int:
    """Return the rows of a thread, which has sums of both widths for each."""
    return rows_for(program, program.head_dim, program.v_head_dim)
