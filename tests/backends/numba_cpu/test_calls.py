"""Calls of whole kernels: bits, threads, forks, scratch, compilations."""

import concurrent.futures
import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import sdpakit as sk
from sdpakit.backends.numba_cpu import codegen, launcher, pool, schedule
from sdpakit.backends.numba_cpu.backward import launcher as backward_launcher
from sdpakit.backends.numba_cpu.isa import available_isas
from sdpakit.backends.numba_cpu.lower import DECODE, DECODE_PAGES, PREFILL
from sdpakit.backends.numba_cpu.machine import FALLBACK
from sdpakit.binding import Arguments, bind
from sdpakit.conformance import bounds
from sdpakit.reference import detail

OUTPUTS = ("out", "lse", "max_logit", "entropy", "sum_p2")


def arrays(q_heads=4, kv_heads=2, q_len=300, kv_len=400, head_dim=24, batch=1):
    rng = np.random.default_rng(5)
    shapes = ((q_heads, q_len), (kv_heads, kv_len), (kv_heads, kv_len))
    return [rng.standard_normal((batch, h, n, head_dim)).astype(np.float32) for h, n in shapes]


def causal_kernel(outputs=OUTPUTS, batch_invariant=False, **options):
    spec = sk.AttentionSpec(
        q_heads=4,
        kv_heads=2,
        head_dim=24,
        mask=sk.Causal("bottom_right"),
        outputs=outputs,
        batch_invariant=batch_invariant,
    )
    return sk.compile(spec, backend="numba_cpu", options=options or None)


def same_bits(a, b):
    return all(
        np.array_equal(x.view(np.int32), y.view(np.int32)) for x, y in zip(a, b, strict=True)
    )


@pytest.fixture(autouse=True)
def no_serial_path(monkeypatch):
    # Small calls would run on one thread, and these tests are about several.
    monkeypatch.setattr(schedule, "SERIAL_FLOPS", 0)


@pytest.mark.parametrize("threads", [2, 3, 8])
def test_bits_do_not_depend_on_threads(threads):
    kernel, qkv = causal_kernel(), arrays()
    assert kernel.explain(q_len=300, kv_len=400, threads=threads)["items"] > threads
    assert same_bits(kernel(*qkv, threads=threads), kernel(*qkv, threads=1))


@pytest.fixture
def dealt_anew(monkeypatch):
    """Return a function that changes a size of the schedule and lets a kernel forget its deals."""
    changed = []

    def change(kernel, name, value):
        monkeypatch.setattr(schedule, name, value)
        changed.append(kernel)
        forget(kernel)

    def forget(kernel):
        for code in kernel._launcher._codes.values():
            code.deal.cache_clear()

    yield change
    for kernel in changed:
        forget(kernel)


def test_bits_do_not_depend_on_the_partition_into_items(dealt_anew):
    kernel, qkv = causal_kernel(), arrays(batch=2)
    whole, items = kernel(*qkv, threads=1), []
    for state_bytes in (1, 40_000, 10**9):
        dealt_anew(kernel, "STATE_BYTES", state_bytes)
        assert same_bits(kernel(*qkv, threads=1), whole)
        items.append(kernel.explain(batch=2, q_len=300, kv_len=400, threads=1)["items"])
    assert items[0] > items[1] > items[2]


@pytest.mark.parametrize("mask", ["causal", "window", "nothing"])
def test_bits_do_not_depend_on_the_groups_of_tiles(dealt_anew, mask):
    """Panels open and close in groups of their own where there are several, or in the only one."""
    masks = {
        "causal": sk.Causal("bottom_right"),
        "window": sk.Window(90, 0, align="top_left"),  # the last tiles are seen by nobody
        "nothing": sk.Window(0, 0, align="offset"),
    }
    spec = sk.AttentionSpec(
        q_heads=4, kv_heads=2, head_dim=24, mask=masks[mask], outputs=OUTPUTS, empty_row="nan"
    )
    kernel = sk.compile(spec, backend="numba_cpu", options={"block_kv": 24})
    qkv = arrays(q_len=150, kv_len=407)
    given = {"q_offset": 10_000} if mask == "nothing" else {}
    whole, scratch = kernel(*qkv, threads=1, **given), []
    for group_bytes in (1, 40_000, 10**6):
        machine = replace(FALLBACK, l2=8 * group_bytes)
        dealt_anew(kernel, "caches", lambda machine=machine: machine)
        assert same_bits(kernel(*qkv, threads=1, **given), whole)
        facts = kernel.explain(q_len=150, kv_len=407, threads=1)
        scratch.append(facts["scratch_bytes_per_thread"])
    assert scratch[0] < scratch[1] < scratch[2]


def test_bits_do_not_depend_on_what_else_is_in_the_batch():
    kernel, (q, k, v) = causal_kernel(), arrays(batch=3)
    whole = kernel(q, k, v)
    alone = kernel(q[1:2], k[1:2], v[1:2])
    assert same_bits([x[1:2] for x in whole], alone)


def test_eight_threads_call_one_kernel_and_different_kernels():
    kernels = [causal_kernel(), causal_kernel(("out", "lse")), causal_kernel(block_kv=24)]
    jobs = [(kernels[n % 3], arrays(q_len=100 + 37 * n), 1 + n % 3) for n in range(8)]
    right = [kernel(*qkv, threads=1) for kernel, qkv, _ in jobs]
    start = threading.Barrier(8)

    def run(n):
        kernel, qkv, threads = jobs[n]
        start.wait(30)
        return all(same_bits(kernel(*qkv, threads=threads), right[n]) for _ in range(5))

    with concurrent.futures.ThreadPoolExecutor(8) as executor:
        assert all(executor.map(run, range(8)))


def test_eight_threads_compile_and_call_for_the_first_time():
    codegen.clear_loaded()
    specs = [sk.AttentionSpec(q_heads=1, head_dim=3 + n % 2, softcap=2.0) for n in range(8)]
    q = np.ones((1, 1, 5, 4), np.float32)
    start = threading.Barrier(8)

    def run(spec):
        start.wait(30)
        x = q[..., : spec.head_dim]
        return sk.compile(spec, backend="numba_cpu")(x, x, x)

    with concurrent.futures.ThreadPoolExecutor(8) as executor:
        assert all((out == 1.0).all() for out in executor.map(run, specs))


def test_what_decodes_is_one_code_for_all_threads_whatever_is_forgotten_between():
    kernel = sk.compile(sk.AttentionSpec(q_heads=1, head_dim=5), backend="numba_cpu")
    (code,) = kernel._launcher._codes.values()
    places = (PREFILL, DECODE, DECODE_PAGES)
    first, driver = [code.kernel(place) for place in places], code.decode._driver()
    template = code.decode._template
    codegen.clear_loaded()
    assert all(code.kernel(place) is x for place, x in zip(places, first, strict=True))
    again = type(code.decode)._template._function(code.decode)  # as a thread at the same time
    assert np.array_equal(again, template)
    assert code.decode._driver() is driver


WIDE = sk.AttentionSpec(
    q_heads=1, head_dim=4, mask=lambda i: i.k * sk.Scalar("factor", "int") <= i.q * 10**6
)


@pytest.mark.parametrize("compile_it", [sk.compile, sk.compile_backward])
def test_wide_integers_are_compiled_once_for_all_threads_that_need_them(compile_it, monkeypatch):
    module = launcher if compile_it is sk.compile else backward_launcher
    name = "lower" if compile_it is sk.compile else "lower_backward"
    made, lower = [], getattr(module, name)

    def slowly(*arguments):
        made.append(arguments)
        time.sleep(0.2)  # the others are there, and find nothing yet
        return lower(*arguments)

    loaded = compile_it(WIDE, backend="numba_cpu")._launcher
    monkeypatch.setattr(module, name, slowly)
    start = threading.Barrier(4)

    def run(_):
        start.wait(30)
        return loaded._code(64)

    with concurrent.futures.ThreadPoolExecutor(4) as executor:
        found = list(executor.map(run, range(4)))
    assert len(made) == 1
    assert all(code is loaded._code(64) for code in found)
    assert loaded._code(32) is not loaded._code(64)


@pytest.mark.parametrize("kv_len", [7, 700], ids=["prefill", "decode"])
def test_what_repeats_a_call_keeps_its_code(kv_len):
    spec = sk.AttentionSpec(q_heads=1, head_dim=9)
    artifact = sk.compile(spec, backend="numba_cpu")._artifact
    loaded = launcher.CpuLauncher(artifact)
    q, k, v = (x[..., :9] for x in arrays(1, 1, 1, kv_len))
    expected = np.empty((1, 1, 1, 9), np.float32)
    call = bind(sk.compile(spec)._signature, Arguments(q=q, k=k, v=v, out=expected)).call
    loaded(call)
    repeat = loaded.repeat(call, (q, k, v, expected))
    code = loaded._code(32)
    kept = [weakref.ref(x) for x in (code.module, code.driver, code.decode)]
    del code, loaded
    gc.collect()
    assert all(ref() is not None for ref in kept)
    assert np.array_equal(repeat(q, k, v, None), expected)


FORKS = """
import os, numpy as np, sdpakit as sk
q, k, v = np.random.default_rng(5).standard_normal((3, 1, 4, 400, 24), dtype=np.float32)
kernel = sk.compile(sk.AttentionSpec(q_heads=4, head_dim=24), backend="numba_cpu")
assert kernel.explain(q_len=400, threads=3)["threads"] == 3
right = kernel(q, k, v, threads=3).tobytes()
child = os.fork()
if child == 0:
    os._exit(0 if kernel(q, k, v, threads=3).tobytes() == right else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert kernel(q, k, v, threads=3).tobytes() == right
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_child_of_fork_computes_the_same_with_threads_of_its_own():
    """The fork is one of a process that loads nothing else: JAX warns of any where it is loaded."""
    run_alone(FORKS)


def test_fifty_lengths_compile_once():
    kernel = causal_kernel()
    kernel(*arrays(q_len=7, kv_len=9))
    before = codegen.compile_count()
    for n in range(1, 51):
        kernel(*arrays(q_len=n, kv_len=3 * n))
    assert codegen.compile_count() == before


@pytest.mark.parametrize(
    ("q_len", "kv_len"), [(1, 1_000_000), (32_768, 32_768), (1_000_000, 1)], ids=str
)
def test_scratch_is_a_constant_whatever_the_lengths(q_len, kv_len):
    kernel = sk.compile(sk.AttentionSpec(q_heads=1, head_dim=64), backend="numba_cpu")
    facts = kernel.explain(q_len=q_len, kv_len=kv_len)
    assert 0 < facts["scratch_bytes_per_thread"] <= 32 * 2**20


def test_scratch_is_bounded_at_the_largest_widths(monkeypatch):
    sizes = []
    take = pool.take_scratch
    monkeypatch.setattr(pool, "take_scratch", lambda size, n: sizes.append(size) or take(size, n))
    spec = sk.AttentionSpec(q_heads=1, head_dim=1024, dtype="float64", outputs=OUTPUTS)
    x = np.ones((1, 1, 40, 1024))
    out = sk.compile(spec, backend="numba_cpu")(x, x, x)
    np.testing.assert_allclose(out.out, 1.0, rtol=4 * np.finfo(np.float64).eps)
    assert 0 < sizes[0] <= 32 * 2**20


def test_wide_integers_are_compiled_when_a_call_needs_them():
    kernel = sk.compile(WIDE, backend="numba_cpu")
    q = np.zeros((1, 1, 50, 4), np.float32)
    k = np.zeros((1, 1, 50, 4), np.float32)
    v = np.broadcast_to(np.arange(50, dtype=np.float32)[:, None], (50, 4))[None, None]
    before = codegen.compile_count()
    for factor in (1, 10**6, 10**9):
        out = kernel(q, k, v, params={"factor": factor})[0, 0, :, 0]
        last = np.minimum(np.arange(50) * 10**6 // factor, 49)
        np.testing.assert_allclose(out, last / 2, rtol=4 * np.finfo(np.float32).eps)
    assert codegen.compile_count() - before <= 1


@pytest.mark.parametrize("isa", available_isas())
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_isa_of_the_host(isa, dtype):
    spec = sk.AttentionSpec(
        q_heads=2, head_dim=7, dtype=dtype, mask=sk.Window(9, 4, align="top_left"), sinks=True
    )
    kernel = sk.compile(spec, backend="numba_cpu", options={"isa": isa})
    q, k, v = (x[..., :7].astype(dtype) for x in arrays(2, 2, 50, 60))
    sinks = np.array([0.5, -1.0], dtype)
    right = detail(spec, q, k, v, sinks=sinks)
    error = np.abs(kernel(q, k, v, sinks=sinks) - right.out)
    assert (error <= bounds(right, "sharp")["out"]).all()


def test_rows_past_q_len_are_written_without_being_computed():
    spec = sk.AttentionSpec(
        q_heads=2, head_dim=8, q_lens=True, kv_lens=True, outputs=OUTPUTS, empty_row="nan"
    )
    q, k, v = (x[..., :8] for x in arrays(2, 2, 70, 30, batch=3))
    q = q.copy()
    q[0, :, 5:] = np.nan
    found = sk.compile(spec, backend="numba_cpu")(
        q, k, v, q_lens=np.array([5, 0, 70]), kv_lens=np.array([30, 30, 0])
    )
    right = {"lse": -np.inf, "max_logit": -np.inf, "entropy": 0.0, "sum_p2": 0.0, "out": np.nan}
    for name, value in right.items():
        array = getattr(found, name)
        for empty in (array[0, :, 5:], array[1], array[2]):
            np.testing.assert_array_equal(empty, value)
        assert np.isfinite(array[0, :, :5]).all()


EXITS = """
import threading, numpy as np, sdpakit as sk
x = np.ones((1, 8, 600, 16), np.float32)
kernel = sk.compile(sk.AttentionSpec(q_heads=8, head_dim=16), backend="numba_cpu")
def forever():
    while True:
        kernel(x, x, x, threads=3)
threading.Thread(target=forever, daemon=True).start()
assert (kernel(x, x, x, threads=3) > 0).all()
"""


def run_alone(text):
    """Run a program in a process of its own, which has to end well."""
    source = str(Path(sk.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": source}
    command = [sys.executable, "-c", text]
    done = subprocess.run(command, env=environment, timeout=120, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()


def test_a_process_ends_while_helpers_sleep_and_a_thread_still_calls():
    run_alone(EXITS)


@pytest.mark.parametrize("reads_head", [False, True], ids=["heads as rows", "a bias of each head"])
def test_one_row_has_the_bits_that_it_has_among_others(reads_head):
    spec = sk.AttentionSpec(
        q_heads=6,
        kv_heads=2,
        head_dim=24,
        mask=lambda i: (i.k + i.b) % 5 != 0,
        bias="float32" if reads_head else None,
        softcap=4.0,
        sinks=True,
        q_lens=True,
        kv_lens=True,
        outputs=OUTPUTS,
    )
    kernel = sk.compile(spec, backend="numba_cpu")
    q, k, v = arrays(6, 2, 1, 300, batch=3)
    given = {
        "sinks": np.linspace(-1, 1, 6, dtype=np.float32),
        "q_lens": np.array([1, 1, 0]),
        "kv_lens": np.array([300, 130, 7]),
    }
    if reads_head:
        given["bias"] = np.linspace(-2, 2, 6, dtype=np.float32)[:, None, None]
    alone = kernel(q, k, v, **given)
    among = kernel(np.repeat(q, 3, axis=2), k, v, **given)
    assert same_bits(alone, [x[:, :, :1].copy() for x in among])


# ------------------------------------------------------------------ batches without padding


def ends_of(lengths):
    return np.concatenate([[0], np.cumsum(lengths)])


def packed_arrays(q_lens, kv_lens, head_dim=24):
    rng = np.random.default_rng(6)
    shapes = ((sum(q_lens), 4), (sum(kv_lens), 2), (sum(kv_lens), 2))
    return [rng.standard_normal((*shape, head_dim)).astype(np.float32) for shape in shapes]


def packed_kernel(**fields):
    spec = sk.AttentionSpec(
        q_heads=4,
        kv_heads=2,
        head_dim=24,
        layout="thd",
        mask=sk.Causal("bottom_right"),
        outputs=OUTPUTS,
        **fields,
    )
    return sk.compile(spec, backend="numba_cpu")


@pytest.mark.parametrize("q_lens", [(1, 1, 1, 1), (1, 0, 1, 1), (300, 1, 0, 77)])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("invariant", [False, True])
def test_an_entry_has_the_bits_that_it_has_alone_however_items_are_dealt(
    q_lens, threads, invariant
):
    """Short queries have a kernel of their own, unless DET-2 is asked for: in every layout."""
    kv_lens = (310, 200, 64, 400)
    q, k, v = packed_arrays(q_lens, kv_lens)
    q_ends, kv_ends = ends_of(q_lens), ends_of(kv_lens)
    kernel = packed_kernel(batch_invariant=invariant)
    padded = causal_kernel(batch_invariant=invariant)
    found = kernel(q, k, v, cu_q_lens=q_ends, cu_kv_lens=kv_ends, threads=threads)
    for b in range(4):
        rows, keys = slice(*q_ends[b : b + 2]), slice(*kv_ends[b : b + 2])
        own = {"cu_q_lens": ends_of([q_lens[b]]), "cu_kv_lens": ends_of([kv_lens[b]])}
        alone = kernel(q[rows], k[keys], v[keys], **own)
        assert same_bits([x[rows] for x in found], alone)
        alone = padded(*(x.swapaxes(0, 1)[None] for x in (q[rows], k[keys], v[keys])))
        assert same_bits([x[rows].swapaxes(0, 1)[None].copy() for x in found], alone)


@pytest.mark.parametrize("size", [1, 5, 64, 1000])
@pytest.mark.parametrize("adjacent", [False, True])
@pytest.mark.parametrize("heads_first", [False, True])
def test_pages_are_read_where_they_lie(size, adjacent, heads_first):
    q_lens, kv_lens = (3, 1, 40), (500, 1, 193)
    q, k, v = packed_arrays(q_lens, kv_lens)
    ends = {"cu_q_lens": ends_of(q_lens)}
    want = packed_kernel()(q, k, v, **ends, cu_kv_lens=ends_of(kv_lens))
    most = -(-max(kv_lens) // size)
    numbers = np.arange(3 * most) if adjacent else np.random.default_rng(7).permutation(3 * most)
    table = numbers.reshape(3, most)
    shape = (3 * most, 2, size, 24) if heads_first else (3 * most, size, 2, 24)
    pages = [np.full(shape, np.nan, np.float32) for _ in "kv"]
    pages = [x.swapaxes(1, 2) if heads_first else x for x in pages]
    for b, start in enumerate(ends_of(kv_lens)[:-1]):
        for j in range(kv_lens[b]):
            for page, x in zip(pages, (k, v), strict=True):
                page[table[b, j // size], j % size] = x[start + j]
        table[b, -(-kv_lens[b] // size) :] = -1  # PAGED-2
    kernel = packed_kernel(paged=True, kv_lens=True)
    found = kernel(q, *pages, **ends, kv_lens=np.array(kv_lens), block_table=table)
    assert same_bits(found, want)


def test_packed_specs_share_the_code_of_padded_ones_and_calls_compile_nothing():
    causal_kernel()
    kernel, before = packed_kernel(), sk.compiler.stats().compilations
    paged = packed_kernel(paged=True, kv_lens=True)
    for kv_len in (5, 300):
        q, k, v = packed_arrays((3, 2), (kv_len, 4))
        kernel(q, k, v, cu_q_lens=ends_of((3, 2)), cu_kv_lens=ends_of((kv_len, 4)))
        one = {"kv_lens": np.array([4, 4]), "block_table": np.array([[0], [0]])}
        paged(q, k[None], v[None], cu_q_lens=ends_of((3, 2)), **one)
    assert sk.compiler.stats().compilations == before


def test_explain_counts_items_of_entries_that_there_are():
    facts = packed_kernel().explain(
        cu_q_lens=ends_of((300, 0, 0, 1)), cu_kv_lens=ends_of((300, 0, 0, 1)), threads=1
    )
    assert facts["path"] == "prefill"
    assert facts["items"] == 4  # two entries with rows, two kv heads
    tiles = facts["tiles"]
    assert tiles["full"] > 0
    rows, keys = facts["block_q"], facts["block_kv"]
    assert sum(tiles.values()) == 4 * (-(-300 // rows) * -(-300 // keys) + 1)
