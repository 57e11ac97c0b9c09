"""Masks of the reference against loops in plain Python, pair by pair."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from sdpakit import reference
from sdpakit.errors import ArgumentError
from sdpakit.expr.operands import Scalar
from sdpakit.logits import Alibi
from sdpakit.masks import Causal, Dense, Dilated, Document, Predicate, Prefix, Window
from sdpakit.spec import AttentionSpec

BATCH, HEADS, ROWS, KEYS = 2, 2, 6, 9
Q_LENS, KV_LENS, OFFSETS = (6, 4), (9, 5), (3, -2)
DENSE = np.random.default_rng(0).random((BATCH, HEADS, ROWS, KEYS)) < 0.5
TABLES = {
    "doc": np.array([[0, 0, 1, 1, 2, 2, 2, 3, 3], [3, 1, 1, 0, 3, 0, 1, 2, 2]], np.int32),
    "prefix": np.array([3, 0]),
}


def attended(mask):
    spec = AttentionSpec(
        q_heads=HEADS, head_dim=4, mask=mask, q_lens=True, kv_lens=True, dtype="float64"
    )
    zeros = np.zeros((BATCH, HEADS, ROWS, 4)), *(np.zeros((BATCH, HEADS, KEYS, 4)),) * 2
    found = reference.detail(
        spec,
        *zeros,
        mask=DENSE,
        q_lens=np.array(Q_LENS),
        kv_lens=np.array(KV_LENS),
        q_offset=np.array(OFFSETS),
        params=TABLES,
    )
    return found.attended


def position(align, b, i):
    return i + {"top_left": 0, "bottom_right": KV_LENS[b] - Q_LENS[b], "offset": OFFSETS[b]}[align]


def loops(rule):
    found = np.zeros((BATCH, HEADS, ROWS, KEYS), bool)
    for b, h, i, j in itertools.product(*map(range, found.shape)):
        found[b, h, i, j] = i < Q_LENS[b] and j < KV_LENS[b] and rule(b, h, i, j)
    return found


def in_window(b, i, j, left, right, align):
    p = position(align, b, i)
    return (left is None or p - left <= j) and (right is None or j <= p + right)


ALIGNMENTS = ("top_left", "bottom_right", "offset")
RULES = {
    "prefix": (Prefix(4), lambda b, h, i, j: j < 4),
    "prefix_table": (Prefix("prefix"), lambda b, h, i, j: j < TABLES["prefix"][b]),
    "document": (Document(), lambda b, h, i, j: TABLES["doc"][b, i] == TABLES["doc"][b, j]),
    "dense": (Dense(), lambda b, h, i, j: DENSE[b, h, i, j]),
    "not": (~Prefix(4), lambda b, h, i, j: not j < 4),
    "and": (Prefix(4) & Dense(), lambda b, h, i, j: j < 4 and DENSE[b, h, i, j]),
    "or": (Prefix(4) | Dense(), lambda b, h, i, j: j < 4 or DENSE[b, h, i, j]),
    "true": (Window(None, None, "top_left"), lambda b, h, i, j: True),
}
for align in ALIGNMENTS:
    RULES[f"causal_{align}"] = (
        Causal(align),
        lambda b, h, i, j, align=align: j <= position(align, b, i),
    )
    RULES[f"dilated_{align}"] = (
        Dilated(3, align),
        lambda b, h, i, j, align=align: (position(align, b, i) - j) % 3 == 0,
    )
    for left, right in ((2, 1), (None, 0), (0, None), (0, 0)):
        RULES[f"window_{left}_{right}_{align}"] = (
            Window(left, right, align),
            lambda b, h, i, j, w=(left, right, align): in_window(b, i, j, *w),
        )


@pytest.mark.parametrize("name", RULES)
def test_mask_is_what_the_loops_say(name):
    mask, rule = RULES[name]
    assert np.array_equal(attended(mask), loops(rule))


PREDICATES = (
    lambda i: i.k <= i.q,
    lambda i: (i.q - i.k) % 3 == 1,
    lambda i: (i.k - i.q) // 2 < -1,
    lambda i: (i.b + i.h) * i.k - i.q > 2,
    lambda i: i.kv_len - i.k > i.q_len - i.q,
    lambda i: -(i.k * i.k) + 5 * i.q >= i.q_offset,
)


@pytest.mark.parametrize("number", range(len(PREDICATES)))
def test_predicate_is_what_python_says(number):
    function = PREDICATES[number]

    def rule(b, h, i, j):
        numbers = {"q_len": Q_LENS[b], "kv_len": KV_LENS[b], "q_offset": OFFSETS[b]}
        return function(SimpleNamespace(b=b, h=h, q=i, k=j, **numbers))

    assert np.array_equal(attended(Predicate(function)), loops(rule))


@pytest.mark.parametrize(
    ("mask", "match"),
    [
        (Causal("offset"), "q_offset"),
        (Dense(), "mask"),
        (Document("d"), "params"),
        (Prefix("n"), "n"),
    ],
)
def test_what_a_mask_reads_must_be_given(mask, match):
    spec = AttentionSpec(q_heads=1, head_dim=1, mask=mask)
    zeros = (np.zeros((1, 1, 2, 1), np.float32),) * 3
    with pytest.raises(ArgumentError, match=match):
        reference.attention(spec, *zeros)


ONE_ROW = (np.zeros((2, 1, 4, 1), np.float32),) * 3


def test_tables_of_documents_broadcast_along_either_axis():
    spec = AttentionSpec(q_heads=1, head_dim=1, mask=Document("rows", "keys"))
    tables = {"rows": np.zeros((1, 1), np.int32), "keys": np.array([[0, 1, 0, 1], [1, 1, 1, 0]])}
    found = reference.detail(spec, *ONE_ROW, params=tables)
    assert np.array_equal(found.attended[:, 0, 2], tables["keys"] == 0)


@pytest.mark.parametrize(
    ("mask", "params", "match"),
    [
        (Document(), {"doc": np.zeros((2, 3), np.int32)}, "table 'doc'"),
        (Document(), {"doc": np.zeros(4, np.int32)}, "2 axes"),
        (Prefix("n"), {"n": np.array([1, 2])[:0]}, "table 'n'"),
        (Prefix("n"), {"n": np.array([1, -2])}, "a prefix of length -2"),
        (Window(2**63, 0, "top_left"), {}, "Window: left"),
        (Window(0, 2**62, "top_left"), {}, "Window: right"),
        (Prefix(2**64), {}, "Prefix: length"),
        (Dilated(2**65, "top_left"), {}, "Dilated: step"),
        (Predicate(lambda i: i.k < Scalar("n", "int")), {"n": 2**62}, "params\\['n'\\]"),
        (Predicate(lambda i: i.k < Scalar("n", "int")), {"n": 1.5}, "params\\['n'\\]"),
        (Predicate(lambda i: i.k < Scalar("n")), {"n": 10**400}, "params\\['n'\\]"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(mask, params, match):
    spec = AttentionSpec(q_heads=1, head_dim=1, mask=mask)
    with pytest.raises(ArgumentError, match=match):
        reference.attention(spec, *ONE_ROW, params=params)


def test_slopes_for_other_heads_are_refused():
    spec = AttentionSpec(q_heads=1, head_dim=1, logits=Alibi(align="top_left"))
    with pytest.raises(ArgumentError, match="0 to -1"):
        reference.attention(spec, *ONE_ROW, params={"slopes": np.zeros(0, np.float32)})


def test_an_offset_beyond_62_bits_is_refused():
    spec = AttentionSpec(q_heads=1, head_dim=1, mask=Causal("offset"))
    with pytest.raises(ArgumentError, match="q_offset"):
        reference.attention(spec, *ONE_ROW, q_offset=np.uint64(2**63))
