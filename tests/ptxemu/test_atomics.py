"""Atomic operations against the same done one lane after the other."""

import numpy as np
import pytest
from tests.ptxemu.texts import POINTERS, START, kernel

from sdpakit import ptxemu
from sdpakit.ptxemu.scalars import bf16_to_f32, f32_to_bf16

THREADS = 96

# In turns: what memory becomes, of what it was and the operands.
TURNS = {
    "add": lambda old, b, c: old + b,
    "min": lambda old, b, c: min(old, b),
    "max": lambda old, b, c: max(old, b),
    "and": lambda old, b, c: old & b,
    "or": lambda old, b, c: old | b,
    "xor": lambda old, b, c: old ^ b,
    "exch": lambda old, b, c: b,
    "cas": lambda old, b, c: c if old == b else old,
    "inc": lambda old, b, c: old * 0 if old >= b else old + type(old)(1),
    "dec": lambda old, b, c: b if old == 0 or old > b else old - type(old)(1),
}
DTYPES = {
    "u32": np.uint32, "s32": np.int32, "b32": np.uint32, "f32": np.float32, "f16": np.float16,
    "u64": np.uint64, "s64": np.int64, "b64": np.uint64, "f64": np.float64, "b16": np.uint16,
}  # fmt: skip
PREFIX = {2: "%h", 4: "%r", 8: "%rd"}


def operation(form, kind, *, space="global", opcode="atom", dtype=None):
    """Return a kernel: memory[target[t]] = form(memory, b[t], c[t]), and what t found."""
    size = np.dtype(dtype).itemsize
    register, bits = PREFIX[size], f"b{8 * size}"
    third = f", {register}13" if form == "cas" else ""
    result = f"{register}14, " if opcode == "atom" else ""
    shared = space == "shared"
    modifiers = "" if space == "generic" else f".{space}"
    noftz = ".noftz" if kind in {"f16", "bf16", "f16x2", "bf16x2"} else ""
    body = f"""{START}
      .shared .align 8 .b8 memory[{4 * size}];
      ld.param.u64 %rd2, [target]; ld.param.u64 %rd3, [b]; ld.param.u64 %rd4, [c];
      mul.wide.u32 %rd5, %r0, 4; add.u64 %rd2, %rd2, %rd5; ld.global.u32 %r1, [%rd2];
      mul.wide.u32 %rd5, %r0, {size};
      add.u64 %rd3, %rd3, %rd5; add.u64 %rd4, %rd4, %rd5; add.u64 %rd1, %rd1, %rd5;
      ld.global.{bits} {register}12, [%rd3]; ld.global.{bits} {register}13, [%rd4];
      mul.lo.u32 %r2, %r1, {size}; cvt.u64.u32 %rd6, %r2; add.u64 %rd7, %rd0, %rd6;
      mov.u32 %r3, memory; add.u32 %r3, %r3, %r2;
      mul.lo.u32 %r4, %r0, {size}; cvt.u64.u32 %rd8, %r4; add.u64 %rd9, %rd0, %rd8;
      mov.u32 %r5, memory; add.u32 %r5, %r5, %r4; setp.lt.u32 %p1, %r0, 4;
      mov.{bits} {register}14, 0;
      @%p1 ld.global.{bits} {register}15, [%rd9]; @%p1 st.shared.{bits} [%r5], {register}15;
      bar.sync 0;
      {opcode}{modifiers}.{form}{noftz}.{kind} {result}[{"%r3" if shared else "%rd7"}],
        {register}12{third};
      st.global.{bits} [%rd1], {register}14;
      bar.sync 0;
      @%p1 ld.shared.{bits} {register}15, [%r5];
      {f"@%p1 st.global.{bits} [%rd9], {register}15;" if shared else ""}
    """
    pointers = POINTERS + "".join(f", .param .u64 {name}" for name in ("target", "b", "c"))
    return kernel(pointers, body)


def operands(dtype, targets, seed=1):
    generator = np.random.default_rng(seed)
    raw = [generator.integers(-6, 7, count) for count in (4, THREADS, THREADS)]
    if np.dtype(dtype).kind == "f":
        raw = [part + generator.standard_normal(part.shape) for part in raw]
    memory, b, c = (part.astype(dtype) for part in raw)
    return memory, b, c, generator.integers(0, targets, THREADS).astype(np.uint32)


def in_turns(form, memory, target, b, c):
    """Return memory afterwards, and what each lane found."""
    memory, found = memory.copy(), []
    with np.errstate(over="ignore"):
        for lane, at in enumerate(target):
            found.append(memory[at])
            memory[at] = TURNS[form](memory[at], b[lane], c[lane])
    return memory, np.array(found)


CASES = [
    *((form, kind) for form in ("add", "min", "max") for kind in ("u32", "s32", "u64", "s64")),
    *((form, kind) for form in ("and", "or", "xor", "exch", "cas") for kind in ("b32", "b64")),
    ("cas", "b16"), ("inc", "u32"), ("dec", "u32"), ("add", "f16"), ("add", "f32"), ("add", "f64"),
]  # fmt: skip


@pytest.mark.parametrize(("space", "targets"), [("global", 4), ("shared", 1), ("generic", 2)])
@pytest.mark.parametrize(("form", "kind"), CASES)
def test_lanes_take_turns_in_their_order(form, kind, space, targets):
    dtype = DTYPES[kind]
    memory, b, c, target = operands(dtype, targets)
    if form == "cas":
        b[::3] = memory[target[::3]]
    wanted, found = in_turns(form, memory, target, b, c)
    y = np.zeros(THREADS, dtype)
    ptx = operation(form, kind, space=space, dtype=dtype)
    ptxemu.launch(ptx, 1, THREADS, [memory, ptxemu.Output(y), target, b, c])
    assert np.array_equal(memory, wanted)
    assert np.array_equal(y, found)


@pytest.mark.parametrize("space", ["global", "shared"])
@pytest.mark.parametrize("kind", ["u32", "f32", "f64"])
def test_reduction_without_result(kind, space):
    dtype = DTYPES[kind]
    memory, b, c, target = operands(dtype, 4)
    wanted, _ = in_turns("add", memory, target, b, c)
    ptx = operation("add", kind, space=space, opcode="red", dtype=dtype)
    ptxemu.launch(ptx, 1, THREADS, [memory, np.zeros(THREADS, dtype), target, b, c])
    assert np.array_equal(memory, wanted)


@pytest.mark.parametrize("kind", ["f16x2", "bf16x2"])
def test_packed_values_are_added_one_by_one(kind):
    raw = np.random.default_rng(2).standard_normal((2 * THREADS + 8, 2)).astype(np.float32)
    pack = f32_to_bf16 if kind == "bf16x2" else lambda x: x.astype(np.float16).view(np.uint16)
    see = bf16_to_f32 if kind == "bf16x2" else lambda x: x.view(np.float16).astype(np.float32)
    memory = pack(raw[:4])
    b = pack(raw[8 : 8 + THREADS])
    target = (np.arange(THREADS) % 4).astype(np.uint32)
    wanted = memory.copy()
    for lane, at in enumerate(target):
        wanted[at] = pack(see(wanted[at]) + see(b[lane]))
    words = memory.view(np.uint32).ravel().copy()
    args = [words, np.zeros(THREADS, np.uint32), target, b.view(np.uint32).ravel(), b.copy()]
    args[4] = args[4].view(np.uint32).ravel()
    ptxemu.launch(operation("add", kind, dtype=np.uint32), 1, THREADS, args)
    assert np.array_equal(words, wanted.view(np.uint32).ravel())


def test_vector_reduction_adds_each_element():
    body = f"""{START}
      mul.wide.u32 %rd2, %r0, 16; add.u64 %rd2, %rd1, %rd2;
      ld.global.v4.f32 {{%f0, %f1, %f2, %f3}}, [%rd2];
      red.global.add.v4.f32 [%rd0], {{%f0, %f1, %f2, %f3}};
    """
    x = np.zeros(4, np.float32)
    y = np.random.default_rng(3).integers(0, 9, (THREADS, 4)).astype(np.float32)
    ptxemu.launch(kernel(POINTERS, body), 1, THREADS, [x, y])
    assert np.array_equal(x, y.sum(axis=0))


def test_atomics_of_many_blocks_meet():
    body = f"{START} atom.global.add.u32 %r1, [%rd0], 1; red.global.max.u32 [%rd1], %r1;"
    x, y = np.zeros(1, np.uint32), np.zeros(1, np.uint32)
    ptxemu.launch(kernel(POINTERS, body), (20, 5), 64, [x, y])
    assert x[0] == 100 * 64
    assert y[0] == 100 * 64 - 1


def test_atomics_do_not_race_but_need_a_value():
    body = f"{START} .shared .align 4 .b8 sum[4]; FIRST atom.shared.add.u32 %r1, [sum], 1;"
    first = "setp.eq.u32 %p1, %r0, 0; @%p1 st.shared.u32 [sum], 0; bar.sync 0;"
    arrays = [np.zeros(1, np.uint32), np.zeros(1, np.uint32)]
    ptxemu.launch(kernel(POINTERS, body.replace("FIRST", first)), 1, 64, arrays)
    with pytest.raises(ptxemu.UninitialisedRead):
        ptxemu.launch(kernel(POINTERS, body.replace("FIRST", "")), 1, 64, arrays)
    ptx = kernel(POINTERS, body.replace("FIRST", first.replace("bar.sync 0;", "")))
    with pytest.raises(ptxemu.Race):
        ptxemu.launch(ptx, 1, 64, arrays)


def test_atomic_operation_is_a_write_for_who_reads_without_a_barrier():
    body = f"""{START}
      .shared .align 4 .b8 sum[4];
      setp.eq.u32 %p1, %r0, 0; @%p1 st.shared.u32 [sum], 0; bar.sync 0;
      setp.lt.u32 %p1, %r0, 32; @%p1 atom.shared.add.u32 %r1, [sum], 1; BETWEEN
      @!%p1 ld.shared.u32 %r2, [sum];
    """
    arrays = [np.zeros(1, np.uint32), np.zeros(1, np.uint32)]
    ptxemu.launch(kernel(POINTERS, body.replace("BETWEEN", "bar.sync 0;")), 1, 64, arrays)
    with pytest.raises(ptxemu.Race):
        ptxemu.launch(kernel(POINTERS, body.replace("BETWEEN", "")), 1, 64, arrays)


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("atom.global.add.u32 %r1, [%rd0+4], 1", ptxemu.OutOfBounds),
        ("atom.global.add.u32 %r1, [%rd0+2], 1", ptxemu.Misaligned),
        ("atom.shared.add.u32 %r1, [16], 1", ptxemu.OutOfBounds),
        ("atom.add.u32 %r1, [%rd3], 1", ptxemu.OutOfBounds),
        ("red.async.relaxed.cluster.add.u32 [%rd0], 1", ptxemu.UnsupportedInstruction),
        ("atom.global.cas.b128 %rd5, [%rd0], %rd5, %rd6", ptxemu.UnsupportedInstruction),
    ],
)
def test_refusals(line, fault):
    start = f"{START} .local .align 4 .b8 frame[4]; mov.u64 %rd2, frame; cvta.local.u64 %rd3, %rd2;"
    with pytest.raises(fault):
        ptxemu.launch(
            kernel(POINTERS, f"{start} {line};"), 1, 1, [np.zeros(1, np.uint32), np.zeros(1)]
        )
