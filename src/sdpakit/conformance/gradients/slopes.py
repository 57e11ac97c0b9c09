"""Gradients through the user's change of the logits, with the errors of every derivative."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sdpakit.conformance.gradients.graded import Graded
from sdpakit.expr.nodes import Binary, Expr, Select, Unary, postorder

# A derivative with its largest error, both arrays or numbers.
_Slope = tuple[Any, Any]


def backpropagate(
    root: Expr, values: Mapping[Expr, Any], errors: Mapping[Expr, Any], seed: Graded, u: float
) -> dict[Expr, Graded]:
    """Return the gradient of every float node, with its error.

    Parameters
    ----------
    root : Expr
        The change of the logits.
    values, errors : mapping of Expr to array
        Exact value of each node, and how far a program's may be off (`propagate.node_errors`).
    seed : Graded
        Gradient with respect to `root`.
    u : float
        Unit roundoff.

    Returns
    -------
    dict of Expr to Graded
        Nodes that no gradient reaches are left out. Conditions are taken to come out right.
    """
    found = {root: seed}
    for node in reversed(list(postorder(root))):
        if node not in found or node.type != "float":
            continue
        for child, (slope, error) in _slopes(node, values, errors, u):
            part = found[node].times(slope, error, u)
            found[child] = found[child].plus(part, u) if child in found else part
    return found


def _slopes(
    node: Expr, values: Mapping[Expr, Any], errors: Mapping[Expr, Any], u: float
) -> list[tuple[Expr, _Slope]]:
    match node:
        case Unary(op=op, x=x) if op in _UNARY:
            return [(x, _UNARY[op](values[x], values[node], errors[x], errors[node], u))]
        case Binary(op=op, a=a, b=b):
            slopes = _BINARY[op](values[a], values[b], errors[a], errors[b], u)
            return list(zip((a, b), slopes, strict=True))
        case Select(cond=cond, a=a, b=b):
            taken = np.asarray(values[cond]).astype(float)
            return [(a, (taken, 0.0)), (b, (1.0 - taken, 0.0))]
    return []


def _abs(x: Any, _result: Any, e: Any, _of_result: Any, _u: float) -> _Slope:
    return np.sign(x), np.where(np.abs(x) > e, 0.0, 2.0)  # the sign may come out the other way


def _log(x: Any, _result: Any, e: Any, _of_result: Any, u: float) -> _Slope:
    size = np.abs(x)
    return 1.0 / x, e / (size * np.maximum(size - e, 0.0)) + u / size


def _tanh(_x: Any, result: Any, _e: Any, of_result: Any, u: float) -> _Slope:
    slope = 1.0 - result * result
    return slope, of_result * (2.0 * np.abs(result) + of_result) + 2.0 * u


def _sqrt(_x: Any, result: Any, _e: Any, of_result: Any, u: float) -> _Slope:
    slope = 0.5 / result
    return slope, slope * of_result / np.maximum(result - of_result, 0.0) + u * slope


_UNARY: dict[str, Callable[[Any, Any, Any, Any, float], _Slope]] = {
    "neg": lambda _x, _result, _e, _of_result, _u: (-1.0, 0.0),
    "abs": _abs,
    "exp": lambda _x, result, _e, of_result, _u: (result, of_result),
    "log": _log,
    "tanh": _tanh,
    "sqrt": _sqrt,
}


def _div(a: Any, b: Any, of_a: Any, of_b: Any, u: float) -> tuple[_Slope, _Slope]:
    near = np.maximum(np.abs(b) - of_b, 0.0)
    inverse, quotient = 1.0 / b, -a / (b * b)
    of_inverse = of_b / (np.abs(b) * near) + u * np.abs(inverse)
    most = (np.abs(a) + of_a) / (near * near)
    return (inverse, of_inverse), (quotient, most - np.abs(quotient) + 4.0 * u * most)


def _pick(a: Any, b: Any, of_a: Any, of_b: Any, *, larger: bool) -> tuple[_Slope, _Slope]:
    """Pass the gradient to one side; at a tie within errors either side, or a part to each."""
    first = np.greater_equal(a, b) if larger else np.less_equal(a, b)
    close = np.where(np.abs(np.subtract(a, b)) <= np.add(of_a, of_b), 1.0, 0.0)
    return (first.astype(float), close), (1.0 - first, close)


_BINARY: dict[str, Callable[[Any, Any, Any, Any, float], tuple[_Slope, _Slope]]] = {
    "add": lambda _a, _b, _of_a, _of_b, _u: ((1.0, 0.0), (1.0, 0.0)),
    "sub": lambda _a, _b, _of_a, _of_b, _u: ((1.0, 0.0), (-1.0, 0.0)),
    "mul": lambda a, b, of_a, of_b, _u: ((b, of_b), (a, of_a)),
    "div": _div,
    "min": lambda a, b, of_a, of_b, _u: _pick(a, b, of_a, of_b, larger=False),
    "max": lambda a, b, of_a, of_b, _u: _pick(a, b, of_a, of_b, larger=True),
}
