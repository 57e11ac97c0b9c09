"""What operators of Python mean for int64, float64 and truth values of the drivers, as LLVM code.

Integers wrap around, quotients too, and divide as Python's do, towards minus infinity; a division
by 0 gives 0 and stops nobody. Floats follow IEEE 754, without leave to change anything.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from sdpakit.backends.numba_cpu.functions import declare
from sdpakit.backends.numba_cpu.irtypes import F64, I1, I64, Value
from sdpakit.errors import InternalError

_ON_INTS = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.BitAnd: "and_",
    ast.BitOr: "or_",
    ast.LShift: "shl",
}
_ON_FLOATS = {ast.Add: "fadd", ast.Sub: "fsub", ast.Mult: "fmul", ast.Div: "fdiv"}
_COMPARISONS = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
}


def binary(b: Any, operator: ast.operator, x: Value, y: Value) -> Value:
    """Return `x operator y`; an integer beside a float is taken for one.

    Raises
    ------
    InternalError
        If there is no such operator for such operands.
    """
    kind = type(operator)
    x, y = _alike(b, x, y)
    if x.type == F64 and kind is ast.Pow:
        return b.call(declare(b.module, "llvm.pow.f64", F64, [F64, F64]), [x, y])
    if kind in (ast.FloorDiv, ast.Mod) and x.type == I64:
        return divided(b, x, y)[kind is ast.Mod]
    name = (_ON_FLOATS if x.type == F64 else _ON_INTS).get(kind)
    if name is None or x.type == I1:
        raise InternalError(f"a driver cannot compute {kind.__name__} of {x.type}")
    return getattr(b, name)(x, y)


def _alike(b: Any, x: Value, y: Value) -> tuple[Value, Value]:
    """Return both in one type."""
    if x.type == y.type:
        return x, y
    if I1 in (x.type, y.type):
        raise InternalError("a driver mixes a truth value and a number")
    return as_float(b, x), as_float(b, y)


def as_float(b: Any, x: Value) -> Value:
    """Return a number as a float64."""
    return x if x.type == F64 else b.sitofp(x, F64)


def divided(b: Any, x: Value, y: Value) -> tuple[Value, Value]:
    """Return quotient and remainder of two integers, rounded towards minus infinity."""
    zero, one = I64(0), I64(1)
    # Processors stop at y = 0, and at y = -1 where the quotient wraps around: there it is x * y.
    by_product = b.icmp_unsigned("<", b.add(y, one), I64(2))
    safe = b.select(by_product, one, y)
    divided_by_safe = b.select(by_product, b.mul(x, y), x)
    quotient, rest = b.sdiv(divided_by_safe, safe), b.srem(divided_by_safe, safe)
    other_sign = b.icmp_signed("<", b.xor(rest, safe), zero)
    moved = b.and_(b.icmp_signed("!=", rest, zero), other_sign)
    quotient = b.sub(quotient, b.zext(moved, I64))
    return quotient, b.add(rest, b.select(moved, safe, zero))


def compared(b: Any, operator: ast.cmpop, x: Value, y: Value) -> Value:
    """Return whether `x operator y`; only `!=` holds for a NaN."""
    sign = _COMPARISONS.get(type(operator))
    if sign is None:
        raise InternalError(f"a driver cannot compare by {type(operator).__name__}")
    x, y = _alike(b, x, y)
    if x.type != F64:
        return b.icmp_signed(sign, x, y)
    return (b.fcmp_unordered if sign == "!=" else b.fcmp_ordered)(sign, x, y)


def truth(b: Any, x: Value) -> Value:
    """Return whether a value is true."""
    if x.type == I1:
        return x
    return b.icmp_signed("!=", x, I64(0)) if x.type == I64 else b.fcmp_unordered("!=", x, F64(0.0))


def negated(b: Any, operator: ast.unaryop, x: Value) -> Value:
    """Return `operator x` for minus, not, and ~."""
    if isinstance(operator, ast.Not):
        return b.not_(truth(b, x))
    if isinstance(operator, ast.USub):
        return b.fneg(x) if x.type == F64 else b.neg(x)
    if isinstance(operator, ast.Invert) and x.type == I64:
        return b.not_(x)
    raise InternalError(f"a driver cannot compute {type(operator).__name__} of {x.type}")


def _least(b: Any, x: Value, y: Value) -> Value:
    return b.select(b.icmp_signed("<", y, x), y, x)


def _largest(b: Any, x: Value, y: Value) -> Value:
    return b.select(b.icmp_signed(">", y, x), y, x)


def _log2(b: Any, x: Value) -> Value:
    return b.call(declare(b.module, "llvm.log2.f64", F64, [F64]), [x])


def _is_nan(b: Any, x: Value) -> Value:
    return b.fcmp_unordered("uno", x, x)


# Functions that Python brings along, by their full name; `min` and `max` are those of two integers.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "builtins.divmod": divided,
    "builtins.min": _least,
    "builtins.max": _largest,
    "math.log2": _log2,
    "math.isnan": _is_nan,
}
