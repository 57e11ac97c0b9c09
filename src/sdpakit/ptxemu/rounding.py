"""Arithmetic that rounds once, in any direction, from NumPy's, which rounds to nearest.

An operation is computed in float64 together with the sign of what rounding dropped: an `Exact`.
That decides the result in every direction. For a narrower result, the float64 is first made *odd*:
where something was dropped, the neighbour with an odd last bit stands for all values between two
floats, and float64 has enough spare bits that rounding it again gives what rounding the true value
would.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TypeAlias

import numpy as np

from sdpakit.ptxemu.scalars import Array

# The nearest float64, and a number with the sign of (true value - nearest); NaN counts as no error.
Exact: TypeAlias = tuple[Array, Array]

DIRECTIONS = ("rn", "rz", "rm", "rp")
_F32, _F64 = np.dtype(np.float32), np.dtype(np.float64)

# A float64 in the range of normal float32 lies between two of them just where these bits are so.
_BELOW_F32, _TIE = np.array([0x1FFF_FFFF], np.uint64), np.array([0x1000_0000], np.uint64)
_SMALLEST_F32 = float(np.finfo(np.float32).smallest_normal)

# Products of factors between these bounds have all their bits in the range of normal float64.
_SMALL, _LARGE = 2.0**-450, 2.0**450


def exact_sum(a: Array, b: Array) -> Exact:
    """Return a + b of float64."""
    total = a + b
    part = total - a
    error = (a - (total - part)) + (b - part)
    return total, _overflow(total, np.isfinite(a) & np.isfinite(b), error)


def exact_product(a: Array, b: Array) -> Exact:
    """Return a * b of float64."""
    product = a * b
    error = _residual(a, b, -product)
    return product, _overflow(product, np.isfinite(a) & np.isfinite(b), error)


def exact_quotient(a: Array, b: Array) -> Exact:
    """Return a / b of float64."""
    quotient = a / b
    error = _residual(-quotient, b, a) * np.copysign(1.0, b)
    return quotient, _overflow(quotient, np.isfinite(a) & (b != 0), error)


def exact_root(a: Array) -> Exact:
    """Return the square root of float64."""
    root = np.sqrt(a)
    return root, _residual(-root, root, a)


def exact_fma(a: Array, b: Array, c: Array) -> Exact:
    """Return a * b + c of float64."""
    a, b, c = np.broadcast_arrays(a, b, c)
    plain = (a == 0) | (b == 0) | ~np.isfinite(a) | ~np.isfinite(b) | ~np.isfinite(c)
    safe = _within(a, _SMALL, _LARGE) & _within(b, _SMALL, _LARGE)
    safe &= (c == 0) | _within(c, _SMALL * _SMALL, _LARGE * _LARGE)
    nearest, error = _fma_in_range(a, b, c)
    if plain.any():
        # A product of finite numbers may overflow, but does not change an infinite addend.
        naive = np.where(np.isfinite(a) & np.isfinite(b) & ~np.isfinite(c), c, a * b + c)
        nearest, error = np.where(plain, naive, nearest), np.where(plain, 0.0, error)
    for lane in np.flatnonzero(~(plain | safe)):
        nearest[lane], error[lane] = _fma_of_one(float(a[lane]), float(b[lane]), float(c[lane]))
    return nearest, error


def exact_fma_f32(a: Array, b: Array, c: Array) -> Exact:
    """Return a * b + c of float64 that hold float32, whose products are exact."""
    return exact_sum(a * b, c)


def exact_product_f32(a: Array, b: Array) -> Exact:
    """Return a * b of float64 that hold float32."""
    product = a * b
    return product, np.zeros_like(product)


def fma_f32(a: Array, b: Array, c: Array) -> Array:
    """Return a * b + c of float32, rounded once, to nearest."""
    product = a.astype(_F64) * b.astype(_F64)
    total = product + c.astype(_F64)
    result = total.astype(_F32)
    may_tie = (total.view(np.uint64) & _BELOW_F32) == _TIE
    may_tie |= (np.abs(total) < _SMALLEST_F32) & (total != 0)
    if may_tie.any():
        # The sum may have been rounded onto a tie; then the true value decides.
        result = round_to(exact_sum(product, c.astype(_F64)), _F32, "rn")
    return result


def fma_f64(a: Array, b: Array, c: Array) -> Array:
    """Return a * b + c of float64, rounded once, to nearest."""
    return exact_fma(a, b, c)[0]


def round_to(exact: Exact, dtype: np.dtype[np.generic], direction: str) -> Array:
    """Return an exact result as float32 or float64, rounded in a direction or to ``odd``."""
    nearest, error = exact
    if dtype == _F64:
        return directed(nearest, error, direction)
    odd = to_odd(exact)
    narrow = odd.astype(_F32)
    return directed(narrow, odd - narrow.astype(_F64), direction)


def directed(nearest: Array, error: Array, direction: str) -> Array:
    """Return floats rounded in another direction than to nearest; `error` is as in `Exact`."""
    kind = nearest.dtype.type
    infinity = kind(np.inf)
    if direction == "rn":
        return nearest
    if direction == "odd":
        return to_odd((nearest, error))
    if direction == "rz":
        wrong = ((error < 0) & (nearest > 0)) | ((error > 0) & (nearest < 0))
        return np.where(wrong, np.nextafter(nearest, kind(0)), nearest)
    if direction == "rm":
        return np.where(error < 0, np.nextafter(nearest, -infinity), nearest)
    return np.where(error > 0, np.nextafter(nearest, infinity), nearest)


def to_odd(exact: Exact) -> Array:
    """Return floats that round to anything two bits narrower as the true values do."""
    nearest, error = exact
    bits = nearest.view(f"i{nearest.dtype.itemsize}")
    move = ((error > 0) | (error < 0)) & ((bits & 1) == 0)
    outwards = (error > 0) != np.signbit(nearest)
    steps = np.where(outwards, bits.dtype.type(1), bits.dtype.type(-1))
    result: Array = (bits + steps * move).view(nearest.dtype)
    return result


def signed_zeros(result: Array, exact: Exact, first: Array, second: Array) -> Array:
    """Return sums rounded ``rm``: there an exact zero is negative unless both addends are +0."""
    zero = (exact[0] == 0) & (exact[1] == 0) & (np.signbit(first) | np.signbit(second))
    return np.where(zero, np.copysign(result, -1), result)


def _overflow(nearest: Array, finite: Array, error: Array) -> Array:
    """Return errors, mended where finite operands gave an infinity, which is too large."""
    return np.where(np.isinf(nearest) & finite, -nearest, error)


def _residual(a: Array, b: Array, c: Array) -> Array:
    """Return a number with the sign of a * b + c."""
    nearest, error = exact_fma(a, b, c)
    return np.where(nearest == 0, error, nearest)


def _within(values: Array, low: float, high: float) -> Array:
    size = np.abs(values)
    return (size >= low) & (size <= high)


def _fma_in_range(a: Array, b: Array, c: Array) -> Exact:
    """Return a * b + c where no intermediate over- or underflows (elsewhere nonsense)."""
    product, product_error = _split_product(a, b)
    high, high_error = exact_sum(c, product_error)
    total, total_error = exact_sum(product, high)
    # Three parts remain; made odd, the two small ones act on the large one as their true sum does.
    tail = to_odd(exact_sum(high_error, total_error))
    return exact_sum(total, tail)


def _split_product(a: Array, b: Array) -> tuple[Array, Array]:
    """Return a * b as two float64 whose sum is exact."""
    product = a * b
    a_high, a_low = _halves(a)
    b_high, b_low = _halves(b)
    error = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    return product, error


def _halves(values: Array) -> tuple[Array, Array]:
    """Return float64 as two numbers of at most 26 bits each."""
    scaled = values * 134217729.0  # 2**27 + 1
    high = scaled - (scaled - values)
    return high, values - high


def _fma_of_one(a: float, b: float, c: float) -> tuple[float, float]:
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    try:
        nearest = float(exact)
    except OverflowError:
        return (math.inf, -1.0) if exact > 0 else (-math.inf, 1.0)
    dropped = exact - Fraction(nearest)
    return nearest, float((dropped > 0) - (dropped < 0))
