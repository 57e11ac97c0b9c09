"""torch CPU tensors go in and come out without a copy, and torch is never imported by sdpakit."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from tests.api.refusals import refuses

import sdpakit as sk
from sdpakit import ArgumentError, ArgumentTypeError
from sdpakit.arrays import numpy_dtype

torch = pytest.importorskip("torch", reason="torch is no dependency of sdpakit")
forward_ad = pytest.importorskip("torch.autograd.forward_ad", reason="a part of torch")

SPEC = {"q_heads": 4, "kv_heads": 2, "head_dim": 8, "v_head_dim": 6}
DTYPES = ["float16", "bfloat16", "float32", "float64"]


def tensors(dtype="float32"):
    generator = torch.Generator().manual_seed(7)
    shapes = ((2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 6))
    return [torch.randn(s, generator=generator).to(getattr(torch, dtype)) for s in shapes]


def compiled(**fields):
    return sk.compile(sk.AttentionSpec(**SPEC, **fields), backend="interp")


@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors_in_give_tensors_out(dtype):
    q, k, v = tensors(dtype)
    result = compiled(dtype=dtype, outputs=("out", "lse"))(q, k, v)
    assert isinstance(result.out, torch.Tensor)
    assert result.out.dtype == q.dtype
    assert result.out.shape == (2, 4, 5, 6)
    wide = torch.float64 if dtype == "float64" else torch.float32
    assert result.lse.dtype == wide
    as_numpy = [x.double().numpy().astype(numpy_dtype(dtype)) for x in (q, k, v)]
    expected = compiled(dtype=dtype)(*as_numpy)
    np.testing.assert_array_equal(result.out.double().numpy(), expected.astype(np.float64))


@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors_are_viewed_with_their_strides(dtype):
    q, k, v = tensors(dtype)
    expected = compiled(dtype=dtype)(q, k, v)
    wide = torch.stack([q, q], dim=-1)[..., 0]
    turned = k.transpose(1, 2).contiguous().transpose(1, 2)
    assert torch.equal(compiled(dtype=dtype)(wide, turned, v), expected)
    shared = v[:1, :1].expand(2, 2, 7, 6)
    assert torch.equal(
        compiled(dtype=dtype)(q, k, shared), compiled(dtype=dtype)(q, k, shared.contiguous())
    )


def test_results_of_mixed_calls_follow_q():
    q, k, v = tensors()
    numpy = compiled()(q.numpy(), k, v)
    assert type(numpy) is np.ndarray
    torch_out = compiled()(q, k.numpy(), v.numpy())
    assert isinstance(torch_out, torch.Tensor)
    np.testing.assert_array_equal(torch_out.numpy(), numpy)


@pytest.mark.parametrize("dtype", DTYPES)
def test_out_may_be_a_tensor(dtype):
    q, k, v = tensors(dtype)
    out = torch.full((2, 4, 5, 6), 7.0, dtype=q.dtype)
    assert compiled(dtype=dtype)(q, k, v, out=out) is out
    assert torch.equal(out, compiled(dtype=dtype)(q, k, v))


def test_out_of_another_library_than_q_is_returned_as_it_is():
    q, k, v = tensors()
    out = np.empty((2, 4, 5, 6), np.float32)
    assert compiled()(q, k, v, out=out) is out


def test_every_operand_may_be_a_tensor():
    q, k, v = tensors()
    fields = {
        "mask": sk.Dense() & sk.Causal("offset") & sk.Document("rows", "keys"),
        "bias": "bfloat16",
        "sinks": True,
        "kv_lens": True,
        "logits": lambda x, i: x * sk.Scalar("gain"),
    }
    operands = {
        "mask": torch.rand(5, 7, generator=torch.Generator().manual_seed(1)) < 0.8,
        "bias": torch.linspace(-1, 1, 7).to(torch.bfloat16),
        "sinks": torch.zeros(4),
        "kv_lens": torch.tensor([7, 5]),
        "q_offset": torch.tensor(4),
    }
    ids = {
        "rows": torch.zeros(1, 5, dtype=torch.int32),
        "keys": torch.zeros(1, 7, dtype=torch.int32),
    }
    found = compiled(**fields)(q, k, v, **operands, params=ids | {"gain": torch.tensor(0.5)})
    as_numpy = {name: x.numpy() for name, x in operands.items() if name not in ("bias", "q_offset")}
    bias = operands["bias"].float().numpy().astype(numpy_dtype("bfloat16"))
    numpy = compiled(**fields)(
        q.numpy(),
        k.numpy(),
        v.numpy(),
        **as_numpy,
        bias=bias,
        q_offset=4,
        params={name: x.numpy() for name, x in ids.items()} | {"gain": 0.5},
    )
    np.testing.assert_array_equal(found.numpy(), numpy)


def test_empty_results_are_tensors():
    q, k, v = tensors("bfloat16")
    out = compiled(dtype="bfloat16")(q[:, :, :0], k, v)
    assert out.shape == (2, 4, 0, 6)
    assert out.dtype == torch.bfloat16


def test_inputs_are_unchanged():
    operands = tensors("bfloat16")
    before = [x.clone() for x in operands]
    compiled(dtype="bfloat16")(*operands)
    assert all(torch.equal(x, y) for x, y in zip(operands, before, strict=True))


REFUSED = {
    "grad": (lambda q: q.requires_grad_(), "requires grad", ".detach()"),
    "device": (lambda q: q.to("meta"), "device meta", ".cpu()"),
    "sparse": (lambda q: q.to_sparse(), "layout torch.sparse_coo", ".to_dense()"),
    "dtype": (lambda q: q.double(), "dtype float64", ".to(torch.float32)"),
    "float8": (lambda q: q.to(torch.float8_e4m3fn), "dtype float8_e4m3fn", ".to(torch.float32)"),
    "negative": (lambda q: torch._neg_view(q), "negative bit", ".resolve_neg()"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_tensors_that_cannot_be_viewed_are_refused(case, never_launched):
    change, got, fix = REFUSED[case]
    q, k, v = tensors()
    with refuses(ArgumentTypeError, "q", got, fix):
        never_launched(compiled())(change(q), k, v)


def test_an_out_that_requires_grad_or_overlaps_is_refused(never_launched):
    q, k, v = tensors()
    kernel = never_launched(compiled())
    with refuses(ArgumentTypeError, "out", "requires grad", ".detach()"):
        kernel(q, k, v, out=torch.zeros(2, 4, 5, 6, requires_grad=True))
    memory = torch.zeros(2, 4, 5, 8)
    with refuses(ArgumentError, "out (out)", "memory that overlaps q", "copy q first"):
        kernel(memory, k, v, out=memory[..., :6])
    with refuses(ArgumentError, "out", "elements share memory", "allocate"):
        kernel(q, k, v, out=torch.zeros(6).expand(2, 4, 5, 6))
    with refuses(ArgumentTypeError, "out", "dtype float64", "torch.empty((2, 4, 5, 6), dtype="):
        kernel(q, k, v, out=torch.zeros(2, 4, 5, 6, dtype=torch.float64))


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")  # torch's own
def test_a_forward_mode_tangent_is_refused_and_not_dropped(never_launched):
    q, k, v = tensors()
    kernel = never_launched(compiled())
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(q, torch.ones_like(q))
        with refuses(ArgumentTypeError, "q", "a forward-mode tangent", "unpack_dual"):
            kernel(dual, k, v)


def test_attention_takes_tensors():
    q, k, v = tensors("bfloat16")
    out = sk.attention(q, k, v, causal=True, align="bottom_right", backend="interp")
    assert out.dtype == torch.bfloat16


def test_torch_is_not_imported_by_a_call_on_numpy_arrays():
    code = (
        "import sys, numpy as np, sdpakit as sk; x = np.zeros((1, 1, 2, 4), np.float32);"
        "sk.attention(x, x, x, backend='interp'); print('torch' in sys.modules)"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert run.stdout.strip() == "False"


def test_tensors_of_a_ragged_and_of_a_paged_batch():
    q, k, v = (x[0].transpose(0, 1) for x in tensors())  # (tokens, heads, width)
    ends = torch.tensor([0, 2, 5], dtype=torch.int32), torch.tensor([0, 4, 7], dtype=torch.int32)
    out = compiled(layout="thd")(q, k, v, cu_q_lens=ends[0], cu_kv_lens=ends[1])
    assert isinstance(out, torch.Tensor)
    assert out.shape == (5, 4, 6)
    table = torch.tensor([[0, 1, 2, 3], [4, 5, 6, -1]], dtype=torch.int32)
    pages = {"block_table": table, "kv_lens": ends[1].diff()}
    kernel = compiled(layout="thd", paged=True, kv_lens=True)
    assert torch.equal(kernel(q, k[:, None], v[:, None], cu_q_lens=ends[0], **pages), out)
