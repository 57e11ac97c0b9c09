"""``wmma`` against NumPy: loads, products and stores of fragments that PTX leaves opaque."""

import itertools

import numpy as np
import pytest

from sdpakit import ptxemu
from sdpakit.ptxemu.elements import ELEMENTS

HEADER = ".version 8.4\n.target sm_80\n.address_size 64\n"
SHAPES = ((16, 16, 16), (32, 8, 16), (8, 32, 16))


def registers(kind, rows, columns):
    """How many registers a fragment has by the PTX ISA."""
    values = rows * columns // 32
    return max(values * ELEMENTS[kind].size // 4, 1) if kind != "f64" else values


def kernel(shape, kinds, majors, space=".global", pads=(0, 0), halves=8):
    """One warp a block computes D = A B + C of matrices of its own."""
    (m, n, k), (result, left, right) = shape, kinds
    counts = {
        "a": halves if left == "f16" else registers(left, m, k),
        "b": halves if right == "f16" else registers(right, k, n),
        "c": registers(result, m, n),
    }
    wide = "64" if result == "f64" else "32"
    vectors = {
        name: ", ".join(f"%{name}{i}" for i in range(count)) for name, count in counts.items()
    }
    named = f"m{m}n{n}k{k}"
    types = f"{result}.{result}"
    if left != "f16":
        types = f"{result}.{left}.{right}.{result}"
    a_stride = (k if majors[0] == "row" else m) + pads[0]
    b_stride = (n if majors[1] == "row" else k) + pads[1]
    words = (k if majors[1] == "row" else n) * b_stride * ELEMENTS[right].size // 4
    b_size = words * 4
    copies = "".join(
        f"ld.global.b32 %r5, [%w2+{4 * i}]; st.shared.b32 [%r4+{4 * i}], %r5;"
        for i in range(0, words, 32)
    )
    return f"""{HEADER}
.visible .entry k(.param .u64 pa, .param .u64 pb, .param .u64 pc, .param .u64 pd)
{{
.reg .b32 %r<8>; .reg .b64 %w<8>; .reg .pred %p;
.reg .b{wide if left == "f64" else 32} %a<{counts["a"]}>;
.reg .b{wide if left == "f64" else 32} %b<{counts["b"]}>; .reg .b{wide} %c<{counts["c"]}>;
.shared .align 128 .b8 tile[{b_size}];
mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x; mov.u32 %r2, tile;
ld.param.u64 %w0, [pa]; mad.wide.u32 %w0, %r1,
  {(m if majors[0] == "row" else k) * a_stride * ELEMENTS[left].size}, %w0;
ld.param.u64 %w1, [pb]; mad.wide.u32 %w1, %r1, {b_size}, %w1;
mad.wide.u32 %w2, %r0, 4, %w1; mad.lo.u32 %r4, %r0, 4, %r2;
{copies}
bar.sync 0;
ld.param.u64 %w3, [pc]; mad.wide.u32 %w3, %r1, {m * n * ELEMENTS[result].size}, %w3;
ld.param.u64 %w4, [pd]; mad.wide.u32 %w4, %r1, {m * n * ELEMENTS[result].size}, %w4;
mov.u32 %r6, {a_stride};
wmma.load.a.sync.aligned.{majors[0]}.{named}{space}.{left} {{{vectors["a"]}}}, [%w0], %r6;
wmma.load.b.sync.aligned.{majors[1]}.{named}.shared.{right} {{{vectors["b"]}}}, [%r2], {b_stride};
wmma.load.c.sync.aligned.row.{named}.global.{result} {{{vectors["c"]}}}, [%w3];
wmma.mma.sync.aligned.{majors[0]}.{majors[1]}.{named}.{types}
  {{{vectors["c"]}}}, {{{vectors["a"]}}}, {{{vectors["b"]}}}, {{{vectors["c"]}}};
wmma.store.d.sync.aligned.row.{named}.global.{result} [%w4], {{{vectors["c"]}}}, {n};
ret;
}}"""


def random_raw(kind, shape, rng):
    if kind in {"s8", "u8"}:
        return rng.integers(0, 256, shape, dtype=np.uint8)
    if kind == "s32":
        return rng.integers(-1000, 1000, shape, dtype=np.int32).view(np.uint32)
    values = rng.standard_normal(shape)
    if kind == "f64":
        return values.view(np.uint64)
    if kind == "f16":
        return values.astype(np.float16).view(np.uint16)
    bits = values.astype(np.float32).view(np.uint32)
    return (bits >> 16).astype(np.uint16) if kind == "bf16" else bits


def stored(matrices, major, pad):
    """Matrices as they are in memory, row by row or column by column, with a pad after each."""
    ordered = matrices if major == "row" else matrices.swapaxes(1, 2)
    return np.ascontiguousarray(np.pad(ordered, ((0, 0), (0, 0), (0, pad))))


def check(shape, kinds, majors=("row", "col"), pads=(0, 0), space=".global", **options):
    (m, n, k), (result, left, right) = shape, kinds
    rng = np.random.default_rng(m + n)
    a, b = random_raw(left, (3, m, k), rng), random_raw(right, (3, k, n), rng)
    c = random_raw(result, (3, m, n), rng)
    out = np.zeros_like(c)
    text = kernel(shape, kinds, majors, space, pads)
    arguments = [stored(a, majors[0], pads[0]), stored(b, majors[1], pads[1]), c]
    report = ptxemu.launch(text, 3, 32, [*arguments, ptxemu.Output(out)], **options)
    x, y, z, found = (
        ELEMENTS[kind].decode(raw).astype(np.float64)
        for kind, raw in ((left, a), (right, b), (result, c), (result, out))
    )
    exact, size = x @ y + z, np.abs(x) @ np.abs(y) + np.abs(z)
    unit = {"f16": 2.0**-11, "f32": 2.0**-24, "f64": 2.0**-53, "s32": 0}[result]
    sums = 2.0**-53 if result == "f64" else 2.0**-24 * (unit > 0)
    rounding = unit * np.abs(exact) * 1.001 + (k + 1) * sums * size + 2.0**-25 * (result == "f16")
    assert (np.abs(found - exact) <= rounding).all()
    assert report.counters.matrix_flops == 3 * 2 * m * n * k


FORMS = [
    *itertools.product(SHAPES, [("f32", "f16", "f16"), ("f16", "f16", "f16")]),
    *itertools.product(SHAPES, [("f32", "bf16", "bf16"), ("s32", "s8", "s8"), ("s32", "u8", "u8")]),
    ((16, 16, 8), ("f32", "tf32", "tf32")),
    ((8, 8, 4), ("f64", "f64", "f64")),
]


@pytest.mark.parametrize(("shape", "kinds"), FORMS)
def test_products(shape, kinds):
    check(shape, kinds)


@pytest.mark.parametrize("majors", [*itertools.product(("row", "col"), repeat=2)])
def test_rows_and_columns_with_strides(majors):
    check((16, 16, 16), ("f32", "f16", "f16"), majors, pads=(8, 16))


def test_generic_addresses():
    check((16, 16, 16), ("f32", "bf16", "bf16"), space="")


def test_rows_of_a_matrix_must_be_aligned():
    with pytest.raises(ptxemu.Misaligned, match="36 bytes from row to row"):
        check((16, 16, 16), ("f32", "f16", "f16"), pads=(2, 0))
    unchecked = ptxemu.Checks(alignment=False)
    check((16, 16, 16), ("f32", "f16", "f16"), pads=(2, 0), checks=unchecked)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("m16n16k16.f32.f32", "m16n16k16.f32.bf16.bf16.f16"),
        ("m16n16k16.f32.f32", "m16n16k16.s32.s4.s4.s32"),
        ("wmma.load.a", "wmma.load.e"),
        ("row.m16n16k16.global.f16", "m16n16k16.global.f16"),
    ],
)
def test_forms_that_are_lacking_are_refused_when_the_kernel_is_built(old, new):
    text = kernel((16, 16, 16), ("f32", "f16", "f16"), ("row", "col"))
    assert old in text
    with pytest.raises(ptxemu.UnsupportedInstruction, match="the emulator has no"):
        ptxemu.launch(text.replace(old, new), 1, 32, [np.zeros(1024, np.uint16)] * 4)


def test_fragments_of_another_size_are_refused():
    text = kernel((16, 16, 16), ("f32", "f16", "f16"), ("row", "col"), halves=3)
    with pytest.raises(ptxemu.UnsupportedInstruction, match="3 registers for 16x16 of f16"):
        ptxemu.launch(text, 1, 32, [np.zeros(1024, np.uint16)] * 4)
