"""From Python functions to expressions."""

import copy
import functools

import numpy as np
import pytest

from sdpakit.errors import SpecError
from sdpakit.expr.functions import where
from sdpakit.expr.names import POSITION
from sdpakit.expr.nodes import INDICES, Index, postorder
from sdpakit.expr.operands import Table
from sdpakit.expr.text import parse
from sdpakit.expr.trace import Pair, trace_logits, trace_mask

SLOPES = Table("slopes", "float32", 1)


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda i: i.k <= i.q, "k <= q"),
        (lambda pair: (pair.k % 2 == 0) & (pair.h != 3), "((k % 2) == 0) & (h != 3)"),
        (lambda i: True, "True"),
        (lambda i: np.bool_(False), "False"),
        (lambda i: i.k <= i.pos("top_left"), "k <= q"),
        (lambda i: i.k <= i.pos("bottom_right"), "k <= (q + (kv_len - q_len))"),
        (lambda i: i.k <= i.pos("offset"), "k <= (q + q_offset)"),
        (lambda i: i.k <= i.pos(), "k <= pos"),
        (lambda i, step=2: i.k % step == 0, "(k % 2) == 0"),
        (functools.partial(lambda n, i: i.k < n, 5), "k < 5"),
    ],
    ids=range(10),
)
def test_masks(function, text):
    assert trace_mask(function) is parse(text)


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda x, i: x + SLOPES[i.h] * (i.k - i.q), "x + (slopes.float32[h] * to_float(k - q))"),
        (lambda s, i: where(i.k < 2, s, s - 1), "where(k < 2, x, x - 1.0)"),
        (lambda x, i: i.k, "to_float(k)"),
        (lambda x, i: 0, "0.0"),
        (lambda x, _: x, "x"),
    ],
    ids=range(5),
)
def test_logits(function, text):
    node = trace_logits(function)
    assert node is parse(text)
    assert node.type == "float"


def test_a_loop_over_python_values_is_unrolled():
    def mask(i):
        allowed = False
        for first, last in ((0, 4), (10, 12)):
            allowed = allowed | ((i.k >= first) & (i.k < last))
        return allowed

    assert len(list(postorder(trace_mask(mask)))) == 14


def test_the_pair_has_every_index():
    for name in INDICES:
        assert getattr(Pair(), name).node is Index(name)
    assert Pair().pos().node is POSITION
    copy.copy(Pair())


FAULTS = {
    "unknown index": (lambda i: i.j < 3, r"got i\.j\n  allowed: i\.b, i\.h.*i\.pos"),
    "unknown alignment": (lambda i: i.k < i.pos("left"), r"i\.pos: align: got 'left'"),
    "no return": (lambda i: None, "got a function that returned None"),
    "an int": (lambda i: i.k, r"mask: got an expression of type int\n  allowed: a condition"),
    "a float": (lambda i: i.k * 1.0, "got an expression of type float"),
    "an array": (lambda i: np.ones((2, 2), bool), "got a ndarray as an operand"),
    "two parameters": (lambda b, h: b < h, "got a function that does not take 1 argument"),
    "mask_mod of four": (lambda b, h, q, k: q >= k, r"allowed: lambda i: i\.k <= i\.q"),
    "keyword-only": (lambda i, *, n: i.k < n, "does not take 1 argument"),
    "if": (lambda i: i.h < 1 if i.k < 3 else i.h < 2, "got a Python if"),
    "array read": (lambda i: np.arange(3)[i.k] > 1, "IndexError|index of a list or array"),
    "method": (lambda i: i.k.clip(3) > 1, "AttributeError.*clip"),
    "len": (lambda i: len(i.k) > 1, "TypeError.*len"),
    "np.abs": (lambda i: np.abs(i.k) > 1, r"got numpy\.absolute"),
    "string": (lambda i: "yes", "got a str"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faulty_masks_say_what_to_do(fault):
    function, message = FAULTS[fault]
    with pytest.raises(SpecError, match=f"(?s){message}.*remedy: "):
        trace_mask(function)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x, i: i.k < 3, r"logits: got a condition \(bool\)"),
        (lambda x: x, "does not take 2 argument"),
        (lambda x, i: None, "returned None"),
        (lambda x, i: x + np.ones(3), "got a ndarray"),
        (lambda x, i: x if x > 0 else 0.0, "got a Python if"),
        (lambda x, b, h, q, k: x, "does not take 2 argument"),
    ],
    ids=range(6),
)
def test_faulty_logits_say_what_to_do(function, message):
    with pytest.raises(SpecError, match=f"(?s){message}.*remedy: "):
        trace_logits(function)


def test_an_error_of_the_users_own_passes():
    def mask(i):
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        trace_mask(mask)


def test_a_mask_cannot_read_the_logit():
    from sdpakit.expr.trace import changed_logit, condition

    with pytest.raises(SpecError, match=r"(?s)depends on the logit.*where\(condition, x"):
        condition(parse("x > 0.0"))
    with pytest.raises(SpecError, match="depends on the logit"):
        condition(parse("dot() > 0.0"))
    with pytest.raises(SpecError, match=r"an expression with dot\(\)"):
        changed_logit(parse("x + dot()"))
