"""Normal form of conditions: negation stands at the atoms, and only where it has to.

A negated comparison of ints is another comparison; one of floats stays negated where NaN makes the
two differ (`not (x < y)` holds for NaN, `y <= x` does not).
"""

from __future__ import annotations

from sdpakit.expr.nodes import Binary, Expr, Select, Unary
from sdpakit.ir.program import Program
from sdpakit.ir.rules import rewrite_program
from sdpakit.passes.fold import fold_rules


def normalise(program: Program) -> Program:
    """Return the program with its conditions in normal form.

    Parameters
    ----------
    program : Program
        Any program.

    Returns
    -------
    Program
        One that gives the same bits, and in which no rule of folding fires.
    """
    return rewrite_program(program, (push_not, *fold_rules(program.accum_dtype)))


def push_not(node: Expr) -> Expr | None:
    """Move a negation towards the atoms (De Morgan)."""
    match node:
        case Unary(op="not", x=Binary(op="and", a=a, b=b)):
            return Binary("or", Unary("not", a), Unary("not", b))
        case Unary(op="not", x=Binary(op="or", a=a, b=b)):
            return Binary("and", Unary("not", a), Unary("not", b))
        case Unary(op="not", x=Select(cond=cond, a=a, b=b)):
            return Select(cond, Unary("not", a), Unary("not", b))
        case Unary(op="not", x=Binary(op="eq", a=a, b=b)):
            return Binary("ne", a, b)
        case Unary(op="not", x=Binary(op="ne", a=a, b=b)):
            return Binary("eq", a, b)
        case Unary(op="not", x=Binary(op="lt", a=a, b=b)) if a.type == "int":
            return Binary("le", b, a)
        case Unary(op="not", x=Binary(op="le", a=a, b=b)) if a.type == "int":
            return Binary("lt", b, a)
    return None
