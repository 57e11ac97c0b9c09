"""The decode kernel: the whole kit through it, edges of its own, bits, and who gets to it."""

import gc
import itertools

import numpy as np
import pytest

import sdpakit as sk
from sdpakit import conformance
from sdpakit.backends.numba_cpu import codegen
from sdpakit.backends.numba_cpu.decode import choice, launcher
from sdpakit.backends.numba_cpu.decode.layout import DecodeLayout
from sdpakit.backends.numba_cpu.isa import available_isas, select_isa
from sdpakit.backends.numba_cpu.layout import PanelLayout
from sdpakit.backends.numba_cpu.lower import DECODE, PREFILL, Stages
from sdpakit.conformance.cases.make import ALL, FOUR, make
from sdpakit.conformance.model import Shape
from sdpakit.conformance.targets.compiled import Compiled

FAMILIES = (
    *("masks", "windows", "empty", "poison", "specials", "precision", "scale", "softcap", "bias"),
    *("heads", "strides", "lengths", "widths", "statistics", "sinks", "expressions"),
    *("ragged", "paged"),
)


def judge(cases, options=None):
    target = Compiled("numba_cpu", options)
    outcomes = [conformance.check(target, case) for case in cases]
    assert outcomes
    assert [f"{x.case}: {x.message}" for x in outcomes if x.verdict != "ok"] == []


@pytest.fixture
def always(monkeypatch):
    """Send every call to the decode kernel."""
    monkeypatch.setattr(choice, "MOST_ROWS", 10**9)
    monkeypatch.setattr(choice, "LEAST_KEYS", 1)


def values(array):
    return np.ascontiguousarray(array).view(np.uint8)


def same_bits(a, b):
    return all(np.array_equal(values(x), values(y)) for x, y in zip(a, b, strict=True))


def operands(shape, dtype="float32", seed=3):
    draw = conformance.inputs.Draw(shape, dtype, seed)
    return draw.q(), draw.k(), draw.v()


@pytest.mark.parametrize("family", FAMILIES)
def test_the_kit_passes_through_it(family, always):
    """Cases are small and have up to some hundred rows: what they show does not need few rows."""
    cases = [
        case
        for case in conformance.cases("core")
        if case.family == family and not case.gradients and not case.refuses and not case.heavy
    ]
    judge(cases)


LENGTHS = (1, 2, 15, 63, 64, 65, 100, 511, 512, 513, 1500)


def lengths_case(kv_len, dtype, group=4, head_dim=24):
    return make(
        "decode.length",
        "SOFT-1",
        "",
        shape=Shape(2, 2 * group, 2, q_len=1, kv_len=kv_len, head_dim=head_dim),
        outputs=ALL,
        dtypes=(dtype,),
    )


@pytest.mark.parametrize("dtype", FOUR)
def test_any_number_of_keys(dtype, always):
    judge([case for n in LENGTHS for case in lengths_case(n, dtype)])


@pytest.mark.parametrize(
    ("q_heads", "q_len"), [(1, 1), (1, 2), (2, 1), (1, 3), (5, 1), (4, 3), (8, 2)]
)
def test_any_number_of_rows(q_heads, q_len):
    """One row, the wide functions, what is left over, and padding."""
    shape = Shape(2, q_heads, 1, q_len, 300, 32)
    mask = sk.Causal("bottom_right")
    judge(make("decode.rows", "SHAPE-2", "", shape=shape, spec={"mask": mask}))


@pytest.mark.parametrize("dtype", FOUR)
@pytest.mark.parametrize(
    ("head_dim", "v_head_dim"), [(1, 1), (7, 33), (31, 5), (80, 96), (576, 512)]
)
def test_any_width(head_dim, v_head_dim, dtype):
    shape = Shape(1, 4, 2, 1, 150, head_dim, v_head_dim)
    judge(make("decode.width", "SHAPE-3", "", shape=shape, dtypes=(dtype,)))


@pytest.mark.parametrize("isa", available_isas())
def test_any_isa(isa, always):
    shapes = [Shape(1, heads, 1, 1, 200, width) for heads, width in ((1, 16), (4, 40), (3, 7))]
    spec = {"mask": sk.Window(150, 0, "bottom_right"), "softcap": 5.0}
    cases = [
        case
        for shape in shapes
        for more in ({}, spec)
        for case in make(
            "decode.isa", "SOFT-1", "", shape=shape, spec=more, dtypes=FOUR, outputs=ALL
        )
    ]
    judge(cases, {"isa": isa})


@pytest.mark.parametrize(
    "order", ["bshd", "channels_first", "every_other", "reversed", "unaligned"]
)
@pytest.mark.parametrize("dtype", FOUR)
def test_strides_show_nowhere_in_the_bits(order, dtype):
    """Rows whose elements are not adjacent are copied first, all others are read where they lie."""
    q, k, v = operands(Shape(2, 4, 2, 1, 200, 24), dtype)
    spec = sk.AttentionSpec(q_heads=4, kv_heads=2, head_dim=24, dtype=dtype, outputs=("out", "lse"))
    kernel = sk.compile(spec, backend="numba_cpu")
    strided = [conformance.inputs.with_strides(x, order=order) for x in (q, k, v)]
    assert same_bits(kernel(q, k, v), kernel(*strided))


def test_stride_zero_and_out():
    q, k, v = operands(Shape(1, 4, 2, 1, 200, 24))
    spec = sk.AttentionSpec(q_heads=4, kv_heads=2, head_dim=24)
    kernel = sk.compile(spec, backend="numba_cpu")
    same = np.broadcast_to(k[:, :, :1], k.shape)
    out = np.full((1, 4, 1, 48), 7.0, np.float32)[..., ::2]
    assert kernel(q, same, v, out=out) is out
    np.testing.assert_allclose(out[0, 0, 0], v[0, 0].mean(axis=0), rtol=1e-4, atol=1e-6)
    assert (out.base[..., 1::2] == 7.0).all()


def test_it_is_compiled_when_a_call_first_goes_there():
    spec = sk.AttentionSpec(q_heads=4, kv_heads=2, head_dim=21)
    kernel = sk.compile(spec, backend="numba_cpu")
    kernel(*operands(Shape(1, 4, 2, 40, 200, 21)))
    before = len(codegen._LOADED)
    kernel(*operands(Shape(1, 4, 2, 1, 200, 21)))
    assert len(codegen._LOADED) == before + 1
    kernel(*operands(Shape(1, 4, 2, 1, 300, 21)))
    assert len(codegen._LOADED) == before + 1
    paged = sk.compile(spec.replace(paged=True, kv_lens=True), backend="numba_cpu")
    q, *pages = operands(Shape(1, 4, 2, 1, 300, 21))
    pages = [np.ascontiguousarray(x.swapaxes(1, 2)) for x in pages]
    paged(q, *pages, kv_lens=np.array([300]), block_table=np.array([[0]]))
    assert len(codegen._LOADED) == before + 2  # what reads keys by a table; the rest is shared


def test_its_code_lives_as_long_as_the_kernel():
    shape = Shape(1, 4, 2, 1, 200, 21)
    kernel = sk.compile(sk.AttentionSpec(q_heads=4, kv_heads=2, head_dim=21), backend="numba_cpu")
    first = kernel(*operands(shape))
    codegen.clear_loaded()
    gc.collect()
    assert same_bits([kernel(*operands(shape))], [first])


@pytest.fixture
def no_serial_path(monkeypatch):
    monkeypatch.setattr(launcher, "SERIAL_BYTES", 0)


@pytest.mark.parametrize("dtype", FOUR)
def test_bits_do_not_depend_on_threads(dtype, no_serial_path):
    q, k, v = operands(Shape(2, 4, 2, 2, 3000, 16), dtype)
    spec = sk.AttentionSpec(
        q_heads=4, kv_heads=2, head_dim=16, dtype=dtype, outputs=("out", "lse", "entropy"),
        mask=sk.Causal("bottom_right"),
    )  # fmt: skip
    kernel = sk.compile(spec, backend="numba_cpu")
    first = kernel(q, k, v, threads=1)
    for threads in (2, 3, 8):
        assert kernel.explain(batch=2, q_len=2, kv_len=3000, threads=threads)["threads"] == threads
        assert same_bits(first, kernel(q, k, v, threads=threads))


def test_bits_do_not_depend_on_the_batch_or_on_other_heads():
    q, k, v = operands(Shape(3, 8, 2, 1, 1300, 16))
    spec = sk.AttentionSpec(q_heads=8, kv_heads=2, head_dim=16, outputs=("out", "lse"))
    whole = sk.compile(spec, backend="numba_cpu")(q, k, v)
    alone = sk.compile(spec.replace(q_heads=1, kv_heads=1), backend="numba_cpu")
    for b, h in itertools.product(range(3), range(8)):
        one = [x[b : b + 1, n : n + 1] for x, n in ((q, h), (k, h // 4), (v, h // 4))]
        assert same_bits([x[b : b + 1, h : h + 1] for x in whole], alone(*one))


def test_values_outside_of_a_window_are_not_read():
    """A window costs its own keys: what lies elsewhere may as well be missing."""
    shape = Shape(1, 4, 1, 1, 100_000, 8)
    q, k, v = operands(shape)
    spec = sk.AttentionSpec(
        q_heads=4, kv_heads=1, head_dim=8, mask=sk.Window(255, 0, "bottom_right")
    )
    kernel = sk.compile(spec, backend="numba_cpu")
    found = kernel(q, k, v)
    assert same_bits([found], [kernel(q, *(poisoned(x, 255) for x in (k, v)))])
    right = sk.compile(spec.replace(mask=None), backend="interp")(q, k[:, :, -256:], v[:, :, -256:])
    np.testing.assert_allclose(found, right, atol=1e-6)


def poisoned(array, kept):
    array = array.copy()
    array[:, :, : -kept - 1] = np.nan
    return array


Q_ROWS = (1, 3, 40, 0, 2, 1)  # rows of the entries below: the third is too long for this kernel
KV_ROWS = (700, 1300, 300, 200, 130, 90)  # and the last has too few keys


def ends(lengths):
    return np.concatenate([[0], np.cumsum(lengths)])


def ragged(dtype="float32", group=4, head_dim=24, **more):
    """Return a spec, and a call with entries of `Q_ROWS` and `KV_ROWS`."""
    q, k, v = operands(Shape(1, 2 * group, 2, sum(Q_ROWS), sum(KV_ROWS), head_dim), dtype)
    tokens = [x[0].swapaxes(0, 1) for x in (q, k, v)]
    spec = sk.AttentionSpec(
        q_heads=2 * group, kv_heads=2, head_dim=head_dim, dtype=dtype, layout="thd", outputs=ALL,
        mask=sk.Causal("bottom_right"), **more,
    )  # fmt: skip
    return spec, tokens, {"cu_q_lens": ends(Q_ROWS), "cu_kv_lens": ends(KV_ROWS)}


def in_pages(tokens, size, seed=0):
    """Return keys and values of `ragged` in pages out of order, NaN elsewhere, and their table."""
    counts = [-(-n // size) for n in KV_ROWS]
    order = np.random.default_rng(seed).permutation(sum(counts) + 1)
    table = np.full((len(counts), max(counts)), -1)
    pages = [np.full((len(order), size, *x.shape[1:]), np.nan, x.dtype) for x in tokens[1:]]
    starts, first = ends(counts), ends(KV_ROWS)
    for b, count in enumerate(counts):
        table[b, :count] = order[starts[b] : starts[b + 1]]
        for j in range(KV_ROWS[b]):
            for page, x in zip(pages, tokens[1:], strict=True):
                page[table[b, j // size], j % size] = x[first[b] + j]
    return pages, {"block_table": table, "kv_lens": np.array(KV_ROWS)}


@pytest.mark.parametrize("dtype", FOUR)
def test_entries_of_a_ragged_call_go_each_its_own_way(dtype):
    """An entry has the bits that it has alone, whichever kernel takes it (DET-1)."""
    spec, (q, k, v), given = ragged(dtype)
    kernel = sk.compile(spec, backend="numba_cpu")
    assert kernel.explain(q=q, k=k, v=v, **given)["path"] == "decode: 3 of 6 entries"
    whole = kernel(q, k, v, **given)
    padded = sk.compile(spec.replace(layout="bhsd"), backend="numba_cpu")
    rows, keys = given["cu_q_lens"], given["cu_kv_lens"]
    for b, q_len in enumerate(Q_ROWS):
        if q_len == 0:
            continue
        part = slice(rows[b], rows[b + 1])
        own = (q[part], *(x[keys[b] : keys[b + 1]] for x in (k, v)))
        alone = padded(*(x.swapaxes(0, 1)[None] for x in own))
        out, *statistics = (x[0] for x in alone)
        alone = [out.swapaxes(0, 1), *(x.swapaxes(0, 1) for x in statistics)]
        assert same_bits([x[part] for x in whole], alone)


@pytest.mark.parametrize("size", [1, 7, 16, 256, 300])
@pytest.mark.parametrize("dtype", FOUR)
def test_pages_show_nowhere_in_the_bits(size, dtype):
    spec, tokens, given = ragged(dtype)
    expected = sk.compile(spec, backend="numba_cpu")(*tokens, **given)
    pages, more = in_pages(tokens, size)
    paged = sk.compile(spec.replace(paged=True, kv_lens=True), backend="numba_cpu")
    found = paged(tokens[0], *pages, cu_q_lens=given["cu_q_lens"], **more)
    assert same_bits(found, expected)


@pytest.mark.parametrize("order", ["channels_first", "every_other", "reversed", "unaligned"])
def test_strides_of_pages_show_nowhere_in_the_bits(order):
    spec, tokens, given = ragged("bfloat16")
    pages, more = in_pages(tokens, 16)
    paged = sk.compile(spec.replace(paged=True, kv_lens=True), backend="numba_cpu")
    strided = [conformance.inputs.with_strides(x, order=order) for x in pages]
    call = {"cu_q_lens": given["cu_q_lens"], **more}
    assert same_bits(paged(tokens[0], *strided, **call), paged(tokens[0], *pages, **call))


@pytest.mark.parametrize("pages", [False, True], ids=["ragged", "paged"])
def test_bits_of_packed_calls_do_not_depend_on_threads(pages, no_serial_path):
    spec, tokens, given = ragged()
    if pages:
        (k, v), more = in_pages(tokens, 16)
        given = {"cu_q_lens": given["cu_q_lens"], **more}
        spec, tokens = spec.replace(paged=True, kv_lens=True), [tokens[0], k, v]
    kernel = sk.compile(spec, backend="numba_cpu")
    first = kernel(*tokens, **given, threads=1)
    for threads in (2, 3, 8):
        assert same_bits(first, kernel(*tokens, **given, threads=threads))


def test_entries_without_rows_are_no_work_of_the_other_kernel(monkeypatch):
    """A step of decoding in which some sequences have ended prepares one kernel alone."""
    spec = sk.AttentionSpec(q_heads=4, kv_heads=2, head_dim=16, layout="thd")
    kernel = sk.compile(spec, backend="numba_cpu")
    q, k, v = (x[0].swapaxes(0, 1) for x in operands(Shape(1, 4, 2, 2, 600, 16)))
    call = {"cu_q_lens": ends((1, 0, 1)), "cu_kv_lens": ends((300, 100, 200))}
    expected = kernel(q, k, v, **call)
    monkeypatch.setattr(kernel._launcher, "_prepare", None)
    assert same_bits([kernel(q, k, v, **call)], [expected])


def test_a_paged_step_of_decoding_is_right():
    """Rows of the padded layout, keys in pages; one entry of none, one that goes to prefill."""
    lengths = np.array([0, 1, 127, 128, 1500])
    rng = np.random.default_rng(5)
    q = rng.standard_normal((5, 8, 2, 24), dtype=np.float32)
    pages = rng.standard_normal((2, 60, 32, 2, 24), dtype=np.float32)
    table = rng.permutation(60)[:50].reshape(1, 50) * np.ones((5, 1), int)
    spec = sk.AttentionSpec(
        q_heads=8, kv_heads=2, head_dim=24, paged=True, kv_lens=True, outputs=ALL, sinks=True,
        mask=sk.Window(900, 0, "bottom_right"), softcap=4.0,
    )  # fmt: skip
    call = {"kv_lens": lengths, "block_table": table, "sinks": rng.standard_normal(8)}
    found = sk.compile(spec, backend="numba_cpu")(q, *pages, **call)
    detail = sk.reference.detail(spec, q, *pages, **call)
    bounds = conformance.bounds(detail, "sharp")
    for name, x in zip(ALL, found, strict=True):
        judged = conformance.compare(name, x, getattr(detail, name), bounds[name], "float32")
        assert not judged.message, judged.message


def test_one_compilation_is_for_all_lengths():
    spec = sk.AttentionSpec(q_heads=4, kv_heads=1, head_dim=40, v_head_dim=48)
    kernel = sk.compile(spec, backend="numba_cpu")
    kernel(*operands(Shape(1, 4, 1, 1, 1000, 40, 48)))
    before = codegen.compile_count()
    for kv_len in range(1, 1000, 20):
        kernel(*operands(Shape(1, 4, 1, 1, kv_len, 40, 48)))
    assert codegen.compile_count() == before


def test_a_small_call_is_repeated_with_the_same_bits():
    """Other arrays of the same shape go straight to the driver, whose counters start anew."""
    spec = sk.AttentionSpec(q_heads=4, kv_heads=2, head_dim=16)
    kernel = sk.compile(spec, backend="numba_cpu")
    shape = Shape(2, 4, 2, 1, 700, 16)
    fresh = [kernel(*operands(shape, seed=0))]
    kernel._launcher = None  # whatever goes the whole way fails from here on
    fresh += [kernel(*operands(shape, seed=seed)) for seed in (1, 2)]
    again = [kernel(*operands(shape, seed=seed)) for seed in range(3)]
    assert same_bits(fresh, again)
    right = [sk.compile(spec, backend="interp")(*operands(shape, seed=seed)) for seed in range(3)]
    np.testing.assert_allclose(fresh, right, atol=1e-6)


@pytest.mark.parametrize("kv_len", [1, 100, 512, 4096, 5000, 100_000, 10_000_000])
def test_chunks_depend_on_the_keys_alone(kv_len):
    layout = DecodeLayout(PanelLayout(select_isa(), "float32", "float32", 64, 64))
    chunk = layout.chunk_keys(kv_len)
    assert 512 <= chunk <= 4096
    assert chunk % 256 == 0


def test_who_gets_to_it():
    spec = sk.AttentionSpec(q_heads=8, kv_heads=2, head_dim=16)

    def path(q_len, kv_len, **changes):
        kernel = sk.compile(spec.replace(**changes), backend="numba_cpu")
        return kernel.explain(q_len=q_len, kv_len=kv_len)["path"]

    assert path(1, 4096) == "decode"
    assert path(4, 4096) == "decode"
    assert path(5, 4096) == "prefill"
    assert path(1, 16) == "prefill"
    assert path(1, 4096, v_head_dim=0) == "prefill"
    assert path(1, 4096, batch_invariant=True) == "prefill"
    assert path(1, 4096, layout="thd") == "decode"
    assert path(5, 4096, layout="thd") == "prefill"
    assert path(1, 4096, layout="thd", paged=True, kv_lens=True) == "decode"
    assert path(1, 16, paged=True, kv_lens=True) == "prefill"


def test_explain_makes_no_text_of_other_kernels(monkeypatch):
    spec = sk.AttentionSpec(q_heads=2, head_dim=11)
    kernel = sk.compile(spec, backend="numba_cpu")
    made, text = [], Stages.text
    monkeypatch.setattr(Stages, "text", lambda self, n: made.append(n) or text(self, n))
    monkeypatch.setattr(Stages, "__getitem__", None)  # would make the text of all
    for q_len, path in ((1, "decode"), (300, "prefill")):
        facts = kernel.explain(q_len=q_len, kv_len=4096)
        assert facts["path"] == path
        assert sum(facts["expected"]["parts"].values()) > 0
    assert made == [DECODE, PREFILL]


def test_explain_counts_what_is_read():
    spec = sk.AttentionSpec(
        q_heads=8, kv_heads=2, head_dim=16, mask=sk.Window(255, 0, "bottom_right")
    )
    facts = sk.compile(spec, backend="numba_cpu").explain(q_len=1, kv_len=4096)
    assert facts["path"] == "decode"
    assert "not_modelled" not in facts
    assert facts["chunks"] == 8
    assert facts["kv_bytes_in_tiles"] == 2 * 2 * 256 * 16 * 4
    assert facts["items"] == 16


@pytest.mark.parametrize("dtype", FOUR)
@pytest.mark.parametrize("backend", ["numba_cpu", "interp"])
@pytest.mark.parametrize("mask", [None, sk.Causal("offset")], ids=["all", "causal"])
def test_a_row_alone_has_the_bits_that_it_has_among_others(dtype, backend, mask):
    """DET-2."""
    shape = Shape(2, 4, 2, 37, 333, 24)
    q, k, v = operands(shape, dtype)
    spec = sk.AttentionSpec(
        q_heads=4, kv_heads=2, head_dim=24, dtype=dtype, mask=mask, outputs=ALL,
        batch_invariant=True,
    )  # fmt: skip
    kernel = sk.compile(spec, backend=backend)

    def at(row):
        return {} if mask is None else {"q_offset": 250 + row}

    whole = kernel(q, k, v, **at(0))
    for row in (0, 1, 19, 36):
        alone = kernel(q[:, :, row : row + 1], k, v, **at(row))
        assert same_bits([x[:, :, row : row + 1] for x in whole], alone)
