"""DLPack read through `ctypes`: views of CPU tensors of any library, bfloat16 included.

NumPy's own `from_dlpack` refuses bfloat16 and hides the flags of the versioned protocol, so the
capsule is read here, after the C structs of dlpack.h (version 1.0; the unversioned struct of 0.x
too). A capsule is not consumed: the view keeps it and its producer alive, and the capsule's own
destructor gives the memory back.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any, Protocol, cast

import numpy as np

from sdpakit.arrays.storage import numpy_dtype

CPU = 1
# DLDeviceType of dlpack.h.
DEVICE_NAMES: dict[int, str] = {
    1: "CPU",
    2: "CUDA",
    3: "CUDA host (pinned)",
    4: "OpenCL",
    7: "Vulkan",
    8: "Metal",
    10: "ROCm",
    11: "ROCm host (pinned)",
    13: "CUDA managed",
    14: "oneAPI",
    15: "WebGPU",
}
_BFLOAT = 4
# DLDataTypeCode and bits -> storage dtype.
_DTYPES: dict[tuple[int, int], str] = {
    (_BFLOAT, 16): "bfloat16",
    (6, 8): "bool",
    **{(0, bits): f"int{bits}" for bits in (8, 16, 32, 64)},
    **{(1, bits): f"uint{bits}" for bits in (8, 16, 32, 64)},
    **{(2, bits): f"float{bits}" for bits in (16, 32, 64)},
}
_CODE_NAMES = {
    0: "int",
    1: "uint",
    2: "float",
    3: "handle",
    _BFLOAT: "bfloat",
    5: "complex",
    6: "bool",
}
_READ_ONLY, _COPIED = 1, 2


class DlpackError(Exception):
    """A capsule holds something that cannot be viewed; the text says what."""


class Producer(Protocol):
    """An object of the DLPack protocol."""

    def __dlpack__(self, **kwargs: object) -> object: ...

    def __dlpack_device__(self) -> tuple[int, int]: ...


class _Device(ctypes.Structure):
    _fields_ = (("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32))


class _DataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


# Prototypes of our own: setting restype on the shared `pythonapi` functions would change them for
# other libraries.
_capsule_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_capsule_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


class _Memory:
    """Owner of a view: what NumPy needs to see the memory, and what keeps it alive."""

    __slots__ = ("__array_interface__", "_alive")

    def __init__(self, interface: dict[str, Any], alive: tuple[object, ...]) -> None:
        self.__array_interface__ = interface
        self._alive = alive


def device_name(device: tuple[int, int]) -> str:
    """Return the text of a DLPack device, such as ``CUDA:0``."""
    kind, index = int(device[0]), int(device[1])
    return f"{DEVICE_NAMES.get(kind, f'device type {kind}')}:{index}"


def view_of(producer: Producer) -> np.ndarray[Any, Any]:
    """Return a NumPy view of the memory of a CPU tensor, without a copy.

    Parameters
    ----------
    producer : object
        Has `__dlpack__`; the caller has made sure that its device is the CPU.

    Returns
    -------
    ndarray
        Any strides; read-only where the producer says so; bfloat16 as `ml_dtypes.bfloat16`.

    Raises
    ------
    DlpackError
        If the capsule is of an unknown version, was already consumed, is a copy, or holds another
        dtype.
    """
    capsule = _export(producer)
    tensor, flags = _read(capsule)
    if flags & _COPIED:
        raise DlpackError("a copy made by its library instead of its own memory")
    dtype = _storage_of(tensor.dtype)
    return _as_numpy(tensor, dtype, read_only=bool(flags & _READ_ONLY), alive=(capsule, producer))


def mark_bfloat16(capsule: object) -> None:
    """Change the dtype of a 16-bit capsule to bfloat16, which NumPy cannot export by itself."""
    tensor, _ = _read(capsule)
    tensor.dtype.code = _BFLOAT


def _export(producer: Producer) -> object:
    try:
        return producer.__dlpack__(max_version=(1, 0), copy=False)
    except TypeError:
        # A producer of DLPack 0.x, which takes no keywords; the standard prescribes this retry.
        return producer.__dlpack__()


def _read(capsule: object) -> tuple[_Tensor, int]:
    if _capsule_is_valid(capsule, b"dltensor_versioned"):
        address = _capsule_pointer(capsule, b"dltensor_versioned")
        head = ctypes.cast(address, ctypes.POINTER(_Versioned)).contents
        if head.major != 1:  # the layout of the rest is known for major version 1 alone
            raise DlpackError(f"a capsule of DLPack version {head.major}.{head.minor}")
        return head.tensor, int(head.flags)
    if _capsule_is_valid(capsule, b"dltensor"):
        address = _capsule_pointer(capsule, b"dltensor")
        return ctypes.cast(address, ctypes.POINTER(_Tensor)).contents, 0
    raise DlpackError("an object from __dlpack__ that is no unconsumed DLPack capsule")


def _storage_of(dtype: _DataType) -> str:
    name = _DTYPES.get((dtype.code, dtype.bits)) if dtype.lanes == 1 else None
    if name is None:
        known = _CODE_NAMES.get(dtype.code)
        text = f"{known}{dtype.bits}" if known else f"type code {dtype.code} of {dtype.bits} bits"
        vectors = f" in vectors of {dtype.lanes}" if dtype.lanes != 1 else ""
        raise DlpackError(f"dtype {text}{vectors}")
    return name


def _as_numpy(
    tensor: _Tensor, dtype: str, *, read_only: bool, alive: tuple[object, ...]
) -> np.ndarray[Any, Any]:
    shape = tuple(tensor.shape[: tensor.ndim])
    storage = numpy_dtype(dtype)
    if math.prod(shape) == 0:  # its data pointer may be NULL
        return np.empty(shape, storage)
    strides = (
        tuple(s * storage.itemsize for s in tensor.strides[: tensor.ndim])
        if tensor.strides
        else None
    )
    # __array_interface__ knows no bfloat16: seen as uint16 first.
    typestr = numpy_dtype("uint16").str if dtype == "bfloat16" else storage.str
    interface = {
        "version": 3,
        "shape": shape,
        "strides": strides,
        "typestr": typestr,
        "data": (tensor.data + tensor.byte_offset, read_only),
    }
    view = np.asarray(cast(Any, _Memory(interface, alive)))
    return view.view(storage) if dtype == "bfloat16" else view
