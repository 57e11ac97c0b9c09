"""Facts about run-time tables that proofs need: least and largest element, rows in ascending order.

All read a table once, in pieces, so that a table of any size costs no memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = "np.ndarray[Any, Any]"

_PIECE = 1 << 16  # elements looked at together

# Rows that rise at no more places are searched through these: they stay in the first cache.
_FEW = 1 << 12


def _pieces(row: Array, overlap: int) -> Iterator[Array]:
    for start in range(0, row.shape[0], _PIECE):
        yield row[start : start + _PIECE + overlap]


def _rows(table: Array) -> Iterator[Array]:
    """Yield the rows along the last axis; of rows that a stride of 0 makes equal, one."""
    counts = [
        1 if stride == 0 else size
        for size, stride in zip(table.shape[:-1], table.strides[:-1], strict=True)
    ]
    return (table[index] for index in np.ndindex(*counts))


def rows_ascend(table: Array) -> bool:
    """Return whether every row along the last axis is in ascending order, equal neighbours allowed.

    Parameters
    ----------
    table : array of integers or booleans
        At least one axis.

    Returns
    -------
    bool
        True as well where a row has fewer than two elements.
    """
    return all(
        bool((piece[:-1] <= piece[1:]).all()) for row in _rows(table) for piece in _pieces(row, 1)
    )


def rises(row: Array) -> tuple[bool, Array | None]:
    """Return whether a row is in ascending order, and where it rises.

    Parameters
    ----------
    row : (n,) array of integers or booleans
        Such as the documents of the keys.

    Returns
    -------
    ascends : bool
        As `rows_ascend` says.
    places : array of int or None
        Index of the first element, and of every one that is larger than the one before; None
        where there is none, where there are many, or where the row does not ascend.
    """
    places, room = [np.zeros(1, np.int64)], _FEW
    for start in range(0, row.shape[0], _PIECE):
        piece = row[start : start + _PIECE + 1]
        before, after = piece[:-1], piece[1:]
        if room >= 0:
            differ = before != after
            room -= int(np.count_nonzero(differ))
        if room < 0:
            if not (before <= after).all():
                return False, None
            continue
        at = np.flatnonzero(differ)
        if (before[at] > after[at]).any():
            return False, None
        places.append(at + (start + 1))
    return True, np.concatenate(places) if room >= 0 and row.shape[0] else None


def integer_limits(table: Array) -> tuple[int, int]:
    """Return the least and the largest element of a table of integers or booleans.

    Parameters
    ----------
    table : array of integers or booleans
        At least one element.

    Returns
    -------
    tuple of int
        Exact, for uint64 too.
    """
    if table.ndim == 0:
        return int(table), int(table)
    found = [
        (int(piece.min()), int(piece.max())) for row in _rows(table) for piece in _pieces(row, 0)
    ]
    return min(lo for lo, _ in found), max(hi for _, hi in found)


def dtype_limits(table: Array) -> tuple[int, int]:
    """Return the limits of what the dtype of a table of integers or booleans can hold."""
    if table.dtype == np.bool_:
        return 0, 1
    info = np.iinfo(table.dtype)
    return int(info.min), int(info.max)
