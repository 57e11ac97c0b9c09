"""The scripts of ci/ can be run, and the bars of ci/style_metrics.py can be broken."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ("ci/demo", "ci/test", "ci/lint", "ci/bench", "ci/gpu", ".ci/run")


@pytest.mark.parametrize("name", SCRIPTS)
def test_script_is_executable_bash(name):
    script = ROOT / name
    assert os.access(script, os.X_OK)
    assert script.read_text(encoding="utf-8").startswith("#!/usr/bin/env bash\n")


@pytest.mark.parametrize("name", [*SCRIPTS, "ci/lib.sh"])
def test_script_parses(name):
    subprocess.run(["bash", "-n", name], cwd=ROOT, check=True)


def measure(tmp_path, source):
    (tmp_path / "module.py").write_text(source, encoding="utf-8")
    return subprocess.run(
        [sys.executable, str(ROOT / "ci/style_metrics.py"), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )


GOOD = '"""Module."""\n\n\ndef double(x: int) -> int:\n    """Return 2 x."""\n    return 2 * x\n'


def test_good_code_passes_the_bars(tmp_path):
    result = measure(tmp_path, GOOD)
    assert (result.returncode, "BROKEN" in result.stdout) == (0, False), result.stdout


NESTED = "".join(f"{'    ' * n}if x:\n" for n in range(1, 5)) + "    " * 5 + "return 1\n"


@pytest.mark.parametrize(
    ("bar", "addition"),
    [
        ("typed functions", "def f(x) -> int:\n    return x\n"),
        ("typed functions", "def f(*xs) -> None:\n    print(xs)\n"),
        ("public docstrings", "class Shape:\n    size: int\n"),
        ("function length, 90 %", "def _f() -> None:\n" + "    print()\n" * 31),
        ("functions over 60 lines", "def _f() -> None:\n" + "    print()\n" * 61),
        ("functions nested over 3 deep", "def _f(x: int) -> int:\n" + NESTED + "    return 0\n"),
        ("file length, 90 %", "X = 1\n" * 401),
        ("file length, longest", "X = 1\n" * 601),
        ("TODO, FIXME, XXX, HACK", "X = 1  # " + "TO" + "DO: more\n"),
        ("bare or swallowed exceptions", "try:\n    X = 1\nexcept:\n    raise\n"),
        ("bare or swallowed exceptions", "try:\n    X = 1\nexcept Exception:\n    pass\n"),
        (
            "bare or swallowed exceptions",
            "try:\n    X = 1\nexcept (ValueError, Exception):\n    ...\n",
        ),
        ("bare or swallowed exceptions", "with contextlib.suppress(Exception):\n    X = 1\n"),
    ],
)
def test_each_bar_can_be_broken(tmp_path, bar, addition):
    source = addition if "function length" in bar else GOOD + addition
    result = measure(tmp_path, source)
    broken = [line for line in result.stdout.splitlines() if line.startswith("BROKEN")]
    assert result.returncode == 1
    assert any(bar in line for line in broken), result.stdout


def test_an_empty_tree_is_no_success(tmp_path):
    assert measure(tmp_path, "").returncode == 2


def total(tmp_path, *suites):
    names = []
    for number, counts in enumerate(suites):
        attributes = " ".join(f'{name}="{count}"' for name, count in counts.items())
        names.append(str(tmp_path / f"{number}.xml"))
        Path(names[-1]).write_text(f"<testsuites><testsuite {attributes}/></testsuites>")
    return subprocess.run(
        [sys.executable, str(ROOT / "ci/total.py"), *names],
        capture_output=True,
        text=True,
        check=False,
    )


def test_totals_add_up_and_errors_fail(tmp_path):
    good = {"tests": 5, "failures": 0, "errors": 0, "skipped": 1}
    result = total(tmp_path, good, good)
    assert (result.returncode, result.stdout) == (0, "8 passed, 0 failed, 2 skipped\n")
    result = total(tmp_path, good, {"tests": 3, "failures": 1, "errors": 1, "skipped": 0})
    assert (result.returncode, result.stdout) == (1, "5 passed, 2 failed, 1 skipped\n")


def test_a_run_without_tests_is_no_success(tmp_path):
    assert total(tmp_path, {"tests": 0}).returncode == 1


def test_steps_that_are_no_tests_count_as_failed(tmp_path):
    report = tmp_path / "one.xml"
    report.write_text('<testsuite tests="3" failures="0" errors="0" skipped="1"/>')
    command = [sys.executable, str(ROOT / "ci/total.py"), "--failed-steps", "1", str(report)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (1, "2 passed, 1 failed, 1 skipped\n")
