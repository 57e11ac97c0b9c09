"""What PTX's arithmetic should give, by Python's integers and fractions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np


@dataclass(frozen=True)
class Format:
    """A binary float: bits of its significand, exponents of its least and largest normal number."""

    precision: int
    least: int
    largest: int

    @property
    def maximum(self):
        return Fraction(2 - Fraction(2) ** (1 - self.precision)) * Fraction(2) ** self.largest

    def round(self, exact, direction, negative_zero=False):
        """Return a fraction rounded ``rn``, ``rz``, ``rm`` or ``rp``, as a Python float."""
        if exact == 0:
            return -0.0 if negative_zero else 0.0
        size = abs(exact)
        exponent = max(_exponent(size), self.least)
        unit = Fraction(2) ** (exponent - self.precision + 1)
        steps = self._steps(size / unit, direction, exact < 0)
        found = steps * unit
        if found > self.maximum:
            nearest_overflows = direction == "rn"
            away = direction == ("rm" if exact < 0 else "rp")
            value = math.inf if nearest_overflows or away else float(self.maximum)
        else:
            value = float(found)
        return math.copysign(value, -1.0 if exact < 0 else 1.0)

    @staticmethod
    def _steps(exact, direction, negative):
        whole = exact.numerator // exact.denominator
        rest = exact - whole
        if direction == "rn":
            up = rest > Fraction(1, 2) or (rest == Fraction(1, 2) and whole % 2 == 1)
        else:
            up = rest > 0 and direction == ("rm" if negative else "rp")
        return whole + up


def _exponent(size):
    """Return the largest e with 2**e <= size."""
    guess = size.numerator.bit_length() - size.denominator.bit_length()
    return guess if Fraction(2) ** guess <= size else guess - 1


F16, BF16 = Format(11, -14, 15), Format(8, -126, 127)
F32, F64 = Format(24, -126, 127), Format(53, -1022, 1023)
FORMATS = {"f16": F16, "bf16": BF16, "f32": F32, "f64": F64}


def fma(a, b, c, form, direction):
    """Return a * b + c of Python floats, rounded once."""
    if not (math.isfinite(a) and math.isfinite(b)):
        return a * b + c
    if not math.isfinite(c):
        return c
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact == 0:
        return _zero_sum(
            math.copysign(1, a) * math.copysign(1, b),
            math.copysign(1, c),
            a * b == c == 0,
            direction,
        )
    return form.round(exact, direction)


def _zero_sum(first, second, both_zero, direction):
    if both_zero and first == second:
        return math.copysign(0.0, first)
    return -0.0 if direction == "rm" else 0.0


def add(a, b, form, direction):
    return fma(a, 1.0, b, form, direction)


def multiply(a, b, form, direction):
    if not (math.isfinite(a) and math.isfinite(b)) or a == 0 or b == 0:
        return a * b
    return form.round(Fraction(a) * Fraction(b), direction)


def divide(a, b, form, direction):
    if not (math.isfinite(a) and math.isfinite(b)) or b == 0 or a == 0:
        with np.errstate(all="ignore"):
            return float(np.float64(a) / np.float64(b))
    return form.round(Fraction(a) / Fraction(b), direction)


def root(a, form, direction):
    if not math.isfinite(a) or a <= 0:
        with np.errstate(all="ignore"):
            return float(np.sqrt(np.float64(a)))
    exact = Fraction(a)
    # Enough bits that what is dropped cannot change a rounding, and a sticky bit for it.
    scale = 4**1140
    whole = math.isqrt(exact.numerator * scale // exact.denominator)
    sticky = Fraction(whole * whole, scale) != exact
    return form.round(Fraction(2 * whole + sticky, 2 * 2**1140), direction)


def values_of(form, dtype, seed=0, count=40):
    """Return numbers that are hard to round, infinities and NaN, as an array of `dtype`.

    They have few bits or all, and exponents near each other or at the ends of the range.
    """
    random = np.random.default_rng(seed)
    maximum, least = float(form.maximum), 2.0 ** (form.least - form.precision + 1)
    normal = 2.0**form.least
    special = [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, maximum, -maximum]
    special += [
        least,
        -least,
        3 * least,
        normal,
        -normal,
        normal - least,
        1 + 2.0 ** (1 - form.precision),
        0.5,
        3.0,
    ]
    significands = 1 + random.integers(0, 2 ** (form.precision - 1), count) / 2.0 ** (
        form.precision - 1
    )
    exponents = random.integers(-form.precision - 2, form.precision + 2, count)
    plain = significands * 2.0**exponents * random.choice([-1, 1], count)
    wide = random.choice([-1, 1], count // 2) * 2.0 ** random.integers(
        form.least, form.largest, count // 2
    )
    return np.concatenate([special, plain, wide * significands[: count // 2]]).astype(dtype)


def operands(form, dtype, count, rows=500):
    """Return `count` arrays of hard values; `rows` of the ways in which they meet."""
    values = values_of(form, dtype)
    if count == 1:
        return [values]
    pairs = [np.repeat(values, len(values)), np.tile(values, len(values))]
    random = np.random.default_rng(1)
    chosen = random.permutation(len(pairs[0]))[:rows]
    return [pair[chosen] for pair in pairs] + [
        random.choice(values, rows) for _ in range(count - 2)
    ]


def same(found, expected):
    """Return whether floats are equal, zeros with their sign, and NaN with NaN."""
    found, expected = np.asarray(found), np.asarray(expected, np.asarray(found).dtype)
    equal = (found == expected) & (np.signbit(found) == np.signbit(expected))
    return equal | (np.isnan(found) & np.isnan(expected))
