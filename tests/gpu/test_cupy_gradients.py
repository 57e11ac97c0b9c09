"""Gradients by matrix instructions, in the emulator, judged by the bounds of the kit."""

import numpy as np
import pytest

import sdpakit as sk
from sdpakit.backends.cupy.backward import gradient_family
from sdpakit.backends.gpu.architectures import ARCHITECTURES
from sdpakit.conformance import Case, check
from sdpakit.conformance.inputs import with_strides
from sdpakit.conformance.model import Shape
from sdpakit.conformance.targets.compiled import Compiled
from sdpakit.errors import UnsupportedSpecError
from sdpakit.ir.build import build
from sdpakit.passes import run_pipeline

pytestmark = pytest.mark.usefixtures("tools")

EMULATED = {"launcher": "emulator", "family": "mma"}
TOP_LEFT = sk.Causal("top_left")


def plain(draw):
    return {**draw.qkv(), "dout": draw.dout()}


def judge(shape, dtype, recipe=plain, bound="sharp", **spec):
    """The gradients of a case, twice: their errors, bits and memory."""
    case = Case(
        id=f"gradients.of_the_test.{dtype}",
        rules=("GRAD-1",),
        catches="wrong fragments, tiles or powers",
        shape=Shape(**shape),
        spec={"dtype": dtype, **spec},
        recipe=recipe,
        bound=bound,
        gradients=True,
    )
    outcome = check(Compiled("cupy", EMULATED), case)
    assert outcome.verdict == "ok", f"{outcome.verdict}: {outcome.message}"


@pytest.mark.parametrize(
    ("dtype", "mask", "widths"),
    [
        ("float16", sk.Causal("bottom_right"), (24, 40)),
        ("bfloat16", sk.Window(20, 3, align="top_left"), (64, 16)),
        ("bfloat16", None, (128, 128)),
    ],
)
def test_gradients_of_groups_of_heads_and_several_blocks(dtype, mask, widths):
    shape = {"q_heads": 2, "kv_heads": 1, "q_len": 70, "kv_len": 77}
    judge({**shape, "head_dim": widths[0], "v_head_dim": widths[1]}, dtype, mask=mask)


def test_tables_sinks_and_caps():
    def recipe(draw):
        bias = draw.normal(1, 2, 1, 40, dtype="float32")
        return {**plain(draw), "bias": bias, "sinks": draw.normal(2, dtype="float32")}

    shape = {"q_heads": 2, "q_len": 20, "kv_len": 40, "head_dim": 16}
    judge(shape, "bfloat16", recipe, softcap=3.0, sinks=True, bias="float32")


@pytest.mark.parametrize(
    ("name", "where", "value"),
    [
        ("v", (0, 0, 15, 3), np.inf),  # of a key that few rows see
        ("k", (0, 0, 30, 2), np.nan),  # that none sees
        ("dout", (0, 0, 4, 1), np.nan),
        ("q", (0, 0, 3, 1), np.inf),
    ],
)
def test_what_is_not_finite_does_not_reach_what_is_absent(name, where, value):
    def recipe(draw):
        found = plain(draw)
        found[name][where] = value
        return found

    shape = {"q_heads": 1, "q_len": 20, "kv_len": 40, "head_dim": 16}
    judge(shape, "float16", recipe, "hard", mask=TOP_LEFT)


def test_gradients_of_logits_may_be_beyond_float16():
    def recipe(draw):
        """Gradients of logits pass 65504; their products with keys, and with rows, do not."""
        v = draw.v(4000.0)
        growing = np.linspace(0.01, 1, v.shape[2])[:, None]  # so that powers change on the way
        found = {"q": draw.q(2.0**-9), "k": draw.k(2.0**-9), "v": draw.array(v * growing)}
        return {**found, "dout": draw.array(draw.dout() * 4000)}

    shape = {"q_heads": 1, "q_len": 40, "kv_len": 70, "head_dim": 16}
    judge(shape, "float16", recipe, "hard", mask=TOP_LEFT)


@pytest.mark.parametrize("order", ["sliced", "fortran", "unaligned"])
def test_rows_need_not_lie_at_multiples_of_16_bytes(order):
    def recipe(draw):
        found = plain(draw)
        return {**found, **{name: with_strides(found[name], order=order) for name in ("v", "dout")}}

    judge({"q_heads": 1, "q_len": 20, "kv_len": 40, "head_dim": 16}, "float16", recipe)


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"head_dim": 192}, "head_dim=192 > 128"),
        ({"head_dim": 16, "v_head_dim": 144}, "v_head_dim=144 > 128"),
        ({"head_dim": 16, "out_dtype": "float32"}, "out_dtype float32 is not float16"),
    ],
)
def test_gradients_that_the_family_cannot_compute(more, reason):
    spec = sk.AttentionSpec(q_heads=1, dtype="float16", **more)
    with pytest.raises(UnsupportedSpecError, match=reason):
        sk.compile_backward(spec, backend="cupy", options=EMULATED)
    assert family_of(spec) == "simt"


def test_the_family_of_matrix_instructions_comes_first():
    assert family_of(sk.AttentionSpec(q_heads=1, dtype="bfloat16", head_dim=128)) == "mma"


def family_of(spec):
    return gradient_family(run_pipeline(build(spec)[0]), ARCHITECTURES["sm_80"], None).name
