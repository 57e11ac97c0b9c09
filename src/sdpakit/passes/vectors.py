"""`IntOps` over NumPy int64 vectors: one element for each tile, many tiles at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from sdpakit.expr.nodes import Index, Load
from sdpakit.passes.tables import Array, integer_limits, rows_ascend

# Elements of a table looked at together, and the longest range that is looked at at all: beyond it
# the limits of the whole row answer.
_PIECE = 1 << 14
_LONGEST = 1 << 10


class VectorOps:
    """Integers are int64 arrays (or 0-d), conditions bool arrays; shapes broadcast.

    Parameters
    ----------
    scalars : mapping of str to number
        Run-time scalars.
    tables : mapping of str to array
        Run-time tables, with the rank of their loads.
    """

    def __init__(self, scalars: Mapping[str, int | float], tables: Mapping[str, Array]) -> None:
        self._scalars = scalars
        self._tables = tables
        self._ascending: dict[tuple[object, ...], bool] = {}
        self._limits: dict[tuple[object, ...], tuple[int, int]] = {}

    def const(self, value: int) -> Array:
        """Return the integer."""
        return np.asarray(value, dtype=np.int64)

    def true(self) -> Array:
        """Return True."""
        return np.asarray(a=True)

    def false(self) -> Array:
        """Return False."""
        return np.asarray(a=False)

    def add(self, a: Array, b: Array) -> Array:
        """Return a + b."""
        return np.asarray(a + b)

    def sub(self, a: Array, b: Array) -> Array:
        """Return a - b."""
        return np.asarray(a - b)

    def mul(self, a: Array, b: Array) -> Array:
        """Return a * b."""
        return np.asarray(a * b)

    def floordiv(self, a: Array, b: Array) -> Array:
        """Return floor(a / b), b >= 1."""
        return np.asarray(a // b)

    def minimum(self, a: Array, b: Array) -> Array:
        """Return the smaller."""
        return np.asarray(np.minimum(a, b))

    def maximum(self, a: Array, b: Array) -> Array:
        """Return the larger."""
        return np.asarray(np.maximum(a, b))

    def select(self, cond: Array, a: Array, b: Array) -> Array:
        """Return a where `cond`, else b."""
        return np.where(cond, a, b)

    def lt(self, a: Array, b: Array) -> Array:
        """Return a < b."""
        return np.asarray(a < b)

    def le(self, a: Array, b: Array) -> Array:
        """Return a <= b."""
        return np.asarray(a <= b)

    def eq(self, a: Array, b: Array) -> Array:
        """Return a == b."""
        return np.asarray(a == b)

    def both(self, a: Array, b: Array) -> Array:
        """Return a and b."""
        return np.asarray(a & b)

    def either(self, a: Array, b: Array) -> Array:
        """Return a or b."""
        return np.asarray(a | b)

    def negate(self, a: Array) -> Array:
        """Return not a."""
        return np.asarray(~a)

    def scalar(self, name: str) -> Array:
        """Return the run-time scalar."""
        return np.asarray(int(self._scalars[name]), dtype=np.int64)

    def table_range(
        self, load: Load, lo: Sequence[Array], hi: Sequence[Array]
    ) -> tuple[Array, Array]:
        """Return (least, largest) element over boxes of indices; see `IntOps.table_range`."""
        table = self._tables[load.table]
        bounds = [
            (self._clamped(index, low, size), self._clamped(index, high, size))
            for index, low, high, size in zip(load.indices, lo, hi, table.shape, strict=True)
        ]
        wide = [axis for axis, (low, high) in enumerate(bounds) if np.any(low < high)]
        points = tuple(low for low, _ in bounds)
        if not wide:
            found = np.asarray(table[points]).astype(np.int64)
            return found, found
        others = [low for axis, (low, _) in enumerate(bounds) if axis != wide[0]]
        if len(wide) > 1 or any(low.ndim for low in others):
            return self._whole((load.table,), table)
        at = tuple(slice(None) if axis == wide[0] else int(low) for axis, low in enumerate(points))
        return self._row_range((load.table, wide[0], *others), table[at], *bounds[wide[0]])

    @staticmethod
    def _clamped(index: object, bound: Array, size: int) -> Array:
        if size == 1 and isinstance(index, Index):
            return np.zeros((), dtype=np.int64)  # broadcasts
        return np.clip(bound, 0, size - 1)

    def _row_range(
        self, key: tuple[object, ...], row: Array, lo: Array, hi: Array
    ) -> tuple[Array, Array]:
        if self._is_ascending(key, row):
            return row[lo].astype(np.int64), row[hi].astype(np.int64)
        width = int((hi - lo).max()) + 1
        if width > _LONGEST:
            return self._whole(key, row)
        lo, hi = np.broadcast_arrays(lo, hi)
        least, largest = np.empty(lo.shape, np.int64), np.empty(lo.shape, np.int64)
        step = max(1, _PIECE // width)
        for start in range(0, lo.size, step):
            piece = slice(start, start + step)
            at = lo.reshape(-1)[piece, None] + np.arange(width)
            values = row[np.minimum(at, hi.reshape(-1)[piece, None])]
            least.reshape(-1)[piece] = values.min(axis=1)
            largest.reshape(-1)[piece] = values.max(axis=1)
        return least, largest

    def _whole(self, key: tuple[object, ...], table: Array) -> tuple[Array, Array]:
        if table.dtype == np.bool_:
            return self.const(0), self.const(1)
        key = self._hashable(key)
        if key not in self._limits:
            self._limits[key] = integer_limits(table)
        least, largest = self._limits[key]
        return self.const(least), self.const(largest)

    def _is_ascending(self, key: tuple[object, ...], row: Array) -> bool:
        key = self._hashable(key)
        if key not in self._ascending:
            self._ascending[key] = rows_ascend(row)
        return self._ascending[key]

    @staticmethod
    def _hashable(key: tuple[object, ...]) -> tuple[object, ...]:
        return tuple(int(part) if isinstance(part, np.ndarray) else part for part in key)

    def is_sorted(self, load: Load, leading: Sequence[Array]) -> Array:
        """Return whether the row of a load is in ascending order."""
        row, key = self._row(load, leading)
        return np.asarray(row.shape[0] > 1 and self._is_ascending(key, row))

    def lower_bound(self, load: Load, leading: Sequence[Array], value: Array) -> Array:
        """Return the number of elements < value of a sorted row."""
        return self._search(self._row(load, leading)[0], value, np.less)

    def upper_bound(self, load: Load, leading: Sequence[Array], value: Array) -> Array:
        """Return the number of elements <= value of a sorted row."""
        return self._search(self._row(load, leading)[0], value, np.less_equal)

    def _row(self, load: Load, leading: Sequence[Array]) -> tuple[Array, tuple[object, ...]]:
        """Return the row of a load along its last axis, and a key for what is known about it."""
        table = self._tables[load.table]
        at = [
            int(self._clamped(index, low, size))
            for index, low, size in zip(load.indices, leading, table.shape, strict=False)
        ]
        return table[tuple(at)], (load.table, table.ndim - 1, *at)

    @staticmethod
    def _search(row: Array, value: Array, before: np.ufunc) -> Array:
        # By hand: numpy.searchsorted copies the whole row where its dtype is not that of the value.
        first, last = np.zeros(value.shape, np.int64), np.full(value.shape, row.shape[0])
        for _ in range(row.shape[0].bit_length()):
            middle = (first + last) >> 1
            seen = row[np.minimum(middle, row.shape[0] - 1)].astype(np.int64)
            smaller = before(seen, value) & (middle < last)
            first = np.where(smaller, middle + 1, first)
            last = np.where(smaller, last, middle)
        return first
