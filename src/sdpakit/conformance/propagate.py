"""How far a float expression can be off when its operands are off and every operation rounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sdpakit.conformance.inputs import Array
from sdpakit.conformance.model import Profile
from sdpakit.conformance.smallest import SMALLEST
from sdpakit.dtypes import DTYPES
from sdpakit.expr.names import LOGIT
from sdpakit.expr.nodes import Binary, Const, Expr, Scalar, Select, Unary, postorder


def propagate(
    root: Expr, values: Mapping[Expr, Any], logit_error: Array, profile: Profile, accum: str
) -> Array:
    """Return the largest error of a logit expression.

    Parameters
    ----------
    root : Expr
        Float expression over the placeholder of the logit.
    values : mapping of Expr to array
        Exact values of its nodes.
    logit_error : array
        Largest error of the placeholder.
    profile : Profile
        Errors of exp and tanh.
    accum : str
        The dtype that operations round to.

    Returns
    -------
    array
        In the shape of `logit_error`. Conditions are taken to come out right.
    """
    errors = node_errors(root, values, logit_error, profile, accum)
    return np.broadcast_to(errors[root], logit_error.shape)


def node_errors(
    root: Expr, values: Mapping[Expr, Any], logit_error: Array, profile: Profile, accum: str
) -> dict[Expr, Any]:
    """Return the largest error of every float node of a logit expression.

    Parameters
    ----------
    root, values, logit_error, profile, accum
        As for `propagate`.

    Returns
    -------
    dict of Expr to array
        Arrays that broadcast to the shape of the pairs.
    """
    errors: dict[Expr, Any] = {}
    with np.errstate(all="ignore"):
        for node in postorder(root):
            if node.type == "float":
                error = _error(node, values, errors, logit_error, profile, accum)
                # An infinity is there or it is not; what comes of it, as tanh(inf), is exact again.
                errors[node] = np.where(np.isinf(values[node]), 0.0, error)
    return errors


def _error(
    node: Expr,
    values: Mapping[Expr, Any],
    errors: Mapping[Expr, Any],
    logit_error: Array,
    profile: Profile,
    accum: str,
) -> Any:
    u, value = DTYPES[accum].unit_roundoff, values[node]
    match node:
        case Scalar() if node is LOGIT:
            return logit_error
        case Const() | Scalar():  # rounded to accum_dtype on entry
            return _rounded(0.0, u, value, accum, "entry")
        case Unary(op="to_float"):
            return u * np.abs(value)
        case Unary(op=op, x=x):
            carried = _UNARY[op](values[x], value, errors[x])
            return _rounded(carried, _rounding(op, profile, u), value, accum, op)
        case Binary(op=op, a=a, b=b):
            carried = _BINARY[op](values[a], values[b], errors[a], errors[b])
            return _rounded(carried, u, value, accum, op)
        case Select(cond=cond, a=a, b=b):
            return np.where(values[cond], errors[a], errors[b])
    return 0.0  # Load: the reference reads tables as accum_dtype holds them


# What is rounded below the normal range though its operands are exact there; sums are not.
_UNDERFLOWS = ("entry", "mul", "div", "exp", "tanh")


def _rounded(carried: Any, u: float, value: Any, accum: str, op: str) -> Any:
    """Return the error of a result, rounded, whose operands have led to an error already.

    Below the normal range a result is off by up to half the smallest subnormal, or by two halves; a
    result that is 0 in every case is exact.
    """
    error = carried + u * np.abs(value)
    if op not in _UNDERFLOWS:
        return error
    zero = np.equal(value, 0.0) & np.equal(carried, 0.0)
    return error + np.where(zero, 0.0, SMALLEST[accum])


def _rounding(op: str, profile: Profile, u: float) -> float:
    units = {"neg": 0.0, "abs": 0.0, "floor": 0.0, "exp": profile.exp, "tanh": profile.tanh}
    return u * units.get(op, 4.0)


def _log_error(x: Any, _result: Any, e: Any) -> Any:
    return e / np.maximum(np.abs(x) - e, 0.0)


def _sqrt_error(x: Any, _result: Any, e: Any) -> Any:
    return np.where(np.equal(e, 0.0), 0.0, e / np.sqrt(np.maximum(x - e, 0.0)))


def _floor_error(x: Any, _result: Any, e: Any) -> Any:
    return np.ceil(np.floor(x + e) - np.floor(x - e))


_UNARY: dict[str, Callable[[Any, Any, Any], Any]] = {
    "neg": lambda _x, _result, e: e,
    "abs": lambda _x, _result, e: e,
    "exp": lambda _x, result, e: np.abs(result) * np.expm1(e),
    "log": _log_error,
    "tanh": lambda x, _result, e: e * (1.0 - np.tanh(np.maximum(np.abs(x) - e, 0.0)) ** 2),
    "sqrt": _sqrt_error,
    "floor": _floor_error,
}


def _sum_error(_a: Any, _b: Any, of_a: Any, of_b: Any) -> Any:
    return of_a + of_b


def _largest_error(_a: Any, _b: Any, of_a: Any, of_b: Any) -> Any:
    return np.maximum(of_a, of_b)


_BINARY: dict[str, Callable[[Any, Any, Any, Any], Any]] = {
    "add": _sum_error,
    "sub": _sum_error,
    "mul": lambda a, b, of_a, of_b: np.abs(a) * of_b + np.abs(b) * of_a + of_a * of_b,
    "div": lambda a, b, of_a, of_b: (
        (np.abs(a / b) * of_b + of_a) / np.maximum(np.abs(b) - of_b, 0.0)
    ),
    "min": _largest_error,
    "max": _largest_error,
}
