"""Entries that lie one behind the other (RAGGED-1) or in pages (PAGED-1), as a padded batch.

Each is copied out by itself, as its rule says, and NaN stands where it has no token: whoever reads
that gets another result.
"""

from __future__ import annotations

import itertools
from typing import Any, TypeAlias

import numpy as np

from sdpakit.errors import ArgumentError, format_error

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]


def offsets(name: str, value: Any, tokens: int) -> list[int]:
    """Return the offsets of a call as integers.

    Parameters
    ----------
    name : str
        "cu_q_lens" or "cu_kv_lens".
    value : array_like of int
        (B + 1,).
    tokens : int
        Length of the array.

    Returns
    -------
    list of int
        From 0 on, not descending, the last at most `tokens`.

    Raises
    ------
    ArgumentError
        If they are not so.
    """
    found = np.asarray(value)
    right = found.ndim == 1 and found.size > 0 and found.dtype.kind in "iu"
    ends = [int(x) for x in found] if right else [1]
    ascend = all(one <= next_ for one, next_ in itertools.pairwise(ends))
    if ends[0] != 0 or not ascend or ends[-1] > tokens:
        raise ArgumentError(
            format_error(
                name,
                got=found.tolist(),
                allowed=f"(B + 1,) integers from 0 on that do not descend, up to {tokens}",
                fix="see RAGGED-1",
            )
        )
    return ends


def from_offsets(tokens: Array, ends: list[int]) -> Array:
    """Return (T, H, width) as (B, H, L, width), L the length of the longest entry."""
    lengths = [end - start for start, end in itertools.pairwise(ends)]
    padded = np.full(
        (len(lengths), tokens.shape[1], max(lengths, default=0), tokens.shape[2]), np.nan
    )
    for b, length in enumerate(lengths):
        for i in range(length):
            padded[b, :, i] = tokens[ends[b] + i]
    return padded


def to_offsets(padded: Array, ends: list[int], tokens: int, past: float) -> Array:
    """Return (B, H, L, ...) as (T, H, ...); tokens behind the last entry hold `past`."""
    packed = np.full((tokens, padded.shape[1], *padded.shape[3:]), past)
    for b, start in enumerate(ends[:-1]):
        for i in range(ends[b + 1] - start):
            packed[start + i] = padded[b, :, i]
    return packed


def from_pages(pages: Array, table: Any, lengths: Array) -> Array:
    """Return (num_pages, page_size, H, width) as (B, H, L, width), L the largest length.

    Parameters
    ----------
    pages : array
        Keys or values.
    table : array_like of int
        (B, max_pages).
    lengths : array
        (B,) number of keys of each entry.

    Returns
    -------
    array
        Key j of entry b is key j % page_size of page table[b, j // page_size].

    Raises
    ------
    ArgumentError
        If the table holds no page for a key.
    """
    count, size, heads, width = pages.shape
    numbers = np.asarray(table)
    padded = np.full((len(lengths), heads, int(lengths.max(initial=0)), width), np.nan)
    for b, length in enumerate(lengths):
        for j in range(int(length)):
            page = int(numbers[b, j // size]) if j // size < numbers.shape[1] else -1
            if not 0 <= page < count:
                raise ArgumentError(
                    format_error(
                        "block_table",
                        got=f"page {page} for key {j} of entry {b}",
                        allowed=f"0 to {count - 1}",
                        fix="see PAGED-1",
                    )
                )
            padded[b, :, j] = pages[page, j % size]
    return padded
