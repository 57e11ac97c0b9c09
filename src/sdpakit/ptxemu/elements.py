"""Elements of matrices: how their bits become numbers that NumPy multiplies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sdpakit.ptxemu.scalars import Array, f32_to_bf16

_TF32_BITS = np.uint32(0xFFFF_E000)
_HALF_SIGN_AND_NUMBER = np.int32(
    -0x7000_2000
)  # 0x8fffe000: the sign, and 15 bits that begin at bit 13
_HALF_SCALE = np.float32(2.0**112)  # exponents of float16 are biased by 15, of float32 by 127
_HALF_OVERFLOW = np.float32(65536)


@dataclass(frozen=True, slots=True)
class Element:
    """A type of elements.

    Attributes
    ----------
    name : str
        As PTX spells it.
    raw : numpy.dtype
        One element in registers or memory.
    decode : callable
        Raw elements to numbers: float32, float64 or int32.
    """

    name: str
    raw: np.dtype[Any]
    decode: Callable[[Array], Array]

    @property
    def size(self) -> int:
        """Bytes."""
        return self.raw.itemsize

    @property
    def per_register(self) -> int:
        """How many are in a register, which has 32 bits, or 64 for ``f64``."""
        return max(4 // self.size, 1)


def _from_bf16(raw: Array) -> Array:
    halves = np.zeros((*raw.shape, 2), np.uint16)
    halves[..., 1] = raw
    return halves.view(np.float32)[..., 0]


def _from_f16(raw: Array) -> Array:
    """Convert float16 bits; four times as fast as NumPy, which converts one by one.

    Bits of a finite float16, moved to their place in a float32, are its value times 2**-112.
    """
    bits = np.left_shift(raw.view(np.int16), 13, dtype=np.int32)
    bits &= _HALF_SIGN_AND_NUMBER
    values: Array = bits.view(np.float32)
    values *= _HALF_SCALE
    if values.size and (values.max() >= _HALF_OVERFLOW or values.min() <= -_HALF_OVERFLOW):
        return raw.view(np.float16).astype(np.float32)
    return values


def _from_tf32(raw: Array) -> Array:
    """Drop the bits that tensor cores do not read."""
    kept: Array = (raw & _TF32_BITS).view(np.float32)
    return kept


def _eight_bit_floats(exponent_bits: int, *, infinities: bool) -> Array:
    """Return the values of all 256 floats of 8 bits with so many bits of exponent."""
    codes = np.arange(256)
    mantissa_bits = 7 - exponent_bits
    exponent = codes >> mantissa_bits & (1 << exponent_bits) - 1
    mantissa = codes & (1 << mantissa_bits) - 1
    bias = (1 << exponent_bits - 1) - 1
    fraction = mantissa / (1 << mantissa_bits) + (exponent > 0)
    values = fraction * 2.0 ** (np.maximum(exponent, 1) - bias)
    top = exponent == (1 << exponent_bits) - 1
    if infinities:
        values[top] = np.where(mantissa[top] == 0, np.inf, np.nan)
    else:
        values[top & (mantissa == (1 << mantissa_bits) - 1)] = np.nan
    table: Array = np.where(codes >= 128, -values, values).astype(np.float32)
    return table


def _by_table(table: Array) -> Callable[[Array], Array]:
    return lambda raw: table.take(raw)


def _plain(dtype: str) -> Callable[[Array], Array]:
    return lambda raw: raw.view(dtype)


def _float_of(dtype: str) -> Callable[[Array], Array]:
    return lambda raw: raw.view(dtype).astype(np.float32)


def _elements() -> dict[str, Element]:
    rows: list[tuple[str, str, Callable[[Array], Array]]] = [
        ("f16", "u2", _from_f16),
        ("bf16", "u2", _from_bf16),
        ("tf32", "u4", _from_tf32),
        ("f32", "u4", _plain("f4")),
        ("f64", "u8", _plain("f8")),
        ("s32", "u4", _plain("i4")),
        ("s8", "u1", _float_of("i1")),
        ("u8", "u1", _float_of("u1")),
        ("e4m3", "u1", _by_table(_eight_bit_floats(4, infinities=False))),
        ("e5m2", "u1", _by_table(_eight_bit_floats(5, infinities=True))),
    ]
    return {name: Element(name, np.dtype(raw), decode) for name, raw, decode in rows}


ELEMENTS: dict[str, Element] = _elements()


def encode(name: str, values: Array) -> Array:
    """Return results as raw elements of an accumulator type, rounded to nearest even."""
    if name == "f16":
        return values.astype(np.float16).view(np.uint16)
    if name == "bf16":
        return f32_to_bf16(values)
    return np.ascontiguousarray(values).view(ELEMENTS[name].raw)


def add(products: Array, addend: Array | None, name: str, *, saturates: bool = False) -> Array:
    """Return products, which are overwritten, plus an accumulator, in the type of the sums.

    Floats are added as they are (float32, float64 for ``f64``), rounded once; integers exactly, and
    then wrapped to 32 bits or cut to their range.
    """
    if name != "s32":
        if addend is not None:
            products += addend
        return products
    total = products.astype(np.int64)  # at most 32 products of 16 bits: float32 has them exactly
    if addend is not None:
        total += addend
    if saturates:
        total = np.clip(total, -(2**31), 2**31 - 1)
    return total.astype(np.int32)
