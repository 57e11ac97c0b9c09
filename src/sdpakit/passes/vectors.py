"""`IntOps` over NumPy int64 vectors: one element for each tile, many tiles at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Literal

import numpy as np

from sdpakit.expr.nodes import Expr, Index, Load
from sdpakit.passes.tables import Array, dtype_limits, integer_limits, rises

# Rows that do not ascend are summed up in blocks of so many elements. A range of at most a block
# is looked at itself, one of at most _LONGEST blocks through their limits; beyond that the limits
# of the whole row answer.
_BLOCK = 64
_LONGEST = 1 << 10
_PIECE = 1 << 14  # elements looked at together


@dataclass(frozen=True, slots=True)
class _Ascent:
    """A row in ascending order: `values` and their `places`, with the end of the row as the last.

    A row of few different values is told by those, which stay in the first cache while it is
    searched; any other by itself, its places None.
    """

    values: Array
    places: Array | None


def _ascent(row: Array) -> _Ascent | None:
    ascends, places = rises(row)
    if not ascends:
        return None
    if places is None:
        return _Ascent(row, None)
    return _Ascent(row[places], np.append(places, row.shape[0]))


class VectorOps:
    """Integers are int64 arrays (or 0-d), conditions bool arrays; shapes broadcast.

    Parameters
    ----------
    scalars : mapping of str to number
        Run-time scalars.
    tables : mapping of str to array
        Run-time tables, with the rank of their loads.
    unread : set of str, optional
        Tables whose elements are not looked at one by one: the limits of all answer for any.
    """

    def __init__(
        self,
        scalars: Mapping[str, int | float],
        tables: Mapping[str, Array],
        unread: Set[str] = frozenset(),
    ) -> None:
        self._scalars = scalars
        self._tables = tables
        self._unread = unread
        self._ascents: dict[tuple[object, ...], _Ascent | None] = {}
        self._limits: dict[tuple[object, ...], tuple[int, int]] = {}
        self._blocks: dict[tuple[object, ...], tuple[Array, Array]] = {}

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
        if cond.ndim == 0:
            return a if cond else b
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

    def scalar(self, name: str) -> Array:
        """Return the run-time scalar."""
        return np.asarray(int(self._scalars[name]), dtype=np.int64)

    def table_range(
        self, load: Load, lo: Sequence[Array], hi: Sequence[Array]
    ) -> tuple[Array, Array]:
        """Return (least, largest) element over boxes of indices; see `IntOps.table_range`."""
        table = self._tables[load.table]
        if load.table in self._unread:
            return self._whole((load.table,), table)
        bounds = [
            self._bounds(index, low, high, *axis)
            for index, low, high, *axis in zip(
                load.indices, lo, hi, table.shape, table.strides, strict=True
            )
        ]
        wide = [a for a, (low, high) in enumerate(bounds) if low is not high]
        if len(wide) > 1:
            wide = [a for a in wide if (bounds[a][0] < bounds[a][1]).any()]
        points = tuple(low for low, _ in bounds)
        if not wide:
            found = np.asarray(table[points]).astype(np.int64)
            return found, found
        others = [low for axis, low in enumerate(points) if axis not in wide]
        if len(wide) > 2 or any(low.ndim for low in others):
            return self._whole((load.table,), table)
        part = table[tuple(slice(None) if a in wide else int(x) for a, x in enumerate(points))]
        if len(wide) == 2:
            return _boxes(part, bounds[wide[0]], bounds[wide[1]])
        return self._row_range((load.table, wide[0], *others), part, *bounds[wide[0]])

    def _bounds(
        self, index: Expr, lo: Array, hi: Array, size: int, stride: int
    ) -> tuple[Array, Array]:
        if stride == 0:  # one element, however often
            lo = hi = self.const(0)
        low = self._clamped(index, lo, size)
        return low, low if lo is hi else self._clamped(index, hi, size)

    @staticmethod
    def _clamped(index: object, bound: Array, size: int) -> Array:
        if size == 1 and isinstance(index, Index):
            return np.zeros((), dtype=np.int64)  # broadcasts
        return np.asarray(np.minimum(np.maximum(bound, 0), size - 1))

    def _row_range(
        self, key: tuple[object, ...], row: Array, lo: Array, hi: Array
    ) -> tuple[Array, Array]:
        if self._ascent(key, row) is not None:
            return row[lo].astype(np.int64), row[hi].astype(np.int64)
        width = int((hi - lo).max()) + 1
        if width <= _BLOCK:
            return _extreme(np.minimum, row, lo, hi), _extreme(np.maximum, row, lo, hi)
        if width > _BLOCK * _LONGEST:
            return self._whole(key, row)
        least, largest = self._block_limits(key, row)
        lo, hi = lo // _BLOCK, hi // _BLOCK
        return _extreme(np.minimum, least, lo, hi), _extreme(np.maximum, largest, lo, hi)

    def _block_limits(self, key: tuple[object, ...], row: Array) -> tuple[Array, Array]:
        key = self._hashable(key)
        if key not in self._blocks:
            starts = np.arange(0, row.shape[0], _BLOCK)
            limits = np.minimum.reduceat(row, starts), np.maximum.reduceat(row, starts)
            self._blocks[key] = limits
        return self._blocks[key]

    def _whole(self, key: tuple[object, ...], table: Array) -> tuple[Array, Array]:
        if table.dtype == np.bool_:
            return self.const(0), self.const(1)
        key = self._hashable(key)
        if key not in self._limits:
            self._limits[key] = integer_limits(table)
        least, largest = self._limits[key]
        return self.const(least), self.const(largest)

    def _ascent(self, key: tuple[object, ...], row: Array) -> _Ascent | None:
        """Return how a row ascends, or None if it does not."""
        key = self._hashable(key)
        if key not in self._ascents:
            self._ascents[key] = _ascent(row)
        return self._ascents[key]

    @staticmethod
    def _hashable(key: tuple[object, ...]) -> tuple[object, ...]:
        return tuple(int(part) if isinstance(part, np.ndarray) else part for part in key)

    def is_sorted(self, load: Load, leading: Sequence[Array]) -> Array:
        """Return whether the row of a load is in ascending order."""
        row, key = self._row(load, leading)
        return np.asarray(row.shape[0] > 1 and self._ascent(key, row) is not None)

    def lower_bound(self, load: Load, leading: Sequence[Array], value: Array) -> Array:
        """Return the number of elements < value of a sorted row."""
        return self._bound(load, leading, value, "left")

    def upper_bound(self, load: Load, leading: Sequence[Array], value: Array) -> Array:
        """Return the number of elements <= value of a sorted row."""
        return self._bound(load, leading, value, "right")

    def _bound(
        self, load: Load, leading: Sequence[Array], value: Array, side: Literal["left", "right"]
    ) -> Array:
        row, key = self._row(load, leading)
        ascent = self._ascent(key, row)
        if ascent is None:
            return self.const(0)  # not used
        found = _search(ascent.values, value, side)
        return found if ascent.places is None else np.asarray(ascent.places[found])

    def _row(self, load: Load, leading: Sequence[Array]) -> tuple[Array, tuple[object, ...]]:
        """Return the row of a load along its last axis, and a key for what is known about it."""
        table = self._tables[load.table]
        at = [
            int(self._clamped(index, low, size))
            for index, low, size in zip(load.indices, leading, table.shape, strict=False)
        ]
        return table[tuple(at)], (load.table, table.ndim - 1, *at)


def _boxes(
    table: Array, rows: tuple[Array, Array], columns: tuple[Array, Array]
) -> tuple[Array, Array]:
    """Return (least, largest) element of boxes of a matrix, a stripe of equal rows at a time."""
    shape = np.broadcast_shapes(*(bound.shape for bound in (*rows, *columns)))
    first, last, lo, hi = (np.broadcast_to(bound, shape).reshape(-1) for bound in (*rows, *columns))
    last, hi = np.maximum(first, last), np.maximum(lo, hi)
    least, largest = np.empty(first.size, np.int64), np.empty(first.size, np.int64)
    order = np.lexsort((last, first))
    differ = (np.diff(first[order]) != 0) | (np.diff(last[order]) != 0)
    for alike in np.split(order, np.flatnonzero(differ) + 1) if order.size else ():
        start = int(lo[alike].min())
        stripe = table[first[alike[0]] : last[alike[0]] + 1, start : int(hi[alike].max()) + 1]
        ends = lo[alike] - start, hi[alike] - start
        least[alike] = _extreme(np.minimum, stripe.min(axis=0), *ends)
        largest[alike] = _extreme(np.maximum, stripe.max(axis=0), *ends)
    return least.reshape(shape), largest.reshape(shape)


def _extreme(reduce: np.ufunc, row: Array, lo: Array, hi: Array) -> Array:
    """Return the least or largest element of `row[lo : hi + 1]` for vectors of short ranges."""
    lo, hi = np.broadcast_arrays(lo, hi)
    width = int((hi - lo).max()) + 1
    found = np.empty(lo.size, np.int64)
    step = max(1, _PIECE // width)
    for start in range(0, lo.size, step):
        piece = slice(start, start + step)
        # Ranges in columns: reducing along the first axis is what NumPy does fast.
        at = lo.reshape(-1)[piece] + np.arange(width)[:, None]
        found[piece] = reduce.reduce(row[np.minimum(at, hi.reshape(-1)[piece])], axis=0)
    return found.reshape(lo.shape)


def _search(row: Array, value: Array, side: Literal["left", "right"]) -> Array:
    # In the dtype of the row: NumPy would convert the whole row to that of the value.
    least, largest = dtype_limits(row)
    if least <= int(value.min()) and int(value.max()) <= largest:
        return _find(row, value.astype(row.dtype), side)
    held = np.minimum(np.maximum(value, np.int64(least)), np.int64(min(largest, 2**63 - 1)))
    found = _find(row, held.astype(row.dtype), side)
    if side == "left":
        return np.where(value > largest, row.shape[0], found)
    return np.where(value < least, 0, found)


def _find(row: Array, wanted: Array, side: Literal["left", "right"]) -> Array:
    if wanted.ndim == 0:
        return np.asarray(np.searchsorted(row, wanted, side=side))
    # Neighbouring tiles mostly ask for the same value: search once for each run of equal ones.
    inner = np.flatnonzero(wanted[1:] != wanted[:-1]) + 1
    edges = np.concatenate(([0], inner, [wanted.size]))
    found = np.searchsorted(row, wanted[edges[:-1]], side=side)
    return np.repeat(found, edges[1:] - edges[:-1])
