"""A few calls through everything, in seconds: what must work on any Python and any machine."""

import threading

import numpy as np
import pytest

import sdpakit as sk
from sdpakit.cli.demo.checks import check_call

BACKENDS = [line.name for line in sk.backends.status() if line.ok and line.source == "built-in"]


def operands(dtype, q_len=33, kv_len=47, q_heads=4, kv_heads=2, head_dim=24):
    rng = np.random.default_rng(q_len)
    shapes = [(2, q_heads, q_len, head_dim), *[(2, kv_heads, kv_len, head_dim)] * 2]
    return tuple(rng.standard_normal(shape).astype(dtype) for shape in shapes)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_each_dtype_lies_inside_its_bound(backend, dtype):
    import ml_dtypes

    numpy_dtype = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    spec = sk.AttentionSpec(
        q_heads=4,
        kv_heads=2,
        head_dim=24,
        dtype=dtype,
        mask=sk.Causal("bottom_right"),
        outputs=("out", "lse", "max_logit", "entropy", "sum_p2"),
    )
    arrays = operands(numpy_dtype)
    results = sk.compile(spec, backend=backend)(*arrays)
    checks, _ = check_call(dtype, spec, results, arrays, {})
    assert [str(check) for check in checks if not check.ok] == []


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_traced_function_and_the_built_in_mask_agree_bit_for_bit(backend):
    arrays = operands("float32", kv_len=33)
    built_in = sk.AttentionSpec(
        q_heads=4, kv_heads=2, head_dim=24, mask=sk.Causal(), equal_lens=True
    )
    traced = sk.AttentionSpec(q_heads=4, kv_heads=2, head_dim=24, mask=lambda i: i.k <= i.q)
    a, b = (sk.compile(spec, backend=backend)(*arrays) for spec in (built_in, traced))
    np.testing.assert_array_equal(a, b)


def test_the_short_call():
    q, k, v = operands("float32", kv_heads=4)
    out = sk.attention(q, k, v, causal=True, align="bottom_right")
    spec = sk.AttentionSpec(q_heads=4, head_dim=24, mask=sk.Causal("bottom_right"))
    checks, _ = check_call("attention()", spec, out, (q, k, v), {})
    assert all(check.ok for check in checks)


@pytest.mark.parametrize("backend", BACKENDS)
def test_threads_get_the_same_bits(backend):
    spec = sk.AttentionSpec(q_heads=4, kv_heads=2, head_dim=24)
    kernel = sk.compile(spec, backend=backend)
    arrays = operands("float32")
    alone = kernel(*arrays, threads=1)
    together = [None] * 4

    def work(index):
        together[index] = kernel(*arrays)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(together))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in together:
        np.testing.assert_array_equal(result, alone)


def test_wrong_input_is_one_exception():
    kernel = sk.compile(sk.AttentionSpec(q_heads=4, kv_heads=2, head_dim=24), backend="interp")
    q, k, v = operands("float32")
    with pytest.raises(sk.ArgumentError, match=r"got .*\n  allowed: .*\n  remedy: "):
        kernel(q[..., :20], k, v)
