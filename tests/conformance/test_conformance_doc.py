"""What docs/conformance.md shows runs: its files and its commands."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "conformance.md"
CACHES = {name: os.environ[name] for name in sorted(os.environ) if name.endswith("_CACHE_DIR")}
CASES = ("empty.last_row.float32", "scale.zero.float32")


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)


@pytest.fixture
def folder(tmp_path):
    """Return a folder with the files of the page, each of which begins with its name."""
    for text in (*blocks("python"), *blocks("toml")):
        named = re.match(r"# (\w+\.\w+)\n", text)
        if named:
            (tmp_path / named[1]).write_text(text, encoding="utf-8")
    return tmp_path


def run(folder, line):
    """Run a command of the page on two cases, or for a second."""
    program, name, *rest = shlex.split(line)
    assert program == "sdpakit"
    if name == "conformance":
        rest += [part for case in CASES for part in ("--case", case)]
    else:
        rest += ["--seconds", "1"]
    return subprocess.run(
        [sys.executable, "-m", "sdpakit", name, *rest],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT / "src"), "PATH": "/usr/bin:/bin", **CACHES},
        capture_output=True,
        text=True,
        timeout=250,
    )


COMMANDS = [line for text in blocks("bash") for line in text.splitlines()]


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_of_the_page_run(folder, line):
    done = run(folder, line)
    assert done.returncode in (0, 1), done.stderr
    assert "Traceback" not in done.stderr
    for name in re.findall(r"--(?:html|json) (\S+)", line):
        assert (folder / name).stat().st_size > 1000


def test_the_kernel_of_the_page_is_wrong_where_it_says(folder):
    done = run(folder, "sdpakit conformance mykernel.py:attention")
    assert "1 of 2 wrong" in done.stdout
    assert "fail empty.last_row.float32" in done.stdout


def test_the_ledger_of_the_page_names_what_is_wrong(folder):
    done = run(folder, "sdpakit conformance mykernel.py:attention --ledger known.toml")
    assert done.returncode == 0, done.stdout
    assert "1 expected" in done.stdout


def test_files_that_the_page_names_are_there():
    names = re.findall(r"`((?:src|tests)/[\w/.]+)`", PAGE.read_text(encoding="utf-8"))
    assert len(names) >= 4
    for name in names:
        assert (ROOT / name).exists(), name
