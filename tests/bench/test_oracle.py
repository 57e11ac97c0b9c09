from dataclasses import replace

import numpy as np
import pytest
from bench.inputs import make, numpy_dtype
from bench.oracle import expect
from bench.targets import operands_of, plain_attention, spec_of
from bench.workloads import DOCUMENT_LENGTH, PAGE_SIZE, WORKLOADS

import sdpakit


def small(workload):
    """The workload over few rows, with its mask, bias, heads and dtype."""
    q_len = min(workload.q_len, 70)
    kv_len = 70
    if workload.mask == "documents":
        q_len = kv_len = DOCUMENT_LENGTH + 30
    if workload.packing != "none":
        kv_len = workload.batch * PAGE_SIZE
    return replace(workload, q_len=q_len, kv_len=kv_len, window=9)


@pytest.mark.parametrize(
    "workload", [small(w) for w in WORKLOADS if not w.backward], ids=lambda w: w.name
)
def test_the_answer_is_that_of_the_reference(workload):
    inputs = make(workload)
    spec = spec_of(sdpakit, workload)
    right = sdpakit.reference.attention(spec, **operands_of(workload, inputs))["out"]
    if workload.packing != "none":
        right = right.reshape(workload.batch, workload.q_len, *right.shape[1:]).swapaxes(1, 2)
    expected = expect(workload, inputs)
    check = expected.check(right.astype(numpy_dtype(workload.dtype)), strict=True)
    assert check.passed, check
    assert check.elements == expected.out.size > 0


def float32_case():
    (workload,) = (w for w in WORKLOADS if w.name == "f32_l2048_d64")
    workload = replace(workload, q_len=200, kv_len=200)
    inputs = make(workload)
    out = plain_attention(inputs.q, inputs.k, inputs.v, None, None)
    return inputs, expect(workload, inputs), out


def test_a_sound_float32_answer_is_well_inside_the_bound():
    _, expected, out = float32_case()
    share = expected.check(out, strict=True).share_of_bound
    assert 1 / 50 < share < 1 / 2


@pytest.mark.parametrize(
    "wrong",
    [
        lambda i: plain_attention(i.q * np.float32(1 + 2**-12), i.k, i.v, None, None),
        lambda i: plain_attention(i.q, i.k[:, :, :-1], i.v[:, :, :-1], None, None),
        lambda i: plain_attention(i.q, i.k, i.v, None, None) * np.float32(1 + 2**-12),
        lambda i: plain_attention(
            *(a.astype(np.float16).astype(np.float32) for a in (i.q, i.k, i.v)), None, None
        ),
        lambda i: np.full_like(i.q, np.nan),
        lambda i: np.roll(plain_attention(i.q, i.k, i.v, None, None), 1, axis=2),
    ],
    ids=["scale", "last key lost", "sum", "half operands", "nan", "rows shifted"],
)
def test_wrong_answers_are_found_even_by_the_lenient_bound(wrong):
    inputs, expected, _ = float32_case()
    assert not expected.check(wrong(inputs), strict=False).passed


def test_one_wrong_head_is_found():
    _, expected, out = float32_case()
    out[0, -1] = out[0, 0]
    assert not expected.check(out, strict=False).passed


def test_weights_of_low_precision_pass_for_peers_only():
    (workload,) = (w for w in WORKLOADS if w.name == "bf16_l2048_d64")
    workload = replace(workload, q_len=200, kv_len=200)
    inputs = make(workload)
    expected = expect(workload, inputs)
    q, k, v = (a.astype(np.float32) for a in (inputs.q, inputs.k, inputs.v))
    logits = q @ k.swapaxes(-1, -2) / np.float32(8)
    p = np.exp(logits - logits.max(axis=-1, keepdims=True))
    rounded = p.astype(inputs.q.dtype).astype(np.float32)
    out = ((rounded @ v) / p.sum(axis=-1, keepdims=True)).astype(inputs.q.dtype)
    assert expected.check(out, strict=False).passed
    assert not expected.check(out, strict=True).passed
