"""The plugin in runs of pytest of their own: verdicts, usage errors, reports, no disturbance."""

import json
import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from tests.conformance import misbehaving

from sdpakit.conformance import runner as run_module

# Installed, sdpakit is found by its entry point; a bare checkout names the module.
PLUGIN = (
    () if entry_points(group="pytest11", name="sdpakit") else ("sdpakit.conformance.pytest_plugin",)
)
# The plugin of hypothesis takes two seconds to load, and nothing here uses it.
BARE = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-rA")
KIT = ("--pyargs", "sdpakit.conformance")
FAMILY = "softcap"
FEW = ("-k", "masks.causal_top_left_rectangle or masks.causal_bottom_right_rectangle")


def run_pytest(folder, *arguments, plugins=PLUGIN):
    options = [option for name in plugins for option in ("-p", name)]
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return subprocess.run(
        [sys.executable, "-m", "pytest", *BARE, *options, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "COLUMNS": "200", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def target(wanted):
    return "--sdpakit-target", misbehaving.name(wanted)


def test_loading_the_plugin_loads_nothing_of_the_kit():
    code = (
        "import sys, sdpakit.conformance.pytest_plugin\n"
        "heavy = {'numpy', 'numba', 'rich', 'sdpakit.conformance.cases', 'sdpakit.reference'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    path = os.pathsep.join(entry for entry in sys.path if entry)
    found = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, check=False
    )
    assert found.returncode == 0


def test_a_run_of_others_is_not_disturbed(tmp_path):
    (tmp_path / "test_own.py").write_text(
        "import sys\n\n\ndef test_own():\n    assert 'numpy' not in sys.modules\n"
    )
    found = run_pytest(tmp_path)
    assert found.returncode == 0, found.stdout
    assert "1 passed" in found.stdout
    assert "sdpakit conformance" not in found.stdout


def test_a_case_is_a_test_and_the_report_holds_them(tmp_path):
    report = tmp_path / "found.json"
    options = (
        "--sdpakit-target",
        "naive",
        "--sdpakit-report",
        str(report),
        "-k",
        f"naive-{FAMILY}",
    )
    found = run_pytest(tmp_path, *KIT, *options)
    assert found.returncode == 0, found.stdout
    assert "test_target.py::test_case[naive-softcap." in found.stdout
    written = json.loads(report.read_text())
    assert {outcome["verdict"] for outcome in written["outcomes"]} == {"ok"}
    assert {outcome["case"].split(".")[0] for outcome in written["outcomes"]} == {FAMILY}
    assert written["targets"][0]["name"] == "naive"
    assert f"naive: {len(written['outcomes'])} ok; largest error" in found.stdout


def test_a_death_is_a_failure_with_the_command_that_repeats_it(tmp_path):
    found = run_pytest(tmp_path, *KIT, *target(misbehaving.Segfaults), *FEW)
    assert found.returncode == 1
    assert "1 failed, 1 passed" in found.stdout
    assert "killed by SIGSEGV" in found.stdout
    assert "--case masks.causal_bottom_right_rectangle.float32" in found.stdout


def test_a_hang_is_a_failure_and_dash_x_stops_there(tmp_path):
    options = ("--sdpakit-time-limit", "2", "-x")
    found = run_pytest(tmp_path, *KIT, *target(misbehaving.Sleeps), *options, "-k", "bottom_right")
    assert found.returncode == 1
    assert "no answer within 6 s" in found.stdout
    assert "stopping after 1 failures" in found.stdout


def test_refusals_are_skipped_with_their_reason(tmp_path):
    found = run_pytest(tmp_path, *KIT, *target(misbehaving.RefusesAll), *FEW)
    assert found.returncode == 0, found.stdout
    assert "2 skipped" in found.stdout
    assert "refused: refuser: it does nothing" in found.stdout
    assert "2 refused" in found.stdout


def test_a_target_that_refuses_a_whole_level_does_not_pass(tmp_path):
    found = run_pytest(tmp_path, *KIT, *target(misbehaving.RefusesAll), "-q")
    assert found.returncode == 1, found.stdout
    assert "it refused every case of level core: nothing was judged" in found.stdout


LEDGER = '[[expected]]\ntarget = "*"\ncases = "{}"\nreason = "own/attention#12: half the scale"\n'


def test_expected_failures_are_xfail_and_an_unexpected_pass_is_stale(tmp_path):
    ledger = tmp_path / "ledger.toml"
    ledger.write_text(LEDGER.format("scale.two.*"))
    options = ("--sdpakit-ledger", str(ledger), "--sdpakit-report", "found.json")
    wrong = run_pytest(
        tmp_path, *KIT, *target(misbehaving.HalvesTheScale), *options, "-k", "scale.two"
    )
    assert wrong.returncode == 0, wrong.stdout
    assert "1 xfailed" in wrong.stdout
    assert "own/attention#12" in wrong.stdout
    assert len(json.loads((tmp_path / "found.json").read_text())["expected"]) == 1
    right = run_pytest(tmp_path, *KIT, "--sdpakit-target", "naive", *options, "-k", "scale.two")
    assert right.returncode == 1
    assert "1 failed" in right.stdout
    assert "ok, but expected to fail: own/attention#12" in right.stdout
    assert len(json.loads((tmp_path / "found.json").read_text())["stale"]) == 1


OWN_TESTS = """
import numpy as np
from sdpakit.conformance.pytest_plugin import parametrize


def attention(q, k, v, *, scale=None):
    x = q @ k.swapaxes(-1, -2) * (1 / np.sqrt(q.shape[-1]) if scale is None else scale)
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return (e / e.sum(axis=-1, keepdims=True)) @ v


@parametrize(attention, expected_failures={"precision.*": "own/attention#3: sums in float16"})
def test_conformance(check):
    check()
"""


def test_parametrize_makes_tests_of_a_function_in_a_file_of_ones_own(tmp_path):
    (tmp_path / "test_own.py").write_text(OWN_TESTS)
    found = run_pytest(tmp_path, "-k", "scale.two", "--sdpakit-report", "found.html")
    assert "test_own.py::test_conformance[scale.two.float32]" in found.stdout
    assert (tmp_path / "found.html").is_file()
    assert "attention: " in found.stdout


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), ["no target was named", "numba_cpu", "--sdpakit-target numba_cpu"]),
        (("--collect-only",), ["no target was named"]),
        (("--sdpakit-target", "nave"), ["got 'nave'", "naive"]),
        (("--sdpakit-target", "naive", "--sdpakit-level", "cor"), ["invalid choice: 'cor'"]),
        (("--sdpakit-target", "naive", "--sdpakit-time-limit", "-1"), ["time limit: got -1"]),
        (("--sdpakit-target", "naive", "--sdpakit-report", "no/x.json"), ["no/x.json", "mkdir"]),
        (("--sdpakit-target", "naive", "--sdpakit-ledger", "no.toml"), ["no.toml"]),
    ],
)
def test_usage_errors_say_what_there_is(tmp_path, options, said):
    found = run_pytest(tmp_path, *KIT, *options)
    assert found.returncode == pytest.ExitCode.USAGE_ERROR, found.stdout + found.stderr
    output = found.stdout + found.stderr
    assert all(text in output for text in said), output
    assert "Traceback" not in output


def test_a_target_of_which_nothing_is_collected_is_a_usage_error(tmp_path):
    (tmp_path / "test_own.py").write_text("def test_own():\n    pass\n")
    found = run_pytest(tmp_path, "test_own.py", "--sdpakit-target", "naive")
    assert found.returncode == pytest.ExitCode.USAGE_ERROR
    assert "add --pyargs sdpakit.conformance" in found.stdout + found.stderr


def test_collect_only_lists_cases_and_judges_none(tmp_path):
    found = run_pytest(tmp_path, *KIT, "--collect-only", "-q", *target(misbehaving.Exits), *FEW)
    assert found.returncode == 0, found.stdout
    assert found.stdout.count("test_case[") == 2


def test_xdist_collects_outcomes_of_its_workers(tmp_path):
    pytest.importorskip("xdist")
    options = ("-n", "2", "--sdpakit-report", "found.json", "-k", f"naive-{FAMILY}")
    found = run_pytest(tmp_path, *KIT, "--sdpakit-target", "naive", *options, plugins=(*PLUGIN,))
    assert found.returncode == 0, found.stdout
    written = json.loads((Path(tmp_path) / "found.json").read_text())
    assert len(written["outcomes"]) > 2
    unnamed = run_pytest(tmp_path, *KIT, "-n", "2")
    assert unnamed.returncode == pytest.ExitCode.USAGE_ERROR, unnamed.stdout


def test_no_target_is_a_usage_error_however_the_kit_is_reached(tmp_path):
    place = Path(run_module.__file__).parent / "test_target.py"
    (tmp_path / "pytest.ini").write_text("[pytest]\n")  # not the settings of this checkout
    found = run_pytest(tmp_path, str(place), "-c", "pytest.ini", "--import-mode=importlib")
    assert found.returncode == pytest.ExitCode.USAGE_ERROR, found.stdout
    assert "no target was named" in found.stdout + found.stderr
