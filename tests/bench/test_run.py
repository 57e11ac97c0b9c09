from dataclasses import replace

import numpy as np
import pytest
from bench import environment
from bench.run import run
from bench.targets import Ours, PlainNumpy, Prepared, UnsupportedByTarget
from bench.timing import Plan
from bench.workloads import select

SMALL = tuple(replace(w, q_len=min(w.q_len, 40), kv_len=40) for w in select("quick", []))
BRIEF = Plan(rounds=2, sample_seconds=1e-4)


class Broken:
    name, is_peer = "broken", True

    def __init__(self, error=None, answer=None):
        self.error, self.answer = error, answer

    def prepare(self, case):
        if self.error:
            raise self.error
        return Prepared(lambda: self.answer(case), np.asarray)


def attempt(target):
    (entry,) = run(SMALL[:1], [target], BRIEF, command="")["results"]
    return entry["targets"][target.name], entry


def test_smallest_workloads_run_checked_and_timed():
    document = run(SMALL, [Ours(), PlainNumpy()], BRIEF, command="python -m bench")
    assert [r["workload"]["name"] for r in document["results"]] == [w.name for w in SMALL]
    for entry in document["results"]:
        assert entry["ceiling"]["rate"] > 0
        for name, record in entry["targets"].items():
            assert (record["status"], record["reason"]) == ("ok", ""), name
            assert record["check"]["passed"]
            assert len(record["samples"]) >= BRIEF.rounds
            assert record["share"]["median"] > 0


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (UnsupportedByTarget("why"), "unsupported"),
        (ModuleNotFoundError("why"), "absent"),
        (RuntimeError("why"), "failed"),
    ],
)
def test_what_keeps_a_target_from_running_is_put_on_record(error, status):
    record, entry = attempt(Broken(error))
    assert record["status"] == status
    assert record["reason"].endswith("why")
    assert record["samples"] == []
    assert entry["ceiling"]["samples"]


def test_a_wrong_answer_is_not_timed():
    record, _ = attempt(Broken(answer=lambda case: case.inputs.v * 0))
    assert record["status"] == "wrong"
    assert "times the bound" in record["reason"]
    assert record["samples"] == []
    assert record["seconds"] is None


def test_ours_is_not_timed_twice_where_the_workload_is_plain():
    record, _ = attempt(Ours("ours_plain", plain=True))
    assert record["status"] == "unsupported"


def test_facts_of_the_environment(tmp_path):
    facts = environment.describe(environment.Preparation(1, [0], {}, in_time=False))
    assert facts["versions"]["numpy"] == np.__version__
    assert facts["machine"]["cores"] >= 1
    assert facts["process"]["in_time"] is False
    assert environment.git_state(tmp_path) == {"commit": None, "dirty": None}
