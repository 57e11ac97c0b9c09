"""What the assembler makes of the kernels of the cupy backend, on every architecture."""

import itertools

import pytest

import sdpakit as sk
from sdpakit.backends.cupy.compiled import compile_for
from sdpakit.backends.cupy.families import choose_family
from sdpakit.backends.cupy.heads import Variant
from sdpakit.backends.gpu.architectures import ARCHITECTURES
from sdpakit.backends.gpu.gates import (
    FitsLaunch,
    HasInstructions,
    NoLocalMemory,
    NoLostSpeed,
    NoSpills,
    judge,
)
from sdpakit.ir.build import build
from sdpakit.passes import run_pipeline

ARCHES = ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a")
DTYPES = ("float32", "bfloat16", "float16", "float64")
WIDTHS = (64, 96, 128, 192, 256)
MASKS = {
    "none": None,
    "causal": sk.Causal("top_left"),
    "window": sk.Window(100, 0, align="top_left"),
}


def matrix():
    """Every pair of an architecture with a dtype, width or mask; all cells would take an hour."""
    seen = set()
    for cell in itertools.product(ARCHES, DTYPES, WIDTHS, MASKS):
        arch, *others = cell
        pairs = {(arch, other) for other in others}
        if len(pairs - seen) >= 2:
            seen |= pairs
            yield cell


@pytest.mark.parametrize(("arch", "dtype", "width", "mask"), list(matrix()))
@pytest.mark.usefixtures("tools")
def test_code(arch, dtype, width, mask):
    spec = sk.AttentionSpec(q_heads=1, head_dim=width, dtype=dtype, mask=MASKS[mask])
    program = run_pipeline(build(spec)[0])
    family = choose_family(program, ARCHITECTURES[arch], None)
    geometry = family.geometry(program)
    module = compile_for(ARCHITECTURES[arch], family.source(program, Variant()))
    gates = [
        NoSpills(),
        NoLocalMemory(),
        NoLostSpeed(),
        FitsLaunch(threads=geometry.threads, dynamic_shared=geometry.shared_bytes),
    ]
    if family.name == "mma":
        steps = -(-width // 16)
        products = geometry.block_k // 8 * steps + geometry.block_k // 16 * (-(-width // 8))
        gates += [HasInstructions("HMMA", products), HasInstructions("LDGSTS")]
    assert judge(module, gates) == []
