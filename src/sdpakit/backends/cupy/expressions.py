"""Scalar language -> CUDA C++: an expression as a function of one pair.

Nothing is guarded here: the call has proven that every load lies inside its table, that divisors
are positive and that integers fit `index_t` (`sdpakit.passes.integers`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from sdpakit.backends.cupy.source import Source
from sdpakit.errors import LoweringError
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
from sdpakit.expr.text import to_text

# C++ types of stored elements, by dtype.
STORED: dict[str, str] = {
    "float16": "f16",
    "bfloat16": "bf16",
    "float32": "f32",
    "float64": "f64",
    "bool": "unsigned char",
    "int8": "signed char",
    "uint8": "unsigned char",
    "int16": "short",
    "uint16": "unsigned short",
    "int32": "int",
    "uint32": "unsigned",
    "int64": "i64",
    "uint64": "u64",
}
_KIND = {"bool": "bool", "int": "index_t", "float": "accum_t"}
_INDEX = {
    "b": "(index_t)at.b",
    "h": "(index_t)at.h",
    "q": "(index_t)q",
    "k": "(index_t)k",
    "q_len": "(index_t)at.q_len",
    "kv_len": "(index_t)at.kv_len",
    "q_offset": "(index_t)at.q_offset",
}
_INFIX = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "lt": "<",
    "le": "<=",
    "eq": "==",
    "ne": "!=",
    "and": "&&",
    "or": "||",
}
_CALLS = {
    "floordiv": "floor_division",
    "mod": "floor_remainder",
    "min": "smallest",
    "max": "largest",
}
_FUNCTIONS = ("exp", "log", "tanh", "sqrt", "floor")


def emit_function(source: Source, name: str, root: Expr, arguments: Sequence[str]) -> None:
    """Add a device function that returns an expression.

    Parameters
    ----------
    source : Source
        Written to.
    name : str
        Of the function.
    root : Expr
        What it returns.
    arguments : sequence of str
        Declarations behind ``const Call& c, const Place& at``.
    """
    source.comment(f"{name} = {to_text(root)}")
    with source.braces(_head(_KIND[root.type], name, arguments)):
        source.line(f"return {_emit(source, root, {})};")
    source.line()


def emit_index(
    source: Source,
    name: str,
    indices: Sequence[Expr],
    strides: Sequence[str],
    arguments: Sequence[str],
) -> None:
    """Add a device function that returns the number of an element of a table.

    Parameters
    ----------
    source, name, arguments
        As of `emit_function`.
    indices : sequence of Expr
        One for each axis.
    strides : sequence of str
        Elements from one index of an axis to the next, as C++.
    """
    with source.braces(_head("i64", name, arguments)):
        values: dict[Expr, str] = {}
        steps = [
            f"(i64){_emit(source, index, values)} * {stride}"
            for index, stride in zip(indices, strides, strict=True)
        ]
        source.line(f"return {' + '.join(steps) or '0'};")
    source.line()


def _head(kind: str, name: str, arguments: Sequence[str]) -> str:
    declared = ", ".join(("const Call& c", "const Place& at", *arguments))
    return f"__device__ __forceinline__ {kind} {name}({declared})"


def _emit(source: Source, root: Expr, values: dict[Expr, str]) -> str:
    """Add constants for the parts of an expression that have none yet; return its text."""
    for node in postorder(root):
        if node not in values:
            values[node] = _place(source, node, values)
    return values[root]


def _place(source: Source, node: Expr, values: dict[Expr, str]) -> str:
    """Return the text of a node's value: a literal, or the name of a new constant."""
    match node:
        case Const():
            return constant(node)
        case Dot():
            return "dot"
    return source.define(_KIND[node.type], _value(node, values))


def _value(node: Expr, values: dict[Expr, str]) -> str:
    match node:
        case Index(name=name):
            return _INDEX[name]
        case Scalar(name=name):
            return f"({_KIND[node.type]})c.{scalar_field(name)}"
        case Load():
            return load_text(node, [values[index] for index in node.indices])
        case Unary(op=op, x=x):
            return _unary(op, node.x.type, values[x])
        case Binary(op=op, a=a, b=b):
            left, infix, right = values[a], _INFIX.get(op), values[b]
            return f"{left} {infix} {right}" if infix else f"{_CALLS[op]}({left}, {right})"
        case Select(cond=cond, a=a, b=b):
            return f"{values[cond]} ? {values[a]} : {values[b]}"
    raise LoweringError(f"no CUDA C++ for {node!r}")


def _unary(op: str, kind: str, x: str) -> str:
    if op in _FUNCTIONS:
        return f"{op}_of({x})"
    if op == "abs":
        return f"abs_of({x})" if kind == "float" else f"({x} < 0 ? -{x} : {x})"
    return {"neg": f"-{x}", "not": f"!{x}", "to_float": f"(accum_t){x}", "to_int": f"(index_t){x}"}[
        op
    ]


def constant(node: Const) -> str:
    """Return a literal of its C++ type."""
    value = node.value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return f"index_t({value}ll)"
    if math.isnan(value):
        return "NOT_A_NUMBER"
    if math.isinf(value):
        return "INFINITE" if value > 0 else "(-INFINITE)"
    return f"accum_t({value.hex()})"


def scalar_field(name: str) -> str:
    """Return the field of `Call` that holds a run-time scalar."""
    return f"scalar_{name}"


def table_field(name: str) -> str:
    """Return what the fields of a table begin with."""
    return f"table_{name}"


def load_text(node: Load, indices: Sequence[str]) -> str:
    """Return the text that loads an element."""
    table = table_field(node.table)
    offsets = [f" + (i64){i} * c.{table}_stride{n}" for n, i in enumerate(indices)]
    element = f"load<{STORED[node.dtype]}>(c.{table}{''.join(offsets)})"
    if node.type == "bool":
        return f"{element} != 0"
    return f"({_KIND[node.type]}){f'widen({element})' if node.type == 'float' else element}"
