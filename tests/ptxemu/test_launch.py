"""Launches: arguments, limits, arrays that share memory, batches, devices that keep memory."""

import numpy as np
import pytest
from tests.ptxemu.texts import POINTERS, START, copying, kernel

from sdpakit import ptxemu
from sdpakit.ptxemu.launching import find_program

COPY = "ld.global.u32 %r1, [%rd2]; st.global.u32 [%rd3], %r1;"
NOTHING = kernel("", "")


def scalar(kind, size):
    """Return a kernel that stores its parameter, a number of `size` bytes."""
    register = {1: "%h1", 2: "%h1", 4: "%r1", 8: "%rd2"}[size]
    return kernel(
        f".param .u64 y, .param .{kind} n",
        f"ld.param.u64 %rd1, [y]; ld.param.b{8 * size} {register}, [n]; "
        f"st.global.b{8 * size} [%rd1], {register};",
    )


# ------------------------------------------------------------------------------------- arguments


@pytest.mark.parametrize(
    ("kind", "value", "dtype"),
    [
        ("u32", 7, np.uint32),
        ("u32", 2**32 - 1, np.uint32),
        ("u32", -1, np.int32),
        ("s32", -(2**31), np.int32),
        ("u8", 255, np.uint8),
        ("s8", -128, np.int8),
        ("u16", np.uint16(3), np.uint16),
        ("s64", -(2**63), np.int64),
        ("u64", 2**64 - 1, np.uint64),
        ("u32", True, np.uint32),
        ("f32", 1.5, np.float32),
        ("f32", float("-inf"), np.float32),
        ("f32", np.float64(0.1), np.float32),
        ("f64", np.float32(0.5), np.float64),
        ("f16", 2.25, np.float16),
        ("b32", np.float32(2.5), np.float32),
        ("b16", np.float16(2.5), np.float16),
        ("b64", 5, np.uint64),
        ("u32", b"\x01\x02\x03\x04", np.dtype("<u4")),
    ],
)
def test_scalar_arrives(kind, value, dtype):
    y = np.zeros(1, dtype)
    ptxemu.launch(scalar(kind, y.itemsize), 1, 1, [ptxemu.Output(y), value])
    wanted = np.frombuffer(value, dtype)[0] if isinstance(value, bytes) else dtype(value)
    assert y[0] == wanted


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        ("u32", 2**32, "4294967296 is out of its range; pass -2147483648 to 4294967295"),
        ("s32", 2**31, "pass -2147483648 to 2147483647"),
        ("u32", -(2**31) - 1, "out of its range"),
        ("u8", 256, "pass -128 to 255"),
        ("u32", 1.0, r"is u32, but got float 1\.0; pass an int"),
        ("u32", np.float32(1), "is u32, but got float32"),
        ("u64", 1.0, "pass an int, an array or an address"),
        ("u32", np.zeros(1), "is u32, but got an array, which is a pointer of 64 bits"),
        ("f64", np.zeros(1), "is f64, but got an array, which is a pointer; pass a float"),
        ("f32", 3, r"is f32, but got int 3; pass 3\.0"),
        ("f32", 1e39, r"1e\+39 is too large for it"),
        ("f32", "1", "is f32, but got str '1'"),
        ("u32", None, "is u32, but got NoneType None"),
        ("u32", b"abc", "got 3 bytes; pass 4"),
        ("b32", np.float64(1), "got float64"),
        ("u64", ptxemu.Output([1, 2]), "Output of list; give it a NumPy array"),
        ("u64", np.array([None]), "holds Python objects"),
    ],
)
def test_scalar_that_does_not_fit(kind, value, message):
    size = int(kind[1:]) // 8
    with pytest.raises(ptxemu.LaunchError, match=message) as info:
        ptxemu.launch(scalar(kind, size), 1, 1, [np.zeros(1, np.uint64), value])
    assert "argument 1" in str(info.value)


@pytest.mark.parametrize("value", [5, np.zeros(2), np.uint32(1), b"abc"])
def test_struct_that_does_not_fit(value):
    ptx = kernel(".param .align 8 .b8 s[16]", "")
    with pytest.raises(ptxemu.LaunchError, match=r"\(s\) is 16 bytes, but got"):
        ptxemu.launch(ptx, 1, 1, [value])


def test_number_of_arguments():
    with pytest.raises(ptxemu.LaunchError, match=r"2 parameters \(u64, u64\), but got 1 arguments"):
        ptxemu.launch(copying(COPY), 1, 1, [np.zeros(1)])


def test_parameters_are_aligned():
    body = f"""{START}
      ld.param.u8 %h1, [a]; ld.param.u64 %rd5, [b]; ld.param.u16 %h2, [c]; ld.param.u32 %r5, [d];
      cvt.u64.u16 %rd6, %h1; add.u64 %rd5, %rd5, %rd6; cvt.u64.u16 %rd6, %h2;
      add.u64 %rd5, %rd5, %rd6; cvt.u64.u32 %rd6, %r5; add.u64 %rd5, %rd5, %rd6;
      st.global.u64 [%rd1], %rd5;
    """
    parameters = POINTERS + ", .param .u8 a, .param .u64 b, .param .u16 c, .param .u32 d"
    y = np.zeros(1, np.uint64)
    ptxemu.launch(kernel(parameters, body), 1, 1, [np.zeros(1), y, 1, 10, 100, 1000])
    assert y[0] == 1111


# ----------------------------------------------------------------------------------------- arrays


@pytest.mark.parametrize("dtype", ["u4", "f4", "i4", ">u4", [("a", "u2"), ("b", "u2")]])
def test_arrays_of_any_dtype_keep_their_bits(dtype):
    raw = np.arange(64, dtype=np.uint32) * 0x1234567
    x, y = raw.view(dtype), np.zeros(64, dtype)
    ptxemu.launch(copying(COPY), 1, 64, [x, ptxemu.Output(y)])
    assert x.tobytes() == y.tobytes()


def test_arrays_that_share_memory_share_it():
    whole = np.arange(128, dtype=np.uint32)
    ptxemu.launch(copying(COPY), 1, 64, [whole[:64], whole[64:]])
    assert np.array_equal(whole[64:], np.arange(64))
    # An overlap: each thread reads what the thread before it is given.
    ptxemu.launch(copying(COPY), 1, 64, [whole[:64], whole[1:65]])
    assert np.array_equal(whole[1:65], np.arange(64))


def test_arrays_made_from_one_buffer_share_it():
    raw = bytearray(512)
    whole = np.frombuffer(raw, np.uint32)
    inner, last = np.frombuffer(raw, np.uint32, 2, 16), np.frombuffer(raw, np.uint32, 4, 256)
    body = "st.global.u32 [%rd0+256], 5; ld.global.u32 %r1, [%rd5]; st.global.u32 [%rd1], %r1;"
    ptx = kernel(POINTERS + ", .param .u64 z", START + "ld.param.u64 %rd5, [z];" + body)
    ptxemu.launch(ptx, 1, 1, [whole, inner, last])
    assert whole[64] == last[0] == inner[0] == whole[4] == 5


def test_distance_of_views_is_kept():
    body = "sub.u64 %rd5, %rd1, %rd0; st.global.u64 [%rd0], %rd5;"
    whole = np.zeros(100, np.uint64)
    ptxemu.launch(copying(body), 1, 1, [whole[10:20], whole[70:]])
    assert whole[10] == 60 * 8


def test_memory_of_an_array_begins_aligned_and_views_where_they_are():
    body = "and.b64 %rd5, %rd0, 255; st.global.u64 [%rd1], %rd5;"
    whole, y = np.zeros(100, np.uint32), np.zeros(1, np.uint64)
    for start in (0, 1, 70):
        ptxemu.launch(copying(body), 1, 1, [whole[start:], y])
        assert y[0] == 4 * start % 256


def test_strided_view_keeps_its_strides_and_its_gaps_are_nobodys():
    whole = np.arange(128, dtype=np.uint32).reshape(64, 2)
    y = np.zeros(64, np.uint32)
    by_eight = """
      mul.wide.u32 %rd4, %r0, 8; add.u64 %rd2, %rd0, %rd4; mul.wide.u32 %rd4, %r0, 4;
      add.u64 %rd3, %rd1, %rd4; ld.global.u32 %r1, [%rd2]; st.global.u32 [%rd3], %r1;
    """
    ptxemu.launch(copying(by_eight), 1, 64, [whole[:, 1], ptxemu.Output(y)])
    assert np.array_equal(y, whole[:, 1])
    with pytest.raises(ptxemu.OutOfBounds):
        ptxemu.launch(copying(COPY), 1, 64, [whole[:, 1], y])
    ptxemu.launch(copying(COPY), 1, 63, [y, whole.T.ravel()])
    assert np.array_equal(whole.ravel(), np.arange(128))


def test_transposed_output_is_written_back():
    y = np.zeros((8, 8), np.uint32)
    ptxemu.launch(copying(COPY), 1, 64, [np.arange(64, dtype=np.uint32), ptxemu.Output(y.T)])
    assert np.array_equal(y.T.ravel(order="F"), np.arange(64))


def test_negative_strides_point_to_the_first_element():
    body = "neg.s64 %rd4, %rd4; add.u64 %rd2, %rd0, %rd4;" + COPY
    x, y = np.arange(64, dtype=np.uint32), np.zeros(64, np.uint32)
    ptxemu.launch(copying(body), 1, 64, [x[::-1], ptxemu.Output(y)])
    assert np.array_equal(y, x[::-1])


def test_empty_arrays_and_scalars_of_no_dimension():
    ptxemu.launch(copying(""), 1, 1, [np.zeros(0), np.zeros((0, 3))])
    y = np.array(0, np.uint32)
    ptxemu.launch(copying(COPY), 1, 1, [np.array(7, np.uint32), ptxemu.Output(y)])
    assert y == 7


def test_output_cannot_be_read():
    y = np.zeros(64, np.uint32)
    with pytest.raises(ptxemu.UninitialisedRead, match="argument 0"):
        ptxemu.launch(copying(COPY), 1, 64, [ptxemu.Output(y), y.copy()])


def test_array_that_is_an_output_too_is_initialised():
    x = np.arange(64, dtype=np.uint32)
    ptxemu.launch(copying(COPY), 1, 64, [x, ptxemu.Output(x)])
    assert np.array_equal(x, np.arange(64))


def test_unaligned_host_memory():
    raw = np.zeros(64 * 4 + 1, np.uint8)
    x = raw[1:].view(np.uint32)
    x[:] = np.arange(64)
    y = np.zeros(64, np.uint32)
    with pytest.raises(ptxemu.Misaligned):
        ptxemu.launch(copying(COPY), 1, 64, [x, y])


# ----------------------------------------------------------------------------------------- limits


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"grid": 0}, r"grid is \(0, 1, 1\); each size must be from 1 to"),
        ({"grid": (1, 65536)}, "grid is"),
        ({"grid": (1, 1, 1, 1)}, "give an int, or one to three"),
        ({"grid": "8"}, "give an int"),
        ({"grid": 1.5}, "give an int"),
        ({"block": 1025}, "block is"),
        ({"block": (1, 1, 65)}, "block is"),
        ({"block": (32, 32, 2)}, "2048 threads; no block has more than 1024"),
        ({"shared": -1}, "shared is -1"),
        ({"shared": 232449}, "232449 dynamic.* sm_90a has 232448 at most"),
        ({"grid": 3, "cluster": 2}, "not whole clusters"),
        ({"grid": 32, "cluster": 17}, "cluster is"),
        ({"grid": 32, "cluster": (8, 4)}, "32 blocks; use at most 16"),
        ({"entry": "other"}, "no entry 'other'"),
    ],
)
def test_sizes_that_cannot_be(options, message):
    options = {"grid": 1, "block": 1, **options}
    with pytest.raises(ptxemu.LaunchError, match=message):
        ptxemu.launch(NOTHING, options.pop("grid"), options.pop("block"), [], **options)


@pytest.mark.parametrize(
    ("target", "kibibytes"),
    [
        ("sm_60", 48), ("sm_70", 96), ("sm_75", 64), ("sm_80", 163), ("sm_86", 99), ("sm_87", 163),
        ("sm_89", 99), ("sm_90", 227), ("sm_100a", 227), ("sm_103", 227), ("sm_120", 99),
        ("sm_121a", 99),
    ],
)  # fmt: skip
def test_shared_memory_of_architectures(target, kibibytes):
    ptx = kernel("", "", target=target)
    ptxemu.launch(ptx, 1, 1, [], shared=kibibytes << 10)
    with pytest.raises(ptxemu.LaunchError, match=f"{target} has {kibibytes << 10} at most"):
        ptxemu.launch(ptx, 1, 1, [], shared=(kibibytes << 10) + 1)


def test_static_shared_memory_is_limited_and_counts():
    body = ".shared .align 4 .b8 tile[{}];"
    ptxemu.launch(kernel("", body.format(49152)), 1, 1, [])
    with pytest.raises(ptxemu.LaunchError, match="49156 bytes of static shared memory"):
        ptxemu.launch(kernel("", body.format(49156)), 1, 1, [])
    with pytest.raises(ptxemu.LaunchError, match=r"\(1024 static, 231425 dynamic\)"):
        ptxemu.launch(kernel("", body.format(1024)), 1, 1, [], shared=231425)


def test_limits_that_the_entry_sets():
    most = kernel("", "", directives=".maxntid 64, 2")
    ptxemu.launch(most, 1, (32, 4), [])
    with pytest.raises(ptxemu.LaunchError, match=r"129 threads, but k says .maxntid \(64, 2, 1\)"):
        ptxemu.launch(most, 1, 129, [])
    exact = kernel("", "", directives=".reqntid 64, 2")
    ptxemu.launch(exact, 1, (64, 2), [])
    with pytest.raises(ptxemu.LaunchError, match=r".reqntid \(64, 2, 1\)"):
        ptxemu.launch(exact, 1, (32, 4), [])


def test_cluster_that_the_entry_requires():
    body = "mov.u32 %r1, %cluster_nctarank; ld.param.u64 %rd0, [x]; st.global.u32 [%rd0], %r1;"
    ptx = kernel(".param .u64 x", body, directives=".reqnctapercluster 2, 1, 1")
    for options in ({}, {"cluster": 2}):
        x = np.zeros(1, np.uint32)
        ptxemu.launch(ptx, 2, 1, [x], **options)
        assert x[0] == 2
    with pytest.raises(ptxemu.LaunchError, match=r".reqnctapercluster \(2, 1, 1\)"):
        ptxemu.launch(ptx, 4, 1, [np.zeros(1)], cluster=4)


def test_no_clusters_before_hopper():
    with pytest.raises(ptxemu.LaunchError, match="sm_89 has no clusters"):
        ptxemu.launch(kernel("", "", target="sm_89"), 2, 1, [], cluster=2)


# ------------------------------------------------------------------------------------ what is run


def test_every_block_and_thread_runs_once():
    body = f"""{START}
      mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ctaid.y; mov.u32 %r3, %ctaid.z;
      mov.u32 %r4, %nctaid.x; mov.u32 %r5, %nctaid.y;
      mad.lo.u32 %r6, %r3, %r5, %r2; mad.lo.u32 %r6, %r6, %r4, %r1;
      mul.wide.u32 %rd2, %r6, 4; add.u64 %rd2, %rd0, %rd2; atom.global.add.u32 %r7, [%rd2], 1;
    """
    x = np.zeros((3, 7, 10), np.uint32)
    ptxemu.launch(kernel(POINTERS, body), (10, 7, 3), 3, [x, x.copy()])
    assert (x == 3).all()


def test_blocks_of_a_cluster_have_ranks_in_order():
    body = f"""{START}
      mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ctaid.y; mov.u32 %r3, %nctaid.x;
      mad.lo.u32 %r4, %r2, %r3, %r1; mul.wide.u32 %rd2, %r4, 4; add.u64 %rd2, %rd0, %rd2;
      mov.u32 %r5, %cluster_ctarank; st.global.u32 [%rd2], %r5;
    """
    x = np.zeros((4, 6), np.uint32)
    ptxemu.launch(kernel(POINTERS, body), (6, 4), 1, [x, x.copy()], cluster=(3, 2))
    assert np.array_equal(x, np.tile([[0, 1, 2], [3, 4, 5]], (2, 2)))


def test_large_shared_memory_runs_in_several_batches():
    body = f"""{START}
      .extern .shared .align 16 .b8 dynamic[];
      mov.u32 %r1, %ctaid.x; st.shared.u32 [dynamic+200000], %r1;
      ld.shared.u32 %r2, [dynamic+200000];
      mul.wide.u32 %rd2, %r1, 4; add.u64 %rd2, %rd0, %rd2; st.global.u32 [%rd2], %r2;
    """.replace(".extern .shared .align 16 .b8 dynamic[];", "")
    ptx = kernel(POINTERS, body, module=".extern .shared .align 16 .b8 dynamic[];")
    x = np.zeros(200, np.uint32)
    ptxemu.launch(ptx, 200, 1, [ptxemu.Output(x), x.copy()], shared=210_000)
    assert np.array_equal(x, np.arange(200))


def test_code_may_be_text_module_or_program():
    module = ptxemu.parse(copying(COPY))
    assert module.entries == ("k",)
    x = np.arange(4, dtype=np.uint32)
    for code in (copying(COPY), module, module.program("k")):
        y = np.zeros(4, np.uint32)
        report = ptxemu.launch(code, 1, 4, [x, y])
        assert np.array_equal(x, y)
        assert report.program is find_program(code, None)
        assert report.counters.by_opcode["ld"] == 3
    for code in (None, 5, b"text"):
        with pytest.raises(ptxemu.LaunchError, match="pass PTX as str"):
            ptxemu.launch(code, 1, 1, [])
    with pytest.raises(ptxemu.LaunchError, match="the program is k, not other"):
        ptxemu.launch(module.program("k"), 1, 1, [], entry="other")


def test_entry_must_be_named_if_there_are_several():
    first, second = kernel("", "", name="first"), kernel("", "", name="second")
    ptx = first + second[second.index(".visible") :]
    assert ptxemu.launch(ptx, 1, 1, [], entry="second").program.name == "second"
    with pytest.raises(ptxemu.LaunchError, match="first, second"):
        ptxemu.launch(ptx, 1, 1, [])


# ---------------------------------------------------------------------------------------- devices


def test_device_keeps_its_memory():
    device = ptxemu.Device()
    x = np.arange(64, dtype=np.uint32)
    p, q = device.allocate(x), device.allocate(256)
    device.launch(copying(COPY), 1, 64, [p, q])
    assert np.array_equal(device.read(q, 64, np.uint32), x)
    device.launch(copying(COPY), 1, 64, [q, device.allocate(4096)])
    y = np.zeros((8, 8), np.uint32)
    device.launch(copying(COPY), 1, 64, [q, ptxemu.Output(y)])
    assert np.array_equal(y.ravel(), x)
    device.write(q, x + 1)
    assert np.array_equal(device.read(q, (8, 8), np.uint32), (x + 1).reshape(8, 8))


def test_memory_of_arguments_is_given_back():
    device = ptxemu.Device()
    x = np.arange(64, dtype=np.uint32)
    device.launch(copying(COPY), 1, 64, [x, x.copy()])
    size = device.arena.size
    for _ in range(50):
        device.launch(copying(COPY), 1, 64, [x, x.copy()])
    assert device.arena.size == size
    assert not device.arena_state.any()


def test_freed_memory_is_out_of_bounds():
    device = ptxemu.Device()
    x = np.arange(64, dtype=np.uint32)
    p, q = device.allocate(x), device.allocate(x)
    device.free(p)
    with pytest.raises(ptxemu.OutOfBounds):
        device.launch(copying(COPY), 1, 64, [p, q])
    for wrong in (p, q + 4):
        with pytest.raises(ptxemu.LaunchError, match="give an address that allocate returned"):
            device.free(wrong)
    assert np.array_equal(device.read(q, 64, np.uint32), x)


def test_new_memory_holds_what_stands_out_even_where_old_was():
    device = ptxemu.Device()
    device.free(device.allocate(np.zeros(64, np.uint32)))
    y = np.zeros(64, np.uint32)
    checks = ptxemu.Checks(uninitialised=False)
    device.launch(copying(COPY), 1, 64, [device.allocate(256), ptxemu.Output(y)], checks=checks)
    assert (y == 0xA5A5A5A5).all()


def test_device_memory_that_is_not_there():
    device = ptxemu.Device()
    with pytest.raises(ptxemu.LaunchError, match="nothing is allocated"):
        device.read(0x7F0000000000, 1, np.uint8)
    p = device.allocate(np.zeros(4, np.float32), label="weights")
    with pytest.raises(
        ptxemu.LaunchError, match=r"cannot read 20 bytes .* of weights, which has 16"
    ):
        device.read(p, 5, np.float32)
    with pytest.raises(ptxemu.LaunchError, match="cannot write"):
        device.write(p, np.zeros(5, np.float32))
    with pytest.raises(ptxemu.LaunchError, match="cannot allocate -1 bytes"):
        device.allocate(-1)


def test_variables_of_a_module_live_as_long_as_its_device():
    ptx = kernel(
        ".param .u64 x",
        "ld.param.u64 %rd0, [x]; atom.global.add.u32 %r1, [count], 1; st.global.u32 [%rd0], %r1;",
        module=".global .align 4 .u32 count = 5;",
    )
    module, device, x = ptxemu.parse(ptx), ptxemu.Device(), np.zeros(1, np.uint32)
    for turn in range(3):
        device.launch(module, 1, 1, [x])
        assert x[0] == 5 + turn
    ptxemu.launch(module, 1, 1, [x])
    assert x[0] == 5


def test_address_of_a_variable_in_a_variable():
    module = """
      .global .align 4 .u32 target[4] = {1, 2, 3, 4};
      .global .align 8 .u64 pointer = target + 8;
    """
    body = "ld.global.u64 %rd5, [pointer]; ld.u32 %r1, [%rd5]; st.global.u32 [%rd3], %r1;"
    y = np.zeros(1, np.uint32)
    ptxemu.launch(copying(body, module=module), 1, 1, [np.zeros(1), y])
    assert y[0] == 3
    beyond = "mov.u64 %rd5, target; ld.global.u32 %r1, [%rd5+16];"
    with pytest.raises(ptxemu.OutOfBounds, match="variables of the module"):
        ptxemu.launch(copying(beyond, module=module), 1, 1, [np.zeros(1), y])


def test_checks_are_named():
    assert ptxemu.Checks.only("race").race
    assert not ptxemu.Checks.only("race").bounds
    with pytest.raises(ValueError, match="unknown checks"):
        ptxemu.Checks.only("luck")


STORE_TILE = """
  .shared .align 128 .b8 tile[128];
  mov.u32 %r0, %tid.x; mov.u32 %r1, tile; mad.lo.u32 %r2, %r0, 4, %r1; st.shared.u32 [%r2], %r0;
  fence.proxy.async.shared::cta; bar.sync 0;
  setp.eq.u32 %p1, %r0, 0; mov.b64 %rd0, m; cvta.param.u64 %rd0, %rd0; mov.u32 %r3, 0;
  @%p1 cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%rd0, {%r3, %r3}], [%r1];
  @%p1 cp.async.bulk.commit_group; @%p1 cp.async.bulk.wait_group 0;
"""


def test_tensor_map_of_an_output():
    ptx = kernel(".param .align 64 .b8 m[128]", STORE_TILE)
    y = np.zeros((4, 8), np.uint32)
    ptxemu.launch(ptx, 1, 32, [ptxemu.Output(ptxemu.TensorMap(y, (8, 4)))])
    assert np.array_equal(y.ravel(), np.arange(32))
    larger = np.zeros((6, 8), np.uint32)
    ptxemu.launch(ptx, 1, 32, [ptxemu.TensorMap(larger, (8, 4))])
    assert np.array_equal(larger.ravel()[:32], np.arange(32))
    with pytest.raises(ptxemu.UnwrittenOutput, match=r"16 of 48 .* first at index \(4, 0\)"):
        ptxemu.launch(ptx, 1, 32, [ptxemu.Output(ptxemu.TensorMap(larger, (8, 4)))])


def test_tensor_map_by_pointer_and_of_device_memory():
    by_pointer = STORE_TILE.replace("mov.b64 %rd0, m; cvta.param.u64 %rd0, %rd0;", "")
    ptx = kernel(".param .u64 m", "ld.param.u64 %rd0, [m];" + by_pointer)
    y = np.zeros((4, 8), np.uint32)
    ptxemu.launch(ptx, 1, 32, [ptxemu.Output(ptxemu.TensorMap(y, (8, 4)))])
    assert np.array_equal(y.ravel(), np.arange(32))
    device = ptxemu.Device()
    there = device.allocate(y.nbytes)
    device.launch(ptx, 1, 32, [ptxemu.TensorMap(there, (8, 4), dims=(8, 4), dtype="u32")])
    assert np.array_equal(device.read(there, (4, 8), np.uint32), y)
