"""A gradient of every pair with what is known of its error, and sums of such gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sdpakit.conformance.bounds import LAM
from sdpakit.conformance.inputs import Array
from sdpakit.conformance.model import BoundKind


@dataclass(frozen=True, slots=True, eq=False)
class Graded:
    """A gradient D_ij and its error, in the letters of `gradients.bounds`; all (..., Lq, Lk).

    Attributes
    ----------
    value : array
        D, exact.
    own : array
        Error that this pair has for itself.
    common : array
        What an error of delta_i is multiplied by; signed.
    floor : array
        Error of numbers below the normal range, always added up linearly.
    """

    value: Array
    own: Array
    common: Array
    floor: Array

    def times(self, slope: Any, slope_error: Any, roundings: float) -> Graded:
        """Return the gradient times a derivative that is itself off.

        Parameters
        ----------
        slope : array or float
            Exact derivative.
        slope_error : array or float
            Its largest error.
        roundings : float
            Relative error of the product, in all.

        Returns
        -------
        Graded
            Exactly 0 where gradient and error are 0, whatever the slope is there.
        """
        gone = (self.value == 0.0) & (self.own == 0.0) & (self.common == 0.0)
        value, size = self.value * slope, np.abs(slope)
        own = size * self.own + (np.abs(self.value) + self.own) * slope_error
        parts = (
            value,
            own + roundings * np.abs(value),
            self.common * slope,
            self.floor * (size + slope_error),
        )
        return Graded(*(np.where(gone, 0.0, part) for part in parts))

    def plus(self, other: Graded, roundings: float) -> Graded:
        """Return the sum of two gradients, rounded.

        Parameters
        ----------
        other : Graded
            Of the same pairs.
        roundings : float
            Relative error of the sum.

        Returns
        -------
        Graded
            Errors add up.
        """
        value = self.value + other.value
        return Graded(
            value,
            self.own + other.own + roundings * np.abs(value),
            self.common + other.common,
            self.floor + other.floor,
        )


@dataclass(frozen=True, slots=True, eq=False)
class RowErrors:
    """What all pairs of a row share, with the kind of bound.

    Attributes
    ----------
    kind : {"sharp", "hard"}
        How errors add up.
    u : float
        Unit roundoff of accum_dtype.
    tiny : float
        Smallest normal number of accum_dtype: terms below it may be flushed.
    delta : (B, Hq, Lq) array
        Error of delta.
    ratio : (B, Hq, Lq) array
        Relative error that all weights of the row share.
    """

    kind: BoundKind
    u: float
    tiny: float
    delta: Array
    ratio: Array

    def pairs(self, graded: Graded) -> Array:
        """Return the error of each pair that its row puts on it."""
        shared = np.abs(graded.common) * self.delta[..., None]
        return np.asarray(shared + np.abs(graded.value) * self.ratio[..., None])

    def rounded(self, count: Any, largest: Any) -> Any:
        """Return the error of adding up `count` terms.

        Parameters
        ----------
        count : array or int
            How many.
        largest : array
            Sum of their sizes in a hard bound; the larger of the size of the sum and the root of
            the sum of squares in a sharp one.

        Returns
        -------
        array
            Absolute.
        """
        flushed = count * self.tiny
        if self.kind == "hard":
            return count * self.u / (1.0 - count * self.u) * largest + flushed
        return LAM * self.u * np.sqrt(count) * largest + flushed


def over_keys(rows: RowErrors, graded: Graded, factor: Array, count: Array) -> Array:
    """Return the error of sum_j D_ij a_j, a row at a time.

    Parameters
    ----------
    rows : RowErrors
        What the pairs of a row share.
    graded : Graded
        D.
    factor : (B, Hq, Lk, width) array
        a, exact and finite.
    count : (B, Hq, Lq) array
        Number of terms.

    Returns
    -------
    array
        (B, Hq, Lq, width).
    """
    size, many = np.abs(factor), count[..., None]
    floor = graded.floor @ size
    if rows.kind == "hard":
        terms = np.abs(graded.value) @ size
        return np.asarray(
            (graded.own + rows.pairs(graded)) @ size + rows.rounded(many, terms) + floor
        )
    squares, total = factor * factor, np.abs(graded.value @ factor)
    shared = np.abs(graded.common @ factor) * rows.delta[..., None]
    shared = shared + total * rows.ratio[..., None]
    largest = np.maximum(total, np.sqrt((graded.value**2) @ squares))
    own = LAM * np.sqrt((graded.own**2) @ squares)
    return np.asarray(own + shared + rows.rounded(many, largest) + floor)


def over_rows(rows: RowErrors, graded: Graded, factor: Array, count: Array, kv_heads: int) -> Array:
    """Return the error of sum_i D_ij a_i over the rows of a group of heads.

    Parameters
    ----------
    rows, graded
        As for `over_keys`.
    factor : (B, Hq, Lq, width) array
        a, exact and finite.
    count : (B, Hkv, Lk) array
        Number of terms.
    kv_heads : int
        Number of groups.

    Returns
    -------
    array
        (B, Hkv, Lk, width).
    """

    def total(pairs: Array, by: Array) -> Array:
        summed = pairs.swapaxes(-1, -2) @ by
        batch, heads, *rest = summed.shape
        return np.asarray(
            summed.reshape(batch, kv_heads, heads // max(kv_heads, 1), *rest).sum(axis=2)
        )

    size, many, pairs = np.abs(factor), count[..., None], rows.pairs(graded)
    floor = total(graded.floor, size)
    if rows.kind == "hard":
        terms = total(np.abs(graded.value), size)
        return np.asarray(total(graded.own + pairs, size) + rows.rounded(many, terms) + floor)
    squares = factor * factor
    largest = np.maximum(
        np.abs(total(graded.value, factor)), np.sqrt(total(graded.value**2, squares))
    )
    own = LAM * np.sqrt(total(graded.own**2, squares)) + np.sqrt(total(pairs**2, squares))
    return np.asarray(own + rows.rounded(many, largest) + floor)


def over_axes(rows: RowErrors, graded: Graded, attended: Array, shape: tuple[int, ...]) -> Array:
    """Return the error of D summed over the axes along which an operand was broadcast.

    Parameters
    ----------
    rows, graded
        As for `over_keys`.
    attended : (B, Hq, Lq, Lk) array
        Pairs that are added up.
    shape : tuple of int
        Shape of the operand.

    Returns
    -------
    array
        In that shape.
    """
    full = attended.shape
    wide = (1,) * (len(full) - len(shape)) + tuple(shape)
    axes = tuple(a for a, size in enumerate(wide) if size == 1 and full[a] != 1)

    def total(terms: Array) -> Array:
        there = tuple(a for a in axes if terms.shape[a] != 1)
        return np.asarray(terms.sum(axis=there, keepdims=True).reshape(shape))

    floor, count = total(graded.floor), total(attended.astype(float))
    pairs = rows.pairs(graded)
    if rows.kind == "hard":
        terms = rows.rounded(count, total(np.abs(graded.value)))
        return np.asarray(total(graded.own + pairs) + terms + floor)
    if 3 in axes:  # the errors of a row meet in one sum
        sums = (np.abs(x.sum(axis=-1, keepdims=True)) for x in (graded.common, graded.value))
        of_delta, of_ratio = sums
        pairs = of_delta * rows.delta[..., None] + of_ratio * rows.ratio[..., None]
    largest = np.maximum(np.abs(total(graded.value)), np.sqrt(total(graded.value**2)))
    own = LAM * np.sqrt(total(graded.own**2)) + np.sqrt(total(pairs**2))
    return np.asarray(own + rows.rounded(count, largest) + floor)
