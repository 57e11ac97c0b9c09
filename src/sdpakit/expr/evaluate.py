"""The definition of every operation of the scalar language, as NumPy over arrays of pairs.

Slow, clear and complete: the `interp` backend runs it, every other backend must agree with it.
Integers are int64 (a call proves beforehand that nothing passes 62 bits), floats are accum_dtype
(NUM-1). No operation warns: -inf, inf and NaN are legal values (MASK-6, NUM-4).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sdpakit.errors import ArgumentError, InternalError, format_error
from sdpakit.expr.nodes import (
    Binary,
    Const,
    Dot,
    Expr,
    Index,
    Load,
    Scalar,
    Select,
    Unary,
    postorder,
)
from sdpakit.expr.plain_index import is_plain_index

Array = np.ndarray[Any, np.dtype[Any]]

# to_float and to_int depend on accum_dtype: see `Environment.cast`.
UNARY_MEANING: dict[str, Callable[[Any], Any]] = {
    "neg": np.negative,
    "abs": np.abs,
    "not": np.logical_not,
    "exp": np.exp,
    "log": np.log,  # -inf at 0, NaN below
    "tanh": np.tanh,
    "sqrt": np.sqrt,  # NaN below 0
    "floor": np.floor,
}
BINARY_MEANING: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,  # IEEE: x/0 is inf with the sign of both, 0/0 NaN
    "floordiv": np.floor_divide,
    "mod": np.mod,
    "min": np.minimum,  # NaN if either is NaN
    "max": np.maximum,
    "lt": np.less,
    "le": np.less_equal,
    "eq": np.equal,
    "ne": np.not_equal,
    "and": np.logical_and,
    "or": np.logical_or,
}


@dataclass(frozen=True, slots=True)
class Environment:
    """What the leaves of an expression stand for.

    Attributes
    ----------
    accum_dtype : str
        "float32" or "float64": the dtype of every float.
    indices : mapping of str to array or int
        Integers by index name, of shapes that broadcast together, such as (B, 1, 1, 1) for b.
    scalars : mapping of str to number
        Run-time numbers by name.
    tables : mapping of str to array
        Run-time arrays by name, with one axis for each index of their loads.
    dot : array or None
        <q_i, k_j>, of a shape that broadcasts with the indices.
    """

    accum_dtype: str
    indices: Mapping[str, Array | int] = field(default_factory=dict)
    scalars: Mapping[str, bool | int | float] = field(default_factory=dict)
    tables: Mapping[str, Array] = field(default_factory=dict)
    dot: Array | None = None

    def cast(self, value: object, kind: str) -> Array:
        """Return a value as an array of the dtype that its type has here."""
        dtype = {"bool": "bool", "int": "int64", "float": self.accum_dtype}[kind]
        return np.asarray(value).astype(dtype, copy=False)


def evaluate(root: Expr, environment: Environment) -> Array:
    """Return the value of an expression for every pair.

    Parameters
    ----------
    root : Expr
        Any node whose leaves the environment holds.
    environment : Environment
        What the leaves stand for.

    Returns
    -------
    ndarray
        bool, int64 or accum_dtype, of the broadcast shape of the leaves that occur.

    Raises
    ------
    ArgumentError
        If an index leaves its table.
    InternalError
        If a leaf is not in the environment.
    """
    values: dict[Expr, Array] = {}
    with np.errstate(all="ignore"):
        for node in postorder(root):
            values[node] = np.asarray(_value(node, values, environment))
    return values[root]


def _value(node: Expr, values: dict[Expr, Array], environment: Environment) -> Any:
    match node:
        case Unary(op="to_float" | "to_int"):
            return environment.cast(values[node.x], node.type)
        case Unary():
            return UNARY_MEANING[node.op](values[node.x])
        case Binary():
            return BINARY_MEANING[node.op](values[node.a], values[node.b])
        case Select():
            return np.where(values[node.cond], values[node.a], values[node.b])
        case Load():
            return environment.cast(_gather(node, values, environment), node.type)
        case Const():
            return environment.cast(node.value, node.type)
        case _:
            return environment.cast(_leaf(node, environment), node.type)


def _leaf(node: Expr, environment: Environment) -> object:
    match node:
        case Index(name=name) if name in environment.indices:
            return environment.indices[name]
        case Scalar(name=name) if name in environment.scalars:
            return environment.scalars[name]
        case Dot() if environment.dot is not None:
            return environment.dot
        case _:
            raise InternalError(f"evaluate: the environment has no value for {node!r}")


def _gather(node: Load, values: dict[Expr, Array], environment: Environment) -> Array:
    if node.table not in environment.tables:
        raise InternalError(f"evaluate: the environment has no table {node.table!r}")
    table = environment.tables[node.table]
    picks = []
    for axis, (index, size) in enumerate(zip(node.indices, table.shape, strict=True)):
        pick = values[index]
        if size == 1 and is_plain_index(index):
            pick = np.zeros_like(pick)
        # NumPy would take a negative index from the end.
        elif pick.size and (pick.min() < 0 or pick.max() >= size):
            raise ArgumentError(
                format_error(
                    f"table {node.table!r}, axis {axis}",
                    got=f"indices {pick.min()} to {pick.max()}",
                    allowed=f"0 to {size - 1}",
                    fix="give a larger array, or bound the index with minimum and maximum",
                )
            )
        picks.append(pick)
    return np.asarray(table[tuple(picks)])
