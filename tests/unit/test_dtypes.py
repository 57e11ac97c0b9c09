"""Facts of dtypes, and their names out of whatever a caller has."""

import ml_dtypes
import numpy as np
import pytest

from sdpakit.dtypes import ACCUM_DTYPE, DTYPES, FLOATS, dtype_name, float_dtype
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
