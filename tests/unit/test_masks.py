"""Masks: what each one means, its run-time numbers, the algebra, and what is refused."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdpakit import Table
from sdpakit.errors import SpecError
from sdpakit.expr.evaluate import Environment, evaluate
from sdpakit.expr.scope import Scope, scalars_of, tables_of
from sdpakit.expr.text import formula, parse, to_text
from sdpakit.logits import Alibi
from sdpakit.masks import (
    And,
    Causal,
    Dense,
    Dilated,
    Document,
    Mask,
    Not,
    Or,
    Predicate,
    Prefix,
    Window,
    as_mask,
)

NAMES = {
    name.__name__: name
    for name in (Alibi, Causal, Dense, Dilated, Document, Predicate, Prefix, Window, formula)
}
SIZES = (2, 2, 4, 6)
Q_LEN, KV_LEN, Q_OFFSET = np.array([4, 2]), np.array([6, 5]), np.array([1, 3])
OFFSETS = {"top_left": [0, 0], "bottom_right": KV_LEN - Q_LEN, "offset": Q_OFFSET}


def attended(mask, /, *, equal_lens=False, **tables):
    """Return the mask over every pair as an array (B, Hq, Lq, Lk)."""
    scope = Scope(equal_lens=equal_lens)
    node = mask.build(scope)
    grid = dict(zip("bhqk", np.ogrid[tuple(slice(0, n) for n in SIZES)], strict=True))
    lengths = {"q_len": Q_LEN, "kv_len": KV_LEN, "q_offset": Q_OFFSET}
    indices = grid | {name: x.reshape(2, 1, 1, 1) for name, x in lengths.items()}
    found = evaluate(node, Environment("float32", indices, scope.values, tables))
    return np.broadcast_to(found, SIZES)


def expected(rule):
    """Return a rule over plain Python integers b, h, i, j as an array (B, Hq, Lq, Lk)."""
    return np.array([rule(*pair) for pair in np.ndindex(*SIZES)], dtype=bool).reshape(SIZES)


@pytest.mark.parametrize("align", OFFSETS)
def test_causal(align):
    off = OFFSETS[align]
    want = expected(lambda b, h, i, j: j <= i + off[b])
    np.testing.assert_array_equal(attended(Causal(align=align)), want)


@pytest.mark.parametrize("align", OFFSETS)
@pytest.mark.parametrize(
    ("left", "right"), [(0, 0), (1, 0), (2, 1), (None, 1), (1, None), (None, None)]
)
def test_window(align, left, right):
    off = OFFSETS[align]

    def rule(b, h, i, j):
        p = i + off[b]
        return (left is None or p - left <= j) and (right is None or j <= p + right)

    np.testing.assert_array_equal(attended(Window(left, right, align=align)), expected(rule))


@pytest.mark.parametrize("align", OFFSETS)
@pytest.mark.parametrize("step", [1, 2, 3])
def test_dilated(align, step):
    off = OFFSETS[align]
    want = expected(lambda b, h, i, j: (i + off[b] - j) % step == 0)
    np.testing.assert_array_equal(attended(Dilated(step, align=align)), want)


def test_prefix():
    np.testing.assert_array_equal(attended(Prefix(3)), expected(lambda b, h, i, j: j < 3))
    lengths = np.array([2, 5])
    want = expected(lambda b, h, i, j: j < lengths[b])
    np.testing.assert_array_equal(attended(Prefix("n"), n=lengths), want)


def test_document_with_unsorted_ids():
    ids = np.array([[0, 2, 0, 1, 1, 2], [5, 5, 5, 4, 4, 5]], np.int32)
    want = expected(lambda b, h, i, j: ids[b, i] == ids[b, j])
    np.testing.assert_array_equal(attended(Document(), doc=ids), want)
    rows = np.array([[1, 0, 2, 9]], np.int32)
    want = expected(lambda b, h, i, j: rows[0, i] == ids[b, j])
    np.testing.assert_array_equal(attended(Document("rows", "keys"), rows=rows, keys=ids), want)


def test_dense_broadcasts():
    array = np.array([[True, False, True, True, False, True]]).reshape(1, 1, 1, 6)
    found = attended(Dense(), mask=array)
    np.testing.assert_array_equal(found, np.broadcast_to(array, SIZES))


def test_algebra():
    a, b = Causal(align="top_left"), Prefix(2)
    x, y = attended(a), attended(b)
    np.testing.assert_array_equal(attended(a & b), x & y)
    np.testing.assert_array_equal(attended(a | b), x | y)
    np.testing.assert_array_equal(attended(~a & ~~b), ~x & y)
    assert (a & b, a | b, ~a) == (And(a, b), Or(a, b), Not(a))


def test_functions_and_conditions_join_masks():
    a = Causal(align="top_left")
    want = attended(a & Predicate(lambda i: i.h == 1))
    for joined in (a & (lambda i: i.h == 1), (lambda i: i.h == 1) & a, a & formula("h == 1")):
        np.testing.assert_array_equal(attended(joined), want)
    either = (lambda i: i.h == 1) | a
    np.testing.assert_array_equal(attended(either), attended(a | Predicate(lambda i: i.h == 1)))


def test_an_open_alignment_needs_equal_lengths():
    own = Predicate(lambda i: i.k < i.pos())
    for mask in (Causal(), Window(1, 1), Dilated(2), Prefix(1) & ~Causal(), own):
        with pytest.raises(SpecError, match=r"(?s)align: got none.*\n +# \. \. \. \. +# # # # \."):
            mask.build(Scope())
    found = attended(Causal() & Predicate(lambda i: i.k <= i.pos()), equal_lens=True)
    np.testing.assert_array_equal(found, expected(lambda b, h, i, j: j <= i))


def test_literals_become_run_time_numbers():
    mask = Window(4, 0, align="offset") & (Prefix(7) | Window(None, 2, align="top_left"))
    mask = mask & ~Dilated(3, align="top_left")
    scope = Scope()
    node = mask.build(scope)
    values = {"window0_left": 4, "window0_right": 0, "prefix0_length": 7}
    assert scope.values == values | {"window1_right": 2, "dilated0_step": 3}
    assert not any(digit in to_text(node).replace("dilated0", "") for digit in "3457")
    assert {name for name, _ in scalars_of(node)} == set(scope.values)


@given(st.integers(0, 10**9), st.integers(0, 10**9), st.integers(1, 10**9))
def test_values_do_not_change_the_expression(left, right, step):
    def build(a, b, c):
        mask = Window(a, b, align="offset") | Dilated(c, align="top_left") & Prefix(b)
        return mask.build(Scope())

    assert build(left, right, step) is build(1, 2, 3)


def test_structure_does():
    assert Window(1, None, align="offset").build(Scope()) is not Window(
        None, 1, align="offset"
    ).build(Scope())


def test_tables_are_listed_by_name():
    mask = Document("rows", "keys", dtype=np.int64) & Prefix("n", dtype="int32") & Dense()
    assert mask.tables() == (
        Table("keys", "int64", 2), Table("n", "int32", 1), Table("rows", "int64", 2),
    )  # fmt: skip
    assert Causal().tables() == ()


def test_alibi_reads_slopes():
    node = Alibi(align="bottom_right").build(Scope())
    want = "x + (slopes.float32[h] * to_float(k - (q + (kv_len - q_len))))"
    assert node is parse(want)
    assert tables_of(node) == (Table("slopes", "float32", 1),)


ALL = [
    Causal(),
    Causal(align="offset"),
    Window(3, None, align="top_left"),
    Window(np.int64(3), 0),
    Prefix(5),
    Prefix("n", dtype="int32"),
    Document(),
    Document("rows", "keys", dtype="uint8"),
    Dilated(2, align="bottom_right"),
    Dense(),
    Predicate(lambda i: (i.k % 2 == 0) & (i.k <= i.pos())),
    Alibi(),
    Alibi("s", align="offset", dtype="float16"),
    (Causal() & Prefix(1) | ~Dense()) & ~(Causal() | Dense()),
]


@pytest.mark.parametrize("mask", ALL, ids=repr)
def test_masks_are_values(mask):
    again = eval(repr(mask), dict(NAMES))
    assert again == mask
    assert hash(again) == hash(mask)
    assert pickle.loads(pickle.dumps(mask)) == mask
    assert sum(mask == other for other in ALL) == 1


def test_numbers_are_plain_afterwards():
    window = Window(np.int64(3), np.uint8(0))
    assert (type(window.left), type(window.right)) == (int, int)
    assert type(Prefix(np.int16(2)).length) is int


@pytest.mark.parametrize("use", ["and", "or", "not", "if"])
def test_the_truth_of_a_mask_is_refused(use):
    a, b = Causal(), Dense()
    uses = {
        "and": lambda: a and b,
        "or": lambda: a or b,
        "not": lambda: not a,
        "if": lambda: 1 if a else 2,
    }
    with pytest.raises(SpecError, match=r"(?s)probably and / or / not instead of & \| ~"):
        uses[use]()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Causal("left"), r"Causal: align: got 'left'\n  allowed: 'top_left'"),
        (lambda: Causal(True), "Causal: align: got True"),
        (lambda: Window(-1, 0), r"Window: left: got -1\n  allowed: an integer >= 0\n.*None"),
        (lambda: Window(0, -1), "Window: right: got -1"),
        (lambda: Window(0, 1.5), "Window: right: got 1.5"),
        (lambda: Window(True, 0), "Window: left: got True"),
        (lambda: Window("3", 0), "Window: left: got '3'"),
        (lambda: Window(np.ones(2), 0), "Window: left: got array"),
        (lambda: Window(1, 1, align="center"), "Window: align"),
        (lambda: Dilated(0), "Dilated: step: got 0\n  allowed: an integer >= 1"),
        (lambda: Dilated(2, align=3), "Dilated: align: got 3"),
        (lambda: Prefix(-1), "Prefix: length: got -1\n  allowed: an integer >= 0"),
        (lambda: Prefix(2.0), "Prefix: length: got 2.0"),
        (lambda: Prefix(np.array([1, 2])), r"Prefix: length: got array"),
        (lambda: Prefix("scale"), "name of a Table: got 'scale'"),
        (lambda: Prefix("n", dtype="float32"), r"Prefix: dtype: got 'float32'\n  allowed: int8"),
        (lambda: Document("k"), "name of a Table: got 'k'"),
        (lambda: Document(np.zeros((1, 3))), r'remedy: .*Document\("doc"\), params={"doc": array}'),
        (lambda: Alibi(np.zeros(3)), r'Alibi: got ndarray.*\n.*\n.* params={"slopes": array}'),
        (lambda: Document(dtype=bool), "Document: dtype: got <class 'bool'>"),
        (lambda: Document(kv_ids="1a"), "name of a Table: got '1a'"),
        (lambda: Alibi("bias"), "name of a Table: got 'bias'"),
        (lambda: Alibi(dtype="int32"), r"Alibi: dtype: got 'int32'\n  allowed: float16"),
        (lambda: Alibi(align="x"), "Alibi: align"),
        (lambda: Predicate(3), "Predicate: got 3"),
        (lambda: Predicate(Causal), r"Predicate: got .*Causal.*\n.*\n.*make an object"),
        (lambda: Predicate(formula("k + 1")), "mask: got an expression of type int"),
        (lambda: Causal() & Causal, r"make an object of the class: Causal\(\.\.\.\)"),
        (lambda: Causal() & True, r"mask: got True.*\n.*\n.*Causal\(align="),
        (lambda: np.eye(2) & Causal(), r"an array of shape \(2, 2\).*\n.*\n.*Dense\(\)"),
        (lambda: Causal() | np.eye(2), r"an array of shape \(2, 2\)"),
        (lambda: as_mask("causal"), "mask: got 'causal'"),
        (lambda: as_mask([[True]]), r"mask: got \[\[True\]\]"),
    ],
    ids=range(33),
)  # fmt: skip
def test_masks_without_a_meaning_are_refused(make, message):
    with pytest.raises(SpecError, match=f"{message}"):
        make()


def test_one_name_has_one_meaning():
    two = Document("t", dtype="int32") & Prefix("t", dtype="int32")
    with pytest.raises(SpecError, match=r"run-time operand 't': got .*ndim=2.* and .*ndim=1"):
        two.tables()


def test_the_base_class_has_no_meaning():
    with pytest.raises(NotImplementedError):
        Mask().build(Scope())
