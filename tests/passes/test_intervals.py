"""Interval rules, one operation at a time: sound everywhere, tight where they say so."""

from __future__ import annotations

import itertools

import pytest

from sdpakit.expr.evaluate import Environment, evaluate
from sdpakit.expr.nodes import Binary, Const, Expr, Index, Scalar, Select, Unary
from sdpakit.passes.integers import PythonOps
from sdpakit.passes.intervals import Intervals
from sdpakit.passes.linear import linear

pytestmark = pytest.mark.slow  # brute force over integers, the same on every Python

Q, K = Index("q"), Index("k")
SMALL = range(-4, 5)
RANGES = [(lo, hi) for lo in SMALL for hi in SMALL if lo <= hi]
POSITIVE = [(lo, hi) for lo, hi in RANGES if lo >= 1]


def _interval(node: Expr, q: tuple[int, int], k: tuple[int, int]) -> tuple[int, int]:
    ops = PythonOps({"n": 3}, {}, {})
    point = (0, 0)
    box = dict.fromkeys(("b", "h", "q_len", "kv_len", "q_offset"), point)
    return Intervals(ops, box | {"q": q, "k": k}).interval(node)


def _values(meaning, q, k):
    pairs = itertools.product(range(q[0], q[1] + 1), range(k[0], k[1] + 1))
    return [meaning(x, y) for x, y in pairs]


@pytest.mark.parametrize(
    ("op", "meaning", "second"),
    [
        ("add", lambda x, y: x + y, RANGES),
        ("sub", lambda x, y: x - y, RANGES),
        ("mul", lambda x, y: x * y, RANGES),
        ("min", min, RANGES),
        ("max", max, RANGES),
        ("floordiv", lambda x, y: x // y, POSITIVE),
    ],
)
def test_interval_of_an_operation_is_exact(op, meaning, second):
    for q, k in itertools.product(RANGES, second):
        values = _values(meaning, q, k)
        assert _interval(Binary(op, Q, K), q, k) == (min(values), max(values))


def test_mod_is_sound_and_exact_where_nothing_wraps():
    exact = 0
    for q, k in itertools.product(RANGES, POSITIVE):
        values = _values(lambda x, y: x % y, q, k)
        lo, hi = _interval(Binary("mod", Q, K), q, k)
        assert lo <= min(values)
        assert max(values) <= hi < k[1]
        if k[0] == k[1] and q[0] // k[0] == q[1] // k[0]:
            exact += 1
            assert (lo, hi) == (min(values), max(values))
    assert exact > 50


def test_abs_and_neg_are_exact():
    for q in RANGES:
        values = [abs(x) for x in range(q[0], q[1] + 1)]
        assert _interval(Unary("abs", Q), q, (0, 0)) == (min(values), max(values))
        assert _interval(Unary("neg", Q), q, (0, 0)) == (-q[1], -q[0])


def test_terms_that_cancel_leave_no_width():
    node = Binary("sub", Binary("add", Q, K), Binary("add", Q, Binary("mul", K, Const(2))))
    assert _interval(node, (0, 100), (3, 5)) == (-5, -3)


def test_linear_form_keeps_products_of_unknowns_as_atoms():
    product = Binary("mul", Scalar("n", "int"), K)
    form = linear(Binary("sub", Binary("mul", Const(-2), product), Binary("sub", Q, Const(7))))
    assert form.terms == {product: -2, Q: -1}
    assert form.const == 7


def test_select_joins_only_the_sides_that_can_be_taken():
    node = Select(Binary("lt", Q, Const(5)), Const(1), Const(9))
    assert _interval(node, (0, 4), (0, 0)) == (1, 1)
    assert _interval(node, (5, 8), (0, 0)) == (9, 9)
    assert _interval(node, (4, 5), (0, 0)) == (1, 9)


def test_truth_of_floats_is_unknown():
    node = Binary("lt", Unary("to_float", Q), Const(5.0))
    ops = PythonOps({}, {}, {})
    assert Intervals(ops, {"q": (9, 9)}).truth(node) == (True, True)


D, N = Binary("sub", K, Q), Unary("abs", Binary("sub", K, Q))


def _cond(op, a, b):
    return Binary(op, a, Const(b) if isinstance(b, int) else b)


SELECTIONS = {
    "lt": Select(_cond("lt", N, 3), N, Const(3)),
    "le": Select(_cond("le", Q, K), D, Const(0)),
    "not": Select(Unary("not", _cond("le", Q, K)), D, Unary("neg", D)),
    "eq": Select(_cond("eq", Q, 2), Binary("mul", Q, Q), Const(1)),
    "ne": Select(_cond("ne", Q, 2), Const(1), Binary("mul", Q, Q)),
    "and": Select(
        Binary("and", _cond("le", Const(-1), Q), _cond("lt", Q, K)), Binary("add", Q, K), Const(0)
    ),
    "or": Select(Binary("or", _cond("lt", Q, -1), _cond("lt", K, Q)), Const(0), D),
    "multiple": Select(_cond("lt", Binary("mul", Const(3), Q), 7), Q, Const(2)),
    "never": Select(_cond("lt", Q, -9), Binary("mul", Q, Const(100)), Q),
    "contradiction": Select(
        _cond("lt", Q, 1), Select(_cond("lt", Const(1), Q), Q, Const(0)), Const(0)
    ),
    "nested": Select(
        _cond("lt", Const(0), D),
        Binary("add", Select(_cond("lt", N, 2), N, Const(2)), Const(3)),
        Select(_cond("lt", N, 2), N, Const(2)),
    ),
}


@pytest.mark.parametrize("name", SELECTIONS)
def test_sides_of_a_selection_are_sound(name):
    node = SELECTIONS[name]
    for q, k in itertools.product(RANGES, RANGES):
        lo, hi = _interval(node, q, k)
        for x, y in itertools.product(range(q[0], q[1] + 1), range(k[0], k[1] + 1)):
            indices = {"q": x, "k": y}
            assert lo <= int(evaluate(node, Environment("float64", indices=indices))) <= hi


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("lt", (0, 3)),
        ("le", (0, 30)),
        ("not", (-30, 0)),
        ("eq", (1, 4)),
        ("ne", (1, 4)),
        ("and", (-11, 40)),
        ("multiple", (-10, 2)),
        ("nested", (0, 5)),
    ],
)
def test_sides_of_a_selection_are_narrowed_by_its_condition(name, expected):
    assert _interval(SELECTIONS[name], (-10, 20), (-10, 20)) == expected


def test_many_selections_of_one_another_end():
    node = Q
    for n in range(60):
        node = Select(_cond("lt", node, n), Binary("add", node, Q), Binary("sub", node, K))
    lo, hi = _interval(node, (0, 3), (0, 3))
    points = itertools.product(range(4), range(4))
    environments = [Environment("float64", indices={"q": x, "k": y}) for x, y in points]
    assert all(lo <= int(evaluate(node, environment)) <= hi for environment in environments)
