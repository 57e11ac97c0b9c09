"""Rules, cases and mutants are tied together, and the test of it notices what is planted."""

import re
from pathlib import Path

import pytest

from sdpakit.conformance import rules
from sdpakit.conformance.mutants import MUTANTS
from sdpakit.conformance.mutants.record import from_text
from sdpakit.conformance.rules import RULES
from sdpakit.conformance.traceability import Traced, complaints, lost_without, traced

SEMANTICS = Path(__file__).resolve().parents[2] / "docs" / "semantics.md"
SHOWN = traced()
KILLS = from_text(Path(__file__).with_name("kill_matrix.json").read_text(encoding="utf-8"))


def test_nothing_is_loose():
    assert complaints(SHOWN, KILLS) == []


def test_rules_are_those_of_the_normative_page():
    text = SEMANTICS.read_text(encoding="utf-8")
    defined = re.findall(r"^(?:- |\d+\. )\*\*([A-Z]+-\d+)\*\*", text, flags=re.MULTILINE)
    assert len(defined) == len(set(defined))
    assert set(defined) == set(RULES)


def test_every_rule_tells_its_text_and_cases():
    for rule in rules().values():
        assert rule.text
        assert bool(rule.cases) == (rule.status != "later")


def test_a_planted_rule_without_a_case_is_noticed():
    planted = {**RULES, "MASK-99": "forward"}
    assert complaints(SHOWN, KILLS, rules=planted) == ["rule MASK-99 has no core case"]
    assert complaints(SHOWN, KILLS, rules={**RULES, "MASK-99": "later"}) == []


def test_a_planted_unknown_rule_is_noticed():
    planted = [*SHOWN, Traced("masks.planted.float32", ("MASK-1", "MASK-98"))]
    assert complaints(planted, KILLS) == ["masks.planted.float32 names MASK-98, which is no rule"]
    planted = [*SHOWN, Traced("masks.planted.float32", ())]
    assert complaints(planted, KILLS) == ["masks.planted.float32 names no rule"]


def test_a_planted_mutant_that_lives_is_noticed():
    planted = {**KILLS, "planted": []}
    assert complaints(SHOWN, planted) == ["no core case notices the mutant planted"]


def test_a_planted_killer_that_does_not_kill_is_noticed():
    named = {"cap_dropped": ["scale.half.float32"]}
    assert complaints(SHOWN, KILLS, named=named) == [
        "the mutant cap_dropped names scale.half.float32, which does not notice it"
    ]


@pytest.mark.parametrize("id_", [one.id for one in SHOWN])
def test_a_case_that_is_taken_away_is_missed_where_it_was_the_only_one(id_):
    rest = [one for one in SHOWN if one.id != id_]
    lost = lost_without(id_, SHOWN, KILLS)
    named = [name for name, mutant in MUTANTS.items() if id_ in mutant.killed_by]
    missed = complaints(rest, KILLS)
    assert bool(missed) == bool(lost or named)
    assert all(any(what in text for text in missed) for what in lost)


def test_some_cases_stand_alone():
    alone = {one.id: lost_without(one.id, SHOWN, KILLS) for one in SHOWN}
    assert sum(bool(lost) for lost in alone.values()) >= 10
    assert "SHAPE-6" in alone["huge.element_offset.float16"]
