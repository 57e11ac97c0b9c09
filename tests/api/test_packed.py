"""Batches without padding: offsets (RAGGED-1), pages (PAGED-1), on the backends that take them."""

from __future__ import annotations

import itertools
import pickle

import numpy as np
import pytest
from tests.api.refusals import refuses

import sdpakit as sk
from sdpakit import ArgumentError, ArgumentTypeError
from sdpakit.expr.operands import Table

EVERYTHING = ("out", "lse", "max_logit", "entropy", "sum_p2")
BASE = {"q_heads": 4, "kv_heads": 2, "head_dim": 8, "v_head_dim": 6}
Q_ENDS, KV_ENDS = np.array([0, 3, 3, 8]), np.array([0, 4, 6, 17])
BACKENDS = ["interp", "numba_cpu"]


def compiled(backend="interp", **spec):
    return sk.compile(sk.AttentionSpec(**{**BASE, **spec}), backend=backend)


def tokens(q=8, kv=17, dtype=np.float32):
    rng = np.random.default_rng(3)
    shapes = ((q, 4, 8), (kv, 2, 8), (kv, 2, 6))
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


OFFSETS = {"cu_q_lens": Q_ENDS, "cu_kv_lens": KV_ENDS}


def in_pages(x, size, table, ends):
    """Return the keys of entries end to end in pages, NaN in slots that no key has."""
    pages = np.full((int(table.max()) + 1, size, *x.shape[1:]), np.nan, x.dtype)
    for b, (start, end) in enumerate(itertools.pairwise(ends)):
        for j in range(end - start):
            pages[table[b, j // size], j % size] = x[start + j]
    return pages


# ------------------------------------------------------------------ what comes out


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_entry_has_the_bits_that_it_has_alone(backend):
    q, k, v = tokens()
    kernel = compiled(backend, layout="thd", mask=sk.Causal("bottom_right"), outputs=EVERYTHING)
    padded = compiled(backend, mask=sk.Causal("bottom_right"), outputs=EVERYTHING)
    found = kernel(q, k, v, **OFFSETS)
    assert found.out.shape == (8, 4, 6)
    assert found.lse.shape == (8, 4)
    for b in range(3):
        rows, keys = slice(*Q_ENDS[b : b + 2]), slice(*KV_ENDS[b : b + 2])
        alone = padded(*(x.swapaxes(0, 1)[None] for x in (q[rows], k[keys], v[keys])))
        for name in EVERYTHING:
            own = getattr(found, name)[rows].swapaxes(0, 1)[None]
            np.testing.assert_array_equal(own, getattr(alone, name))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("size", [1, 3, 16])
def test_pages_have_the_bits_of_keys_end_to_end(backend, size):
    q, k, v = tokens()
    mask = sk.Window(5, 0, "bottom_right")
    whole = compiled(backend, layout="thd", mask=mask, outputs=EVERYTHING)(q, k, v, **OFFSETS)
    table = np.random.default_rng(4).permutation(3 * 17).reshape(3, 17)
    pages = [in_pages(x, size, table, KV_ENDS) for x in (k, v)]
    kernel = compiled(
        backend, layout="thd", paged=True, kv_lens=True, mask=mask, outputs=EVERYTHING
    )
    lengths = np.diff(KV_ENDS)
    found = kernel(q, *pages, cu_q_lens=Q_ENDS, kv_lens=lengths, block_table=table)
    for name in EVERYTHING:
        np.testing.assert_array_equal(getattr(found, name), getattr(whole, name))


@pytest.mark.parametrize("backend", BACKENDS)
def test_out_is_filled_where_it_lies_and_tokens_past_the_last_are_empty_rows(backend):
    q, k, v = tokens(q=11)
    buffer = np.full((11, 2, 4, 6), 7, np.float32)
    out = buffer[:, 1]
    found = compiled(backend, layout="thd", empty_row="nan")(q, k, v, out=out, **OFFSETS)
    assert found is out
    assert np.isnan(out[8:]).all()
    assert np.isfinite(out[:8]).all()
    assert (buffer[:, 0] == 7).all()


def test_lengths_are_values_of_the_call_and_compile_nothing():
    from sdpakit import compiler

    kernel = compiled(layout="thd", mask=sk.Causal("bottom_right"))
    compiled(mask=sk.Causal("bottom_right"))
    compiled(layout="thd", paged=True, kv_lens=True, mask=sk.Causal("bottom_right"))
    before = compiler.stats().compilations
    q, k, v = tokens()
    for ends in ([0, 8], [0, 1, 8], [0, 0, 0, 5]):
        kernel(q, k, v, cu_q_lens=np.array(ends), cu_kv_lens=np.array(ends))
    compiled(layout="bshd", mask=sk.Causal("bottom_right"))
    assert compiler.stats().compilations == before


def test_a_kernel_and_a_spec_travel():
    kernel = compiled(layout="thd", paged=True, kv_lens=True)
    again = pickle.loads(pickle.dumps(kernel))
    assert again.spec == kernel.spec
    assert eval(repr(kernel.spec), {"AttentionSpec": sk.AttentionSpec}) == kernel.spec


@pytest.mark.parametrize("size", [{"cu_q_lens": np.array([0])}, {"cu_q_lens": np.array([0, 0, 0])}])
def test_a_call_without_rows_or_keys_launches_nothing(never_launched, size):
    kernel = never_launched(compiled(layout="thd", outputs=("out", "lse")))
    q, k, v = tokens()
    found = kernel(q, k, v, cu_kv_lens=np.zeros_like(size["cu_q_lens"]), **size)
    assert (found.out == 0).all()
    assert (found.lse == -np.inf).all()


# ------------------------------------------------------------------ attention()


def test_attention_takes_offsets_and_tables_for_the_layout():
    q, k, v = tokens()
    given = {"causal": True, "align": "bottom_right", "backend": "interp"}
    whole = sk.attention(q, k, v, **OFFSETS, **given)
    table = np.arange(3 * 17).reshape(3, 17)
    pages = [in_pages(x, 4, table, KV_ENDS) for x in (k, v)]
    lengths = {"kv_lens": np.diff(KV_ENDS), "block_table": table}
    np.testing.assert_array_equal(
        sk.attention(q, *pages, cu_q_lens=Q_ENDS, **lengths, **given), whole
    )
    padded = q[None, :3].swapaxes(1, 2)  # one entry, the first
    one = {name: x[:1] for name, x in lengths.items()}
    found = sk.attention(padded, *pages, **one, **given)
    np.testing.assert_array_equal(found[0].swapaxes(0, 1), whole[:3])


def test_attention_takes_one_array_of_offsets_for_a_promise_of_equal_lengths():
    q, k, v = tokens(kv=8)
    both = {"cu_q_lens": Q_ENDS, "cu_kv_lens": Q_ENDS}
    sk.attention(q, k, v, causal=True, backend="interp", **both)
    with pytest.raises(ArgumentError, match="align: got none"):
        sk.attention(q, k, v, causal=True, cu_q_lens=Q_ENDS, cu_kv_lens=Q_ENDS.copy())


def test_attention_says_how_many_axes_a_layout_has():
    q, k, v = tokens()
    with pytest.raises(ArgumentError, match=r"q: got 4 axes(?s:.*)3 axes, layout 'thd'"):
        sk.attention(q[None], k, v, **OFFSETS)
    with pytest.raises(ArgumentError, match="cu_kv_lens: got nothing"):
        sk.attention(q, k, v, cu_q_lens=Q_ENDS, backend="interp")


def test_results_over_the_keys_of_two_calls_merge():
    q, k, v = tokens()
    kernel = compiled(layout="thd", outputs=("out", "lse"))
    parts = []
    for keep in (np.less, np.greater_equal):  # the first half of the keys of each entry, the rest
        chosen = np.concatenate(
            [
                start + np.flatnonzero(keep(np.arange(end - start), (end - start) // 2))
                for start, end in itertools.pairwise(KV_ENDS)
            ]
        )
        ends = np.searchsorted(chosen, KV_ENDS)
        parts.append(kernel(q, k[chosen], v[chosen], cu_q_lens=Q_ENDS, cu_kv_lens=ends))
    found, whole = sk.merge(*parts, layout="thd"), kernel(q, k, v, **OFFSETS)
    np.testing.assert_allclose(found.out, whole.out, atol=1e-6)
    np.testing.assert_allclose(found.lse, whole.lse, atol=1e-6)


# ------------------------------------------------------------------ what is refused

THD, PAGED = {"layout": "thd"}, {"paged": True, "kv_lens": True}
V, T = ArgumentError, ArgumentTypeError
OF_OFFSETS = [
    ("cu_q_lens", None, V, "nothing", "pass cu_q_lens="),
    ("cu_q_lens", [0, 3, 8], T, "list", "numpy.asarray"),
    ("cu_q_lens", np.array([0.0, 8.0]), T, "dtype float64", "int"),
    ("cu_q_lens", np.zeros((2, 2), int), V, "shape (2, 2)", "numpy.cumsum"),
    ("cu_q_lens", np.zeros(0, int), V, "shape (0,)", "0 first"),
    ("cu_q_lens", np.array([1, 3, 3, 8]), V, "cu_q_lens[0] = 1", "0 first"),
    ("cu_q_lens", np.array([0, 3, 2, 8]), V, "cu_q_lens[2] = 2 behind 3", "0 first"),
    ("cu_q_lens", np.array([0, 3, 3, 9]), V, "cu_q_lens[3] = 9", "0 first"),
    ("cu_q_lens", np.array([0, 2**64 - 1, 0], np.uint64), V, "= 18446744073709551615", "0 first"),
    ("cu_kv_lens", np.array([0, 4, 17]), V, "shape (3,)", "0 first"),
    ("cu_kv_lens", None, V, "nothing", "pass cu_kv_lens="),
    ("block_table", np.zeros((3, 1), int), V, "does not use", "paged=True"),
    ("kv_lens", np.zeros(3, int), V, "does not use", "kv_lens=True"),
    ("q", np.zeros((1, 4, 8, 8), np.float32), V, "4 axes", "numpy.concatenate"),
    ("q", np.zeros((4, 8, 8), np.float32)[:, :3], V, "shape (4, 3, 8)", "swapaxes(0, 1)"),
    ("v", np.zeros((16, 2, 6), np.float32), V, "shape (16, 2, 6)", "k has kv_len 17"),
    ("out", np.zeros((1, 4, 8, 6), np.float32), V, "shape (1, 4, 8, 6)", ""),
]


@pytest.mark.parametrize(("name", "value", "kind", "got", "fix"), OF_OFFSETS)
def test_a_bad_ragged_call_is_refused(never_launched, name, value, kind, got, fix):
    kernel = never_launched(compiled(**THD))
    given = {**dict(zip("qkv", tokens(), strict=True)), **OFFSETS, name: value}
    with refuses(kind, name, got, fix):
        kernel(**given)


OF_PAGES = [
    ("block_table", None, V, "nothing", "pass block_table="),
    ("block_table", np.zeros((2, 2)), T, "dtype float64", "int"),
    ("block_table", np.zeros(4, int), V, "shape (4,)", "numbers of its pages"),
    ("block_table", np.zeros((3, 2), int), V, "shape (3, 2)", "numbers of its pages"),
    ("block_table", np.array([[0, 1], [6, 9]]), V, "block_table[1, 0] = 6", "are not read"),
    ("block_table", np.array([[0, -1], [1, 9]]), V, "block_table[0, 1] = -1", "are not read"),
    ("kv_lens", None, V, "nothing", "pass kv_lens="),
    ("kv_lens", np.array([9, 1]), V, "kv_lens[0] = 9", "true lengths"),
    ("cu_kv_lens", KV_ENDS, V, "does not use", "layout='thd'"),
    ("k", np.zeros((6, 2, 4, 8), np.float32)[:, :, :3], V, "shape (6, 2, 3, 8)", "swapaxes(1, 2)"),
    ("v", np.zeros((5, 4, 2, 6), np.float32), V, "shape (5, 4, 2, 6)", "k has 6 pages"),
    ("k", np.zeros((6, 4, 8), np.float32), V, "3 axes", "k[None]"),
]


@pytest.mark.parametrize(("name", "value", "kind", "got", "fix"), OF_PAGES)
def test_a_bad_paged_call_is_refused(never_launched, name, value, kind, got, fix):
    kernel = never_launched(compiled(**PAGED))
    given = {
        "q": np.zeros((2, 4, 5, 8), np.float32),
        "k": np.zeros((6, 4, 2, 8), np.float32),
        "v": np.zeros((6, 4, 2, 6), np.float32),
        "kv_lens": np.array([7, 3]),
        "block_table": np.array([[0, 5], [2, 99]]),
        name: value,
    }
    with refuses(kind, name, got, fix):
        kernel(**given)


def test_pages_of_no_keys_are_refused():
    q, k = np.zeros((1, 4, 5, 8), np.float32), np.zeros((6, 0, 2, 8), np.float32)
    with refuses(ArgumentError, "k", "pages of 0 keys", "order of its axes"):
        compiled(**PAGED)(q, k, k[..., :6], kv_lens=[0], block_table=np.zeros((1, 1), int))


def test_a_table_must_reach_as_far_as_the_longest_entry():
    table = Table("t", "float32", 2)
    kernel = compiled(layout="thd", logits=lambda x, i: x + table[i.b, i.k])
    q, k, v = tokens()
    kernel(q, k, v, params={"t": np.zeros((3, 11), np.float32)}, **OFFSETS)
    with pytest.raises(ArgumentError, match="table 't'"):
        kernel(q, k, v, params={"t": np.zeros((3, 10), np.float32)}, **OFFSETS)


def test_a_promise_of_equal_lengths_is_checked_entry_by_entry():
    kernel = compiled(layout="thd", equal_lens=True, mask=sk.Causal())
    q, k, v = tokens(kv=8)
    kernel(q, k, v, cu_q_lens=Q_ENDS, cu_kv_lens=Q_ENDS.copy())
    with refuses(ArgumentError, "q, k", "q_lens[0] = 3, kv_lens[0] = 5", "names the alignment"):
        kernel(q, k, v, cu_q_lens=Q_ENDS, cu_kv_lens=np.array([0, 5, 5, 8]))


@pytest.mark.parametrize("spec", [THD, PAGED])
def test_gradients_are_refused_with_what_to_do(spec):
    with pytest.raises(sk.UnsupportedSpecError, match=r"compile_backward: got (?s:.*)padded"):
        sk.compile_backward(sk.AttentionSpec(**BASE, **spec))


def test_a_backend_that_says_nothing_of_offsets_or_pages_takes_neither():
    from sdpakit.backends.base import Capabilities

    plain = Capabilities(frozenset(["float32"]), 64, frozenset(EVERYTHING))
    for spec, reason in ((THD, "no layout 'thd'"), (PAGED, "no paged keys and values")):
        assert plain.reasons_against(sk.AttentionSpec(**BASE, **spec), {}) == [reason]


# ------------------------------------------------------------------ explain


@pytest.mark.parametrize("backend", BACKENDS)
def test_explain_counts_the_work_of_entries_as_long_as_they_are(backend):
    kernel = compiled(backend, layout="thd", mask=sk.Causal("bottom_right"))
    facts = kernel.explain(**OFFSETS)
    assert facts["sizes"] == "batch 3, heads 4/2, lengths at most 5 x 11"
    assert facts["flops"] == (3 * 4 + 5 * 11) * 4 * 2 * (8 + 6)
    assert kernel.explain(batch=2, q_len=5)["sizes"] == "batch 2, heads 4/2, lengths at most 5 x 5"
    q, k, v = tokens()
    assert kernel.explain(q=q, k=k, v=v)["sizes"] == "batch 1, heads 4/2, lengths at most 8 x 17"


@pytest.mark.parametrize("backend", BACKENDS)
def test_explain_stands_in_for_pages(backend):
    kernel = compiled(backend, **PAGED)
    facts = kernel.explain(batch=3, q_len=1, kv_len=40)
    assert facts["sizes"] == "batch 3, heads 4/2, lengths at most 1 x 40"
    read = 3 * 40 * 2 * (8 + 6) * 4
    assert facts["bytes"] == read + 3 * 4 * (8 + 6) * 4
    facts = kernel.explain(q_len=1, kv_lens=np.array([40, 7, 0]), batch=3)
    assert facts["flops"] == 47 * 4 * 2 * (8 + 6)
    pages = np.zeros((5, 8, 2, 8), np.float32)
    facts = kernel.explain(q_len=1, kv_len=40, k=pages, v=pages[..., :6])
    assert facts["sizes"] == "batch 1, heads 4/2, lengths at most 1 x 40"
