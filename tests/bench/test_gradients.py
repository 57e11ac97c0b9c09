"""The benchmark of the backward pass: what it counts, and that wrong gradients are not timed."""

import numpy as np
import pytest
from bench import gradients, timing
from bench.ceilings import Ceiling
from bench.workloads import Workload

SMALL = Workload("small", 1, 2, 2, q_len=16, kv_len=16, head_dim=8, mask="causal")


def test_flops_are_those_of_five_products():
    full, causal = gradients.WORKLOADS[:2]
    assert gradients.flops(full) == 10 * 4 * 2048 * 2048 * 64
    assert gradients.flops(causal) == gradients.flops(full) / 2


def test_every_workload_has_a_name_of_its_own():
    names = [workload.name for workload in gradients.WORKLOADS]
    assert len(set(names)) == len(names)


def test_a_right_workload_is_timed():
    pytest.importorskip("torch")
    ceiling = Ceiling("fma", "float32", "none", 1e6, lambda: np.ones(1000).sum())
    row = gradients.run(SMALL, timing.Plan(1, 2, 0.001), ceiling)
    assert row.difference < 1e-5
    assert row.ratio > 0
    assert set(row.samples) == {"ceiling", "ours", "torch"}
    assert gradients.table([], 1).columns[0].header == "workload"


def test_wrong_gradients_are_not_timed(monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setattr(gradients, "DIFFERENCE_LIMIT", 0.0)
    with pytest.raises(RuntimeError, match=r"small: .* of the largest gradient from torch"):
        gradients.run(SMALL, timing.Plan(1, 2, 0.001), None)
