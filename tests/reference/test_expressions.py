"""The evaluator of the reference: values against Python, gradients against differences."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from sdpakit import reference
from sdpakit.errors import ArgumentError
from sdpakit.expr.functions import (
    absolute,
    exp,
    floor,
    log,
    maximum,
    minimum,
    sqrt,
    tanh,
    to_float,
    to_int,
    where,
)
from sdpakit.expr.nodes import Binary, Unary
from sdpakit.expr.operands import Scalar, Table
from sdpakit.reference.expressions import BINARY, UNARY, Scope, backpropagate, evaluate
from sdpakit.spec import AttentionSpec

X = np.linspace(-3.0, 3.0, 12).reshape(1, 3, 4)
INDICES = {
    "b": np.int64(0),
    "h": np.zeros((1, 1, 1), int),
    "q": np.arange(3)[None, :, None],
    "k": np.arange(4)[None, None, :],
    "q_len": np.int64(3),
    "kv_len": np.int64(4),
    "q_offset": np.int64(5),
}
PARAMS = {"t": np.array([0.5, -1.5, 2.5, 3.5]), "n": 3, "f": -0.25, "w": np.float32([[0.1], [2]])}
TABLE, WIDE = Table("t", "float64", 1), Table("w", "float32", 2)


def logits(function):
    return AttentionSpec(q_heads=1, head_dim=1, dtype="float64", logits=function).logits


def values(function, x=X, params=PARAMS):
    node = logits(function)
    found = evaluate(node, Scope(INDICES, params, np.dtype(np.float64), x))
    return node, found


# Each with what it says in plain Python, for one pair.
MEANING = {
    "exp": (lambda x, i: exp(x), lambda x, i: math.exp(x)),
    "log": (lambda x, i: log(absolute(x) + 1.0), lambda x, i: math.log(abs(x) + 1.0)),
    "tanh": (lambda x, i: tanh(x), lambda x, i: math.tanh(x)),
    "sqrt": (lambda x, i: sqrt(absolute(x)), lambda x, i: math.sqrt(abs(x))),
    "floor": (lambda x, i: floor(x) * 1.0, lambda x, i: math.floor(x)),
    "neg": (lambda x, i: -x, lambda x, i: -x),
    "division": (lambda x, i: x / 3.0, lambda x, i: x / 3.0),
    "floordiv": (lambda x, i: x + to_float((i.q - i.k) // 2), lambda x, i: x + (i.q - i.k) // 2),
    "mod": (lambda x, i: x + to_float((i.q - i.k) % 3), lambda x, i: x + (i.q - i.k) % 3),
    "min": (lambda x, i: minimum(x, 0.5), lambda x, i: min(x, 0.5)),
    "max": (lambda x, i: maximum(x, -0.5), lambda x, i: max(x, -0.5)),
    "where": (lambda x, i: where(i.k > i.q, x, -x), lambda x, i: x if i.k > i.q else -x),
    "to_int": (lambda x, i: x + to_float(to_int(i.k > 1)), lambda x, i: x + int(i.k > 1)),
    "or": (
        lambda x, i: where((i.k > 1) | (i.q < 1), x, 0.0),
        lambda x, i: x if i.k > 1 or i.q < 1 else 0.0,
    ),
    "and": (
        lambda x, i: where((i.k > 1) & ~(i.q < 1), x, 0.0),
        lambda x, i: x if i.k > 1 and not i.q < 1 else 0.0,
    ),
    "ne": (lambda x, i: where(i.k != i.q, x, 0.0), lambda x, i: x if i.k != i.q else 0.0),
    "le": (lambda x, i: where(x <= 0.3, x, 1.0), lambda x, i: x if x <= 0.3 else 1.0),
    "table": (lambda x, i: x * TABLE[i.k], lambda x, i: x * PARAMS["t"][i.k]),
    "broadcast": (
        lambda x, i: x + WIDE[i.q // 2, i.k],
        lambda x, i: x + float(PARAMS["w"][i.q // 2, 0]),
    ),
    "scalars": (
        lambda x, i: x * Scalar("f") + to_float(i.k % Scalar("n", "int")),
        lambda x, i: x * -0.25 + i.k % 3,
    ),
    "offset": (lambda x, i: x + to_float(i.pos("offset")), lambda x, i: x + i.q + 5),
}


@pytest.mark.parametrize("name", MEANING)
def test_value_is_what_python_says(name):
    function, plain = MEANING[name]
    node, found = values(function)
    for q, k in np.ndindex(3, 4):
        pair = SimpleNamespace(q=q, k=k)
        assert float(np.broadcast_to(found[node], X.shape)[0, q, k]) == pytest.approx(
            plain(X[0, q, k], pair), rel=1e-15, abs=1e-300
        )


def test_every_operation_has_a_meaning():
    from sdpakit.expr.nodes import BINARY as BINARY_OPS
    from sdpakit.expr.nodes import UNARY as UNARY_OPS

    assert set(UNARY) == set(UNARY_OPS) - {"to_float"}
    assert set(BINARY) == set(BINARY_OPS)


@pytest.mark.parametrize("name", [n for n in MEANING if n not in ("floor", "le")])
def test_gradient_is_that_of_differences(name):
    function, _ = MEANING[name]
    node, found = values(function)
    seed = np.random.default_rng(1).standard_normal(X.shape)
    gradients = backpropagate(node, found, seed)
    placeholder = next(n for n in gradients if getattr(n, "name", "") == "__logit")
    step = 2.0**-20
    ends = []
    for sign in (1.0, -1.0):
        moved, at = values(function, X + sign * step)
        ends.append(np.broadcast_to(at[moved], X.shape))
    expected = seed * (ends[0] - ends[1]) / (2 * step)
    # A difference is off by the third derivative times step^2, and by roundings over step.
    assert np.abs(gradients[placeholder] - expected).max() < 2.0**-26 * (1 + np.abs(expected).max())


def test_gradient_of_what_is_absent_is_exactly_zero():
    node, found = values(lambda x, i: sqrt(x) + log(x) / x)
    seed = np.where(X > 0.5, 1.0, 0.0)
    for gradient in backpropagate(node, found, seed).values():
        assert (gradient[X <= 0.5] == 0.0).all()
        assert np.isfinite(gradient).all()


@pytest.mark.parametrize(
    ("function", "match"),
    [
        (lambda x, i: x + TABLE[i.k + 1], "0 to 3"),
        (lambda x, i: x + TABLE[i.k - 1], "an index from -1"),
        (lambda x, i: x + Table("missing", "float32", 1)[i.k], "missing"),
        (lambda x, i: x + Table("t", "float64", 2)[i.q, i.k], "2 axes"),
        (lambda x, i: x * Scalar("absent"), "absent"),
    ],
)
def test_what_cannot_be_read_is_refused(function, match):
    with pytest.raises(ArgumentError, match=match):
        values(function)


def test_table_enters_in_the_dtype_of_the_logits():
    third = np.array([1.0 / 3.0])
    spec = AttentionSpec(q_heads=1, head_dim=1, logits=lambda x, i: x + TABLE[i.k])
    zeros = (np.zeros((1, 1, 1, 1), np.float32),) * 3
    found = reference.attention(spec, *zeros, params={"t": third})
    assert found["lse"].item() == float(np.float32(1.0 / 3.0)) != 1.0 / 3.0


def test_nodes_are_shared_not_repeated():
    node, found = values(lambda x, i: (x + 1.0) * (x + 1.0))
    assert isinstance(node, Binary)
    assert node.a is node.b
    assert len(found) == 4
    assert not any(isinstance(n, Unary) for n in found)
