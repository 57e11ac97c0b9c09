"""Derivatives of expressions, held against differences in float64."""

import numpy as np
import pytest

from sdpakit.expr.derivative import derivative, float_loads
from sdpakit.expr.evaluate import Environment, evaluate
from sdpakit.expr.nodes import Binary, Const, Dot, Index, Load, Scalar, Select, Unary

X = Dot()
T = Load("t", "float64", (Index("k"),))
TWO = Const(2.0)
POSITIVE = Binary("add", Binary("mul", X, X), Const(1.5))
VALUES = np.array([-2.7, -0.9, -0.2, 0.4, 1.1, 3.2])


def value(node, x=VALUES, t=None):
    tables = {"t": np.linspace(0.5, 2.0, len(VALUES)) if t is None else t}
    indices = {"k": np.arange(len(VALUES))}
    scalars = {"c": 3.0}
    found = evaluate(node, Environment("float64", indices, scalars, tables, x))
    return np.broadcast_to(found, VALUES.shape)


def slope_by_difference(node, wrt):
    step = 1e-6
    if wrt is X:
        high, low = value(node, VALUES + step), value(node, VALUES - step)
    else:
        t = np.linspace(0.5, 2.0, len(VALUES))
        high, low = value(node, t=t + step), value(node, t=t - step)
    return (high - low) / (2 * step)


EXPRESSIONS = {
    "neg": Unary("neg", Binary("mul", X, T)),
    "abs": Unary("abs", Binary("mul", X, T)),
    "exp": Unary("exp", Binary("mul", X, T)),
    "log": Unary("log", Binary("mul", POSITIVE, T)),
    "tanh": Unary("tanh", Binary("add", X, T)),
    "sqrt": Unary("sqrt", Binary("mul", POSITIVE, T)),
    "sub": Binary("sub", T, Binary("mul", X, X)),
    "div": Binary("div", Binary("mul", X, T), Binary("add", POSITIVE, T)),
    "min": Binary("min", X, T),
    "max": Binary("max", Binary("mul", X, X), T),
    "select": Select(Binary("lt", X, Const(0.0)), Binary("mul", X, T), Unary("exp", X)),
    "cap": Binary(
        "mul",
        Scalar("c", "float"),
        Unary("tanh", Binary("div", Binary("mul", TWO, X), Scalar("c", "float"))),
    ),
}


@pytest.mark.parametrize("leaf", [X, T], ids=["dot", "table"])
@pytest.mark.parametrize("name", EXPRESSIONS)
def test_derivative_is_the_limit_of_differences(name, leaf):
    root = EXPRESSIONS[name]
    found = derivative(root, leaf)
    exact = np.zeros(len(VALUES)) if found is None else value(found)
    np.testing.assert_allclose(exact, slope_by_difference(root, leaf), rtol=1e-7, atol=1e-9)


def test_what_does_not_depend_on_a_leaf_has_no_derivative():
    assert derivative(Unary("floor", X), X) is None
    assert derivative(Unary("to_float", Binary("lt", X, TWO)), X) is None
    assert derivative(T, X) is None
    other = Load("t", "float64", (Index("q"),))
    assert derivative(Binary("mul", T, TWO), other) is None


def test_a_slope_that_is_nan_on_the_side_not_taken_is_not_there():
    root = Select(Binary("lt", Const(0.0), X), Unary("sqrt", X), X)
    found = value(derivative(root, X))
    assert np.isfinite(found).all()
    np.testing.assert_array_equal(found[VALUES < 0], 1.0)


def test_a_derivative_spares_what_is_one_or_cancels():
    assert derivative(Binary("mul", Scalar("scale", "float"), X), X) is Scalar("scale", "float")
    assert derivative(Binary("add", X, T), T) is Const(1.0)
    nodes = repr(derivative(EXPRESSIONS["cap"], X))
    assert "/" in nodes  # inside tanh
    assert nodes.count("/") == 1, "the cap is divided out again"


def test_float_loads_are_named_once_and_integers_are_not():
    kind = Load("kind", "int32", (Index("k"),))
    picked = Load("t", "float64", (kind,))
    root = Binary("add", Binary("mul", T, T), picked)
    assert float_loads(root) == (T, picked)
