"""`sdpakit conformance`: status, what it prints, the files it writes, the messages to bad input."""

import json
import os
import subprocess
import sys

import pytest
from tests.conformance import misbehaving
from typer.testing import CliRunner

from sdpakit.cli.app import app
from sdpakit.conformance import RULES, cases
from sdpakit.conformance.targets import names

WIDE = {"COLUMNS": "250", "NO_COLOR": "1", "TERM": "dumb"}
GOOD, BAD = (f"masks.causal_{name}_rectangle.float32" for name in ("top_left", "bottom_right"))


def invoke(*arguments):
    return CliRunner().invoke(app, ["conformance", *arguments], env=WIDE)


def test_a_family_that_is_right_gives_0_and_its_largest_share():
    result = invoke("naive", "--family", "softcap")
    assert result.exit_code == 0, result.output
    count = len(cases("core", "softcap"))
    assert f"softcap   {count} ok" in result.output
    assert "largest error as a share of its bound" in result.output
    assert f"naive: nothing wrong ({count} ok)" in result.output
    assert "\x1b" not in result.output


def test_a_death_gives_1_its_message_and_the_command_to_repeat():
    result = invoke(misbehaving.name(misbehaving.Exits), "--case", GOOD, "--case", BAD)
    assert result.exit_code == 1
    assert "1 crash 1 ok" in result.output
    for text in ("exit status 7", "a word on stderr", f"--case {BAD}", "1 of 2 wrong"):
        assert text in result.output


def test_reports_are_written_beside_what_is_printed(tmp_path):
    paths = tmp_path / "found.json", tmp_path / "found.html"
    options = ("--json", str(paths[0]), "--html", str(paths[1]))
    result = invoke("naive", "reference", "--case", GOOD, *options)
    assert result.exit_code == 0, result.output
    written = json.loads(paths[0].read_text())
    assert [(o["target"], o["case"]) for o in written["outcomes"]] == [
        ("naive", GOOD),
        ("reference", GOOD),
    ]
    assert GOOD in paths[1].read_text()
    assert all(f"report: {path}" in result.output for path in paths)


def test_known_failures_give_0_and_stale_ones_1(tmp_path):
    ledger = tmp_path / "ledger.toml"
    ledger.write_text(
        '[[expected]]\ntarget = "*"\ncases = "scale.two.*"\nreason = "own/attention#4: half"\n'
    )
    wrong = misbehaving.name(misbehaving.HalvesTheScale)
    result = invoke(wrong, "--case", "scale.two.float32", "--ledger", str(ledger))
    assert result.exit_code == 0, result.output
    assert "1 expected" in result.output
    result = invoke("naive", "--case", "scale.two.float32", "--ledger", str(ledger))
    assert result.exit_code == 1
    assert "stale" in result.output
    assert "own/attention#4" in result.output


def test_a_target_that_refuses_a_whole_level_gives_1():
    target = misbehaving.name(misbehaving.RefusesAll)
    result = invoke(target)
    assert result.exit_code == 1
    assert "refused every case: nothing was judged" in result.output


@pytest.mark.parametrize("chosen", [("--case", GOOD), ("--family", "softcap")])
def test_a_target_that_refuses_all_that_was_chosen_gives_1(chosen):
    result = invoke(misbehaving.name(misbehaving.RefusesAll), "naive", *chosen)
    assert result.exit_code == 1
    assert "RefusesAll refused every case: nothing was judged" in result.output


def test_a_ledger_says_which_entries_were_not_used(tmp_path):
    ledger = tmp_path / "ledger.toml"
    entry = '[[expected]]\ntarget = "{}"\ncases = "scale.*"\nreason = "own/attention#4: half"\n'
    ledger.write_text(entry.format("naive") + entry.format("nave"))
    result = invoke("naive", "--case", GOOD, "--ledger", str(ledger))
    assert result.exit_code == 0, result.output
    assert "ledger: not used: 'scale.*' of 'naive': none of its cases" in result.output
    assert "did you mean 'naive'?" in result.output
    assert "stale" not in result.output


def test_list_names_targets_rules_and_cases():
    result = invoke("--list", "--family", "softcap")
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert all(f"  {name}" in lines for name in names())
    assert all(any(line.startswith(f"  {rule} ") for line in lines) for rule in RULES)
    for case in cases("core", "softcap"):
        assert f"  {case.id}  {' '.join(case.rules)}  {case.catches}" in lines


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), ["TARGET: got none", "numba_cpu", "sdpakit conformance numba_cpu"]),
        (("nave",), ["got 'nave'", "naive"]),
        (("naive", "--family", "mask"), ["got 'mask'", "relations", "did you mean 'masks'"]),
        (
            ("naive", "--case", "softcap.smal.float32"),
            ["softcap.smal.float32", "did you mean soft"],
        ),
        (("naive", "--case", GOOD, "--family", "bias"), ["none is in all of them"]),
        (("naive", "--time-limit", "-1"), ["time limit: got -1"]),
        (("naive", "--workers", "0"), ["workers: got 0"]),
        (("naive", "--json", "absent/x.json"), ["absent/x.json", "mkdir"]),
        (("naive", "--json", "x.txt"), ["--json: got 'x.txt'", ".json"]),
        (("naive", "--ledger", "absent.toml"), ["absent.toml"]),
        (("naive", "--level", "cor"), ["cor", "core", "full", "stress"]),
    ],
)
def test_bad_input_gives_2_and_one_message(tmp_path, arguments, said):
    result = subprocess.run(
        [sys.executable, "-m", "sdpakit", "conformance", *arguments],
        cwd=tmp_path,
        env={**os.environ, **WIDE, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 2, result.stderr
    assert result.stdout == ""
    assert all(text in result.stderr for text in said), result.stderr
    assert "Traceback" not in result.stderr
