import numpy as np
import pytest
from tests.ptxemu import texts

from sdpakit import ptxemu

TENSOR_LOAD = (
    "cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
)
TENSOR_STORE = "cp.async.bulk.tensor.{rank}d.global.shared::cta.tile.bulk_group"
TENSOR_REDUCE = "cp.reduce.async.bulk.tensor.{rank}d.global.shared::cta.{op}.tile.bulk_group"
PARAMETERS = ".param .align 64 .b8 map[128], .param .u64 y, .param .u64 coordinates"
SPARE = 1024  # the tile begins so far into shared memory

# The first thread does all but the last part, which copies `size` bytes of the tile to y.
HEAD = """
  .shared .align 1024 .b8 tile[{room}];
  .shared .align 8 .b64 barrier;
  mov.u32 %r20, tile;
  mov.u32 %r10, barrier;
  mov.b64 %rd9, map;
  cvta.param.u64 %rd10, %rd9;
  ld.param.u64 %rd1, [y];
  ld.param.u64 %rd2, [coordinates];
  ld.global.u32 %r1, [%rd2]; ld.global.u32 %r2, [%rd2+4]; ld.global.u32 %r3, [%rd2+8];
  ld.global.u32 %r4, [%rd2+12]; ld.global.u32 %r5, [%rd2+16];
  mov.u32 %r0, %tid.x;
  setp.eq.u32 %p1, %r0, 0;
"""
LOAD = """
  @%p1 mbarrier.init.shared::cta.b64 [%r10], 1;
  @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r10], {expected};
  prefetch.tensormap [%rd10];
  @%p1 {load} [%r20+{at}], [%rd10, {{{names}}}], [%r10]{more};
  bar.sync 0;
again:
  mbarrier.try_wait.parity.shared::cta.b64 %p7, [%r10], 0;
  @!%p7 bra again;
"""
COPY = """
  shl.b32 %r8, %r0, 4;
round:
  setp.ge.u32 %p2, %r8, {size};
  @%p2 bra copied;
  add.u32 %r7, %r20, %r8;
  cvt.u64.u32 %rd3, %r8;
  add.u64 %rd4, %rd1, %rd3;
  ld.shared.v4.b32 {{%r11, %r12, %r13, %r14}}, [%r7+{at}];
  st.global.v4.b32 [%rd4], {{%r11, %r12, %r13, %r14}};
  add.u32 %r8, %r8, 512;
  bra round;
copied:
"""
FILL = """
  shl.b32 %r8, %r0, 4;
round:
  setp.ge.u32 %p2, %r8, {size};
  @%p2 bra filled;
  add.u32 %r7, %r20, %r8;
  cvt.u64.u32 %rd3, %r8;
  add.u64 %rd4, %rd1, %rd3;
  ld.global.v4.b32 {{%r11, %r12, %r13, %r14}}, [%rd4];
  st.shared.v4.b32 [%r7+{at}], {{%r11, %r12, %r13, %r14}};
  add.u32 %r8, %r8, 512;
  bra round;
filled:
  fence.proxy.async.shared::cta;
  bar.sync 0;
"""
STORE = """
  @%p1 {store} [%rd10, {{{names}}}], [%r20+{at}];
  @%p1 cp.async.bulk.commit_group;
  @%p1 cp.async.bulk.wait_group 0;
"""


def names(rank):
    return ", ".join(f"%r{axis + 1}" for axis in range(rank))


def kernel(body, size, **parts):
    options = {
        "room": size + 2 * SPARE,
        "size": size,
        "at": 0,
        "expected": size,
        "more": "",
        **parts,
    }
    return texts.kernel(PARAMETERS, (HEAD + body).format(**options))


def load(tensor_map, coordinates, size, *, at=0, **parts):
    """Return the bytes of the tile that a load leaves."""
    rank = len(coordinates)
    found = np.zeros(size, np.uint8)
    text = kernel(
        LOAD + COPY, size, load=TENSOR_LOAD.format(rank=rank), names=names(rank), at=at,
        **{"expected": size, **parts},
    )  # fmt: skip
    run(text, tensor_map, found, coordinates)
    return found


def run(text, tensor_map, y, coordinates, blocks=1, **options):
    where = np.array([*coordinates, 0, 0, 0, 0], np.int32)[:5]
    return ptxemu.launch(text, blocks, 32, [tensor_map, y, where], **options)


def boxed(array, box, coordinates, fill=0):
    """Return a box of a tensor, element by element."""
    found = np.full(box[::-1], fill, array.dtype)
    for index in np.ndindex(*box[::-1]):
        at = tuple(i + c for i, c in zip(index, coordinates[::-1], strict=True))
        if all(0 <= i < n for i, n in zip(at, array.shape, strict=True)):
            found[index] = array[at]
    return found


def numbers(*shape, dtype=np.uint16, seed=0):
    random = np.random.default_rng(seed)
    if np.dtype(dtype).kind == "f":
        return random.standard_normal(shape).astype(dtype)
    return random.integers(0, 2 ** (8 * np.dtype(dtype).itemsize - 1), shape).astype(dtype)


CASES = [
    # shape, box, coordinates (innermost first)
    ((500,), (256,), (0,)),
    ((512,), (64,), (-13,)),
    ((12, 64), (64, 8), (0, 4)),
    ((9, 40), (32, 8), (16, 6)),
    ((9, 40), (32, 8), (-7, -3)),
    ((9, 40), (16, 4), (33, 2)),
    ((9, 40), (16, 4), (40, 0)),
    ((9, 40), (16, 4), (0, 9)),
    ((5, 6, 24), (16, 4, 3), (3, 4, 3)),
    ((3, 4, 5, 16), (8, 2, 3, 2), (10, -1, 2, 2)),
    ((2, 3, 4, 5, 16), (16, 2, 3, 2, 2), (0, 4, 2, 2, -1)),
]


@pytest.mark.parametrize(("shape", "box", "coordinates"), CASES)
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32, np.int64])
def test_boxes(shape, box, coordinates, dtype):
    size = np.dtype(dtype).itemsize
    shape, box = (*shape[:-1], shape[-1] * 2 // size * 8), (max(box[0], 16 // size), *box[1:])
    array = numbers(*shape, dtype=dtype)
    wanted = boxed(array, box, coordinates)
    found = load(ptxemu.TensorMap(array, box), coordinates, wanted.nbytes)
    assert (found.view(dtype).reshape(wanted.shape) == wanted).all()


def test_strided_tensors():
    whole = numbers(20, 96)
    wanted = boxed(whole[::2, :64], (64, 8), (0, 3))
    found = load(ptxemu.TensorMap(whole[::2, :64], (64, 8)), (0, 3), wanted.nbytes)
    assert (found.view(np.uint16).reshape(8, 64) == wanted).all()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_elements_outside_may_be_nan(dtype):
    array = numbers(8, 32, dtype=dtype)
    found = load(ptxemu.TensorMap(array, (16, 4), fill="nan"), (24, 6), 64 * array.itemsize)
    wanted = boxed(array, (16, 4), (24, 6), fill=np.nan)
    np.testing.assert_array_equal(found.view(dtype).reshape(4, 16), wanted)


# Said of rows and 16-byte chunks of a line of 128 bytes, as a table, not as arithmetic of
# addresses: chunk j of line r lies at place TABLE[r % 8][j].
LINES = {
    "32B": ["01234567"] * 1 + ["10325476"] * 1,
    "64B": ["01234567", "10325476", "23016745", "32107654"],
    "128B": [
        "01234567", "10325476", "23016745", "32107654",
        "45670123", "54761032", "67452301", "76543210",
    ],
}  # fmt: skip


def swizzled(tile, swizzle, start=0):
    """Return the bytes of a tile as a swizzle places them, from address `start` on."""
    raw = np.zeros(start + tile.nbytes, np.uint8)
    raw[start:] = np.ascontiguousarray(tile).view(np.uint8).ravel()
    found = raw.copy()
    for number in range(start // 128, len(raw) // 128):
        order = LINES[swizzle][number % len(LINES[swizzle])]
        for chunk, place in enumerate(order):
            line = number * 128
            found[line + 16 * int(place) :][:16] = raw[line + 16 * chunk :][:16]
    return found[start:]


@pytest.mark.parametrize("at", [0, 384, 1024])
@pytest.mark.parametrize(("swizzle", "width"), [("32B", 32), ("64B", 64), ("128B", 128)])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32])
def test_swizzled_loads(swizzle, width, dtype, at):
    inner = width // np.dtype(dtype).itemsize
    array = numbers(40, 2 * inner, dtype=dtype)
    tensor_map = ptxemu.TensorMap(array, (inner, 32), swizzle=swizzle)
    wanted = boxed(array, (inner, 32), (inner // 2, 10))
    found = load(tensor_map, (inner // 2, 10), wanted.nbytes, at=at)
    assert (found == swizzled(wanted, swizzle, at)).all()


@pytest.mark.parametrize("swizzle", ["none", "32B", "64B", "128B"])
def test_stores_are_loads_backwards(swizzle):
    width = 64 if swizzle == "none" else int(swizzle[:-1]) // 2
    tile = numbers(16, width)
    raw = tile.view(np.uint8).ravel() if swizzle == "none" else swizzled(tile, swizzle)
    out = numbers(20, 128, seed=1)
    wanted = out.copy()
    wanted[-3 + 3 : 13, 128 - width // 2 :] = tile[3:, : width // 2]
    text = kernel(FILL + STORE, raw.size, store=TENSOR_STORE.format(rank=2), names=names(2))
    tensor_map = ptxemu.TensorMap(out, (width, 16), swizzle=swizzle)
    run(text, tensor_map, raw, (128 - width // 2, -3))
    assert (out == wanted).all()


def test_stores_outside_of_the_tensor_do_nothing():
    out = numbers(20, 64)
    before = out.copy()
    y = np.zeros(2048, np.uint8)
    text = kernel(FILL + STORE, 2048, store=TENSOR_STORE.format(rank=2), names=names(2))
    run(text, ptxemu.TensorMap(out, (64, 16)), y, (0, 20))
    run(text, ptxemu.TensorMap(out, (64, 16)), y, (-64, 0))
    assert (out == before).all()


@pytest.mark.parametrize(
    ("op", "dtype", "function"),
    [
        ("add", np.float32, np.add),
        ("add", np.float16, np.add),
        ("add", np.uint32, np.add),
        ("min", np.int32, np.minimum),
        ("max", np.float16, np.maximum),
        ("and", np.uint32, np.bitwise_and),
        ("xor", np.uint64, np.bitwise_xor),
    ],
)
def test_reductions_take_the_type_of_the_map(op, dtype, function):
    tile, out = numbers(8, 32, dtype=dtype), numbers(12, 40, dtype=dtype, seed=1)
    wanted = out.copy()
    wanted[6:, 24:] = function(out[6:, 24:], tile[:6, :16])
    text = kernel(
        FILL + STORE, tile.nbytes, store=TENSOR_REDUCE.format(rank=2, op=op), names=names(2)
    )
    run(text, ptxemu.TensorMap(out, (32, 8)), tile.view(np.uint8).ravel(), (24, 6))
    assert (out == wanted).all()


def test_maps_by_pointer():
    array = numbers(16, 64)
    wanted = boxed(array, (64, 8), (0, 4))
    y = np.zeros(1024, np.uint8)
    text = kernel(LOAD + COPY, 1024, load=TENSOR_LOAD.format(rank=2), names=names(2))
    text = text.replace(".param .align 64 .b8 map[128]", ".param .u64 map")
    text = text.replace("mov.b64 %rd9, map;", "").replace(
        "cvta.param.u64 %rd10, %rd9;", "ld.param.u64 %rd10, [map];"
    )
    run(text, ptxemu.TensorMap(array, (64, 8)), y, (0, 4))
    assert (y.view(np.uint16).reshape(8, 64) == wanted).all()


def test_a_kernel_may_copy_a_map():
    array = numbers(16, 64)
    wanted = boxed(array, (64, 8), (0, 4))
    y = np.zeros(1024, np.uint8)
    copying = """
      ld.param.b64 %rd20, [map+{n}];
      st.global.b64 [copy+{n}], %rd20;
    """
    copied = "".join(copying.replace("{n}", str(n)) for n in range(0, 128, 8))
    copied += "mov.u64 %rd10, copy;\nfence.proxy.tensormap::generic.acquire.gpu [%rd10], 128;\n"
    text = kernel(copied + LOAD + COPY, 1024, load=TENSOR_LOAD.format(rank=2), names=names(2))
    text = text.replace(".visible", ".global .align 64 .b8 copy[128];\n.visible", 1)
    run(text, ptxemu.TensorMap(array, (64, 8)), y, (0, 4))
    assert (y.view(np.uint16).reshape(8, 64) == wanted).all()


MULTICAST = """
  mov.u32 %r16, %cluster_ctarank;
  setp.eq.u32 %p3, %r16, 0;
  and.pred %p3, %p3, %p1;
  @%p1 mbarrier.init.shared::cta.b64 [%r10], 1;
  @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r10], {expected};
  barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
  mov.u16 %h1, 3;
  @%p3 {load} [%r20+{at}], [%rd10, {{{names}}}], [%r10], %h1;
again:
  mbarrier.try_wait.parity.shared::cta.b64 %p7, [%r10], 0;
  @!%p7 bra again;
  mad.wide.u32 %rd1, %r16, 1024, %rd1;
"""
LEAVE = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;\n"


@pytest.mark.parametrize("hint", ["", ".L2::cache_hint"])
def test_multicast(hint):
    array = numbers(16, 64)
    y = np.zeros((2, 1024), np.uint8)
    form = TENSOR_LOAD.format(rank=2) + ".multicast::cluster" + hint
    body = MULTICAST.replace("%h1;\nagain", "%h1, %rd30;\nagain") if hint else MULTICAST
    text = kernel(body + COPY + LEAVE, 1024, load=form, names=names(2), at=1024)
    run(text, ptxemu.TensorMap(array, (64, 8), swizzle="128B"), y, (0, 4), blocks=2, cluster=2)
    wanted = swizzled(boxed(array, (64, 8), (0, 4)), "128B")
    assert (y == wanted).all()


def test_counted_bytes_are_those_of_the_whole_box():
    array = numbers(4, 64)
    with pytest.raises(ptxemu.Deadlock, match="lacks 0 of 1 arrivals and 8 bytes"):
        load(ptxemu.TensorMap(array, (64, 8)), (32, 2), 1024, expected=1032)
    with pytest.raises(ptxemu.BarrierMisuse, match="512 bytes more"):
        load(ptxemu.TensorMap(array, (64, 8)), (32, 2), 1024, expected=512)


def test_tensors_are_checked_like_other_memory():
    array = numbers(16, 64)
    too_long = ptxemu.TensorMap(array, (64, 8), dims=(64, 17))
    assert load(too_long, (0, 8), 1024).any()
    with pytest.raises(ptxemu.OutOfBounds, match="16 bytes at global address"):
        load(too_long, (0, 9), 1024)


def test_what_was_not_written_is_not_read():
    array = numbers(16, 64)
    device = ptxemu.Device()
    pointer = device.allocate(array.nbytes)
    y, where = device.allocate(np.zeros(1024, np.uint8)), device.allocate(np.zeros(5, np.int32))
    text = kernel(LOAD + COPY, 1024, load=TENSOR_LOAD.format(rank=2), names=names(2))
    tensor_map = ptxemu.TensorMap(pointer, (64, 8), dims=(64, 16), dtype="u16")
    with pytest.raises(ptxemu.UninitialisedRead):
        device.launch(text, 1, 32, [tensor_map, y, where])
    pointer = device.allocate(array)
    tensor_map = ptxemu.TensorMap(pointer, (64, 8), dims=(64, 16), dtype="u16")
    device.launch(text, 1, 32, [tensor_map, y, where])
    assert (device.read(y, (8, 64), np.uint16) == array[:8]).all()


def test_tiles_begin_at_multiples_of_128():
    array = numbers(16, 64)
    with pytest.raises(ptxemu.Misaligned, match="shared address 0x40 is no multiple of 128"):
        load(ptxemu.TensorMap(array, (64, 8)), (0, 0), 1024, at=64)


def test_bytes_that_are_no_map():
    y = np.zeros(1024, np.uint8)
    text = kernel(LOAD + COPY, 1024, load=TENSOR_LOAD.format(rank=2), names=names(2))
    with pytest.raises(ptxemu.OutOfBounds, match="there is no tensor map at address"):
        run(text, bytes(128), y, (0, 0))


def test_maps_at_other_addresses():
    array = numbers(16, 64)
    y = np.zeros(1024, np.uint8)
    text = kernel(LOAD + COPY, 1024, load=TENSOR_LOAD.format(rank=2), names=names(2))
    broken = text.replace("[%rd10, {", "[%rd10+8, {")
    with pytest.raises(ptxemu.Misaligned, match=r"tensor map .* no multiple of 64"):
        run(broken, ptxemu.TensorMap(array, (64, 8)), y, (0, 0))
    with pytest.raises(ptxemu.OutOfBounds, match="no tensor map"):
        run(text.replace("[%rd10, {", "[%rd10+64, {"), ptxemu.TensorMap(array, (64, 8)), y, (0, 0))


def test_a_copy_of_other_dimensions_than_the_map():
    array = numbers(16, 64)
    with pytest.raises(ptxemu.OutOfBounds, match="has 2 dimensions, the copy 3"):
        load(ptxemu.TensorMap(array, (64, 8)), (0, 0, 0), 1024)


@pytest.mark.parametrize(
    "line",
    [
        "cp.async.bulk.tensor.3d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes"
        " [%r20], [%rd10, {%r1, %r2, %r3}], [%r10], {%h1};",
        "cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4.mbarrier::complete_tx::bytes"
        " [%r20], [%rd10, {%r1, %r2, %r3, %r4, %r5}], [%r10];",
        "cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes"
        ".cta_group::2 [%r20], [%rd10, {%r1, %r2}], [%r10];",
        "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%rd10, {%r1}], [%r20];",
        "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%rd10], [%r20];",
    ],
)
def test_forms_that_are_lacking(line):
    text = texts.kernel(PARAMETERS, HEAD.format(room=1024) + line)
    with pytest.raises(ptxemu.UnsupportedInstruction, match="the emulator has no"):
        run(text, bytes(128), np.zeros(8, np.uint8), ())
