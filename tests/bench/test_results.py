import io
import json
import typing
from pathlib import Path

import pytest
from bench import report, results
from bench.ceilings import Ceiling
from bench.results import Attempt, Document, best_peer, failures, judge, result
from bench.timing import Plan, Sample
from bench.workloads import Goal, select
from rich.console import Console
from tests.bench.schema import fits

README = Path(results.__file__).with_name("README.md")
(WORKLOAD,) = select(None, ["f32_l2048_d64"])
CEILING = Ceiling("fma", "float32", "a loop", WORKLOAD.work, lambda: None)


def samples(seconds):
    return [Sample(n, 1, seconds, seconds, 0.0, 0.0) for n in range(3)]


def document(times, **attempts):
    """A run of one workload: the ceiling takes 1 s for the same work, so a share is 1 / seconds."""
    tried = {name: Attempt(name != "ours", "ok") for name in times} | attempts
    timed = {"ceiling": samples(1.0)} | {name: samples(s) for name, s in times.items()}
    return {
        "schema": results.SCHEMA,
        "command": "python -m bench",
        "started": "2026-01-01T00:00:00+00:00",
        "wall_seconds": 1.0,
        "threads": 1,
        "clock": "process_time",
        "rounds": 3,
        "sample_seconds": 0.06,
        "environment": {},
        "results": [result(WORKLOAD, CEILING, tried, timed, Plan())],
    }


def test_shares_ratios_and_verdicts_follow_from_the_samples():
    (entry,) = document({"ours": 1.25, "torch": 1.5, "numpy": 2.5})["results"]
    targets = entry["targets"]
    assert targets["ours"]["share"]["median"] == pytest.approx(0.8)
    assert targets["torch"]["ours_faster"]["median"] == pytest.approx(1.2)
    assert targets["numpy"]["rate"] == pytest.approx(WORKLOAD.flops / 2.5)
    assert best_peer(targets) == "torch"
    assert entry["goals"]["floor"]["met"] is True
    assert entry["goals"]["goal"]["met"] is False  # 88 % are wanted


def test_a_wrong_or_missing_peer_is_no_baseline():
    run = document(
        {"ours": 1.25, "torch": 1.5},
        fast=Attempt(is_peer=True, status="wrong", reason="error"),
        gone=Attempt(is_peer=True, status="absent", reason="no module"),
    )
    (entry,) = run["results"]
    assert best_peer(entry["targets"]) == "torch"
    assert failures(run, None) == []


def test_without_a_figure_there_is_no_verdict():
    (entry,) = document({"torch": 1.5})["results"]
    assert judge(Goal(share=0.5), entry["targets"])["met"] is None
    (entry,) = document({"ours": 1.5})["results"]
    assert judge(Goal(ratio=1.1), entry["targets"])["met"] is None
    assert judge(Goal(share=0.9, ratio=1.1), entry["targets"])["met"] is False


@pytest.mark.parametrize(
    ("status", "message"),
    [
        ("wrong", r"f32_l2048_d64: ours wrong: why"),
        ("failed", r"f32_l2048_d64: ours failed: why"),
        ("absent", r"ours is absent: why"),
    ],
)
def test_a_run_in_which_ours_did_not_do_its_work_is_a_failure(status, message):
    run = document({"torch": 1.0}, ours=Attempt(is_peer=False, status=status, reason="why"))
    assert failures(run, None) == [message]


def test_required_goals_that_are_missed_or_cannot_be_judged_fail_a_run():
    run = document({"ours": 1.25, "torch": 1.5})
    assert failures(run, "floor") == []
    assert failures(run, "goal") == ["f32_l2048_d64: goal not met: 80.0/88 %, 1.20/1.18x torch"]
    assert len(failures(document({"ours": 1.25}), "floor")) == 1


def test_a_run_read_back_from_its_file_has_the_schema(tmp_path):
    path = tmp_path / "folder" / "run.json"
    run = document(
        {"ours": 1.25, "torch": 1.5}, gone=Attempt(is_peer=True, status="absent", reason="none")
    )
    report.write(run, path)
    read = json.loads(path.read_text())
    assert fits(read, Document)
    assert not fits(read | {"clock": 3}, Document)
    assert not fits(read | {"more": 3}, Document)
    del read["results"][0]["targets"]["ours"]["share"]
    assert not fits(read, Document)


def test_the_readme_describes_every_key():
    text = README.read_text(encoding="utf-8")
    kinds = [k for k in vars(results).values() if typing.is_typeddict(k)]
    keys = {key for kind in kinds for key in typing.get_type_hints(kind)}
    assert len(keys) > 30
    assert sorted(key for key in keys if f"`{key}`" not in text) == []
    assert results.SCHEMA in text


def test_the_table_shows_rates_ratios_and_what_went_wrong():
    run = document(
        {"ours": 1.25, "torch": 1.5},
        fast=Attempt(is_peer=True, status="wrong", reason="error of 3 times the bound"),
    )
    console = Console(width=250, record=True, file=io.StringIO())
    report.show(run, console)
    text = console.export_text()
    assert "80.0 %" in text
    assert "5.7 (1.20x)" in text
    assert "f32_l2048_d64: fast wrong: error of 3 times the bound" in text
    assert "below 80.0/88 %, 1.20/1.18x torch" in text


def test_the_markdown_table_has_a_row_for_each_case():
    text = report.markdown(document({"ours": 1.25, "torch": 1.5}))
    assert text.splitlines() == [
        "| case | ceiling | ours | torch |",
        "|---|---|---|---|",
        "| f32_l2048_d64 | 8.6 GF/s | 6.9 (80 %) | 1.20x |",
    ]
