"""Matrices of ``wgmma`` in shared memory: what a descriptor says, and where it puts each element.

A descriptor has, from its lowest bit: the start address (14 bits), the leading dimension's byte
offset (14 bits from bit 16) and the stride dimension's (14 bits from bit 32), all in units of 16
bytes; the base offset (3 bits from bit 49); and the swizzle (2 bits from bit 62). See "Matrix
Descriptor Format" of the PTX ISA, and "Strides" and "Canonical Layouts" for what the offsets mean:

- K-major: rows of 16 bytes along k; 8 of them, one a row of the matrix, make a core matrix. Groups
  of 8 rows are `stride` apart. The second 16 bytes of a row follow at once in swizzled layouts, and
  at `leading` without a swizzle.
- MN-major: rows of 16 bytes along m or n; 8 of them, one a k, make a core matrix. With a swizzle,
  groups of 8 k are `stride` apart, and columns of 128, 64 or 32 bytes `leading`. Without one it is
  the other way round: neighbouring rows of 16 bytes are `stride` apart, groups of 8 k `leading`.

A swizzle exchanges rows of 16 bytes: bits 4 to 6 of an address are xored with bits 7 to 9 (of
these, the lowest 3, 2 or 1 for patterns of 128, 64 or 32 bytes).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from sdpakit.ptxemu.elements import Element
from sdpakit.ptxemu.errors import UnsupportedInstruction
from sdpakit.ptxemu.scalars import Array

Addresses = NDArray[np.int64]
CHUNK = 16  # bytes that stay together in every layout

# By the swizzle field of a descriptor: bytes of a row of a pattern, and which bits are exchanged.
_PITCH = (16, 128, 64, 32)
_SWIZZLE_MASK = np.array([0, 7, 3, 1])


@dataclass(frozen=True, slots=True)
class Descriptors:
    """The fields of some descriptors, in bytes."""

    start: Addresses
    leading: Addresses
    stride: Addresses
    swizzle: Addresses


def decode(values: NDArray[np.uint64]) -> Descriptors:
    """Return the fields of descriptors; of one alone, if all are the same.

    Raises
    ------
    UnsupportedInstruction
        If one has a base offset: a pattern that does not begin at a multiple of its size.
    """
    bits = np.ascontiguousarray(values).view(np.int64)
    if (bits == bits[0]).all():
        bits = bits[:1]
    if (bits >> 49 & 7).any():
        raise UnsupportedInstruction(
            "the emulator has no matrix descriptors with a base offset; align swizzled tiles to "
            "1024, 512 or 256 bytes (swizzles of 128, 64, 32 bytes), then the base offset is 0"
        )
    return Descriptors(
        start=(bits & 0x3FFF) << 4,
        leading=(bits >> 16 & 0x3FFF) << 4,
        stride=(bits >> 32 & 0x3FFF) << 4,
        swizzle=bits >> 62 & 3,
    )


class SharedTile:
    """A matrix operand in shared memory.

    Parameters
    ----------
    element : Element
        Type of its elements.
    order : numpy.ndarray
        The rows (m of A, n of B) in the order in which the product wants them.
    depth : int
        Elements along k.
    mn_major : bool
        Whether rows lie along m or n in memory instead of along k.
    """

    def __init__(
        self, element: Element, order: NDArray[np.intp], depth: int, *, mn_major: bool
    ) -> None:
        self.element, self.depth, self.mn_major = element, depth, mn_major
        self._order = tuple(order.tolist())
        self._rows = order

    def addresses(self, descriptors: Descriptors) -> Addresses:
        """Return the shared addresses of the 16 bytes after each: one row a descriptor."""
        fields = np.stack([descriptors.leading, descriptors.stride, descriptors.swizzle], axis=1)
        if (fields == fields[0]).all():
            steps = self._steps(*fields[0].tolist())[None]
        else:
            steps = np.stack([self._steps(*row) for row in fields.tolist()])
        plain: Addresses = descriptors.start[:, None] + steps
        mask = _SWIZZLE_MASK[descriptors.swizzle][:, None]
        swizzled: Addresses = plain ^ ((plain >> 7 & mask) << 4)
        return swizzled

    def _steps(self, leading: int, stride: int, swizzle: int) -> Addresses:
        pitch = _PITCH[swizzle]
        if self.mn_major:
            return _mn_major_steps(len(self._order), self.depth, leading, stride, pitch)
        return _k_major_steps(self._order, leading, stride, pitch)

    def matrices(self, chunks: Array, count: int) -> Array:
        """Return numbers of shape (count, rows, depth) from the 16 bytes at each of `addresses`."""
        raw = chunks.view(self.element.raw)
        if not self.mn_major:
            return self.element.decode(raw.reshape(count, len(self._order), self.depth))
        values = self.element.decode(raw.reshape(count, self.depth, len(self._order)))
        ordered: Array = values.take(self._rows, axis=2, mode="clip").transpose(0, 2, 1)
        return ordered


@lru_cache(maxsize=256)
def _k_major_steps(rows: tuple[int, ...], leading: int, stride: int, pitch: int) -> Addresses:
    """Return where the two rows of 16 bytes of each row of the matrix are, before the swizzle."""
    row = np.array(rows, np.int64)[:, None]
    second = CHUNK if pitch > CHUNK else leading
    steps: Addresses = row % 8 * pitch + row // 8 * stride + np.array([0, second])
    return steps.reshape(-1)


@lru_cache(maxsize=256)
def _mn_major_steps(rows: int, depth: int, leading: int, stride: int, pitch: int) -> Addresses:
    """Return where the rows of 16 bytes of each k are; elements have 2 bytes."""
    k = np.arange(depth, dtype=np.int64)[:, None]
    chunk = np.arange(rows // 8, dtype=np.int64)
    steps: Addresses
    if pitch == CHUNK:
        steps = chunk * stride + k % 8 * CHUNK + k // 8 * leading
    else:
        across = pitch // CHUNK
        steps = chunk % across * CHUNK + chunk // across * leading + k % 8 * pitch + k // 8 * stride
    return steps.reshape(-1)
