"""What the assembler makes of the kernels of the cupy backend, on every architecture."""

import itertools

import pytest

import sdpakit as sk
from sdpakit.backends.cupy.backward import gradient_family
from sdpakit.backends.cupy.compiled import compile_for
from sdpakit.backends.cupy.families import ENTRY, choose_family
from sdpakit.backends.cupy.heads import Variant
from sdpakit.backends.gpu.architectures import ARCHITECTURES
from sdpakit.backends.gpu.gates import (
    FitsLaunch,
    NoLocalMemory,
    NoLostSpeed,
    NoSpills,
    judge,
)
from sdpakit.backends.gpu.sass import take_census
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
    """Every cell, an hour of work; ci/test takes some, on every architecture."""
    cells = list(itertools.product(ARCHES, DTYPES, WIDTHS, MASKS))
    for number, cell in enumerate(cells):
        marks = () if number % 43 == 0 else (pytest.mark.long,)
        yield pytest.param(*cell, marks=marks)


@pytest.mark.parametrize(("arch", "dtype", "width", "mask"), list(matrix()))
@pytest.mark.usefixtures("tools")
def test_code(arch, dtype, width, mask):
    spec = sk.AttentionSpec(q_heads=1, head_dim=width, dtype=dtype, mask=MASKS[mask])
    program = run_pipeline(build(spec)[0])
    family = choose_family(program, ARCHITECTURES[arch], None)
    geometry = family.geometry(program)
    module = compile_for(ARCHITECTURES[arch], family.source(program, Variant()))
    assert judge(module, gates_of(geometry)) == []
    if family.name == "mma":
        census = take_census(module.cubin)[ENTRY]
        assert census.count("HMMA") >= 2 * products(geometry, width)
        assert census.count("LDGSTS")


def gates_of(geometry):
    launch = FitsLaunch(threads=geometry.threads, dynamic_shared=geometry.shared_bytes)
    return [NoSpills(), NoLocalMemory(), NoLostSpeed(), launch]


def products(geometry, width):
    """Instructions of a warp for the product of its rows with a tile."""
    return geometry.block_k // 8 * (width // 16)


# What takes the most registers: all that a logit may have.
EVERYTHING = {
    "bias": "float32",
    "sinks": True,
    "softcap": 30.0,
    "mask": sk.Document() & sk.Window(100, 0, align="top_left"),
}


@pytest.mark.parametrize(
    ("arch", "dtype", "width", "more"),
    [
        ("sm_80", "float16", 64, {}),
        ("sm_90a", "bfloat16", 128, {"mask": MASKS["causal"]}),
        *(
            pytest.param(*cell, marks=pytest.mark.long)
            for cell in (
                *((arch, "bfloat16", 128, {}) for arch in ARCHES),
                ("sm_80", "float16", 64, EVERYTHING),
                ("sm_100a", "bfloat16", 128, EVERYTHING),
                ("sm_120a", "float16", 96, {}),
            )
        ),
    ],
    ids=lambda value: "_".join(value) or "plain" if isinstance(value, dict) else None,
)
@pytest.mark.usefixtures("tools")
def test_code_of_gradients_by_matrix_instructions(arch, dtype, width, more):
    spec = sk.AttentionSpec(q_heads=1, head_dim=width, dtype=dtype, **more)
    program = run_pipeline(build(spec)[0])
    family = gradient_family(program, ARCHITECTURES[arch], "mma")
    geometry = family.geometry(program)
    module = compile_for(ARCHITECTURES[arch], family.source(program, Variant()))
    assert judge(module, gates_of(geometry)) == []
    census = take_census(module.cubin)
    for name, count in (("gradient_of_queries", 3), ("gradient_of_keys", 4)):
        assert census[name].count("HMMA") >= count * products(geometry, width), name
        assert census[name].count("LDGSTS"), name
