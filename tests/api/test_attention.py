"""attention(): the spec is that of the arrays, kernels are kept, contradictions are named."""

from __future__ import annotations

import numpy as np
import pytest
from tests.api.refusals import refuses

import sdpakit as sk
from sdpakit import ArgumentError, ArgumentTypeError, SpecError, compiler

BASE = {"q_heads": 4, "kv_heads": 2, "head_dim": 8, "v_head_dim": 6}


def attend(*arrays, **keywords):
    return sk.attention(*arrays, backend="interp", **keywords)


def by_spec(arrays, fields, **keywords):
    spec = sk.AttentionSpec(**BASE, **fields)
    return sk.compile(spec, backend="interp")(*arrays, **keywords)


@pytest.fixture
def square(qkv):
    """q, k, v with as many rows as keys."""
    q, k, v = qkv
    return q, k[:, :, :5], v[:, :, :5]


def test_plain_attention(qkv):
    np.testing.assert_array_equal(attend(*qkv), by_spec(qkv, {}))


def test_a_warning_of_the_scale_points_at_the_call(qkv):
    with pytest.warns(sk.ScaleWarning, match="SCALE-1") as caught:
        attend(*qkv, scale=1 / 8)
    assert [warning.filename for warning in caught] == [__file__]


def test_remedies_of_a_call_without_a_spec_name_arguments_of_the_call(qkv):
    q, k, v = qkv
    rows = [
        ((q, k, v), {"out": {"lse": None}}, "outputs=(..., 'lse')"),
        ((q, k, v), {"params": {"scale": 1.0}}, "or as an argument of attention"),
        ((q, k, v[:, :1]), {}, "give kv_heads = 2; kv_heads=1 is that of another spec"),
        ((q, k[..., :7], v), {}, "give head_dim = 8; head_dim=7 is that of another spec"),
    ]
    for arrays, keywords, remedy in rows:
        with pytest.raises((ArgumentError, SpecError)) as caught:
            attend(*arrays, **keywords)
        assert "compile a spec" not in str(caught.value)
        assert remedy in str(caught.value), str(caught.value)


def test_causal_of_a_square_needs_no_alignment(square):
    expected = by_spec(square, {"mask": sk.Causal("top_left")})
    np.testing.assert_array_equal(attend(*square, causal=True), expected)
    np.testing.assert_array_equal(attend(*square, causal=True, align="bottom_right"), expected)


def test_a_window_carries_the_alignment(qkv):
    expected = by_spec(qkv, {"mask": sk.Window(2, 1, "bottom_right")})
    np.testing.assert_array_equal(attend(*qkv, window=(2, 1), align="bottom_right"), expected)


def test_all_arguments_join(qkv):
    rng = np.random.default_rng(3)
    keywords = {
        "bias": rng.standard_normal((5, 7)).astype(np.float16),
        "sinks": rng.standard_normal(4).astype(np.float32),
        "q_lens": np.array([5, 3]),
        "kv_lens": np.array([7, 4]),
        "q_offset": 2,
        "params": {"slopes": np.ones(4, np.float32)},
    }
    mask = rng.random((5, 7)) < 0.8
    fields = {
        "mask": sk.Causal("offset") & sk.Window(4, 0, "offset") & sk.Dense(),
        "bias": "float16",
        "sinks": True,
        "q_lens": True,
        "kv_lens": True,
        "scale": 0.3,
        "softcap": 5.0,
        "logits": sk.Alibi(align="offset"),
        "outputs": ("out", "lse"),
    }
    expected = by_spec(qkv, fields, mask=mask, **keywords)
    found = attend(
        *qkv,
        causal=True,
        window=(4, 0),
        align="offset",
        mask=mask,
        scale=0.3,
        softcap=5.0,
        logits=sk.Alibi(align="offset"),
        outputs=["out", "lse"],
        **keywords,
    )
    np.testing.assert_array_equal(found.out, expected.out)
    np.testing.assert_array_equal(found.lse, expected.lse)


@pytest.mark.parametrize("mask", [sk.Prefix(3), lambda i: i.k < 3], ids=["mask", "function"])
def test_a_mask_may_be_symbolic(qkv, mask):
    np.testing.assert_array_equal(attend(*qkv, mask=mask), by_spec(qkv, {"mask": mask}))


def test_layout_and_out(qkv):
    swapped = [x.swapaxes(1, 2) for x in qkv]
    out = np.empty((2, 5, 4, 6), np.float32)
    assert attend(*swapped, layout="bshd", out=out) is out
    np.testing.assert_array_equal(out.swapaxes(1, 2), attend(*qkv))


def test_other_lengths_and_an_equal_function_find_the_kernel_again(qkv):
    q, k, v = qkv
    attend(q, k, v, mask=lambda i: (i.k + 1) % 3 < 2, softcap=3.0)
    before = compiler.stats()
    for rows in (1, 2, 4):
        attend(q[:, :, :rows], k, v, mask=lambda i: (i.k + 1) % 3 < 2, softcap=3.0)
    assert compiler.stats() == before


def test_a_function_that_changed_what_it_means_is_traced_anew(qkv):
    limit = 3

    def mask(i):
        return i.k < limit

    first = attend(*qkv, mask=mask)
    limit = 5
    np.testing.assert_array_equal(attend(*qkv, mask=mask), by_spec(qkv, {"mask": sk.Prefix(5)}))
    assert not np.array_equal(first, attend(*qkv, mask=mask))


def test_a_logit_function_that_changed_what_it_means_is_traced_anew(qkv):
    gain = 1.0

    def logits(x, i):
        return x * gain

    first = attend(*qkv, logits=logits)
    gain = 2.0
    assert not np.array_equal(first, attend(*qkv, logits=logits))


def test_a_function_may_leave_its_alignment_open_where_lengths_are_equal(square, qkv):
    expected = attend(*square, causal=True)
    np.testing.assert_array_equal(attend(*square, mask=lambda i: i.k <= i.pos()), expected)
    with pytest.raises(SpecError, match="align: got none"):
        attend(*qkv, mask=lambda i: i.k <= i.pos())


def test_an_open_alignment_shows_both_pictures(qkv):
    with pytest.raises(ArgumentError, match="align: got none, with q_len 5 and kv_len 7") as caught:
        attend(*qkv, causal=True)
    assert "top_left      bottom_right" in str(caught.value)
    assert "# # # # ." in str(caught.value)
    with refuses(ArgumentError, "align", "none, with q_len 5 and kv_len 7", "bottom_right"):
        attend(*qkv, window=(1, 0))


def test_equal_arrays_with_true_lengths_need_an_alignment_too(square):
    with refuses(ArgumentError, "align", "and true lengths that may differ", "bottom_right"):
        attend(*square, causal=True, kv_lens=np.array([5, 3]))


F32 = np.zeros((1, 1, 3, 4), np.float32)
REFUSED = {
    "align alone": ({"align": "top_left"}, ArgumentError, "align", "'top_left'", "masks carry"),
    "align unknown": ({"causal": True, "align": "left"}, SpecError, "Causal: align", "'left'", ""),
    "causal text": ({"causal": "top_left"}, ArgumentTypeError, "causal", "'top_left'", "a bool"),
    "window int": ({"window": 3}, ArgumentTypeError, "window", "3", "window=(1023, 0)"),
    "window negative": ({"window": (-1, 0)}, SpecError, "Window: left", "-1", "None leaves"),
    "layout": ({"layout": "sbhd"}, SpecError, "layout", "'sbhd'", "name one of these"),
    "scale": ({"scale": np.nan}, SpecError, "scale", "nan", "1/sqrt(head_dim)"),
    "softcap": ({"softcap": 0.0}, SpecError, "softcap", "0.0", "None is no cap"),
    "outputs": ({"outputs": ("out", "x")}, SpecError, "outputs", "'x'", ""),
    "mask of numbers": ({"mask": F32}, ArgumentTypeError, "mask", "dtype float32", "bias="),
    "bias of ints": ({"bias": np.ones(3, int)}, ArgumentTypeError, "bias", "dtype int64", "astype"),
    "bias of bools": ({"bias": F32 > 0}, ArgumentTypeError, "bias", "dtype bool", "is mask="),
    "scale array": ({"scale": np.ones(1)}, SpecError, "scale", "array([1.])", "1/sqrt(head_dim)"),
    "layout list": ({"layout": ["bhsd"]}, SpecError, "layout", "['bhsd']", "name one"),
    "backend": ({"backend": {"interp"}}, ArgumentTypeError, "backend", "{'interp'}", "name one of"),
    "params": ({"params": {"x": 1}}, ArgumentError, "params", "unknown name 'x'", "leave 'x'"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_contradictions_are_refused(case):
    keywords, kind, where, got, fix = REFUSED[case]
    with refuses(kind, where, got, fix):
        sk.attention(F32, F32, F32, **{"backend": "interp"} | keywords)


def test_a_flag_is_no_scale_even_after_one_was():
    attend(F32, F32, F32, scale=1.0)
    with refuses(SpecError, "scale", "True", "1/sqrt(head_dim)"):
        attend(F32, F32, F32, scale=True)


def test_operands_are_checked_before_a_spec_is_derived():
    with refuses(ArgumentError, "k", "3 axes, shape (1, 3, 4)", "k[None]"):
        attend(F32, F32[0], F32)
    with refuses(ArgumentTypeError, "v", "dtype int64", ".astype"):
        attend(F32, F32, np.zeros((1, 1, 3, 4), int))
    with refuses(ArgumentTypeError, "k", "dtype float64", ".astype('float32')"):
        attend(F32, F32.astype(np.float64), F32)
    with pytest.raises(SpecError, match="q_heads"):
        attend(F32, np.zeros((1, 2, 3, 4), np.float32), F32)


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("is_causal", "causal=True"),
        ("attn_mask", "mask= for a boolean array, bias= for numbers"),
        ("enable_gqa", "heads are those of the arrays"),
        ("dropout_p", "no dropout"),
        ("kv_len", "did you mean 'kv_lens'?"),
        ("quantile", "leave 'quantile' away"),
    ],
)
def test_keywords_of_other_libraries_are_answered_with_ours(name, remedy):
    with refuses(ArgumentTypeError, "attention", repr(name), remedy):
        attend(F32, F32, F32, **{name: None})


@pytest.mark.parametrize("name", ["k", "v"])
def test_one_dtype_for_q_k_and_v(name):
    half, single = np.zeros((1, 2, 3, 4), np.float16), np.zeros((1, 2, 3, 4), np.float32)
    given = {"q": half, "k": half, "v": half} | {name: single}
    fix = "q, k and v need one dtype: convert with .astype('float16')"
    with refuses(ArgumentTypeError, name, "dtype float32", fix):
        sk.attention(**given)
    torch = pytest.importorskip("torch")
    given = {n: torch.from_numpy(x) for n, x in given.items()}
    with refuses(ArgumentTypeError, name, "dtype float32", "convert with .to(torch.float16)"):
        sk.attention(**given)
