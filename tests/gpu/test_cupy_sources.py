"""The head that a program makes is kept as text: a change of it shows in a diff.

`pytest tests/gpu/test_cupy_sources.py --update-golden` writes the texts anew.
"""

from pathlib import Path

import pytest

import sdpakit as sk
from sdpakit.backends.cupy.backward import MmaGradients, SimtGradients
from sdpakit.backends.cupy.heads import Variant
from sdpakit.backends.cupy.mma import Mma
from sdpakit.backends.cupy.simt import Simt
from sdpakit.ir.build import build
from sdpakit.passes import run_pipeline

GOLDEN = Path(__file__).parent / "golden"

SPECS = {
    "plain": {"head_dim": 64},
    "causal_window_cap": {
        "head_dim": 80,
        "v_head_dim": 64,
        "softcap": 30.0,
        "mask": sk.Causal("bottom_right") & sk.Window(128, 0, align="bottom_right"),
    },
    "everything": {
        "head_dim": 16,
        "bias": "float32",
        "sinks": True,
        "mask": sk.Document() | sk.Prefix(4),
        "logits": sk.Alibi(align="top_left"),
        "outputs": ("out", "lse", "entropy"),
        "q_lens": True,
        "kv_lens": True,
    },
}
SOURCES = {
    "simt": lambda program: Simt().source(program, Variant()),
    "mma": lambda program: Mma().source(program, Variant(int_bits=64, aligned=False)),
    "backward": lambda program: SimtGradients().source(program, Variant()),
    "mma_backward": lambda program: MmaGradients().source(program, Variant(whole_dout=False)),
}


def heads_of(source):
    """What differs between programs: all but the texts of kernels/*.cu."""
    kernels = Path(sk.__file__).parent / "backends" / "cupy" / "kernels"
    for path in kernels.glob("*.cu"):
        source = source.replace(path.read_text(encoding="utf-8"), f"// kernels/{path.name}\n")
    return source


@pytest.mark.parametrize("kind", list(SOURCES))
@pytest.mark.parametrize("name", list(SPECS))
def test_source(name, kind, request):
    dtype = "bfloat16" if kind.startswith("mma") else "float32"
    spec = sk.AttentionSpec(q_heads=4, kv_heads=2, dtype=dtype, **SPECS[name])
    found = heads_of(SOURCES[kind](run_pipeline(build(spec)[0])))
    path = GOLDEN / f"{name}_{kind}.cu"
    if request.config.getoption("--update-golden", default=False):
        path.parent.mkdir(exist_ok=True)
        path.write_text(found, encoding="utf-8")
    assert found == path.read_text(encoding="utf-8"), f"{path.name}: see --update-golden"


def test_no_text_is_kept_for_nothing():
    kept = {path.stem for path in GOLDEN.glob("*.cu")}
    assert kept == {f"{name}_{kind}" for name in SPECS for kind in SOURCES}
