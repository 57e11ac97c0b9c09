"""Calls of the cupy backend in the emulator: how blocks are laid out, stages, options, refusals."""

import ml_dtypes
import numpy as np
import pytest

import sdpakit as sk
from sdpakit.errors import BackendUnavailableError, UnsupportedSpecError

pytestmark = pytest.mark.usefixtures("tools")

EMULATED = {"launcher": "emulator"}


def operands(q_shape, kv_shape, dtype="float32", seed=0):
    rng = np.random.default_rng(seed)
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    shapes = (q_shape, kv_shape, kv_shape)
    return [rng.standard_normal(shape).astype(np.float32).astype(kind) for shape in shapes]


def both(spec, arrays, **options):
    wanted = sk.compile(spec, backend="interp")(*arrays)
    found = sk.compile(spec, backend="cupy", options={**EMULATED, **options})(*arrays)
    return found, wanted


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("bfloat16", 1e-2)])
@pytest.mark.parametrize("heads", [(4, 1), (4, 4)])
def test_keys_of_short_queries_are_split_and_rows_of_a_group_packed(dtype, tolerance, heads):
    spec = sk.AttentionSpec(
        q_heads=heads[0],
        kv_heads=heads[1],
        head_dim=16,
        dtype=dtype,
        mask=sk.Causal("bottom_right"),
        outputs=("out", "lse"),
    )
    arrays = operands((1, heads[0], 2, 16), (1, heads[1], 600, 16), dtype)
    found, wanted = both(spec, arrays)
    for name in ("out", "lse"):
        got, right = (np.asarray(getattr(x, name), np.float64) for x in (found, wanted))
        np.testing.assert_allclose(got, right, rtol=0, atol=tolerance)


def test_a_batch_invariant_row_has_the_bits_that_it_has_in_a_long_call():
    spec = sk.AttentionSpec(q_heads=2, kv_heads=1, head_dim=8, batch_invariant=True)
    q, k, v = operands((1, 2, 40, 8), (1, 1, 300, 8))
    kernel = sk.compile(spec, backend="cupy", options=EMULATED)
    np.testing.assert_array_equal(kernel(q[:, :, 7:8], k, v), kernel(q, k, v)[:, :, 7:8])


def test_the_same_call_has_the_same_bits():
    spec = sk.AttentionSpec(q_heads=2, head_dim=8, dtype="float16")
    arrays = operands((1, 2, 3, 8), (1, 2, 400, 8), "float16")
    kernel = sk.compile(spec, backend="cupy", options=EMULATED)
    np.testing.assert_array_equal(kernel(*arrays), kernel(*arrays))


@pytest.mark.parametrize("shift", [0, 1])
def test_arrays_may_have_any_strides_and_alignment(shift):
    spec = sk.AttentionSpec(q_heads=1, head_dim=8)
    q, k, v = operands((1, 1, 5, 8), (1, 1, 9, 8))
    raw = np.zeros(k.nbytes + 1, np.uint8)
    moved = np.ndarray(k.shape, k.dtype, raw[shift:].data)
    moved[...] = k
    found, wanted = both(spec, (q[:, :, ::-1], moved, np.broadcast_to(v[:, :, :1], v.shape)))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("family", ["simt", "mma"])
def test_families_can_be_asked_for(family):
    spec = sk.AttentionSpec(q_heads=1, head_dim=16, dtype="float16")
    arrays = operands((1, 1, 5, 16), (1, 1, 20, 16), "float16")
    found, wanted = both(spec, arrays, family=family)
    np.testing.assert_allclose(np.float32(found), np.float32(wanted), rtol=0, atol=2e-3)


def test_stages_need_no_device():
    spec = sk.AttentionSpec(q_heads=1, head_dim=64, dtype="bfloat16", mask=sk.Causal("top_left"))
    kernel = sk.compile(spec, backend="cupy", options={"arch": "sm_90a"})
    assert "attention_forward, mma.sync family" in kernel.inspect("source")
    assert ".target sm_90a" in kernel.inspect("ptx")
    assert kernel.inspect("cubin").startswith(b"\x7fELF")
    assert "HMMA" in kernel.inspect("sass")
    assert "0 bytes spilt" in kernel.inspect("resources")
    assert kernel.explain()  # says which family and why no other


def test_a_call_without_a_device_says_how_to_run_it():
    kernel = sk.compile(sk.AttentionSpec(q_heads=1, head_dim=8), backend="cupy")
    arrays = operands((1, 1, 2, 8), (1, 1, 2, 8))
    with pytest.raises(BackendUnavailableError, match="'launcher': 'emulator'"):
        kernel(*arrays)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"family": "mma"}, "no dtype float32"),
        ({"arch": "sm_10"}, "arch='sm_10' is none of sm_75"),
        ({"launcher": "cpu"}, "launcher='cpu' is none of device, emulator"),
    ],
)
def test_options_that_cannot_be_honoured_are_refused(options, message):
    spec = sk.AttentionSpec(q_heads=1, head_dim=8)
    with pytest.raises(UnsupportedSpecError, match=message):
        sk.compile(spec, backend="cupy", options=options)


def test_gradients_of_everything_that_a_logit_reads():
    spec = sk.AttentionSpec(
        q_heads=4,
        kv_heads=2,
        head_dim=8,
        mask=sk.Causal("bottom_right"),
        bias="float32",
        sinks=True,
        logits=sk.Alibi(align="bottom_right"),
    )
    q, k, v = operands((1, 4, 5, 8), (1, 2, 9, 8))
    rng = np.random.default_rng(1)
    more = {
        "bias": rng.standard_normal((1, 4, 1, 9)).astype(np.float32),
        "sinks": rng.standard_normal(4).astype(np.float32),
        "params": {"slopes": rng.standard_normal(4).astype(np.float32)},
    }
    dout = rng.standard_normal(q.shape).astype(np.float32)
    wanted = sk.compile_backward(spec, backend="interp")(q, k, v, dout, **more)
    found = sk.compile_backward(spec, backend="cupy", options=EMULATED)(q, k, v, dout, **more)
    for name in ("dq", "dk", "dv", "dbias", "dsinks"):
        got, right = getattr(found, name), getattr(wanted, name)
        np.testing.assert_allclose(got, right, rtol=1e-5, atol=1e-5, err_msg=name)
    np.testing.assert_allclose(found.dparams["slopes"], wanted.dparams["slopes"], rtol=1e-4)
