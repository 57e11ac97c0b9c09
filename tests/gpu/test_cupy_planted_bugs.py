"""Bugs planted in the kernels of the cupy backend, and what catches each: a fault, or a result.

A bug is a replacement in the source of a kernel; its text must be there exactly once, so that no
bug is lost when a kernel changes. The results of a call are judged by the bounds of the
conformance kit, which the kernel without the bug keeps.
"""

import functools
from dataclasses import dataclass

import numpy as np
import pytest

import sdpakit as sk
from sdpakit import compiler, ptxemu
from sdpakit.backends.cupy import compiled, emulated_backward
from sdpakit.backends.gpu.compiling import CompiledModule
from sdpakit.backends.gpu.libraries import compile_with_nvrtc
from sdpakit.backends.gpu.resources import Report
from sdpakit.conformance import Case, Shape, builtin_targets
from sdpakit.conformance.gradients import judge as of_gradients
from sdpakit.conformance.judge import compared

pytestmark = pytest.mark.usefixtures("tools")

TARGETS = builtin_targets()
BOTTOM = sk.Causal("bottom_right")

# ------------------------------------------------ calls, as small as they can be


def nan_in_hidden_values(draw):
    """A value that only the last row may see is a NaN, another far from it an infinity."""
    v = np.asarray(draw.v(), np.float32)
    v[:, :, -1], v[:, :, -2, 0] = np.nan, np.inf
    return {"v": draw.array(v)}


def with_sinks(draw):
    return {"sinks": draw.normal(draw.shape.q_heads, dtype="float32")}


def with_bias(*axes):
    """A bias that has these axes of (b, h, q, k) and broadcasts over the others."""

    def recipe(draw):
        dims = (n if name in axes else 1 for name, n in zip("bhqk", draw.shape.pairs, strict=True))
        return {"bias": draw.normal(*dims, dtype="float32")}

    return recipe


def rising_keys(draw):
    """Logits that grow with the key, so that every tile moves the maximum."""
    k = np.asarray(draw.k(), np.float32)
    k[..., 0] += np.arange(k.shape[2]) / 16
    q = np.asarray(draw.q(), np.float32)
    q[..., 0] = 4
    return {"q": draw.array(q), "k": draw.array(k)}


def case(name, sizes, dtype="float32", recipe=None, gradients=False, **spec):
    q_heads, kv_heads, q_len, kv_len, head_dim, v_head_dim = sizes
    shape = Shape(1, q_heads, kv_heads, q_len, kv_len, head_dim, v_head_dim)
    spec = {"dtype": dtype, **spec}
    return Case(
        id=f"planted.{name}.{dtype}",
        rules=(),
        catches="",
        shape=shape,
        spec=spec,
        recipe=recipe,
        gradients=gradients,
    )


CASES = {
    # Three tiles of 64 keys, the last one partial; widths that are padded.
    "mma": case("mma", (1, 1, 20, 150, 24, 24), "float16", rising_keys, outputs=("out", "lse")),
    "mma causal": case("mma_causal", (1, 1, 20, 70, 16, 16), "bfloat16", mask=BOTTOM),
    "mma nan": case("mma_nan", (1, 1, 20, 70, 16, 16), "float16", nan_in_hidden_values,
                    mask=BOTTOM),
    "mma packed": case("mma_packed", (4, 2, 20, 70, 16, 16), "float16", mask=BOTTOM),
    # Tiles of 32 rows and 32 keys, two chunks of the width and two of the channels.
    "simt": case("simt", (2, 1, 20, 40, 40, 72), mask=BOTTOM, outputs=("out", "lse")),
    "simt gqa": case("simt_gqa", (4, 2, 17, 9, 8, 8)),
    "simt nan": case("simt_nan", (1, 1, 5, 9, 8, 8), "float32", nan_in_hidden_values, mask=BOTTOM),
    "simt window": case("simt_window", (1, 1, 20, 70, 8, 8),
                        mask=sk.Window(3, 0, align="bottom_right")),
    "simt sinks": case("simt_sinks", (2, 2, 5, 9, 8, 8), "float32", with_sinks, sinks=True),
    "simt split": case("simt_split", (1, 1, 2, 226, 8, 8), "float32", rising_keys,
                       outputs=("out", "lse", "entropy")),
    "gradients": case("gradients", (4, 2, 5, 9, 8, 8), "float32", with_sinks, True,
                      mask=BOTTOM, sinks=True),
    # Two tiles of 32 rows of each of two heads, two blocks of 64 keys.
    "mma gradients": case("mma_gradients", (2, 1, 40, 70, 16, 16), "float16", None, True,
                          mask=BOTTOM),
    "bias of keys": case("bias_of_keys", (1, 1, 5, 37, 8, 8), "float32", with_bias("h", "k"), True,
                         bias="float32"),
}  # fmt: skip

# ------------------------------------------------ the bugs


@dataclass(frozen=True)
class Bug:
    """`old` becomes `new`; `caught` is a fault of the emulator or the output that is wrong."""

    case: str
    old: str
    new: str
    caught: type[ptxemu.KernelFault] | str


KEYS_HERE = "wait_for_copies<1>();  // all but the values of this tile"
VALUES_HERE = "wait_for_copies<1>();  // all but the next keys"
THERE = "const bool there = first + row < end && unit * 8 < WIDTH;\n"
FROM = "address_of(least_of(first + row, end - 1)) + (there ? unit * 16 : 0)"

BUGS = {
    # ---- mma: copies, stages and barriers
    "keys: wait for one group too few": Bug(
        "mma", KEYS_HERE, "wait_for_copies<2>();", ptxemu.MissingWait),
    "keys: no barrier after the wait": Bug(
        "mma", "__syncthreads();       // for everybody", "// for everybody", ptxemu.Race),
    "values: next tile into the stage that is read": Bug(
        "mma", "fetch_values(c, at, k_next, shared, stage ^ 1)",
        "fetch_values(c, at, k_next, shared, stage)", ptxemu.MissingWait),
    "keys: fetched before all have read the stage": Bug(
        "mma", KEYS_HERE + "\n    __syncthreads();",
        "if (kind_next != Tiles::EMPTY) fetch_keys(c, at, k_next, shared, stage ^ 1);\n"
        + KEYS_HERE + "\n    __syncthreads();", ptxemu.MissingWait),
    "values: the other stage is summed": Bug(
        "mma", "weighted_sum(shared.v[stage], lane", "weighted_sum(shared.v[stage ^ 1], lane",
        ptxemu.MissingWait),
    "first keys and values in one group": Bug(
        "mma", "fetch_keys(c, at, k0, shared, 0);\n  commit_copies();",
        "fetch_keys(c, at, k0, shared, 0);", ptxemu.MissingWait),
    # ---- mma: addresses in shared memory
    "pitch that breaks units of 16 bytes": Bug(
        "mma", "constexpr int PITCH = D_PAD + 8;", "constexpr int PITCH = D_PAD + 4;",
        ptxemu.Misaligned),
    "pitch that the launcher does not know": Bug(
        "mma", "PITCH_V = DV_PAD + 8;", "PITCH_V = DV_PAD + 24;", ptxemu.OutOfBounds),
    "rows behind the end are copied": Bug(
        "mma", f"{THERE}      const u64 from = {FROM};",
        f"const bool there = unit * 8 < WIDTH;\n const u64 from = {FROM};"
        .replace("least_of(first + row, end - 1)", "first + row"), ptxemu.OutOfBounds),
    "channels behind the width are not zeros": Bug(
        "mma", "there ? 16 : 0", "16", "out"),
    # ---- mma: fragments
    "keys: halves of two fragments swapped": Bug(
        "mma", "multiply_add(s[n], a, b[0], b[1])", "multiply_add(s[n], a, b[0], b[2])", "out"),
    "weights: rows and columns of a fragment swapped": Bug(
        "mma", "pack_pair(x[i % 2][4 * step + i / 2 * 2], x[i % 2][4 * step + i / 2 * 2 + 1])",
        "pack_pair(x[i / 2][4 * step + i % 2 * 2], x[i / 2][4 * step + i % 2 * 2 + 1])", "out"),
    "mask: lane / 4 and lane % 4 confused in columns": Bug(
        "mma causal", "k0 + n / 2 * 8 + lane % 4 * 2", "k0 + n / 2 * 8 + lane / 4 * 2", "out"),
    "mask: lane / 4 and lane % 4 confused in rows": Bug(
        "mma causal", "half * 8 + lane / 4);\n      logits",
        "half * 8 + lane % 4);\n      logits", "out"),
    "store: lane / 4 and lane % 4 confused": Bug(
        "mma causal", "half * 8 + lane / 4);\n    if (row.there)",
        "half * 8 + lane % 4);\n    if (row.there)", ptxemu.Race),
    "sums not rescaled": Bug("mma", "o[n][i] *= before[i / 2];", ";", "out"),
    # ---- mma: values that are not finite (MASK-3)
    "nan: absent pairs are not picked out": Bug(
        "mma nan", "if (present) sum = fma_of", "sum = fma_of", "out"),
    # ---- tiles and masks
    "tail: a key after the last": Bug(
        "mma", "least_of(k0 + BLOCK_K, at.keys) - 1;", "least_of(k0 + BLOCK_K, at.keys);", "lse"),
    "mask: full if its first key is": Bug(
        "mma causal", "k0 + block_k <= keys.must_hi", "k0 <= keys.must_hi", "out"),
    "the last tile of rows twice, the first never": Bug(
        "mma", "c.q_tiles - 1 - item", "c.q_tiles - item", ptxemu.UnwrittenOutput),
    "packed: q of the first head for all": Bug(
        "mma packed", "at.q + (row.h - at.h) * c.q_head + row.q * c.q_row",
        "at.q + row.q * c.q_row", "out"),
    "gqa: heads taken in turns": Bug(
        "simt gqa", "h / (c.q_heads / c.kv_heads);", "h % c.kv_heads;", "out"),
    # ---- softmax
    "softmax: sums of half of the lanes": Bug(
        "simt gqa", "step = LANES / 2; step > 0;", "step = LANES / 2; step > 1;", "out"),
    "softmax: a row without keys so far": Bug(
        "simt window", "const accum_t shift = m == -INFINITE ? accum_t(0) : m;  // NUM-2\n"
        "  const accum_t before", "const accum_t shift = m;\n  const accum_t before", "out"),
    "softmax: absent pairs are +0": Bug(
        "simt nan", "present[n] ? e : accum_t(-0.0);", "present[n] ? e : accum_t(0.0);", "out"),
    "softmax: sink forgotten": Bug(
        "simt sinks", "fma_of(row.l, mean.scale, weight(sink, common))", "row.l * mean.scale",
        "out"),
    # ---- SIMT products
    "chunks: overwritten while others multiply": Bug(
        "simt", "__syncthreads();  // what was there has been read", "", ptxemu.Race),
    "chunks: multiplied before they are there": Bug(
        "simt", "    __syncthreads();\n#pragma unroll 4\n    for (int d = 0",
        "#pragma unroll 4\n    for (int d = 0", ptxemu.Race),
    "columns: summed before they are there": Bug(
        "simt", "__syncthreads_or(odd)", "odd", ptxemu.Race),
    "keys: a key after the last": Bug(
        "simt", "if (key >= at.keys || d >= D) return 0;",
        "if (key > at.keys || d >= D) return 0;", ptxemu.OutOfBounds),
    # ---- split keys and their merge
    "split: all parts stored as the first": Bug(
        "simt split", "part_sums(const Call& c, const Place& at, i64 q) {\n"
        "  return c.part_sums + part_index(c, at, q, (i64)blockIdx.x % c.splits)",
        "part_sums(const Call& c, const Place& at, i64 q) {\n"
        "  return c.part_sums + part_index(c, at, q, 0)", ptxemu.Race),
    "merge: first part left out": Bug(
        "simt split", "part = 0; part < c.splits; ++part) {\n        const u64 from",
        "part = 1; part < c.splits; ++part) {\n        const u64 from", "out"),
    "merge: entropy about the maximum of a part": Bug(
        "simt split", "number(part, 2) + number(part, 1) * (number(part, 0) - shift)",
        "number(part, 2)", "entropy"),
    "merge: rows of one warp": Bug(
        "simt split", "(i64)blockIdx.x * 4 + threadIdx.x / 32",
        "(i64)blockIdx.x * 4 + threadIdx.x / 128", ptxemu.UnwrittenOutput),
    # ---- gradients
    "dlogits: delta forgotten": Bug(
        "gradients", "(1 / ONE) * (dp - row.delta)", "(1 / ONE) * dp", "dq"),
    "weights: sink forgotten": Bug(
        "gradients", "whole = fma_of(l, exp_of(shift - common), share);",
        "whole = l * exp_of(shift - common);", "dv"),
    "dsinks: halves added before they are there": Bug(
        "gradients", "    __syncthreads();\n    if (threadIdx.x < half)",
        "    if (threadIdx.x < half)", ptxemu.Race),
    "dk: one head of the group": Bug(
        "gradients", "h < (kv_head + 1) * group;", "h < kv_head * group + 1;", "dk"),
    "dk: weights in place of dlogits": Bug(
        "gradients", "shared.tile[row_of(r)][col_of(n)] = dot[r][n];", ";", "dk"),
    "dk: a key after the last": Bug(
        "gradients", "if (key >= c.kv_rows) continue;", "if (key > c.kv_rows) continue;",
        ptxemu.OutOfBounds),
    "mma dk: next tile into the stage that is read": Bug(
        "mma gradients", "next.q0, BLOCK_N, shared.stage[now ^ 1]",
        "next.q0, BLOCK_N, shared.stage[now]", ptxemu.MissingWait),
    "mma dk: rows of the next head begin where those of the last ended": Bug(
        "mma gradients", "++h, q0 = 0)", "++h)", "dk"),
    "mma dv: weights stay multiplied": Bug(
        "mma gradients", "half, 1 / ONE, dv", "half, 1, dv", "dv"),
    "mma dk: every tile full": Bug(
        "mma gradients", "return {h, q0, !found.can_be_false};", "return {h, q0, true};", "dk"),
    "mma: sums not multiplied as powers change": Bug(
        "mma gradients", "sums[n][2 * half + i] *= change;", ";", "dk"),
    "mma: dv in place of d": Bug(
        "mma gradients", "load_left(rows.dv, warp", "load_left(rows.d, warp", "dq"),
    "dbias: keys after the end stand for the last": Bug(
        "bias of keys", "&& pair.q == q && pair.k == key;", "&& pair.q == q;", "dbias"),
}  # fmt: skip

# ------------------------------------------------ running them

parse = functools.lru_cache(maxsize=4)(ptxemu.parse)


def ptx_of(arch, source):
    """Return a module without machine code, which takes twice as long and nobody runs."""
    options = (f"-arch={arch.name.replace('sm', 'compute')}", "-std=c++17", *compiled._OPTIONS)
    output = compile_with_nvrtc(source, "kernel.cu", options)
    assert output.ok, output.log
    return CompiledModule(arch, output.ptx, b"", output.log, Report({}, {}, ()))


def judged(name):
    """Call the kernel of a case, and return what is wrong with each output."""
    asked = CASES[name]
    target = TARGETS["cupy" if name.startswith("mma") else "cupy-simt"]
    spec, operands = asked.attention_spec(), asked.operands()
    if asked.gradients:
        found = target.prepare_gradients(spec)(**operands)
        parts = of_gradients.compared(target, asked, found, operands)
        return {part.message.partition("[")[0] for part in parts if part.message}
    found = target.prepare(spec)(**operands)
    outputs = {n: getattr(found, n) for n in spec.outputs} if len(spec.outputs) > 1 else {}
    parts = compared(target, asked, outputs or {"out": found}, spec)
    return {n for n, part in zip(spec.outputs, parts, strict=True) if part.message}


@functools.cache
def unplanted(name):
    """Return what is wrong without a bug, of cases that were asked for."""
    return judged(name)


@pytest.fixture(autouse=True)
def parsed_once(monkeypatch):
    """Parse a text once: gradients run the forward kernel, which has no bug, before each."""
    monkeypatch.setattr(ptxemu, "parse", parse)


@pytest.fixture
def plant(monkeypatch):
    """Replace a text in the kernels of a case, forward or gradients, before they are compiled."""

    def planted(bug):
        sources = []

        def compile_for(arch, source):
            assert source.count(bug.old) == 1, bug.old
            sources.append(source)
            return ptx_of(arch, source.replace(bug.old, bug.new))

        where = emulated_backward if CASES[bug.case].gradients else compiled
        monkeypatch.setattr(where, "compile_for", compile_for)
        compiler.clear()
        return sources

    yield planted
    compiler.clear()  # nobody else may find the planted code


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_kernels_without_bugs_pass(name):
    assert unplanted(name) == set()


# Each of the others takes seconds to compile and run; ci/gpu plants them all.
FEW = list(BUGS)[::4]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in FEW else pytest.mark.long) for name in BUGS]
)
def test_planted_bug_is_caught(name, plant):
    bug = BUGS[name]
    assert unplanted(bug.case) == set()
    sources = plant(bug)
    if isinstance(bug.caught, str):
        assert bug.caught in judged(bug.case)
    else:
        with pytest.raises(bug.caught) as caught:
            judged(bug.case)
        assert type(caught.value) is bug.caught
    assert len(sources) == 1


def test_every_call_has_a_bug():
    assert {bug.case for bug in BUGS.values()} == set(CASES)
