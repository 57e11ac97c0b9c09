"""The rewrite engine: bottom-up, to the end, once for shared parts, idle where nothing fires."""

from __future__ import annotations

import pytest

from sdpakit.errors import InternalError
from sdpakit.expr.nodes import Binary, Const, Dot, Expr, Index, Select, Unary
from sdpakit.ir.program import Program
from sdpakit.ir.rules import rewrite, rewrite_program

Q, K = Index("q"), Index("k")


def drop_neg(node: Expr) -> Expr | None:
    match node:
        case Unary(op="neg", x=Unary(op="neg", x=x)):
            return x
    return None


def add_to_sub(node: Expr) -> Expr | None:
    match node:
        case Binary(op="add", a=a, b=Unary(op="neg", x=x)):
            return Binary("sub", a, x)
    return None


def neg(node: Expr, times: int) -> Expr:
    for _ in range(times):
        node = Unary("neg", node)
    return node


def test_nothing_fires_gives_the_very_node():
    node = Binary("add", Q, Binary("mul", K, Const(2)))
    assert rewrite(node, [drop_neg, add_to_sub]) is node
    assert rewrite(node, []) is node


def test_rules_meet_what_other_rules_made():
    node = Binary("add", Q, neg(K, 3))
    found = rewrite(node, [add_to_sub, drop_neg])
    assert found is Binary("sub", Q, K)
    assert rewrite(found, [add_to_sub, drop_neg]) is found


def test_the_first_rule_that_fires_decides():
    def to_one(node):
        return Const(1) if node is Q else None

    def to_two(node):
        return Const(2) if node is Q else None

    assert rewrite(Q, [to_one, to_two]) is Const(1)
    assert rewrite(Q, [to_two, to_one]) is Const(2)


def test_shared_parts_are_rewritten_once():
    calls = []

    def count(node):
        calls.append(node)

    node = Q
    for _ in range(60):  # 2**60 paths
        node = Binary("add", node, node)
    assert rewrite(node, [count]) is node
    assert len(calls) == len(set(calls)) == 61


def test_deep_expressions_do_not_overflow_the_stack():
    assert rewrite(neg(Q, 10_000), [drop_neg]) is Q


def test_a_rule_that_returns_its_node_has_not_fired():
    assert rewrite(Q, [lambda node: node]) is Q


def test_rules_that_never_rest_are_refused():
    def swap(node: Expr) -> Expr | None:
        match node:
            case Binary(op="add", a=a, b=b):
                return Binary("add", b, a)
        return None

    with pytest.raises(InternalError, match=r"'swap'.* do not come to rest"):
        rewrite(Binary("add", Q, K), [swap])


def test_a_program_is_rewritten_in_all_its_parts_or_is_itself():
    def program(x: Expr, sink: Expr | None) -> Program:
        return Program(
            head_dim=1,
            v_head_dim=1,
            dtype="float32",
            accum_dtype="float32",
            out_dtype="float32",
            logit=Select(Binary("le", x, K), Dot(), Const(0.0)),
            mask=Binary("le", x, Q),
            sink=sink,
            outputs=("out",),
            empty_row="zero",
        )

    sink = Unary("to_float", neg(Q, 2))
    found = rewrite_program(program(neg(Q, 2), sink), [drop_neg])
    assert found == program(Q, Unary("to_float", Q))
    assert rewrite_program(found, [drop_neg]) is found
    bare = program(Q, None)
    assert rewrite_program(bare, [drop_neg]) is bare
