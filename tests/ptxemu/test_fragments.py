"""Layouts of fragments and of matrices in shared memory, against those of CuTe."""

from pathlib import Path

import numpy as np
import pytest

from sdpakit.ptxemu import fragments
from sdpakit.ptxemu.descriptors import SharedTile, decode
from sdpakit.ptxemu.elements import ELEMENTS
from sdpakit.ptxemu.errors import UnsupportedInstruction

DATA = Path(__file__).parent / "data" / "cute_layouts.txt"
CUTE = {line.split()[0]: np.array(line.split()[1:], int) for line in DATA.read_text().splitlines()}


@pytest.mark.parametrize(
    ("name", "fragment"),
    [
        ("A80", fragments.left(16, 16, "bf16")),
        ("B80", fragments.right(16, 16, "bf16")),
        ("C80", fragments.accumulator(16, 16, "f32")),
        ("A90", fragments.warpgroup_left(16, "f16")),
        ("C90", fragments.warpgroup_accumulator(128, 16, "f32")),
    ],
)
def test_fragments_are_those_of_cute(name, fragment):
    linear = fragment.rows + fragment.columns * fragment.shape[0]
    assert np.array_equal(linear.reshape(-1), CUTE[name])


DEPTHS = {"f16": (8, 16), "tf32": (4, 8), "s8": (16, 32), "f64": (4, 8, 16)}
ALL = [
    *(fragments.left(16, depth, kind) for kind, depths in DEPTHS.items() for depth in depths),
    *(fragments.right(16, depth, kind) for kind, depths in DEPTHS.items() for depth in depths),
    *(fragments.accumulator(16, 16, kind) for kind in ("f16", "f32", "s32", "f64")),
    *(layout(8, 4, "f64") for layout in (fragments.left, fragments.right, fragments.accumulator)),
    *(layout(8, 16, "u8") for layout in (fragments.left, fragments.right)),
    *(fragments.warpgroup_left(*of) for of in ((16, "bf16"), (8, "tf32"), (32, "e4m3"))),
    *(fragments.warpgroup_accumulator(n, 16, of) for n in (8, 24, 256) for of in ("f16", "f32")),
    fragments.row_of_eight(),
]


@pytest.mark.parametrize("fragment", ALL, ids=range(len(ALL)))
def test_every_element_is_held_once_and_packed_tiles_hold_it_where_they_say(fragment):
    rows, columns = fragment.shape
    assert fragment.rows.size == rows * columns
    assert sorted(fragment.row_order) == list(range(rows))
    assert sorted(fragment.column_order) == list(range(columns))
    words = np.zeros(rows * columns // fragment.per_register, (np.int64, fragment.per_register))
    element = fragment.rows * columns + fragment.columns
    for register, place in enumerate(fragment.places):
        first = register * fragment.per_register
        words[place] = element[:, first : first + fragment.per_register]
    natural = np.arange(rows * columns).reshape(rows, columns)
    packed = natural[np.ix_(fragment.row_order, fragment.column_order)]
    assert np.array_equal(words.reshape(rows, columns), packed)


@pytest.mark.parametrize(
    ("rows", "depth", "kind"),
    [
        (8, 4, "f64"),
        (8, 16, "s8"),
        *((16, depth, kind) for kind, depths in DEPTHS.items() for depth in depths),
    ],
)
def test_operands_of_a_product_are_packed_alike(rows, depth, kind):
    left, right = fragments.left(rows, depth, kind), fragments.right(rows, depth, kind)
    result = fragments.accumulator(rows, depth, "f32")
    assert np.array_equal(left.column_order, right.column_order)
    assert np.array_equal(left.row_order, result.row_order)
    assert np.array_equal(right.row_order, result.column_order)


def test_layouts_say_which_figure_they_are():
    left = "MMA .m16n8k16 fragment layout for matrix A with .f16 / .bf16 type"
    assert fragments.left(16, 16, "f16").figure == left
    right = "MMA .m16n8k32 fragment layout for matrix B with .u8 / .s8 type"
    assert fragments.right(16, 32, "s8").figure == right
    result = "WGMMA .m64nNk16 register fragment layout for accumulator matrix D"
    assert fragments.warpgroup_accumulator(8, 16, "f32").figure == result


def test_a_layout_without_a_stride_is_refused():
    odd = fragments.Fragment("odd", np.array([[0], [3], [1], [2]]), np.zeros((4, 1), int), 1)
    bent = fragments.Fragment(
        "bent", np.array([[0, 1], [2, 2], [3, 0], [1, 3]]), np.zeros((4, 2), int), 1
    )
    assert odd.places[0] == slice(0, 4, 1)  # rows are taken in the order of threads
    with pytest.raises(ValueError, match="bent: registers have no constant stride"):
        _ = bent.places


# ------------------------------------------------------------------------------------ descriptors

NATURAL = np.arange(64)
SWIZZLES = {"none": 0, "128B": 1, "64B": 2, "32B": 3}


def descriptor(start, leading, stride, swizzle):
    bits = start >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | SWIZZLES[swizzle] << 62
    return np.array([bits], np.uint64)


def element_places(tile, value):
    """The place of each element in bytes, from those of runs of 16 bytes: (rows, depth)."""
    chunks = tile.addresses(decode(value))[0]
    places = (chunks[:, None] + np.arange(0, 16, tile.element.size)).reshape(-1)
    if tile.mn_major:
        return places.reshape(tile.depth, -1).T
    return places.reshape(-1, tile.depth)


@pytest.mark.parametrize(
    ("name", "swizzle", "columns", "pitch"),
    [("K128", "128B", 64, 128), ("K64", "64B", 32, 64), ("K32", "32B", 16, 32)],
)
def test_k_major_descriptors_address_what_cute_lays_out(name, swizzle, columns, pitch):
    places = CUTE[name].reshape(64, columns) * 2
    tile = SharedTile(ELEMENTS["bf16"], NATURAL, 16, mn_major=False)
    for k in range(0, columns, 16):
        value = descriptor(2 * k, 16, 8 * pitch, swizzle)
        assert np.array_equal(element_places(tile, value), places[:, k : k + 16])


def test_mn_major_descriptors_address_what_cute_lays_out():
    places = CUTE["MN128"].reshape(128, 64) * 2
    tile = SharedTile(ELEMENTS["f16"], np.arange(128), 16, mn_major=True)
    for k in range(0, 64, 16):
        start, leading, stride = places[0, k], places[64, 0], places[0, 8]
        value = descriptor(int(start), int(leading), int(stride), "128B")
        assert np.array_equal(element_places(tile, value), places[:, k : k + 16])


@pytest.mark.parametrize(
    ("name", "leading", "stride", "swizzle", "mn_major"),
    [
        ("KINTER", 1024, 128, "none", False),
        ("MNINTER", 1024, 128, "none", True),
        ("MN32", 256, 1024, "32B", True),
        ("MN64", 512, 1024, "64B", True),
    ],
)
def test_descriptors_of_cute_address_what_cute_lays_out(name, leading, stride, swizzle, mn_major):
    places = CUTE[name].reshape(64, 32) * 2
    tile = SharedTile(ELEMENTS["f16"], NATURAL, 16, mn_major=mn_major)
    for k in (0, 16):
        value = descriptor(int(places[0, k]), leading, stride, swizzle)
        assert np.array_equal(element_places(tile, value), places[:, k : k + 16])


@pytest.mark.parametrize("mn_major", [False, True])
def test_without_swizzle_core_matrices_are_where_the_two_offsets_say(mn_major):
    tile = SharedTile(ELEMENTS["f16"], NATURAL, 16, mn_major=mn_major)
    places = element_places(tile, descriptor(4096, 2048, 128, "none"))
    row, k = np.ogrid[:64, :16]
    if mn_major:
        expected = row % 8 * 2 + row // 8 * 128 + k % 8 * 16 + k // 8 * 2048
    else:
        expected = row % 8 * 16 + row // 8 * 128 + k % 8 * 2 + k // 8 * 2048
    assert np.array_equal(places, 4096 + expected)


@pytest.mark.parametrize(("swizzle", "pitch"), [("128B", 128), ("64B", 64), ("32B", 32)])
def test_mn_major_swizzled_columns_are_leading_apart_and_groups_of_k_stride(swizzle, pitch):
    tile = SharedTile(ELEMENTS["f16"], NATURAL, 16, mn_major=True)
    places = element_places(tile, descriptor(0, 4096, 8 * pitch, swizzle))
    row, k = np.ogrid[:64, :16]
    across = pitch // 2
    plain = row % across * 2 + row // across * 4096 + k % 8 * pitch + k // 8 * 8 * pitch
    mask = pitch // 16 - 1
    assert np.array_equal(places, plain ^ (plain >> 7 & mask) << 4)


def test_descriptors_of_several_warpgroups_may_differ():
    tile = SharedTile(ELEMENTS["f16"], NATURAL, 16, mn_major=False)
    values = [descriptor(0, 16, 1024, "128B"), descriptor(512, 128, 256, "none")]
    both = tile.addresses(decode(np.concatenate(values)))
    for row, value in zip(both, values, strict=True):
        assert np.array_equal(row, tile.addresses(decode(value))[0])


def test_rows_come_in_the_order_asked_for():
    order = np.roll(NATURAL, 5)
    for mn_major in (False, True):
        plain = SharedTile(ELEMENTS["f16"], NATURAL, 16, mn_major=mn_major)
        rolled = SharedTile(ELEMENTS["f16"], order, 16, mn_major=mn_major)
        memory = np.arange(4096, dtype=np.uint16).view(np.uint8)
        value = descriptor(0, 1024, 1024, "64B")

        def matrix(tile, memory=memory, value=value):
            places = tile.addresses(decode(value))[0][:, None] + np.arange(16)
            return tile.matrices(np.ascontiguousarray(memory[places]), 1)[0]

        assert np.array_equal(matrix(rolled), matrix(plain)[order])


def test_a_base_offset_is_refused():
    with pytest.raises(UnsupportedInstruction, match="base offset"):
        decode(np.array([1 << 49], np.uint64))


# --------------------------------------------------------------------------------------- elements


def test_half_precision_numbers_are_decoded_as_numpy_does():
    raw = np.arange(65536, dtype=np.uint16)
    finite = raw[(raw & 0x7C00) != 0x7C00]
    for some in (raw, finite):
        expected = some.view(np.float16).astype(np.float32)
        assert np.array_equal(
            ELEMENTS["f16"].decode(some).view(np.uint32), expected.view(np.uint32)
        )


def test_other_elements_are_decoded_as_their_format_says():
    bits = np.array([0x3F80, 0xC000, 0x7F80, 0x0001], np.uint16)
    assert ELEMENTS["bf16"].decode(bits).tolist() == [1.0, -2.0, np.inf, 2.0**-133]
    tf32 = ELEMENTS["tf32"].decode(np.array([0x3F801FFF, 0x3F802000], np.uint32))
    assert tf32.tolist() == [1.0, 1 + 2.0**-10]
    bytes_ = np.array([0, 0x38, 0xC0, 0x7E, 0x01, 0x7F, 0x80], np.uint8)
    e4m3 = ELEMENTS["e4m3"].decode(bytes_)
    assert np.array_equal(e4m3, [0, 1, -2, 448, 2.0**-9, np.nan, -0.0], equal_nan=True)
    bytes_ = np.array([0x3C, 0xC0, 0x7B, 0x7C, 0xFC, 0x7D, 0x01], np.uint8)
    e5m2 = ELEMENTS["e5m2"].decode(bytes_)
    expected = [1, -2, 57344, np.inf, -np.inf, np.nan, 2.0**-16]
    assert np.array_equal(e5m2, expected, equal_nan=True)
    assert ELEMENTS["s8"].decode(np.array([255, 127], np.uint8)).tolist() == [-1, 127]
    assert ELEMENTS["u8"].decode(np.array([255, 127], np.uint8)).tolist() == [255, 127]
