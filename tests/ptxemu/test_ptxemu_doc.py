"""What docs/ptxemu.md shows runs, and prints what the page says."""

import re
import shlex
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from sdpakit import ptxemu

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "ptxemu.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.M | re.S)


PRINTED = blocks("text")
PROGRAMS = re.findall(r"^# (\w+\.py)$", PAGE, re.M)
COMMANDS = [line for text in blocks("bash") for line in text.replace("\\\n", "").splitlines()]


@pytest.fixture
def folder(tmp_path):
    """Return a folder with the files of the page, each of which begins with its name."""
    for text in (*blocks("python"), *blocks("ptx")):
        named = re.match(r"(?:#|//) (\w+\.\w+)\n", text)
        assert named, text
        (tmp_path / named[1]).write_text(text, encoding="utf-8")
    return tmp_path


def run(folder, *command):
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT / "src"), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_of_the_page_run(folder, name):
    run(folder, name)


def test_the_race_of_the_page_is_reported_as_it_says(folder):
    assert run(folder, "reverse.py") == PRINTED[0]


def test_the_bank_conflicts_of_the_page_are_counted_as_it_says(folder):
    assert run(folder, "conflicts.py") == PRINTED[-1]


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_of_the_page_run(folder, line):
    run(folder, "-c", "import mended, numpy; numpy.save('x.npy', mended.x)")
    program, *rest = shlex.split(line)
    assert program == "python"
    run(folder, *rest)


def test_the_page_lists_every_fault_and_check():
    for check in fields(ptxemu.Checks):
        assert f"`{check.name}`" in PAGE
    for name, kind in vars(ptxemu).items():
        if isinstance(kind, type) and issubclass(kind, ptxemu.KernelFault):
            assert kind is ptxemu.KernelFault or f"`{name}`" in PAGE
