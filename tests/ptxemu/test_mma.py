"""``mma``, ``ldmatrix``, ``stmatrix`` and ``movmatrix`` against NumPy."""

import itertools

import numpy as np
import pytest

from sdpakit import ptxemu
from sdpakit.ptxemu import fragments
from sdpakit.ptxemu.elements import ELEMENTS

HEADER = ".version 8.4\n.target sm_90a\n.address_size 64\n"
# (bits of an element, largest number of bits of its significand)
SIZES = {"f16": 2, "bf16": 2, "tf32": 4, "s8": 1, "u8": 1, "e4m3": 1, "e5m2": 1, "f64": 8}
SIZES |= {"f32": 4, "s32": 4}


def kernel(instruction, kinds, counts):
    """A kernel that loads the registers of A, B and C of its thread, and stores those of D.

    Memory has, for each register, one word of each thread of the launch: register by register.
    """
    names = ("d", "a", "b", "c")
    wide = {name: SIZES[kind] == 8 for name, kind in zip(names, kinds, strict=True)}
    lines = [
        HEADER,
        ".visible .entry k(.param .u64 pa, .param .u64 pb, .param .u64 pc, .param .u64 pd)\n{",
        ".reg .b32 %x<8>; .reg .b64 %p<8>;",
        *(f".reg .{'f64' if wide[name] else 'b32'} %{name}<{counts[name]}>;" for name in names),
        "mov.u32 %x0, %tid.x; mov.u32 %x1, %ctaid.x; mov.u32 %x2, %ntid.x;",
        "mad.lo.u32 %x3, %x1, %x2, %x0; mov.u32 %x4, %nctaid.x; mul.lo.u32 %x5, %x4, %x2;",
    ]
    for name, parameter in (("a", "pa"), ("b", "pb"), ("c", "pc")):
        size = 8 if wide[name] else 4
        lines += [f"ld.param.u64 %p0, [{parameter}]; mad.wide.u32 %p0, %x3, {size}, %p0;"]
        for index in range(counts[name]):
            lines += [
                f"ld.global.b{8 * size} %{name}{index}, [%p0];mad.wide.u32 %p0, %x5, {size}, %p0;"
            ]
    vectors = [", ".join(f"%{name}{i}" for i in range(counts[name])) for name in names]
    lines += [f"{instruction} " + ", ".join(f"{{{vector}}}" for vector in vectors) + ";"]
    size = 8 if wide["d"] else 4
    lines += [f"ld.param.u64 %p0, [pd]; mad.wide.u32 %p0, %x3, {size}, %p0;"]
    for index in range(counts["d"]):
        lines += [f"st.global.b{8 * size} [%p0], %d{index}; mad.wide.u32 %p0, %x5, {size}, %p0;"]
    return "\n".join([*lines, "ret;\n}"])


def to_registers(fragment, matrices):
    """Return words of shape (registers, all threads) that hold raw matrices, by the table alone."""
    values = matrices[:, fragment.rows, fragment.columns]  # matrix, thread, value
    count, threads, _ = values.shape
    grouped = values.reshape(count * threads, fragment.registers, fragment.per_register)
    word = np.uint64 if values.dtype.itemsize == 8 else np.uint32
    return np.ascontiguousarray(np.ascontiguousarray(grouped).view(word)[:, :, 0].T)


def from_registers(fragment, words, raw):
    """The reverse."""
    values = np.ascontiguousarray(words.T).view(raw).reshape(-1, *fragment.rows.shape)
    matrices = np.empty((len(values), *fragment.shape), raw)
    matrices[:, fragment.rows, fragment.columns] = values
    return matrices


def random_raw(kind, shape, rng):
    """Raw elements of a type: numbers of moderate size."""
    if kind in {"s8", "u8"}:
        return rng.integers(0, 256, shape, dtype=np.uint8)
    if kind in {"e4m3", "e5m2"}:  # no NaN, no infinity
        sign = rng.integers(0, 2, shape, dtype=np.uint8) << 7
        return sign | rng.integers(0, 0x40, shape, dtype=np.uint8)
    if kind == "s32":
        return rng.integers(-1000, 1000, shape, dtype=np.int32).view(np.uint32)
    values = rng.standard_normal(shape)
    if kind == "f64":
        return values.view(np.uint64)
    if kind == "f16":
        return values.astype(np.float16).view(np.uint16)
    bits = values.astype(np.float32).view(np.uint32)
    return (bits >> 16).astype(np.uint16) if kind == "bf16" else bits


def layouts(rows, depth, kinds):
    d, a, b, c = kinds
    return {
        "d": fragments.accumulator(rows, depth, d),
        "a": fragments.left(rows, depth, a),
        "b": fragments.right(rows, depth, b),
        "c": fragments.accumulator(rows, depth, c),
    }


def run(instruction, rows, depth, kinds, operands, *, block=64, grid=2, **options):
    """Multiply matrices, one a warp; returns D as raw elements, and the report."""
    found = layouts(rows, depth, kinds)
    counts = {name: layout.registers for name, layout in found.items()}
    words = [to_registers(found[n], m) for n, m in zip("abc", operands, strict=True)]
    wide = SIZES[kinds[0]] == 8
    out = np.zeros((counts["d"], block * grid), np.uint64 if wide else np.uint32)
    text = kernel(instruction, kinds, counts)
    report = ptxemu.launch(text, grid, block, [*words, ptxemu.Output(out)], **options)
    return from_registers(found["d"], out, ELEMENTS[kinds[0]].raw), report


FLOATS = [
    *(("m16n8k16", pair) for pair in (("f32", "f16"), ("f32", "bf16"), ("f16", "f16"))),
    *(("m16n8k8", pair) for pair in (("f32", "f16"), ("f32", "bf16"), ("f16", "f16"))),
    ("m16n8k8", ("f32", "tf32")),
    ("m16n8k4", ("f32", "tf32")),
    ("m16n8k32", ("f32", "e4m3")),
    ("m16n8k32", ("f32", "e5m2")),
    ("m16n8k32", ("f16", "e4m3")),
    ("m8n8k4", ("f64", "f64")),
    ("m16n8k4", ("f64", "f64")),
    ("m16n8k8", ("f64", "f64")),
    ("m16n8k16", ("f64", "f64")),
]


def shape_of(name):
    rows, depth = name.replace("m", "").split("n8k")
    return int(rows), int(depth)


@pytest.mark.parametrize(("shape", "pair"), FLOATS)
def test_products_of_floats(shape, pair):
    rows, depth = shape_of(shape)
    total, kind = pair
    kinds = (total, kind, kind, total)
    rng = np.random.default_rng(rows + depth)
    sizes = ((rows, depth), (8, depth), (rows, 8))
    a, b, c = (random_raw(of, (4, *size), rng) for of, size in zip(kinds[1:], sizes, strict=True))
    name = f"mma.sync.aligned.{shape}.row.col.{total}.{kind}.{kind}.{total}"
    found, report = run(name, rows, depth, kinds, (a, b, c))
    x, y, z = (
        ELEMENTS[of].decode(raw).astype(np.float64)
        for of, raw in zip(kinds[1:], (a, b, c), strict=True)
    )
    exact = x @ y.swapaxes(1, 2) + z
    size = np.abs(x) @ np.abs(y).swapaxes(1, 2) + np.abs(z)
    unit = {"f16": 2.0**-11, "f32": 2.0**-24, "f64": 2.0**-53}[total]
    values = ELEMENTS[total].decode(found).astype(np.float64)
    # Every sum of depth + 1 terms rounds at most depth times, and the result once more.
    rounding = unit * np.abs(exact) + (depth + 1) * max(unit, 2.0**-53) * size
    if total == "f16":
        rounding = unit * np.abs(exact) * 1.001 + (depth + 1) * 2.0**-24 * size + 2.0**-25
    assert (np.abs(values - exact) <= rounding).all()
    assert report.counters.matrix_flops == 4 * 2 * rows * 8 * depth


INTEGERS = [
    (shape, *pair)
    for shape in ("m8n8k16", "m16n8k16", "m16n8k32")
    for pair in itertools.product(("s8", "u8"), repeat=2)
]


@pytest.mark.parametrize(("shape", "left", "right"), INTEGERS)
@pytest.mark.parametrize("saturates", [False, True])
def test_products_of_integers_are_exact(shape, left, right, saturates):
    rows, depth = shape_of(shape)
    kinds = ("s32", left, right, "s32")
    rng = np.random.default_rng(depth)
    a, b = random_raw(left, (4, rows, depth), rng), random_raw(right, (4, 8, depth), rng)
    c = random_raw("s32", (4, rows, 8), rng)
    c[0], c[1] = 2**31 - 1, 2**31  # the largest number and the smallest
    satfinite = ".satfinite" if saturates else ""
    name = f"mma.sync.aligned.{shape}.row.col{satfinite}.s32.{left}.{right}.s32"
    found, _ = run(name, rows, depth, kinds, (a, b, c))
    x, y, z = (
        raw.view(kind.replace("s", "i").replace("32", "4").replace("8", "1")).astype(np.int64)
        for kind, raw in zip(kinds[1:], (a, b, c), strict=True)
    )
    exact = x @ y.swapaxes(1, 2) + z
    expected = np.clip(exact, -(2**31), 2**31 - 1) if saturates else exact
    assert np.array_equal(found.view(np.int32), expected.astype(np.int32))


def test_infinities_and_nans_go_through():
    rng = np.random.default_rng(1)
    kinds = ("f32", "f16", "f16", "f32")
    a, b = random_raw("f16", (4, 16, 16), rng), random_raw("f16", (4, 8, 16), rng)
    c = np.zeros((4, 16, 8), np.uint32)
    a[0, 3, 5], a[1, 2, 2] = 0x7C00, 0x7E00
    found, _ = run("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", 16, 16, kinds, (a, b, c))
    values = found.view(np.float32)
    assert np.isinf(values[0, 3]).all()
    assert np.isnan(values[1, 2]).all()
    assert np.isfinite(np.delete(values[0], 3, axis=0)).all()


@pytest.mark.parametrize(
    "name",
    [
        "mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32",
        "mma.sync.aligned.m16n8k64.row.col.s32.s4.s4.s32",
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.bf16.f32",
        "mma.sync.aligned.m16n8k16.row.row.f32.f16.f16.f32",
        "mma.sp.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32",
        "mma.sync.aligned.m16n8k16.row.col.bf16.bf16.bf16.bf16",
    ],
)
def test_other_forms_are_refused_when_the_kernel_is_built(name):
    kinds = ("f32", "f16", "f16", "f32")
    text = kernel(name, kinds, {"d": 4, "a": 4, "b": 2, "c": 4})
    with pytest.raises(ptxemu.UnsupportedInstruction, match="PTX line"):
        ptxemu.launch(text, 1, 32, [np.zeros(128, np.uint32)] * 4)


def test_operands_of_the_wrong_size_are_refused():
    kinds = ("f32", "f16", "f16", "f32")
    text = kernel(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32",
        kinds,
        {"d": 4, "a": 2, "b": 2, "c": 4},
    )
    with pytest.raises(ptxemu.UnsupportedInstruction, match="2 registers instead of 4"):
        ptxemu.launch(text, 1, 32, [np.zeros(128, np.uint32)] * 4)


# ------------------------------------------------------------------------------ parts of a warp

BRANCH = """
.visible .entry k(.param .u64 out)
{
.reg .b32 %r<8>; .reg .f32 %f<4>; .reg .pred %p;
mov.u32 %r0, %tid.x;
setp.ge.u32 %p, %r0, LIMIT;
mov.f32 %f0, 0f00000000; mov.f32 %f1, %f0; mov.f32 %f2, %f0; mov.f32 %f3, %f0;
mov.b32 %r1, 0x3f803f80;
@%p bra END;
mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32
  {%f0,%f1,%f2,%f3}, {%r1,%r1,%r1,%r1}, {%r1,%r1}, {%f0,%f1,%f2,%f3};
END:
.reg .b64 %rd<2>;
ld.param.u64 %rd0, [out]; mad.wide.u32 %rd0, %r0, 4, %rd0;
st.global.f32 [%rd0], %f0;
ret;
}"""


def branch(limit, block, **options):
    out = np.zeros(block, np.float32)
    text = HEADER + BRANCH.replace("LIMIT", str(limit))
    ptxemu.launch(text, 1, block, [ptxemu.Output(out)], **options)
    return out


def test_whole_warps_may_branch_around_mma():
    out = branch(64, 96)
    assert (out[:64] == 16).all()
    assert (out[64:] == 0).all()


def test_part_of_a_warp_is_refused():
    with pytest.raises(ptxemu.Divergence, match="16 of the 32 threads of warp 1"):
        branch(48, 96)


def test_part_of_a_warp_computes_with_the_others_if_that_is_not_checked():
    out = branch(48, 96, checks=ptxemu.Checks(divergence=False))
    assert (out[:48] == 16).all()  # the other 16 threads of the warp have stored theirs before
    assert (out[48:] == 0).all()


def test_a_block_that_ends_within_a_warp_is_refused_whatever_is_checked():
    for checks in (ptxemu.Checks(), ptxemu.Checks(divergence=False)):
        with pytest.raises(ptxemu.Divergence, match="8 of the 32 threads of warp 1"):
            branch(64, 40, checks=checks)


def test_whole_warps_of_a_block_that_ends_within_a_warp_compute():
    out = branch(32, 40)
    assert (out[:32] == 16).all()


# ----------------------------------------------------------------------------- matrices in memory


def memory_kernel(body, count):
    """Load 4 words a thread into shared memory, run a body, store `count` registers a thread."""
    stores = "".join(f"st.global.b32 [%rd1+{4 * i}], %v{i};" for i in range(count))
    return f"""{HEADER}
.visible .entry k(.param .u64 data, .param .u64 out)
{{
.reg .b32 %r<16>; .reg .b32 %v<4>; .reg .b64 %rd<8>;
.shared .align 128 .b8 tile[2048];
mov.u32 %r0, %tid.x; mov.u32 %r1, tile; mad.lo.u32 %r2, %r0, 16, %r1;
mov.u32 %r7, %ctaid.x; mov.u32 %r8, %ntid.x; mad.lo.u32 %r9, %r7, %r8, %r0;
ld.param.u64 %rd0, [data]; mad.wide.u32 %rd0, %r9, 16, %rd0;
ld.global.v4.b32 {{%v0,%v1,%v2,%v3}}, [%rd0];
st.shared.v4.b32 [%r2], {{%v0,%v1,%v2,%v3}};
bar.sync 0;
{body}
ld.param.u64 %rd1, [out]; mad.wide.u32 %rd1, %r9, {4 * count}, %rd1;
{stores}
ret;
}}"""


def move(body, count, *, block=64, grid=2, **options):
    """Return the 8x8 matrices in memory, one row a thread, the words stored, and the report."""
    data = np.arange(block * grid * 8, dtype=np.uint16)
    out = np.zeros((grid * block // 32, 32, count), np.uint32)
    arguments = [data.view(np.uint32), ptxemu.Output(out)]
    report = ptxemu.launch(memory_kernel(body, count), grid, block, arguments, **options)
    return data.reshape(-1, 4, 8, 8), out, report


def held(words):
    """Matrices of 8x8 that registers hold: (warp, register, 8, 8)."""
    return np.ascontiguousarray(words.swapaxes(1, 2)).view(np.uint16).reshape(len(words), -1, 8, 8)


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("trans", ["", ".trans"])
@pytest.mark.parametrize("space", [".shared", ".shared::cta", ""])
def test_ldmatrix(count, trans, space):
    vector = ",".join(f"%v{i}" for i in range(count))
    address = "[%r2]"
    body = ""
    if not space:
        body = "cvta.shared.u64 %rd2, 0; cvt.u64.u32 %rd3, %r2; add.u64 %rd2, %rd2, %rd3;"
        address = "[%rd2]"
    body += f"ldmatrix.sync.aligned.m8n8.x{count}{trans}{space}.b16 {{{vector}}}, {address};"
    matrices, words, report = move(body, count, profile=True)
    expected = matrices[:, :count]
    assert np.array_equal(held(words), expected.swapaxes(2, 3) if trans else expected)
    assert report.counters.shared_wavefronts_ideal == 4 * (4 + count)  # stores, and one a matrix


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("trans", ["", ".trans"])
def test_stmatrix(count, trans):
    vector = ",".join(f"%v{i}" for i in range(count))
    body = f"""
    bar.sync 0;
    stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 [%r2], {{{vector}}};
    bar.sync 0;
    ld.shared.v4.b32 {{%v0,%v1,%v2,%v3}}, [%r2];"""
    data, words, _ = move(body, 4)
    before = data.reshape(-1, 32, 8)
    registers = before.view(np.uint32)[:, :, :count]
    matrices = held(registers)
    if trans:
        matrices = matrices.swapaxes(2, 3)
    expected = before.copy()
    expected[:, : 8 * count] = matrices.reshape(len(before), -1, 8)
    assert np.array_equal(words.view(np.uint16), expected)


def test_movmatrix():
    body = "movmatrix.sync.aligned.m8n8.trans.b16 %v0, %v0;"
    data, words, _ = move(body, 1)
    registers = data.reshape(-1, 32, 8).view(np.uint32)[:, :, :1]
    assert np.array_equal(held(words), held(registers).swapaxes(2, 3))


def test_ldmatrix_wants_rows_of_16_bytes_aligned_and_in_bounds():
    load = "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%v0,%v1,%v2,%v3}, [%r2+OFFSET];"
    with pytest.raises(ptxemu.Misaligned):
        move(load.replace("OFFSET", "8"), 4)
    with pytest.raises(ptxemu.OutOfBounds):
        move(load.replace("OFFSET", "1040"), 4)
    with pytest.raises(ptxemu.UninitialisedRead):
        move(load.replace("OFFSET", "16"), 4)


def test_addresses_of_other_lanes_do_not_count():
    body = """setp.ge.u32 %q, %r5, 8; @%q mov.u32 %r2, 0xfffff;
    ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%v0}, [%r2];"""
    body = ".reg .pred %q; and.b32 %r5, %r0, 31;" + body
    matrices, words, _ = move(body, 1)
    assert np.array_equal(held(words), matrices[:, :1])


def test_ldmatrix_before_the_barrier_is_a_race():
    body = """xor.b32 %r2, %r2, 512;
    st.shared.b32 [%r2], %v0;
    xor.b32 %r2, %r2, 512;
    ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%v0,%v1,%v2,%v3}, [%r2];"""
    with pytest.raises(ptxemu.Race, match="ldmatrix"):
        move(body, 4)


@pytest.mark.parametrize(
    "body",
    [
        "ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 {%v0,%v1}, [%r2];",
        "ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%v0}, [%r2];",
        "movmatrix.sync.aligned.m8n8.b16 %v0, %v1;",
    ],
)
def test_forms_that_are_lacking_are_refused(body):
    with pytest.raises(ptxemu.UnsupportedInstruction, match="the emulator has no"):
        move(body, 1)
