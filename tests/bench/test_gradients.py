"""The check of the backward pass: it is the reference's, and wrong gradients are not timed."""

from dataclasses import replace

import numpy as np
import pytest
from bench import gradients, inputs
from bench.run import run
from bench.targets import Ours, PlainNumpy, Torch, spec_of
from bench.timing import Plan
from bench.workloads import select

import sdpakit

FULL, CAUSAL = (
    replace(workload, q_len=70, kv_len=70)
    for workload in select(None, ["grad_f32_l2048_d64", "grad_f32_l2048_d64_causal"])
)
BRIEF = Plan(rounds=2, sample_seconds=1e-4)


def right(workload, made):
    spec = spec_of(sdpakit, workload)
    found = sdpakit.reference.attention(spec, made.q, made.k, made.v, dout=made.dout)
    return np.concatenate([found[name] for name in ("dq", "dk", "dv")]).astype(np.float32)


@pytest.mark.parametrize("workload", [FULL, CAUSAL], ids=lambda w: w.name)
def test_the_gradients_are_those_of_the_reference(workload):
    made = inputs.make(workload)
    check = gradients.expect(workload, made).check(right(workload, made), strict=True)
    assert check.passed, check
    assert check.share_of_bound > 0
    assert check.elements == 3 * 2 * 70 * 64  # of two heads


@pytest.mark.parametrize(
    "wrong",
    [
        lambda g: g * np.float32(1 + 2**-12),
        lambda g: g[[1, 0, 2]],
        lambda g: np.roll(g, 1, axis=2),
        lambda g: np.full_like(g, np.nan),
        lambda g: np.where(np.arange(len(g))[:, None, None, None] == 2, 0, g),
    ],
    ids=["scale", "dq and dk swapped", "rows shifted", "nan", "no dv"],
)
def test_wrong_gradients_are_found(wrong):
    made = inputs.make(CAUSAL)
    found = gradients.expect(CAUSAL, made).check(wrong(right(CAUSAL, made)), strict=False)
    assert not found.passed


def test_flops_are_those_of_five_products():
    full, causal = select(None, ["grad_f32_l2048_d64", "grad_f32_l2048_d64_causal"])
    assert full.flops == 10 * 4 * 2048 * 2048 * 64
    assert causal.flops == full.flops / 2


def test_the_backward_pass_runs_checked_and_timed():
    pytest.importorskip("torch")
    document = run([CAUSAL], [Ours(), Torch(), PlainNumpy()], BRIEF, command="")
    (entry,) = document["results"]
    for name in ("ours", "torch"):
        assert (entry["targets"][name]["status"], entry["targets"][name]["reason"]) == ("ok", "")
        assert entry["targets"][name]["check"]["passed"]
        assert entry["targets"][name]["share"]["median"] > 0
    assert entry["targets"]["numpy"]["status"] == "unsupported"


class Late:
    """Gradients of a forward pass that another mask had."""

    name, is_peer = "ours", False

    def prepare(self, case):
        return Ours().prepare(replace(case, workload=FULL))


def test_wrong_gradients_are_not_timed():
    (entry,) = run([CAUSAL], [Late()], BRIEF, command="")["results"]
    record = entry["targets"]["ours"]
    assert (record["status"], record["samples"], record["seconds"]) == ("wrong", [], None)
