"""NaN-strict comparison of one output with the reference, and cells that betray a stray write."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sdpakit.conformance.inputs import GUARD, Array, np_dtype
from sdpakit.conformance.intake import Unfit, as_array
from sdpakit.conformance.model import Worst
from sdpakit.dtypes import DTYPES

# A quiet NaN whose payload no operation gives: an output that was not written still holds it.
_UNWRITTEN = {
    "float16": 0x7F5A,
    "bfloat16": 0x7FE5,
    "float32": 0x7FE5A5A5,
    "float64": 0x7FFCA5A5A5A5A5A5,
}


@dataclass(frozen=True, slots=True)
class Comparison:
    """How one output compares.

    Attributes
    ----------
    share : float
        Largest error as a share of its bound.
    message : str
        What is wrong and where, "" if nothing is.
    worst : Worst or None
        The element behind `share`; None where no elements were compared.
    """

    share: float
    message: str = ""
    worst: Worst | None = None


def compare(name: str, got: object, reference: Array, bound: Array, dtype: str) -> Comparison:
    """Judge one output.

    Parameters
    ----------
    name : str
        Output, for the message.
    got : object
        What the target gave, see `intake.as_array`.
    reference, bound : array
        Right values in float64, and the largest error that each may have.
    dtype : str
        Dtype that the output must have.

    Returns
    -------
    Comparison
        NaN must be where the reference has NaN and nowhere else, infinities must be there with
        their sign; a finite value beyond what `dtype` holds may be an infinity.
    """
    found = as_array(got)
    if isinstance(found, Unfit):
        return Comparison(np.inf, f"{name} {found.why}")
    if found.shape != reference.shape:
        return Comparison(np.inf, f"{name} has shape {found.shape}, right is {reference.shape}")
    if found.dtype != np_dtype(dtype):
        came = found.dtype.name if found.dtype.isnative else found.dtype.str
        return Comparison(np.inf, f"{name} has dtype {came}, right is {dtype}")
    if not reference.size:
        return Comparison(0.0)
    share = _shares(found.astype(np.float64), reference, bound, dtype)
    place = np.unravel_index(int(np.argmax(share)), share.shape)
    worst = Worst(
        output=name,
        index=tuple(int(i) for i in place),
        got=float(found[place]),
        right=float(reference[place]),
        bound=float(bound[place]),
        share=float(share[place]),
    )
    if worst.share <= 1.0:
        return Comparison(worst.share, worst=worst)
    message = (
        f"{name}{list(worst.index)} = {found[place]!s}, right is {worst.right:.9g}, "
        f"{worst.share:.3g} times its bound of {worst.bound:.3g}; "
        f"{int((share > 1.0).sum())} of {share.size} elements are wrong"
    )
    return Comparison(worst.share, message, worst)


def _shares(got: Array, reference: Array, bound: Array, dtype: str) -> Array:
    """Return the error of each element as a share of its bound; inf where NaN or inf is wrong."""
    with np.errstate(all="ignore"):
        error = np.abs(got - reference)
        share = np.where(error == 0.0, 0.0, error / bound)
        # Rounding to nearest goes to infinity from half a unit above the largest value on.
        most = DTYPES[dtype].max * (1.0 + DTYPES[dtype].unit_roundoff)
        overflowed = np.isinf(got) & (np.abs(reference) + bound >= most)
        overflowed &= np.sign(got) == np.sign(reference)
        exact = ~(np.isfinite(got) & np.isfinite(reference))
        same = (np.isnan(got) & np.isnan(reference)) | (got == reference) | overflowed
        # Of an infinity whose weight may be 0, bounds says that NaN is as right.
        same |= np.isnan(bound) & (np.isnan(got) | (np.isinf(got) & np.isnan(reference)))
        share = np.where(exact, np.where(same, 0.0, np.inf), share)
    # A bound that is NaN or infinite judges nothing, and a finite reference must have one.
    unjudged = np.isfinite(reference) & ~np.isfinite(bound)
    return np.where(unjudged & (got != reference), np.inf, share)


class Receiver:
    """Memory for one output that shows which of its cells were written.

    Parameters
    ----------
    shape : tuple of int
        Shape of the output.
    dtype : str
        Its dtype.

    Attributes
    ----------
    array : array
        To be given as `out=`; C-contiguous, with guard cells before and behind.
    """

    def __init__(self, shape: tuple[int, ...], dtype: str) -> None:
        cell = np_dtype(dtype)
        size = int(np.prod(shape, dtype=np.int64))
        bits = np.dtype(f"uint{8 * cell.itemsize}")
        self._bits = np.full(size + 2 * GUARD, _UNWRITTEN[dtype], dtype=bits)
        self.array = self._bits[GUARD : GUARD + size].view(cell).reshape(shape)
        self._mark = bits.type(_UNWRITTEN[dtype])

    def complaint(self, name: str) -> str:
        """Return what is wrong with the memory after a call, "" if nothing is.

        Parameters
        ----------
        name : str
            Output, for the message.

        Returns
        -------
        str
            Cells of the output that were not written, or guard cells that were.
        """
        inside = self._bits[GUARD : self._bits.size - GUARD]
        unwritten = int((inside == self._mark).sum())
        if unwritten:
            return f"{name}: {unwritten} of {inside.size} elements were not written"
        outside = np.concatenate([self._bits[:GUARD], self._bits[-GUARD:]])
        if (outside != self._mark).any():
            return f"{name}: {int((outside != self._mark).sum())} cells beside it were written"
        return ""

    def clear(self) -> None:
        """Make every cell unwritten, to see whether a later call still writes here."""
        self._bits[...] = self._mark

    def is_untouched(self) -> bool:
        """Return whether no cell was written."""
        return bool((self._bits == self._mark).all())
