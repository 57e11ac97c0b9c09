"""Launches of the kernels in functions.cu."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tests.ptxemu.compiled import Launch, normal

from sdpakit import ptxemu

THREADS, COUNT = 64, 150


def _launch(entry: str, x: Any, y: Any, expected: list[tuple[Any, float]]) -> Launch:
    """Return the launch; `expected` has what is right and how far off it may be, relative."""
    out = np.empty((len(expected), COUNT), x.dtype)
    results = [
        (out[place], right, relative, 1e-44 * (x.dtype == np.float32))
        for place, (right, relative) in enumerate(expected)
    ]
    grid = -(-COUNT // THREADS)
    args = [x, y, ptxemu.Output(out), COUNT]
    name = "functions_f32" if entry == "of_f32" else "functions_f64"
    return Launch(name, grid, THREADS, args, results, entry=entry)


def of_f32() -> Launch:
    x, y = 5 * normal(COUNT), 3 * normal(COUNT, seed=1)
    a, b = x.astype(np.float64), y.astype(np.float64)
    size, erf = np.abs(a), np.vectorize(math.erf)
    million = (np.float32(1e6) * x).astype(np.float64)
    unit = 2.0**-23
    # CUDA's documentation has the largest errors in units in the last place.
    expected = [
        (np.exp(a), unit), (np.log(size), unit), (np.sin(a), 2 * unit),
        (np.cos(million), 2 * unit), (np.tanh(a), 2 * unit), (erf(a), 2 * unit),
        (size**b, 4 * unit), (np.expm1(a), unit), (np.log1p(size), unit),
        (np.arctan2(a, b), 3 * unit), (np.cbrt(a), unit), (np.hypot(a, b), 3 * unit),
        (np.fmod(a, b), 0.0), (a / b, unit / 2), (np.sqrt(size), unit / 2),
        (1 / np.sqrt(size), 2 * unit), (np.trunc(a + np.copysign(0.5, a)), 0.0),
        (np.nextafter(x, y), 0.0), (a * 2.0**-140, 1e-3),
        (np.exp(a), 20 * unit), (a / b, 2 * unit),
        (a + b, unit), (a * b, unit), (1 / a, unit),
    ]  # fmt: skip
    return _launch("of_f32", x, y, expected)


def of_f64() -> Launch:
    x = 5 * normal(COUNT, dtype=np.float64)
    y = 3 * normal(COUNT, dtype=np.float64, seed=1)
    size, unit = np.abs(x), 2.0**-52
    narrow = np.nextafter(x.astype(np.float32), np.float32(0)).astype(np.float64)
    narrow = np.where(np.abs(x.astype(np.float32)) <= size, x.astype(np.float32), narrow)
    expected = [
        (np.exp(x), 2 * unit), (np.log(size), 2 * unit), (np.sin(x), 2 * unit),
        (np.cos(1e6 * x), 2 * unit), (np.tanh(x), 2 * unit),
        (np.vectorize(math.erf)(x), 3 * unit), (size**y, 3 * unit),
        (np.arctan2(x, y), 3 * unit), (np.cbrt(x), 2 * unit), (np.fmod(x, y), 0.0),
        (x / y, 0.0), (np.sqrt(size), 0.0), (1 / np.sqrt(size), 2 * unit), (np.rint(x), 0.0),
        (x + y, unit), (x / y, unit), (np.floor(x), 0.0), (narrow, 0.0),
    ]  # fmt: skip
    return _launch("of_f64", x, y, expected)


def of_s64() -> Launch:
    random = np.random.default_rng(0)
    x = random.integers(-(2**63), 2**63 - 1, COUNT, np.int64)
    y = random.integers(-(2**63), 2**63 - 1, COUNT, np.int64) >> random.integers(0, 60, COUNT)
    y[y == 0] = 1
    rows = [_of_integers(int(a), int(b)) for a, b in zip(x, y, strict=True)]
    wrapped = np.array([[value % 2**64 for value in row] for row in rows], np.uint64)
    return _launch("of_s64", x, y, [(column.view(np.int64), 0.0) for column in wrapped.T.copy()])


def _of_integers(a: int, b: int) -> list[int]:
    c, d, shift = a % 2**64, b % 2**64, b & 63
    quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    wide = (a << 20) | c >> 3
    # d is converted to a signed number of 128 bits, which it fits.
    rest = abs(wide) % d * (1 if wide >= 0 else -1)
    return [
        quotient, a - b * quotient, c // d, c % d, a * b >> 64, c * d >> 64, c.bit_count(),
        64 - ((a >> shift) % 2**64).bit_length(), (a & -a).bit_length(),
        int(f"{c:064b}"[::-1], 2), a >> shift, abs(a), max(a, b), a * b >> 37, rest,
    ]  # fmt: skip
