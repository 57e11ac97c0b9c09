"""Kernels that set the fields of a tensor map make what the host makes."""

import numpy as np
import pytest

from sdpakit import ptxemu
from sdpakit.ptxemu.tensormap import MAP_BYTES, decode

HEAD = ".version 8.4\n.target sm_90a\n.address_size 64\n"


def replacing(*fields):
    lines = [
        f"tensormap.replace.tile.{name}.global.b1024.{kind} [%rd0], {values};"
        for name, kind, values in fields
    ]
    return (
        f"{HEAD}.visible .entry make(.param .u64 place, .param .u64 tensor) {{\n"
        ".reg .b64 %rd<2>; ld.param.u64 %rd0, [place]; ld.param.u64 %rd1, [tensor];\n"
        + "\n".join(lines)
        + "\nret;\n}\n"
    )


FIELDS = [
    ("global_address", "b64", "%rd1"),
    ("rank", "b32", "2"),
    ("box_dim", "b32", "0, 32"),
    ("box_dim", "b32", "1, 4"),
    ("box_dim", "b32", "2, 2"),
    ("global_dim", "b32", "0, 40"),
    ("global_dim", "b32", "1, 6"),
    ("global_dim", "b32", "2, 3"),
    ("global_stride", "b64", "0, 80"),
    ("global_stride", "b64", "1, 480"),
    ("element_stride", "b32", "0, 1"),
    ("elemtype", "b32", "10"),
    ("interleave_layout", "b32", "0"),
    ("swizzle_mode", "b32", "2"),
    ("fill_mode", "b32", "1"),
]


def made(fields):
    device = ptxemu.Device()
    tensor = np.zeros((3, 6, 40), np.uint16)
    place, there = device.allocate(np.zeros(MAP_BYTES, np.uint8)), device.allocate(tensor)
    device.launch(replacing(*fields), 1, 1, [place, there])
    on_host = ptxemu.TensorMap(tensor, (32, 4, 2), dtype="bf16", swizzle="64B", fill="nan")
    return decode(device.read(place, MAP_BYTES, np.uint8).tobytes()), decode(on_host.encode(there))


def test_all_fields():
    in_kernel, on_host = made(FIELDS)
    assert in_kernel == on_host


@pytest.mark.parametrize("index", [0, 1, 2, 5, 8, 11, 13, 14])
def test_each_field_matters(index):
    in_kernel, on_host = made(FIELDS[:index] + FIELDS[index + 1 :])
    assert in_kernel != on_host


@pytest.mark.parametrize(
    "field",
    [
        ("elemtype", "b32", "11"),
        ("swizzle_mode", "b32", "4"),
        ("rank", "b32", "5"),
        ("element_stride", "b32", "0, 2"),
        ("interleave_layout", "b32", "1"),
        ("nothing", "b32", "1"),
    ],
)
def test_what_the_emulator_lacks_is_refused(field):
    with pytest.raises(ptxemu.UnsupportedInstruction, match="tensor map"):
        made([field])
