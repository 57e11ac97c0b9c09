"""Loads and stores of all widths and spaces, and what each byte of an access must be."""

import numpy as np
import pytest
from tests.ptxemu.texts import POINTERS, START, copying, kernel

from sdpakit import ptxemu

THREADS = 70  # two warps and a part of one


def numbers(dtype, count, seed=0):
    raw = np.random.default_rng(seed).integers(0, 256, count * np.dtype(dtype).itemsize, np.uint8)
    return raw.view(dtype)


def run(ptx, x, y, *, threads=THREADS, blocks=1, checks=None, **options):
    return ptxemu.launch(ptx, blocks, threads, [x, y], checks=checks, **options)


# ------------------------------------------------------------------------------------ every width


WIDTHS = [(size, count) for size in (1, 2, 4, 8) for count in (1, 2, 4, 8) if size * count <= 32]


@pytest.mark.parametrize(("size", "count"), WIDTHS)
@pytest.mark.parametrize("space", ["global", "", "shared"])
def test_access_of_every_width_moves_all_bytes(size, count, space):
    width = size * count
    prefix = {1: "%h", 2: "%h", 4: "%r", 8: "%rd"}[size]
    names = ", ".join(f"{prefix}{8 + i}" for i in range(count))
    what = f"{{{names}}}" if count > 1 else names
    form = (f".v{count}" if count > 1 else "") + f".b{8 * size}"
    through = f".{space}" if space in {"global"} else ""
    body = f"ld{through}{form} {what}, [%rd2]; st{through}{form} [%rd3], {what};"
    if space == "shared":
        body = f"""
          .shared .align 32 .b8 tile[{THREADS * width}];
          mov.u32 %r1, tile; mad.lo.u32 %r1, %r0, {width}, %r1;
          ld.global{form} {what}, [%rd2]; st.shared{form} [%r1], {what};
          {"mov.b64" if size == 8 else "mov.b32" if size == 4 else "mov.b16"} {prefix}8, 0;
          ld.shared{form} {what}, [%r1]; st.global{form} [%rd3], {what};
        """
    x, y = numbers(np.uint8, THREADS * width), np.zeros(THREADS * width, np.uint8)
    run(copying(body, width=width), x, ptxemu.Output(y))
    assert np.array_equal(x, y)


@pytest.mark.parametrize(
    ("kind", "dtype", "wide"),
    [
        ("u8", np.uint8, np.uint32),
        ("s8", np.int8, np.int32),
        ("u16", np.uint16, np.uint32),
        ("s16", np.int16, np.int32),
        ("b8", np.uint8, np.uint32),
        ("s32", np.int32, np.int64),
        ("u32", np.uint32, np.uint64),
        ("s8", np.int8, np.int64),
    ],
)
def test_load_extends_to_a_wider_register(kind, dtype, wide):
    size, to = np.dtype(dtype).itemsize, np.dtype(wide).itemsize
    register, bits = ("%rd8", 64) if to == 8 else ("%r8", 32)
    body = f"""
      mul.wide.u32 %rd5, %r0, {size}; add.u64 %rd5, %rd0, %rd5;
      ld.global.{kind} {register}, [%rd5]; st.global.u{bits} [%rd3], {register};
    """
    x, y = numbers(dtype, THREADS), np.zeros(THREADS, wide)
    run(copying(body, width=to), x, ptxemu.Output(y))
    assert np.array_equal(x.astype(wide), y)


def test_store_cuts_a_wider_register():
    body = "ld.global.b64 %rd5, [%rd2]; st.global.u8 [%rd3], %rd5; st.global.u16 [%rd3+2], %rd5;"
    x, y = numbers(np.uint64, THREADS), np.zeros((THREADS, 4), np.uint16)
    run(copying(body, width=8), x, y)
    assert np.array_equal(y[:, 0], x.astype(np.uint8))
    assert np.array_equal(y[:, 1], x.astype(np.uint16))


@pytest.mark.parametrize(
    "qualifiers",
    [
        "volatile.global",
        "relaxed.gpu.global",
        "acquire.sys.global",
        "global.ca",
        "global.nc",
        "global.L1::no_allocate.L2::128B",
        "weak.global.cv",
        "global.L1::evict_last",
        "mmio.relaxed",
        ".sys.global"[1:].replace("sys", "relaxed.sys"),
        "volatile",
    ],
)
def test_qualifiers_change_no_value(qualifiers):
    body = f"ld.{qualifiers}.u32 %r1, [%rd2]; st.global.wt.u32 [%rd3], %r1;"
    x, y = numbers(np.uint32, THREADS), np.zeros(THREADS, np.uint32)
    run(copying(body), x, ptxemu.Output(y))
    assert np.array_equal(x, y)


def test_cache_policies_and_hints_are_accepted():
    body = """
      createpolicy.fractional.L2::evict_first.b64 %rd9, 1.0;
      prefetch.global.L2 [%rd2]; prefetchu.L1 [%rd2];
      ld.global.L2::cache_hint.u32 %r1, [%rd2], %rd9;
      st.global.L2::cache_hint.u32 [%rd3], %r1, %rd9;
    """
    x, y = numbers(np.uint32, THREADS), np.zeros(THREADS, np.uint32)
    run(copying(body), x, ptxemu.Output(y))
    assert np.array_equal(x, y)


def test_unused_elements_of_a_vector_go_nowhere():
    body = "ld.global.v2.u32 {_, %r1}, [%rd2]; st.global.v2.u32 [%rd3], {%r1, 7};"
    x, y = numbers(np.uint32, 2 * THREADS), np.zeros(2 * THREADS, np.uint32)
    run(copying(body, width=8), x, ptxemu.Output(y))
    assert np.array_equal(y[::2], x[1::2])
    assert (y[1::2] == 7).all()


@pytest.mark.parametrize(
    "line",
    [
        "ld.global.b128 %rd1, [%rd2]",
        "st.async.shared::cluster.b32 [%r1], %r2, [%r3]",
        "ld.global.v8.b64 {%rd8,%rd9,%rd10,%rd11,%rd12,%rd13,%rd14,%rd15}, [%rd2]",
        "ld.global.sideways.u32 %r1, [%rd2]",
    ],
)
def test_forms_that_are_lacking_are_refused(line):
    with pytest.raises(ptxemu.UnsupportedInstruction, match="PTX line"):
        run(copying(line + ";"), np.zeros(1, np.uint32), np.zeros(1, np.uint32))


# ----------------------------------------------------------------------------------------- spaces


def test_generic_addresses_of_different_spaces_in_one_instruction():
    body = f"""
      .shared .align 4 .b8 tile[{4 * THREADS}];
      .local .align 4 .b8 frame[8];
      mov.u64 %rd5, tile; cvta.shared.u64 %rd5, %rd5;
      mul.wide.u32 %rd6, %r0, 4; add.u64 %rd5, %rd5, %rd6;
      mov.u64 %rd7, frame; cvta.local.u64 %rd7, %rd7;
      add.u32 %r1, %r0, 1000; st.u32 [%rd5], %r1;
      add.u32 %r1, %r0, 2000; st.u32 [%rd7+4], %r1;
      add.u64 %rd7, %rd7, 4;
      rem.u32 %r2, %r0, 3;
      setp.eq.u32 %p1, %r2, 1; selp.b64 %rd8, %rd5, %rd2, %p1;
      setp.eq.u32 %p1, %r2, 2; selp.b64 %rd8, %rd7, %rd8, %p1;
      ld.u32 %r3, [%rd8]; add.u32 %r3, %r3, 1; st.u32 [%rd8], %r3;
      ld.u32 %r3, [%rd8]; st.global.u32 [%rd3], %r3;
    """
    x, y = np.arange(THREADS, dtype=np.uint32), np.zeros(THREADS, np.uint32)
    given = x.copy()
    run(copying(body), given, ptxemu.Output(y))
    assert np.array_equal(y, x + 1 + np.array([0, 1000, 2000], np.uint32)[x % 3])
    assert np.array_equal(given, x + (x % 3 == 0))


def test_local_memory_is_each_threads_own():
    body = """
      .local .align 16 .b8 frame[64];
      mov.u32 %r1, 0;
    $fill:
      mul.lo.u32 %r2, %r1, 4; mov.u32 %r3, frame; add.u32 %r3, %r3, %r2;
      mad.lo.u32 %r4, %r0, 100, %r1; st.local.u32 [%r3], %r4;
      add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 16; @%p1 bra $fill;
      and.b32 %r5, %r0, 15; mul.lo.u32 %r5, %r5, 4; mov.u32 %r3, frame; add.u32 %r3, %r3, %r5;
      ld.local.u32 %r6, [%r3]; st.global.u32 [%rd3], %r6;
    """
    x, y = np.zeros(1, np.uint32), np.zeros(THREADS, np.uint32)
    run(copying(body), x, ptxemu.Output(y))
    thread = np.arange(THREADS)
    assert np.array_equal(y, 100 * thread + thread % 16)


def test_variables_of_the_module_hold_what_they_were_given():
    module = """
      .const .align 4 .b32 table[4] = {10, 20, 30, 40};
      .global .align 4 .b32 counter[2] = {5};
    """
    body = """
      and.b32 %r1, %r0, 3; mul.wide.u32 %rd5, %r1, 4; mov.u64 %rd6, table; add.u64 %rd6, %rd6, %rd5;
      ld.const.u32 %r2, [%rd6]; ld.const.u32 %r3, [table+4]; add.u32 %r2, %r2, %r3;
      ld.global.u32 %r3, [counter]; add.u32 %r2, %r2, %r3;
      cvta.const.u64 %rd7, %rd6; ld.u32 %r3, [%rd7]; add.u32 %r2, %r2, %r3;
      ld.global.u32 %r3, [counter+4]; add.u32 %r2, %r2, %r3;
      st.global.u32 [%rd3], %r2;
    """
    y = np.zeros(THREADS, np.uint32)
    run(copying(body, module=module), np.zeros(1, np.uint32), ptxemu.Output(y))
    table = np.array([10, 20, 30, 40])[np.arange(THREADS) % 4]
    assert np.array_equal(y, 2 * table + 20 + 5)


def test_struct_parameter_is_read_by_offset_and_by_pointer():
    body = f"""{START}
      ld.param.v2.u32 {{%r2, %r3}}, [s+8]; ld.param.f32 %f1, [s+4]; ld.param.s8 %r4, [s];
      mov.b64 %rd5, s; cvta.param.u64 %rd6, %rd5; ld.u32 %r5, [%rd6+12]; ld.param.u32 %r6, [%rd5+8];
      add.u32 %r2, %r2, %r3; add.u32 %r2, %r2, %r4; add.u32 %r2, %r2, %r5; add.u32 %r2, %r2, %r6;
      cvt.rzi.u32.f32 %r7, %f1; add.u32 %r2, %r2, %r7; st.global.u32 [%rd1], %r2;
    """
    ptx = kernel(POINTERS + ", .param .align 8 .b8 s[16]", body)
    struct = np.zeros((), [("a", "i1"), ("pad", "V3"), ("b", "f4"), ("c", "u4"), ("d", "u4")])
    struct["a"], struct["b"], struct["c"], struct["d"] = -3, 8.0, 100, 1000
    y = np.zeros(1, np.uint32)
    for given in (struct[()], struct.tobytes()):
        y[:] = 0
        ptxemu.launch(ptx, 1, 1, [np.zeros(1), y, given])
        assert y[0] == 100 + 1000 - 3 + 1000 + 100 + 8


def test_dynamic_shared_memory_follows_static():
    body = f"""{START}
      .shared .align 4 .b8 fixed[40];
      mov.u32 %r1, dynamic; mov.u32 %r2, fixed; sub.u32 %r3, %r1, %r2;
      mul.lo.u32 %r4, %r0, 4; add.u32 %r5, %r1, %r4; st.shared.u32 [%r5], %r0;
      ld.shared.u32 %r6, [%r5]; add.u32 %r6, %r6, %r3; mul.wide.u32 %rd5, %r0, 4;
      add.u64 %rd5, %rd1, %rd5; st.global.u32 [%rd5], %r6;
    """
    ptx = kernel(POINTERS, body, module=".extern .shared .align 16 .b8 dynamic[];")
    y = np.zeros(THREADS, np.uint32)
    run(ptx, np.zeros(1), ptxemu.Output(y), shared=4 * THREADS)
    start = int(y[0])
    assert start >= 40
    assert np.array_equal(y, start + np.arange(THREADS))
    with pytest.raises(ptxemu.OutOfBounds, match="276 dynamic"):
        run(ptx, np.zeros(1), y, shared=4 * THREADS - 4)


# ----------------------------------------------------------------------------------------- checks


def fault(kind, body, *, x=None, y=None, width=4, checks=None, threads=THREADS, **options):
    x = np.zeros(THREADS * width, np.uint8) if x is None else x
    y = np.zeros(THREADS * width, np.uint8) if y is None else y
    with pytest.raises(kind) as info:
        run(copying(body, width=width, **options), x, y, checks=checks, threads=threads)
    return info.value


@pytest.mark.parametrize("width", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("missing", [0, "first", "last"])
def test_each_byte_of_an_access_must_be_inside(width, missing):
    """An access that only its first or its last byte is outside of is out of bounds, too."""
    form = {1: "u8", 2: "u16", 4: "u32", 8: "u64", 16: "v2.u64"}[width]
    what = "{%rd8, %rd9}" if width == 16 else "%rd8"
    body = f"ld.global.{form} {what}, [%rd2];"
    memory = np.zeros(THREADS * width + 1, np.uint8)
    x = memory[: THREADS * width]
    if not missing:
        run(copying(body, width=width), x, np.zeros(1))
        return
    x = x[:-1] if missing == "last" else x[::-1][:-1][::-1]  # without the first byte
    if missing == "first" and x.ctypes.data == memory.ctypes.data:
        pytest.fail("the view begins at the second byte")
    # The pointer is one byte on; go back to see the missing byte.
    step = "" if missing == "last" else "-1"
    body = f"ld.global.{form} {what}, [%rd2+{step or 0}];"
    error = fault(ptxemu.OutOfBounds, body, x=x, width=width)
    assert error.thread == (THREADS - 1 if missing == "last" else 0)
    assert "argument 0 (uint8" in str(error)


@pytest.mark.parametrize("hole", range(8))
def test_each_byte_of_an_access_must_be_written(hole):
    body = f"""
      .shared .align 8 .b8 tile[{8 * THREADS}];
      mov.u32 %r1, tile; mad.lo.u32 %r1, %r0, 8, %r1;
      mov.u32 %r2, 0;
    $fill:
      setp.eq.u32 %p1, %r2, {hole}; setp.eq.and.u32 %p1, %r0, 33, %p1;
      add.u32 %r3, %r1, %r2; @!%p1 st.shared.u8 [%r3], 1;
      add.u32 %r2, %r2, 1; setp.lt.u32 %p2, %r2, 8; @%p2 bra $fill;
      ld.shared.b64 %rd8, [%r1]; st.global.b64 [%rd3], %rd8;
    """
    error = fault(ptxemu.UninitialisedRead, body, width=8)
    assert error.thread == 33
    assert f"shared address {33 * 8 + hole}," in str(error)
    run(
        copying(body, width=8),
        np.zeros(1),
        np.zeros(THREADS),
        checks=ptxemu.Checks(uninitialised=False),
    )


@pytest.mark.parametrize("hole", range(4))
def test_each_byte_of_local_memory_must_be_written(hole):
    bytes_but = "".join(f"st.local.u8 [frame+{i}], 1;" for i in range(4) if i != hole)
    body = f".local .align 4 .b8 frame[4]; {bytes_but} ld.local.u32 %r1, [frame];"
    assert "local address 0" in str(fault(ptxemu.UninitialisedRead, body))


def test_write_to_one_byte_does_not_make_its_neighbours_written():
    body = "st.global.u8 [%rd3+1], 1; ld.global.u16 %h1, [%rd3];"
    y = ptxemu.Output(np.zeros(THREADS, np.uint32))
    error = fault(ptxemu.UninitialisedRead, body, y=y)
    assert "byte 0 of argument 1" in str(error)


def test_output_must_be_written_whole():
    body = "setp.ne.u32 %p1, %r0, 5; @%p1 st.global.u32 [%rd3], %r0; @!%p1 st.global.u16 [%rd3], 1;"
    error = fault(ptxemu.UnwrittenOutput, body, y=ptxemu.Output(np.zeros((7, 10), np.uint32)))
    assert "1 of 70 elements of argument 1 (uint32[7, 10])" in str(error)
    assert "index (0, 5)" in str(error)
    y = np.zeros(THREADS, np.uint32)
    run(copying(body), np.zeros(1), ptxemu.Output(y), checks=ptxemu.Checks(unwritten=False))
    assert y[6] == 6


@pytest.mark.parametrize("space", ["global", "shared", "local", "param"])
def test_misaligned_access(space):
    address = {"global": "%rd2+2", "shared": "%r1+2", "local": "frame+2", "param": "x+2"}[space]
    body = f"""
      .shared .align 4 .b8 tile[{4 * THREADS + 4}]; .local .align 4 .b8 frame[8];
      mov.u32 %r1, tile; mad.lo.u32 %r1, %r0, 4, %r1;
      st.shared.u32 [%r1], 0x01020304; st.local.u32 [frame], 0x01020304; st.local.u32 [frame+4], 5;
      ld.{space}.u32 %r2, [{address}]; st.global.u32 [%rd3], %r2;
    """
    x = np.arange(4 * THREADS + 4, dtype=np.uint8)
    assert fault(ptxemu.Misaligned, body, x=x).thread == 0
    checks = ptxemu.Checks(alignment=False, race=False, uninitialised=False)
    y = np.zeros(THREADS, np.uint32)
    run(copying(body), x, y, checks=checks)
    if space == "global":
        assert np.array_equal(y, [x[4 * i + 2 :][:4].view(np.uint32)[0] for i in range(THREADS)])
    if space == "local":
        assert (y == 0x00050102).all()


@pytest.mark.parametrize("space", ["shared", "local"])
@pytest.mark.parametrize("beyond", [0, -8])
def test_outside_a_threads_or_blocks_own_memory(space, beyond):
    offset = f"+{12 + beyond}" if not beyond else f"+{beyond}"
    body = f"""
      .shared .align 4 .b8 tile[12]; .local .align 4 .b8 frame[12];
      mov.u32 %r1, {"tile" if space == "shared" else "frame"};
      st.{space}.u32 [%r1{offset}], 1;
    """
    error = fault(ptxemu.OutOfBounds, body, threads=1)
    assert ("the block has 12 bytes" if space == "shared" else "frame has 12 bytes") in str(error)


def test_null_pointers_and_offsets_are_no_addresses():
    error = fault(ptxemu.OutOfBounds, "mov.u64 %rd5, 16; ld.global.u32 %r1, [%rd5];")
    assert "is it an offset" in str(error)
    error = fault(ptxemu.OutOfBounds, "mov.u64 %rd5, 16; ld.u32 %r1, [%rd5];")
    assert "no generic address" in str(error)


def test_red_zones_keep_arrays_apart():
    body = "ld.global.u32 %r1, [%rd2+280]; st.global.u32 [%rd3], %r1;"
    error = fault(ptxemu.OutOfBounds, body)
    assert "byte 280 of argument 0 (uint8[280]), which has 280 bytes" in str(error)
    assert "4 bytes before argument" in str(
        fault(ptxemu.OutOfBounds, "st.global.u32 [%rd3-4], %r1;".replace("-4", "+-4"))
    )


@pytest.mark.parametrize("space", ["param", "const", "generic param", "read-only array"])
def test_what_may_not_be_written(space):
    module = ".const .align 4 .b32 table[4] = {10, 20, 30, 40};"
    x = np.zeros(THREADS, np.uint32)
    line = {
        "param": "st.param.u32 [x], 1;",
        "const": "cvta.const.u64 %rd5, %rd5; st.u32 [%rd5], 1;",
        "generic param": "mov.u64 %rd5, x; cvta.param.u64 %rd5, %rd5; st.u32 [%rd5], 1;",
        "read-only array": "st.global.u32 [%rd2], 1;",
    }[space]
    x.flags.writeable = space != "read-only array"
    assert "read-only" in str(
        fault(ptxemu.OutOfBounds, "mov.u64 %rd5, table;" + line, x=x, module=module)
    )


def test_read_only_arrays_can_be_read():
    x = np.arange(THREADS, dtype=np.uint32)
    x.flags.writeable = False
    y = np.zeros(THREADS, np.uint32)
    run(copying("ld.global.u32 %r1, [%rd2]; st.global.u32 [%rd3], %r1;"), x, ptxemu.Output(y))
    assert np.array_equal(x, y)


@pytest.mark.parametrize("space", ["global", "shared"])
def test_one_store_of_different_values_to_one_place(space):
    body = f"""
      .shared .align 4 .b8 tile[4]; mov.u32 %r1, tile; mov.u64 %rd5, %rd1;
      st.{space}.u32 [{"%r1" if space == "shared" else "%rd5"}], VALUE;
    """
    same = body.replace("VALUE", "7")
    run(copying(same), np.zeros(1), np.zeros(1), threads=32)
    volatile = body.replace("VALUE", "%r0").replace(f"st.{space}", f"st.volatile.{space}")
    run(copying(volatile), np.zeros(1), np.zeros(1), threads=32)
    error = fault(ptxemu.Race, body.replace("VALUE", "%r0"), threads=32)
    assert error.thread == 0
    assert "thread 31 writes another value" in str(error)


def test_nothing_is_copied_back_after_a_fault():
    x, y = np.zeros(THREADS, np.uint32), np.zeros(THREADS - 1, np.uint32)
    with pytest.raises(ptxemu.OutOfBounds):
        run(copying("st.global.u32 [%rd2], 1; st.global.u32 [%rd3], 1;"), x, y)
    assert not x.any()
    assert not y.any()


@pytest.mark.parametrize("check", ["bounds", "alignment", "uninitialised"])
def test_nothing_outside_the_emulated_memory_is_touched_whatever_is_off(check):
    checks = ptxemu.Checks(**{check: False})
    for line in ("st.global.u32 [%rd1+1073741824], 1;", "st.shared.u32 [tile+1048576], 1;"):
        body = ".shared .align 4 .b8 tile[4];" + line
        fault(ptxemu.OutOfBounds, body, threads=1, checks=checks)


# --------------------------------------------------------------------------------------- clusters

REMOTE = """
  .shared .align 4 .b8 tile[12];
  mov.u32 %r1, %cluster_ctarank; xor.b32 %r2, %r1, 1; mov.u32 %r3, tile;
  add.u32 %r4, %r1, 100; st.shared.u32 [tile+4], %r4;
  barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
  mapa.shared::cluster.u32 %r5, %r3, %r2;
  LINE
  barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
"""


def in_pairs(line, x=None, **options):
    x = np.zeros(4, np.uint32) if x is None else x
    body = (
        REMOTE.replace("LINE", line)
        + """
      mov.u32 %r6, %ctaid.x; mul.wide.u32 %rd5, %r6, 4; add.u64 %rd5, %rd0, %rd5;
      ld.shared.u32 %r8, [tile+4]; st.global.u32 [%rd5], %r8;
    """
    )
    ptxemu.launch(copying(body), 4, 1, [x, np.zeros(1)], cluster=2, **options)
    return x.tolist()


def test_blocks_of_a_cluster_reach_each_others_shared_memory():
    assert in_pairs("") == [100, 101, 100, 101]
    assert in_pairs("add.u32 %r7, %r1, 7; st.shared::cluster.u32 [%r5+4], %r7;") == [8, 7, 8, 7]
    assert in_pairs("red.shared::cluster.add.u32 [%r5+4], 50;") == [150, 151, 150, 151]
    generic = "cvt.u64.u32 %rd6, %r5; cvta.shared::cluster.u64 %rd6, %rd6; "
    assert in_pairs(generic + "red.add.u32 [%rd6+4], 1;") == [101, 102, 101, 102]


def test_remote_accesses_are_checked_in_the_block_that_they_name():
    with pytest.raises(
        ptxemu.OutOfBounds, match="at shared address 12, but the block has 12 bytes"
    ):
        in_pairs("st.shared::cluster.u32 [%r5+12], 1;")
    with pytest.raises(ptxemu.UninitialisedRead, match="shared address 8,"):
        in_pairs("ld.shared::cluster.u32 %r7, [%r5+8];")
    with pytest.raises(ptxemu.OutOfBounds, match="its cluster 2 blocks"):
        in_pairs("mapa.shared::cluster.u32 %r5, %r3, 1; add.u32 %r5, %r5, 16777216; "
                 "ld.shared::cluster.u32 %r7, [%r5];")  # fmt: skip


# ------------------------------------------------------------------------- objects and parameters


@pytest.mark.parametrize("access", ["ld.shared.u32 %r2, [object+4]", "st.shared.u32 [object], 1"])
def test_mbarrier_objects_are_no_data(access):
    body = f"""
      .shared .align 8 .b8 object[8];
      mov.u32 %r1, object; mbarrier.init.shared::cta.b64 [%r1], 1; END {access};
    """
    error = fault(ptxemu.BarrierMisuse, body.replace("END", ""), threads=1)
    assert "holds an mbarrier object" in str(error)
    ended = body.replace("END", "mbarrier.inval.shared::cta.b64 [%r1];")
    checks = ptxemu.Checks(uninitialised=False)
    run(copying(ended), np.zeros(1), np.zeros(1), threads=1, checks=checks)


@pytest.mark.parametrize("beyond", [8, 4096, -16])
def test_outside_the_parameters(beyond):
    body = f"mov.b64 %rd5, y; ld.param.u64 %rd6, [%rd5+{beyond}];"
    assert "parameters have 16 bytes" in str(fault(ptxemu.OutOfBounds, body))
    body = f"mov.b64 %rd5, y; cvta.param.u64 %rd5, %rd5; ld.u64 %rd6, [%rd5+{beyond}];"
    if beyond > 0:
        assert "parameters have 16 bytes" in str(fault(ptxemu.OutOfBounds, body))
