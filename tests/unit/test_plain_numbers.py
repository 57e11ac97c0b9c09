"""Numbers out of whatever a caller has."""

import math
from decimal import Decimal
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from sdpakit.errors import SpecError
from sdpakit.plain_numbers import plain_number, whole_number


@pytest.mark.parametrize(
    ("given", "number"),
    [
        (3, 3),
        (np.int8(3), 3),
        (np.uint64(2**63), 2**63),
        (0.75, 0.75),
        (np.float16(0.5), 0.5),
        (np.longdouble(0.5), 0.5),
        (ml_dtypes.bfloat16(0.25), 0.25),
        (Fraction(1, 2), 0.5),
        (Fraction(-(10**400)), -math.inf),
        (True, True),
        (np.bool_(False), False),
    ],
    ids=repr,
)
def test_plain_number_gives_python_numbers(given, number):
    found = plain_number(given)
    assert found == number
    assert type(found) is type(number)


@pytest.mark.parametrize(
    "given",
    ["3", None, 1j, np.complex64(1), np.array(3), np.ones(2), [1], Decimal(1), np.str_("a")],
    ids=repr,
)
def test_plain_number_takes_nothing_else(given):
    assert plain_number(given) is None


@pytest.mark.parametrize("given", [0, True, 2.0, "2", np.array(2), None, -1])
def test_whole_number_names_the_field(given):
    with pytest.raises(
        SpecError, match=r"width: got .*\n  allowed: an integer >= 1\n  remedy: .*x"
    ):
        whole_number("width", given, least=1, fix="x")


@pytest.mark.parametrize(
    ("given", "remedy"),
    [(0, "use 1 or more"), (3.5, "give a whole number, not a float, .*; use 1")],
)
def test_the_remedy_is_that_of_the_mistake(given, remedy):
    with pytest.raises(SpecError, match=rf"\n  remedy: {remedy}"):
        whole_number("width", given, least=1, fix="use 1 or more")
