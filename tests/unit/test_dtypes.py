"""Numbers and dtypes out of whatever a caller has."""

import math
from decimal import Decimal
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from sdpakit.dtypes import (
    ACCUM_DTYPE,
    DTYPES,
    FLOATS,
    dtype_name,
    float_dtype,
    plain_number,
    whole_number,
)
from sdpakit.errors import SpecError


@pytest.mark.parametrize("name", FLOATS)
def test_facts_of_floats_are_those_of_the_library(name):
    facts = ml_dtypes.finfo(name)
    assert DTYPES[name].unit_roundoff == float(facts.eps) / 2
    assert DTYPES[name].max == float(facts.max)
    assert DTYPES[name].itemsize * 8 == facts.bits


@pytest.mark.parametrize("name", [n for n, d in DTYPES.items() if d.kind == "int"])
def test_facts_of_integers_are_those_of_numpy(name):
    assert DTYPES[name].max == float(np.iinfo(name).max)
    assert DTYPES[name].itemsize == np.dtype(name).itemsize


def test_accumulation_is_never_narrower_than_float32():
    assert {ACCUM_DTYPE[name] for name in FLOATS} == {"float32", "float64"}
    assert ACCUM_DTYPE["float64"] == "float64"


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("float16", "float16"),
        (np.float32, "float32"),
        (np.dtype("float64"), "float64"),
        (ml_dtypes.bfloat16, "bfloat16"),
        (np.dtype(ml_dtypes.bfloat16), "bfloat16"),
        (np.bool_, "bool"),
        (bool, "bool"),
        (float, "float64"),
        (int, "int64"),
        ("torch.bfloat16", "bfloat16"),
        ("half", "float16"),
    ],
    ids=repr,
)
def test_dtype_is_known_by_name(given, name):
    assert dtype_name(given) == name


@pytest.mark.parametrize("given", ["int8", "complex64", None, 3, np.int32])
def test_a_dtype_that_is_no_float_is_refused(given):
    with pytest.raises(SpecError, match=r"dtype: got .*\n  allowed: float16 \| bfloat16"):
        float_dtype("dtype", given)


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
    with pytest.raises(SpecError, match=r"width: got .*\n  allowed: an integer >= 1\n  remedy: x"):
        whole_number("width", given, least=1, fix="x")
