"""What the backward pass wants to know of each row, from what the forward pass kept of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sdpakit.backends.numba_cpu import abi

Array = np.ndarray[Any, Any]

_SMALL = 2.0**16  # maxima below, in units of m, take another quarter without rounding


@dataclass(frozen=True, slots=True)
class Rows:
    """Numbers of each row (B, Hq, Lq), in accum_dtype.

    Attributes
    ----------
    base : ndarray
        m in units of `abi.M_UNIT` log2 units; 0 for an empty row (NUM-2), NaN for one of +inf.
    inverse : ndarray
        1 / l, where l is relative to m and the sink is in it; 0 for an empty row.
    sink_weights : ndarray or None
        Weight of the sink in float64, 0 for an empty row (EMPTY-1); None without sinks.
    """

    base: Array
    inverse: Array
    sink_weights: Array | None


def prepare_rows(m: Array, total: Array, sinks: Array | None) -> Rows:
    """Return the numbers of the rows.

    The power of two in l moves to m, exactly: then 1 / l is near 1 whatever maximum the forward
    pass happened to end with, and dO / l neither overflows nor underflows.

    Parameters
    ----------
    m, total : ndarray
        Maximum in units of `abi.M_UNIT` and sum l of each row, the sink left out.
    sinks : (Hq,) ndarray or None
        Sinks in natural units.
    """
    with np.errstate(all="ignore"):
        wide, exact = total.astype(np.float64), m.astype(np.float64)
        fraction, exponent = np.frexp(wide)
        moves = (np.abs(exact) < _SMALL) & np.isfinite(wide)
        wide = np.where(moves, fraction, wide)
        exact = np.where(moves, exact + exponent / abi.M_UNIT, exact)
        empty = total == 0
        shares = None
        whole = wide
        if sinks is not None:
            whole, shares = _with_sink(exact, wide, sinks.astype(np.float64)[:, None])
            shares = np.where(empty, 0.0, shares)
        base = np.where(m == -np.inf, 0.0, np.where(m == np.inf, np.nan, exact))
        inverse = np.where(empty, 0.0, 1.0 / whole)
    return Rows(base.astype(m.dtype), inverse.astype(m.dtype), shares)


def _with_sink(m: Array, total: Array, sink: Array) -> tuple[Array, Array]:
    """Return l with the sink in it, and the weight of the sink (SINK-1)."""
    sink = np.where(sink == np.inf, np.nan, sink)  # NUM-4
    apart = sink * abi.LOG2_E - abi.M_UNIT * m
    return total + np.exp2(apart), 1.0 / (1.0 + total * np.exp2(-apart))
