"""Interval rules, one operation at a time: sound everywhere, tight where they say so."""

from __future__ import annotations

import itertools

import pytest

from sdpakit.expr.nodes import Binary, Const, Expr, Index, Scalar, Select, Unary
from sdpakit.passes.integers import PythonOps
from sdpakit.passes.intervals import Intervals, linear

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
