"""Gradients: forms of results, what forward saves, refusals, and other libraries' arrays."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from tests.api.refusals import refuses, snapshot

import sdpakit as sk
from sdpakit import ArgumentError, ArgumentTypeError
from sdpakit.backends.numba_cpu.backend import BACKEND as NUMBA_CPU

BASE = {"q_heads": 4, "kv_heads": 2, "head_dim": 8, "v_head_dim": 6}
BACKENDS = ("interp", "numba_cpu")


def compiled(backend="interp", **fields):
    return sk.compile_backward(sk.AttentionSpec(**BASE, **fields), backend=backend)


@pytest.fixture
def dout():
    return np.random.default_rng(3).standard_normal((2, 4, 5, 6), dtype=np.float32)


def test_gradients_have_the_form_of_their_operands(qkv, dout):
    found = compiled()(*qkv, dout)
    for gradient, operand in zip((found.dq, found.dk, found.dv), qkv, strict=True):
        assert gradient.shape == operand.shape
        assert gradient.dtype == operand.dtype
    assert found.dbias is None
    assert found.dsinks is None
    assert found.dparams == {}


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_of_bias_sinks_and_tables(backend, qkv, dout):
    backward = compiled(backend, bias="float16", sinks=True, logits=sk.Alibi("s", "top_left"))
    bias = np.zeros((1, 5, 1), np.float16)
    sinks = np.ones(4, ml_dtypes.bfloat16)
    found = backward(*qkv, dout, bias=bias, sinks=sinks, params={"s": np.ones(4, np.float32)})
    assert found.dbias.shape == (1, 5, 1)
    assert found.dbias.dtype == np.float16
    assert found.dsinks.shape == (4,)
    assert found.dsinks.dtype == ml_dtypes.bfloat16
    assert list(found.dparams) == ["s"]
    again = pickle.loads(pickle.dumps(found))
    np.testing.assert_array_equal(again.dparams["s"], found.dparams["s"])


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_forward_saved_gives_the_same_bits(backend, qkv, dout):
    backward = compiled(backend, mask=sk.Causal("bottom_right"))
    out, saved = backward.forward(*qkv)
    np.testing.assert_array_equal(out, sk.compile(backward.spec, backend=backend)(*qkv))
    with_saved, without = backward(*qkv, dout, saved=saved), backward(*qkv, dout)
    for name in ("dq", "dk", "dv"):
        np.testing.assert_array_equal(getattr(with_saved, name), getattr(without, name))


@pytest.mark.parametrize("backend", BACKENDS)
def test_forward_gives_rows_without_keys_what_the_spec_says(backend, qkv):
    fields = {"mask": sk.Window(0, 0, "top_left"), "layout": "bshd", "kv_lens": True}
    lens = {"kv_lens": np.array([2, 7])}
    moved = [x.swapaxes(1, 2) for x in qkv]
    out, _ = compiled(backend, empty_row="nan", **fields).forward(*moved, **lens)
    assert out.shape == (2, 5, 4, 6)
    assert np.isnan(out[0, 2:]).all()
    assert np.isfinite(out[0, :2]).all()
    zeros, _ = compiled(backend, **fields).forward(*moved, **lens)
    assert (zeros[0, 2:] == 0).all()


def test_the_outputs_of_a_spec_change_nothing(qkv, dout):
    plain = compiled()(*qkv, dout)
    named = compiled(outputs=("lse", "entropy"))(*qkv, dout)
    np.testing.assert_array_equal(named.dk, plain.dk)


def test_out_dtype_is_that_of_dout(qkv, dout):
    backward = compiled(out_dtype="float64")
    assert backward(*qkv, dout.astype(np.float64)).dv.dtype == np.float32
    with refuses(ArgumentTypeError, "dout", "dtype float32", "float64"):
        backward(*qkv, dout)


@pytest.mark.parametrize("empty", ["batch", "rows", "keys"])
def test_a_call_without_pairs_has_gradients_of_zero(empty, qkv, dout):
    q, k, v = qkv
    if empty == "batch":
        q, k, v, dout = (x[:0] for x in (q, k, v, dout))
    elif empty == "rows":
        q, dout = q[:, :, :0], dout[:, :, :0]
    else:
        k, v = k[:, :, :0], v[:, :, :0]
    backward = compiled()
    out, saved = backward.forward(q, k, v)
    assert out.shape == dout.shape
    assert (out == 0).all()
    found = backward(q, k, v, dout, saved=saved)
    for gradient, operand in zip((found.dq, found.dk, found.dv), (q, k, v), strict=True):
        assert gradient.shape == operand.shape
        assert (gradient == 0).all()


def test_bad_calls_are_refused_before_anything_runs(qkv, dout, never_launched):
    backward = never_launched(compiled())
    before = snapshot(*qkv, dout)
    with refuses(ArgumentError, "dout", "shape (2, 5, 4, 6)", "gradient with respect to out"):
        backward(*qkv, dout.swapaxes(1, 2))
    with refuses(ArgumentTypeError, "dout", "list", "numpy.asarray"):
        backward(*qkv, dout.tolist())
    with refuses(ArgumentError, "bias", "ndarray", "leave bias= away"):
        backward(*qkv, dout, bias=dout)
    with refuses(ArgumentTypeError, "out", "unknown argument", "leave it away"):
        backward(*qkv, dout, out=dout)
    with refuses(ArgumentTypeError, "saved", "tuple", "out, saved = backward.forward"):
        backward(*qkv, dout, saved=(dout, dout))
    assert snapshot(*qkv, dout) == before


def test_saved_of_another_kernel_or_call_is_refused(qkv, dout):
    backward, other = compiled(), compiled(mask=sk.Causal("top_left"))
    _, saved = other.forward(*qkv)
    with refuses(ArgumentError, "saved", "another kernel", "run forward"):
        backward(*qkv, dout, saved=saved)
    _, saved = backward.forward(*(x[:1] for x in qkv))
    with refuses(ArgumentError, "saved", "out of shape (1, 4, 5, 6)", "run forward"):
        backward(*qkv, dout, saved=saved)


def test_a_backend_without_gradients_is_refused_with_the_reason(monkeypatch):
    capabilities = NUMBA_CPU.capabilities()
    without = type(capabilities)(
        dtypes=capabilities.dtypes, max_head_dim=1024, outputs=capabilities.outputs
    )
    monkeypatch.setattr(type(NUMBA_CPU), "capabilities", lambda self: without)
    spec = sk.AttentionSpec(**BASE)
    with pytest.raises(sk.UnsupportedSpecError, match="numba_cpu: no gradients") as caught:
        sk.compile_backward(spec, backend="numba_cpu")
    assert caught.value.reasons == {"numba_cpu": ["no gradients"]}
    assert sk.compile_backward(spec).backend == "interp"


def test_kernels_are_found_again_travel_and_show_their_code(qkv, dout):
    backward = compiled()
    assert backward._launcher is compiled()._launcher
    assert backward._launcher is not sk.compile(backward.spec, backend="interp")._launcher
    again = pickle.loads(pickle.dumps(backward))
    np.testing.assert_array_equal(again(*qkv, dout).dq, backward(*qkv, dout).dq)
    assert repr(backward).startswith("<sdpakit.BackwardKernel on interp of AttentionSpec(")
    assert backward.options == {}
    assert "logit" in backward.inspect("ir")
    with refuses(ArgumentError, "stage", "'ptx'", "name one of these"):
        backward.inspect("ptx")


def test_torch_tensors_come_back_as_torch_tensors(qkv, dout):
    torch = pytest.importorskip("torch")
    tensors = [torch.from_numpy(x) for x in (*qkv, dout)]
    backward = compiled()
    out, saved = backward.forward(*tensors[:3])
    found = backward(*tensors, saved=saved)
    assert isinstance(out, torch.Tensor)
    assert isinstance(found.dv, torch.Tensor)
    np.testing.assert_array_equal(found.dv.numpy(), backward(*qkv, dout).dv)


def test_gradients_agree_with_those_of_torch(qkv, dout):
    torch = pytest.importorskip("torch")
    leaves = [torch.from_numpy(x).requires_grad_() for x in qkv]
    q, k, v = leaves
    k, v = (x.repeat_interleave(2, dim=1) for x in (k, v))
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    out.backward(torch.from_numpy(dout))
    found = compiled("numba_cpu")(*qkv, dout)
    for gradient, leaf in zip((found.dq, found.dk, found.dv), leaves, strict=True):
        np.testing.assert_allclose(gradient, leaf.grad.numpy(), atol=1e-5)


def blocks_of_the_page():
    page = Path(__file__).resolve().parents[2] / "docs" / "training.md"
    return re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("block", blocks_of_the_page(), ids=["numpy", "torch"])
def test_the_page_on_training_runs(block):
    if "torch" in block:
        pytest.importorskip("torch")
    exec(compile(block, "training.md", "exec"), {"__name__": "page"})
