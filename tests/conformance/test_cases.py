"""The cases themselves: unique, valid, and right where they say what must come out."""

import mmap
import os
import re
import signal
import subprocess
import sys

import numpy as np
import pytest

from sdpakit import errors, reference
from sdpakit.conformance import RULES, bounds, cases, relations
from sdpakit.conformance.cases import FAMILIES
from sdpakit.conformance.cases.make import gh
from sdpakit.conformance.cases.random_specs import random_case
from sdpakit.conformance.compare import compare
from sdpakit.conformance.inputs import at_page_border
from sdpakit.conformance.judge import check, expected
from sdpakit.conformance.targets import builtin_targets
from sdpakit.masks import Causal
from sdpakit.spec import AttentionSpec

ALL = cases("stress")
WITH_ANSWER = [case for case in ALL if case.expect]


def ids(some):
    return [case.id for case in some]


def test_ids_are_unique_and_lead_to_the_family():
    assert len(set(ids(ALL))) == len(ALL)
    assert {case.family for case in ALL} == set(FAMILIES)
    assert all(case.id.startswith(f"{case.family}.") for case in ALL)
    assert len({case.seed for case in ALL}) == len(ALL)


def test_every_case_says_what_it_catches():
    assert [case.id for case in ALL if len(case.catches.split()) < 3] == []


def test_every_dtype_and_level_is_there():
    for family in ("masks", "poison", "specials", "precision", "bias", "sinks", "strides"):
        assert {case.dtype for case in cases(family=family)} >= {
            "float16",
            "bfloat16",
            "float32",
            "float64",
        }
    assert set(ids(cases("core"))) < set(ids(cases("full"))) < set(ids(ALL))
    assert len(cases("core")) >= 480
    assert len(ALL) >= 1100


def test_levels_of_relations_include_one_another():
    core, full, stress = (set(relations(level)) for level in ("core", "full", "stress"))
    assert core < full < stress
    assert {relation.level for relation, _ in core} == {"core"}


def test_every_case_and_relation_names_rules_that_exist():
    judged = [*ALL, *(relation for relation, _ in relations("stress"))]
    assert [item.id for item in judged if not item.rules or set(item.rules) - set(RULES)] == []


STRESS = [case for case in ALL if case.level == "stress"]


def test_random_specs_are_valid_and_differ():
    made = [case.attention_spec() for case in STRESS if ".random_" in case.id]
    assert len(made) == 200
    assert len(set(made)) >= 190
    assert sum(spec.mask is not None for spec in made) >= 120


def test_random_cases_are_the_same_every_time():
    first, second = random_case(7), random_case(7)
    assert first.attention_spec() == second.attention_spec()
    a, b = first.operands(), second.operands()
    assert all(a[name].tobytes() == b[name].tobytes() for name in "qkv")


@pytest.mark.parametrize("end", ["low", "high"])
def test_guarded_pages_hold_the_values_and_lie_at_the_border(end):
    values = np.arange(35.0, dtype=np.float32).reshape(5, 7)
    array = at_page_border(values, end)
    assert np.array_equal(array, values)
    assert array.flags.c_contiguous
    first = array.__array_interface__["data"][0]
    border = first if end == "low" else first + array.nbytes
    assert border % mmap.PAGESIZE == 0


@pytest.mark.parametrize("end", ["low", "high"])
def test_to_touch_a_guarded_page_ends_the_process(end):
    code = (
        "import numpy as np; from numpy.lib.stride_tricks import as_strided\n"
        "from sdpakit.conformance.inputs import at_page_border\n"
        f"x = at_page_border(np.ones(4, np.float32), {end!r})\n"
        f"as_strided(x, (5,), ({-4 if end == 'low' else 4},))[4 if {end!r} == 'high' else 1].item()"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, env=env)
    assert done.returncode in (-signal.SIGSEGV, -signal.SIGBUS), done.stderr


def test_operands_are_the_same_every_time():
    case = next(case for case in ALL if case.id == "masks.everything_at_once.float32")
    first, second = case.operands(), case.operands()
    assert all(first[name].tobytes() == second[name].tobytes() for name in "qkv")
    assert not np.shares_memory(first["q"], second["q"])


@pytest.mark.parametrize("case", WITH_ANSWER, ids=ids(WITH_ANSWER))
def test_reference_agrees_with_answers_worked_out_by_hand(case):
    detail = expected(case)
    allowed = bounds(detail, "hard", precision="float64")
    for name, answer in case.expect().items():
        if name in allowed:
            found = np.array(getattr(detail, name))
            judged = compare(name, found, answer, allowed[name], "float64")
            assert not judged.message, judged.message


GRADIENT_ANSWERS = [case for case in WITH_ANSWER if case.gradients]


@pytest.mark.parametrize("case", GRADIENT_ANSWERS, ids=ids(GRADIENT_ANSWERS))
def test_reference_gives_gradients_worked_out_by_hand(case):
    found = reference.attention(case.attention_spec(), **case.operands())
    for name, answer in case.expect().items():
        assert np.array_equal(found[name], answer), name


@pytest.mark.parametrize("case", [case for case in ALL if case.refuses], ids=lambda case: case.id)
def test_refusals_name_an_exception_of_sdpakit(case):
    assert issubclass(getattr(errors, case.refuses), errors.SdpakitError)
    assert case.match


def test_reference_passes_its_own_judgement():
    target = builtin_targets()["reference"]
    judged = [case for case in cases("core") if not case.refuses]
    outcomes = [check(target, case) for case in judged]
    assert [outcome for outcome in outcomes if outcome.verdict != "ok"] == []


PACKED = [case for case in cases() if case.family in ("ragged", "paged")]


@pytest.mark.parametrize("case", PACKED, ids=ids(PACKED))
def test_packed_entries_are_what_they_would_be_alone(case):
    spec, operands = case.attention_spec(), case.operands()
    q, k, v = (operands.pop(name) for name in "qkv")
    whole = reference.attention(spec, q, k, v, **operands)
    detail = reference.detail(spec, q, k, v, **operands)
    ends = operands.get("cu_q_lens")
    for name, found in whole.items():
        rows = getattr(detail, name)
        if ends is not None:
            assert np.array_equal(
                found[ends[-1] :],
                np.full_like(found[ends[-1] :], detail.operands.empty_row(name)),
                equal_nan=True,
            )
        for b in range(len(rows)):
            own = (
                found[ends[b] : ends[b + 1]].swapaxes(0, 1)
                if ends is not None
                else detail.operands.to_layout(found)[b]
            )
            assert np.array_equal(own, rows[b, :, : own.shape[1]], equal_nan=True)


def test_answers_of_packed_calls_worked_out_by_hand():
    spec = {"q_heads": 1, "head_dim": 1, "layout": "thd", "mask": Causal("bottom_right")}
    q, v = np.zeros((3, 1, 1), np.float32), np.arange(1.0, 7.0, dtype=np.float32)[:, None, None]
    ends = {"cu_q_lens": [0, 2, 3], "cu_kv_lens": [0, 3, 5]}
    found = reference.attention(AttentionSpec(**spec), q, v, v, **ends)
    assert found["out"].ravel().tolist() == [1.5, 2.0, 4.5]
    assert found["lse"].shape == (3, 1)
    pages = v[[2, 3, 4, 5, 0, 1]].reshape(3, 2, 1, 1)
    table = {"block_table": [[2, 0], [1, -1]], "kv_lens": [3, 2], "cu_q_lens": [0, 2, 3]}
    spec |= {"paged": True, "kv_lens": True}
    found = reference.attention(AttentionSpec(**spec), q, pages, pages, **table)
    assert found["out"].ravel().tolist() == [1.5, 2.0, 5.5]


def test_addresses_of_threads():
    assert gh("a/b#1") == "https://github.com/a/b/issues/1"
    assert gh("a/b!2") == "https://github.com/a/b/pull/2"
    known = re.compile(r"https://github\.com/[\w.-]+/[\w.-]+/(issues|pull)/\d+|")
    assert [case.source for case in ALL if not known.fullmatch(case.source)] == []


def test_an_unknown_family_is_an_error():
    with pytest.raises(KeyError):
        cases(family="nonsense")
