"""Wrong programs do not pass: named cases notice each, and the matrix says which others do."""

import random
import re
from importlib import import_module
from pathlib import Path

import pytest

from sdpakit.conformance.mutants import MUTANTS, THEMES
from sdpakit.conformance.mutants.bases import Plain, Wrapped
from sdpakit.conformance.mutants.matrix import KILLED, checks, kills
from sdpakit.conformance.mutants.memory import Threaded
from sdpakit.conformance.mutants.record import from_text, idle, to_text
from sdpakit.conformance.mutants.tiled import Tiled

MATRIX = Path(__file__).with_name("kill_matrix.json")
CHECKS = checks()
BY_ID = {check.id: check for check in CHECKS}


def written():
    return from_text(MATRIX.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_noticed_by_the_cases_named_for_it(name):
    mutant = MUTANTS[name]
    assert mutant.killed_by
    for id_ in mutant.killed_by:
        outcome = BY_ID[id_].judge(mutant.factory())
        assert outcome.verdict in KILLED, f"{id_} lets {name} pass"
        assert outcome.target == f"mutant:{name}"
        outcome = BY_ID[id_].judge(mutant.right())
        assert outcome.verdict == "ok", f"{id_}: {outcome.message}"


def test_right_programs_pass_where_they_are_asked():
    # All of them for one case after the other, so that they share what the reference says.
    rights = [right() for right in (Plain, Tiled, Threaded, Wrapped)]
    outcomes = [(one, check.judge(one)) for check in CHECKS for one in rights]
    wrong = [o for _, o in outcomes if o.verdict not in ("ok", "refused")]
    assert [f"{o.target}: {o.case}: {o.message}" for o in wrong] == []
    for right in rights:
        assert sum(o.verdict == "ok" for one, o in outcomes if one is right) > 380


def test_there_are_enough_and_each_says_what_it_does_wrong():
    themes = [import_module(f"sdpakit.conformance.mutants.{theme}") for theme in THEMES]
    assert sum(len(theme.MUTANTS) for theme in themes) == len(MUTANTS) >= 85
    assert len({mutant.says for mutant in MUTANTS.values()}) == len(MUTANTS)
    assert [m.name for m in MUTANTS.values() if not re.fullmatch(r"\S.*\.", m.says)] == []
    assert {m.right for m in MUTANTS.values()} >= {Plain, Tiled, Threaded, Wrapped}


def test_the_short_way_gives_the_verdicts_of_the_judge():
    rng = random.Random(20)
    some = rng.sample([m for m in MUTANTS.values() if m.keeps_no_state], 12)
    asked = rng.sample(CHECKS, 30)
    assert kills(some, asked) == kills(some, asked, short=False)


def test_a_mutant_that_writes_to_its_operands_is_not_taken_for_right():
    some = [MUTANTS["operands_written"]]
    asked = [BY_ID["masks.causal_random.float32"], BY_ID["precision.unit.float32"]]
    assert kills(some, asked) == {"operands_written": [check.id for check in asked]}


def test_the_matrix_is_read_as_it_was_written():
    found = written()
    assert to_text(found) == MATRIX.read_text(encoding="utf-8")
    assert set(found) == set(MUTANTS)
    assert all(found.values())


def test_what_notices_no_mutant_says_why_it_is_there():
    assert [id_ for id_, why in idle(written()).items() if not why] == []


def test_named_killers_are_in_the_matrix():
    found = written()
    wrong = {n: set(m.killed_by) - set(found[n]) for n, m in MUTANTS.items()}
    assert {name: ids for name, ids in wrong.items() if ids} == {}


@pytest.mark.slow
def test_a_part_of_the_matrix_is_that_of_today():
    # The whole takes minutes of two cores: `python -m sdpakit.conformance.mutants --check FILE`.
    some = CHECKS[3::10]
    ids, was = {check.id for check in some}, written()
    assert kills(MUTANTS.values(), some) == {
        name: [id_ for id_ in was[name] if id_ in ids] for name in MUTANTS
    }
