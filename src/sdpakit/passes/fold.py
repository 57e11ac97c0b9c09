"""Folding: constants are computed, operations that change nothing vanish.

Every rule keeps every bit of every result, NaN and the sign of zero included. What may look like a
fold and is none, for floats: `x * 0` (x may be infinite or NaN), `x + 0.0` (turns -0.0 into 0.0;
`x + -0.0` is a fold), `x - x`, `x == x` and `x <= x` (NaN), `not (x < y)` as `y <= x` (NaN).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from sdpakit.expr.evaluate import Environment, evaluate
from sdpakit.expr.nodes import Binary, Const, Expr, Select, Unary
from sdpakit.ir.program import Program
from sdpakit.ir.rules import Rule, rewrite_program
from sdpakit.passes.linear import linear

TRUE, FALSE = Const(True), Const(False)

_INTEGER_UNARY: dict[str, Callable[[int], int]] = {"neg": lambda x: -x, "abs": abs}
_INTEGER_BINARY: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "min": min,
    "max": max,
}


def fold(program: Program) -> Program:
    """Return the program with its expressions folded.

    Parameters
    ----------
    program : Program
        Any program.

    Returns
    -------
    Program
        One that gives the same bits.
    """
    return rewrite_program(program, fold_rules(program.accum_dtype))


def fold_rules(accum_dtype: str) -> tuple[Rule, ...]:
    """Return the rules of this pass.

    Parameters
    ----------
    accum_dtype : str
        The dtype in which floats are computed.

    Returns
    -------
    tuple of Rule
        In the order in which they are tried.
    """

    def fold_float_constant(node: Expr) -> Expr | None:
        return _float_constant(node, accum_dtype)

    def fold_division(node: Expr) -> Expr | None:
        return _division(node, accum_dtype)

    return (
        fold_integer_constant,
        fold_float_constant,
        fold_logic,
        fold_bool_comparison,
        fold_integer,
        fold_integer_comparison,
        fold_float,
        fold_division,
        fold_sign,
        fold_select,
    )


def fold_integer_constant(node: Expr) -> Expr | None:
    """Compute an int operation on literals, exactly."""
    match node:
        case Unary(op="to_int", x=Const(value=x)):
            return Const(int(x))
        case Unary(op=op, x=Const(type="int", value=x)) if op in _INTEGER_UNARY:
            return Const(_INTEGER_UNARY[op](int(x)))
        case Binary(op="floordiv" | "mod", b=Const(value=b)) if b < 1:
            return None  # refused at the call, with a message
        case Binary(op=op, a=Const(type="int", value=a), b=Const(value=b)) if op in _INTEGER_BINARY:
            return Const(_INTEGER_BINARY[op](int(a), int(b)))
    return None


def _float_constant(node: Expr, accum_dtype: str) -> Expr | None:
    """Compute a float operation on literals as it is defined, in accum_dtype."""
    if isinstance(node, Const) or not all(isinstance(x, Const) for x in node.children()):
        return None
    match node:
        case Unary(op="to_float", x=Const(value=x)) if abs(x) >= 2**62:
            return None  # the definition knows 64 bits
        case Unary(x=x) if node.type == "float" or x.type == "float":
            value = evaluate(node, Environment(accum_dtype)).item()
        case Binary(a=Const(type="float")):
            value = evaluate(node, Environment(accum_dtype)).item()
        case _:
            return None
    return Const(value)


def fold_logic(node: Expr) -> Expr | None:
    """Simplify and, or, not with literals, equal operands and opposites."""
    match node:
        case Unary(op="not", x=Const(value=x)):
            return Const(not x)
        case Unary(op="not", x=Unary(op="not", x=x)):
            return x
        case Binary(op=("and" | "or") as op, a=a, b=b):
            neutral, absorbing = (TRUE, FALSE) if op == "and" else (FALSE, TRUE)
            if a is neutral or a is b:
                return b
            if b is neutral:
                return a
            if absorbing in (a, b) or a is Unary("not", b) or b is Unary("not", a):
                return absorbing
    return None


def fold_bool_comparison(node: Expr) -> Expr | None:
    """Simplify == and != of bools where one side is a literal or the other side."""
    match node:
        case Binary(op=("eq" | "ne") as op, a=Const(type="bool") as a, b=b):
            return b if (op == "eq") == a.value else Unary("not", b)
        case Binary(op=("eq" | "ne") as op, a=a, b=Const(type="bool") as b):
            return a if (op == "eq") == b.value else Unary("not", a)
        case Binary(op=("eq" | "ne") as op, a=a, b=b) if a is b and a.type == "bool":
            return Const(op == "eq")
    return None


def fold_integer(node: Expr) -> Expr | None:
    """Drop int operations that change nothing; an int times zero is zero."""
    if node.type != "int":
        return None
    zero, one = Const(0), Const(1)
    match node:
        case Binary(op="mul", a=a, b=b) if zero in (a, b):
            return zero
        case Binary(op="mod", b=b) if b is one:
            return zero
        case Binary(op="add", a=a, b=b) if a is zero:
            return b
        case Binary(op="mul", a=a, b=b) if a is one:
            return b
        case Binary(op="add" | "sub", a=a, b=b) if b is zero:
            return a
        case Binary(op="mul" | "floordiv", a=a, b=b) if b is one:
            return a
        case Binary(op="sub", a=a, b=b) if a is b:
            return zero
    return None


def fold_integer_comparison(node: Expr) -> Expr | None:
    """Decide a comparison of ints whose difference is a literal."""
    match node:
        case Binary(op=("lt" | "le" | "eq" | "ne") as op, a=a, b=b) if a.type == "int":
            difference = linear(a).plus(linear(b), -1)
            if difference.terms:
                return None
            x = difference.const
            return Const({"lt": x < 0, "le": x <= 0, "eq": x == 0, "ne": x != 0}[op])
    return None


def fold_float(node: Expr) -> Expr | None:
    """Drop float operations that give back the bits of their operand, whatever it is."""
    one, minus_one, minus_zero = Const(1.0), Const(-1.0), Const(-0.0)
    match node:
        case Binary(op="mul", a=a, b=b) if a is one:
            return b
        case Binary(op="mul" | "div", a=a, b=b) if b is one:
            return a
        case Binary(op="mul", a=a, b=b) if a is minus_one:
            return Unary("neg", b)
        case Binary(op="mul" | "div", a=a, b=b) if b is minus_one:
            return Unary("neg", a)
        case Binary(op="add", a=a, b=b) if a is minus_zero:
            return b
        case Binary(op="add", a=a, b=b) if b is minus_zero:
            return a
        case Binary(op="sub", a=a, b=b) if b is Const(0.0):
            return a
    return None


def _division(node: Expr, accum_dtype: str) -> Expr | None:
    """Turn a division by a power of two into a product: the reciprocal is exact."""
    match node:
        case Binary(op="div", a=a, b=Const(value=c)) if math.frexp(c)[0] in (0.5, -0.5):
            largest = 126 if accum_dtype == "float32" else 1022
            if abs(math.frexp(c)[1] - 1) <= largest:
                return Binary("mul", a, Const(1.0 / c))
    return None


def fold_sign(node: Expr) -> Expr | None:
    """Merge negations and absolute values into each other and into sums."""
    match node:
        case Unary(op="neg", x=Unary(op="neg", x=x)):
            return x
        case Unary(op="abs", x=Unary(op="neg" | "abs", x=x)):
            return Unary("abs", x)
        case Binary(op="add", a=a, b=Unary(op="neg", x=x)):
            return Binary("sub", a, x)
        case Binary(op="sub", a=a, b=Unary(op="neg", x=x)):
            return Binary("add", a, x)
        case Binary(op="min" | "max", a=a, b=b) if a is b:
            return a
    return None


def fold_select(node: Expr) -> Expr | None:
    """Drop a selection that is decided, or write one of bools as logic."""
    match node:
        case Select(cond=Const(value=cond), a=a, b=b):
            return a if cond else b
        case Select(a=a, b=b) if a is b:
            return a
        case Select(cond=Unary(op="not", x=cond), a=a, b=b):
            return Select(cond, b, a)
        case Select(cond=cond, a=a, b=b) if a is TRUE:
            return Binary("or", cond, b)
        case Select(cond=cond, a=a, b=b) if a is FALSE:
            return Binary("and", Unary("not", cond), b)
        case Select(cond=cond, a=a, b=b) if b is TRUE:
            return Binary("or", Unary("not", cond), a)
        case Select(cond=cond, a=a, b=b) if b is FALSE:
            return Binary("and", cond, a)
    return None
