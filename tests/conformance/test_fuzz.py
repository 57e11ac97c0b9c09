"""The fuzzer: it finds planted faults, shrinks them, and what it prints is the same case again."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from sdpakit.conformance import builtin_targets, check
from sdpakit.conformance.fuzz import Hostile, Operands
from sdpakit.conformance.fuzz.differential import split
from sdpakit.conformance.fuzz.paste import paste
from sdpakit.conformance.fuzz.search import search
from sdpakit.conformance.fuzz.session import fuzz
from sdpakit.conformance.fuzz.strategies import cases
from sdpakit.conformance.inputs import Draw
from sdpakit.conformance.model import Case, Shape
from sdpakit.conformance.targets.naive import Naive
from sdpakit.errors import ArgumentError

TARGETS = builtin_targets()
FEW = settings(
    max_examples=25,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


class NoCap(Naive):
    name = "no_cap"

    def attention(self, spec, q, k, v, **operands):
        made = object.__new__(type(spec))
        for field in dataclasses.fields(spec):
            value = None if field.name == "softcap" else getattr(spec, field.name)
            object.__setattr__(made, field.name, value)
        return super().attention(made, q, k, v, **operands)


def pasted(source):
    """Run a pasted program; return the case that it makes."""
    names = {}
    exec(source.split("print(")[0], names)
    return names["case"]


@pytest.mark.parametrize(("backend", "examples"), [("interp", 60), ("numba_cpu", 12)])
def test_random_specs(backend, examples):
    @settings(FEW, max_examples=examples)
    @given(cases())
    def judge(case):
        outcome = check(TARGETS[backend], case)
        assert outcome.verdict == "ok", f"{outcome.verdict}: {outcome.message}\n{paste(case)}"

    judge()


@pytest.mark.parametrize("target", ["naive", "reference"])
def test_random_gradients(target):
    @settings(FEW)
    @given(cases(gradients=True))
    def judge(case):
        outcome = check(TARGETS[target], case)
        assert outcome.verdict == "ok", f"{outcome.verdict}: {outcome.message}\n{paste(case)}"

    judge()


@settings(FEW)
@given(cases())
def test_a_pasted_case_is_the_same_case(case):
    again = pasted(paste(case))
    assert (again.id, again.shape, again.bound) == (case.id, case.shape, case.bound)
    assert again.attention_spec() == case.attention_spec()
    first, second = case.operands(), again.operands()
    assert first.keys() == second.keys()
    for name, value in flat(first).items():
        other = flat(second)[name]
        assert value.tobytes() == other.tobytes()
        assert value.strides == other.strides


def flat(operands):
    return {**operands, **operands.get("params", {}), "params": np.zeros(0)}


def test_a_fault_is_found_and_shrunk():
    found = search([NoCap()], seconds=120, hostile=False)
    assert found.finding is not None
    assert "fail" in found.finding.message
    case = pasted(found.finding.source)
    assert check(NoCap(), case).verdict == "fail"
    assert check(Naive(), case).verdict == "ok"
    assert case.shape.batch * case.shape.q_heads * case.shape.q_len == 1
    assert case.spec["mask"] is None
    assert case.spec["softcap"] == 2.0


def test_the_same_seed_gives_the_same_finding():
    first, second = (search([NoCap()], seconds=120, first_seed=3, hostile=False) for _ in "ab")
    assert first.finding == second.finding


def test_nothing_is_found_where_nothing_is_wrong():
    found = search([TARGETS["reference"]], seconds=3)
    assert found.finding is None
    assert found.tried > 0


def test_the_clock_ends_the_search():
    assert search([TARGETS["reference"]], seconds=0.0).tried == 0


class Renamed(Naive):
    def __init__(self, name):
        self.name = name


def test_several_targets_are_held_against_each_other():
    found = search([Renamed("a"), Renamed("b"), Renamed("c"), NoCap()], seconds=120, hostile=False)
    assert found.finding is not None
    message = found.finding.message
    assert "out splits 3 to 1" in message
    assert "a, b, c, (the reference)" in message
    assert "no_cap: 1 of 1 elements differ" in message


CASE = Case(id="fuzz.one", rules=(), catches="", shape=Shape(), spec={"dtype": "float32"})


class Raising(Naive):
    name = "raising"

    def attention(self, spec, q, k, v, **operands):
        raise RuntimeError("out of paper")


class Wide(Naive):
    name = "wide"

    def attention(self, spec, q, k, v, **operands):
        found = super().attention(spec, q, k, v, **operands)
        return {name: np.concatenate([x, x], axis=-1) for name, x in found.items()}


def test_what_the_sides_of_a_split_say():
    assert split([Naive(), Renamed("b")], CASE).message == ""
    assert "raising: raised RuntimeError: out of paper" in split([Naive(), Raising()], CASE).message
    assert "wide: shape (1, 2, 5, 16), not (1, 2, 5, 8)" in split([Naive(), Wide()], CASE).message
    assert split([Raising(), Raising()], CASE).message == ""  # both on one side


def test_hostile_values_land_where_they_are_told():
    shape = Shape(q_len=6, kv_len=9)
    made = Operands(hostile=(Hostile("k", math.nan, 1, whole_rows=True),))(
        Draw(shape, "float32", 1)
    )
    assert np.isnan(made["k"]).all(axis=-1).sum() == 1
    assert np.isnan(made["k"]).sum() == shape.head_dim
    made = Operands(hostile=(Hostile("v", math.inf, 2),))(Draw(shape, "float32", 1))
    assert 1 <= np.isinf(made["v"]).sum() <= 2
    assert not np.isnan(made["q"]).any()


SLEEPY = """
import os, time
from sdpakit.conformance.targets.naive import Naive

class Sleeps(Naive):
    name = "sleeps"
    def attention(self, *given, **operands):
        time.sleep(60)

class Dies(Naive):
    name = "dies"
    def attention(self, *given, **operands):
        os._exit(7)

class Segfaults(Naive):
    name = "segfaults"
    def attention(self, *given, **operands):
        import ctypes
        ctypes.string_at(0)
"""


@pytest.mark.parametrize(
    ("name", "says"),
    [("Sleeps", "hang: no answer within"), ("Dies", "status 7"), ("Segfaults", "SIGSEGV")],
)
def test_a_hang_and_a_death_are_findings(tmp_path, name, says):
    file = tmp_path / "bad.py"
    file.write_text(SLEEPY)
    found = fuzz([f"{file}:{name}"], seconds=30, time_limit=2.0)
    assert found.finding is not None
    assert says in found.finding.message
    assert pasted(found.finding.source.split("print(")[0]).id.startswith("fuzz.")


def test_a_target_that_is_not_there_is_refused():
    with pytest.raises(ArgumentError, match="no_such_target"):
        fuzz(["no_such_target"], seconds=1)
