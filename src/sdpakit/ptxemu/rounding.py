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

# A float64 whose lower 28 bits are not all zero lies on no tie between two float32, and a float32
# whose lower 12 bits are not all zero on none between two halves of either kind.
_BELOW_TIE = np.array([0x0FFF_FFFF], np.uint64)
_BELOW_HALF_TIE = np.array([0xFFF], np.uint32)

# Products of factors up to this, and not below its reciprocal, have all their bits in the range of
# normal float64.
_LARGE = 2.0**450


def exact_sum(a: Array, b: Array) -> Exact:
    """Return a + b of float64."""
    total, error = _two_sum(a, b)
    return total, _overflow(total, np.isfinite(a) & np.isfinite(b), error)


def _two_sum(a: Array, b: Array) -> Exact:
    """Return a + b that does not overflow; here the error is what was dropped itself."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


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
    nearest, error = _two_sum(*_fma_in_range(a, b, c))
    safe = _in_range(a, b, c)
    if safe is not None:
        nearest[~safe], error[~safe] = _fma_out_of_range(a[~safe], b[~safe], c[~safe])
    return nearest, error


def exact_fma_f32(a: Array, b: Array, c: Array) -> Exact:
    """Return a * b + c of float64 that hold float32: products are exact, sums do not overflow."""
    return _two_sum(a * b, c)


def exact_product_f32(a: Array, b: Array) -> Exact:
    """Return a * b of float64 that hold float32."""
    product = a * b
    return product, np.zeros_like(product)


def fma_f32(a: Array, b: Array, c: Array) -> Array:
    """Return a * b + c of float32, rounded once, to nearest."""
    product, addend = a.astype(_F64) * b.astype(_F64), c.astype(_F64)
    total = product + addend
    result = total.astype(_F32)
    below = total.view(np.uint64) & _BELOW_TIE
    if not below.all():
        # The sum may have been rounded onto a tie; then the true value decides.
        _mend(result, below == 0, product, addend, "rn")
    return result


def fma_for_half(a: Array, b: Array, c: Array) -> Array:
    """Return a * b + c of float32 that hold halves, as float32 that rounds to the right half."""
    product, addend = a.astype(_F64) * b.astype(_F64), c.astype(_F64)
    result = (product + addend).astype(_F32)
    below = result.view(np.uint32) & _BELOW_HALF_TIE
    if not below.all():
        _mend(result, below == 0, product, addend, "odd")
    return result


def _mend(result: Array, ties: Array, product: Array, addend: Array, direction: str) -> None:
    """Round again, with what was dropped, where a sum of float64 may have become a tie."""
    product, addend = np.broadcast_to(product, ties.shape), np.broadcast_to(addend, ties.shape)
    exact = _two_sum(product[ties], addend[ties])
    if direction != "rn" or exact[1].any():  # most ties are exact sums, already rounded well
        result[ties] = round_to(exact, _F32, direction)


def fma_f64(a: Array, b: Array, c: Array) -> Array:
    """Return a * b + c of float64, rounded once, to nearest."""
    a, b, c = np.broadcast_arrays(a, b, c)
    nearest = np.add(*_fma_in_range(a, b, c))
    safe = _in_range(a, b, c)
    if safe is not None:
        nearest[~safe] = _fma_out_of_range(a[~safe], b[~safe], c[~safe])[0]
    return nearest


def round_to(exact: Exact, dtype: np.dtype[np.generic], direction: str) -> Array:
    """Return an exact result as float32 or float64, rounded in a direction or to ``odd``."""
    nearest, error = exact
    if dtype == _F64:
        return directed(nearest, error, direction)
    if direction == "rn":
        return to_odd(exact).astype(_F32)
    # One of the two neighbours of the true value, and the side on which that lies, are enough.
    narrow = nearest.astype(_F32)
    gap = nearest - narrow.astype(_F64)
    return directed(narrow, np.where(gap == 0, error, gap), direction)


def directed(nearest: Array, error: Array, direction: str) -> Array:
    """Return floats next to the true values rounded in a direction; `error` is as in `Exact`."""
    if direction == "rn":
        return nearest
    # As integers, the bits of floats go up by one away from zero, also into infinity.
    bits: Array = nearest.view(f"i{nearest.dtype.itemsize}")
    inwards = (error < 0) != np.signbit(nearest)
    if direction == "rz":
        bits = bits - (inwards & _wrong(error))
    elif direction == "odd":
        inexact = _wrong(error)
        bits = (bits - (inwards & inexact)) | inexact
    else:
        move = error < 0 if direction == "rm" else error > 0
        bits = bits + np.where(inwards, bits.dtype.type(-1), bits.dtype.type(1)) * move
    return bits.view(nearest.dtype)


def _wrong(error: Array) -> Array:
    """Return where there is an error; NaN is none."""
    return np.abs(error) > 0


def to_odd(exact: Exact) -> Array:
    """Return floats that round to anything two bits narrower as the true values do."""
    return directed(*exact, "odd")


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


def _in_range(a: Array, b: Array, c: Array) -> Array | None:
    """Return where `_fma_in_range` is right; None if it is everywhere."""
    largest_sum = _LARGE * _LARGE
    if _all_within(a, _LARGE) and _all_within(b, _LARGE) and _all_within(c, largest_sum):
        return None
    safe = _within(a, _LARGE) & _within(b, _LARGE) & ((c == 0) | _within(c, largest_sum))
    return None if safe.all() else safe


def _all_within(values: Array, large: float) -> bool:
    size = np.abs(values)
    return bool(size.max() <= large and size.min() >= 1 / large)


def _within(values: Array, large: float) -> Array:
    size = np.abs(values)
    return (size <= large) & (size >= 1 / large)


def _fma_in_range(a: Array, b: Array, c: Array) -> tuple[Array, Array]:
    """Return two numbers whose sum rounds as a * b + c, if nothing over- or underflows."""
    product, product_error = _split_product(a, b)
    high, high_error = _two_sum(c, product_error)
    total, total_error = _two_sum(product, high)
    # Three parts remain; made odd, the two small ones act on the large one as their true sum does.
    return total, to_odd(_two_sum(high_error, total_error))


def _fma_out_of_range(a: Array, b: Array, c: Array) -> Exact:
    """Return a * b + c of zeros, infinities, NaN, and of numbers one by one."""
    nearest, error = a * b + c, np.zeros(a.shape)
    finite = np.isfinite(a) & np.isfinite(b)
    # A product of finite numbers may overflow, but does not change an infinite addend.
    nearest = np.where(finite & ~np.isfinite(c), c, nearest)
    for lane in np.flatnonzero(finite & np.isfinite(c) & (a != 0) & (b != 0)):
        nearest[lane], error[lane] = _fma_of_one(float(a[lane]), float(b[lane]), float(c[lane]))
    return nearest, error


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
