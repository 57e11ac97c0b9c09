import io
import json
from dataclasses import asdict, replace

import pytest
import typer
from bench import model
from bench.ceilings import Ceiling
from bench.results import SCHEMA, Attempt, result
from bench.timing import Plan, Sample
from bench.workloads import select
from rich.console import Console
from typer.testing import CliRunner

PREFILL, DECODE = select(None, ["f32_l512_d64", "decode_gqa_l4096_f32"])
HERTZ = 2e9


def samples(seconds, slowdown=1.0):
    return [Sample(n, 1, seconds, seconds, 0.0, 0.0, slowdown) for n in range(3)]


def run_of(workload, share, *, rate, threads=1, slowdown=1.0):
    """A run in which ours had a share of a ceiling of so much work a second."""
    ceiling = Ceiling(workload.resource, "float32", "a loop", rate, lambda: None)
    timed = {
        "ceiling": samples(1.0),
        "ours": samples(workload.work / rate / share, slowdown),
    }
    attempts = {"ours": Attempt(is_peer=False, status="ok")}
    return {
        "schema": SCHEMA,
        "threads": threads,
        "results": [result(workload, ceiling, attempts, timed, Plan(threads))],
    }


def prefill_run(share=0.5, **more):
    peak = model.explain(PREFILL)["peak_a_cycle"]
    return run_of(PREFILL, share, rate=peak * HERTZ, **more)


def test_expected_shares_stand_beside_measured_ones():
    facts = model.explain(PREFILL)
    share = PREFILL.flops / (facts["cycles"] * facts["peak_a_cycle"])
    (row,) = model.rows([prefill_run(share)])
    assert row.name == "f32_l512_d64"
    assert row.expected == pytest.approx(share)
    assert row.error == pytest.approx(0.0)
    assert not row.disturbed
    (row,) = model.rows([prefill_run(share / 2, slowdown=1.5)])
    assert row.error == pytest.approx(1.0)
    assert row.disturbed


def test_the_file_says_what_memory_yields():
    """Of fast memory arithmetic lets ours have a smaller share."""
    shares = []
    for bytes_a_cycle in (1.0, 100.0):
        decode = run_of(DECODE, 0.5, rate=bytes_a_cycle * HERTZ)
        (row,) = (r for r in model.rows([prefill_run(), decode]) if r.name == DECODE.name)
        shares.append(row.expected)
    assert 0.9 < shares[0] < 1.0
    assert shares[1] < 0.2
    assert len(model.rows([run_of(DECODE, 0.5, rate=1e9)])) == 0  # nothing says what a cycle is


def test_the_model_is_given_the_array_of_a_mask():
    """Of masked documents it counts the tiles that the array leaves out."""
    noise, documents = select(None, ["f32_l2048_d64_mask", "f32_l2048_d64_mask_documents"])
    of_documents, of_noise = model.explain(documents), model.explain(noise)
    assert of_documents["parts"]["products"] < 0.4 * of_noise["parts"]["products"]
    assert of_documents["parts"]["classes"] > 2 * of_noise["parts"]["classes"]


def test_the_latest_run_of_one_thread_counts():
    runs = [prefill_run(0.25), prefill_run(0.5), prefill_run(0.75, threads=2)]
    assert [row.measured for row in model.rows(runs)] == [pytest.approx(0.5)]


def test_a_workload_without_a_figure_is_left_out():
    run = prefill_run()
    run["results"][0]["targets"]["ours"]["share"] = None
    assert model.rows([run]) == []
    run["results"][0]["targets"] = {}
    assert model.rows([run]) == []


def test_rows_that_are_off_are_named(tmp_path):
    good = model.Row("good", 0.5, 0.45, 0.4, 0.5, disturbed=False)
    bad = model.Row("bad", 0.5, 0.4, 0.4, 0.4, disturbed=True)
    assert model.verdict([good]) == "1 of 1 within 15 %"
    assert model.verdict([good, bad]) == "1 of 2 within 15 %; off: bad (+25 %)"
    out = io.StringIO()
    model.show([good, bad], Console(file=out, width=120))
    assert "~40.0 %" in out.getvalue()
    assert "+25.0 %" in out.getvalue()


def test_a_written_run_is_read(tmp_path):
    path = tmp_path / "run.json"
    path.write_text(json.dumps(prefill_run()), encoding="utf-8")
    app = typer.Typer()
    app.command()(model.main)
    done = CliRunner().invoke(app, [str(path)])
    assert done.exit_code == 0, done.output
    assert "f32_l512_d64" in done.output


def test_runs_of_other_versions_are_read_as_far_as_they_go():
    run = prefill_run()
    run["results"][0]["workload"] = asdict(replace(PREFILL, groups=("other",))) | {"new": 1}
    assert len(model.rows([run])) == 1


def test_the_model_says_nothing_of_gradients():
    (workload,) = select(None, ["grad_f32_l512_d64"])
    assert model.rows([run_of(workload, 0.5, rate=HERTZ)]) == []
