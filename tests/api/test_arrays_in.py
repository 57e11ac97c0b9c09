"""Arrays in: which kinds are viewed, without a copy, and what is said of those that are not."""

from __future__ import annotations

import array
import ctypes
import gc
import os
import subprocess
import sys
import weakref

import ml_dtypes
import numpy as np
import pytest
from tests.api.refusals import refuses

from sdpakit import ArgumentTypeError
from sdpakit.arrays import import_array
from sdpakit.arrays.dlpack import device_name
from sdpakit.dtypes import DTYPES, FLOATS

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def address(view):
    return view.__array_interface__["data"][0]


class Producer:
    """A DLPack producer over a NumPy array, of a library that is not NumPy."""

    def __init__(self, values, *, device=(1, 0), modern=True):
        self.values, self.device, self.modern = values, device, modern

    def __dlpack__(self, **keywords):
        if self.modern:
            return self.values.__dlpack__(max_version=keywords["max_version"])
        if keywords:
            raise TypeError("no keywords")
        return self.values.__dlpack__()

    def __dlpack_device__(self):
        return self.device


class Interface:
    """An object that shows its memory through __array_interface__ alone."""

    def __init__(self, values):
        self.values = values
        self.__array_interface__ = values.__array_interface__


# ------------------------------------------------------------------ what is viewed


@pytest.mark.parametrize("name", DTYPES)
def test_numpy_arrays_of_every_storage_dtype_come_in_as_they_are(name):
    values = np.zeros((2, 3), BFLOAT16 if name == "bfloat16" else name)
    found = import_array("x", values, tuple(DTYPES))
    assert found.view is values
    assert found.dtype == name
    assert found.namespace is None


def test_subclasses_are_viewed_as_plain_arrays():
    class Named(np.ndarray):
        pass

    values = np.zeros(3, np.float32).view(Named)
    view = import_array("x", values, FLOATS).view
    assert type(view) is np.ndarray
    assert address(view) == address(values)


@pytest.mark.parametrize("modern", [True, False], ids=["versioned", "unversioned"])
@pytest.mark.parametrize("name", [name for name in DTYPES if name != "bfloat16"])
def test_dlpack_gives_the_same_memory_for_every_dtype(name, modern):
    values = np.arange(24).reshape(2, 3, 4).astype(name)[1:, ::-1, ::2]
    view = import_array("x", Producer(values, modern=modern), (name,)).view
    assert address(view) == address(values)
    assert view.strides[1:] == values.strides[1:]
    np.testing.assert_array_equal(view, values)


class Tensor(ctypes.Structure):
    """DLTensor of dlpack.h, written by hand: what no producer at hand emits can be tested too."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    )


class ByHand:
    """A producer whose capsule is written field by field."""

    def __init__(self, values, *, code, bits, lanes=1, offset=0, flags=None, major=1):
        self.values = values
        self.shape = (ctypes.c_int64 * values.ndim)(*values.shape)
        tensor = Tensor(
            data=values.ctypes.data - offset,
            ndim=values.ndim,
            code=code,
            bits=bits,
            lanes=lanes,
            shape=self.shape,
            strides=None,
            byte_offset=offset,
        )
        self.name, self.managed = b"dltensor", tensor
        if flags is not None:
            self.name = b"dltensor_versioned"
            self.managed = Versioned(major=major, flags=flags, tensor=tensor)

    def __dlpack__(self, **keywords):
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = (
            ctypes.py_object,
            [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p],
        )
        return new(ctypes.addressof(self.managed), self.name, None)

    def __dlpack_device__(self):
        return (1, 0)


@pytest.mark.parametrize("flags", [None, 0], ids=["unversioned", "versioned"])
def test_byte_offset_and_absent_strides_are_honoured(flags):
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    view = import_array("x", ByHand(values, code=2, bits=32, offset=64, flags=flags), FLOATS).view
    np.testing.assert_array_equal(view, values)
    assert address(view) == address(values)


def test_bfloat16_comes_from_a_capsule():
    values = np.arange(6).astype(BFLOAT16).reshape(2, 3)
    view = import_array("x", ByHand(values, code=4, bits=16, flags=0), ("bfloat16",)).view
    assert view.dtype == BFLOAT16
    np.testing.assert_array_equal(view, values)


def test_a_read_only_capsule_gives_a_read_only_view():
    values = np.zeros((2, 3), np.float32)
    assert import_array("x", ByHand(values, code=2, bits=32, flags=0), FLOATS).view.flags.writeable
    view = import_array("x", ByHand(values, code=2, bits=32, flags=1), FLOATS).view
    assert not view.flags.writeable


def test_an_empty_tensor_may_have_no_memory():
    producer = ByHand(np.zeros((0, 3), np.float32), code=2, bits=32)
    producer.managed.data = None
    assert import_array("x", producer, FLOATS).view.shape == (0, 3)


def test_the_view_keeps_its_producer_alive_and_no_longer():
    producer = Producer(np.arange(4, dtype=np.float32))
    gone = weakref.ref(producer)
    view = import_array("x", producer, FLOATS).view
    part = view[1:3]
    del producer, view
    gc.collect()
    assert gone() is not None
    np.testing.assert_array_equal(part, [1, 2])
    del part
    gc.collect()
    assert gone() is None


def test_array_interface_and_buffers_are_viewed():
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert address(import_array("x", Interface(values), FLOATS).view) == address(values)
    assert address(import_array("x", memoryview(values), FLOATS).view) == address(values)
    numbers = array.array("i", [1, 2, 3])
    view = import_array("x", numbers, ("int32",)).view
    assert address(view) == numbers.buffer_info()[0]


def test_importing_arrays_imports_no_library_of_tensors():
    code = (
        "import sys, numpy as np; from sdpakit.arrays import import_array;"
        "import_array('x', np.zeros(3), ('float64',));"
        "print(sorted({'torch', 'cupy', 'jax', 'numba', 'llvmlite'} & set(sys.modules)))"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert run.stdout.strip() == "[]"


# ------------------------------------------------------------------ what is refused


class Sparse:
    """Looks like a sparse matrix."""

    __module__ = "scipy.sparse._csr"


class OnlyArray:
    """Converts itself on demand, which may copy."""

    def __array__(self, dtype=None, copy=None):
        return np.zeros(3)


class Cuda:
    def __init__(self):
        self.__cuda_array_interface__ = {}


class Failing:
    """A producer whose library refuses."""

    def __dlpack__(self, **keywords):
        raise BufferError("not today")

    def __dlpack_device__(self):
        return (1, 0)


class NoCapsule(Failing):
    def __dlpack__(self, **keywords):
        return "no capsule"


FLOAT32 = np.zeros((2, 3), np.float32)
REFUSED = {
    "list": ([1.0], "list", "numpy.asarray(value, dtype=...)"),
    "none": (None, "NoneType", "give one of the allowed kinds"),
    "string": ("text", "str", "give one of the allowed kinds"),
    "number": (1.5, "float", "give one of the allowed kinds"),
    "masked": (np.ma.zeros(3), "a numpy.ma.MaskedArray", "`.filled(value)`"),
    "sparse": (Sparse(), "a sparse array", ".toarray()"),
    "converts": (OnlyArray(), "OnlyArray", "call numpy.asarray(value)"),
    "objects": (np.zeros(3, object), "dtype object", ".astype('float32')"),
    "structured": (np.zeros(3, "f4,f4"), "dtype void64", ".astype('float32')"),
    "complex": (
        np.zeros(3, complex),
        "dtype complex128",
        "take the real part yourself, a.real.astype",
    ),
    "integers": (np.zeros(3, int), "dtype int64", ".astype('float32')"),
    "long double": (np.zeros(3, np.longdouble), "dtype float128", ".astype('float32')"),
    "byte order": (
        np.zeros(3, np.dtype("f4").newbyteorder()),
        "float32 in foreign byte order",
        ".astype(a.dtype.newbyteorder('='))",
    ),
    "cuda": (Cuda(), "an array on device CUDA", "copy it to the CPU"),
    "dlpack device": (Producer(FLOAT32, device=(2, 1)), "device CUDA:1", "copy it to the CPU"),
    "unknown device": (Producer(FLOAT32, device=(99, 0)), "device type 99:0", "copy it to the CPU"),
    "refusing library": (Failing(), "does not export (not today)", "convert it"),
    "no capsule": (NoCapsule(), "no unconsumed DLPack capsule", "convert it"),
    "copied": (
        ByHand(FLOAT32, code=2, bits=32, flags=2),
        "a copy made by its library",
        "convert it",
    ),
    "future": (ByHand(FLOAT32, code=2, bits=32, flags=0, major=2), "DLPack version 2.0", "convert"),
    "lanes": (ByHand(FLOAT32, code=2, bits=32, lanes=4), "float32 in vectors of 4", "convert it"),
    "complex tensor": (ByHand(FLOAT32, code=5, bits=64), "dtype complex64", "convert it"),
    "float8": (ByHand(FLOAT32, code=10, bits=8), "type code 10 of 8 bits", "convert it"),
    "raw bytes": (b"abc", "dtype uint8", ".astype('float32')"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_viewed_is_refused_with_a_remedy(case):
    value, got, fix = REFUSED[case]
    with refuses(ArgumentTypeError, "x", got, fix):
        import_array("x", value, FLOATS)


def test_the_error_of_the_library_is_kept_as_the_cause():
    with pytest.raises(ArgumentTypeError) as caught:
        import_array("x", Failing(), FLOATS)
    assert isinstance(caught.value.__cause__, BufferError)


def test_a_struct_format_that_numpy_does_not_know_is_refused():
    class Pair(ctypes.Structure):
        _fields_ = (("a", ctypes.c_longdouble), ("b", ctypes.c_void_p))

    with refuses(ArgumentTypeError, "x", "", "numeric dtype"):
        import_array("x", (Pair * 2)(), FLOATS)


def test_device_names_follow_dlpack():
    assert device_name((2, 3)) == "CUDA:3"
    assert device_name((10, 0)) == "ROCm:0"


@pytest.mark.parametrize(
    ("name", "allowed", "elsewhere"),
    [
        ("int64", ("float32",), False),
        ("bool", ("float32",), False),
        ("complex64", ("float32",), False),
        ("float64", ("float32",), True),
        ("int64", ("int32",), True),
        ("float64", FLOATS[:1] + FLOATS[2:3], False),
    ],
)
def test_another_spec_is_a_remedy_only_where_one_takes_the_dtype(name, allowed, elsewhere):
    with pytest.raises(ArgumentTypeError) as caught:
        import_array("q", np.zeros(3, name), allowed)
    assert ("or name this dtype in the spec" in str(caught.value)) is elsewhere
