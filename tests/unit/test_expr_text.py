"""Text of expressions: deterministic, readable, and parsed back to the very same node."""

import copy
import math
import pickle

import numpy as np
import pytest
from hypothesis import given
from tests.unit.expressions import expressions

from sdpakit.errors import InternalError, SpecError
from sdpakit.expr.nodes import (
    BINARY,
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
    postorder,
)
from sdpakit.expr.text import formula, parse, to_text

K, Q = Index("k"), Index("q")


@given(expressions())
def test_parse_undoes_to_text(node):
    assert parse(to_text(node)) is node


@given(expressions())
def test_pickle_and_copies_give_the_same_node(node):
    assert pickle.loads(pickle.dumps(node)) is node
    assert copy.deepcopy(node) is node


@pytest.mark.parametrize(
    ("node", "text"),
    [
        (Binary("le", K, Binary("add", Q, Scalar("n", "int"))), "k <= (q + n.int)"),
        (Load("doc", "int32", (Index("b"), K)), "doc.int32[b, k]"),
        (Load("slopes", "float16", (Index("h"),)), "slopes.float16[h]"),
        (Binary("mul", Scalar("scale"), Dot()), "scale.float * dot()"),
        (Const(-1), "-1"),
        (Unary("neg", Const(1)), "neg(1)"),
        (Unary("neg", K), "-k"),
        (Unary("not", Binary("lt", K, Q)), "~(k < q)"),
        (Binary("sub", K, Const(-1)), "k - -1"),
        (Binary("sub", Binary("sub", K, Q), K), "(k - q) - k"),
        (Binary("add", Binary("add", K, Q), K), "k + q + k"),
        (Binary("add", K, Binary("add", Q, K)), "k + (q + k)"),
        (Binary("min", K, Q), "minimum(k, q)"),
        (Select(Const(True), K, Q), "where(True, k, q)"),
        (Const(math.inf), "inf"),
        (Const(-math.inf), "-inf"),
        (Const(math.nan), "nan"),
        (Const(-0.0), "-0.0"),
        (Scalar("__logit", "float"), "x"),
        (Scalar("__position", "int"), "pos"),
    ],
)
def test_text_is_what_a_reader_expects(node, text):
    assert to_text(node) == text
    assert parse(text) is node


@pytest.mark.parametrize("op", [*UNARY, *BINARY])
def test_every_operation_is_printed_and_parsed(op):
    leaf = {"bool": Const(True), "int": K, "float": Dot()}
    operands = UNARY.get(op) or BINARY[op]
    for kind in operands[0]:
        x = leaf[kind]
        node = Unary(op, x) if op in UNARY else Binary(op, x, x)
        assert parse(to_text(node)) is node


def test_shared_parts_are_written_once():
    distance = Binary("sub", K, Q)
    node = Binary("mul", distance, Unary("abs", distance))
    assert to_text(node) == "t0 = k - q; t0 * absolute(t0)"
    # A chain of squares doubles the paths, not the text.
    for _ in range(200):
        node = Binary("mul", node, node)
    assert len(to_text(node)) < 10_000
    assert parse(to_text(node)) is node


def test_deep_expressions_are_printed_and_parsed():
    node: Expr = K
    for step in range(5000):
        node = Unary("neg", node) if step % 3 else Binary("add", Q, node)
    assert parse(to_text(node)) is node
    assert sum(1 for _ in postorder(node)) == 5002


@pytest.mark.parametrize(
    "text",
    [
        "", "k <", "k; q", "lambda i: i.k", "k if q else b", "k <= q <= b", "k and q", "not k",
        "__import__('os').system('true')", "open('x')", "k.real.imag", "'text'", "1j", "z",
        "t0 = k", "t0 = t1; t0", "doc.int32[]", "doc.int32[k:q]", "doc.int99[k]", "doc.int32[1.5]",
        "doc.int32[True]", "exp(x=1.0)", "where(True, 1)", "minimum(1)", "dot(1)", "k << 1",
        "a.text", "k ** 2", "(" * 300 + "k" + ")" * 300, "+k", "[k]", "k @ q",
        "a = b = k; a", "k\x00",
    ],
)  # fmt: skip
def test_what_is_no_expression_is_refused(text):
    with pytest.raises(SpecError, match=r"(?s)formula: got .*allowed: .*remedy: "):
        formula(text)


@pytest.mark.parametrize("text", ["-" * 5000 + "k", "k" + "+k" * 5000, "(" * 5000], ids=range(3))
def test_text_nested_without_end_is_refused_in_few_words(text):
    with pytest.raises(SpecError, match="formula: got ") as caught:
        formula(text)
    assert len(str(caught.value)) < 1000
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("given", [None, 3, b"k", Const(1)], ids=repr)
def test_what_is_no_text_is_refused(given):
    with pytest.raises(SpecError, match="formula: got a "):
        formula(given)


@pytest.mark.parametrize(
    "text", ["k + 1.0", "to_float(1.0)", "exp(k)", "~k", "k & q", "where(k, 1, 2)"]
)
def test_types_are_not_converted(text):
    with pytest.raises(SpecError, match="operands of one type"):
        formula(text)


@pytest.mark.parametrize(
    "text",
    ["scale.float + x", "bias.float32[b, h, q, k]", "window0_left.int < k", "_a.int", "k.int"],
)
def test_reserved_names_are_for_programs_only(text):
    parse(text)
    with pytest.raises(SpecError, match="name of a"):
        formula(text)


def test_repr_of_a_node_evaluates_back():
    node = Binary("add", Scalar("__logit"), Load("slopes", "float32", (Index("h"),)))
    assert repr(node) == "formula('x + slopes.float32[h]')"
    assert eval(repr(node), {"formula": formula}) is node


def test_nodes_are_immutable_and_told_apart_by_bits():
    with pytest.raises(AttributeError, match="immutable"):
        K.name = "q"
    assert Const(0.0) is not Const(-0.0)
    assert Const(1) is not Const(True)
    assert Const(1) is not Const(1.0)
    assert Const(math.nan) is Const(math.nan)


def test_literals_are_plain_numbers_of_python():
    literal = Const(np.float64(0.15625))
    assert literal is Const(0.15625)
    assert type(literal.value) is float
    with pytest.raises(InternalError, match="no bool, int or float"):
        Const(np.int64(3))
