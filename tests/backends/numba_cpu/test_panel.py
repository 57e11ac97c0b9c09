"""The panel step against a plain float64 model, and bits that must not change."""

import ctypes
import math

import numpy as np
import pytest
from llvmlite import ir
from tests.backends.numba_cpu.kernels import (
    Kernel,
    attention,
    function,
    logit_error,
    of_text,
    out_bound,
)

import sdpakit as sk
from sdpakit.backends.numba_cpu import abi
from sdpakit.backends.numba_cpu.codegen import compile_kernel
from sdpakit.backends.numba_cpu.isa import available_isas
from sdpakit.backends.numba_cpu.module import emit_module, shared_modules
from sdpakit.backends.numba_cpu.staging import Staged
from sdpakit.conformance import bounds
from sdpakit.reference import detail

ISAS = available_isas()
TARGETS = [*((isa, "float32") for isa in ISAS), (ISAS[-1], "float64")]
LOG2E = math.log2(math.e)
EPS_EXP = {"float32": 2e-7, "float64": 5e-16}  # measured errors of exp2 with room for the scale
WIDTHS = [(1, 2), (5, 17), (64, 64), (80, 0), (5, 1)]


def causal(lanes):
    """Return q >= j, in the integers of the lanes."""
    j = lanes.e.resize_int(lanes.j, lanes.int_bits)
    return lanes.e.icmp("<=", lanes.e.splat(j), lanes.q)


def capped(lanes, x):
    """Return 5 tanh(x / 20), a cap of the raw product."""
    e = lanes.e
    return e.mul(e.tanh(e.mul(x, e.const(0.05))), e.const(5.0))


def from_table(lanes, x):
    """Return 0.25 x + the staged table 0."""
    return lanes.e.add(lanes.e.mul(x, lanes.e.const(0.25)), lanes.dense(0))


def draw(rows, n, d, dv, element, seed=0):
    rng = np.random.default_rng(seed)
    shapes = ((rows, d), (n, d), (n, dv))
    return [rng.standard_normal(shape).astype(element) for shape in shapes]


def model_of(q, k, v, scale, mask=None, logits=None):
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    x = scale * (q @ k.T) if logits is None else logits(q @ k.T)
    mask = np.ones(x.shape, bool) if mask is None else mask
    return attention(x, v, mask), x


def check_out(got, q, k, v, scale, element, mask=None, logits=None, slope=None):
    u = np.finfo(element).eps / 2
    model, x = model_of(q, k, v, scale, mask, logits)
    q, k, v = (np.nan_to_num(a.astype(np.float64), posinf=0, neginf=0) for a in (q, k, v))
    finite = np.where(np.isfinite(x), x, 0)
    e = logit_error(q, k, scale if slope is None else slope, finite, u)
    eps = EPS_EXP[element] * (1 if logits is None else 20)
    bound = out_bound(model, v, x, e, u, u, eps)
    assert (abs(got["out"] - model["out"]) <= bound).all()
    live = ~np.isneginf(model["lse"])
    with np.errstate(divide="ignore"):
        lse = (got["m"].astype(np.float64) * 4 + np.log2(got["l"])) / LOG2E
    assert np.array_equal(np.isneginf(lse), ~live)
    error = abs(lse[live] - model["lse"][live])
    far = e.max(1)[live] + eps + x.shape[1] * u + 4 * u * abs(model["lse"][live]) + 4 * u
    assert (error <= far).all()
    return model


@pytest.fixture(scope="module", params=TARGETS, ids=str)
def target(request):
    return request.param


@pytest.mark.parametrize("widths", WIDTHS, ids=str)
def test_plain_attention_over_ragged_tiles(target, widths):
    isa, element = target
    d, dv = widths
    kernel = Kernel(isa, element, d, dv)
    block, width = kernel.layout.block_kv, kernel.layout.width
    for rows, n in [(1, 1), (width, block), (width - 1, 2 * block + 7), (3, block + 1)]:
        q, k, v = draw(rows, n, d, dv, element)
        got = kernel.run(q, k, v, d**-0.5 * LOG2E)
        check_out(got, q, k, v, d**-0.5, element)
        raw = q.astype(np.float64) @ k.T.astype(np.float64)
        e = logit_error(q.astype(np.float64), k, 1.0, raw, np.finfo(element).eps / 2)
        assert (abs(got["tmax"] - raw.max(1)) <= e.max(1)).all()


@pytest.fixture(scope="module")
def masked(target):
    isa, element = target
    return Kernel(isa, element, 5, 17, mask=causal, statistics=True), element


@pytest.mark.parametrize("i0", [0, 3, 200])
def test_masked_keys_may_hold_anything(masked, i0):
    """MASK-3: the same bits, whatever lies behind the mask."""
    kernel, element = masked
    rows, n = kernel.layout.width - 1, kernel.layout.block_kv + 40
    q, k, v = draw(rows, n, 5, 17, element)
    mask = np.arange(n) <= i0 + np.arange(rows)[:, None]
    clean = kernel.run(q, k, v, LOG2E, partial="all", i0=i0)
    check_out(clean, q, k, v, 1.0, element, mask)
    hidden = ~mask.any(0)
    for poison in (math.nan, math.inf, -math.inf, 1e30):
        bad_k, bad_v = k.copy(), v.copy()
        bad_k[hidden], bad_v[hidden] = poison, poison
        got = kernel.run(q, bad_k, bad_v, LOG2E, partial="all", i0=i0)
        for name, value in clean.items():
            assert got[name].tobytes() == value.tobytes(), name


def test_poison_reaches_the_rows_that_see_it_and_no_other(masked):
    """NUM-4 and MASK-3 in one tile: row i sees key i, the rows before it do not."""
    kernel, element = masked
    q, k, v = draw(4, 4, 5, 17, element)
    clean = kernel.run(q, k, v, LOG2E, partial="all")
    for row in (0, 2, 3):
        for poison in ("k", "v"):
            bad_k, bad_v = k.copy(), v.copy()
            (bad_k if poison == "k" else bad_v)[row, 0] = math.nan
            got = kernel.run(q, bad_k, bad_v, LOG2E, partial="all")
            assert np.array_equal(got["out"][:row], clean["out"][:row])
            assert np.isnan(got["out"][row:, 0]).all()
            assert np.isnan(got["out"][row:]).all() == (poison == "k")
            assert np.isnan(got["l"][row:]).all() == (poison == "k")


def test_a_nan_in_a_query_stays_in_its_row(target):
    isa, element = target
    kernel = Kernel(isa, element, 5, 17)
    q, k, v = draw(kernel.layout.width, 30, 5, 17, element)
    clean = kernel.run(q, k, v, LOG2E)
    for row in (0, kernel.layout.width - 1):
        bad = q.copy()
        bad[row, 2] = math.nan
        got = kernel.run(bad, k, v, LOG2E)
        others = np.arange(len(q)) != row
        assert np.isnan(got["out"][row]).all()
        assert np.isnan(got["l"][row])
        assert np.array_equal(got["out"][others], clean["out"][others])


def test_infinite_logits(target):
    """A logit of +inf makes the row NaN (NUM-4), one of -inf is absent (MASK-6)."""
    isa, element = target
    kernel = Kernel(isa, element, 1, 2)
    q = np.ones((2, 1), element)
    v = np.arange(1.0, 7.0, dtype=element).reshape(3, 2)
    k = np.array([[1.0], [math.inf], [0.0]], element)
    got = kernel.run(q, k, v)
    assert np.isnan(got["out"]).all()
    k[1] = -math.inf
    got = kernel.run(q, k, v)
    want = (2 * v[0] + v[2]) / 3  # weights 1 and 1/2: the quotient and the product round
    assert (abs(got["out"] - want) <= 2 * np.finfo(element).eps * want).all()
    got = kernel.run(q, np.full((3, 1), -math.inf, element), v)
    assert (got["out"] == 0).all()
    assert np.isneginf(got["m"]).all()
    assert (got["l"] == 0).all()


def test_empty_rows(masked):
    """NUM-2: m is -inf until a key is seen, and EMPTY-1: no key gives 0."""
    kernel, element = masked
    block = kernel.layout.block_kv
    q, k, v = draw(4, block, 5, 17, element)
    state = kernel.run(q, k, v, LOG2E, partial="all", i0=-4)
    assert (state["out"] == 0).all()
    assert np.isneginf(state["m"]).all()
    assert np.isneginf(state["tmax"]).all()
    assert (state["l"] == 0).all()
    assert (state["e1"] == 0).all()


def test_rows_that_start_late_have_the_bits_that_they_have_alone(masked):
    """NUM-2: tiles without a key leave no trace, before a row has seen a key and after."""
    kernel, element = masked
    block = kernel.layout.block_kv
    q, k, v = draw(4, block, 5, 17, element)
    alone = kernel.run(q, k, v, LOG2E, partial="all", i0=block - 4)
    kernel.pack_q(q)
    kernel.begin()
    kernel.pack_k(k)
    kernel.pack_v(v)
    for j0 in (block, 0, block):  # rows block - 4 to block - 1 see no key of the tile at `block`
        kernel.step(block, j0, abi.FLAG_PARTIAL, i0=block - 4, nq=4)
    late = kernel.finish(4)
    del alone["alpha"], late["alpha"]  # of the last tile alone
    for name, value in alone.items():
        assert late[name].tobytes() == value.tobytes(), name


def test_a_full_tile_has_the_same_bits_on_the_partial_path(masked):
    kernel, element = masked
    n = 2 * kernel.layout.block_kv + 5
    q, k, v = draw(kernel.layout.width, n, 5, 17, element)
    for poison in (1.0, math.inf):
        v[3, 2] = poison
        full = kernel.run(q, k, v, LOG2E, partial=(), i0=10_000)
        partial = kernel.run(q, k, v, LOG2E, partial="all", i0=10_000)
        for name, value in full.items():
            assert partial[name].tobytes() == value.tobytes(), name


@pytest.mark.parametrize("logit", [None, capped])
def test_the_mask_is_not_asked_about_keys_that_every_row_sees(target, logit):
    """Same bits wherever these keys start and end; what the mask says of them is not looked at."""
    isa, element = target
    kernel = Kernel(isa, element, 5, 17, logit=logit, mask=causal)
    rows, n = kernel.layout.width - 1, kernel.layout.block_kv + 40
    q, k, v = draw(rows, n, 5, 17, element)
    for lo, hi in [(0, 0), (0, 7), (3, 40), (5, 6), (20, n - 1), (n + 5, 2 * n), (-9, -3)]:
        all_masked, some = (
            kernel.run(q, k, v, LOG2E, partial="all", i0=max(hi, 0), whole=whole)
            for whole in ((0, 0), (lo, hi))
        )
        for name, value in all_masked.items():
            assert some[name].tobytes() == value.tobytes(), (lo, hi, name)
    unmasked = kernel.run(q, k, v, LOG2E)
    trusting = kernel.run(q, k, v, LOG2E, partial="all", whole=(0, n))
    assert unmasked["out"].tobytes() == trusting["out"].tobytes()


def test_empty_tiles_may_be_skipped_and_tiles_cut_short(masked):
    kernel, element = masked
    block, rows = kernel.layout.block_kv, 3
    q, k, v = draw(rows, 3 * block, 5, 17, element)
    whole = kernel.run(q, k, v, LOG2E, partial="all", i0=block + 7)
    cut = kernel.run(
        q, k[: block + 7 + rows], v[: block + 7 + rows], LOG2E, partial="all", i0=block + 7
    )
    for name, value in whole.items():
        assert cut[name].tobytes() == value.tobytes(), name


def test_a_step_may_start_inside_a_tile(masked):
    """The first rows, masked or skipped, give the same bits."""
    kernel, element = masked
    layout = kernel.layout
    q, k, v = draw(3, layout.block_kv, 5, 17, element)
    first = 2 * layout.rows

    def after(flags, k):
        kernel.pack_q(q)
        kernel.begin()
        kernel.pack_k(k)
        _, poisoned = kernel.pack_v(v)
        kernel.ctx[0] = np.float64(LOG2E).view(np.int64)
        flags |= abi.FLAG_NONFINITE_V * poisoned
        kernel.step(len(k), 0, flags, i0=10_000, nq=3)
        return kernel.finish(3)

    absent = k.copy()
    absent[:first], q[:] = -math.inf, abs(q)
    v[:first] = math.nan
    hidden = after(abi.FLAG_PARTIAL, absent)
    skipped = after(first << abi.FLAG_FIRST_SHIFT, k)
    for name, value in hidden.items():
        assert skipped[name].tobytes() == value.tobytes(), name


def test_a_row_has_the_same_bits_in_any_lane_beside_any_neighbours(target):
    """DET-1 and DET-2: alone, in another lane, beside huge and NaN rows."""
    isa, element = target
    kernel = Kernel(isa, element, 5, 17)
    width = kernel.layout.width
    q, k, v = draw(width, 2 * kernel.layout.block_kv + 3, 5, 17, element)
    whole = kernel.run(q, k, v, LOG2E)
    for row in (0, width // 2, width - 1):
        alone = kernel.run(q[row : row + 1], k, v, LOG2E)
        crowd = q[::-1].copy()
        crowd[width - 1 - row - 1] *= 1e30
        crowd[width - 1 - row - 2] = math.nan
        other = kernel.run(crowd, k, v, LOG2E)
        for name, value in whole.items():
            assert alone[name][0].tobytes() == value[row].tobytes(), name
            assert other[name][width - 1 - row].tobytes() == value[row].tobytes(), name


@pytest.mark.parametrize("size", [1e2, 1e6, 1e15, 1e30])
def test_huge_logits_stay_finite_and_equal_ones_give_the_mean(target, size):
    isa, element = target
    kernel = Kernel(isa, element, 1, 2)
    n = kernel.layout.block_kv + 30
    rng = np.random.default_rng(0)
    v = rng.standard_normal((n, 2)).astype(element)
    q = np.array([[1.0], [-0.3]], element)
    equal = kernel.run(q, np.full((n, 1), 1.1, element), v, size * LOG2E)
    u = np.finfo(element).eps
    assert (abs(equal["out"] - v.mean(0, dtype=np.float64)) <= n * u * abs(v).mean(0)).all()
    k = np.linspace(-1, 1, n).astype(element)[:, None]
    top = kernel.run(q, k, v, size * 1e6 * LOG2E)
    want = np.stack([v[-1], v[0]])
    assert (abs(top["out"] - want) <= 2 * u * abs(want)).all()


def test_the_largest_logits_are_numbers(target):
    """MASK-5: finite in natural units, too large in log2 units."""
    isa, element = target
    kernel = Kernel(isa, element, 1, 2)
    n, largest = kernel.layout.block_kv + 30, float(np.finfo(element).max)
    v = np.random.default_rng(0).standard_normal((n, 2)).astype(element)
    q = np.array([[1.0], [-1.0]], element)
    equal = kernel.run(q, np.full((n, 1), 0.9 * largest, element), v, LOG2E)
    u = np.finfo(element).eps
    assert (abs(equal["out"] - v.mean(0, dtype=np.float64)) <= n * u * abs(v).mean(0)).all()
    k = np.full((n, 1), 0.8 * largest, element)
    k[7] = 0.9 * largest
    k[n - 3] = 0.7 * largest
    assert np.array_equal(kernel.run(q, k, v, LOG2E)["out"], v[[7, n - 3]])


@pytest.mark.parametrize("factor", [1.0, -1.0, 0.0])
def test_the_factor_of_q_carries_sign_and_zero_of_the_scale(target, factor):
    isa, element = target
    kernel = Kernel(isa, element, 5, 17)
    q, k, v = draw(4, 100, 5, 17, element)
    c = LOG2E if factor else 1.0
    check_out(kernel.run(q, k, v, c, factor=factor), q, k, v, factor, element)


def test_statistics_of_a_row(masked):
    """STAT-1 from e1 and p2, over several tiles with rising maxima."""
    kernel, element = masked
    n, rows = 2 * kernel.layout.block_kv + 11, 4
    q, k, v = draw(rows, n, 5, 17, element)
    k *= np.linspace(0.1, 3, n)[:, None].astype(element)
    got = kernel.run(q, k, v, LOG2E, partial="all", i0=n - rows)
    mask = sk.Causal("offset")
    spec = sk.AttentionSpec(
        q_heads=1, head_dim=5, v_head_dim=17, scale=1.0, dtype=element, mask=mask
    )
    right = detail(spec, *(x[None, None] for x in (q, k, v)), q_offset=n - rows)
    bound = bounds(right, "hard")
    l = got["l"].astype(np.float64)
    entropy = (np.log2(l) - got["e1"] / l) / LOG2E
    assert (abs(entropy - right.entropy) <= bound["entropy"]).all()
    assert (abs(got["p2"] / l**2 - right.sum_p2) <= bound["sum_p2"]).all()


def test_general_logits_with_a_mask(target):
    isa, element = target
    bits = 32 if isa == ISAS[0] else 64
    kernel = Kernel(isa, element, 5, 17, logit=capped, mask=causal, int_bits=bits)
    rows, n = kernel.layout.width, kernel.layout.block_kv + 9
    q, k, v = draw(rows, n, 5, 17, element)
    cap = lambda s: 5 * np.tanh(s * 0.05)
    for i0, partial in [(n, ()), (n - rows, "all"), (2, "all")]:
        got = kernel.run(q, k, v, partial=partial, i0=i0)
        mask = np.arange(n) <= i0 + np.arange(rows)[:, None]
        check_out(got, q, k, v, 1.0, element, mask, logits=cap, slope=0.25)


class Tables:
    """A bias and a boolean mask [q, k]; address and strides are in the context from slot 8 on."""

    def __init__(self, bias, mask):
        self.arrays = (bias, mask)
        self.staged = [self.table(bias.dtype.name, 8, False), self.table("bool", 11, True)]

    @staticmethod
    def table(dtype, slot, for_mask):
        def locate(e, ctx, b, h):
            return tuple(e.load_ctx_int(ctx, slot + i) for i in range(3))

        return Staged(dtype, locate, for_mask)

    def fill(self, ctx):
        for slot, array in zip((8, 11), self.arrays, strict=True):
            ctx[slot : slot + 3] = (array.ctypes.data, *array.strides)


def test_staged_tables(target):
    """A bias and a mask, contiguous, strided and broadcast; -inf in the bias is absent (MASK-6)."""
    isa, element = target
    dtype = "float16" if isa == "avx2" else element
    rng = np.random.default_rng(0)
    tables = Tables(np.zeros((1, 1), dtype), np.zeros((1, 1), bool))
    masking = lambda lanes: lanes.dense(1)
    kernel = Kernel(isa, element, 5, 17, logit=from_table, mask=masking, staged=tables.staged)
    rows, n = kernel.layout.width - 1, kernel.layout.block_kv + 3
    q, k, v = draw(rows, n, 5, 17, element)
    bias = rng.standard_normal((rows + 4, n)).astype(dtype)
    bias[5, 7:20] = -math.inf
    keep = rng.random((rows + 4, n)) < 0.5
    keep[6] = False
    shapes = [(bias, keep), (np.asfortranarray(bias), keep[:, ::-1])]
    shapes.append((np.broadcast_to(bias[:1], bias.shape), np.broadcast_to(keep[:, :1], keep.shape)))
    for b, m in shapes:
        Tables(b, m).fill(kernel.ctx)
        got = kernel.run(q, k, v, partial="all", i0=4)
        table, mask = b[4:].astype(np.float64), m[4:]
        total = lambda s, table=table: 0.25 * s + table
        check_out(got, q, k, v, 1.0, element, mask, logits=total, slope=0.25)


def test_finite_biases_of_any_size_are_numbers(target):
    """MASK-5: rows of the smallest float are softmax of equal logits, the mean of V."""
    isa, element = target
    info = np.finfo(element)
    tables = Tables(np.zeros((1, 1), element), np.zeros((1, 1), bool))
    masking = lambda lanes: lanes.dense(1)
    kernel = Kernel(isa, element, 5, 17, logit=from_table, mask=masking, staged=tables.staged)
    n = 50
    q, k, v = draw(4, n, 5, 17, element)
    bias = np.zeros((4, n), element)
    bias[0], bias[1], bias[2, :2] = info.min, -1e9, info.max
    bias[2, 2:], bias[3, 1:] = info.min, info.min
    k[:] = 0
    keep = np.ones((4, n), bool)
    Tables(bias, keep).fill(kernel.ctx)
    got = kernel.run(q, k, v)
    mean = v.mean(0, dtype=np.float64)
    want = np.stack([mean, mean, v[:2].mean(0, dtype=np.float64), v[0]])
    assert (abs(got["out"] - want) <= n * info.eps * abs(v).max(0)).all()


def test_general_absence_hides_poison_in_full_tiles_too(target):
    """A key whose logit is -inf by an expression is absent: its V does not reach the row."""
    isa, element = target

    def cut(lanes, x):
        e = lanes.e
        j = e.resize_int(lanes.j, 32)
        seen = e.icmp("<", e.splat(j), e.iconst(10, 32))
        return e.select(seen, x, e.const(-math.inf))

    kernel = Kernel(isa, element, 5, 17, logit=cut)
    q, k, v = draw(3, 30, 5, 17, element)
    want = kernel.run(q, k, v)
    v[10:] = math.nan
    got = kernel.run(q, k, v)
    assert np.array_equal(got["out"], want["out"])


def test_the_text_is_deterministic_and_names_its_phases(target):
    isa, element = target
    layout = Kernel(isa, element, 5, 17, mask=causal, statistics=True).layout
    texts = {emit_module(layout, mask=causal, comment="spec: x") for _ in range(2)}
    assert len(texts) == 1
    text = of_text(texts.pop(), *shared_modules(layout)).text()
    for phase in ("phase.qk", "phase.logits.partial", "phase.exp.full", "phase.pv", "; spec: x"):
        assert phase in text
    for rule in ("MASK-3", "NUM-2", "NUM-4"):
        assert rule in text
    assert "fast" not in text
    assert "nnan" not in text


def test_extra_functions_share_the_module():
    layout = Kernel(ISAS[-1], "float32", 1, 2).layout

    def extend(module):
        i64 = ir.IntType(64)
        made = ir.Function(module, ir.FunctionType(i64, [i64]), "twice")
        b = ir.IRBuilder(made.append_basic_block("entry"))
        b.ret(b.add(made.args[0], made.args[0]))

    text = emit_module(layout, extend=extend)
    code = compile_kernel(of_text(text, *shared_modules(layout)), layout.isa)
    assert function(code, "twice", 1, ctypes.c_int64)(21) == 42
