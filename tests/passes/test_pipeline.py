"""The pipeline as a whole: its order, what it keeps, what it says of a broken program."""

from __future__ import annotations

from dataclasses import replace

import pytest

import sdpakit.passes
from sdpakit import Alibi, AttentionSpec, Causal, Prefix, Window
from sdpakit.errors import VerifyError
from sdpakit.expr.nodes import Binary, Const, Dot, Scalar, Unary
from sdpakit.ir.build import build
from sdpakit.ir.program import Schedule
from sdpakit.passes import run_pipeline

SPECS = {
    "plain": AttentionSpec(q_heads=1, head_dim=8),
    "cap": AttentionSpec(q_heads=1, head_dim=8, softcap=30.0),
    "causal": AttentionSpec(q_heads=1, head_dim=8, mask=Causal("top_left")),
    "everything": AttentionSpec(
        q_heads=4,
        kv_heads=2,
        head_dim=8,
        v_head_dim=3,
        dtype="float16",
        softcap=5.0,
        bias="float64",
        logits=Alibi(align="bottom_right"),
        mask=~(Window(3, None, "bottom_right") & ~Prefix(2)),
        sinks=True,
        q_lens=True,
        kv_lens=True,
        outputs=("out", "lse", "max_logit", "entropy", "sum_p2"),
        empty_row="nan",
    ),
}


def _program(name):
    return build(SPECS[name])[0]


@pytest.mark.parametrize("name", SPECS)
def test_running_again_changes_nothing(name):
    once = run_pipeline(_program(name))
    again = run_pipeline(once)
    assert again == once
    assert all(a is b for a, b in zip(again.roots(), once.roots(), strict=True))


def test_passes_are_seen_in_order():
    seen = []
    result = run_pipeline(
        _program("everything"), lambda name, program: seen.append((name, program))
    )
    assert [name for name, _ in seen] == ["fold", "normalise", "schedule"]
    assert seen[-1][1] is result
    assert seen[0][1].schedule is None


@pytest.mark.parametrize(
    ("name", "needs_mask", "plain_logits"),
    [
        ("plain", False, True),
        ("cap", False, False),
        ("causal", True, True),
        ("everything", True, False),
    ],
)
def test_schedule_says_what_is_needed(name, needs_mask, plain_logits):
    found = run_pipeline(_program(name)).schedule
    assert found == Schedule(needs_mask=needs_mask, plain_logits=plain_logits)


def test_a_mask_that_folds_away_is_no_mask():
    mask = Binary("or", Const(True), Unary("not", Binary("le", Const(1), Const(0))))
    program = run_pipeline(replace(_program("plain"), mask=mask))
    assert program.mask is Const(True)
    assert program.schedule == Schedule(needs_mask=False, plain_logits=True)


def test_logits_that_fold_to_the_scaled_product_are_plain():
    logit = Binary("add", Binary("mul", Dot(), Scalar("scale")), Const(-0.0))
    program = run_pipeline(replace(_program("plain"), logit=logit))
    assert program.schedule == Schedule(needs_mask=False, plain_logits=True)


def test_a_pass_that_breaks_the_program_is_named(monkeypatch):
    def broken(program):
        return replace(program, head_dim=0)

    monkeypatch.setattr(sdpakit.passes, "normalise", broken)
    with pytest.raises(VerifyError, match=r"(?s)after 'normalise'.*head_dim 0 is not >= 1"):
        run_pipeline(_program("plain"))


def test_a_program_that_comes_broken_is_named():
    with pytest.raises(VerifyError, match="after 'build'"):
        run_pipeline(replace(_program("plain"), outputs=()))
