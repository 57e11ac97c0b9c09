"""Seeded operands: random values, guard cells around them, and memory that is hard to read."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, cast

import numpy as np

from sdpakit.conformance.model import Shape
from sdpakit.dtypes import DTYPES

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

GUARD = 64  # cells before and behind an operand


def np_dtype(name: str) -> np.dtype[Any]:
    """Return the NumPy dtype of a name, bfloat16 included."""
    if name == "bfloat16":
        import ml_dtypes

        return cast("np.dtype[Any]", np.dtype(ml_dtypes.bfloat16))
    return np.dtype(name)


def guarded(values: Array) -> Array:
    """Return a C-contiguous copy in the middle of memory that must not be read.

    Parameters
    ----------
    values : array
        Any values.

    Returns
    -------
    array
        Cells around a float array hold NaN, around a bool array True, around integers the largest
        integer: whoever reads them gets another result (MASK-3, SHAPE-5).
    """
    kind = DTYPES[values.dtype.name].kind
    fill = {"float": np.nan, "bool": True}.get(kind)
    if fill is None:
        fill = np.iinfo(values.dtype).max
    buffer = np.full(values.size + 2 * GUARD, fill, dtype=values.dtype)
    inside = buffer[GUARD : GUARD + values.size].reshape(values.shape)
    inside[...] = values
    return inside


class Draw:
    """Random operands of one case.

    Parameters
    ----------
    shape : Shape
        Sizes of q, k, v.
    dtype : str
        Dtype of q, k, v.
    seed : int
        The same seed gives the same operands.
    """

    def __init__(self, shape: Shape, dtype: str, seed: int) -> None:
        self.shape = shape
        self.dtype = dtype
        self.rng = np.random.default_rng(seed)

    def array(self, values: Any, dtype: str | None = None) -> Array:
        """Return values as a guarded array, by default in the dtype of q."""
        with np.errstate(over="ignore"):
            return guarded(np.asarray(values).astype(np_dtype(dtype or self.dtype)))

    def normal(
        self, *dims: int, spread: float = 1.0, mean: float = 0.0, dtype: str | None = None
    ) -> Array:
        """Return normal deviates as a guarded array."""
        return self.array(self.rng.standard_normal(dims) * spread + mean, dtype)

    def bools(self, *dims: int, share: float = 0.6) -> Array:
        """Return a guarded bool array in which about `share` is True."""
        return guarded(self.rng.random(dims) < share)

    def ints(self, low: int, high: int, *dims: int, dtype: str = "int32") -> Array:
        """Return integers of [low, high) as a guarded array."""
        return guarded(self.rng.integers(low, high, dims).astype(dtype))

    def q(self, spread: float = 1.0, mean: float = 0.0) -> Array:
        """Return q (B, Hq, Lq, D)."""
        s = self.shape
        return self.normal(s.batch, s.q_heads, s.q_len, s.head_dim, spread=spread, mean=mean)

    def k(self, spread: float = 1.0, mean: float = 0.0) -> Array:
        """Return k (B, Hkv, Lk, D)."""
        s = self.shape
        return self.normal(s.batch, s.kv, s.kv_len, s.head_dim, spread=spread, mean=mean)

    def v(self, spread: float = 1.0, mean: float = 0.0) -> Array:
        """Return v (B, Hkv, Lk, Dv)."""
        s = self.shape
        return self.normal(s.batch, s.kv, s.kv_len, s.width, spread=spread, mean=mean)

    def qkv(self, spread: float = 1.0) -> dict[str, Array]:
        """Return q, k, v; the first two with a spread."""
        return {"q": self.q(spread), "k": self.k(spread), "v": self.v()}

    def dout(self) -> Array:
        """Return a gradient in the shape of out."""
        s = self.shape
        return self.normal(s.batch, s.q_heads, s.q_len, s.width)

    def flat(self, spread: float = 1.0) -> dict[str, Array]:
        """Return q = 0, random k, and v with the index of the key and a 1.

        All logits are equal, so `out` tells the mean index of the attended keys and the sum of
        their weights.
        """
        s = self.shape
        v = np.zeros((s.batch, s.kv, s.kv_len, s.width))
        v[..., 0] = np.arange(s.kv_len)
        v[..., 1] = 1.0
        q = np.zeros((s.batch, s.q_heads, s.q_len, s.head_dim))
        return {"q": self.array(q), "k": self.k(spread), "v": self.array(v)}


def mean_indices(rows: list[list[int]], shape: Shape) -> dict[str, Array]:
    """Return what `flat` operands give when row i attends exactly to the keys rows[i].

    Parameters
    ----------
    rows : list of list of int
        Attended keys of each row, the same in every batch entry and head.
    shape : Shape
        Sizes of the call.

    Returns
    -------
    dict of str to array
        "out" and "lse", (B, Hq, Lq, Dv) and (B, Hq, Lq).
    """
    batch, q_heads, q_len, _ = shape.pairs
    out = np.zeros((batch, q_heads, q_len, shape.width))
    lse = np.full((batch, q_heads, q_len), -np.inf)
    for i, keys in enumerate(rows):
        if keys:
            out[:, :, i, 0] = np.mean(keys)
            out[:, :, i, 1] = 1.0
            lse[:, :, i] = np.log(len(keys))
    return {"out": out, "lse": lse}


def to_layout(operands: Mapping[str, Any], layout: str) -> dict[str, Any]:
    """Bring q, k, v and dout from the order b, h, length, width to a layout.

    Parameters
    ----------
    operands : mapping
        Arguments of a call.
    layout : {"bhsd", "bshd", "thd"}
        Layout of the spec.

    Returns
    -------
    dict
        In `bshd`, k stays a view with the strides of `bhsd` and the others are contiguous. In `thd`
        the only batch entry of q, k, v and dout is taken for the tokens of all entries. Arrays of
        another rank are left as they are.
    """
    found = dict(operands)
    if layout == "thd":
        for name in found.keys() & {"q", "k", "v", "dout"}:
            if found[name].ndim == 4 and len(found[name]) == 1:
                found[name] = guarded(found[name][0].swapaxes(0, 1))
    if layout == "bshd":
        for name in found.keys() & {"q", "k", "v", "dout"}:
            swapped = found[name].swapaxes(1, 2)
            found[name] = swapped if name == "k" else guarded(swapped)
    return found


def with_strides(array: Array, *, order: str) -> Array:
    """Return an array of the same values whose memory lies otherwise.

    Parameters
    ----------
    array : array
        (B, H, L, width).
    order : str
        "bshd" (lengths before heads), "fortran", "reversed" (negative strides on the last two
        axes), "sliced" (rows wider than the width, NaN between), "channels_first" (last axis not
        contiguous), "every_other" (stride 2 along lengths, NaN between), "unaligned" (each element
        one byte off) or "read_only".

    Returns
    -------
    array
        A view.
    """
    makers: dict[str, Callable[[Array], Array]] = {
        "bshd": lambda x: np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2),
        "fortran": np.asfortranarray,
        "reversed": lambda x: np.ascontiguousarray(x[:, :, ::-1, ::-1])[:, :, ::-1, ::-1],
        "channels_first": lambda x: np.ascontiguousarray(x.swapaxes(2, 3)).swapaxes(2, 3),
        "sliced": _sliced,
        "every_other": _every_other,
        "unaligned": _unaligned,
        "read_only": _read_only,
    }
    return makers[order](array)


def _sliced(array: Array) -> Array:
    wide = np.full((*array.shape[:-1], array.shape[-1] + 5), np.nan, dtype=array.dtype)
    inside = wide[..., 3 : 3 + array.shape[-1]]
    inside[...] = array
    return inside


def _every_other(array: Array) -> Array:
    batch, heads, length, width = array.shape
    long = np.full((batch, heads, 2 * length, width), np.nan, dtype=array.dtype)
    inside = long[:, :, ::2]
    inside[...] = array
    return inside


def _unaligned(array: Array) -> Array:
    memory = np.zeros(array.nbytes + 1, dtype=np.uint8)
    inside = memory[1:].view(array.dtype).reshape(array.shape)
    inside[...] = array
    return inside


def _read_only(array: Array) -> Array:
    frozen = array.copy()
    frozen.flags.writeable = False
    return frozen


def repeated(array: Array, axis: int, count: int) -> Array:
    """Return the first slice along an axis `count` times, with stride 0."""
    first = np.take(array, [0], axis=axis)
    shape = list(array.shape)
    shape[axis] = count
    return np.broadcast_to(first, shape)


def far_rows(array: Array, row_elements: int) -> Array:
    """Return (B, H, L, width) with `row_elements` elements from one row to the next.

    Parameters
    ----------
    array : array
        Values; batch and head axes of size 1.
    row_elements : int
        Distance of two rows; memory between them is mapped and never touched.

    Returns
    -------
    array
        A view of anonymous memory.
    """
    _, _, length, width = array.shape
    size = array.dtype.itemsize
    memory = mmap.mmap(
        -1,
        ((length - 1) * row_elements + width) * size,
        flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0),
    )
    base = np.frombuffer(memory, dtype=array.dtype)
    view = np.lib.stride_tricks.as_strided(
        base, array.shape, (0, 0, row_elements * size, size), writeable=True
    )
    view[...] = array
    return view


def at_page_border(array: Array, end: str) -> Array:
    """Return a C-contiguous copy between two pages that may not be touched, at one of them.

    Parameters
    ----------
    array : array
        Values.
    end : {"low", "high"}
        Which end of the memory touches its page; the other is up to a page away, behind NaN.

    Returns
    -------
    array
        A view of anonymous memory; to read or write the pages beside it ends the process.
    """
    size, page = array.nbytes, mmap.PAGESIZE
    inside = -(-max(size, 1) // page) * page
    memory = mmap.mmap(-1, inside + 2 * page)
    for first in (0, page + inside):
        _protect(memory, first, page)
    cells = np.frombuffer(memory, np.uint8, inside, page)
    cells[...] = 0xFF  # NaN in every float dtype
    start = 0 if end == "low" else inside - size
    values = cells[start : start + size].view(array.dtype).reshape(array.shape)
    values[...] = array
    return values


def _protect(memory: mmap.mmap, first: int, size: int) -> None:
    """Forbid every access to a range of memory."""
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory, first))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(size), 0):
        raise OSError(ctypes.get_errno(), "mprotect")
