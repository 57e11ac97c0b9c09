"""`merge`: attention over disjoint sets of keys, from the results over each of them (MERGE-1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from sdpakit.arrays import Operand, export, import_array, numpy_dtype
from sdpakit.calling import checked_call
from sdpakit.dtypes import ACCUM_DTYPE, FLOATS
from sdpakit.errors import ArgumentError, ArgumentTypeError, format_error
from sdpakit.output import AttentionOutput

Array = np.ndarray[Any, Any]

LAYOUTS: tuple[str, ...] = ("bhsd", "bshd", "thd")


@checked_call
def merge(*states: Any, layout: str = "bhsd") -> AttentionOutput:
    """Return attention over the union of disjoint sets of keys (MERGE-1).

    With m the largest lse of a row and w_s = exp(lse_s - m), the merged row is
    sum_s (w_s / sum_t w_t) out_s, within the least and the largest of its states, and its lse is
    m + log(sum_s w_s). The empty state (out 0, lse -inf)
    changes nothing, not one bit; two states may come in either order; more may be merged in any
    grouping, within rounding.

    Parameters
    ----------
    *states : tuple of (out, lse)
        At least one; what a kernel with ``outputs=("out", "lse")`` returns, of the same rows. `out`
        is (..., Dv) and `lse` (...), any leading shape; `lse` is the natural logarithm, in float64
        where `out` is, else in float32. A spec with sinks cannot be merged so: its `out` counts the
        sink once for each state.
    layout : {"bhsd", "bshd", "thd"}
        In "bshd", `out` is (B, L, H, Dv) and `lse` (B, H, L), as kernels of that layout give them.
        In the others `lse` has the axes of `out` but for the last.

    Returns
    -------
    AttentionOutput
        New arrays `out` and `lse`, in the dtypes and the library of the first state. Sums are taken
        in the dtype of `lse`, and `out` is rounded once: of halves that were rounded before, it
        keeps their error, so give long chains of them in float32 (``out_dtype="float32"``).

    Raises
    ------
    ArgumentError
        If there is no state, or shapes do not belong together.
    ArgumentTypeError
        If a state is no pair, or dtypes differ.

    Examples
    --------
    >>> import numpy as np
    >>> one = (np.array([[1.0]]), np.array([0.0]))
    >>> two = (np.array([[4.0]]), np.array([np.log(2.0)]))
    >>> out, lse = merge(one, two)
    >>> round(float(out[0, 0]), 6), round(float(np.exp(lse[0])), 6)
    (3.0, 3.0)
    """
    if layout not in LAYOUTS:
        _refuse("layout", repr(layout), " | ".join(LAYOUTS), "name one of them")
    if not states:
        _refuse("states", "none", "at least one pair (out, lse)", "give what kernels returned")
    pairs = [_pair(number, state, layout) for number, state in enumerate(states)]
    _check_alike(pairs, layout)
    first_out, first_lse = pairs[0]
    out, lse = _merged([(o.view, s.view) for o, s in pairs], layout)
    with np.errstate(over="ignore", invalid="ignore"):  # what out_dtype cannot hold is infinite
        out = out.astype(numpy_dtype(first_out.dtype))
    return AttentionOutput(
        {"out": export(out, first_out.namespace), "lse": export(lse, first_lse.namespace)}
    )


def _merged(pairs: Sequence[tuple[Array, Array]], layout: str) -> tuple[Array, Array]:
    """Return out and lse in the dtype of lse."""
    accum = pairs[0][1].dtype
    with np.errstate(all="ignore"):
        m = np.max(np.stack([lse for _, lse in pairs]), axis=0)  # NaN if any is
        # NUM-2: nothing is subtracted from -inf; a row that is +inf somewhere is NaN (NUM-4).
        base = np.where(np.isneginf(m), 0.0, np.where(np.isposinf(m), np.nan, m)).astype(accum)
        weights = [np.exp(lse - base) for _, lse in pairs]
        total = np.sum(np.stack(weights), axis=0)
        empty = total == 0.0
        divisor = np.where(empty, 1.0, total).astype(accum)
        shares = [_beside(weight / divisor, layout) for weight in weights]
        out = _mean(pairs, shares, layout)
        # MERGE-1: an lse of -0 keeps its sign where nothing is added to it.
        lse = np.where(total == 1.0, base, base + np.log(total))
    return np.where(_beside(empty, layout), 0.0, out).astype(accum), np.where(
        empty, -np.inf, lse
    ).astype(accum)


def _mean(pairs: Sequence[tuple[Array, Array]], shares: Sequence[Array], layout: str) -> Array:
    """Return the mean of the states by their shares, which add up to 1 within rounding.

    Shares, not weights to be divided by later, for a sum of weighted values may overflow where
    their mean does not. Shares that add up to a little more than 1 could still take the mean of
    values near the largest beyond it: it is kept between the least and the largest of them.
    """
    accum = pairs[0][1].dtype
    # MERGE-1: -0 is the number that changes no other, a zero of either sign included.
    out = np.full(pairs[0][0].shape, -0.0, accum)
    low, high = np.full(out.shape, np.inf, accum), np.full(out.shape, -np.inf, accum)
    for (part, lse), share in zip(pairs, shares, strict=True):
        value = part.astype(accum)
        none = share == 0.0
        # MASK-3: a state without a key has no value either, whatever it holds.
        out += np.where(none, _nothing(value, lse, layout), share * value)
        low = np.where(none, low, np.minimum(low, value))
        high = np.where(none, high, np.maximum(high, value))
    # Comparisons take zeros of either sign for equal, so that the sign of a sum stays.
    return np.where(out > high, high, np.where(out < low, low, out))


def _nothing(value: Array, lse: Array, layout: str) -> Array:
    """Return -0 where a state is empty, and what an underflowed weight makes of its values else."""
    return np.where(_beside(np.isneginf(lse), layout), -0.0, value * 0.0).astype(lse.dtype)


def _beside(rows: Array, layout: str) -> Array:
    """Return an array of the rows so that it broadcasts against out."""
    if layout == "bshd":
        rows = rows.swapaxes(1, 2)
    return rows[..., None]


def _pair(number: int, state: Any, layout: str) -> tuple[Operand, Operand]:
    where = f"states[{number}]"
    if not isinstance(state, tuple | list) or len(state) != 2:
        raise ArgumentTypeError(
            format_error(
                where,
                got=f"{type(state).__name__}"
                + (f" of {len(state)}" if isinstance(state, tuple | list) else ""),
                allowed="a pair (out, lse)",
                fix='compile with outputs=("out", "lse") and give what the kernel returns',
            )
        )
    out = import_array(f"{where}: out", state[0], FLOATS)
    lse = import_array(f"{where}: lse", state[1], (ACCUM_DTYPE[out.dtype],))
    if layout == "bshd" and out.view.ndim != 4:
        _refuse(f"{where}: out", f"shape {out.view.shape}", "(B, L, H, Dv)", "give four axes")
    rows = out.view.shape[:-1]
    if layout == "bshd":
        rows = (rows[0], rows[2], rows[1])
    if out.view.ndim == 0 or lse.view.shape != rows:
        _refuse(
            where,
            f"out of shape {out.view.shape} with lse of shape {lse.view.shape}",
            "lse with one element for each row of out, layout " + layout,
            "give out and lse of one call, and its layout",
        )
    return out, lse


def _check_alike(pairs: Sequence[tuple[Operand, Operand]], layout: str) -> None:
    (first, _), *rest = pairs
    for number, (out, _) in enumerate(rest, start=1):
        if out.view.shape != first.view.shape:
            _refuse(
                f"states[{number}]: out",
                f"shape {out.view.shape}",
                f"{first.view.shape}, as in states[0]",
                f"merge results over the same rows (layout {layout})",
            )
        if out.dtype != first.dtype:
            raise ArgumentTypeError(
                format_error(
                    f"states[{number}]: out",
                    got=out.dtype,
                    allowed=f"{first.dtype}, as in states[0]",
                    fix="compile all of them with one out_dtype",
                )
            )


def _refuse(where: str, got: str, allowed: str, fix: str) -> NoReturn:
    raise ArgumentError(format_error(where, got=got, allowed=allowed, fix=fix))
