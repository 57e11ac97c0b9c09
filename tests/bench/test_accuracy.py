"""Errors of gradients beside those of torch: what is compared, and what is judged."""

import numpy as np
import pytest
import typer
from bench import accuracy, workloads

CAUSAL, FULL = workloads.select(None, ["grad_f32_l512_d64", "grad_f32_l512_d64_causal"])[::-1]


def found(ours, torch):
    sizes = {"ours": ours, "torch": torch, "bound": 4.0}
    return {
        name: {g: np.full((6, 2), size) for g in accuracy.GRADIENTS} for name, size in sizes.items()
    }


@pytest.mark.parametrize(("ours", "met"), [(1.0, True), (-2.0, True), (3.0, False)])
def test_a_larger_error_than_torch_is_over_the_goal(monkeypatch, ours, met):
    monkeypatch.setattr(accuracy, "errors", lambda _: found(ours, 2.0))
    dq, dk, dv = accuracy.figures_of(CAUSAL)
    assert dq.value == dk.value == dv.value == abs(ours) / 2.0
    assert (dq.met("goal"), dk.met("goal"), dv.met("goal")) == (None, met, met)
    assert dk.detail["ours"]["share of bound"] == abs(ours) / 4.0


def test_only_causal_sums_are_judged(monkeypatch):
    monkeypatch.setattr(accuracy, "errors", lambda _: found(3.0, 2.0))
    assert [figure.met("goal") for figure in accuracy.figures_of(FULL)] == [None] * 3


def test_a_workload_without_gradients_is_refused():
    with pytest.raises(typer.BadParameter, match="got f32_l2048_d64\n  allowed: grad_"):
        accuracy.chosen(["f32_l2048_d64"])
    assert all(workload.backward for workload in accuracy.chosen([]))
