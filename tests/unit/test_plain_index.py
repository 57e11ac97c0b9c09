"""Which indices broadcast over an axis of size 1: the same before and after folding."""

import operator

import numpy as np
import pytest

import sdpakit as sk
from sdpakit.expr.nodes import Index
from sdpakit.expr.plain_index import is_plain_index
from sdpakit.expr.trace import Pair
from sdpakit.expr.values import lift
from sdpakit.ir.rules import rewrite
from sdpakit.passes.fold import fold_rules

INDICES = {
    "k": (lambda i: i.k, True),
    "k + 0": (lambda i: i.k + 0, True),
    "0 + b * 1": (lambda i: 0 + i.b * 1, True),
    "1 * q // 1 - 0": (lambda i: 1 * i.q // 1 - 0, True),
    "-(-k)": (lambda i: operator.neg(-i.k), True),
    "k + (q - q)": (lambda i: i.k + (i.q - i.q), True),
    "k + 0 * q": (lambda i: i.k + 0 * i.q, True),
    "minimum(h, h)": (lambda i: sk.minimum(i.h, i.h), True),
    "where(c, k, k)": (lambda i: sk.where(i.q < 3, i.k, i.k), True),
    "k + 1": (lambda i: i.k + 1, False),
    "2 * k": (lambda i: 2 * i.k, False),
    "k - q": (lambda i: i.k - i.q, False),
    "k % 2": (lambda i: i.k % 2, False),
    "where(c, k, q)": (lambda i: sk.where(i.q < 3, i.k, i.q), False),
}


@pytest.mark.parametrize("name", INDICES)
def test_an_index_is_plain_if_folding_makes_it_so(name):
    function, plain = INDICES[name]
    node = lift(function(Pair()))
    assert is_plain_index(node) == plain
    assert isinstance(rewrite(node, fold_rules("float32")), Index) == plain
    assert not is_plain_index(lift(0))


@pytest.mark.parametrize("name", [name for name, (_, plain) in INDICES.items() if plain])
def test_reference_and_backends_broadcast_alike(name):
    function = INDICES[name][0]
    spec = sk.AttentionSpec(
        q_heads=2,
        head_dim=4,
        logits=lambda x, i: x + sk.Table("t", "float32", 1)[function(i)],
        outputs=("max_logit",),
    )
    x = np.zeros((2, 2, 5, 4), np.float32)
    params = {"t": np.array([3.0], np.float32)}
    found = sk.compile(spec, "interp")(x, x, x, params=params).max_logit
    assert (found == 3.0).all()
    assert (sk.reference.attention(spec, x, x, x, params=params)["max_logit"] == 3.0).all()
