"""The call beside a busy process: who competes, which samples count, and what is said of it."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from bench import competition, timing
from bench.competition import Competitor, beside, figure, measure
from bench.timing import Plan, Sample

PLAN = Plan(threads=2, rounds=3, sample_seconds=0.02)

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture
def competitor():
    made = Competitor()
    yield made
    made.end()


def sample(number, wall, foreign=0.0):
    return Sample(number, 1, wall, wall, foreign, 0.0)


def taken(beside, shares, foreign=0.0):
    alone = [sample(n, 1.0) for n in range(3)]
    return {
        "alone": alone,
        "beside": [sample(n, wall, foreign) for n, wall in enumerate(beside)],
        "shares": list(shares),
    }


@linux
def test_the_competitor_runs_only_when_it_is_let(competitor):
    time.sleep(0.1)  # it may have started before it was stopped
    before = competitor.seconds()
    time.sleep(0.1)
    assert competitor.seconds() == before
    with competitor.running():
        end = time.perf_counter() + 20
        while competitor.seconds() == before and time.perf_counter() < end:
            time.sleep(0.01)
    assert competitor.seconds() > before


@linux
def test_the_competitor_does_not_outlive_its_parent():
    script = (
        "import os\n"
        "from bench.competition import Competitor\n"
        "made = Competitor()\n"
        "with made.running():\n"
        "    while made.seconds() < 0.2: pass\n"
        "print(made._process.pid, flush=True)\n"
        "os._exit(1)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    stat = Path(f"/proc/{int(done.stdout)}/stat")
    end = time.perf_counter() + 20
    while alive(stat) and time.perf_counter() < end:
        time.sleep(0.01)
    assert not alive(stat)


def alive(stat):
    """Say whether a process still runs: one that nobody has waited for yet does not."""
    try:
        return stat.read_text(encoding="ascii").rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@linux
def test_the_time_of_the_competitor_is_not_foreign(competitor, monkeypatch):
    clock = iter([0.0, 10.0])
    monkeypatch.setattr(competitor, "seconds", lambda: next(clock))
    monkeypatch.setattr(timing, "sample", lambda *_, **__: sample(0, 1.0, foreign=1.2))
    found, share = beside(competitor, lambda: None, 1, 0)
    assert share > 1.2
    assert found.foreign == 0.0


@linux
def test_a_call_is_timed_alone_and_beside_the_competitor(competitor):
    found = measure({"ours": lambda: sum(range(20_000))}, PLAN, competitor)["ours"]
    assert len(found["alone"]) == len(found["beside"]) == len(found["shares"]) >= PLAN.rounds
    made = figure("name", {"ours": found}, {}, PLAN)
    assert (made.goal, made.unit) == (2.2, "x")
    assert len(made.samples) == len(found["beside"])


def test_the_figure_is_the_median_of_pairs_and_others_stand_beside_it():
    found = {
        "ours": taken([1.5, 1.6, 1.4], [0.5] * 3),
        "torch": taken([9.0, 8.0, 9.5], [0.5] * 3),
    }
    made = figure("name", found, {"ort_mha": "wrong: error"}, PLAN)
    assert (made.value, made.met("goal")) == (1.5, True)
    assert made.peers == {"torch": 9.0}
    assert (made.calm, made.reason) == ((3, 3), "")
    assert made.detail["not timed"] == {"ort_mha": "wrong: error"}
    assert figure("name", {"ours": taken([3.0] * 3, [0.5] * 3)}, {}, PLAN).met("goal") is False


def test_a_competitor_that_gets_no_time_is_none():
    idle = taken([1.0] * 3, [0.01] * 3)
    assert figure("name", {"ours": idle}, {}, PLAN).value is None
    disturbed = taken([1.0] * 3, [0.5] * 3, foreign=0.9)
    assert figure("name", {"ours": disturbed}, {}, PLAN).value is None


def test_a_wrong_answer_has_no_figure():
    made = figure("name", {}, {"ours": "wrong: error of 3 times the bound"}, PLAN)
    assert (made.value, made.met("goal")) == (None, None)
    assert made.reason == "wrong: error of 3 times the bound"


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity")
def test_more_threads_than_cores_are_refused():
    with pytest.raises(RuntimeError, match=r"1000 threads need as many cores"):
        competition.environment.share_cores(1000)
