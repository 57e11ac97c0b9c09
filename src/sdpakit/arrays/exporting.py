"""Results: new arrays, and the way back into the library of the caller."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sdpakit.arrays import dlpack
from sdpakit.arrays.storage import numpy_dtype
from sdpakit.errors import ArgumentTypeError, format_error

_HUGE_PAGE = 2 * 1024 * 1024  # NumPy asks for huge pages from twice this size on
_LARGE = _HUGE_PAGE // 2


class _Bfloat16Producer:
    """A bfloat16 array that DLPack consumers take: exported as uint16, then marked."""

    __slots__ = ("_bits",)

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self._bits = array.view(np.uint16)

    def __dlpack__(self, **kwargs: Any) -> object:
        capsule = self._bits.__dlpack__(**kwargs)
        dlpack.mark_bfloat16(capsule)
        return capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._bits.__dlpack_device__()


def new_array(shape: tuple[int, ...], dtype: str) -> np.ndarray[Any, Any]:
    """Return an array for a result, contents undefined."""
    return np.empty(shape, numpy_dtype(dtype))


def new_zeros(shape: tuple[int, ...], dtype: str) -> np.ndarray[Any, Any]:
    """Return an array of zeros for a result.

    A large one starts at a boundary of huge pages, in memory that NumPy asks Linux to back with
    them: new pages of 4 KiB cost several times what is written to them. What lies before and
    behind it is never touched, and so takes no memory.
    """
    kind = numpy_dtype(dtype)
    size = math.prod(shape) * kind.itemsize
    if size < _LARGE:
        return np.zeros(shape, kind)
    memory = np.empty(max(size + _HUGE_PAGE, 2 * _HUGE_PAGE), np.uint8)
    start = -memory.ctypes.data % _HUGE_PAGE
    array = memory[start : start + size].view(kind).reshape(shape)
    array.fill(0)
    return array


def export(array: np.ndarray[Any, Any], namespace: Any | None) -> Any:
    """Return `array` as an array of a library, without a copy.

    Parameters
    ----------
    array : ndarray
        A result; bfloat16 as `ml_dtypes.bfloat16`.
    namespace : object or None
        Module with `from_dlpack`; None is NumPy.

    Returns
    -------
    object
        `array` itself for NumPy, else an array of the namespace over the same memory.

    Raises
    ------
    ArgumentTypeError
        If the library does not take the array.
    """
    if namespace is None:
        return array
    producer = _Bfloat16Producer(array) if array.dtype == numpy_dtype("bfloat16") else array
    try:
        return namespace.from_dlpack(producer)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        name = getattr(namespace, "__name__", str(namespace))
        raise ArgumentTypeError(
            format_error(
                "result",
                got=f"an array of {array.dtype.name} that {name}.from_dlpack refuses ({error})",
                allowed="a dtype that the library of q takes through DLPack",
                fix="give q as a NumPy view and convert the result yourself",
            )
        ) from error
