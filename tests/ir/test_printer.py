"""The page of a program: deterministic, complete, and one for each program."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from sdpakit import Alibi, AttentionSpec, Causal, Prefix, Window
from sdpakit.expr.nodes import Binary, Const, Dot, Load, Scalar
from sdpakit.ir.build import build
from sdpakit.ir.printer import to_text
from sdpakit.ir.program import Program, Schedule
from sdpakit.passes import run_pipeline

SPEC = AttentionSpec(
    q_heads=4,
    kv_heads=2,
    head_dim=64,
    v_head_dim=32,
    dtype="float16",
    out_dtype="float32",
    softcap=30.0,
    bias="bfloat16",
    logits=Alibi(align="bottom_right"),
    mask=Causal("bottom_right") & ~Window(8, None, "bottom_right") | Prefix("n"),
    sinks=True,
    kv_lens=True,
    outputs=("out", "lse"),
    empty_row="nan",
)

PAGE = """\
attention for every (b, h, q) over k
  q, k, v    float16[64], v [32]
  computed   in float32, out in float32
  outputs    out, lse
  empty row  nan
  table      bias: bfloat16, 4 axes
  table      n: int64, 1 axes
  table      sinks: float32, 1 axes
  table      slopes: float32, 1 axes
  scalar     scale: float
  scalar     softcap: float
  scalar     window0_left: int
  logit
    = (softcap.float * tanh((scale.float * dot()) / softcap.float)) + bias.bfloat16[b, h, q, k] \
+ (slopes.float32[h] * to_float(k - (q + (kv_len - q_len))))
  mask
    t0 = q + (kv_len - q_len)
    = (((k <= t0) & (k < (t0 - window0_left.int))) | (k < n.int64[b])) & (k < kv_len)
  sink
    = sinks.float32[h]
  schedule   needs_mask=True plain_logits=False"""


def test_page_of_a_program():
    program = run_pipeline(build(SPEC)[0])
    assert to_text(program) == PAGE


CHANGES = {
    "head_dim": 65,
    "v_head_dim": 33,
    "dtype": "bfloat16",
    "accum_dtype": "float64",
    "out_dtype": "float16",
    "logit": Binary("mul", Scalar("scale"), Dot()),
    "mask": Const(True),
    "sink": None,
    "outputs": ("lse", "out"),
    "empty_row": "zero",
    "schedule": Schedule(needs_mask=True, plain_logits=True),
}


def test_every_fact_is_on_the_page():
    program = run_pipeline(build(SPEC)[0])
    assert set(CHANGES) == {field.name for field in fields(Program)}
    pages = {to_text(replace(program, **{name: value})) for name, value in CHANGES.items()}
    assert len(pages | {to_text(program)}) == len(CHANGES) + 1


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_dtype_of_a_table_is_on_the_page(dtype):
    program = build(SPEC)[0]
    other = replace(program, sink=Load("sinks", dtype, program.sink.indices))
    assert (to_text(other) == to_text(program)) == (dtype == "float32")


def test_values_that_a_call_may_change_are_not_on_the_page():
    other = replace_spec(scale=0.3, softcap=7.0, mask=_window(99))
    assert to_text(build(other)[0]) == to_text(build(replace_spec(mask=_window(8)))[0])


def _window(left):
    return Causal("bottom_right") & ~Window(left, None, "bottom_right") | Prefix("n")


def replace_spec(**changes):
    kept = {field.name: getattr(SPEC, field.name) for field in fields(SPEC)}
    return AttentionSpec(**(kept | changes))
