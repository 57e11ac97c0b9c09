"""out=: the same object comes back, exactly as asked; everything else is refused and left alone."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from tests.api.refusals import refuses

import sdpakit as sk
from sdpakit import ArgumentError, ArgumentTypeError
from sdpakit.arrays.out import MAX_WORK, check_distinct

SPEC = sk.AttentionSpec(q_heads=4, kv_heads=2, head_dim=8, v_head_dim=6)
SHAPE = (2, 4, 5, 6)


@pytest.fixture
def kernel():
    return sk.compile(SPEC, backend="interp")


def test_out_is_filled_and_returned(kernel, qkv):
    out = np.full(SHAPE, 7, np.float32)
    assert kernel(*qkv, out=out) is out
    np.testing.assert_array_equal(out, kernel(*qkv))


def test_out_may_be_any_view_of_a_larger_array(kernel, qkv):
    whole = np.full((3, 2, 4, 5, 12), 7, np.float32)
    out = whole[1, ::-1, :, ::-1, ::2]
    assert kernel(*qkv, out=out) is out
    np.testing.assert_array_equal(out, kernel(*qkv))
    assert (whole[0] == 7).all()
    assert (whole[2] == 7).all()
    assert (whole[1, ..., 1::2] == 7).all()


def test_out_follows_the_layout_of_the_spec(qkv):
    spec = sk.AttentionSpec(q_heads=4, kv_heads=2, head_dim=8, v_head_dim=6, layout="bshd")
    swapped = [x.swapaxes(1, 2) for x in qkv]
    out = np.empty((2, 5, 4, 6), np.float32)
    assert sk.compile(spec, backend="interp")(*swapped, out=out) is out
    np.testing.assert_array_equal(out.swapaxes(1, 2), sk.compile(SPEC, backend="interp")(*qkv))


def test_out_has_the_dtype_of_the_spec(qkv):
    spec = sk.AttentionSpec(q_heads=4, kv_heads=2, head_dim=8, v_head_dim=6, out_dtype="bfloat16")
    kernel = sk.compile(spec, backend="interp")
    out = np.empty(SHAPE, ml_dtypes.bfloat16)
    assert kernel(*qkv, out=out) is out
    with refuses(
        ArgumentTypeError, "out", "dtype float32", "numpy.empty((2, 4, 5, 6), 'bfloat16')"
    ):
        kernel(*qkv, out=np.empty(SHAPE, np.float32))


def test_several_outputs_take_a_mapping_and_the_rest_is_made(qkv):
    spec = sk.AttentionSpec(
        q_heads=4, kv_heads=2, head_dim=8, v_head_dim=6, outputs=("lse", "out", "entropy")
    )
    lse = np.empty((2, 4, 5), np.float32)
    result = sk.compile(spec, backend="interp")(*qkv, out={"lse": lse})
    assert result.lse is lse
    assert result._fields == ("lse", "out", "entropy")
    assert result.out.shape == SHAPE


def read_only(array):
    array.flags.writeable = False
    return array


def inside(array, shape):
    """A float32 array of a shape over the memory of another array."""
    return np.lib.stride_tricks.as_strided(array, shape, (0, 0, 0, array.itemsize))


WRONG_OUT = {
    "list": (lambda _: [1.0], ArgumentTypeError, "list", "leave out= away"),
    "shape": (lambda _: np.empty((2, 4, 5, 8), np.float32), ArgumentError, "shape (2, 4, 5, 8)",
              "numpy.empty((2, 4, 5, 6), 'float32')"),
    "broadcasts": (lambda _: np.empty((1, 4, 5, 6), np.float32), ArgumentError,
                   "shape (1, 4, 5, 6)", "numpy.empty"),
    "dtype": (lambda _: np.empty(SHAPE, np.float64), ArgumentTypeError, "dtype float64",
              "allocate numpy.empty((2, 4, 5, 6), 'float32')"),
    "byte order": (lambda _: np.empty(SHAPE, np.dtype("f4").newbyteorder()), ArgumentTypeError,
                   "foreign byte order", "allocate numpy.empty((2, 4, 5, 6), 'float32')"),
    "read-only": (lambda _: read_only(np.empty(SHAPE, np.float32)), ArgumentError,
                  "a read-only array", ".flags.writeable"),
    "broadcast view": (lambda _: np.broadcast_to(np.empty(6, np.float32), SHAPE), ArgumentError,
                       "a read-only array", "allocate a new one"),
    "stride 0": (lambda _: inside(np.empty(6, np.float32), SHAPE), ArgumentError,
                 "elements share memory", "numpy.empty"),
    "sliding": (lambda _: np.lib.stride_tricks.as_strided(
        np.empty(500, np.float32), SHAPE, (480, 120, 20, 4)), ArgumentError,
        "elements share memory", "numpy.empty"),
    "mapping of another output": (lambda _: {"lse": np.empty((2, 4, 5), np.float32)},
                                  ArgumentError, "the output 'lse'", "outputs=(..., 'lse')"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG_OUT)
def test_an_out_that_does_not_fit_is_refused(kernel, qkv, never_launched, case):
    make, kind, got, fix = WRONG_OUT[case]
    with refuses(kind, "out", got, fix):
        never_launched(kernel)(*qkv, out=make(qkv))


def test_out_must_not_overlap_q(never_launched):
    spec = sk.AttentionSpec(q_heads=1, head_dim=4)
    q = np.zeros((1, 1, 3, 4), np.float32)
    before = q.tobytes()
    with refuses(ArgumentError, "out (out)", "memory that overlaps q", "copy q first"):
        never_launched(sk.compile(spec, backend="interp"))(q, q, q, out=q)
    assert q.tobytes() == before


def test_out_between_the_elements_of_an_input_is_no_overlap():
    spec = sk.AttentionSpec(q_heads=1, head_dim=4)
    both = np.zeros((1, 1, 3, 8), np.float32)
    both[..., ::2] = np.arange(12).reshape(1, 1, 3, 4)
    q, out = both[..., ::2], both[..., 1::2]
    before = q.copy()
    assert sk.compile(spec, backend="interp")(q, q, q, out=out) is out
    np.testing.assert_array_equal(q, before)


@pytest.mark.parametrize("name", ["bias", "mask", "sinks", "kv_lens", "params"])
def test_out_must_not_overlap_any_array_that_is_read(never_launched, name):
    memory = np.zeros(256, np.float32)
    out = memory[:12].reshape(1, 1, 3, 4)
    fields, arguments = {
        "bias": ({"bias": "float32"}, {"bias": memory[:9].reshape(3, 3)}),
        "mask": ({"mask": sk.Dense()}, {"mask": memory.view(bool)[:9].reshape(3, 3)}),
        "sinks": ({"sinks": True}, {"sinks": memory[4:5]}),
        "kv_lens": ({"kv_lens": True}, {"kv_lens": memory.view(np.int32)[11:12]}),
        "params": ({"logits": sk.Alibi(align="top_left")}, {"params": {"slopes": memory[3:4]}}),
    }[name]
    kernel = never_launched(sk.compile(sk.AttentionSpec(q_heads=1, head_dim=4, **fields), "interp"))
    q = np.zeros((1, 1, 3, 4), np.float32)
    where = "slopes" if name == "params" else name
    with refuses(ArgumentError, "out (out)", f"memory that overlaps {where}", "numpy.empty"):
        kernel(q, q, q, out=out, **arguments)


def test_two_outputs_must_not_share_memory(qkv, never_launched):
    spec = sk.AttentionSpec(q_heads=4, kv_heads=2, head_dim=8, outputs=("lse", "entropy"))
    q, k, _ = qkv
    rows = np.empty((2, 4, 5), np.float32)
    with refuses(ArgumentError, "out (entropy)", "memory that overlaps out (lse)", "numpy.empty"):
        never_launched(sk.compile(spec, backend="interp"))(
            q, k, k, out={"lse": rows, "entropy": rows}
        )


def test_a_bare_array_for_several_outputs_is_refused(qkv, never_launched):
    spec = sk.AttentionSpec(q_heads=4, kv_heads=2, head_dim=8, v_head_dim=6, outputs=("out", "lse"))
    with refuses(ArgumentTypeError, "out", "ndarray", "out={'out': array}"):
        never_launched(sk.compile(spec, backend="interp"))(*qkv, out=np.empty(SHAPE, np.float32))


def test_an_overlap_that_cannot_be_decided_in_time_is_refused():
    # A subset-sum problem as strides of 1 to 2 GB; nothing ever reads the memory.
    rng = np.random.default_rng(0)
    strides = rng.integers(5 * 10**8, 10**9, 14) * 2 + 1
    others = strides + 2 * rng.integers(1, 1000, 14)
    memory = np.zeros(1, np.int8)
    a = np.lib.stride_tricks.as_strided(memory, (2,) * 14, [int(s) for s in strides])
    b = np.lib.stride_tricks.as_strided(memory, (2,) * 14, [int(s) for s in others])[1:]
    with pytest.raises(np.exceptions.TooHardError):
        np.shares_memory(a, b, max_work=MAX_WORK)
    with refuses(ArgumentError, "out", "memory that overlaps other", "numpy.empty"):
        check_distinct({"out": a}, {"other": b})
