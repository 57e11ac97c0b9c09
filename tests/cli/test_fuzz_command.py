"""`sdpakit fuzz`: what it prints of a search, and its status."""

import io

import pytest
from rich.console import Console

from sdpakit.cli.fuzz import Request, run
from sdpakit.conformance.fuzz import session
from sdpakit.conformance.fuzz.search import Finding, Search

REQUEST = Request(["mine"], 60.0, 60.0, 0, plain=False)
FOUND = [Finding("fail: one\n  of two lines", "a = 1\n"), Finding("error: two", "b = 2\n")]


def printed(monkeypatch, found):
    monkeypatch.setattr(session, "fuzz", lambda *_, **__: found)
    console = Console(file=io.StringIO(), width=200)
    is_well = run(console, REQUEST)
    return is_well, console.file.getvalue()


def test_all_findings_are_printed_each_ready_to_paste(monkeypatch):
    is_well, text = printed(monkeypatch, Search(40, 10, FOUND))
    assert not is_well
    assert "mine: 2 findings, no two alike (40 cases: 30 judged, 10 refused; seed 0" in text
    assert "\n1. fail: one\n  of two lines\n" in text
    assert "\na = 1\n" in text
    assert text.index("\n2. error: two\n") < text.index("\nb = 2\n")


@pytest.mark.parametrize(("refused", "is_warned"), [(81, True), (80, False)])
def test_a_warning_says_that_too_few_were_judged(monkeypatch, refused, is_warned):
    is_well, text = printed(monkeypatch, Search(100, refused))
    assert is_well
    assert f"nothing found in 60 s (100 cases: {100 - refused} judged, {refused} refused" in text
    assert ("warning: fewer than 20% of the cases were judged" in text) == is_warned


def test_a_search_without_a_case_warns_of_nothing(monkeypatch):
    assert "warning" not in printed(monkeypatch, Search())[1]
