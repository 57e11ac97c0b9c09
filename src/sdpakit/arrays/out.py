"""What an array for a result (`out=`) must be: exact, writeable, and nobody else's memory."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from sdpakit.arrays.importing import import_array
from sdpakit.dtypes import dtype_name
from sdpakit.errors import ArgumentError, ArgumentTypeError, format_error

# Steps that the exact overlap test may take: plenty for strided views of one array, and a bounded
# time for any other.
MAX_WORK = 100_000


def check_out(where: str, value: Any, shape: tuple[int, ...], dtype: str) -> np.ndarray[Any, Any]:
    """Return a writeable view of an array that a result is to be written to.

    Parameters
    ----------
    where : str
        Name of the argument, for messages.
    value : object
        A NumPy array or a torch CPU tensor.
    shape, dtype : tuple of int, str
        Exactly what the result has: nothing is broadcast or converted.

    Returns
    -------
    ndarray
        View of the caller's memory.

    Raises
    ------
    ArgumentTypeError, ArgumentError
        If the value is not such an array, is read-only, or has elements that share memory.
    """
    if not isinstance(value, np.ndarray | getattr(sys.modules.get("torch"), "Tensor", np.ndarray)):
        raise ArgumentTypeError(
            format_error(
                where,
                got=type(value).__name__,
                allowed="a NumPy array or a torch CPU tensor, or a mapping from output to array",
                fix="leave out= away: the result then comes in the library of q",
            )
        )
    if (found := dtype_name(value.dtype)) != dtype or not getattr(value.dtype, "isnative", True):
        raise ArgumentTypeError(
            format_error(
                where,
                got=f"dtype {found}" if found != dtype else f"{found} in foreign byte order",
                allowed=f"dtype {dtype}",
                fix=f"{_allocate(value, shape, dtype)}: a converted copy would be filled in place "
                "of your array",
            )
        )
    view = import_array(where, value, (dtype,)).view
    if view.shape != shape:
        _refuse(
            where,
            f"shape {view.shape}",
            f"shape {shape}",
            _allocate(value, shape, dtype),
        )
    if not view.flags.writeable:
        _refuse(
            where,
            "a read-only array",
            "a writeable array",
            "allocate a new one, or set .flags.writeable",
        )
    if _overlaps_itself(view):
        _refuse(
            where,
            f"strides {view.strides} for shape {shape}: elements share memory",
            "an array whose elements lie apart",
            _allocate(value, shape, dtype),
        )
    return view


def _allocate(value: Any, shape: tuple[int, ...], dtype: str) -> str:
    if isinstance(value, np.ndarray):
        return f"allocate numpy.empty({shape}, '{dtype}')"
    return f"allocate torch.empty({shape}, dtype=torch.{dtype})"


def check_distinct(
    outputs: Mapping[str, np.ndarray[Any, Any]], inputs: Mapping[str, np.ndarray[Any, Any]]
) -> None:
    """Raise if an output shares memory with an input or with another output.

    Parameters
    ----------
    outputs : mapping of str to ndarray
        The caller's arrays for results, by name of the argument.
    inputs : mapping of str to ndarray
        Every array that the call reads.

    Raises
    ------
    ArgumentError
        If two share an element, or cannot be shown not to in bounded time.
    """
    others = dict(inputs)
    for where, out in outputs.items():
        for name, array in others.items():
            if _share(out, array):
                _refuse(
                    where,
                    f"memory that overlaps {name}",
                    "memory of its own: inputs are never written to",
                    f"allocate numpy.empty({out.shape}, '{out.dtype.name}'), or copy {name} first",
                )
        others[where] = out


def _share(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    if not np.may_share_memory(a, b):
        return False
    try:
        return np.shares_memory(a, b, max_work=MAX_WORK)  # type: ignore[arg-type]  # any int
    except np.exceptions.TooHardError:  # not decided in bounded time: refused, never guessed
        return True


def _overlaps_itself(view: np.ndarray[Any, Any]) -> bool:
    """Return True unless the axes nest: each stride steps over the extent of the smaller ones."""
    if view.size == 0:
        return False
    extent = view.itemsize
    for stride, size in sorted(
        (abs(s), n) for s, n in zip(view.strides, view.shape, strict=True) if n > 1
    ):
        if stride < extent:
            return True
        extent += (size - 1) * stride
    return False


def _refuse(where: str, got: str, allowed: str, fix: str) -> None:
    raise ArgumentError(format_error(where, got=got, allowed=allowed, fix=fix))
