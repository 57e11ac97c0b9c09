"""The README runs, links lead somewhere, and no text speaks of one machine."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
TEXTS = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("*.md")]


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def commands():
    lines = [line for block in blocks("bash") for line in block.splitlines()]
    return [shlex.split(line, comments=True) for line in lines if line.strip()]


def test_the_two_commands_stand_at_the_head():
    assert commands()[:2] == [["bash", "ci/demo"], ["bash", "ci/test"]]
    assert README.index("```bash") < 40


@pytest.mark.parametrize(
    "block", blocks("python"), ids=lambda block: block.strip().splitlines()[-1]
)
def test_python_block_runs(block):
    exec(compile(block, "README.md", "exec"), {"__name__": "readme"})


def test_readme_has_python_blocks():
    assert len(blocks("python")) >= 2


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_command_exists(words):
    # ci/test runs this very suite and the demo has its own test: only the others are run here.
    if words[0] == "bash":
        assert (ROOT / words[1]).is_file()
        return
    if words[0] == "pytest":
        assert words[1] == "--pyargs"  # run by the test of docs/conformance.md
        return
    assert words[0] == "sdpakit"
    takes_long = words[1] in ("demo", "conformance", "fuzz") and "--list" not in words
    arguments = [words[1], "--help"] if takes_long else words[1:]
    subprocess.run(
        [sys.executable, "-m", "sdpakit", *arguments], check=True, stdout=subprocess.DEVNULL
    )


@pytest.mark.parametrize("path", TEXTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_relative_links_lead_somewhere(path):
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8"))
    missing = [link for link in links if "://" not in link and not (path.parent / link).exists()]
    assert missing == []


# Paths of some machine and package indexes: wrong on every other machine.
PLACES = re.compile(
    r"(?<![\w.])/(?:tmp|root|home|mnt|srv|work)/\w|https?://[^\s\"']+/simple\b",
)
NOT_KEPT = {"__pycache__", "local", ".hypothesis"}  # what git ignores
SUFFIXES = {".py", ".md", ".toml", ".sh", ".txt", ".json", ""}


def project_files():
    for top in ("src", "tests", "bench", "ci", ".ci", "docs"):
        yield from (p for p in (ROOT / top).rglob("*") if not NOT_KEPT & set(p.parts))
    yield from ROOT.glob("*.*")


def test_no_file_names_a_place_of_one_machine():
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in project_files()
        if path.is_file() and path.suffix in SUFFIXES and path != Path(__file__)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if PLACES.search(line)
    ]
    assert found == []


@pytest.mark.parametrize("text", ["see /home/x", "open('/root/a')", "https://index.test/simple"])
def test_places_of_one_machine_are_found(text):
    assert PLACES.search(text)
