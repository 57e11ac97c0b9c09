"""Programs are what specs mean: order of the logits, AND of masks, what is left to run time."""

from __future__ import annotations

import math

import pytest

from sdpakit import Alibi, AttentionSpec, Causal, Dense, Dilated, Prefix, Scalar, Window
from sdpakit.expr.nodes import Const
from sdpakit.expr.text import parse, to_text
from sdpakit.ir.build import build


def _spec(**changes):
    return AttentionSpec(**({"q_heads": 2, "head_dim": 16} | changes))


def _text(**changes):
    program, _ = build(_spec(**changes))
    return to_text(program.logit), to_text(program.mask)


def test_the_plain_spec():
    program, scalars = build(_spec())
    assert program.logit is parse("scale.float * dot()")
    assert program.mask is Const(True)
    assert program.sink is None
    assert scalars == {"scale": 0.25}
    assert (program.head_dim, program.v_head_dim) == (16, 16)


def test_facts_are_taken_over():
    program, _ = build(
        _spec(v_head_dim=3, dtype="bfloat16", out_dtype="float32", outputs=("lse",), sinks=True)
    )
    assert (program.dtype, program.accum_dtype, program.out_dtype) == ("bfloat16", *["float32"] * 2)
    assert (program.v_head_dim, program.outputs, program.empty_row) == (3, ("lse",), "zero")
    assert program.sink is parse("sinks.float32[h]")
    assert build(_spec(dtype="float64", sinks=True))[0].sink is parse("sinks.float64[h]")


def test_order_of_the_logits():
    logit, _ = _text(softcap=5.0, bias="float16", logits=lambda x, i: x * Scalar("beta"))
    assert logit == (
        "((softcap.float * tanh((scale.float * dot()) / softcap.float))"
        " + bias.float16[b, h, q, k]) * beta.float"
    )


def test_masks_compose_by_and_with_the_lengths():
    _, mask = _text(mask=Causal("bottom_right"), q_lens=True, kv_lens=True)
    assert mask == "(k <= (q + (kv_len - q_len))) & (q < q_len) & (k < kv_len)"


def test_values_of_masks_are_left_to_run_time():
    mask = Window(4, 2, "top_left") & Dilated(3, "offset") | Prefix(7) & Window(None, 9, "top_left")
    program, scalars = build(_spec(mask=mask, scale=-1.0, softcap=2.0))
    assert scalars == {
        "scale": -1.0,
        "softcap": 2.0,
        "window0_left": 4,
        "window0_right": 2,
        "dilated0_step": 3,
        "prefix0_length": 7,
        "window1_right": 9,
    }
    other = Window(5, 0, "top_left") & Dilated(1, "offset") | Prefix(0) & Window(
        None, 1, "top_left"
    )
    assert build(_spec(mask=other, scale=9.0, softcap=3.0))[0] == program


def test_alibi_and_alignment_left_open():
    logit, mask = _text(mask=Causal(), logits=Alibi(), equal_lens=True)
    assert logit.endswith(" + (slopes.float32[h] * to_float(k - q))")
    assert mask == "k <= q"


def test_dense_mask_reads_the_table_of_the_call():
    assert _text(mask=~Dense())[1] == "~mask.bool[b, h, q, k]"


@pytest.mark.parametrize("scale", [None, 0.0, 0.7])
def test_scale(scale):
    _, scalars = build(_spec(scale=scale, head_dim=3))
    assert scalars["scale"] == (1 / math.sqrt(3) if scale is None else scale)
