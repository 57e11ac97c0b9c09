"""Folding the factor 1/sqrt(head_dim) into projection weights (FOLD-1)."""

from __future__ import annotations

import math
from typing import Any, TypeVar

import numpy as np

from sdpakit.calling import checked_call
from sdpakit.dtypes import ACCUM_DTYPE, FLOATS, dtype_name
from sdpakit.errors import ArgumentError, ArgumentTypeError, format_error
from sdpakit.plain_numbers import plain_number

QueryWeights = TypeVar("QueryWeights")
KeyWeights = TypeVar("KeyWeights")

HOWS: tuple[str, ...] = ("query", "both")


@checked_call
def fold_scale(
    w_q: QueryWeights, w_k: KeyWeights, head_dim: int, how: str = "query"
) -> tuple[QueryWeights, KeyWeights]:
    """Return projection weights that have the factor 1/sqrt(head_dim) in them (FOLD-1).

    Attention over projections by the new weights with ``scale=1.0`` is the same function as over
    those by the old weights with ``scale=None``. A projection with a bias needs both folded: call
    again with the biases in place of the weights. The gradient of a folded weight is that of the
    unfolded one divided by the constant that was folded in.

    Parameters
    ----------
    w_q, w_k : array
        Weights (or biases) of the projections to queries and keys, floating, of any orientation:
        one axis is heads x head_dim. NumPy arrays, or arrays of another library that multiply by a
        Python float and keep their dtype (torch tensors do).
    head_dim : int
        Width D of one head.
    how : {"query", "both"}
        "query": ``w_q * D**-0.5``, and `w_k` comes back as it is. "both": ``w_q * D**-0.25`` and
        ``w_k * D**-0.25``, which shares the loss of range between the two. ``D**-0.25`` on `w_q`
        alone would not be the same function.

    Returns
    -------
    tuple of array
        New arrays in the dtype of the old ones; the old ones are unchanged. Each product is taken
        in accum_dtype (float32, or float64 for float64) and rounded once. It is exact, apart from
        subnormals, where the constant is a power of two: D a power of 4 for "query", of 16 for
        "both".

    Raises
    ------
    ArgumentError
        If `head_dim` is below 1, divides no axis, or `how` is neither.
    ArgumentTypeError
        If a weight is no floating array.

    Examples
    --------
    >>> import numpy as np
    >>> w_q, w_k = fold_scale(np.ones((8, 32)), np.ones((8, 32)), head_dim=16)
    >>> float(w_q[0, 0]), float(w_k[0, 0])
    (0.25, 1.0)
    """
    width = _head_dim(head_dim)
    _check_how(how)
    for name, weight in (("w_q", w_q), ("w_k", w_k)):
        _check_weight(name, weight, width)
    if how == "query":
        return _times(w_q, 1.0 / math.sqrt(width)), w_k
    factor = 1.0 / math.sqrt(math.sqrt(width))
    return _times(w_q, factor), _times(w_k, factor)


def _head_dim(value: object) -> int:
    number = plain_number(value)
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise ArgumentError(
            format_error(
                "head_dim",
                got=repr(value),
                allowed="an integer >= 1",
                fix="give the width of ONE head, not of the model (SCALE-1)",
            )
        )
    return number


def _check_how(how: object) -> None:
    if how not in HOWS:
        raise ArgumentError(
            format_error(
                "how",
                got=repr(how),
                allowed='"query": D**-0.5 into w_q | "both": D**-0.25 into each',
                fix="name one of these; D**-0.25 into w_q alone is another function",
            )
        )


def _check_weight(name: str, weight: Any, head_dim: int) -> None:
    dtype = dtype_name(getattr(weight, "dtype", type(weight)))
    if dtype not in FLOATS or getattr(weight, "shape", None) is None:
        raise ArgumentTypeError(
            format_error(
                name,
                got=f"{type(weight).__name__} of dtype {dtype}",
                allowed="an array of " + " | ".join(FLOATS),
                fix="convert it; quantised weights take the factor in their own scales",
            )
        )
    shape = tuple(int(size) for size in weight.shape)
    if not any(size % head_dim == 0 for size in shape):
        raise ArgumentError(
            format_error(
                name,
                got=f"shape {shape} with head_dim={head_dim}",
                allowed="an axis of heads * head_dim",
                fix="give the weights of one projection and the width of one head",
            )
        )


def _times(weight: Any, factor: float) -> Any:
    if not isinstance(weight, np.ndarray):
        return weight * factor
    accum = ACCUM_DTYPE[dtype_name(weight.dtype)]
    # One rounding: in float16 the factor itself would be rounded first.
    return (weight.astype(accum) * np.asarray(factor, accum)).astype(weight.dtype)
