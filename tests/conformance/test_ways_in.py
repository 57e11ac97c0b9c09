"""Every way in, from the wheel: a package of somebody else, in an environment without checkout.

The environment holds the wheels of sdpakit and of that package. What both depend on is borrowed
from the environment of the tests by a line in a .pth file, behind them and without its own .pth
files, so that an editable sdpakit there stays out of sight.
"""

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOY = ROOT / "tests" / "thirdparty" / "toyattn"
FAMILY = ("--family", "scale")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

OWN_FILE = """
import toyattn


def mine(q, k, v, *, scale=None):
    return toyattn.attention(q, k, v, scale=scale)
"""
OWN_TESTS = """
from sdpakit.conformance.pytest_plugin import parametrize
from toyattn import without_scale


@parametrize("toy")
def test_package(check):
    check()


@parametrize(without_scale, expected_failures={"scale.*": "toy/attention#1: no scale"})
def test_wrong(check):
    check()
"""


# The plugin of hypothesis takes two seconds to load, and nothing here uses it.
PYTEST = ("-m", "pytest", "-p", "no:cacheprovider", "-p", "no:hypothesispytest")


def run(*command, cwd, status=0):
    kept = {name: x for name, x in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    wide = {"COLUMNS": "200", "NO_COLOR": "1"}
    found = subprocess.run(
        [*map(str, command)],
        cwd=cwd,
        env={**kept, **wide},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == status, found.stdout + found.stderr
    return found.stdout


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    """Return a folder outside the checkout, with an environment and a file of a user."""
    folder = tmp_path_factory.mktemp("house")
    wheels = folder / "wheels"
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    run(*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", wheels, ROOT, TOY, cwd=folder)
    venv.create(folder / "env", with_pip=False)
    python = folder / "env" / "bin" / "python"
    to = ("--python", python, "install", "--quiet", "--no-deps", "--no-index")
    run(*pip, *to, *wheels.glob("*.whl"), cwd=folder)
    borrowed = [x for x in sys.path if x.endswith(("site-packages", "dist-packages"))]
    [site] = (folder / "env" / "lib").glob("python*/site-packages")
    (site / "borrowed.pth").write_text("\n".join(borrowed))
    (folder / "own.py").write_text(OWN_FILE)
    (folder / "test_own.py").write_text(OWN_TESTS)
    return folder


@pytest.fixture
def python(house):
    return house / "env" / "bin" / "python"


@pytest.fixture
def command(house):
    return house / "env" / "bin" / "sdpakit"


def test_the_environment_has_the_wheel_and_not_the_checkout(house, python):
    code = "import sdpakit, sys, json; print(json.dumps([sdpakit.__file__, sys.path]))"
    place, path = json.loads(run(python, "-c", code, cwd=house))
    assert Path(place).is_relative_to(house / "env")
    assert not any(Path(entry).is_relative_to(ROOT / "src") for entry in path)


def test_check_takes_a_plain_function(house, python):
    code = (
        "import toyattn\n"
        "from sdpakit.conformance import cases, check\n"
        "for function in (toyattn.attention, toyattn.without_scale):\n"
        "    found = [check(function, case) for case in cases('core', 'scale')]\n"
        "    print(function.__name__, *sorted({outcome.verdict for outcome in found}))"
    )
    lines = run(python, "-c", code, cwd=house).splitlines()
    assert [line.split()[0] for line in lines] == ["attention", "without_scale"]
    assert "ok" in lines[0]
    assert "fail" not in lines[0]
    assert "fail" in lines[1]


@pytest.mark.parametrize(
    "target", ["toyattn:attention", "toyattn.target:Toy", "own.py:mine", "toy", "naive"]
)
def test_the_command_takes_every_kind_of_name(house, command, target):
    output = run(command, "conformance", target, *FAMILY, "--json", "found.json", cwd=house)
    assert f"{target}: nothing wrong" in output
    found = json.loads((house / "found.json").read_text())
    assert {outcome["target"] for outcome in found["outcomes"]} == {target}
    assert any(outcome["verdict"] == "ok" for outcome in found["outcomes"])


def test_the_command_finds_the_wrong_function_and_lists_the_entry_point(house, command):
    output = run(command, "conformance", "toyattn:without_scale", *FAMILY, cwd=house, status=1)
    assert "repeat: sdpakit conformance toyattn:without_scale --case scale." in output
    assert "  toy\n" in run(command, "conformance", "--list", *FAMILY, cwd=house)


def test_pytest_finds_the_plugin_by_itself(house, python):
    arguments = ("--pyargs", "sdpakit.conformance", "-k", "scale")
    output = run(python, *PYTEST, *arguments, "--sdpakit-target", "toy", cwd=house)
    assert "toy: " in output
    assert "passed" in output
    found = run(python, *PYTEST, *arguments, cwd=house, status=4)
    assert "passed" not in found


def test_a_user_parametrizes_tests_of_their_own(house, python):
    arguments = ("test_own.py", "-k", "scale.two", "-rA")
    output = run(python, *PYTEST, *arguments, cwd=house)
    assert "PASSED test_own.py::test_package[scale.two.float32]" in output
    assert "XFAIL test_own.py::test_wrong[scale.two.float32]" in output
