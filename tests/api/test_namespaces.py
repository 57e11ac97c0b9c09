"""Results go back to the library of q: any that speaks the array API and DLPack."""

from __future__ import annotations

import types

import ml_dtypes
import numpy as np
import pytest
from tests.api.refusals import refuses

import sdpakit as sk
from sdpakit import ArgumentTypeError
from sdpakit.arrays.dlpack import view_of


class Foreign:
    """An array of a library that knows DLPack and little else."""

    def __init__(self, values):
        self.values = values

    def __dlpack__(self, **keywords):
        return self.values.__dlpack__(max_version=keywords["max_version"])

    def __dlpack_device__(self):
        return (1, 0)

    def __array_namespace__(self):
        return namespace


def from_dlpack(producer):
    """Take any producer, bfloat16 included."""
    found = Foreign(view_of(producer))
    found.exporter = producer
    return found


namespace = types.SimpleNamespace(from_dlpack=from_dlpack, __name__="foreign")
SPEC = sk.AttentionSpec(q_heads=1, head_dim=4)


def arrays(dtype=np.float32):
    x = np.arange(24, dtype=np.float32).reshape(2, 1, 3, 4).astype(dtype)
    return x, x[::-1], x[:, :, ::-1]


def test_results_go_back_through_dlpack():
    q, k, v = arrays()
    kernel = sk.compile(SPEC, backend="interp")
    found = kernel(Foreign(q), Foreign(k), Foreign(v))
    assert isinstance(found, Foreign)
    np.testing.assert_array_equal(found.values, kernel(q, k, v))


def test_a_bfloat16_result_is_exported_as_bfloat16():
    q, k, v = arrays()
    spec = sk.AttentionSpec(q_heads=1, head_dim=4, out_dtype="bfloat16")
    kernel = sk.compile(spec, backend="interp")
    found = kernel(Foreign(q), k, v)
    assert found.values.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(found.values, kernel(q, k, v))
    assert found.exporter.__dlpack_device__() == (1, 0)


def test_a_library_without_from_dlpack_gets_numpy_arrays():
    class Silent(Foreign):
        def __array_namespace__(self):
            return types.SimpleNamespace()

    class Mute(Foreign):
        __array_namespace__ = None

    q, k, v = arrays()
    kernel = sk.compile(SPEC, backend="interp")
    assert type(kernel(Silent(q), k, v)) is np.ndarray
    assert type(kernel(memoryview(q), k, v)) is np.ndarray


def test_a_library_that_refuses_a_result_is_named():
    class Picky(Foreign):
        def __array_namespace__(self):
            def refuse(producer):
                raise BufferError("no room")

            return types.SimpleNamespace(from_dlpack=refuse, __name__="picky")

    q, k, v = arrays()
    got = "an array of float32 that picky.from_dlpack refuses (no room)"
    with refuses(ArgumentTypeError, "result", got, "give q as a NumPy view"):
        sk.compile(SPEC, backend="interp")(Picky(q), k, v)


@pytest.mark.parametrize("where", ["k", "v"])
def test_the_library_of_other_operands_does_not_matter(where):
    operands = dict(zip("qkv", arrays(), strict=True))
    kernel = sk.compile(SPEC, backend="interp")
    expected = kernel(**operands)
    operands[where] = Foreign(operands[where])
    found = kernel(**operands)
    assert type(found) is np.ndarray
    np.testing.assert_array_equal(found, expected)
