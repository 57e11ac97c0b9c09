"""Random expressions for property tests."""

from __future__ import annotations

import math

from hypothesis import strategies as st

from sdpakit.expr.nodes import (
    BINARY,
    INDICES,
    UNARY,
    Binary,
    Const,
    Dot,
    Expr,
    Index,
    Load,
    Scalar,
    Select,
    Unary,
)

FLOAT_VALUES = (0.0, -0.0, 0.5, -2.0, 3e38, 1e-40, math.inf, -math.inf, math.nan)

LEAVES: dict[str, st.SearchStrategy[Expr]] = {
    "bool": st.sampled_from(
        [Const(True), Const(False), Load("flags", "bool", (Index("q"), Index("k")))]
    ),
    "int": st.one_of(
        st.sampled_from([*(Index(n) for n in INDICES), Scalar("n", "int")]),
        st.integers(-5, 5).map(Const),
        st.just(Load("doc", "int32", (Index("b"), Index("k")))),
    ),
    "float": st.one_of(
        st.sampled_from(FLOAT_VALUES).map(Const),
        st.sampled_from([Scalar("a"), Dot(), Load("slopes", "float16", (Index("h"),))]),
    ),
}


@st.composite
def expressions(draw: st.DrawFn, kind: str | None = None, depth: int = 4) -> Expr:
    """Draw an expression of a type (any if None), at most `depth` operations deep."""
    kind = kind or draw(st.sampled_from(["bool", "int", "float"]))
    if depth == 0 or draw(st.integers(0, 4)) == 0:
        return draw(LEAVES[kind])
    ops = [
        (op, operand)
        for op, (operands, result) in (UNARY | BINARY).items()
        for operand in operands
        if (result or operand) == kind
    ]
    op, operand = draw(st.sampled_from([*ops, ("where", kind)]))
    a = draw(expressions(operand, depth - 1))
    if op == "where":
        return Select(draw(expressions("bool", depth - 1)), a, draw(expressions(kind, depth - 1)))
    if op in UNARY:
        return Unary(op, a)
    shared = draw(st.booleans())
    return Binary(op, a, a if shared else draw(expressions(operand, depth - 1)))
