import numpy as np
import pytest

from sdpakit.ptxemu.errors import LaunchError
from sdpakit.ptxemu.tensormap import MAP_BYTES, TensorMap, chunk_order, decode

BASE = 0x7F0000000100


def test_a_map_survives_its_bytes():
    array = np.zeros((3, 40, 64), np.float16)
    raw = TensorMap(array, (64, 8, 1), dtype="bf16", swizzle="128B", fill="nan").encode(BASE)
    assert len(raw) == MAP_BYTES
    found = decode(raw)
    assert found is not None
    assert (found.address, found.dims, found.strides) == (BASE, (64, 40, 3), (2, 128, 5120))
    assert (found.box, found.kind.name, found.swizzle_bits, found.fill) == (
        (64, 8, 1), "bf16", 3, "nan",
    )  # fmt: skip
    assert (found.rows, found.row_bytes, found.box_bytes) == (8, 128, 1024)


def test_strides_of_an_array_are_those_of_the_view():
    view = np.zeros((10, 64), np.float32)[::2, :32]
    assert TensorMap(view, (8, 2)).strides == (512,)
    assert TensorMap(BASE, (8, 2), dims=(32, 5), dtype="f32").strides == (128,)


def test_arrays_that_no_map_describes():
    with pytest.raises(LaunchError, match="innermost dimension with gaps"):
        TensorMap(np.zeros((8, 64), np.float16)[:, ::2], (16, 8))
    with pytest.raises(LaunchError, match="fill spans of 128"):
        TensorMap(np.zeros((8, 64), np.float16), (8, 7), swizzle="128B")


def test_bytes_that_are_no_map():
    assert decode(bytes(MAP_BYTES)) is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"box": (64,)}, "dims and a box"),
        ({"box": (64, 257)}, "1 to 256"),
        ({"box": (0, 1)}, "1 to 256"),
        ({"box": (4, 8)}, "multiple of 16"),
        ({"strides": (100,)}, "multiples of 16"),
        ({"strides": (2, 128)}, "leave out"),
        ({"swizzle": "64B"}, "at most 64 bytes"),
        ({"swizzle": "96B"}, "give one of"),
        ({"dtype": "s32", "fill": "nan", "strides": (256,)}, "floats"),
        ({"dtype": "complex64"}, "give one of"),
        ({"dtype": None}, "give `dtype`"),
        ({"dims": None}, "give `dims`"),
        ({"dims": (1 << 33, 2)}, "2\\^32"),
    ],
)
def test_maps_that_no_gpu_takes(options, message):
    given = {"box": (64, 8), "dims": (64, 32), "strides": (128,), "dtype": "f16", **options}
    with pytest.raises(LaunchError, match=message):
        TensorMap(BASE, given.pop("box"), **given)
    with pytest.raises(LaunchError, match="multiple of 16"):
        TensorMap(BASE, (64, 8), dims=(64, 32), dtype="f16").encode(BASE + 8)


@pytest.mark.parametrize(
    ("bits", "placed"),
    [
        (0, lambda row, chunk: chunk),
        (1, lambda row, chunk: chunk ^ (row // 4 % 2)),  # rows of 32 bytes, 2 chunks
        (2, lambda row, chunk: chunk ^ (row // 2 % 4)),  # rows of 64 bytes, 4 chunks
        (3, lambda row, chunk: chunk ^ (row % 8)),  # rows of 128 bytes, 8 chunks
    ],
)
def test_swizzles_permute_the_chunks_of_a_row_by_its_number(bits, placed):
    chunks = 1 << bits if bits else 8
    order = chunk_order(0, 32 * chunks * 16, bits).reshape(32, chunks)
    for row in range(32):
        for chunk in range(chunks):
            assert order[row, chunk] == row * chunks + placed(row, chunk)


@pytest.mark.parametrize("bits", [1, 2, 3])
def test_swizzles_go_by_addresses_not_by_places_in_the_box(bits):
    whole = chunk_order(0, 4096, bits)
    part = chunk_order(384, 1024, bits)
    assert (part + 24 == whole[24 : 24 + 64]).all()
    assert sorted(part) == list(range(64))


def test_boxes_that_stick_out_of_the_tensor():
    found = decode(TensorMap(BASE, (8, 2, 2), dims=(20, 3, 4), dtype="u32").encode(BASE))
    assert found is not None
    box = found.place((-4, 2, 3))
    assert box.inside is not None
    assert box.inside.tolist() == [True, False, False, False]
    assert (box.low, box.high) == (16, 32)
    assert box.addresses.tolist() == [BASE + (3 * 3 + 2) * 80]
    box = found.place((16, -1, 0))
    assert box.inside is not None
    assert box.inside.tolist() == [False, True, False, True]
    assert (box.low, box.high) == (0, 16)
    assert box.addresses.tolist() == [BASE + 64, BASE + 240 + 64]
    box = found.place((24, 0, 0))
    assert box.high <= box.low
    box = found.place((-20, 0, 0))
    assert box.high <= box.low


def test_the_fill_of_nan_is_one():
    for kind, dtype in (("f16", np.float16), ("f32", np.float32), ("f64", np.float64)):
        found = decode(TensorMap(BASE, (16, 2), dims=(16, 2), dtype=kind, fill="nan").encode(BASE))
        assert found is not None
        assert np.isnan(found.outside().view(dtype)).all()
        assert found.outside().shape == (2, found.row_bytes)
