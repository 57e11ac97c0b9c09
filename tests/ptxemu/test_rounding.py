import numpy as np
import pytest
from tests.ptxemu import exact

from sdpakit.ptxemu import rounding

DIRECTIONS = ("rn", "rz", "rm", "rp")
OPERATIONS = {
    "sum": (rounding.exact_sum, exact.add, 2),
    "product": (rounding.exact_product, exact.multiply, 2),
    "quotient": (rounding.exact_quotient, exact.divide, 2),
    "root": (rounding.exact_root, exact.root, 1),
    "fma": (rounding.exact_fma, exact.fma, 3),
}


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", OPERATIONS)
def test_one_rounding_of_f64(name, direction):
    function, oracle, count = OPERATIONS[name]
    values = exact.operands(exact.F64, np.float64, count)
    with np.errstate(all="ignore"):
        found = rounding.round_to(function(*values), np.dtype("f8"), direction)
        if name in ("sum", "fma") and direction == "rm":
            parts = (values[0] * values[1], values[2]) if name == "fma" else values
            found = rounding.signed_zeros(found, function(*values), *parts)
    expected = [oracle(*map(float, row), exact.F64, direction) for row in zip(*values, strict=True)]
    wrong = ~exact.same(found, expected)
    assert not wrong.any(), [(v[wrong][:3].tolist()) for v in (*values, found)]


def test_odd_values_decide_narrow_ties():
    one, tiny = np.array([1.0, 1.0, -1.0]), np.array([2.0**-60, -(2.0**-60), 2.0**-60])
    tie = one * (1 + 2.0**-24)
    with np.errstate(all="ignore"):
        found = rounding.round_to(rounding.exact_sum(tie, tiny), np.dtype("f4"), "rn")
    assert found.tolist() == [1 + 2.0**-23, 1.0, -1.0]


def test_error_of_overflow_points_back():
    with np.errstate(all="ignore"):
        nearest, error = rounding.exact_product(np.array([1e300, -1e300]), np.array([1e300, 1e300]))
    assert np.isinf(nearest).all()
    assert (np.sign(error) == -np.sign(nearest)).all()
