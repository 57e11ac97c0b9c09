"""Float formats that only conversions know: ``e4m3``, ``e5m2``, ``tf32``."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sdpakit.ptxemu.scalars import Array
from sdpakit.ptxemu.steps.floats import F32

_NAN_CODE = np.uint8(0x7F)
_SIGN_CODE = np.uint8(0x80)


@dataclass(frozen=True)
class ByteFloat:
    """A float of eight bits: bits of its fraction, least exponent, largest number."""

    fraction: int
    least: int
    largest: float

    def encode(self, values: Array) -> Array:
        """Return the codes of float32, rounded to nearest, too large ones made the largest."""
        size = np.minimum(np.abs(values).astype(np.float64), self.largest)
        rounded = np.rint(size / self._unit(size)) * self._unit(size)
        # If rounding reached the next power of two, its code is the next one all the same.
        exponent = self._exponent(rounded)
        steps = np.rint(np.ldexp(rounded, self.fraction - exponent)).astype(np.int64)
        codes = (((exponent - self.least) << self.fraction) + steps).astype(np.uint8)
        codes = np.where(np.isnan(values), _NAN_CODE, codes)
        return np.where(np.signbit(values) & ~np.isnan(values), codes | _SIGN_CODE, codes)

    def _unit(self, size: Array) -> Array:
        result: Array = np.ldexp(1.0, self._exponent(size) - self.fraction)
        return result

    def _exponent(self, size: Array) -> Array:
        exponent = np.maximum(np.frexp(size)[1] - 1, self.least)
        return np.where(size > 0, exponent, self.least)

    def decode(self, codes: Array) -> Array:
        """Return float32 of codes; NaN and infinity as the format has them."""
        return self._values()[codes]

    def _values(self) -> Array:
        codes = np.arange(256)
        field, fraction = (codes & 0x7F) >> self.fraction, codes & ((1 << self.fraction) - 1)
        implicit = np.where(field > 0, 1 << self.fraction, 0)
        sizes = np.ldexp(fraction + implicit, np.maximum(field, 1) - 1 + self.least - self.fraction)
        over = sizes > self.largest
        special = np.where(fraction == 0, np.inf, np.nan) if self.fraction == 2 else np.nan
        sizes = np.where(over, special, sizes)
        return np.where(codes & 0x80, -sizes, sizes).astype(F32)


BYTE_FLOATS = {"e4m3x2": ByteFloat(3, -6, 448.0), "e5m2x2": ByteFloat(2, -14, 57344.0)}


def to_tf32(values: Array, direction: str) -> Array:
    """Return float32 bits rounded to ``tf32``: ``rna`` (ties away from zero), ``rn`` or ``rz``."""
    bits = np.ascontiguousarray(values, F32).view(np.uint32)
    low = np.uint32(0x1FFF)
    if direction == "rna":
        rounded = bits + np.uint32(0x1000)
    elif direction == "rn":
        rounded = bits + np.uint32(0xFFF) + ((bits >> np.uint32(13)) & np.uint32(1))
    else:
        rounded = bits
    return np.where(np.isnan(values), np.uint32(0x7FFF_FFFF), rounded & ~low)
