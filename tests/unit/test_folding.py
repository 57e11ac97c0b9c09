"""Folding the factor into projection weights (FOLD-1)."""

import ml_dtypes
import numpy as np
import pytest

from sdpakit import fold_scale
from sdpakit.dtypes import DTYPES
from sdpakit.errors import ArgumentError, ArgumentTypeError


def weights(dtype="float64", shape=(12, 24), seed=0):
    random = np.random.default_rng(seed)
    numpy_dtype = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    return [random.normal(size=shape).astype(numpy_dtype) for _ in range(2)]


X = np.random.default_rng(9).normal(size=(5, 12))


def logits(w_q, w_k, head_dim, scale, x=X):
    """Return scale * <q, k> of every head, for the rows of an input."""
    q, k = (x @ np.asarray(w, np.float64) for w in (w_q, w_k))
    q, k = (y.reshape(5, -1, head_dim).swapaxes(0, 1) for y in (q, k))
    return scale * q @ k.swapaxes(1, 2)


@pytest.mark.parametrize("head_dim", [1, 2, 3, 6, 8, 24])
@pytest.mark.parametrize("how", ["query", "both"])
def test_folded_weights_with_scale_one_are_the_same_function(head_dim, how):
    w_q, w_k = weights()
    folded = fold_scale(w_q, w_k, head_dim, how)
    unfolded = logits(w_q, w_k, head_dim, head_dim**-0.5)
    # Both sides: two sums over the input, one over the head, and at most 6 further roundings.
    roundings = 2 * (2 * w_q.shape[0] + head_dim + 6)
    size = logits(abs(w_q), abs(w_k), head_dim, head_dim**-0.5, abs(X))
    bound = roundings * DTYPES["float64"].unit_roundoff * size
    assert (np.abs(logits(*folded, head_dim, 1.0) - unfolded) <= bound).all()


def test_a_quarter_power_on_one_side_is_another_function():
    w_q, w_k = weights()
    once, _ = fold_scale(w_q, w_k, 6, "both")
    wrong = logits(once, w_k, 6, 1.0)
    right = logits(w_q, w_k, 6, 6**-0.5)
    np.testing.assert_allclose(wrong, right * 6**0.25, rtol=1e-9)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("how", ["query", "both"])
def test_dtype_is_kept_and_rounded_once(dtype, how):
    w_q, w_k = weights(dtype)
    new_q, new_k = fold_scale(w_q, w_k, 12, how)
    assert (new_q.dtype, new_k.dtype) == (w_q.dtype, w_k.dtype)
    exact = w_q.astype(np.float64) * 12 ** (-0.5 if how == "query" else -0.25)
    accum = DTYPES["float64" if dtype == "float64" else "float32"]
    # the factor, the product, and the storage are each rounded once
    bound = (DTYPES[dtype].unit_roundoff + 3 * accum.unit_roundoff) * np.abs(exact)
    assert (np.abs(new_q.astype(np.float64) - exact) <= bound).all()


@pytest.mark.parametrize(
    ("head_dim", "how"), [(4, "query"), (16, "query"), (64, "query"), (16, "both")]
)
def test_powers_of_two_are_exact(head_dim, how):
    w_q, w_k = weights("float16", (8, 64))
    new_q, _ = fold_scale(w_q, w_k, head_dim, how)
    exact = w_q.astype(np.float64) * head_dim ** (-0.5 if how == "query" else -0.25)
    np.testing.assert_array_equal(new_q.astype(np.float64), exact)


def test_inputs_are_untouched_and_the_key_comes_back():
    w_q, w_k = weights()
    before = w_q.copy()
    w_q.flags.writeable = False
    new_q, same = fold_scale(w_q, w_k, 6)
    np.testing.assert_array_equal(w_q, before)
    assert new_q is not w_q
    assert same is w_k


def test_biases_fold_like_weights():
    b_q, b_k = weights(shape=(24,))
    new, _ = fold_scale(b_q, b_k, 6)
    np.testing.assert_array_equal(new, b_q * (1 / np.sqrt(6.0)))


def test_arrays_of_another_library_stay_there():
    torch = pytest.importorskip("torch", reason="a peer library, installed for benchmarks only")
    w = torch.ones((8, 16), dtype=torch.bfloat16)
    new_q, new_k = fold_scale(w, w, 4, "query")
    assert new_q.dtype is torch.bfloat16
    assert bool((new_q == 0.5).all())
    assert new_k is w


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"head_dim": 0}, ArgumentError, "head_dim: got 0\n  allowed: an integer >= 1"),
        ({"head_dim": 6.0}, ArgumentError, r"head_dim: got 6\.0"),
        ({"head_dim": True}, ArgumentError, "head_dim: got True"),
        ({"head_dim": 7}, ArgumentError, r"w_q: got shape \(12, 24\) with head_dim=7"),
        ({"how": "key"}, ArgumentError, r"how: got 'key'(?s:.*)another function"),
        ({"how": None}, ArgumentError, "how: got None"),
        ({"w_q": [[1.0, 2.0]]}, ArgumentTypeError, "w_q: got list of dtype list"),
        ({"w_k": np.ones((6, 6), int)}, ArgumentTypeError, "w_k: got ndarray of dtype int64"),
        ({"w_k": np.ones((5, 7))}, ArgumentError, r"w_k: got shape \(5, 7\)"),
        ({"w_q": None}, ArgumentTypeError, "w_q: got NoneType"),
        ({"w_q": np.float64(3)}, ArgumentError, r"w_q: got shape \(\)"),
    ],
    ids=range(11),
)  # fmt: skip
def test_bad_input_is_refused(change, error, message):
    w_q, w_k = weights()
    arguments = {"w_q": w_q, "w_k": w_k, "head_dim": 6} | change
    with pytest.raises(error, match=message):
        fold_scale(**arguments)
