"""Gradients of the reference against differences of its own forward results."""

import dataclasses
from functools import partial

import numpy as np
import pytest

from sdpakit import reference
from sdpakit.conformance import cases
from sdpakit.conformance.cases import gradients_specials
from sdpakit.errors import ArgumentError
from sdpakit.spec import AttentionSpec

# NaN in a live place has no differences to compare with. One dtype a case: all is done in float64.
STRANGE = {case.id for case in gradients_specials.cases()}
GRADIENTS = [case for case in cases("core", "gradients") if case.id not in STRANGE]
# Slopes that change within a step, or logits of which a step is a rounding.
STEEP = {
    "of_a_cap_far_saturated",
    "of_equal_logits_of_minus_1e9",
    "of_logits_of_1e4",
    "of_logits_of_1e6",
    "through_log",
    "through_relu",
    "through_the_side_not_taken",
}
SMOOTH = [case for case in GRADIENTS if case.id.split(".")[1] not in STEEP]
STEP = 2.0**-13
# Operands whose gradient is judged, and the name that it has.
NAMES = {"q": "dq", "k": "dk", "v": "dv", "bias": "dbias", "sinks": "dsinks"}


def in_double(case):
    """Return spec and operands of a case with q, k, v in float64, values as stored."""
    operands = case.operands()
    for name in ("q", "k", "v", "dout"):
        operands[name] = operands[name].astype(np.float64)
    spec = dataclasses.replace(case, spec={**case.spec, "dtype": "float64"}).attention_spec()
    return spec, operands


def loss(spec, operands, dout):
    given = {name: x for name, x in operands.items() if name != "dout"}
    found = reference.attention(spec, **given)
    empty = np.isneginf(found["lse"])[..., None]
    empty = empty.swapaxes(1, 2) if spec.layout == "bshd" else empty
    terms = np.where(empty, 0.0, found["out"]) * np.where(empty, 0.0, dout)
    return float(terms.sum()), float(np.abs(terms).sum())


def slope(spec, operands, moved):
    """Return the slope of the loss where `moved(step)` are operands, and how far it can be off."""

    def ends(step):
        found = [
            loss(spec, {**operands, **moved(sign * step)}, operands["dout"]) for sign in (1.0, -1.0)
        ]
        return (found[0][0] - found[1][0]) / (2 * step), found[0][1]

    near, size = ends(STEP)
    far, _ = ends(2 * STEP)
    # Richardson: the error of `near` is a third of its distance from `far`, to fourth order in the
    # step; of that a share may be left. Roundings of the sum are divided by the step.
    return (4 * near - far) / 3, abs(near - far) * STEP + 64 * 2.0**-52 * (size + 1) / STEP


def moved_along(operands, name, direction, step):
    return {name: operands[name] + step * direction}


def directions(case, name, array):
    rng = np.random.default_rng([case.seed, *name.encode()])
    for _ in range(3):
        direction = rng.standard_normal(array.shape)
        yield direction / np.abs(direction).max()


@pytest.mark.parametrize("case", SMOOTH, ids=lambda case: case.id)
def test_gradient_is_that_of_differences(case):
    spec, operands = in_double(case)
    found = reference.attention(spec, **operands)
    judged = 0
    for name, gradient in NAMES.items():
        if name not in operands:
            continue
        assert found[gradient].shape == operands[name].shape
        if not operands[name].size:
            continue
        for direction in directions(case, name, operands[name]):
            along = partial(moved_along, operands, name, direction)
            expected, error = slope(spec, operands, along)
            assert abs(float((found[gradient] * direction).sum()) - expected) <= error, name
            judged += 1
    assert judged >= 9 or not all(operands[name].size for name in "qkv")


@pytest.mark.parametrize("case", GRADIENTS, ids=lambda case: case.id)
def test_gradients_are_finite_and_absent_pairs_have_none(case):
    spec, operands = in_double(case)
    found = reference.attention(spec, **operands)
    given = {name: x for name, x in operands.items() if name != "dout"}
    attended = reference.detail(spec, **given).attended
    for gradient in NAMES.values():
        assert np.isfinite(found.get(gradient, np.zeros(1))).all()
    dq, dk, dv = (found[name] for name in ("dq", "dk", "dv"))
    if spec.layout == "bshd":
        dq, dk, dv = (x.swapaxes(1, 2) for x in (dq, dk, dv))
    assert (dq[~attended.any(axis=3)] == 0.0).all()
    kv_heads = (attended.shape[0], spec.kv_heads, spec.group, *attended.shape[2:])
    unseen = ~attended.reshape(kv_heads).any(axis=(2, 3))
    assert (dk[unseen] == 0.0).all()
    assert (dv[unseen] == 0.0).all()


def test_gradient_of_a_table():
    case = next(c for c in GRADIENTS if c.id == "gradients.of_an_expression.float32")
    spec, operands = in_double(case)
    found = reference.attention(spec, **operands)["dparams.t"]
    table = operands["params"]["t"]
    assert found.shape == table.shape
    for place in np.ndindex(*table.shape):
        direction = np.zeros(table.shape)
        direction[place] = 1.0
        along = partial(moved_along, operands["params"], "t", direction)
        expected, error = slope(spec, operands, lambda step, at=along: {"params": at(step)})
        assert abs(found[place] - expected) <= error


def test_gradient_of_the_slopes_of_alibi():
    case = next(c for c in GRADIENTS if c.id == "gradients.of_alibi.float32")
    spec, operands = in_double(case)
    found = reference.attention(spec, **operands)["dparams.slopes"]
    for h, gradient in enumerate(found):
        direction = np.eye(len(found))[h]
        along = partial(moved_along, operands["params"], "slopes", direction)
        expected, error = slope(spec, operands, lambda step, at=along: {"params": at(step)})
        assert abs(gradient - expected) <= error


@pytest.mark.parametrize("sink", [-np.inf, np.nan, np.inf])
def test_a_sink_over_empty_rows_has_no_gradient(sink):
    spec = AttentionSpec(q_heads=1, head_dim=2, dtype="float64", sinks=True, kv_lens=True)
    ones = (np.ones((1, 1, 3, 2)),) * 3
    given = {"sinks": np.array([sink]), "kv_lens": np.array([0]), "dout": ones[0]}
    assert reference.attention(spec, *ones, **given)["dsinks"].tolist() == [0.0]


def test_poison_has_no_gradient():
    case = next(c for c in GRADIENTS if c.id == "gradients.of_poisoned_masked_keys.float32")
    found = reference.attention(case.attention_spec(), **case.operands())
    assert all(np.isfinite(found[name]).all() for name in ("dq", "dk", "dv"))
    assert (found["dk"][:, :, 3:] == 0).all()
    assert (found["dv"][:, :, 3:] == 0).all()


def test_a_table_that_no_gradient_reaches_has_zeros():
    name = "gradients.of_a_table_in_a_condition.float32"
    case = next(c for c in GRADIENTS if c.id == name)
    found = reference.attention(case.attention_spec(), **case.operands())
    for table in ("t", "f"):
        assert found[f"dparams.{table}"].tolist() == [0.0] * 21


def test_a_nan_row_makes_its_own_gradients_nan():
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 1, 4, 2)) for _ in range(3))
    q[0, 0, 1] = np.nan
    spec = AttentionSpec(q_heads=1, head_dim=2, dtype="float64")
    found = reference.attention(spec, q, k, v, dout=np.ones((1, 1, 4, 2)))
    assert np.isnan(found["dq"][0, 0, 1]).all()
    assert np.isfinite(np.delete(found["dq"], 1, axis=2)).all()


def test_dout_of_another_shape_is_refused():
    spec = AttentionSpec(q_heads=1, head_dim=2, dtype="float64")
    zeros = (np.zeros((1, 1, 4, 2)),) * 3
    with pytest.raises(ArgumentError, match="dout"):
        reference.attention(spec, *zeros, dout=np.zeros((1, 1, 4, 3)))


def test_infinities_of_two_rows_meet_in_a_bias_without_a_warning():
    spec = AttentionSpec(q_heads=1, head_dim=1, dtype="float64", bias="float64")
    q, k = np.ones((1, 1, 2, 1)), np.ones((1, 1, 2, 1))
    v, dout = (np.array([[a], [b]])[None, None] for a, b in ((np.inf, 1.0), (1.0, -1.0)))
    detail = reference.detail(spec, q, k, v, bias=np.zeros((1, 2)))
    found = reference.gradients(detail, dout)
    assert np.isnan(found["dbias"]).all()
