"""Packers: every dtype, ragged sizes, strides; nothing around the rows is read or written."""

import ctypes
import mmap

import numpy as np
import pytest
from tests.backends.numba_cpu.kernels import NP, Kernel

from sdpakit.backends.numba_cpu.isa import available_isas

ISAS = available_isas()
DTYPES = list(NP)
WIDTHS = [(1, 1), (5, 17), (80, 31)]


@pytest.fixture(scope="module", params=[(i, d) for i in ISAS for d in DTYPES], ids=str)
def kernels(request):
    isa, dtype = request.param
    other = {"float32": "bfloat16", "float64": "float16"}.get(dtype, dtype)
    widths = WIDTHS if dtype == "float32" else WIDTHS[1:]
    return [Kernel(isa, dtype, d, dv, out_dtype=other, step=False) for d, dv in widths]


def draw(shape, dtype, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(NP[dtype])


def with_strides(array, how):
    """Return the same values in memory of another layout, surrounded by NaN."""
    n, d = array.shape
    if how == "plain":
        return array
    if how == "broadcast":
        return np.broadcast_to(array[:1], array.shape)
    raw = np.full((2 * n + 3, 3 * d + 3), np.nan, array.dtype)
    view = {
        "padded rows": raw[1 : n + 1, 1 : d + 1],
        "spread": raw[1 : 2 * n + 1 : 2, 2 : 3 * d + 2 : 3],
        "reversed": raw[n:0:-1, d:0:-1],
    }[how]
    view[...] = array
    return view


def unaligned(array):
    """Return the same values one byte off any alignment."""
    raw = np.zeros(array.nbytes + 1, np.uint8)
    view = raw[1:].view(array.dtype).reshape(array.shape)
    view[...] = array
    return view


HOW = ["plain", "padded rows", "spread", "reversed", "broadcast"]


@pytest.mark.parametrize("how", HOW)
def test_queries_become_lanes(kernels, how):
    for kernel in kernels:
        layout = kernel.layout
        for rows in {1, layout.lanes, layout.lanes + 1, layout.width}:
            q = with_strides(draw((rows, layout.head_dim), layout.dtype), how)
            packed = kernel.pack_q(q, -0.5)
            assert np.array_equal(packed[:, :rows].T, q.astype(kernel.element) * -0.5)
            assert (packed[:, rows:] == 0).all()


@pytest.mark.parametrize("how", HOW)
def test_keys_become_rows_padded_with_zeros(kernels, how):
    for kernel in kernels:
        layout = kernel.layout
        for n in {1, layout.rows, layout.rows + 1, layout.block_kv}:
            k = with_strides(draw((n, layout.head_dim), layout.dtype), how)
            packed = kernel.pack_k(k)
            assert np.array_equal(packed[:n], k.astype(kernel.element))
            assert (packed[n:] == 0).all()


@pytest.mark.parametrize("how", HOW)
def test_values_become_groups(kernels, how):
    for kernel in kernels:
        layout = kernel.layout
        for n in {1, 7, layout.block_kv}:
            v = with_strides(draw((n, layout.v_head_dim), layout.dtype), how)
            packed, poisoned = kernel.pack_v(v)
            assert np.array_equal(packed, v.astype(kernel.element))
            assert not poisoned


def test_a_tile_is_packed_in_pieces_as_in_one(kernels):
    for kernel in kernels:
        layout = kernel.layout
        n = min(layout.block_kv, 2 * layout.rows + 1)
        k, v = (draw((n, d), layout.dtype) for d in (layout.head_dim, layout.v_head_dim))
        keys, (values, _) = kernel.pack_k(k).copy(), kernel.pack_v(v)
        for cuts in [(1,), (1, 2), (layout.rows,), tuple(range(1, n))]:
            kernel.kt[:] = 0xFF
            kernel.vt[:] = 0xFF
            assert np.array_equal(kernel.pack_k(k, cuts), keys)
            assert np.array_equal(kernel.pack_v(v, cuts)[0], values)
        v[1, 0] = np.inf
        assert kernel.pack_v(v, (1, 2))[1]


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_any_value_that_is_not_finite_is_reported(kernels, poison):
    for kernel in kernels:
        v = draw((9, kernel.layout.v_head_dim), kernel.layout.dtype)
        for place in [(0, 0), (8, -1), (4, kernel.layout.v_head_dim // 2)]:
            bad = v.copy()
            bad[place] = poison
            assert kernel.pack_v(bad)[1]
            assert kernel.pack_v(bad[:, ::-1])[1]
        assert not kernel.pack_v(v)[1]


@pytest.mark.parametrize("how", HOW[:-1])
def test_output_is_rounded_once_and_nothing_else_is_written(kernels, how):
    for kernel in kernels:
        layout, dv = kernel.layout, kernel.layout.v_head_dim
        acc = draw((dv, layout.width), layout.element)
        kernel.ot[: acc.nbytes] = acc.view(np.uint8).ravel()
        inverse = draw(layout.width, layout.element, 1)
        for rows in {1, layout.lanes + 1, layout.width}:
            out = with_strides(np.full((rows, dv), 7, NP[layout.out_dtype]), how)
            around = out if out.base is None else out.base
            before = around.copy()
            kernel.unpack_o(inverse, out)
            want = (acc * inverse).T[:rows]
            assert np.array_equal(out, rounded(want, layout.out_dtype))
            out[...] = 7
            assert np.array_equal(around, before, equal_nan=True)


def rounded(values, dtype):
    """Round to nearest even once; ml_dtypes goes from float64 to bfloat16 by way of float32."""
    if dtype == "bfloat16" and values.dtype == np.float64:
        single = values.astype(np.float32)
        bits = single.view(np.uint32)
        bits = np.where(abs(single.astype(np.float64)) > abs(values), bits - 1, bits)
        bits = np.where(single != values, bits | 1, bits)
        values = bits.view(np.float32)
    return values.astype(NP[dtype])


def test_unaligned_memory(kernels):
    for kernel in kernels:
        layout = kernel.layout
        k = draw((5, layout.head_dim), layout.dtype)
        assert np.array_equal(kernel.pack_k(unaligned(k))[:5], k.astype(kernel.element))
        q = draw((2, layout.head_dim), layout.dtype)
        assert np.array_equal(kernel.pack_q(unaligned(q))[:, :2].T, q.astype(kernel.element))
        v = draw((5, layout.v_head_dim), layout.dtype)
        assert np.array_equal(kernel.pack_v(unaligned(v))[0], v.astype(kernel.element))


@pytest.mark.skipif(not hasattr(mmap, "PROT_READ"), reason="memory cannot be protected here")
def test_rows_may_end_where_memory_ends(kernels):
    """The last row lies against a page that nobody may touch: a read there ends the process."""
    page = mmap.PAGESIZE
    memory = np.frombuffer(mmap.mmap(-1, 2 * page), np.uint8)
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    assert protect(ctypes.c_void_p(memory.ctypes.data + page), ctypes.c_size_t(page), 0) == 0
    for kernel in kernels:
        layout = kernel.layout
        dtype = NP[layout.dtype]
        packers = [
            (layout.head_dim, kernel.pack_k),
            (layout.head_dim, kernel.pack_q),
            (layout.v_head_dim, kernel.pack_v),
        ]
        for width, pack in packers:
            rows = draw((min(3, layout.width), width), layout.dtype)
            view = memory[page - rows.nbytes : page].view(dtype).reshape(rows.shape)
            view[...] = rows
            pack(view)
            pack(view[:, ::-1])


HARD_ROUNDINGS = [
    *(0.0, -0.0, np.inf, -np.inf, np.nan, 65504.0, 65519.99, 65520.0, -65536.0, 1e300, 2.0**-24),
    *(2.0**-25, 2.0**-25 * (1 + 2.0**-40), 2.0**-14, 2.0**-14 - 2.0**-26, 6e-8, 3e-8, 1e-300),
    *(1 + 2.0**-11, 1 + 2.0**-11 + 2.0**-40, 1 + 3 * 2.0**-11, 1 + 2.0**-8, 1 + 2.0**-8 + 2.0**-40),
    *(3.39e38, 3.3961e38, -3.4e38, 1 + 3 * 2.0**-8, 1e-39, 9.2e-41, 4.6e-41),
]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("out_dtype", DTYPES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_roundings_that_are_easy_to_get_wrong(isa, out_dtype, dtype):
    """Ties, overflow, subnormals, and from float64 no second rounding (NUM-5)."""
    kernel = Kernel(isa, dtype, 1, 1, out_dtype=out_dtype, step=False)
    width = kernel.layout.width
    one = np.ones(width, kernel.element)
    for start in range(0, len(HARD_ROUNDINGS), width):
        numbers = HARD_ROUNDINGS[start : start + width]
        with np.errstate(over="ignore"):
            values = np.array(numbers).astype(kernel.element)
            want = rounded(values, out_dtype)
        kernel.ot[: values.nbytes] = values.view(np.uint8)
        rows, live = len(numbers), ~np.isnan(want)
        for out in (np.zeros((rows, 1), want.dtype), np.zeros((rows, 2), want.dtype)[:, 1:]):
            kernel.unpack_o(one, out)
            assert np.array_equal(out[:, 0], want, equal_nan=True)
            assert np.array_equal(np.signbit(out[live, 0]), np.signbit(want[live]))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_half_precision_number_is_read_exactly(isa, dtype):
    every = np.arange(2**16, dtype=np.uint16).view(NP[dtype])
    kernel = Kernel(isa, dtype, 64, 64, step=False)
    rows = every.reshape(-1, 64)
    for start in range(0, len(rows), kernel.layout.block_kv):
        part = rows[start : start + kernel.layout.block_kv]
        want = part.astype(np.float32)
        got = kernel.pack_k(part)[: len(part)]
        assert np.array_equal(got, want, equal_nan=True)
        assert np.array_equal(np.signbit(got), np.signbit(want))
        strided = np.repeat(part, 2, axis=1)[:, ::2]
        assert np.array_equal(kernel.pack_k(strided)[: len(part)], want, equal_nan=True)
