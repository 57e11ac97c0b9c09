"""Bytes at the offsets of many lanes, moved and compared as words.

One access of a lane is 1, 2, 4, 8 or 16 bytes at a multiple of its width, so an array of bytes seen
as words of that width has the access as one element. That makes an access of thousands of lanes one
NumPy operation, and a check of the states of all its bytes another.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sdpakit.ptxemu.scalars import Array

Offsets = NDArray[np.int64]
Bad = NDArray[np.bool_]

# complex128 stands for 16 bytes, which NumPy copies as they are.
_WORDS: dict[int, np.dtype[Any]] = {
    1: np.dtype(np.uint8),
    2: np.dtype(np.uint16),
    4: np.dtype(np.uint32),
    8: np.dtype(np.uint64),
    16: np.dtype(np.complex128),
}
_REPEATED = 0x0101_0101_0101_0101


def merged(values: Offsets) -> int:
    """Return the bitwise or of all: no less than any, and with each bit that is set in any."""
    return int(np.bitwise_or.reduce(values, axis=None)) if values.size else 0


def gather(memory: Array, offsets: Offsets, width: int) -> Array:
    """Return `width` bytes at each offset, as uint8 of shape (n, width).

    Widths of 1 to 16 at multiples of the width are fast.
    """
    flat = offsets.reshape(-1)
    word = _WORDS.get(width)
    if word is None or merged(flat) & (width - 1):
        return np.asarray(memory[flat[:, None] + np.arange(width)])
    # Offsets are inside by now, and to clip them is faster than to check them again.
    found = memory.view(word).take(flat >> width.bit_length() - 1, mode="clip")
    return found.view(np.uint8).reshape(-1, width)


def scatter(memory: Array, offsets: Offsets, data: Array) -> None:
    """Write uint8 data of shape (n, width) to offsets; where some are equal, the last one stays."""
    flat, width = offsets.reshape(-1), data.shape[-1]
    word = _WORDS.get(width)
    if word is None or merged(flat) & (width - 1):
        memory[flat[:, None] + np.arange(width)] = data
        return
    words: Array = np.ascontiguousarray(data).view(word).reshape(-1)
    memory.view(word)[flat >> width.bit_length() - 1] = words


def fill(memory: Array, offsets: Offsets, width: int, value: int) -> None:
    """Set `width` bytes at each offset to a value."""
    flat = offsets.reshape(-1)
    word = _WORDS.get(width)
    if word is None or merged(flat) & (width - 1):
        memory[flat[:, None] + np.arange(width)] = value
        return
    pattern = np.full(width, value, np.uint8).view(word)[0]
    memory.view(word)[flat >> width.bit_length() - 1] = pattern


def all_equal(states: Array, offsets: Offsets, width: int, value: int) -> bool:
    """Return whether all `width` bytes at each offset have a value; `states` is a multiple of 8."""
    if not offsets.size:
        return True
    pattern = value * _REPEATED
    most = 2 * offsets.size * width
    if abs(int(offsets.flat[-1]) - int(offsets.flat[0])) <= most:
        low, high = int(offsets.min()), int(offsets.max()) + width
        if high - low <= most:  # to look at all between is faster than to gather
            span = states[low & ~7 : -(-high // 8) * 8].view(np.uint64)
            if bool((span == pattern).all()):
                return True
    found = gather(states, offsets, width)
    word = _WORDS[min(width, 8)]
    return bool((found.view(word) == pattern >> 64 - 8 * word.itemsize).all())


def any_of_lane(bad: Bad) -> Bad:
    """Return which lanes have anything bad, where the first axis is that of lanes."""
    return np.asarray(bad.reshape(bad.shape[0], -1).any(axis=1))
