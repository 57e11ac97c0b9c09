"""Runs in processes of their own: the same outcomes, one case lost to a hang or a death."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from tests.conformance import misbehaving

import sdpakit as sk
from sdpakit.conformance import Case, relations
from sdpakit.conformance.runner import collect, run
from sdpakit.conformance.targets.naive import Naive

GOOD, ALSO_GOOD, BAD = (
    f"masks.causal_{name}.float32"
    for name in ("top_left_rectangle", "top_left_decode", "bottom_right_rectangle")
)
IDS = [GOOD, BAD, ALSO_GOOD]


def outcomes(target, ids=IDS, **options):
    text = target if isinstance(target, str) else misbehaving.name(target)
    return list(run(text, ids, relations=False, **{"workers": 1, "time_limit": 2.0, **options}))


def verdicts(found):
    return [outcome.verdict for outcome in found]


@pytest.mark.parametrize("workers", [1, 2])
def test_isolated_outcomes_are_those_of_this_process(workers):
    ids = ["relations.permuted_keys.float32", *IDS, "refusals.width_of_k.float32", *IDS[:1]]
    isolated = outcomes("naive", ids, workers=workers, time_limit=60.0)
    here = list(run(Naive(), ids, relations=False))
    assert [o.case for o in isolated] == ids
    assert [replace(o, seconds=0.0) for o in isolated] == [replace(o, seconds=0.0) for o in here]
    assert all(o.seconds > 0.0 for o in isolated)


def test_wrong_results_keep_their_worst_element_on_the_way():
    [found] = outcomes(misbehaving.HalvesTheScale, ["scale.two.float32"], time_limit=60.0)
    [here] = run(misbehaving.HalvesTheScale(), ["scale.two.float32"], relations=False)
    assert found.verdict == "fail"
    assert replace(found, target="", seconds=0.0) == replace(here, target="", seconds=0.0)


def test_relations_of_the_level_come_after_the_cases():
    wanted = [f"{relation.id}.{dtype}" for relation, dtype in relations("core")]
    assert [o.case for o in run(Naive(), IDS[:1])] == [GOOD, *wanted]


@pytest.mark.parametrize("target", [misbehaving.Sleeps, misbehaving.HoldsTheLock])
def test_a_hang_costs_its_case_and_says_where(target):
    found = outcomes(target)
    assert verdicts(found) == ["ok", "hang", "ok"]
    assert "no answer within 2 s" in found[1].message
    assert "in misbehave" in found[1].message


def test_the_first_case_of_a_process_has_three_times_as_much():
    [outcome] = outcomes(misbehaving.Sleeps, [BAD], time_limit=1.5)
    assert "no answer within 4.5 s" in outcome.message


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (misbehaving.Segfaults, ["killed by SIGSEGV", "Fatal Python error", "in misbehave"]),
        (misbehaving.Exits, ["exit status 7", "about to misbehave", "a word on stderr"]),
        (misbehaving.IsKilled, ["killed by SIGKILL", "want of memory", "a word on stderr"]),
        (misbehaving.ClosesEverything, ["the process"]),
        (misbehaving.WritesEverywhere, ["file descriptor", "about to misbehave"]),
    ],
)
def test_a_death_costs_its_case_and_says_how(target, said):
    found = outcomes(target, [*IDS, BAD, GOOD], workers=2, time_limit=60.0)
    assert [o.case for o in found] == [*IDS, BAD, GOOD]
    assert verdicts(found) == ["ok", "crash", "ok", "crash", "ok"]
    for crash in (found[1], found[3]):
        assert all(crash.message.count(text) == 1 for text in said), crash.message


def test_leaving_by_sys_exit_is_an_error_of_its_case_alone():
    found = outcomes(misbehaving.LeavesWithPolitesse, time_limit=60.0)
    assert verdicts(found) == ["ok", "error", "ok"]
    assert "enough" in found[1].message


@pytest.mark.parametrize("target", [misbehaving.Talks, misbehaving.Forks])
def test_noise_and_forks_disturb_no_answer(target):
    assert verdicts(outcomes(target, time_limit=60.0)) == ["ok"] * 3


def test_unknown_target_is_said_before_anything_runs():
    with pytest.raises(sk.ArgumentError, match=r"nave"):
        next(run("nave", IDS))
    with pytest.raises(sk.ArgumentError, match=r"nave"):
        collect(["naive", "nave"], on_outcome=lambda outcome: pytest.fail(outcome.case))


def test_a_target_that_dies_while_loaded_is_no_target():
    with pytest.raises(sk.ArgumentError, match=r"while it was loaded, .* exit status 5"):
        outcomes(misbehaving.dies_while_loaded)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"time_limit": 0.0}, "time limit: got 0"),
        ({"time_limit": -1.0}, "time limit: got -1"),
        ({"time_limit": float("nan")}, "time limit: got nan"),
        ({"workers": 0}, "workers: got 0"),
        ({"level": "cor", "relations": True}, "level: got 'cor'"),
    ],
)
def test_options_without_meaning(options, said):
    with pytest.raises(sk.ArgumentError, match=f"^{said}.*\n  allowed: .*\n  remedy: "):
        run("naive", IDS, **{"relations": False, **options})


def test_unknown_ids_name_near_misses():
    with pytest.raises(sk.ArgumentError, match=rf"did you mean .*{GOOD}"):
        run("naive", [GOOD.replace("float32", "floa32")])


def test_a_case_of_ones_own_is_judged_in_this_process_only():
    own = Case(id="own.case.float32", rules=(), catches="", spec={"dtype": "float32"})
    assert verdicts(run(Naive(), [own], relations=False)) == ["ok"]
    with pytest.raises(sk.ArgumentError, match=r"case: got 'own\.case\.float32'"):
        next(run("naive", [own], relations=False))


def test_collect_holds_what_a_report_needs():
    heard = []
    found = collect(["naive", "naive", Halved()], ids=IDS[:2], workers=1, on_outcome=heard.append)
    assert [info.name for info in found.targets] == ["naive", "halved"]
    assert [(o.target, o.case) for o in found.outcomes] == [
        (name, case) for name in ("naive", "halved") for case in IDS[:2]
    ]
    assert heard == list(found.outcomes)
    assert found.versions["sdpakit"] == sk.__version__
    assert found.level == "core"
    assert found.seconds > 0


class Unhashable(misbehaving.Naive):
    __hash__ = None


def test_objects_are_told_apart_by_their_names():
    target, other = Unhashable(), Unhashable()
    assert len(collect([target, target], ids=IDS[:1]).targets) == 1
    with pytest.raises(sk.ArgumentError, match=r"2 targets of the name 'naive'"):
        collect([target, other], ids=IDS[:1])


class Halved(misbehaving.HalvesTheScale):
    name = "halved"


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as stat:  # noqa: PTH123
        return stat.read().rpartition(")")[2].split()[0] != "Z"


def eventually(condition):
    end = time.monotonic() + 60.0
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_nothing_outlives_the_run(tmp_path, number):
    pids = tmp_path / "pids"
    code = (
        # A shell lets what it runs in the background ignore the interrupt.
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from sdpakit.conformance.runner import run\n"
        f"list(run({misbehaving.name(misbehaving.WritesItsPid)!r}, {IDS[:1]!r}, relations=False))"
    )
    path = os.pathsep.join(sys.path)
    environment = {**os.environ, "PIDS": str(pids), "PYTHONPATH": path}
    parent = subprocess.Popen(
        [sys.executable, "-c", code], env=environment, stderr=subprocess.DEVNULL
    )
    try:
        eventually(lambda: pids.exists() or parent.poll() is not None)
        processes = [int(text) for text in pids.read_text().split()]
        assert all(is_alive(pid) for pid in processes)
        parent.send_signal(number)
        assert parent.wait(60) != 0
        eventually(lambda: not any(is_alive(pid) for pid in processes))
    finally:
        parent.kill()
