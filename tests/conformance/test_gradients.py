"""The judge of gradients: bounds that are met and not met by less, and what it says of targets."""

import dataclasses
import functools
import re

import numpy as np
import pytest

from sdpakit.conformance import Profile, cases
from sdpakit.conformance.cases import (
    gradients_dout,
    gradients_masks,
    gradients_numbers,
    gradients_operands,
    gradients_specials,
)
from sdpakit.conformance.gradients.bounds import gradient_bounds
from sdpakit.conformance.gradients.judge import check_gradients, expected_gradients
from sdpakit.conformance.gradients.naive import Backward
from sdpakit.conformance.gradients.wanted import gradient_operands
from sdpakit.conformance.judge import check, expected
from sdpakit.conformance.mutants import backward, backward_precision
from sdpakit.conformance.mutants.backward import Right
from sdpakit.conformance.mutants.model import replaced
from sdpakit.conformance.target import BaseTarget
from sdpakit.conformance.targets.naive import Naive
from sdpakit.conformance.targets.oracle import Reference

ALL = cases(family="gradients")
BY_ID = {case.id: case for case in ALL}
SHARP = [case for case in ALL if case.bound == "sharp" and case.dtype == "float32"]
PARTS = {
    "dout": gradients_dout,
    "masks": gradients_masks,
    "operands": gradients_operands,
    "numbers": gradients_numbers,
    "specials": gradients_specials,
}
UNIT = BY_ID["gradients.unit.float32"]


def ids(case):
    return case.id


@functools.cache
def used(case):
    """Return the share of its bound that each gradient of the plain program uses."""
    operands = case.operands()
    found = Naive().prepare_gradients(case.attention_spec())(**operands)
    with np.errstate(all="ignore"):  # 0 / 0 where nothing may be off, NaN where all is
        return {
            name: float(np.nanmax(error / bound, initial=0.0))
            for name, (error, bound) in errors(case, found).items()
        }


def errors(case, found, kind=None, profile=None):
    operands = case.operands()
    dtypes = {
        name: like.dtype.name
        for name, like in gradient_operands(case.attention_spec(), operands).items()
    }
    bound = gradient_bounds(expected(case), operands["dout"], dtypes, kind or case.bound, profile)
    right = expected_gradients(case)
    with np.errstate(all="ignore"):
        return {n: (np.abs(found[n].astype(float) - right[n]), bound[n]) for n in dtypes}


@pytest.mark.parametrize("case", ALL, ids=ids)
def test_the_plain_program_and_the_reference_stay_below_the_bound(case, shares):
    for target in (Naive(), Reference()):
        outcome = check(target, case)
        shares(outcome, case.dtype)
        assert outcome.verdict == "ok", outcome.message
        assert outcome.share <= 1.0


@pytest.mark.parametrize("gradient", ["dq", "dk", "dv", "dbias", "dsinks", "dparams"])
def test_the_sharp_bound_of_each_gradient_is_near(gradient):
    found = [
        share
        for case in SHARP
        for name, share in used(case).items()
        if name.split(".")[0] == gradient and share > 0.0
    ]
    assert max(found) >= 1 / 50
    assert np.median(found) >= 1 / 100


@pytest.mark.parametrize("part", PARTS)
def test_the_sharp_bound_is_near_in_each_part(part):
    made = {case.id for case in PARTS[part].cases()}
    found = [max(used(case).values()) for case in SHARP if case.id in made]
    assert max(found) >= 1 / 50
    assert np.median(found) >= 1 / 50


@pytest.mark.parametrize("name", ["unit", "long", "tall", "wide", "of_saturated_rows"])
def test_the_sharp_bound_is_near_for_every_gradient_of_random_rows(name):
    found = used(BY_ID[f"gradients.{name}.float32"])
    assert {name: share for name, share in found.items() if share < 1 / 50} == {}


def test_the_hard_bound_is_the_larger_one():
    zeros = {name: np.zeros(x.shape) for name, x in expected_gradients(UNIT).items()}
    sharp, hard = (errors(UNIT, zeros, kind) for kind in ("sharp", "hard"))
    for name in zeros:
        assert np.median(hard[name][1] / sharp[name][1]) > 1.0, name


@pytest.mark.parametrize(
    ("profile", "grown"),
    [
        (Profile(exp=16.0), ("dq", "dk", "dv")),
        (Profile(weights=2.0**-11), ("dq", "dk", "dv")),
        (Profile(delta=2.0**-11), ("dq", "dk")),
        (Profile(dlogits=2.0**-11), ("dq", "dk")),
    ],
)
def test_bounds_grow_with_the_profile(profile, grown):
    zeros = {name: np.zeros(x.shape) for name, x in expected_gradients(UNIT).items()}
    plain, worse = errors(UNIT, zeros), errors(UNIT, zeros, profile=profile)
    assert {n for n in zeros if (worse[n][1] > plain[n][1]).all()} == set(grown)


@pytest.mark.parametrize("case", ALL, ids=ids)
def test_a_bound_is_finite_wherever_the_reference_is(case):
    right = expected_gradients(case)
    for name, (_, bound) in errors(case, right).items():
        assert np.isfinite(bound[np.isfinite(right[name])]).all(), name


def delta_of_out(right, entry, p, dp):
    """Compute delta as flash attention does, of an `out` that was not rounded."""
    out = right.forward.mix(p, entry.v, entry.attended)
    empty = ~entry.attended.any(axis=-1, keepdims=True)
    return np.where(empty, 0, entry.dout * out).sum(axis=-1)


@pytest.mark.parametrize("case", [case for case in ALL if case.level == "core"], ids=ids)
def test_both_ways_to_compute_delta_stay_below_the_bound(case):
    outcome = check_gradients(replaced(Right, "delta", delta_of_out), case)
    assert outcome.verdict == "ok", outcome.message


@pytest.mark.parametrize(
    ("step", "fault", "profile"),
    [
        ("delta", backward_precision.delta_of_a_rounded_out, {"delta": 2.0**-11}),
        ("through_cap", backward_precision.dlogits_in_half, {"dlogits": 2.0**-11}),
        ("value_sum", backward_precision.weights_in_half_for_dv, {"weights": 2.0**-11}),
    ],
)
@pytest.mark.parametrize("name", ["unit.float32", "of_a_stored_out.float16", "of_a_group.float16"])
def test_what_a_profile_declares_is_allowed(step, fault, profile, name):
    case = BY_ID[f"gradients.{name}"]
    target = replaced(Right, step, fault)
    target.profile = Profile(**profile)
    outcome = check_gradients(target, case)
    assert outcome.verdict == "ok", outcome.message


def test_errors_of_derivatives_are_not_smaller_than_what_happens():
    for case in ALL:
        if case.id.startswith("gradients.through_"):
            outcome = check_gradients(Naive(), dataclasses.replace(case, bound="hard"))
            assert outcome.verdict == "ok", outcome.message


def test_rows_whose_lse_swallows_the_logarithm_are_still_judged():
    case = BY_ID["gradients.of_equal_logits_of_minus_1e9.float32"]
    right = expected_gradients(case)
    bound = errors(case, right)["dv"][1]
    total = np.abs(case.operands()["dout"]).sum(axis=2, keepdims=True)
    assert (bound <= total).all()


MUTANTS = (*backward.MUTANTS, *backward_precision.MUTANTS)


@pytest.mark.parametrize(
    ("mutant", "name"),
    [pytest.param(m, name, id=f"{m.name}-{name}") for m in MUTANTS for name in m.killed_by],
)
def test_a_wrong_backward_is_caught(mutant, name):
    case = BY_ID[name]
    assert case.level == "core"
    outcome = check(mutant.factory(), case)
    assert outcome.verdict == "fail", f"{name} lets {mutant.name} pass"


def test_a_right_backward_has_the_gradients_of_the_naive_target():
    case = BY_ID["gradients.of_sinks_with_everything.float32"]
    spec, operands = case.attention_spec(), case.operands()
    first, second = (t.prepare_gradients(spec)(**operands) for t in (Right(), Naive()))
    assert all(np.array_equal(first[name], second[name]) for name in second)


class Answers(BaseTarget):
    """Gives whatever `change` makes of the right gradients."""

    name = "answers"

    def __init__(self, change):
        self.change = change

    def prepare_gradients(self, spec):
        right = Backward(Naive())
        return lambda **operands: self.change(right.gradients(spec, **operands))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda found: {n: x for n, x in found.items() if n != "dk"}, "dk did not come back"),
        (lambda found: {**found, "dbias": found["dq"]}, "dbias came back"),
        (lambda found: tuple(found.values()), "came as a tuple, not by name"),
        (lambda found: {**found, "dv": None}, "dv is None"),
        (lambda found: {**found, "dv": found["dv"].astype("f8")}, "dv has dtype float64"),
        (lambda found: {**found, "dv": found["dv"][0]}, "dv has shape"),
        (lambda found: {**found, "dq": found["dq"] * np.nan}, r"dq\[0, 0, 0, 0\] = nan"),
    ],
)
def test_what_is_wrong_is_named(change, message):
    outcome = check(Answers(change), UNIT)
    assert outcome.verdict == "fail"
    assert re.search(message, outcome.message)


def test_the_worst_element_is_there():
    def change(found):
        dv = found["dv"].copy()
        dv[0, 0, 3, 5] += 1.0
        return {**found, "dv": dv}

    worst = check(Answers(change), UNIT).worst
    assert (worst.output, worst.index) == ("dv", (0, 0, 3, 5))
    assert worst.share == pytest.approx(abs(worst.got - worst.right) / worst.bound)


def test_other_bits_in_a_second_call_are_seen():
    calls = iter(range(9))
    outcome = check(Answers(lambda f: {**f, "dq": f["dq"] * np.float32(1 + next(calls))}), UNIT)
    assert "dq has other bits in a second call" in outcome.message


def test_memory_of_gradients_used_again_is_seen():
    memory = {}

    def change(found):
        for name, x in found.items():
            memory.setdefault(name, np.empty_like(x))[...] = x
        return dict(memory)

    assert "dq of two calls is the same memory" in check(Answers(change), UNIT).message


class Foreign:
    """An array of another library."""

    def __init__(self, array):
        self.array = array

    def __array__(self, dtype=None, copy=None):
        return self.array


def test_other_bits_are_seen_in_arrays_of_another_library():
    calls = iter(range(9))

    def change(found):
        return {**found, "dq": Foreign(found["dq"] * np.float32(1 + 1e-7 * next(calls)))}

    assert "dq has other bits in a second call" in check(Answers(change), UNIT).message


def test_a_target_without_gradients_refuses():
    outcome = check(BaseTarget(), UNIT)
    assert outcome.verdict == "refused"
    assert "no gradients" in outcome.message


def test_a_target_that_raises_is_in_error():
    def change(found):
        raise RuntimeError("out of luck")

    outcome = check(Answers(change), UNIT)
    assert outcome.verdict == "error"
    assert "out of luck" in outcome.message
