"""What every operation means: values at special places, types, broadcasting, gathering."""

import math
import warnings

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from tests.unit.expressions import expressions

from sdpakit.errors import ArgumentError, InternalError
from sdpakit.expr.evaluate import BINARY_MEANING, UNARY_MEANING, Environment, evaluate
from sdpakit.expr.nodes import (
    BINARY,
    UNARY,
    Binary,
    Const,
    Dot,
    Index,
    Load,
    Scalar,
    Select,
    Unary,
    postorder,
)

INF, NAN = math.inf, math.nan
B, H, Q, K = (Index(name) for name in "bhqk")


def value(node, accum_dtype="float64", **leaves):
    return evaluate(node, Environment(accum_dtype, **leaves))


def test_every_operation_has_a_meaning():
    assert set(UNARY_MEANING) | {"to_float", "to_int"} == set(UNARY)
    assert set(BINARY_MEANING) == set(BINARY)


@pytest.mark.parametrize(
    ("op", "x", "expected"),
    [
        ("neg", 3, -3), ("neg", 0.0, -0.0), ("neg", INF, -INF), ("neg", NAN, NAN),
        ("abs", -3, 3), ("abs", -0.0, 0.0), ("abs", -INF, INF), ("abs", NAN, NAN),
        ("not", True, False), ("not", False, True),
        ("exp", 0.0, 1.0), ("exp", -INF, 0.0), ("exp", INF, INF), ("exp", 1e5, INF),
        ("exp", 1.0, math.e), ("exp", NAN, NAN),
        ("log", 1.0, 0.0), ("log", 0.0, -INF), ("log", -1.0, NAN), ("log", INF, INF),
        ("tanh", 0.0, 0.0), ("tanh", INF, 1.0), ("tanh", -INF, -1.0), ("tanh", NAN, NAN),
        ("sqrt", 4.0, 2.0), ("sqrt", -1.0, NAN), ("sqrt", -0.0, -0.0), ("sqrt", INF, INF),
        ("floor", 1.5, 1.0), ("floor", -1.5, -2.0), ("floor", -INF, -INF), ("floor", NAN, NAN),
        ("to_float", 3, 3.0), ("to_float", True, 1.0), ("to_float", False, 0.0),
        ("to_int", True, 1), ("to_int", False, 0),
    ],
    ids=repr,
)  # fmt: skip
def test_unary_values(op, x, expected):
    assert_same(value(Unary(op, Const(x))), expected)


@pytest.mark.parametrize(
    ("op", "a", "b", "expected"),
    [
        ("add", 2, 3, 5), ("add", INF, -INF, NAN), ("add", -INF, 1.0, -INF),
        ("sub", 2, 3, -1), ("sub", -INF, -INF, NAN),
        ("mul", 2, -3, -6), ("mul", 0.0, NAN, NAN), ("mul", 0.0, INF, NAN),
        ("mul", -0.0, 2.0, -0.0),
        ("div", 1.0, 4.0, 0.25), ("div", 1.0, 0.0, INF), ("div", 1.0, -0.0, -INF),
        ("div", 0.0, 0.0, NAN), ("div", INF, INF, NAN),
        ("floordiv", 7, 2, 3), ("floordiv", -7, 2, -4), ("floordiv", -1, 5, -1),
        ("mod", 7, 3, 1), ("mod", -7, 3, 2), ("mod", -1, 5, 4), ("mod", 0, 5, 0),
        ("min", 2, 3, 2), ("min", NAN, 1.0, NAN), ("min", 1.0, NAN, NAN), ("min", -INF, 1.0, -INF),
        ("max", 2, 3, 3), ("max", NAN, 1.0, NAN), ("max", 1.0, NAN, NAN), ("max", -INF, 1.0, 1.0),
        ("lt", 2, 2, False), ("lt", 1, 2, True), ("lt", NAN, 1.0, False),
        ("le", 2, 2, True), ("le", 3, 2, False), ("le", NAN, NAN, False),
        ("eq", 2, 2, True), ("eq", NAN, NAN, False), ("eq", 0.0, -0.0, True),
        ("eq", True, True, True),
        ("ne", 2, 2, False), ("ne", NAN, NAN, True), ("ne", True, False, True),
        ("and", True, True, True), ("and", True, False, False),
        ("or", False, False, False), ("or", True, False, True),
    ],
    ids=repr,
)  # fmt: skip
def test_binary_values(op, a, b, expected):
    assert_same(value(Binary(op, Const(a), Const(b))), expected)


def assert_same(found, expected):
    dtype = {bool: "bool", int: "int64", float: "float64"}[type(expected)]
    assert found.dtype == dtype
    np.testing.assert_allclose(found, expected, rtol=1e-15)
    assert bool(np.signbit(found)) == (math.copysign(1, expected) < 0) or math.isnan(expected)


def test_no_warning_for_legal_special_values():
    nodes = [
        Unary("log", Const(0.0)),
        Unary("exp", Const(1e9)),
        Binary("sub", Const(INF), Const(INF)),
    ]
    nodes += [Binary("div", Const(0.0), Const(0.0)), Const(1e300)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for node in nodes:
            value(node, "float32")


def test_select_keeps_the_other_side_out():
    node = Select(Binary("lt", K, Const(2)), Const(1.0), Dot())
    dot = np.array([NAN, INF, 3.0, NAN])
    found = value(node, indices={"k": np.arange(4)}, dot=dot)
    np.testing.assert_array_equal(found, [1.0, 1.0, 3.0, NAN])


@pytest.mark.parametrize("accum", ["float32", "float64"])
def test_every_float_is_in_accum_dtype(accum):
    node = Unary("exp", Binary("mul", Scalar("a"), Load("t", "float16", (H,))))
    node = Binary("add", Binary("add", node, Const(0.1)), Unary("to_float", K))
    found = value(
        node,
        accum,
        indices={"h": np.arange(2), "k": 7},
        scalars={"a": 0.3},
        tables={"t": np.array([1, 2], np.float16)},
    )
    assert found.dtype == accum
    a, tenth = np.asarray(0.3, accum), np.asarray(0.1, accum)
    np.testing.assert_array_equal(found, np.exp(a * np.array([1, 2], accum)) + tenth + 7)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_float_tables_enter_in_accum_dtype(dtype):
    numpy_dtype = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    table = np.array([0.1, -INF, NAN, 3e4]).astype(numpy_dtype)
    found = value(
        Load("t", dtype, (K,)), "float32", indices={"k": np.arange(4)}, tables={"t": table}
    )
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, table.astype(np.float32))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32", "int64"])
def test_integer_tables_are_int64(dtype):
    top = np.iinfo(dtype).max
    table = np.array([top, 0], dtype)
    node = Binary("add", Load("t", dtype, (K,)), Const(0))
    found = value(node, indices={"k": np.arange(2)}, tables={"t": table})
    assert found.dtype == np.int64
    assert found.tolist() == [int(top), 0]


def test_indices_broadcast():
    node = Binary("add", Binary("mul", Q, Const(10)), K)
    found = value(node, indices={"q": np.arange(3)[:, None], "k": np.arange(2)[None, :]})
    assert found.tolist() == [[0, 1], [10, 11], [20, 21]]
    assert value(Const(5)).shape == ()


def test_gather_broadcasts_axes_of_size_one():
    table = np.arange(6, dtype=np.int32).reshape(1, 2, 1, 3)
    node = Load("t", "int32", (B, H, Q, K))
    grid = np.ogrid[0:2, 0:2, 0:4, 0:3]
    found = value(node, indices=dict(zip("bhqk", grid, strict=True)), tables={"t": table})
    np.testing.assert_array_equal(found, np.broadcast_to(table, (2, 2, 4, 3)))


def test_gather_reads_any_strides():
    table = np.broadcast_to(np.arange(4, dtype=np.float32)[::-1], (3, 4))
    node = Load("t", "float32", (Q, K))
    found = value(
        node, indices={"q": np.arange(3)[:, None], "k": np.arange(4)}, tables={"t": table}
    )
    np.testing.assert_array_equal(found, table)


@pytest.mark.parametrize("index", [Binary("sub", K, Const(1)), Binary("add", K, Const(1))])
def test_an_index_that_leaves_its_table_is_refused(index):
    with pytest.raises(
        ArgumentError, match=r"table 't', axis 0: got indices .*\n  allowed: 0 to 2"
    ):
        value(
            Load("t", "int32", (index,)),
            indices={"k": np.arange(3)},
            tables={"t": np.zeros(3, int)},
        )


def test_a_computed_index_does_not_broadcast():
    index = Binary("mul", K, Const(2))
    with pytest.raises(ArgumentError, match="allowed: 0 to 0"):
        value(
            Load("t", "int32", (index,)),
            indices={"k": np.arange(3)},
            tables={"t": np.zeros(1, int)},
        )


@pytest.mark.parametrize("node", [K, Scalar("a"), Dot(), Load("t", "int8", (Const(0),))])
def test_a_missing_leaf_is_a_defect(node):
    with pytest.raises(InternalError, match="the environment has no"):
        value(node)


def environment(at=None):
    """Return leaves for all pairs, or for the pair at an index (b, h, q, k)."""
    random = np.random.default_rng(3)
    sizes = (2, 2, 3, 4)
    grid = dict(zip("bhqk", np.ogrid[tuple(slice(0, n) for n in sizes)], strict=True))
    grid |= {"q_len": np.array([3, 2]).reshape(2, 1, 1, 1), "kv_len": 4, "q_offset": 1}
    dot = random.normal(size=sizes)
    tables = {
        "flags": random.random((3, 4)) < 0.5,
        "doc": random.integers(0, 3, (1, 4), dtype=np.int32),
        "slopes": random.normal(size=2).astype(np.float16),
    }
    if at is not None:
        grid = {name: np.broadcast_to(x, sizes)[at] for name, x in grid.items()}
        dot = dot[at]
    return Environment("float32", grid, {"a": 0.7, "n": 2}, tables, dot)


@given(expressions())
@settings(max_examples=60)
def test_arrays_of_pairs_hold_what_each_pair_has(node):
    # Division by zero is refused before a call; here any value will do, as long as it is the same.
    whole = np.broadcast_to(evaluate(node, environment()), (2, 2, 3, 4))
    for at in [(0, 0, 0, 0), (1, 1, 2, 3), (1, 0, 1, 2)]:
        np.testing.assert_array_equal(whole[at], evaluate(node, environment(at)))
    kinds = {"bool": "bool", "int": "int64", "float": "float32"}
    for part in postorder(node):
        assert evaluate(part, environment()).dtype == kinds[part.type]
