"""The bounds themselves: met by the plain program, not met by less, and near to what it needs."""

import dataclasses

import numpy as np
import pytest

from sdpakit import AttentionSpec, reference
from sdpakit.conformance import Profile, bounds, cases, check
from sdpakit.conformance.bounds import rows_of
from sdpakit.conformance.gradients.bounds import gradient_bounds
from sdpakit.conformance.judge import expected
from sdpakit.conformance.targets.naive import Naive
from sdpakit.reference.gradients import gradients

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


LARGE = ("out", "lse", "max_logit", "entropy", "sum_p2")


def errors_of_any_size(rng):
    """Return a call, and how far off its logits are by the hard bound.

    The products cancel to 0, so that logits are the bias and their errors whatever c makes them.
    """
    keys = int(rng.integers(1, 5))
    shape = (1, 1, keys, 2)
    c = 10.0 ** rng.uniform(3.0, 7.7, keys)
    k = np.stack([c, -c], axis=-1).astype(np.float32).reshape(shape)
    bias = rng.choice([0.0, 0.0, 3.0, 20.0, 90.0]) * rng.standard_normal((1, 1, 1, keys))
    v = (rng.integers(-1, 2, shape) * 1.0).astype(np.float32)
    spec = AttentionSpec(
        q_heads=1, head_dim=2, dtype="float32", scale=1.0, bias="float32", outputs=LARGE
    )
    operands = {"q": np.ones((1, 1, 1, 2), np.float32), "k": k, "v": v}
    operands["bias"] = bias.astype(np.float32)
    detail = reference.detail(spec, **operands)
    rows = rows_of(detail, "hard", Profile(), "float32")
    return operands, detail, rows.e


def shifted(detail, operands, by):
    """Return what the exact formula gives for logits that are off by `by`."""
    bias = operands["bias"].astype(np.float64) + by
    spec = detail.operands.spec.replace(bias="float64", dtype="float64")
    wide = {name: array.astype(np.float64) for name, array in operands.items()}
    return reference.detail(spec, **{**wide, "bias": bias})


def corners(rng, size):
    """Return errors of logits at their bounds: each one at either end, or nowhere."""
    return size * rng.choice([-1.0, 1.0, 0.0], size.shape)


def test_hard_bounds_hold_for_logits_that_are_off_by_any_amount():
    rng, near = np.random.default_rng(7), dict.fromkeys(LARGE, 0.0)
    for _ in range(120):
        operands, detail, size = errors_of_any_size(rng)
        allowed = bounds(detail, "hard")
        for _ in range(8):
            off = shifted(detail, operands, corners(rng, size))
            for output in LARGE:
                error = np.abs(getattr(off, output) - getattr(detail, output))
                near[output] = max(near[output], (error / allowed[output]).max())
    assert max(near.values()) < 1.0 + 1e-12, near
    assert min(near.values()) > 0.9, near


def test_hard_bounds_of_gradients_hold_for_logits_that_are_off_by_any_amount():
    rng, near = np.random.default_rng(8), {"dv": 0.0, "dbias": 0.0}
    for _ in range(40):
        operands, detail, size = errors_of_any_size(rng)
        dout = rng.standard_normal((1, 1, 1, 2)).astype(np.float32)
        exact = gradients(detail, dout)
        allowed = gradient_bounds(detail, dout, dict.fromkeys(near, "float32"), "hard")
        for _ in range(8):
            off = gradients(shifted(detail, operands, corners(rng, size)), dout)
            for name in near:
                error = np.abs(off[name] - exact[name])
                share = np.where(error == 0.0, 0.0, error / np.maximum(allowed[name], 1e-300))
                near[name] = max(near[name], share.max())
    assert max(near.values()) < 1.0 + 1e-12, near
    assert min(near.values()) > 0.5, near


@pytest.mark.parametrize("flushed", [1.0, 4.0])
def test_weights_may_vanish_as_far_up_as_the_profile_says(flushed):
    detail = expected(find("fuzzed.weights_at_the_end_of_the_range.float32"))
    allowed = bounds(detail, "hard", Profile(flushed=flushed))["out"]
    lost = np.abs(detail.out[..., 0])  # all that there is of it
    assert ((lost <= allowed[..., 0]) == (flushed == 4.0)).all()
    assert (np.isnan(allowed[..., 1]) == (flushed == 4.0)).all()  # a weight times an infinity
