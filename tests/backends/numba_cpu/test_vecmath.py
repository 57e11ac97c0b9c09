"""Functions on vectors against NumPy in higher precision, for every ISA of the host."""

import math

import numpy as np
import pytest
from tests.backends.numba_cpu.kernels import elementwise

from sdpakit.backends.numba_cpu import vecmath
from sdpakit.backends.numba_cpu.isa import available_isas

ELEMENTS = ("float32", "float64")
SPECIAL = [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 1e30, -1e30, 0.5, -0.5, 1.5, -1.5]
SPECIAL += [2.5, -2.5, 8388607.5, -8388607.5, 4194303.5, 2.0**40, 1e-40, -1e-40, 88.9, -103.0]

FUNCTIONS = {
    "exp2_weight": lambda e, t: vecmath.exp2_weights(e, [t])[0],
    "exp2_integer": vecmath.exp2_integer,
    "exp": lambda e, x: e.exp(x),
    "log": lambda e, x: e.log(x),
    "tanh": lambda e, x: e.tanh(x),
    "floor": lambda e, x: e.floor(x),
    "ceil": lambda e, x: e.ceil(x),
    "min1": lambda e, x: e.min(x, e.const(1.0)),
    "max1": lambda e, x: e.max(e.const(1.0), x),
    "max_seen": lambda e, x: e.max_seen(x, e.const(1.0)),
}
# Function, reference, range of the samples, units in the last place that its error may have.
ACCURACY = [
    ("exp2_weight", np.exp2, (-120, 0), 2),
    ("exp", np.exp, (-87, 88), 2),
    ("log", np.log, (1e-30, 1e30), 3),
    ("log", np.log, (0.9, 1.1), 3),
    ("tanh", np.tanh, (-12, 12), 3),
    ("tanh", np.tanh, (-1e-3, 1e-3), 3),
    ("floor", np.floor, (-1e6, 1e6), 0),
    ("ceil", np.ceil, (-1e6, 1e6), 0),
]


@pytest.fixture(
    scope="module", params=[(i, x) for i in available_isas() for x in ELEMENTS], ids=str
)
def call(request):
    isa, element = request.param
    return element, elementwise(isa, element, **FUNCTIONS)


@pytest.mark.parametrize(("name", "reference", "span", "ulps"), ACCURACY)
def test_error_in_units_of_the_last_place(call, name, reference, span, ulps):
    element, function = call
    rng = np.random.default_rng(0)
    low, high = span
    if low > 0:
        x = np.exp(rng.uniform(np.log(low), np.log(high), 20_000))
    else:
        x = rng.uniform(low, high, 20_000)
    x = x.astype(element)
    want = reference(x.astype(np.longdouble))
    got = function(name, x).astype(np.longdouble)
    error = abs(got - want) / np.spacing(abs(want).astype(element)).astype(np.longdouble)
    assert error.max() <= ulps + 0.5


@pytest.mark.parametrize("name", ["exp", "log", "tanh", "floor", "ceil"])
def test_special_values_are_those_of_ieee(call, name):
    element, function = call
    x = np.asarray(SPECIAL, element)
    with np.errstate(all="ignore"):
        want = getattr(np, name)(x.astype(np.longdouble)).astype(element)
        got = function(name, x)
        near = abs(got - want) <= 3 * np.spacing(abs(want))
    assert np.array_equal(np.isnan(got), np.isnan(want))
    assert (near | (got == want) | np.isnan(want)).all(), list(zip(x, got, want, strict=True))


def test_weights_are_zero_below_the_normal_numbers_and_keep_nan(call):
    element, function = call
    lowest = math.log2(np.finfo(element).tiny)
    below = [np.nextafter(np.asarray(lowest, element), -np.inf), lowest - 0.5, lowest - 1, -1e6]
    got = function("exp2_weight", [*below, -math.inf, -1e30])
    assert (got == 0).all()
    assert not np.signbit(got).any()
    assert function("exp2_weight", [lowest])[0] == np.finfo(element).tiny
    assert function("exp2_weight", [0.0])[0] == 1
    assert np.isnan(function("exp2_weight", [math.nan, -math.nan])).all()


def test_whole_powers_of_two_are_exact(call):
    element, function = call
    lowest = int(math.log2(np.finfo(element).tiny))
    n = np.arange(lowest - 3, 1).astype(element)
    want = np.where(n < lowest, 0, np.exp2(n.astype(np.float64)))
    assert np.array_equal(function("exp2_integer", n), want.astype(element))
    assert np.array_equal(function("exp2_integer", [-math.inf, -1e30]), [0, 0])
    assert np.isnan(function("exp2_integer", [math.nan])).all()


def test_minimum_and_maximum_of_an_expression_pass_nan_on_and_the_running_one_does_not(call):
    _, function = call
    x = [0.0, 2.0, math.nan, -math.inf, math.inf]
    assert np.array_equal(function("min1", x), [0, 1, math.nan, -math.inf, 1], equal_nan=True)
    assert np.array_equal(function("max1", x), [1, 2, math.nan, 1, math.inf], equal_nan=True)
    assert np.array_equal(function("max_seen", x), [1, 2, 1, 1, math.inf])
