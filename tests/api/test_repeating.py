"""Small calls are repeated without checks that were done before: same bits, same errors."""

import threading
import weakref

import numpy as np
import pytest

import sdpakit as sk
from sdpakit import repeating
from sdpakit.arrays import numpy_dtype
from sdpakit.errors import ArgumentError, ArgumentTypeError


class Subclass(np.ndarray):
    pass


def kernel_of(**changes):
    spec = {"q_heads": 4, "kv_heads": 2, "head_dim": 8, "v_head_dim": 6, **changes}
    return sk.compile(sk.AttentionSpec(**spec), backend="numba_cpu")


def operands(seed=0, *, dtype="float32", q_len=5, kv_len=7, heads=4):
    rng = np.random.default_rng(seed)
    shapes = ((2, heads, q_len, 8), (2, 2, kv_len, 8), (2, 2, kv_len, 6))
    return [rng.standard_normal(shape).astype(numpy_dtype(dtype)) for shape in shapes]


def is_known(kernel):
    return any(known is not None for known in kernel._repeats._known.values())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("mask", [None, sk.Causal("bottom_right")], ids=["full", "causal"])
def test_a_repeated_call_has_the_bits_of_a_first_one(dtype, mask):
    kernel = kernel_of(dtype=dtype, mask=mask)
    kernel(*operands(0, dtype=dtype))
    assert is_known(kernel)
    for seed in (1, 2, 1):
        arrays = operands(seed, dtype=dtype)
        fresh = kernel_of(dtype=dtype, mask=mask)
        fresh._repeats = None
        assert kernel(*arrays).tobytes() == fresh(*arrays).tobytes()


def test_shapes_and_strides_are_told_apart():
    kernel = kernel_of()
    for q_len in (5, 1, 5):
        for flip in (False, True):
            q, k, v = operands(3, q_len=q_len)
            k = k[:, :, ::-1] if flip else k
            again = kernel(q, k, v)
            assert again.tobytes() == kernel(q.copy(), np.asfortranarray(k), v).tobytes()
    assert len(kernel._repeats._known) == 2 * 3  # k as it is, flipped, and with other strides


def test_the_layout_of_the_caller_is_kept():
    kernel = kernel_of(layout="bshd")
    arrays = [np.ascontiguousarray(x.swapaxes(1, 2)) for x in operands(4)]
    first, second = kernel(*arrays), kernel(*arrays)
    assert is_known(kernel)
    assert first.shape == (2, 5, 4, 6)
    assert first.tobytes() == second.tobytes()


def test_what_was_remembered_keeps_no_array_alive():
    kernel = kernel_of()
    arrays = operands()
    out = kernel(*arrays)
    gone = [weakref.ref(x) for x in (*arrays, out)]
    del arrays, out
    assert is_known(kernel)
    assert [ref() for ref in gone] == [None] * 4


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        (lambda q, k, v: (q.astype("float64"), k, v), ArgumentTypeError, "dtype float64"),
        (lambda q, k, v: (q, k.byteswap().view(">f4"), v), ArgumentTypeError, "foreign byte"),
        (lambda q, k, v: (q[:, :3], k, v), ArgumentError, "shape"),
        (lambda q, k, v: (q.tolist(), k, v), ArgumentTypeError, "list"),
        (lambda q, k, v: (q, k, None), ArgumentTypeError, "got no v"),
    ],
)
def test_bad_input_is_refused_as_before(change, error, match):
    kernel = kernel_of()
    kernel(*operands())
    with pytest.raises(error, match=match):
        kernel(*change(*operands()))


@pytest.mark.parametrize("threads", [0, -1, True, 1.0])
def test_threads_are_checked_as_before(threads):
    kernel = kernel_of()
    kernel(*operands())
    with pytest.raises((ArgumentError, ArgumentTypeError), match="threads"):
        kernel(*operands(), threads=threads)


def test_results_go_to_out():
    kernel = kernel_of()
    arrays = operands()
    expected = kernel(*arrays)
    strided = np.empty((2, 4, 6, 5), "f4").swapaxes(2, 3)
    assert kernel(*arrays, out=strided) is strided
    kernel._launcher = None  # whatever goes the whole way fails from here on
    alike = np.empty_like(expected)
    assert kernel(*arrays, out=alike) is alike
    for out in (strided, alike):
        assert np.array_equal(out, expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_who_always_gives_out_is_known_too(dtype, layout):
    def given(seed):
        arrays = operands(seed, dtype=dtype)
        return (
            [np.ascontiguousarray(x.swapaxes(1, 2)) for x in arrays] if layout == "bshd" else arrays
        )

    fresh, kernel = (kernel_of(dtype=dtype, layout=layout) for _ in range(2))
    expected = [fresh(*given(seed)) for seed in range(3)]
    out = np.empty_like(expected[0])
    kernel(*given(0), out=out)
    kernel._launcher = None  # whatever goes the whole way fails from here on
    for seed in (0, 1, 2):
        assert kernel(*given(seed), out=out) is out
        assert out.tobytes() == expected[seed].tobytes()
    assert kernel(*given(1)).tobytes() == expected[1].tobytes()


OTHER_OUTS = {
    "strides": lambda shape: np.empty((*shape[:2], shape[3], shape[2]), "f4").swapaxes(2, 3),
    "gaps": lambda shape: np.empty((*shape[:3], 2 * shape[3]), "f4")[..., ::2],
    "backwards": lambda shape: np.empty(shape, "f4")[:, :, ::-1],
    "a subclass": lambda shape: np.empty(shape, "f4").view(Subclass),
}


@pytest.mark.parametrize("other", OTHER_OUTS)
def test_an_out_that_is_not_as_a_new_one_is_not_remembered(other):
    """What is prepared has its strides: an out of others would be written past its end."""
    kernel, arrays = kernel_of(), operands()
    expected = kernel_of()(*arrays)
    for _ in range(2):
        out = OTHER_OUTS[other](expected.shape)
        assert kernel(*arrays, out=out) is out
        assert np.array_equal(out, expected)
        assert not is_known(kernel)
    for _ in range(2):
        assert kernel(*arrays).tobytes() == expected.tobytes()
    assert is_known(kernel)


def test_a_bad_out_is_refused_and_untouched():
    kernel = kernel_of(v_head_dim=8)
    q, k, _ = operands()
    expected = kernel(q, k, k)
    frozen = np.zeros_like(expected)
    frozen.flags.writeable = False
    for out, match in (
        (frozen, "read-only"),
        (q, "overlaps q"),
        (expected[:, :, :-1], "shape"),
        (expected.astype("f8"), "dtype float64"),
        (np.broadcast_to(np.zeros(8, "f4"), q.shape), "read-only"),
    ):
        before = out.copy()
        with pytest.raises((ArgumentError, ArgumentTypeError), match=match):
            kernel(q, k, k, out=out)
        assert np.array_equal(out, before)


def test_subclasses_go_the_whole_way():
    kernel = kernel_of()
    q, k, v = operands()
    expected = kernel(q, k, v)
    with pytest.raises(ArgumentTypeError, match="MaskedArray"):
        kernel(np.ma.masked_array(q), k, v)
    assert np.array_equal(kernel(q.view(Subclass), k, v), expected)


def test_threads_at_once_do_not_share_a_descriptor():
    kernel = kernel_of()
    arrays = [operands(seed) for seed in range(8)]
    expected = [kernel(*own).tobytes() for own in arrays]
    wrong = []

    def work(n):
        found = (kernel(*arrays[n]).tobytes() for _ in range(300))
        wrong.extend(n for bits in found if bits != expected[n])

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_the_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(repeating, "_MOST", 3)
    kernel = kernel_of()
    for q_len in range(1, 10):
        kernel(*operands(q_len=q_len))
        assert 1 <= len(kernel._repeats._known) <= 3


@pytest.mark.parametrize(
    "changes",
    [
        {"bias": "float32"},
        {"sinks": True},
        {"q_lens": True},
        {"kv_lens": True},
        {"mask": sk.Dense()},
        {"mask": sk.Causal("offset")},
        {"outputs": ("out", "lse")},
    ],
)
def test_specs_with_more_operands_or_outputs_are_not_repeated(changes):
    assert kernel_of(**changes)._repeats is None


def test_large_calls_are_repeated_for_one_thread_alone():
    kernel = sk.compile(sk.AttentionSpec(q_heads=2, head_dim=64), backend="numba_cpu")
    x = np.random.default_rng(0).standard_normal((1, 2, 256, 64)).astype("f4")
    expected = kernel(x, x, x)
    kernel(x, x, x, threads=2)
    assert not is_known(kernel)
    for _ in range(2):
        assert np.array_equal(kernel(x, x, x, threads=1), expected)
    assert is_known(kernel)
    assert np.array_equal(kernel(x, x, x, threads=2), expected)


def test_a_large_call_is_asked_about_once(monkeypatch):
    kernel = sk.compile(sk.AttentionSpec(q_heads=2, head_dim=64), backend="numba_cpu")
    asked, launcher = [], kernel._launcher
    monkeypatch.setattr(
        type(launcher), "repeat", lambda self, call, arrays: asked.append(call.threads)
    )
    x = np.zeros((1, 2, 256, 64), "f4")
    for _ in range(3):
        kernel(x, x, x, threads=2)
        kernel(x, x, x)
    assert len(asked) == 1


def test_a_full_memory_forgets_no_call_that_is_still_asked_for(monkeypatch):
    monkeypatch.setattr(repeating, "_MOST", 1)
    kernel = kernel_of()
    arrays, others = operands(), operands(q_len=6)
    expected = kernel(*arrays).tobytes()
    assert kernel(*arrays).tobytes() == expected
    kernel(*others)
    assert len(kernel._repeats._known) == 1
    for _ in range(3):
        assert kernel(*arrays).tobytes() == expected


def test_calls_that_differ_by_turns_are_known_each():
    kernel = kernel_of()
    arrays = [operands(q_len=n) for n in (5, 6)]
    expected = [kernel(*own).tobytes() for own in arrays]
    kernel._launcher = None  # whatever goes the whole way fails from here on
    for _ in range(3):
        assert [kernel(*own).tobytes() for own in arrays] == expected


def test_a_large_call_on_one_thread_by_default_is_not_known(monkeypatch):
    # `threads=8` later must not meet what was known for a default of one.
    monkeypatch.setenv("SDPAKIT_NUM_THREADS", "1")
    kernel, small = kernel_of(), kernel_of()
    kernel(*operands(8, q_len=700, kv_len=700))
    assert not is_known(kernel)
    small(*operands(8))
    assert is_known(small)
