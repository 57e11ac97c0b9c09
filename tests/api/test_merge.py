"""MERGE-1: results over disjoint keys make the result over all of them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import sdpakit as sk
from sdpakit import reference
from sdpakit.conformance import bounds


def state(rng, rows, width, *, spread=3.0, empty=0.2, dtype=np.float64):
    """Return a random state: out, and lse with some empty rows."""
    lse = rng.standard_normal(rows) * spread
    gone = rng.random(rows) < empty
    out = np.where(gone[..., None], 0.0, rng.standard_normal((*rows, width)))
    return out.astype(dtype), np.where(gone, -np.inf, lse).astype(dtype)


STATES = st.tuples(
    st.integers(0, 2**32 - 1),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
    st.integers(0, 5),
)


def same(a, b):
    return all(np.array_equal(x, y, equal_nan=True) for x, y in zip(a, b, strict=True))


def close(a, b):
    return all(np.allclose(x, y, rtol=1e-12, atol=1e-12) for x, y in zip(a, b, strict=True))


@given(STATES)
def test_the_empty_state_is_the_identity_to_the_bit(drawn):
    seed, rows, width = drawn
    some = state(np.random.default_rng(seed), rows, width)
    nothing = (np.zeros((*rows, width)), np.full(rows, -np.inf))
    assert same(sk.merge(some, nothing), some)
    assert same(sk.merge(nothing, some), some)
    assert same(sk.merge(nothing, nothing), nothing)
    assert same(sk.merge(some), some)


@given(STATES)
def test_two_states_commute_to_the_bit(drawn):
    seed, rows, width = drawn
    rng = np.random.default_rng(seed)
    a, b = state(rng, rows, width), state(rng, rows, width)
    assert same(sk.merge(a, b), sk.merge(b, a))


@given(STATES)
def test_three_states_associate_within_rounding(drawn):
    seed, rows, width = drawn
    rng = np.random.default_rng(seed)
    a, b, c = (state(rng, rows, width) for _ in "abc")
    grouped = sk.merge(sk.merge(a, b), c)
    assert close(grouped, sk.merge(a, sk.merge(b, c)))
    assert close(grouped, sk.merge(a, b, c))


@pytest.mark.parametrize("backend", ["interp", "numba_cpu"])
@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_parts_of_the_keys_make_the_whole(backend, layout, dtype):
    rng = np.random.default_rng(5)
    q, k, v = (rng.standard_normal((2, 3, n, 16)).astype(dtype) for n in (7, 40, 40))
    given_mask = rng.random((2, 3, 7, 40)) < 0.4
    given_mask[0, 1, 2] = False
    spec = sk.AttentionSpec(
        q_heads=3, head_dim=16, dtype=dtype, layout=layout, mask=sk.Dense(), outputs=("out", "lse")
    )
    swap = (lambda x: x.swapaxes(1, 2)) if layout == "bshd" else (lambda x: x)
    kernel = sk.compile(spec, backend=backend)
    parts = [
        kernel(swap(q), swap(k[:, :, a:b]), swap(v[:, :, a:b]), mask=given_mask[..., a:b])
        for a, b in ((0, 13), (13, 14), (14, 40))
    ]
    merged = sk.merge(*parts, layout=layout)
    detail = reference.detail(spec, swap(q), swap(k), swap(v), mask=given_mask)
    allowed = bounds(detail, "sharp")
    assert merged.out.dtype == merged.lse.dtype == dtype
    empty = np.isneginf(detail.lse)
    assert empty.sum() == 1
    assert np.isneginf(merged.lse[empty]).all()
    assert (swap(merged.out)[empty] == 0).all()
    # Each part is off by at most its bound, the sum of them by a few roundings more.
    assert (np.abs(swap(merged.out) - detail.out) <= 2 * allowed["out"]).all()
    assert (np.abs(merged.lse[~empty] - detail.lse[~empty]) <= 2 * allowed["lse"][~empty]).all()


def test_an_empty_state_may_hold_anything():
    some = (np.ones((2, 3)), np.zeros(2))
    junk = (np.full((2, 3), np.nan), np.full(2, -np.inf))
    assert same(sk.merge(some, junk), some)


ANY = {
    dtype: hnp.arrays(
        dtype,
        st.tuples(st.integers(0, 4), st.integers(0, 3)),
        elements=st.floats(width=8 * np.dtype(dtype).itemsize, allow_nan=False),
    )
    for dtype in ("float16", "float32", "float64")
}


@pytest.mark.parametrize("dtype", ANY)
@given(data=st.data())
def test_an_empty_state_changes_no_bit_of_any_number(dtype, data):
    out = data.draw(ANY[dtype])
    accum = "float64" if dtype == "float64" else "float32"
    width = 8 * np.dtype(accum).itemsize
    finite = st.floats(width=width, allow_nan=False, allow_infinity=False)
    lse = data.draw(hnp.arrays(accum, out.shape[:1], elements=finite))
    nothing = (np.ones_like(out), np.full_like(lse, -np.inf))
    for states in (((out, lse), nothing), (nothing, (out, lse)), (nothing, (out, lse), nothing)):
        merged = sk.merge(*states)
        assert merged.out.tobytes() == out.tobytes()  # zeros of either sign are not alike
        assert merged.lse.tobytes() == lse.tobytes()


FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)
LARGEST = float(np.finfo("float32").max)
HUGE = st.sampled_from([LARGEST, -LARGEST, 1e38, 3e38]) | FINITE


@given(st.lists(st.tuples(HUGE, st.floats(-30, 30, width=32)), min_size=1, max_size=9))
def test_a_mean_of_finite_values_is_finite_and_between_them(states):
    values, lses = (np.array(x, "float32") for x in zip(*states, strict=True))
    out, lse = sk.merge(
        *((v.reshape(1, 1), x.reshape(1)) for v, x in zip(values, lses, strict=True))
    )
    assert values.min() <= out[0, 0] <= values.max()
    weights = np.exp(lses.astype("float64") - float(lses.max()))
    right = float((weights / weights.sum() * values.astype("float64")).sum())
    largest = float(np.abs(values.astype("float64")).max())
    assert abs(float(out[0, 0]) - right) <= 4e-6 * 9 * largest + 1e-44
    assert np.isfinite(lse).all()


def test_values_whose_weighted_sum_overflows_have_their_mean():
    one, two = ((np.full((1, 1), x, "float32"), np.zeros(1, "float32")) for x in (3e38, 1e38))
    assert np.isclose(sk.merge(one, two).out[0, 0], 2e38, rtol=1e-6)
    assert sk.merge(*[(np.full((1, 1), LARGEST, "float32"), np.zeros(1, "float32"))] * 3).out == (
        np.float32(LARGEST)
    )


def test_nan_and_plus_infinity_make_the_row_nan():
    ones = np.ones((2, 1))
    for lost in (np.nan, np.inf):
        out, lse = sk.merge((ones, np.array([0.0, lost])), (ones, np.zeros(2)))
        assert np.isnan(out[:, 0]).tolist() == [False, True]
        assert np.isnan(lse).tolist() == [False, True]


def test_far_apart_sums_do_not_overflow():
    a, b = (np.ones((1, 1)), np.array([1e4])), (np.full((1, 1), 5.0), np.array([-1e4]))
    out, lse = sk.merge(a, b)
    assert (out[0, 0], lse[0]) == (1.0, 1e4)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_dtypes_are_those_of_the_states(dtype):
    a = (np.ones((2, 3), dtype), np.zeros(2, np.float32))
    out, lse = sk.merge(a, a)
    assert (out.dtype, lse.dtype) == (dtype, "float32")
    assert np.allclose(lse, np.log(2.0))


F8 = np.ones((2, 3)), np.zeros(2)


@pytest.mark.parametrize(
    ("states", "layout", "says"),
    [
        ((), "bhsd", "states: got none"),
        ((F8,), "sbhd", "layout: got 'sbhd'"),
        ((np.ones(3),), "bhsd", r"states\[0\]: got ndarray"),
        (((1, 2, 3),), "bhsd", r"states\[0\]: got tuple of 3"),
        (
            ((np.ones((2, 3)), np.zeros(3)),),
            "bhsd",
            r"out of shape \(2, 3\) with lse of shape \(3,\)",
        ),
        (((np.ones((2, 3)), np.zeros(2, np.float32)),), "bhsd", "lse: got"),
        ((F8, (np.ones((2, 4)), np.zeros(2))), "bhsd", r"states\[1\]: out: got shape \(2, 4\)"),
        ((F8, (np.ones((2, 3), np.float32), np.zeros(2, np.float32))), "bhsd", "as in states"),
        ((F8,), "bshd", "four axes"),
        (((np.ones((1, 5, 2, 3)), np.zeros((1, 5, 2))),), "bshd", "layout bshd"),
    ],
)
def test_what_does_not_belong_together_is_refused(states, layout, says):
    with pytest.raises(sk.SdpakitError, match=says):
        sk.merge(*states, layout=layout)


@settings(max_examples=20)
@given(STATES)
def test_states_are_not_written_to(drawn):
    seed, rows, width = drawn
    some = state(np.random.default_rng(seed), rows, width)
    before = [x.copy() for x in some]
    sk.merge(some, some)
    assert same(some, before)
