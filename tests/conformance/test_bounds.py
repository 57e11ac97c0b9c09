"""The bounds themselves: met by the plain program, not met by less, and near to what it needs."""

import dataclasses

import numpy as np
import pytest

from sdpakit.conformance import Profile, bounds, cases, check
from sdpakit.conformance.judge import expected
from sdpakit.conformance.targets.naive import Naive

FORWARD = [case for case in cases() if not (case.gradients or case.refuses or case.heavy)]
# In float64 the plain program makes the very roundings of the reference.
SHARP = [case for case in FORWARD if case.bound == "sharp" and case.dtype == "float32"]
# Families whose float32 cases are random but for the thing that they are about.
RANDOM = sorted({case.family for case in SHARP})
SHARES = {}


def share(case):
    """Return the share of its bound that the plain program uses; every case is run once."""
    if case.id not in SHARES:
        outcome = check(Naive(), case)
        assert outcome.verdict == "ok", outcome.message
        SHARES[case.id] = outcome.share
    return SHARES[case.id]


@pytest.mark.parametrize("family", sorted({case.family for case in FORWARD}))
def test_the_plain_program_stays_below_every_bound(family):
    largest = max(share(case) for case in FORWARD if case.family == family)
    assert largest < 1.0


@pytest.mark.parametrize("family", RANDOM)
def test_the_sharp_bound_is_near(family):
    assert max(share(case) for case in SHARP if case.family == family) >= 1 / 50


PRECISION = [case for case in SHARP if case.family == "precision"]


@pytest.mark.parametrize("case", PRECISION, ids=lambda case: case.id)
def test_the_sharp_bound_is_near_in_every_random_row(case):
    assert share(case) >= 1 / 50


def find(name):
    return next(case for case in cases() if case.id == name)


def test_the_hard_bound_is_the_larger_one():
    detail = expected(find("precision.unit.float32"))
    sharp, hard = (bounds(detail, kind) for kind in ("sharp", "hard"))
    for output, bound in hard.items():
        assert np.median(bound / sharp[output]) > 1.0, output


def test_bounds_grow_with_the_profile():
    detail = expected(find("softcap.applied.float32"))
    plain = bounds(detail, "sharp")
    for worse in (Profile(exp=8.0), Profile(tanh=64.0), Profile(weights=2.0**-11)):
        assert (bounds(detail, "sharp", worse)["out"] > plain["out"]).all()


def test_bounds_of_double_are_those_of_single_scaled():
    detail = expected(find("precision.unit.float32"))
    single, double = (bounds(detail, "sharp", precision=p) for p in ("float32", "float64"))
    assert np.array_equal(single["lse"], double["lse"] * 2.0**29)


def test_huge_logits_are_still_judged_by_the_values():
    case = find("bias.lowest_everywhere.float32")
    detail = expected(case)
    bound = bounds(detail, "hard")["out"]
    assert np.isfinite(bound).all()
    # Every value of channel 1 is one, so nothing but one is a mean of them.
    sums = (case.shape.kv_len + 4) * 2.0**-24
    assert (bound[..., 1] < 2 * sums).all()


def test_a_bound_is_finite_wherever_the_reference_is():
    for case in FORWARD:
        if case.level == "core" and case.shape.kv_len < 100:
            detail = expected(case)
            for output, bound in bounds(detail, case.bound).items():
                finite = np.isfinite(getattr(detail, output))
                assert np.isfinite(bound[finite]).all(), (case.id, output)


def test_errors_of_an_expression_are_not_smaller_than_what_happens():
    """Single precision stays within the propagated error, operation by operation."""
    named = [case for case in cases(family="expressions") if ".function_" in case.id]
    for case in named:
        tight = dataclasses.replace(case, bound="hard")
        outcome = check(Naive(), tight)
        assert outcome.verdict == "ok", outcome.message
