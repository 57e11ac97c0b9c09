"""Bad input at the call: one exception with its remedy, nothing launched, nothing changed."""

from __future__ import annotations

import array

import numpy as np
import pytest
from tests.api.refusals import refuses, snapshot

import sdpakit as sk
from sdpakit import ArgumentError, ArgumentTypeError

BASE = {"q_heads": 4, "kv_heads": 2, "head_dim": 8, "v_head_dim": 6}


def f32(*shape):
    return np.zeros(shape, np.float32)


def ints(*values, dtype=np.int64):
    return np.array(values, dtype)


V, T = ArgumentError, ArgumentTypeError
LENGTHS = {"kv_lens": True}
OFFSET = {"mask": sk.Causal("offset")}
# Fields of the spec, the argument, and rows of (what is given, error, got, remedy).
TABLE = [
    ({}, "q", [
        ([[1.0]], T, "list", "numpy.asarray"),
        (np.zeros((2, 4, 5, 8)), T, "dtype float64", ".astype('float32')"),
        (f32(4, 5, 8), V, "3 axes, shape (4, 5, 8)", "q[None]"),
        (f32(2, 3, 5, 8), V, "shape (2, 3, 5, 8)", "q_heads=3"),
        (f32(2, 4, 5, 9), V, "shape (2, 4, 5, 9)", "head_dim=9"),
        (f32(2, 5, 4, 8), V, "shape (2, 5, 4, 8)", "layout 'bshd'"),
    ]),
    ({}, "k", [
        (np.zeros((2, 2, 7, 8), np.float16), T, "dtype float16", ".astype('float32')"),
        (f32(1, 2, 2, 7, 8), V, "5 axes", "reshape"),
        (f32(2, 4, 7, 8), V, "shape (2, 4, 7, 8)", "kv_heads=4"),
        (f32(2, 2, 7, 6), V, "shape (2, 2, 7, 6)", "head_dim = 8"),
        (f32(1, 2, 7, 8), V, "shape (1, 2, 7, 8)", "q has batch 2"),
    ]),
    ({}, "v", [
        (f32(2, 2, 7, 8), V, "shape (2, 2, 7, 8)", "v_head_dim=8"),
        (f32(3, 2, 7, 6), V, "shape (3, 2, 7, 6)", "q has batch 2"),
        (f32(2, 2, 8, 6), V, "shape (2, 2, 8, 6)", "k has kv_len 7"),
    ]),
    ({}, "bias", [(f32(5, 7), V, "ndarray, which this spec does not use", "bias='float32'")]),
    ({"bias": "float32"}, "bias", [
        (None, V, "nothing", "pass bias="),
        (np.zeros((5, 7)), T, "dtype float64", ".astype('float32')"),
        (np.ones((5, 7), bool), T, "dtype bool", "is mask= (with Dense() in the spec)"),
        (f32(4, 7), V, "shape (4, 7)", "axes of size 1 where it does not vary, as in bias["),
        (f32(1, 2, 4, 5, 7), V, "shape (1, 2, 4, 5, 7)", "axes of size 1"),
        (f32(2, 1, 1), V, "shape (2, 1, 1)", "axes of size 1"),
    ]),
    ({"bias": "float64"}, "bias", [(np.full((5, 7), -1e300), V, "-1e+300", "use -inf")]),
    ({}, "mask", [(np.ones((5, 7), bool), V, "does not use", "mask=Dense()")]),
    ({"mask": sk.Dense()}, "mask", [
        (None, V, "nothing", "pass mask="),
        (f32(5, 7), T, "dtype float32", "bias='float32'"),
        (np.ones((5, 7), np.uint8), T, "dtype uint8", ".astype('bool')"),
        (np.ones((7, 5), bool), V, "shape (7, 5)", "where it does not vary, as in mask["),
    ]),
    ({}, "sinks", [(f32(4), V, "does not use", "sinks=True")]),
    ({"sinks": True}, "sinks", [
        (None, V, "nothing", "pass sinks="),
        (f32(2), V, "shape (2,)", "each query head"),
        (ints(1, 2, 3, 4), T, "dtype int64", ".astype('float32')"),
        (np.full(4, 1e39), V, "1e+39", "smaller number"),
    ]),
    ({}, "q_lens", [(ints(1, 2), V, "does not use", "q_lens=True")]),
    ({"q_lens": True}, "q_lens", [
        (None, V, "nothing", "pass q_lens="),
        (ints(6, 1), V, "q_lens[0] = 6", "true lengths"),
        (ints(1, 2**64 - 1, dtype=np.uint64), V, "q_lens[1] = 18446744073709551615", "true"),
    ]),
    ({}, "kv_lens", [(ints(1, 2), V, "does not use", "kv_lens=True")]),
    (LENGTHS, "kv_lens", [
        (None, V, "nothing", "pass kv_lens="),
        (ints(1), V, "shape (1,)", "each batch entry"),
        ([1, 2], T, "list", "numpy.asarray"),
        (f32(2), T, "dtype float32", ".astype('int64')"),
        (ints(3, -1), V, "kv_lens[1] = -1", "true lengths"),
        (ints(3, 8), V, "kv_lens[1] = 8", "true lengths"),
    ]),
    ({}, "q_offset", [(3, V, "does not use", "alignment 'offset'")]),
    (OFFSET, "q_offset", [
        (None, V, "nothing", "pass q_offset="),
        (1.5, T, "1.5 (float)", "int(value)"),
        (True, T, "True (bool)", "int(value)"),
        (2**63, V, str(2**63), "smaller numbers"),
        (np.array(1.5), T, "array(1.5)", "pass an int"),
        (ints(1, 2, 3), V, "shape (3,)", "each batch entry"),
        (f32(2), T, "dtype float32", ".astype('int64')"),
        (ints(0, 2**63 + 1, dtype=np.uint64), V, str(2**63 + 1), "smaller numbers"),
    ]),
    ({}, "threads", [
        (0, V, "0", "leave it away"),
        (1.0, T, "1.0 (float)", "int(value)"),
        (True, T, "True (bool)", "int(value)"),
    ]),
]  # fmt: skip
CASES = [
    pytest.param(fields, where, *row, id=f"{where}: {row[2]}")
    for fields, where, rows in TABLE
    for row in rows
]


@pytest.mark.parametrize(("fields", "where", "value", "kind", "got", "fix"), CASES)
def test_a_call_that_does_not_fit_is_refused(
    qkv, never_launched, fields, where, value, kind, got, fix
):
    kernel = never_launched(sk.compile(sk.AttentionSpec(**BASE, **fields), backend="interp"))
    call = dict(zip("qkv", qkv, strict=True)) | {where: value}
    out = np.full((2, 4, 5, 6), 7, np.float32)
    before = snapshot(*call.values())
    with refuses(kind, where, got, fix):
        kernel(**call, out=out)
    assert snapshot(*call.values()) == before
    assert (out == 7).all()


def test_arrays_of_the_other_layout_are_recognised(qkv, never_launched):
    spec = sk.AttentionSpec(**BASE, layout="bshd")
    with refuses(ArgumentError, "q", "shape (2, 4, 5, 8)", "layout 'bhsd'"):
        never_launched(sk.compile(spec, backend="interp"))(*qkv)


def test_lengths_beyond_31_bits_are_refused(qkv, never_launched):
    kernel = never_launched(sk.compile(sk.AttentionSpec(**BASE), backend="interp"))
    k, v = (np.broadcast_to(f32(1), (2, 2, 2**31, width)) for width in (8, 6))
    with refuses(ArgumentError, "q, k, v", "2147483648", "merge the parts"):
        kernel(qkv[0], k, v)


def test_equal_lengths_that_were_promised_are_checked(qkv, never_launched):
    spec = sk.AttentionSpec(**BASE, equal_lens=True)
    with refuses(ArgumentError, "q, k", "q_len = 5, kv_len = 7", "without equal_lens"):
        never_launched(sk.compile(spec, backend="interp"))(*qkv)


def test_equal_lengths_are_checked_entry_by_entry(never_launched):
    spec = sk.AttentionSpec(
        q_heads=1, head_dim=4, mask=sk.Causal(), q_lens=True, kv_lens=True, equal_lens=True
    )
    x = f32(2, 1, 3, 4)
    with refuses(ArgumentError, "q, k", "q_lens[1] = 2, kv_lens[1] = 1", "without equal_lens"):
        never_launched(sk.compile(spec, "interp"))(x, x, x, q_lens=ints(3, 2), kv_lens=ints(3, 1))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint32", "int64", "uint64"])
def test_lengths_and_offsets_of_any_integer_dtype_mean_the_same(qkv, dtype):
    spec = sk.AttentionSpec(**BASE, kv_lens=True, mask=sk.Causal("offset"))
    kernel = sk.compile(spec, backend="interp")
    expected = kernel(*qkv, kv_lens=ints(7, 3), q_offset=ints(2, 1))
    found = kernel(*qkv, kv_lens=ints(7, 3, dtype=dtype), q_offset=ints(2, 1, dtype=dtype))
    np.testing.assert_array_equal(found, expected)


def test_an_offset_may_be_one_number_of_any_kind(qkv):
    kernel = sk.compile(sk.AttentionSpec(**BASE, **OFFSET), backend="interp")
    expected = kernel(*qkv, q_offset=ints(2, 2))
    for one in (2, np.int8(2), np.array(2), array.array("h", [2, 2])):
        np.testing.assert_array_equal(kernel(*qkv, q_offset=one), expected)


# ------------------------------------------------------------------------------------------- params

SLOPES = {"logits": lambda x, i: x + sk.Table("slopes", "float32", 1)[i.h] * sk.Scalar("gain")}
WIDTH = {"mask": lambda i: i.k < sk.Scalar("width", "int") * sk.Table("n", "int32", 1)[i.b]}
ONES = ints(1, 1, dtype=np.int32)
PREFIX = {"mask": ~sk.Prefix("n") | sk.Causal("top_left")}
# Fields of the spec, params that fit, and rows of (params given, error, where, got, remedy).
PARAMS = [
    ({}, {}, [({"x": 1.0}, V, "params", "unknown name 'x'", "leave 'x' away")]),
    (SLOPES, {}, [
        ({}, V, "params", "no 'gain'", "params={'gain': ...}"),
        ({"gain": 1.0}, V, "params", "no 'slopes'", "params={'slopes': ...}"),
        ({"slope": f32(4), "gain": 1}, V, "params", "name 'slope'", "did you mean 'slopes'?"),
    ]),
    (SLOPES, {"slopes": f32(4), "gain": 1.0}, [
        ({"q": 1}, V, "params", "unknown name 'q'", "leave 'q' away"),
        ({"scale": 1.0}, V, "params", "unknown name 'scale'", "or as an argument of attention"),
        ({"slopes": np.zeros(4)}, T, "params['slopes']", "dtype float64", ".astype('float32')"),
        ({"slopes": f32(1, 4)}, V, "params['slopes']", "shape (1, 4)", "drop axes"),
        ({"slopes": f32()}, V, "params['slopes']", "shape ()", "axes of size 1"),
        ({"slopes": [1.0]}, T, "params['slopes']", "list", "numpy.asarray"),
        ({"slopes": f32(3)}, V, "table 'slopes', axis 0", "from 0 to 3", "larger table"),
        ({"gain": f32(1)}, T, "params['gain']", "ndarray", "is a Table"),
        ({"gain": "1"}, T, "params['gain']", "'1' (str)", "one number"),
        ({"gain": True}, T, "params['gain']", "True (bool)", "one number"),
        ({"gain": 1j}, T, "params['gain']", "1j (complex)", "one number"),
        ({"gain": np.nan}, V, "params['gain']", "nan", "in that range"),
        ({"gain": 10**400}, V, "params['gain']", "int larger than float64", "in that range"),
        ({"gain": -1e39}, V, "params['gain']", "-1e+39", "in that range"),
    ]),
    (WIDTH, {"n": ONES}, [
        ({"width": 2.0}, T, "params['width']", "2.0 (float)", "int(value)"),
        ({"width": 2**70}, V, "params['width']", str(2**70), "smaller numbers"),
    ]),
    (PREFIX, {}, [
        ({"n": ints(3, -1)}, V, "params['n']", "a prefix of length -1", "0 for none"),
    ]),
]  # fmt: skip
PARAM_CASES = [
    pytest.param(fields, good | given, *rest, id=f"{rest[1]}: {rest[2]}")
    for fields, good, rows in PARAMS
    for given, *rest in rows
]


@pytest.mark.parametrize(("fields", "params", "kind", "where", "got", "fix"), PARAM_CASES)
def test_params_that_do_not_fit_are_refused(
    qkv, never_launched, fields, params, kind, where, got, fix
):
    kernel = never_launched(sk.compile(sk.AttentionSpec(**BASE, **fields), backend="interp"))
    out = np.full((2, 4, 5, 6), 7, np.float32)
    with refuses(kind, where, got, fix):
        kernel(*qkv, params=params, out=out)
    assert (out == 7).all()


@pytest.mark.parametrize("params", [[1.0], "gain", 3])
def test_params_is_a_mapping(qkv, never_launched, params):
    kernel = never_launched(sk.compile(sk.AttentionSpec(**BASE, **SLOPES), backend="interp"))
    with refuses(ArgumentTypeError, "params", type(params).__name__, "params={'name': value}"):
        kernel(*qkv, params=params)


def bucketed(x, i):
    """Distances as T5 buckets them: 32 of them, near ones one by one, far ones sixteen together."""
    d = i.k - i.q
    n = sk.absolute(d)
    bucket = sk.where(n < 8, n, sk.minimum(8 + (n - 8) // 16, 15))
    return x + sk.Table("rel", "float32", 2)[sk.where(d > 0, bucket + 16, bucket), i.h]


@pytest.mark.parametrize("backend", ["interp", "numba_cpu"])
def test_an_index_that_a_condition_keeps_inside_is_taken(backend):
    spec = sk.AttentionSpec(q_heads=1, head_dim=4, logits=bucketed, outputs=("max_logit",))
    q, k = f32(1, 1, 37, 4), f32(1, 1, 150, 4)  # zeros: the logits are elements of the table
    rel = np.random.default_rng(3).permutation(32).astype(np.float32)[:, None]
    kernel = sk.compile(spec, backend)
    found = kernel(q, k, k, params={"rel": rel}).max_logit
    want = sk.reference.attention(spec, q, k, k, params={"rel": rel})["max_logit"]
    # Elements are whole numbers: the nearest one says which was read, roundings apart.
    np.testing.assert_array_equal(np.rint(found), want)
    assert len(np.unique(want)) > 1
    with refuses(
        ArgumentError, "table 'rel', axis 0", "cannot be shown to stay inside", "minimum(maximum("
    ):
        kernel(q, k, k, params={"rel": rel[:31]})


def test_integers_that_could_leave_62_bits_are_refused(qkv, never_launched):
    kernel = never_launched(sk.compile(sk.AttentionSpec(**BASE, **WIDTH), backend="interp"))
    with pytest.raises(ArgumentError, match=r"magnitude of up to .*\n.* 2\*\*62 .*\n  remedy"):
        kernel(*qkv, params={"width": 2**62, "n": ints(1, 3, dtype=np.int32)})


@pytest.mark.parametrize("gain", [2, np.float16(2), np.int8(2), np.array(2.0), 2.0])
def test_a_number_of_any_real_kind_is_a_float(qkv, gain):
    kernel = sk.compile(sk.AttentionSpec(**BASE, **SLOPES), backend="interp")
    slopes = np.arange(4, dtype=np.float32)
    expected = kernel(*qkv, params={"slopes": slopes, "gain": 2.0})
    found = kernel(*qkv, params={"slopes": slopes, "gain": gain})
    np.testing.assert_array_equal(found, expected)


def test_proofs_are_kept_for_a_bounded_number_of_shapes(monkeypatch, qkv):
    monkeypatch.setattr("sdpakit.binding.proofs._MOST", 3)
    kernel = sk.compile(sk.AttentionSpec(**BASE), backend="interp")
    q, k, v = qkv
    for keys in range(1, 8):
        kernel(q, k[:, :, :keys], v[:, :, :keys])
        assert len(kernel._signature.proofs._known) <= 3


def test_a_proof_by_shape_is_renewed_for_other_numbers(qkv):
    mask = {"mask": lambda i: i.k // sk.Scalar("step", "int") <= i.q}
    kernel = sk.compile(sk.AttentionSpec(**BASE, **mask), backend="interp")
    kernel(*qkv, params={"step": 2})
    with pytest.raises(ArgumentError, match=r"divisor of [^\n]*: got values from 0 to 0, "):
        kernel(*qkv, params={"step": 0})
    kernel(*qkv, params={"step": 2})


def test_values_of_an_integer_table_are_proven_at_every_call(qkv):
    mask = {"mask": lambda i: sk.Table("t", "bool", 1)[sk.Table("n", "int64", 1)[i.b]]}
    kernel = sk.compile(sk.AttentionSpec(**BASE, **mask), backend="interp")
    table = np.ones(3, bool)
    kernel(*qkv, params={"t": table, "n": ints(0, 2)})
    with refuses(ArgumentError, "table 't', axis 0", "from 0 to 3", "larger table"):
        kernel(*qkv, params={"t": table, "n": ints(0, 3)})


# ------------------------------------------------------------------------------------ bias and mask


@pytest.mark.parametrize(
    "shape", [(), (1,), (7,), (5, 7), (5, 1), (4, 1, 1), (2, 1, 5, 7), (1, 4, 5, 7), (2, 4, 5, 7)]
)
def test_bias_and_mask_broadcast_as_in_numpy(qkv, shape):
    rng = np.random.default_rng(5)
    bias = rng.standard_normal(shape).astype(np.float32)
    mask = rng.random(shape) < 0.7
    spec = sk.AttentionSpec(**BASE, bias="float32", mask=sk.Dense())
    kernel = sk.compile(spec, backend="interp")
    whole = (2, 4, 5, 7)
    expected = kernel(
        *qkv, bias=np.broadcast_to(bias, whole).copy(), mask=np.broadcast_to(mask, whole).copy()
    )
    np.testing.assert_array_equal(kernel(*qkv, bias=bias, mask=mask), expected)


def test_infinite_float64_bias_is_a_value_and_so_is_a_stride_of_zero(qkv):
    kernel = sk.compile(sk.AttentionSpec(**BASE, bias="float64"), backend="interp")
    bias = np.broadcast_to(np.array([0.0, -np.inf, 1, 2, 3, 4, 5]), (2, 4, 5, 7))
    assert np.isfinite(kernel(*qkv, bias=bias)).all()


def test_a_float64_spec_takes_any_float64_bias(qkv):
    spec = sk.AttentionSpec(**BASE, dtype="float64", bias="float64")
    q, k, v = (x.astype(np.float64) for x in qkv)
    kernel = sk.compile(spec, backend="interp")
    even = kernel(q * 0, k, v, bias=np.zeros((5, 7)))
    np.testing.assert_array_equal(kernel(q, k, v, bias=np.full((5, 7), -1e300)), even)


def test_sinks_of_any_float_dtype_are_rounded_to_accum_dtype(qkv):
    kernel = sk.compile(sk.AttentionSpec(**BASE, sinks=True), backend="interp")
    sinks = np.array([0.5, -1.0, 2.0, 0.25])
    expected = kernel(*qkv, sinks=sinks.astype(np.float32))
    for dtype in ("float16", "float64"):
        np.testing.assert_array_equal(kernel(*qkv, sinks=sinks.astype(dtype)), expected)


# ------------------------------------------------------------------------------------------ threads


@pytest.mark.parametrize("text", ["0", "-1", "two", "1.5", ""])
def test_a_senseless_number_of_threads_in_the_environment_is_refused(qkv, monkeypatch, text):
    kernel = sk.compile(sk.AttentionSpec(**BASE), backend="interp")
    monkeypatch.setenv("SDPAKIT_NUM_THREADS", text)
    with pytest.raises(
        ArgumentError, match=r"SDPAKIT_NUM_THREADS: got .*\n  allowed: .*\n  remedy"
    ):
        kernel(*qkv)
    kernel(*qkv, threads=1)


def test_the_number_of_threads_comes_from_the_call_then_the_environment_then_the_cpus(monkeypatch):
    kernel = sk.compile(sk.AttentionSpec(**BASE), backend="interp")
    monkeypatch.delenv("SDPAKIT_NUM_THREADS", raising=False)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 3, 5}, raising=False)
    assert kernel.explain(q_len=4)["threads"] == 3
    monkeypatch.setenv("SDPAKIT_NUM_THREADS", "7")
    assert kernel.explain(q_len=4)["threads"] == 7
    assert kernel.explain(q_len=4, threads=2)["threads"] == 2


def test_a_platform_without_affinity_counts_its_cpus(monkeypatch):
    kernel = sk.compile(sk.AttentionSpec(**BASE), backend="interp")
    monkeypatch.delenv("SDPAKIT_NUM_THREADS", raising=False)
    monkeypatch.delattr("os.sched_getaffinity", raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: 5)
    assert kernel.explain(q_len=4)["threads"] == 5
