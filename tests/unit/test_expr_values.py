"""Operators and functions on symbolic values: the nodes they build, and what they refuse."""

import math
import operator

import ml_dtypes
import numpy as np
import pytest

from sdpakit.errors import SpecError
from sdpakit.expr.functions import (
    absolute,
    exp,
    floor,
    log,
    maximum,
    minimum,
    sqrt,
    tanh,
    to_float,
    to_int,
    where,
)
from sdpakit.expr.names import LOGIT
from sdpakit.expr.nodes import Const, Index
from sdpakit.expr.operands import Scalar, Table
from sdpakit.expr.text import parse
from sdpakit.expr.values import Value

K, Q = Value(Index("k")), Value(Index("q"))
X = Value(LOGIT)
FLAG = K < Q


B = Value(Index("b"))
ALPHA, N = Scalar("alpha"), Scalar("n", "int")
HALF = Table("t", "float16", 1)

# text of a node -> ways to write it
BUILT = {
    "k + 1": [K + 1, K + np.int8(1)],
    "1 + k": [1 + K],
    "k - q": [K - Q],
    "3 - k": [3 - K],
    "k * q": [K * Q],
    "2 * k": [2 * K],
    "-k": [-K],
    "k": [+K, K**1, to_int(K)],
    "absolute(k)": [abs(K), absolute(K)],
    "k // 4": [K // 4],
    "9 // k": [9 // K],
    "k % 4": [K % 4, K % np.int32(4)],
    "9 % k": [9 % K],
    "k * k * k": [K**3],
    # an int beside a float becomes a float, a literal one at once
    "x + 1.0": [X + 1, X + 1.0, X + np.float32(1)],
    "1.0 - x": [1 - X],
    "x * to_float(k)": [X * K, X * to_float(K)],
    "to_float(k) + 0.5": [K + 0.5],
    "to_float(k) < 0.5": [K < 0.5],
    "x == 0.0": [X == 0],
    "minimum(to_float(k), x)": [minimum(K, X)],
    "2.0 * x": [2 * X, np.float32(2) * X, ml_dtypes.bfloat16(2) * X],
    # division always gives a float
    "to_float(k) / to_float(q)": [K / Q],
    "1.0 / to_float(k)": [1 / K, np.float32(1) / K],
    "x / 2.0": [X / 2, X / np.float64(2)],
    # > and >= are < and <= with the sides exchanged
    "k < q": [K < Q, Q > K],
    "k <= q": [K <= Q, Q >= K],
    "k < 3": [K < 3, np.int64(3) > K],
    "k < n.int": [K < N],
    "k == q": [K == Q],
    "k != q": [K != Q],
    "(k < q) == True": [FLAG == True],  # noqa: E712
    "(k < q) & (0 < k)": [FLAG & (K > 0), np.logical_and(FLAG, K > 0)],
    "(k < q) | True": [FLAG | True],
    "t0 = k < q; t0 != t0": [FLAG ^ FLAG],
    "~(k < q)": [~FLAG],
    "True & (k < q)": [True & FLAG, np.bool_(True) & FLAG],
    "False | (k < q)": [False | FLAG],
    "True != (k < q)": [True ^ FLAG],
    "where(k < q, k, 0)": [where(FLAG, K, 0)],
    "where(k < q, x, -inf)": [where(FLAG, X, -math.inf)],
    "where(k < q, 1.0, x)": [where(FLAG, 1, X)],
    "where(True, k < q, False)": [where(True, FLAG, False)],
    "maximum(k, 3)": [maximum(K, 3)],
    "absolute(x)": [absolute(X), abs(X)],
    "exp(x)": [exp(X)],
    "exp(to_float(k))": [exp(K)],
    "log(2.0)": [log(2)],
    "tanh(x)": [tanh(X)],
    "sqrt(to_float(k))": [sqrt(K)],
    "floor(x)": [floor(X)],
    "to_float(k)": [to_float(K)],
    "x": [to_float(X), X**1],
    "to_float(k < q)": [to_float(FLAG)],
    "to_int(k < q)": [to_int(FLAG)],
    "alpha.float * x": [ALPHA * X],
    "doc.int32[b, k]": [Table("doc", "int32", 2)[B, K]],
    "t.float16[k % 4]": [HALF[K % 4], HALF[(K % 4,)]],
    "t.float16[3]": [HALF[3], HALF[np.int8(3)]],
    "t.bool[k]": [Table("t", bool, 1)[K], Table("t", np.bool_, 1)[K]],
}


@pytest.mark.parametrize("text", BUILT)
def test_values_build_the_node_that_is_meant(text):
    for value in BUILT[text]:
        assert value.node is parse(text)


def test_repr_names_the_node():
    assert repr(K + 1) == "Value(formula('k + 1'))"
    assert (K + 1).type == "int"


CASES_OUTSIDE = {
    "bool": lambda: bool(FLAG),
    "if": lambda: 1 if FLAG else 2,
    "and": lambda: FLAG and FLAG,
    "not": lambda: not FLAG,
    "chained": lambda: 0 <= K <= Q,
    "in": lambda: K in (1, 2),
    "min": lambda: min(K, Q),
    "float": lambda: float(X),
    "math.exp": lambda: math.exp(X),
    "int": lambda: int(X),
    "round": lambda: round(X),
    "range": lambda: range(K),
    "list index": lambda: [1, 2][K],
    "iteration": lambda: list(K),
    "unpacking": lambda: (lambda a, b: a)(*K),
    "subscript": lambda: K[0],
    "np.exp": lambda: np.exp(X),
    "np.where": lambda: np.where(FLAG, 1, 2),
    "np.maximum": lambda: np.maximum(K, 1),
    "np.add.reduce": lambda: np.add.reduce(K),
    "array left": lambda: np.arange(3) * K,
    "array right": lambda: K * np.arange(3),
    "list": lambda: operator.add(K, [1]),
    "str": lambda: K + "1",
    "none": lambda: K == None,  # noqa: E711
    "complex": lambda: X * 1j,
    "power of symbol": lambda: K**Q,
    "half power": lambda: X**0.5,
    "no power": lambda: X**0,
    "huge power": lambda: X**100,
    "power with base": lambda: 2**X,
    "float //": lambda: X // 2,
    "float %": lambda: K % 2.5,
    "& on ints": lambda: K & 1,
    "& without parentheses": lambda: K < Q & K > 0,
    "| on floats": lambda: X | FLAG,
    "~ on ints": lambda: ~K,
    "^ on ints": lambda: K ^ Q,
    "huge int": lambda: K + 2**62,
}


@pytest.mark.parametrize("case", CASES_OUTSIDE)
def test_what_the_language_does_not_have_is_refused_with_what_it_has(case):
    with pytest.raises(SpecError, match=r"(?s)got .*allowed: .*where minimum maximum.*remedy: "):
        CASES_OUTSIDE[case]()


CASES_MIXED = {
    "bool + int": lambda: FLAG + K,
    "bool * float": lambda: FLAG * X,
    "bool < int": lambda: FLAG < K,
    "int == bool": lambda: K == True,  # noqa: E712
    "-bool": lambda: -FLAG,
    "exp(bool)": lambda: exp(FLAG),
    "bool / int": lambda: FLAG / K,
    "where(int)": lambda: where(K, 1, 2),
    "where(_, bool, int)": lambda: where(FLAG, FLAG, K),
    "minimum(bool)": lambda: minimum(FLAG, FLAG),
    "to_int(float)": lambda: to_int(X),
}


@pytest.mark.parametrize("case", CASES_MIXED)
def test_types_that_do_not_mix_are_refused(case):
    with pytest.raises(SpecError, match=r"(?s)operation .*got .*operands of one type|select"):
        CASES_MIXED[case]()


def test_values_are_no_keys():
    with pytest.raises(TypeError, match="unhashable"):
        {K: 1}  # noqa: B018


@pytest.mark.parametrize(
    "name", ["scale", "bias", "k", "x", "_a", "a b", "for", "", 3, "window0_left"]
)
def test_names_that_sdpakit_uses_are_refused(name):
    with pytest.raises(SpecError, match=r"name of a Scalar: got .*\n  allowed: an identifier"):
        Scalar(name)
    with pytest.raises(SpecError, match="name of a Table"):
        Table(name, "int32", 1)


@pytest.mark.parametrize("kind", ["bool", "float32", None])
def test_a_scalar_is_an_int_or_a_float(kind):
    with pytest.raises(SpecError, match=r'Scalar\(.n.\): got kind .*\n  allowed: "float" \| "int"'):
        Scalar("n", kind)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("t", "int99", 1), r"Table\('t'\): dtype: got 'int99'\n  allowed: float16 \|"),
        (("t", "complex64", 1), "dtype: got 'complex64'"),
        (("t", "int32", 0), r"Table\('t'\): ndim: got 0\n  allowed: an integer >= 1\n .*Scalar"),
        (("t", "int32", True), "ndim: got True"),
        (("t", "int32", "2"), "ndim: got '2'"),
    ],
    ids=str,
)
def test_tables_that_cannot_be_are_refused(arguments, message):
    with pytest.raises(SpecError, match=message):
        Table(*arguments)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ((K,), "got 1 indices\n  allowed: 2, one for each axis"),
        ((K, Q, Q), "got 3 indices"),
        ((), "got 0 indices"),
        (K, "got 1 indices"),
        ((K, slice(None)), "got the index slice"),
        ((K, ...), "got the index Ellipsis"),
        ((K, None), "got the index None"),
        ((K, 0.5), "got an index of type float"),
        ((K, X), "got an index of type float\n  allowed: integer values"),
        ((K, FLAG), "got an index of type bool"),
        ((K, True), "got an index of type bool"),
        ((K, np.arange(2)), "got the index array"),
    ],
    ids=range(12),
)
def test_indices_are_one_integer_for_each_axis(index, message):
    with pytest.raises(SpecError, match=message):
        Table("t", "float32", 2)[index]


def test_float_literals_are_kept_to_the_bit():
    assert (X * 0.1).node.b is Const(0.1)
    assert (X * np.float32(0.1)).node.b is Const(float(np.float32(0.1)))
    assert (X + -0.0).node.b is Const(-0.0)
