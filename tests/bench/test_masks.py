from dataclasses import replace

import pytest
from bench import masks
from bench.masks import TRUTH, classifier, excess, figures_of


@pytest.mark.parametrize("name", TRUTH)
def test_the_analysis_is_held_against_the_pairs(name, monkeypatch):
    monkeypatch.setattr(masks, "CHECKED_LENGTH", 1500)
    beyond, partial = excess(name)
    assert beyond == 0
    assert partial == 0 or name not in masks.EXACT


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda m: replace(m, empty=m.empty + 1, partial=m.partial - 1), (1, 0)),
        (lambda m: replace(m, full=m.full + 2, partial=m.partial - 2), (2, 0)),
        (lambda m: replace(m, empty=m.empty - 3, partial=m.partial + 3), (0, 3)),
        (lambda m: replace(m, partial=m.partial + 1), (1, 0)),
    ],
    ids=["hides a pair", "shows a pair", "undecided", "tiles that are none"],
)
def test_mistakes_are_counted(change, found, monkeypatch):
    wrong = change(classifier("causal, top_left", 1500)())
    monkeypatch.setattr(masks, "CHECKED_LENGTH", 1500)
    monkeypatch.setattr(masks, "classifier", lambda *_: lambda: wrong)
    assert excess("causal, top_left") == found


def test_figures_of_a_mask(alone, monkeypatch):
    monkeypatch.setattr(masks, "CHECKED_LENGTH", 1500)
    monkeypatch.setattr(masks, "_REPEATS", 3)
    time, memory, wrong, partial = figures_of("prefix", alone())
    assert (time.goal, memory.goal, wrong.goal, partial.goal) == (10.0, 1.0, 0.0, 0.0)
    assert (time.calm, wrong.value, partial.value) == ((3, 3), 0.0, 0.0)
    assert len(figures_of("dense, one row for all", alone())) == 2
