"""Tensor maps: how a tensor lies in global memory, and which boxes of it tensor copies move.

On a GPU a driver encodes a map into 128 opaque bytes. Here they have an encoding of their own,
so that a map may be a parameter, or lie in global or constant memory and be copied about by the
kernel.
"""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

from sdpakit.ptxemu.errors import LaunchError
from sdpakit.ptxemu.scalars import TYPES, Array, ScalarType

Swizzle: TypeAlias = Literal["none", "32B", "64B", "128B"]
Fill: TypeAlias = Literal["zeros", "nan"]

MAP_BYTES = 128
CHUNK = 16  # swizzles move chunks of so many bytes
REPEAT = 1024  # and do the same again after so many

_MAGIC = b"ptxemuTM"
_LAYOUT = struct.Struct("<8sQBBBB4x5Q5Q5H")
_SWIZZLES: tuple[Swizzle, ...] = ("none", "32B", "64B", "128B")
_FILLS: tuple[Fill, ...] = ("zeros", "nan")
_KINDS = ("u8", "u16", "u32", "s32", "u64", "s64", "f16", "f32", "f64", "bf16")
_OF_DTYPE = {
    "u1": "u8", "u2": "u16", "u4": "u32", "i4": "s32", "u8": "u64", "i8": "s64",
    "f2": "f16", "f4": "f32", "f8": "f64",
}  # fmt: skip
_MOST_DIMENSIONS, _MOST_BOX = 5, 256


class TensorMap:
    """A tensor in global memory and the box that one copy moves, as ``cuTensorMapEncodeTiled``.

    Parameters
    ----------
    base : numpy.ndarray or int
        The tensor: an array, which is copied to the device and back like any other argument, or a
        pointer of `Device.allocate`.
    box : sequence of int
        Elements of a box, innermost dimension first.
    dims : sequence of int, optional
        Elements of the tensor, innermost first. By default those of the array.
    strides : sequence of int, optional
        Bytes from one element to the next of each dimension but the innermost. By default those
        of the array, or those of a dense tensor.
    dtype : str or dtype, optional
        Type of elements, by the name that PTX has for it (``"bf16"``) or as a NumPy dtype. By
        default that of the array.
    swizzle : {"none", "32B", "64B", "128B"}, default "none"
        How 16-byte chunks are placed in shared memory.
    fill : {"zeros", "nan"}, default "zeros"
        What elements outside the tensor are read as.

    Raises
    ------
    LaunchError
        If no GPU takes such a map, or if it lacks something.
    """

    def __init__(
        self,
        base: Array | int,
        box: Sequence[int],
        *,
        dims: Sequence[int] | None = None,
        strides: Sequence[int] | None = None,
        dtype: str | DTypeLike | None = None,
        swizzle: Swizzle = "none",
        fill: Fill = "zeros",
    ) -> None:
        self.base = base
        self.kind = _kind(base, dtype)
        self.box = tuple(int(size) for size in box)
        self.dims = tuple(int(size) for size in _dims(base, dims))
        self.strides = _strides(base, strides, self.dims, self.kind)
        self.swizzle, self.fill = swizzle, fill
        self._check()

    def encode(self, address: int) -> bytes:
        """Return the 128 bytes of the map of a tensor at a device address."""
        if address % 16:
            raise _refused(f"base address {address:#x}", "begin the tensor at a multiple of 16")
        pad = (0,) * (_MOST_DIMENSIONS - len(self.dims))
        return _LAYOUT.pack(
            _MAGIC,
            address,
            len(self.dims),
            _KINDS.index(self.kind.name),
            _SWIZZLES.index(self.swizzle),
            _FILLS.index(self.fill),
            *self.dims,
            *pad,
            self.kind.size,
            *self.strides,
            *pad,
            *self.box,
            *pad,
        ).ljust(MAP_BYTES, b"\0")

    def _check(self) -> None:
        rank, size = len(self.dims), self.kind.size
        if not 1 <= rank <= _MOST_DIMENSIONS or len(self.box) != rank:
            raise _refused(f"{rank} dims and a box of {len(self.box)}", "give 1 to 5 of both")
        if len(self.strides) != rank - 1:
            raise _refused(
                f"{len(self.strides)} strides for {rank} dims", "leave out that of the innermost"
            )
        if any(not 1 <= extent <= _MOST_BOX for extent in self.box):
            raise _refused(f"box {self.box}", f"give 1 to {_MOST_BOX} elements in each dimension")
        if any(not 1 <= extent <= 1 << 32 for extent in self.dims):
            raise _refused(f"dims {self.dims}", "give 1 to 2^32 elements in each dimension")
        if any(stride % 16 or not 0 < stride < 1 << 40 for stride in self.strides):
            raise _refused(f"strides {self.strides}", "give multiples of 16 bytes below 2^40")
        if self.box[0] * size % CHUNK:
            raise _refused(
                f"{self.box[0] * size} bytes in a row of the box", "make them a multiple of 16"
            )
        self._check_modes()

    def _check_modes(self) -> None:
        if self.swizzle not in _SWIZZLES:
            raise _refused(f"swizzle {self.swizzle!r}", f"give one of {_SWIZZLES}")
        if self.fill not in _FILLS or (self.fill == "nan" and self.kind.kind != "float"):
            raise _refused(
                f"fill {self.fill!r} of {self.kind.name}", 'give "zeros", or "nan" for floats'
            )
        span = _SWIZZLES.index(self.swizzle) and 16 << _SWIZZLES.index(self.swizzle)
        row = self.box[0] * self.kind.size
        if span and row > span:
            raise _refused(
                f"{row} bytes in a row of the box with swizzle {self.swizzle}",
                f"copy boxes of at most {span} bytes in the innermost dimension",
            )
        if span and math.prod(self.box) * self.kind.size % span:
            raise _refused(f"box {self.box} with swizzle {self.swizzle}", f"fill spans of {span}")


def _refused(what: str, remedy: str) -> LaunchError:
    return LaunchError(f"a tensor map cannot have {what}; {remedy}")


def _kind(base: Array | int, dtype: str | DTypeLike | None) -> ScalarType:
    if isinstance(dtype, str) and dtype in _KINDS:
        return TYPES[dtype]
    if dtype is None:
        if not isinstance(base, np.ndarray):
            raise _refused("a pointer without dtype", "give `dtype`")
        dtype = base.dtype
    code = np.dtype(dtype).str[1:]
    if code not in _OF_DTYPE:
        raise _refused(f"dtype {dtype}", f"give one of {_KINDS}")
    return TYPES[_OF_DTYPE[code]]


def _dims(base: Array | int, dims: Sequence[int] | None) -> Sequence[int]:
    if dims is not None:
        return dims
    if not isinstance(base, np.ndarray):
        raise _refused("a pointer without dims", "give `dims`")
    return base.shape[::-1]


def _strides(
    base: Array | int, strides: Sequence[int] | None, dims: tuple[int, ...], kind: ScalarType
) -> tuple[int, ...]:
    if strides is not None:
        return tuple(int(stride) for stride in strides)
    if isinstance(base, np.ndarray) and base.shape[::-1] == dims:
        if base.strides[-1] != kind.size:
            raise _refused("an innermost dimension with gaps", "pass a tensor dense in its rows")
        return base.strides[-2::-1]
    return tuple(kind.size * math.prod(dims[:axis]) for axis in range(1, len(dims)))


@dataclass(frozen=True, slots=True)
class Box:
    """Where one box lies.

    Attributes
    ----------
    inside : numpy.ndarray or None
        Of each row of the box, whether it is in the tensor; None if the whole box is.
    addresses : numpy.ndarray
        Device address of the first element inside the tensor, of each row that is.
    low, high : int
        Which bytes of those rows are inside; ``high <= low`` if none is.
    """

    inside: NDArray[np.bool_] | None
    addresses: NDArray[np.int64]
    low: int
    high: int


@dataclass(frozen=True)
class EncodedMap:
    """A tensor map as a copy finds it; named as in `TensorMap`, `strides` of all dimensions."""

    address: int
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    kind: ScalarType
    swizzle_bits: int
    fill: Fill

    @property
    def rank(self) -> int:
        """Dimensions."""
        return len(self.dims)

    @property
    def rows(self) -> int:
        """Rows of the box: of innermost elements."""
        return math.prod(self.box[1:])

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return self.box[0] * self.kind.size

    @property
    def box_bytes(self) -> int:
        """Bytes of a box, which a copy counts whether they are inside the tensor or not."""
        return self.rows * self.row_bytes

    @cached_property
    def _offsets(self) -> NDArray[np.int64]:
        """Bytes from the first row of a box to each."""
        offsets: NDArray[np.int64] = np.zeros(1, np.int64)
        for size, stride in zip(self.box[1:], self.strides[1:], strict=True):
            offsets = (np.arange(size)[:, None] * stride + offsets).reshape(-1)
        return offsets

    def place(self, coordinates: Sequence[int]) -> Box:
        """Return where the box at these coordinates, innermost first, lies."""
        places = list(zip(coordinates, self.box, self.dims, strict=True))
        if all(start >= 0 and start + size <= extent for start, size, extent in places):
            steps = (self.kind.size, *self.strides[1:])
            first = self.address + sum(map(operator.mul, coordinates, steps))
            return Box(None, first + self._offsets, 0, self.row_bytes)
        inside: NDArray[np.bool_] = np.ones(self.box[:0:-1], bool)
        offsets: NDArray[np.int64] = np.zeros(self.box[:0:-1], np.int64)
        for axis in range(1, self.rank):
            index = coordinates[axis] + np.arange(self.box[axis])
            index = index.reshape((-1,) + (1,) * (axis - 1))
            inside = inside & (index >= 0) & (index < self.dims[axis])
            offsets = offsets + index * self.strides[axis]
        start, size = coordinates[0], self.kind.size
        low = min(max(-start, 0), self.box[0]) * size
        high = max(min(self.dims[0] - start, self.box[0]), 0) * size
        rows = inside.reshape(-1)
        first = self.address + start * size + low
        return Box(rows, first + offsets.reshape(-1)[rows], low, high)

    def outside(self) -> Array:
        """Return a box of bytes that are all outside the tensor, one row of bytes a row."""
        if self.fill == "zeros":
            return np.zeros((self.rows, self.row_bytes), np.uint8)
        # A quiet NaN: the documentation does not say which one.
        bits = (1 << (8 * self.kind.size - 1)) - 1
        return np.full((self.rows, self.box[0]), bits, self.kind.storage).view(np.uint8)


@lru_cache(maxsize=64)
def chunk_order(start: int, size: int, bits: int) -> NDArray[np.int64]:
    """Return where a swizzle places each 16-byte chunk of bytes from address `start` on.

    Bits 4 and up of an address are changed by exclusive or with bits 7 and up: one bit for 32B,
    two for 64B, three for 128B. Positions count from `start`, which 128 divides.
    """
    first = start // CHUNK
    chunks = first + np.arange(size // CHUNK)
    return (chunks ^ (chunks >> 3 & (1 << bits) - 1)) - first


@lru_cache(maxsize=64)
def decode(raw: bytes) -> EncodedMap | None:
    """Return the map that 128 bytes encode; None if they are no map."""
    magic, address, rank, kind, swizzle, fill, *numbers = _LAYOUT.unpack(raw[: _LAYOUT.size])
    if magic != _MAGIC:
        return None
    dims, strides, box = (tuple(numbers[part : part + rank]) for part in (0, 5, 10))
    element = TYPES[_KINDS[kind]]
    # `tensormap.replace` sets no stride of the innermost dimension.
    strides = (element.size, *strides[1:])
    return EncodedMap(address, dims, strides, box, element, swizzle, _FILLS[fill])


# What `tensormap.replace` can set: where it is in the encoding, and its type there.
_FIELDS = {
    "global_address": (8, "<u8"),
    "rank": (16, "u1"),
    "elemtype": (17, "u1"),
    "swizzle_mode": (18, "u1"),
    "fill_mode": (19, "u1"),
    "global_dim": (24, "<u8"),
    "global_stride": (72, "<u8"),
    "box_dim": (104, "<u2"),
}
# Numbers of types in PTX; those that are not here have arithmetic of their own.
_ELEMENTS = {
    **dict(enumerate(("u8", "u16", "u32", "s32", "u64", "s64", "f16", "f32"))),
    9: "f64",
    10: "bf16",
}


def field(name: str, ordinal: int) -> tuple[int, np.dtype[np.unsignedinteger]] | None:
    """Return where a field of a map is in its encoding, and its type; None if it has no such.

    `ordinal` is the dimension, or which stride: 0 is that of the second dimension.
    """
    if name not in _FIELDS:
        return None
    offset, code = _FIELDS[name]
    dtype = np.dtype(code)
    return offset + ordinal * dtype.itemsize, dtype


def field_code(name: str, value: int) -> int | None:
    """Return how a value that PTX has for a field is encoded; None if it cannot be."""
    match name:
        case "rank":
            return value + 1 if value < _MOST_DIMENSIONS else None
        case "elemtype":
            return _KINDS.index(_ELEMENTS[value]) if value in _ELEMENTS else None
        case "swizzle_mode":
            return value if value < len(_SWIZZLES) else None
        case "fill_mode":
            return value if value < len(_FILLS) else None
    return value


def mark() -> Array:
    """Return the bytes that a map begins with."""
    return np.frombuffer(_MAGIC, np.uint8)
