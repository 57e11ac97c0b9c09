"""Folding and normal form: every bit is kept, and what must not fold does not."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from tests.unit.expressions import expressions

from sdpakit.expr.evaluate import Environment, evaluate
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
from sdpakit.ir.rules import rewrite
from sdpakit.passes.fold import fold_rules
from sdpakit.passes.normalise import push_not

X, A = Dot(), Scalar("a")
N, Q, K = Scalar("n", "int"), Index("q"), Index("k")
P, R = Load("p", "bool", (Q,)), Load("r", "bool", (K,))
INF, NAN = math.inf, math.nan
SPECIAL = (0.0, -0.0, 1.0, -1.0, 0.1, 3e38, -3e38, 1e-45, INF, -INF, NAN)


def _fold(node: Expr, accum_dtype: str = "float32") -> Expr:
    return rewrite(node, fold_rules(accum_dtype))


def _normal(node: Expr) -> Expr:
    return rewrite(node, (push_not, *fold_rules("float32")))


def _environment(accum_dtype: str) -> Environment:
    rng = np.random.default_rng(3)
    special = np.array(SPECIAL, accum_dtype)
    return Environment(
        accum_dtype,
        indices={
            "b": np.arange(2)[:, None, None, None],
            "h": np.arange(2)[:, None, None],
            "q": np.arange(11)[:, None],
            "k": np.arange(11),
            "q_len": 5,
            "kv_len": np.array([0, 11])[:, None, None, None],
            "q_offset": -2,
        },
        scalars={"n": -3, "a": 0.3},
        tables={
            "flags": rng.random((11, 11)) < 0.5,
            "doc": rng.integers(-3, 3, (2, 11)).astype(np.int32),
            "slopes": np.array([0.5, -0.0], np.float16),
        },
        dot=np.tile(special, (11, 1)),
    )


def _same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    a, b = np.broadcast_arrays(a, b)
    if a.dtype.kind != "f":
        return bool((a == b).all())
    # One NaN is as good as another.
    same = (a == b) & (np.signbit(a) == np.signbit(b))
    return bool((same | (np.isnan(a) & np.isnan(b))).all())


@settings(
    max_examples=200, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
@given(expressions())
@pytest.mark.parametrize("accum_dtype", ["float32", "float64"])
def test_every_bit_is_kept_and_the_second_time_is_idle(accum_dtype, node):
    environment = _environment(accum_dtype)
    rules = (push_not, *fold_rules(accum_dtype))
    found = rewrite(node, rules)
    before, after = evaluate(node, environment), evaluate(found, environment)
    assert before.dtype == after.dtype
    assert _same_bits(before, after)
    assert rewrite(found, rules) is found


@pytest.mark.parametrize(
    "node",
    [
        Binary("mul", X, Const(0.0)),
        Binary("add", X, Const(0.0)),
        Binary("sub", X, Const(-0.0)),
        Binary("sub", X, X),
        Binary("div", X, X),
        Binary("eq", X, X),
        Binary("le", X, X),
        Binary("ne", X, X),
        Unary("not", Binary("lt", X, A)),
        Binary("div", X, Const(3.0)),
        Binary("add", Binary("add", X, Const(1.0)), Const(2.0)),
        Binary("mod", N, Const(0)),
    ],
)
def test_what_is_no_fold_stays(node):
    assert _normal(node) is node


@pytest.mark.parametrize(
    ("node", "folded"),
    [
        (Binary("add", X, Const(-0.0)), X),
        (Binary("add", Const(-0.0), X), X),
        (Binary("sub", X, Const(0.0)), X),
        (Binary("mul", X, Const(1.0)), X),
        (Binary("mul", Const(-1.0), X), Unary("neg", X)),
        (Binary("div", X, Const(1.0)), X),
        (Binary("div", X, Const(-4.0)), Binary("mul", X, Const(-0.25))),
        (Unary("neg", Unary("neg", X)), X),
        (Unary("abs", Unary("neg", X)), Unary("abs", X)),
        (Binary("sub", X, Unary("neg", A)), Binary("add", X, A)),
        (Binary("min", X, X), X),
        (Select(Const(False), X, A), A),
        (Select(P, X, X), X),
        (Select(Unary("not", P), X, A), Select(P, A, X)),
        (Binary("add", Const(0.5), Unary("to_float", Const(3))), Const(3.5)),
        (Unary("sqrt", Const(-1.0)), Const(NAN)),
        (Binary("mul", Const(1e30), Const(1e30)), Const(INF)),
        (Binary("mul", N, Const(0)), Const(0)),
        (Binary("sub", N, N), Const(0)),
        (Binary("floordiv", Const(-7), Const(2)), Const(-4)),
        (Binary("mod", Const(-7), Const(3)), Const(2)),
        (Binary("mul", Const(2**40), Const(2**40)), Const(2**80)),
        (Binary("lt", Q, Binary("add", Q, Const(1))), Const(True)),
        (Binary("eq", Binary("sub", K, Q), Binary("sub", K, Q)), Const(True)),
        (Binary("and", P, Const(True)), P),
        (Binary("or", P, Const(True)), Const(True)),
        (Binary("and", P, Unary("not", P)), Const(False)),
        (Binary("eq", P, Const(False)), Unary("not", P)),
        (Binary("ne", P, P), Const(False)),
        (Select(P, R, Const(False)), Binary("and", P, R)),
        (Select(P, Const(True), R), Binary("or", P, R)),
    ],
)
def test_folds(node, folded):
    assert _fold(node) is folded


def test_constants_are_those_of_accum_dtype():
    node = Binary("add", Const(0.1), Const(0.2))
    assert _fold(node, "float64") is Const(0.1 + 0.2)
    assert _fold(node, "float32") is Const(float(np.float32(0.1) + np.float32(0.2)))


def test_divisions_whose_reciprocal_is_not_exact_stay():
    assert _fold(Binary("div", X, Const(2.0**127))) is Binary("div", X, Const(2.0**127))
    assert _fold(Binary("div", X, Const(2.0**126))) is Binary("mul", X, Const(2.0**-126))
    assert _fold(Binary("div", X, Const(INF))) is Binary("div", X, Const(INF))
    assert _fold(Binary("div", X, Const(0.0))) is Binary("div", X, Const(0.0))


@pytest.mark.parametrize(
    ("node", "normal"),
    [
        (Binary("le", K, Q), Binary("lt", Q, K)),
        (Binary("lt", K, Q), Binary("le", Q, K)),
        (Binary("eq", K, Q), Binary("ne", K, Q)),
        (Binary("ne", X, A), Binary("eq", X, A)),
        (Binary("and", P, R), Binary("or", Unary("not", P), Unary("not", R))),
        (Binary("or", P, Unary("not", R)), Binary("and", Unary("not", P), R)),
    ],
)
def test_negation_moves_to_the_atoms(node, normal):
    assert _normal(Unary("not", node)) is normal


@settings(
    max_examples=200, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
@given(expressions("bool"))
def test_only_atoms_are_negated(node):
    for part in postorder(_normal(node)):
        if isinstance(part, Unary) and part.op == "not":
            x = part.x
            float_order = isinstance(x, Binary) and x.op in ("lt", "le") and x.a.type == "float"
            assert float_order or isinstance(x, Load | Scalar)
