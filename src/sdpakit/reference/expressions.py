"""Value and gradient of an expression over arrays of pairs, from the meaning of each operation.

Indices broadcast to (Hq, Lq, Lk), integers are int64, floats are float64; `where` picks, it never
blends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sdpakit.errors import ArgumentError, InternalError, format_error
from sdpakit.expr.names import LOGIT, POSITION
from sdpakit.expr.nodes import (
    Binary,
    Const,
    Expr,
    Index,
    Load,
    Scalar,
    Select,
    Unary,
    postorder,
)
from sdpakit.expr.plain_index import is_plain_index
from sdpakit.reference.operands import Array, as_accum, checked_integer, checked_number

UNARY: dict[str, Callable[[Any], Any]] = {
    "neg": np.negative,
    "abs": np.abs,
    "not": np.logical_not,
    "exp": np.exp,
    "log": np.log,
    "tanh": np.tanh,
    "sqrt": np.sqrt,
    "floor": np.floor,
    "to_int": lambda x: np.asarray(x).astype(np.int64),
}
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "floordiv": np.floor_divide,
    "mod": np.mod,
    "min": np.minimum,
    "max": np.maximum,
    "lt": np.less,
    "le": np.less_equal,
    "eq": np.equal,
    "ne": np.not_equal,
    "and": np.logical_and,
    "or": np.logical_or,
}


@dataclass(frozen=True, slots=True, eq=False)
class Scope:
    """What the leaves of an expression stand for.

    Attributes
    ----------
    indices : mapping of str to array
        Values of `Index` nodes, broadcastable to the shape of the pairs.
    params : mapping of str to number or array
        Values of `Scalar` and `Load` nodes.
    accum : numpy.dtype
        accum_dtype: float tables enter in it.
    logit : array or None
        Value of the placeholder, in a logit expression.
    real : numpy.dtype
        Floats are computed in it: float64, but for whoever wants to see what rounding does.
    """

    indices: Mapping[str, Any]
    params: Mapping[str, Any]
    accum: np.dtype[Any]
    logit: Array | None = None
    real: np.dtype[Any] = field(default=np.dtype(np.float64))


def evaluate(root: Expr, scope: Scope) -> dict[Expr, Any]:
    """Return the value of every node below and including `root`.

    Parameters
    ----------
    root : Expr
        Expression.
    scope : Scope
        Values of its leaves.

    Returns
    -------
    dict of Expr to array
        Arrays that broadcast to the shape of the pairs.

    Raises
    ------
    ArgumentError
        If a parameter is missing or an index lies outside its table.
    """
    values: dict[Expr, Any] = {}
    with np.errstate(all="ignore"):
        for node in postorder(root):
            values[node] = _value(node, values, scope)
    return values


def _value(node: Expr, values: Mapping[Expr, Any], scope: Scope) -> Any:
    match node:
        case Const():
            return node.value
        case Index():
            return _index(node, scope)
        case Scalar():
            return _scalar(node, scope)
        case Load():
            return _load(node, values, scope)
        case Unary(op="to_float"):
            return np.asarray(values[node.x]).astype(scope.real)
        case Unary():
            return UNARY[node.op](values[node.x])
        case Binary():
            return BINARY[node.op](values[node.a], values[node.b])
        case Select():
            return np.where(values[node.cond], values[node.a], values[node.b])
    raise InternalError(f"the reference does not know {type(node).__name__} nodes")


def param(scope: Scope, name: str) -> Any:
    """Return the parameter of this name, or raise `ArgumentError`."""
    if name not in scope.params:
        raise ArgumentError(
            format_error(
                "params",
                got=sorted(scope.params),
                allowed=f"a value for {name!r}",
                fix="pass it in params=",
            )
        )
    return scope.params[name]


def _scalar(node: Scalar, scope: Scope) -> Any:
    if node is LOGIT:
        return scope.logit
    if node is POSITION:  # left open: equal lengths, where the position is the row (MASK-2)
        return scope.indices["q"]
    value = param(scope, node.name)
    check = checked_integer if node.kind == "int" else checked_number
    return check(f"params[{node.name!r}]", value)


def _index(node: Index, scope: Scope) -> Any:
    value = scope.indices[node.name]
    if value is None:
        raise ArgumentError(
            format_error(
                node.name,
                got="nothing",
                allowed="one integer, or one a batch entry",
                fix="pass q_offset=",
            )
        )
    return value


def table_indices(
    node: Load, shape: tuple[int, ...], values: Mapping[Expr, Any]
) -> tuple[Any, ...]:
    """Return the indices of a load; an axis of size 1 broadcasts under a plain index."""
    picked: list[Any] = []
    for size, index in zip(shape, node.indices, strict=True):
        at = values[index]
        if size == 1 and is_plain_index(index):
            at = np.zeros_like(at)
        if (np.asarray(at) < 0).any() or (np.asarray(at) >= size).any():
            raise ArgumentError(
                format_error(
                    f"table {node.table!r}",
                    got=f"an index from {np.min(at)} to {np.max(at)}",
                    allowed=f"0 to {size - 1}",
                    fix="clamp the index in the expression, or pass a larger table",
                )
            )
        picked.append(at)
    return tuple(np.broadcast_arrays(*picked))


def _load(node: Load, values: Mapping[Expr, Any], scope: Scope) -> Any:
    table = np.asarray(param(scope, node.table))
    if table.ndim != len(node.indices):
        raise ArgumentError(
            format_error(
                f"table {node.table!r}",
                got=f"{table.ndim} axes",
                allowed=f"{len(node.indices)} axes",
                fix="reshape it",
            )
        )
    picked = table[table_indices(node, table.shape, values)]
    if node.type == "float":
        return as_accum(picked, scope.accum).astype(scope.real)
    return picked.astype(np.int64 if node.type == "int" else bool)


def backpropagate(root: Expr, values: Mapping[Expr, Any], seed: Array) -> dict[Expr, Array]:
    """Return the gradient of `sum(seed * root)` with respect to every float node.

    Parameters
    ----------
    root : Expr
        Float expression.
    values : mapping of Expr to array
        What `evaluate` returned for `root`.
    seed : array
        Gradient with respect to `root`, in the shape of the pairs; 0 at absent pairs.

    Returns
    -------
    dict of Expr to array
        Gradients in the shape of the pairs; exactly 0 where the seed is 0 (GRAD-1).
    """
    found: dict[Expr, Array] = {root: seed}
    with np.errstate(all="ignore"):
        for node in reversed(list(postorder(root))):
            if node not in found or node.type != "float":
                continue
            for child, slope in _slopes(node, values):
                # MASK-3: an absent pair has a slope that may be NaN and must not be multiplied in.
                part = np.where(found[node] == 0, 0.0, found[node] * slope)
                found[child] = found[child] + part if child in found else part
    return found


def _slopes(node: Expr, values: Mapping[Expr, Any]) -> list[tuple[Expr, Any]]:
    """Return each float operand of a node with the derivative of the node with respect to it."""
    match node:
        case Unary(op=op, x=x) if op in ("neg", "abs", "exp", "log", "tanh", "sqrt"):
            return [(x, _unary_slope(op, values[x], values[node]))]
        case Binary(op=op, a=a, b=b):
            slopes = _binary_slopes(op, values[a], values[b])
            return [(a, slopes[0]), (b, slopes[1])]
        case Select(cond=cond, a=a, b=b):
            taken = np.asarray(values[cond]).astype(np.float64)
            return [(a, taken), (b, 1.0 - taken)]
    return []


def _unary_slope(op: str, x: Any, result: Any) -> Any:
    slopes: dict[str, Callable[[], Any]] = {
        "neg": lambda: -1.0,
        "abs": lambda: np.sign(x),
        "exp": lambda: result,
        "log": lambda: 1.0 / x,
        "tanh": lambda: 1.0 - result * result,
        "sqrt": lambda: 0.5 / result,
    }
    return slopes[op]()


def _binary_slopes(op: str, a: Any, b: Any) -> tuple[Any, Any]:
    slopes: dict[str, Callable[[], tuple[Any, Any]]] = {
        "add": lambda: (1.0, 1.0),
        "sub": lambda: (1.0, -1.0),
        "mul": lambda: (b, a),
        "div": lambda: (1.0 / b, -a / (b * b)),
        "min": lambda: (np.less_equal(a, b) * 1.0, np.less(b, a) * 1.0),
        "max": lambda: (np.greater_equal(a, b) * 1.0, np.greater(b, a) * 1.0),
    }
    return slopes[op]()
