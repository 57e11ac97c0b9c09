import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from bench.inputs import make, visible
from bench.targets import TARGETS
from bench.workloads import GROUPS, WORKLOADS, select

ROOT = Path(__file__).resolve().parents[2]


def named(name):
    (found,) = (w for w in WORKLOADS if w.name == name)
    return found


def test_names_are_unique_and_every_workload_is_in_full():
    assert len({w.name for w in WORKLOADS}) == len(WORKLOADS)
    assert all("full" in w.groups and set(w.groups) <= set(GROUPS) for w in WORKLOADS)
    assert select("full", []) == WORKLOADS


@pytest.mark.parametrize("group", GROUPS)
def test_every_group_has_workloads(group):
    assert select(group, [])


def test_unknown_names_are_refused_with_those_that_exist():
    with pytest.raises(ValueError, match=r"(?s)case: got nothing.*allowed: .*f32_l2048_d64"):
        select(None, ["nothing"])
    with pytest.raises(
        ValueError, match=r"group: got 'huge'\n  allowed: quick, floor, backward, full"
    ):
        select("huge", [])


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: w.name)
def test_useful_pairs_are_those_that_the_mask_shows(workload):
    if workload.mask in ("none", "random"):
        keys = sum(workload.keys(b) for b in range(workload.batch)) / workload.batch
        assert workload.pairs == workload.q_len * keys
        return
    small = replace(workload, q_len=1024, kv_len=1024, window=min(workload.window, 100))
    shown = np.count_nonzero(visible(small, np.arange(1024)))
    # Causal counts half of the square (of each document): half a diagonal less than is shown.
    diagonal = 0 if small.mask == "window" else 1024 / 2
    assert small.pairs == shown - diagonal


def test_flops_and_bytes():
    workload = named("f32_l1024_d128_gqa_causal")
    assert workload.flops == 4 * 32 * 1024 * 1024 / 2 * 128
    assert workload.kv_bytes == 2 * 8 * 1024 * 128 * 4
    assert named("decode_gqa_l4096_f32").work == 2 * 8 * 4096 * 128 * 4


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: w.name)
def test_goals_name_targets_that_exist(workload):
    for threads in (1, 2):
        for goal in workload.goals(threads).values():
            assert goal.share is not None or goal.ratio is not None
            assert goal.against in {"best", *(t.name for t in TARGETS)}


def test_the_goals_of_a_release_are_these():
    floors = {w.name: w.floor for w in WORKLOADS if w.floor}
    assert {name: (g.share, g.ratio, g.against) for name, g in floors.items()} == {
        "f32_l2048_d64": (0.80, 1.1, "torch"),
        "f32_l2048_d64_causal": (None, 1.35, "torch"),
        "bf16_l2048_d64": (0.75, None, "best"),
        "f16_l2048_d64": (0.75, None, "best"),
    }


def test_two_threads_are_held_to_scaling_where_there_is_work_for_both():
    goal = named("f32_l2048_d64").goals(2)["goal"]
    assert (goal.ratio, goal.against) == (1.9, "ours_one_thread")
    assert named("f64_l2048_d64").goals(2) == {}


def test_inputs_are_the_same_in_every_run_and_no_row_is_empty():
    workload = replace(named("f32_l2048_d64_mask"), q_len=300, kv_len=300)
    first, second = make(workload), make(workload)
    assert np.array_equal(first.q, second.q)
    assert not np.array_equal(first.k, first.v)
    assert first.mask.any(axis=-1).all()
    assert 0.4 < first.mask.mean() < 0.6


def test_modules_load_without_the_packages_of_peers():
    script = (
        "import sys\n"
        "for name in ('torch', 'onnxruntime', 'onnx', 'threadpoolctl'): sys.modules[name] = None\n"
        "import bench.workloads\n"
        "assert 'numpy' not in sys.modules\n"
        "import bench.run, bench.targets, bench.report, bench.latency, bench.probes, bench.table\n"
    )
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True)
