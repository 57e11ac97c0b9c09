import json
import subprocess
import sys

import numpy as np
import pytest
from bench import environment, latency, probes
from bench.figures import Figure, Record, calm_of, typical
from bench.latency import Processes


def test_a_probe_answers_in_json(tmp_path, alone):
    facts = Processes(tmp_path, alone()).probe("import_time")
    assert facts["loaded"] == []
    assert facts["seconds"]["cpu"] >= 0
    assert facts["slowdown"] == 1.0


def test_a_failing_probe_says_why(tmp_path, alone):
    with pytest.raises(RuntimeError, match=r"(?s)probe nothing: status 1.*KeyError"):
        Processes(tmp_path, alone()).probe("nothing")


def test_forgetting_kernels_keeps_the_worker(tmp_path, alone):
    for name in ("sdpakit/cpu/a.o", "numba/worker.nbc"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_bytes(b"x")
    Processes(tmp_path, alone()).forget_kernels()
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] == ["worker.nbc"]


def test_modules_of_machine_code_are_counted():
    script = (
        "from bench.native import read_loop\n"
        "from bench.probes import modules_made\n"
        "with modules_made() as count:\n"
        "    read_loop(16, 0)\n"
        "    print(count())\n"
        "read_loop(16, 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "1"


def test_limits_are_kept_or_not():
    figure = Figure("name", "s", 0.45, 0.5, 0.4, [0.45, 0.6], {})
    assert figure.met("floor") is True
    assert figure.met("goal") is False
    assert Figure("name", "s", 0.45, None, 0.4, [0.45], {}).met("floor") is None


def test_the_peak_of_the_resident_set_is_read():
    before = probes._peak_bytes()
    block = bytearray(before)
    block[:] = b"x" * len(block)
    assert probes._peak_bytes() > before


def test_figures_come_from_the_probes():
    answers = {
        "call_overhead": {"allocating": 4.0, "into out": 3.0, "torch": None, "slowdown": 1.5},
        "sweep": {"lengths": 50, "compile": 1, "sweep": 2},
    }
    call, into, swept = latency.call_figures(answers.__getitem__)
    assert (call.value, into.value) == (4.0, 3.0)
    assert (swept.value, swept.met("floor")) == (3.0, False)
    assert (call.calm, call.peers) == ((0, 3), {})


def test_scratch_is_that_of_each_thread():
    answers = {
        name: {"grown_bytes": (64 if "prefill" in name else 6) * 2**20} for name in probes.PROBES
    }
    figures = {f.name: f for f in latency.memory_figures(answers.__getitem__)}
    assert len(figures) == 6
    assert figures["scratch, 32,768 squared"].met("goal") is False
    assert figures["scratch, 32,768 squared, each of 2 threads"].value == 32.0
    assert figures["scratch, backward, 16,384 squared"].value == 6.0


def test_memory_that_is_held_during_a_call_is_seen_and_results_are_not():
    def call(held, results):
        np.ones(held, np.uint8)
        return results

    grown = probes._memory(lambda: call(64 << 20, 1 << 20))["grown_bytes"]
    assert 60 << 20 < grown < 72 << 20


def test_calm_samples_are_counted():
    assert calm_of([1.0, 1.1, 1.6]) == (2, 3)


def test_disturbed_values_do_not_count_where_three_are_calm():
    assert typical([1.0, 2.0, 3.0, 9.0], [1.0, 1.0, 1.0, 1.8]) == 2.0
    assert typical([1.0, 2.0, 8.0, 9.0], [1.0, 1.0, 1.8, 1.8]) == 5.0


def test_figures_that_miss_or_are_missing_fail_a_run(tmp_path, capsys):
    record = Record(environment.Preparation(1, [0], {}, in_time=True), "python -m bench.latency")
    good = Figure("good", "s", 0.1, None, 0.4, [0.1], {})
    path = tmp_path / "new" / "figures.json"
    assert record.finish([good], path, "goal") == 0
    assert json.loads(path.read_text())["figures"][0]["value"] == 0.1
    assert record.finish([Figure("over", "s", 0.5, None, 0.4, [0.5], {})], path) == 0
    assert record.finish([Figure("over", "s", 0.5, None, 0.4, [0.5], {})], path, "goal") == 1
    assert "goal not kept: over" in capsys.readouterr().out
    assert record.finish([Figure("none", "s", None, None, 0.4, [], {})], path, "goal") == 1
    wrong = Figure("bad", "x", None, None, None, [], {}, reason="wrong: error")
    assert record.finish([wrong], path) == 1
    assert "bad: wrong: error" in capsys.readouterr().out
