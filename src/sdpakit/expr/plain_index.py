"""Which indices of a table are plain: under those alone an axis of size 1 broadcasts (EXPR-1)."""

from __future__ import annotations

from sdpakit.expr.nodes import Binary, Const, Expr, Index, Select, Unary
from sdpakit.expr.rewrite import rewrite_once


def is_plain_index(node: Expr) -> bool:
    """Return whether an index is one of `INDICES`, operations that change nothing left out.

    `i.k + 0` and `i.b * 1` are as plain as `i.k` and `i.b`, so that an axis of size 1 means the
    same before and after expressions are folded.

    Parameters
    ----------
    node : Expr
        Int.

    Returns
    -------
    bool
        False for literals.
    """
    return isinstance(node, Index) or isinstance(rewrite_once(node, _simpler), Index)


def _simpler(node: Expr) -> Expr | None:
    """Return what a node whose operands are simple comes down to, or None."""
    found = _decided(node)
    return _without_neutral(node) if found is None else found


def _decided(node: Expr) -> Expr | None:
    """Return what a node comes down to that computes with literals, or picks one of equals."""
    match node:
        case Unary(op="neg", x=Const(value=x)):
            return Const(-x)
        case Binary(op=("add" | "sub" | "mul") as op, a=Const(value=a), b=Const(value=b)):
            return Const({"add": a + b, "sub": a - b, "mul": a * b}[op])
        case Binary(op="min" | "max", a=a, b=b) | Select(a=a, b=b) if a is b:
            return a
        case Select(cond=Const(value=cond), a=a, b=b):
            return a if cond else b
    return None


def _without_neutral(node: Expr) -> Expr | None:
    """Return an int operand that the other one leaves as it is, or the zero that it makes of it."""
    zero, one = Const(0), Const(1)
    match node:
        case Unary(op="neg", x=Unary(op="neg", x=x)):
            return x
        case Binary(op="sub", a=a, b=b) if a is b and a.type == "int":
            return zero
        case Binary(op="mul", a=a, b=b) if zero in (a, b):
            return zero
        case Binary(op=("add" | "mul") as op, a=a, b=b) if a is (zero if op == "add" else one):
            return b
        case Binary(op="add" | "sub", a=a, b=b) if b is zero:
            return a
        case Binary(op="mul" | "floordiv", a=a, b=b) if b is one:
            return a
    return None
