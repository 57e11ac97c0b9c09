"""A kernel: what comes back and in which form; explain, inspect, pickling; no rows, no keys."""

from __future__ import annotations

import copy
import pickle

import ml_dtypes
import numpy as np
import pytest
from tests.api.refusals import refuses

import sdpakit as sk
from sdpakit import ArgumentError, ArgumentTypeError
from sdpakit.explanation import Explanation

BASE = {"q_heads": 4, "kv_heads": 2, "head_dim": 8, "v_head_dim": 6}
EVERYTHING = ("out", "lse", "max_logit", "entropy", "sum_p2")


def compiled(**fields):
    return sk.compile(sk.AttentionSpec(**BASE, **fields), backend="interp")


def test_one_output_is_an_array_and_more_are_named(qkv):
    out = compiled()(*qkv)
    assert type(out) is np.ndarray
    both = compiled(outputs=("lse", "out"))(*qkv)
    lse, again = both
    assert both.lse is lse
    assert both.out is again
    assert both._asdict() == {"lse": lse, "out": again}
    np.testing.assert_array_equal(again, out)
    assert repr(both).startswith("AttentionOutput(lse=")


def test_one_output_that_is_not_out_is_named(qkv):
    result = compiled(outputs=("lse",))(*qkv)
    assert result._fields == ("lse",)
    assert result.lse.shape == (2, 4, 5)


def test_an_output_that_was_not_asked_for_says_how_to_ask(qkv):
    result = compiled(outputs=("out", "lse"))(*qkv)
    with pytest.raises(AttributeError, match=r"no 'entropy'; it has out, lse: say outputs="):
        _ = result.entropy


def test_results_can_be_copied_and_pickled(qkv):
    result = compiled(outputs=("out", "lse"))(*qkv)
    for twin in (copy.copy(result), copy.deepcopy(result), pickle.loads(pickle.dumps(result))):
        assert twin._fields == ("out", "lse")
        np.testing.assert_array_equal(twin.out, result.out)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_results_have_the_dtypes_of_the_spec(qkv, dtype):
    numpy_dtype = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    q, k, v = (x.astype(numpy_dtype) for x in qkv)
    result = compiled(dtype=dtype, outputs=EVERYTHING)(q, k, v)
    assert result.out.dtype == numpy_dtype
    wide = np.float64 if dtype == "float64" else np.float32
    assert {getattr(result, name).dtype for name in EVERYTHING[1:]} == {np.dtype(wide)}


def test_layouts_differ_in_the_order_of_axes_alone(qkv):
    swapped = [np.ascontiguousarray(x.swapaxes(1, 2)) for x in qkv]
    one = compiled(outputs=EVERYTHING)(*qkv)
    other = compiled(outputs=EVERYTHING, layout="bshd")(*swapped)
    np.testing.assert_array_equal(other.out.swapaxes(1, 2), one.out)
    for name in EVERYTHING[1:]:
        np.testing.assert_array_equal(getattr(other, name), getattr(one, name))


def test_inputs_may_have_any_strides_and_be_read_only(qkv):
    expected = compiled()(*qkv)
    wide = [np.repeat(x, 2, axis=-1)[..., ::-1][..., ::2][..., ::-1] for x in qkv]
    for view in wide:
        view.flags.writeable = False
    np.testing.assert_array_equal(compiled()(*wide), expected)


# ------------------------------------------------------------------ no rows, no keys


def sizes(batch=2, q_heads=4, q_len=5, kv_len=7):
    shapes = ((batch, q_heads, q_len, 8), (batch, 2, kv_len, 8), (batch, 2, kv_len, 6))
    return [np.ones(shape, np.float32) for shape in shapes]


@pytest.mark.parametrize("size", [{"batch": 0}, {"q_len": 0}, {"batch": 0, "kv_len": 0}])
def test_a_call_without_rows_gives_empty_arrays_and_launches_nothing(never_launched, size):
    result = never_launched(compiled(outputs=EVERYTHING))(*sizes(**size))
    batch, q_len = size.get("batch", 2), size.get("q_len", 5)
    assert result.out.shape == (batch, 4, q_len, 6)
    assert result.lse.shape == (batch, 4, q_len)


def test_an_empty_batch_takes_empty_lengths_and_an_empty_out(never_launched):
    kernel = never_launched(compiled(kv_lens=True))
    out = np.empty((0, 4, 5, 6), np.float32)
    assert kernel(*sizes(batch=0), kv_lens=np.empty(0, np.int64), out=out) is out


def test_a_call_without_heads_gives_an_empty_array(never_launched):
    kernel = sk.compile(sk.AttentionSpec(q_heads=0, head_dim=8), backend="interp")
    empty = np.empty((2, 0, 5, 8), np.float32)
    assert never_launched(kernel)(empty, empty, empty).shape == (2, 0, 5, 8)


@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize(("empty_row", "value"), [("zero", 0.0), ("nan", np.nan)])
def test_a_call_without_keys_gives_empty_rows(never_launched, sinks, empty_row, value):
    kernel = compiled(outputs=EVERYTHING, sinks=sinks, empty_row=empty_row)
    extra = {"sinks": np.ones(4, np.float32)} if sinks else {}
    result = never_launched(kernel)(*sizes(kv_len=0), **extra)
    for name, expected in zip(EVERYTHING, (value, -np.inf, -np.inf, 0.0, 0.0), strict=True):
        assert np.isin(getattr(result, name), expected).all() or np.isnan(expected)
    assert np.isnan(result.out).all() == (empty_row == "nan")


def test_a_call_without_rows_is_checked_like_any_other(never_launched):
    q, k, v = sizes(q_len=0)
    with refuses(ArgumentError, "v", "shape (2, 2, 6, 6)", "k has kv_len 7"):
        never_launched(compiled())(q, k, v[:, :, 1:])


def test_values_of_width_zero_still_have_statistics():
    spec = sk.AttentionSpec(q_heads=1, head_dim=4, v_head_dim=0, outputs=("out", "lse"))
    x = np.zeros((1, 1, 3, 4), np.float32)
    result = sk.compile(spec, backend="interp")(x, x, x[..., :0])
    assert result.out.shape == (1, 1, 3, 0)
    np.testing.assert_array_equal(result.lse, np.full((1, 1, 3), np.log(np.float32(3))))


# ------------------------------------------------------------------ explain, inspect, pickle


def test_inspect_gives_the_text_of_a_stage_and_lists_what_there_is():
    kernel = compiled(mask=sk.Causal("top_left"))
    assert "k <= q" in kernel.inspect("ir")
    with refuses(ArgumentError, "stage", "'asm'", "name one of these"):
        kernel.inspect("asm")
    with pytest.raises(ArgumentError, match=r"allowed: ir \(backend interp\)"):
        kernel.inspect("asm")


def test_explain_without_sizes_is_about_the_kernel():
    facts = compiled(softcap=5.0).explain()
    assert facts["backend"] == "interp"
    assert facts["why"] == "named by the caller"
    assert facts["run_time_values"]["softcap"] == 5.0
    assert len(facts["cache_key"]) == 64
    assert "flops" not in facts
    assert len(facts) == len(list(facts))
    assert "backend" in str(facts)
    assert "softcap  5" in str(facts)


def test_explain_of_a_call_counts_its_work():
    facts = compiled().explain(batch=2, q_len=5, kv_len=7)
    assert facts["flops"] == 2 * 4 * 5 * 7 * 2 * (8 + 6)
    assert facts["bytes"] == 4 * (2 * 4 * 5 * 8 + 2 * 2 * 7 * (8 + 6) + 2 * 4 * 5 * 6)


def test_explain_counts_tiles_by_class_where_the_backend_has_tiles():
    class Tiled:
        def explain(self, call):
            return {"block_q": 4, "block_kv": 8}

    kernel = compiled(mask=sk.Causal("top_left"))
    kernel._launcher = Tiled()
    facts = kernel.explain(batch=2, q_len=16, kv_len=32)
    # For each of 4 q tiles of 4 rows: 1, 1, 2, 2 tiles of 8 keys, the last of each on the diagonal.
    assert facts["tiles"] == {"empty": 8 * 10, "full": 8 * 2, "partial": 8 * 4}
    assert facts["flops_in_tiles"] == 8 * 6 * (4 * 8) * 2 * 14


def test_printed_flops_say_whether_the_mask_counts():
    text = str(Explanation({"flops": 7, "flops_per_byte": 0.5, "flops_in_tiles": 9}))
    assert text.splitlines() == [
        "flops if dense            7",
        "flops per byte if dense   0.5",
        "flops done (whole tiles)  9",
    ]


def test_explain_takes_the_arrays_of_a_call_too(qkv):
    q, k, v = qkv
    assert dict(compiled().explain(q=q, k=k, v=v)) == dict(
        compiled().explain(batch=2, q_len=5, kv_len=7)
    )


def test_explain_stands_in_for_every_operand_that_a_spec_can_ask_for():
    kernel = compiled(
        mask=sk.Dense() & sk.Causal("offset"),
        bias="bfloat16",
        sinks=True,
        q_lens=True,
        kv_lens=True,
        layout="bshd",
    )
    assert kernel.explain(q_len=5, kv_len=7)["flops"] == 4 * 5 * 7 * 2 * 14


def test_explain_says_what_it_assumes_of_a_mask_that_was_not_given():
    kernel, mask = compiled(mask=sk.Dense()), np.zeros((1, 1, 5, 7), bool)
    assert "no mask was given" in kernel.explain(q_len=5, kv_len=7)["assumed"]
    assert "assumed" not in kernel.explain(q_len=5, kv_len=7, mask=mask)
    assert "assumed" not in compiled().explain(q_len=5, kv_len=7)


def test_explain_needs_no_memory_for_long_sequences():
    facts = compiled(mask=sk.Causal("top_left")).explain(batch=8, q_len=10**6)
    assert facts["flops"] == 8 * 4 * 10**12 * 2 * 14


def test_explain_refuses_what_a_call_would():
    with refuses(ArgumentError, "kv_lens", "does not use", "kv_lens=True"):
        compiled().explain(q_len=5, kv_lens=np.array([3]))


def test_explain_takes_a_missing_length_from_the_other_side(qkv):
    q, k, _ = qkv
    assert compiled().explain(q=q)["flops"] == compiled().explain(batch=2, q_len=5)["flops"]
    assert "lengths 7 x 7" in compiled().explain(batch=2, k=k)["sizes"]


def test_explain_ignores_no_argument(qkv):
    with refuses(ArgumentError, "explain", "threads without a length", "name a length"):
        compiled().explain(threads=2)
    with refuses(ArgumentError, "explain", "batch=2 without a length", "name a length"):
        compiled().explain(batch=2)
    with refuses(ArgumentTypeError, "explain", "'qlens'", "q_lens"):
        compiled().explain(q_len=5, qlens=np.array([3]))
    with refuses(ArgumentError, "q", "3 axes", "q[None]"):
        compiled().explain(q=qkv[0][0])


def test_a_kernel_travels_as_its_spec(qkv):
    kernel = compiled(mask=sk.Causal("bottom_right"), scale=0.3)
    before = sk.compiler.stats().compilations
    for twin in (pickle.loads(pickle.dumps(kernel)), copy.copy(kernel), copy.deepcopy(kernel)):
        assert twin.spec == kernel.spec
        assert twin.backend == "interp"
        np.testing.assert_array_equal(twin(*qkv), kernel(*qkv))
    assert sk.compiler.stats().compilations == before


def test_repr_names_backend_and_spec():
    assert repr(compiled()).startswith("<sdpakit.Kernel on interp of AttentionSpec(q_heads=4")


@pytest.mark.parametrize("name", ["batch", "q_len", "kv_len"])
@pytest.mark.parametrize("size", [-1, 1.5, True, "7", 2**31, 2**70])
def test_explain_refuses_sizes_that_no_call_has(name, size):
    with refuses(ArgumentError, f"explain: {name}", repr(size), "a call could have"):
        compiled().explain(**{"q_len": 5, name: size})


@pytest.mark.parametrize("size", ["batch", "q_len", "kv_len"])
def test_explain_of_a_call_without_pairs_shows_the_launcher_none(monkeypatch, size):
    kernel, asked = compiled(), []
    launcher = type(kernel._launcher)
    monkeypatch.setattr(launcher, "explain", lambda _, call: asked.append(call) or {})
    assert kernel.explain(**{"q_len": 5, size: 0})["flops"] == 0
    assert asked == [None]
