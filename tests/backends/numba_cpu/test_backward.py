"""The backward kernel of the CPU: bits, threads, instruction sets, tiles, what it holds."""

import concurrent.futures

import numpy as np
import pytest

import sdpakit as sk
from sdpakit.backends.numba_cpu import schedule, workers
from sdpakit.backends.numba_cpu.backward import driver, launcher
from sdpakit.backends.numba_cpu.backward.layout import backward_layout
from sdpakit.backends.numba_cpu.backward.rows import prepare_rows
from sdpakit.backends.numba_cpu.codegen import compile_kernel
from sdpakit.backends.numba_cpu.isa import available_isas, select_isa
from sdpakit.backends.numba_cpu.layout import PanelLayout

MASKS = {
    "none": None,
    "causal": sk.Causal("bottom_right"),
    "window": sk.Window(20, 5, "top_left"),
    "holes": sk.Predicate(lambda i: (i.k // 7 + i.q // 5) % 3 != 0),
}


def relative(x, i):
    """Add a learned number for each distance, up to 15."""
    return x + sk.Table("t", "float32", 2)[i.h, sk.minimum(sk.absolute(i.q - i.k), 15)]


def operands(q_len=150, kv_len=210, head_dim=24, heads=(4, 2), dtype=np.float32, batch=2):
    rng = np.random.default_rng(5)
    q_heads, kv_heads = heads
    lengths = ((q_heads, q_len), (kv_heads, kv_len), (kv_heads, kv_len), (q_heads, q_len))
    return [rng.standard_normal((batch, h, n, head_dim)).astype(dtype) for h, n in lengths]


def compiled(mask=None, **fields):
    options = fields.pop("options", None)
    base = {"q_heads": 4, "kv_heads": 2, "head_dim": 24, "mask": mask} | fields
    return sk.compile_backward(sk.AttentionSpec(**base), backend="numba_cpu", options=options)


def parts(found):
    named = {name: getattr(found, name) for name in ("dq", "dk", "dv", "dbias", "dsinks")}
    return {name: x for name, x in named.items() if x is not None} | dict(found.dparams)


def assert_same_bits(found, other):
    for name, array in parts(found).items():
        np.testing.assert_array_equal(array, parts(other)[name], err_msg=name)


@pytest.fixture(autouse=True)
def no_serial_path(monkeypatch):
    # Small calls would run on one thread, and these tests are about several.
    monkeypatch.setattr(schedule, "SERIAL_FLOPS", 0)


@pytest.mark.parametrize("name", MASKS)
def test_bits_do_not_depend_on_threads(name):
    backward, arrays = compiled(MASKS[name]), operands()
    alone = backward(*arrays, threads=1)
    for threads in (2, 3, 8):
        assert_same_bits(backward(*arrays, threads=threads), alone)


@pytest.mark.parametrize("shape", [(1, 4, 150, 210), (2, 1, 1, 210), (1, 150, 1), (1,)])
def test_bits_of_a_broadcast_bias_and_a_table_do_not_depend_on_threads(shape):
    backward = compiled(MASKS["causal"], logits=relative, bias="float32")
    rng = np.random.default_rng(1)
    rest = {
        "bias": rng.standard_normal(shape).astype(np.float32),
        "params": {"t": rng.standard_normal((4, 16)).astype(np.float32)},
    }
    alone = backward(*operands(), threads=1, **rest)
    for threads in (2, 5):
        assert_same_bits(backward(*operands(), threads=threads, **rest), alone)


def test_bits_do_not_depend_on_what_else_is_in_the_batch():
    backward, arrays = compiled(MASKS["window"]), operands(batch=3)
    whole = backward(*arrays)
    single = backward(*(x[1:2] for x in arrays))
    for name in ("dq", "dk", "dv"):
        np.testing.assert_array_equal(getattr(single, name)[0], getattr(whole, name)[1])


def test_many_callers_at_once_get_their_own_gradients():
    backward = compiled(MASKS["causal"])
    calls = [[x * scale for x in operands()] for scale in (1.0, 0.5, 2.0, 0.25)]
    calls = [[x.astype(np.float32) for x in arrays] for arrays in calls]
    alone = [backward(*arrays, threads=1) for arrays in calls]
    with concurrent.futures.ThreadPoolExecutor(4) as executor:
        together = list(executor.map(lambda arrays: backward(*arrays, threads=3), calls * 3))
    for n, found in enumerate(together):
        assert_same_bits(found, alone[n % 4])


@pytest.mark.parametrize("isa", available_isas())
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_instruction_set_agrees_with_the_interpreter(isa, dtype):
    arrays = operands(q_len=37, kv_len=53, head_dim=19, dtype=dtype)
    spec = {"head_dim": 19, "dtype": dtype}
    found = compiled(MASKS["holes"], options={"isa": isa}, **spec)(*arrays)
    described = sk.AttentionSpec(q_heads=4, kv_heads=2, mask=MASKS["holes"], **spec)
    other = sk.compile_backward(described, backend="interp")(*arrays)
    for name in ("dq", "dk", "dv"):
        np.testing.assert_allclose(
            getattr(found, name),
            getattr(other, name),
            atol=1e-5 if dtype == "float32" else 1e-13,
        )


@pytest.mark.parametrize("block_kv", [6, 30, 192])
def test_tiles_of_any_size_give_the_same_gradients(block_kv):
    arrays = operands()
    found = compiled(MASKS["causal"], options={"block_kv": block_kv})(*arrays)
    other = compiled(MASKS["causal"])(*arrays)
    for name in ("dq", "dk", "dv"):
        np.testing.assert_allclose(getattr(found, name), getattr(other, name), atol=1e-5)


def test_integers_beyond_32_bits_take_wider_lanes():
    def shifted(x, i):
        return x + sk.to_float((i.k + sk.Scalar("far", "int")) % 3) * 0.1

    backward = compiled(logits=shifted)
    near = backward(*operands(), params={"far": 2})
    far = backward(*operands(), params={"far": 2 + 3 * 2**40})
    assert_same_bits(far, near)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("width", [1, 64, 128, 1024])
def test_scratch_of_a_thread_is_bounded(dtype, width):
    panel = PanelLayout(select_isa(), dtype, dtype, width, width)
    layout = backward_layout(panel, None)
    assert layout.keys.block_kv == layout.values.block_kv
    assert layout.panels >= 1
    assert layout.scratch["end"] <= 32 * 2**20


def test_a_thread_that_comes_too_late_leaves_the_scratch_alone():
    d = np.zeros(driver.FIELDS, np.int64)
    d[driver.WIDTH], d[driver.ELEMENT_BYTES], d[driver.ROW_BYTES] = 16, 4, 64
    walk = compile_kernel(driver.WALK, select_isa())
    d[workers.RUN_ITEM] = walk.address("run_item")
    scratch = np.full(1024, 7.0, np.float32)
    workers.worker()(d.ctypes.data, scratch.ctypes.data, 0, 0, 0, 0)
    assert (scratch == 7.0).all()
    assert d[workers.NEXT_ITEM] == 1
    assert d[workers.DONE_ITEMS] == 0


@pytest.mark.parametrize("kept", [0, 2**30])
def test_sums_of_any_size_find_memory(monkeypatch, kept):
    monkeypatch.setattr(launcher, "KEPT_BYTES", kept)
    backward, arrays = compiled(MASKS["window"]), operands()
    assert_same_bits(backward(*arrays), backward(*arrays))


def test_the_power_of_two_of_a_sum_moves_to_its_maximum():
    m = np.array([2.0, -1.25, -np.inf, np.inf, 1e30], np.float32)
    total = np.array([2.0**90, 0.75, 0.0, np.nan, 3.0], np.float32)
    rows = prepare_rows(m, total, None)
    np.testing.assert_array_equal(rows.base, [2.0 + 91 / 4, -1.25, 0.0, np.nan, np.float32(1e30)])
    exact = np.array([2.0, 1 / 0.75, 0.0, np.nan, 1 / 3], np.float32)
    np.testing.assert_array_equal(rows.inverse, exact)


def test_a_sink_joins_the_sum_wherever_it_lies():
    m, total = np.zeros((1, 1, 2), np.float32), np.full((1, 1, 2), 0.75, np.float32)
    for sink, share in ((-np.inf, 0.0), (1e30, 1.0), (0.0, 1 / 1.75), (np.log(0.75), 0.5)):
        rows = prepare_rows(m, total, np.array([sink]))
        np.testing.assert_allclose(rows.sink_weights, share, rtol=1e-12)
    assert np.isnan(prepare_rows(m, total, np.array([np.inf])).inverse).all()


def test_the_code_says_what_it_is():
    backward = compiled(MASKS["causal"], softcap=5.0)
    text = backward.inspect("llvm")
    for phrase in ("gradients", "phase 3: weights", 'define void @"outer"', "MASK-1"):
        assert phrase in text
    assert len(backward.inspect("asm")) > 1000


def one_chain(weights, rows):
    """Add weights[i] * rows[i] in float32, one multiply-add after another."""
    total = np.zeros(rows.shape[1], np.float32)
    for weight, row in zip(weights, rows, strict=True):
        total = (total + weight * row).astype(np.float32)
    return total


def root_mean_square(x):
    return np.sqrt(np.mean(x**2))


@pytest.mark.parametrize("isa", available_isas())
def test_sums_over_many_rows_and_keys_are_not_one_chain(isa):
    # All logits are 0, so that every weight is exact and only the sums of out and dv round.
    options = {"isa": isa}
    backward = compiled(q_heads=1, kv_heads=1, options=options)
    rng = np.random.default_rng(3)
    q, k = (np.zeros((1, 1, 4096, 24), np.float32) for _ in range(2))
    v, dout = (rng.standard_normal((1, 1, 4096, 24)).astype(np.float32) for _ in range(2))
    out, saved = backward.forward(q, k, v)
    dv = backward(q, k, v, dout, saved=saved).dv
    for got, rows in ((out, v), (dv, dout)):
        rows = rows[0, 0].astype(np.float64)
        chain = one_chain(np.full(4096, 2.0**-12), rows)
        mean = rows.mean(axis=0)
        error = root_mean_square(got[0, 0, -1] - mean)
        assert error < 0.5 * root_mean_square(chain - mean)
