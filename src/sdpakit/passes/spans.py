"""Unions of ranges of keys, many at once, and the tiles that they touch or leave open.

A span is a pair (first, end) of int arrays, half-open; a union is a list of spans.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np

from sdpakit.passes.tables import Array

Span: TypeAlias = tuple[Array, Array]


def touched(keys: Sequence[Span], tile: int) -> list[Span]:
    """Return the tiles in which a union of ranges of keys has a key.

    Parameters
    ----------
    keys : sequence of Span
        In any order; they may overlap, and may be empty (first == end).
    tile : int
        Keys of a tile.

    Returns
    -------
    list of Span
        Of tiles: ascending, without any overlap, some of them empty.
    """
    return _apart(zip(*_in_order([_tiles(span, tile) for span in keys]), strict=True))


def left_open(keys: Sequence[Span], count: int, tile: int) -> list[Span]:
    """Return the tiles in which a union of ranges lacks a key.

    Parameters
    ----------
    keys : sequence of Span
        Within [0, count); see `touched`.
    count : int
        Keys that there are; the last tile ends with them.
    tile : int
        Keys of a tile.

    Returns
    -------
    list of Span
        See `touched`.
    """
    firsts, ends = _in_order(keys)
    gaps = zip((np.zeros((), np.int64), *ends), (*firsts, np.asarray(count)), strict=True)
    return _apart(_tiles(gap, tile) for gap in gaps)


def _tiles(keys: Span, tile: int) -> Span:
    first, end = keys
    some = first < end
    return np.where(some, first // tile, 0), np.where(some, (end + (tile - 1)) // tile, 0)


def _in_order(spans: Sequence[Span]) -> tuple[list[Array], list[Array]]:
    """Return firsts and ends of other spans with the same union, both of them ascending.

    Sorted apart from each other: of the spans that hold a point, there are as many as firsts up to
    it less ends up to it, whichever first belongs to which end.
    """
    firsts, ends = [first for first, _ in spans], [end for _, end in spans]
    for values in (firsts, ends):
        for last in range(len(values) - 1, 0, -1):
            for n in range(last):
                a, b = values[n], values[n + 1]
                values[n], values[n + 1] = np.minimum(a, b), np.maximum(a, b)
    return firsts, ends


def _apart(spans: Iterable[Span]) -> list[Span]:
    """Return ascending spans, empty ones anywhere among them, without their overlaps."""
    found: list[Span] = []
    for first, end in spans:
        if found:
            start = np.maximum(first, found[-1][1])
            found.append((start, np.maximum(start, end)))
        else:
            found.append((first, end))
    return found
