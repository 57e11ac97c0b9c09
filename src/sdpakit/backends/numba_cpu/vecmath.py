"""Functions on vectors (and scalars) that the hardware does not have.

Powers, logarithm, tanh, floors, transposes. Relative errors are a few units in the last place;
-inf, inf and NaN give what IEEE 754 says. Integers are pulled out of floats by adding a magic
number whose last place is 1, which no compiler may undo without fast-math flags.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from llvmlite import ir

from sdpakit.backends.numba_cpu.functions import declare
from sdpakit.backends.numba_cpu.irtypes import F64, I32, IrType, Value, constant, with_lanes_of

if TYPE_CHECKING:
    from sdpakit.backends.numba_cpu.vector import VectorEmitter

# 2**f, minimax in relative error (Remez exchange in 60 digits, then rounded; the float32 one on
# [-1/2, 1/2] by Lawson iteration), constant term held at 1 for float32. float32: 9.2e-8 on [-1/2,
# 1/2], 8.3e-8 on [0, 1]; float64: 3.1e-18 on either.
_EXP2_F32_CENTRED = (
    "0x1p0",
    "0x1.62e42ap-1",
    "0x1.ebf9bcp-3",
    "0x1.c6b752p-5",
    "0x1.3cea88p-7",
    "0x1.5bba14p-10",
)
_EXP2_F32_UNIT = (
    "0x1p0",
    "0x1.62e4bap-1",
    "0x1.ebdb56p-3",
    "0x1.c91ce6p-5",
    "0x1.277856p-7",
    "0x1.e974f8p-10",
)
_EXP2_F64_CENTRED = (
    *("0x1p0", "0x1.62e42fefa39efp-1", "0x1.ebfbdff82c5adp-3", "0x1.c6b08d7049fd1p-5"),
    *(
        "0x1.3b2ab6fb9f413p-7",
        "0x1.5d87fe78cf266p-10",
        "0x1.43091310bf674p-13",
        "0x1.ffcbfba7bab7dp-17",
    ),
    *(
        "0x1.62bfc3c1d1920p-20",
        "0x1.b5267886c0d3bp-24",
        "0x1.e620fb67a9db6p-28",
        "0x1.e7aa1633dda4ap-32",
    ),
)
_EXP2_F64_UNIT = (
    *("0x1p0", "0x1.62e42fefa39f8p-1", "0x1.ebfbdff82bf15p-3", "0x1.c6b08d7069589p-5"),
    *(
        "0x1.3b2ab6f6c95a7p-7",
        "0x1.5d87ff5b37645p-10",
        "0x1.4308f8ee09038p-13",
        "0x1.ffcfe8155b0c9p-17",
    ),
    *(
        "0x1.628e03af0a0d6p-20",
        "0x1.b86cf409e307fp-24",
        "0x1.c26b376f609fcp-28",
        "0x1.58d4afa47a76ap-31",
    ),
)


class _Format:
    """Facts of an IEEE format; ln 2 is in two parts, as in fdlibm."""

    def __init__(self, *, double: bool) -> None:
        self.bits = 64 if double else 32
        self.mantissa = 52 if double else 23
        self.bias = 1023 if double else 127
        self.magic = 1.5 * 2.0**self.mantissa
        self.ln2_high = 6.93147180369123816490e-01 if double else 6.9314575195e-01
        self.ln2_low = 1.90821492927058770002e-10 if double else 1.4286067653e-06
        # 0.347**(n+1) / (n+1)! is below half a unit in the last place.
        self.exp_terms = 13 if double else 7
        self.log_terms = 10 if double else 5  # 0.0295**n / (2n+1), the same
        self.tanh_one = 20.0 if double else 10.0  # tanh rounds to 1 from here on


_FORMATS = {"float32": _Format(double=False), "float64": _Format(double=True)}


def polynomial(e: VectorEmitter, x: Value, coefficients: Sequence[float]) -> Value:
    """Return sum_k coefficients[k] * x**k (Horner)."""
    return polynomials(e, [x], coefficients)[0]


def polynomials(
    e: VectorEmitter, xs: Sequence[Value], coefficients: Sequence[float]
) -> list[Value]:
    """Return `polynomial` of each of some values of one type, one coefficient after another."""
    acc = [constant(xs[0].type, coefficients[-1])] * len(xs)
    for c in reversed(coefficients[:-1]):
        acc = [e.fma(a, x, constant(x.type, c)) for a, x in zip(acc, xs, strict=True)]
    return acc


def exp2_weights(e: VectorEmitter, ts: Sequence[Value]) -> list[Value]:
    """Return 2**t for each of some vectors t <= 0: the hot path of the softmax.

    Exactly +0 for t below the exponent of the smallest normal number (-inf included), so that no
    subnormal weight slows the products down; NaN stays NaN. One vector is a chain of ten dependent
    operations, which a core overlaps with its neighbours only as far as its scheduler reaches: so
    each operation is emitted for all vectors before the next.
    """
    f = _FORMATS[e.element]
    kept = [e.b.fcmp_unordered(">=", t, e.const(1 - f.bias)) for t in ts]
    if e.isa.scalef:
        return _exp2_scalef(e, ts, kept)
    rs = [e.add(t, e.const(f.magic + f.bias)) for t in ts]
    coefficients = _EXP2_F32_CENTRED if e.element == "float32" else _EXP2_F64_CENTRED
    fractions = [e.sub(t, e.sub(r, e.const(f.magic + f.bias))) for t, r in zip(ts, rs, strict=True)]
    ps = polynomials(e, fractions, [float.fromhex(c) for c in coefficients])
    # The low bits of r hold n + bias. The product keeps a NaN of p, integer arithmetic on its bits
    # would not.
    mantissa = e.iconst(f.mantissa, f.bits)
    powers = [e.b.bitcast(e.b.shl(e.b.bitcast(r, e.IV(f.bits)), mantissa), e.V) for r in rs]
    products = [e.mul(p, power) for p, power in zip(ps, powers, strict=True)]
    return [e.select(k, y, e.const(0.0)) for k, y in zip(kept, products, strict=True)]


def _exp2_scalef(e: VectorEmitter, ts: Sequence[Value], kept: Sequence[Value]) -> list[Value]:
    """AVX-512: one instruction for t - floor(t), one for p * 2**floor(t), 0 where not `kept`."""
    single = e.element == "float32"
    suffix, mask = ("ps", ir.IntType(16)) if single else ("pd", ir.IntType(8))
    toward_minus_infinity, no_exception, current_rounding = 1, 8, 4
    reduce = _declare(e, f"reduce.{suffix}", [e.V, I32, e.V, mask, I32])
    every = ir.Constant(mask, -1)
    how = ir.Constant(I32, toward_minus_infinity | no_exception)
    rounding = ir.Constant(I32, current_rounding)
    zero = e.const(0.0)
    fractions = [e.b.call(reduce, [t, how, zero, every, rounding]) for t in ts]
    coefficients = _EXP2_F32_UNIT if single else _EXP2_F64_UNIT
    ps = polynomials(e, fractions, [float.fromhex(c) for c in coefficients])
    scalef = _declare(e, f"scalef.{suffix}", [e.V, e.V, e.V, mask, I32])
    return [
        e.b.call(scalef, [p, t, zero, e.b.bitcast(k, mask), rounding])
        for p, t, k in zip(ps, ts, kept, strict=True)
    ]


def _declare(e: VectorEmitter, name: str, arguments: Sequence[IrType]) -> Value:
    return declare(e.b.module, f"llvm.x86.avx512.mask.{name}.512", e.V, arguments)


def rounding_shift(e: VectorEmitter) -> float:
    """Return what has to be added to t for the exponent field of 2**round(t) in its low bits."""
    f = _FORMATS[e.element]
    return f.magic + f.bias


def exp2_products(
    e: VectorEmitter, products: Sequence[Value], factors: Sequence[Value], shifts: Sequence[Value]
) -> tuple[list[Value], list[Value]]:
    """Return 2**(s * factor + n) of products s, n = shift - `rounding_shift` whole and even.

    The product is not rounded, and its fraction does not depend on n, nor do ties: so neither does
    any bit but those of the exponent.

    Returns
    -------
    list of values
        The powers: rubbish where the result or its exponent is out of range; NaN of NaN.
    list of values
        s * factor + shift, rounded: the power is right where this float is `rounding_shift` with
        another number in its low bits, from 0 (for a power of +0) to the largest exponent field.
    """
    f = _FORMATS[e.element]
    operands = list(zip(products, factors, shifts, strict=True))
    rounded = [e.fma(s, factor, shift) for s, factor, shift in operands]
    whole = [e.sub(r, shift) for r, shift in zip(rounded, shifts, strict=True)]
    fractions = [
        e.fma(s, factor, e.neg(n)) for (s, factor, _), n in zip(operands, whole, strict=True)
    ]
    coefficients = _EXP2_F32_CENTRED if e.element == "float32" else _EXP2_F64_CENTRED
    ps = polynomials(e, fractions, [float.fromhex(c) for c in coefficients])
    # A product keeps a NaN of p, integer arithmetic on its bits would not.
    mantissa = e.iconst(f.mantissa, f.bits)
    powers = [e.b.bitcast(e.b.shl(float_bits(e, r), mantissa), e.V) for r in rounded]
    return [e.mul(p, power) for p, power in zip(ps, powers, strict=True)], rounded


def float_bits(e: VectorEmitter, x: Value) -> Value:
    """Return the bits of floats as integers."""
    return e.b.bitcast(x, e.IV(8 * e.esz))


def drop_small(e: VectorEmitter, powers: Sequence[Value], rounded: Sequence[Value]) -> list[Value]:
    """Return `exp2_products` with +0 for all that is below the normal numbers (s = -inf, too).

    No subnormal weight then slows the products down.
    """
    lowest = e.const(_FORMATS[e.element].magic + 1)
    kept = [e.b.fcmp_unordered(">=", r, lowest) for r in rounded]
    return [e.select(k, p, e.const(0.0)) for k, p in zip(kept, powers, strict=True)]


def in_range(e: VectorEmitter, seen: Value) -> Value:
    """Return where the bits of floats `rounded`, joined by `or`, are those of right powers only."""
    f = _FORMATS[e.element]
    return e.b.icmp_unsigned("<=", e.b.xor(seen, magic_bits(e)), e.iconst(2 * f.bias + 1, f.bits))


def magic_bits(e: VectorEmitter) -> Value:
    """Return the bits that all floats `rounded` of right powers have."""
    f = _FORMATS[e.element]
    return float_bits(e, e.const(f.magic))


def exp2_integer(e: VectorEmitter, n: Value) -> Value:
    """Return the exact 2**n of whole numbers n <= 0: 0 below the normal numbers, NaN of NaN."""
    f = _FORMATS[e.element]
    power = _power_of_two(e, e.add(n, e.const(f.magic + f.bias)))
    kept = e.select(e.b.fcmp_ordered(">=", n, e.const(1 - f.bias)), power, e.const(0.0))
    return e.select(e.b.fcmp_unordered("uno", n, n), n, kept)


def _power_of_two(e: VectorEmitter, biased: Value) -> Value:
    """Return 2**n from the float n + magic + bias."""
    f = _FORMATS[e.element]
    kind = with_lanes_of(biased, ir.IntType(f.bits))
    return e.b.bitcast(e.b.shl(e.b.bitcast(biased, kind), constant(kind, f.mantissa)), biased.type)


def _expm1_parts(e: VectorEmitter, x: Value) -> tuple[Value, Value]:
    """Return n and q with e**x = 2**n * (1 + q), n whole, |q| < 0.42; x finite and in range."""
    f = _FORMATS[e.element]
    magic = constant(x.type, f.magic)
    n = e.sub(e.fma(x, constant(x.type, 1 / math.log(2)), magic), magic)
    # Exact, multiply-add or not: the high part has zeros where n has bits.
    r = e.fma(n, constant(x.type, -f.ln2_high), x)
    r = e.fma(n, constant(x.type, -f.ln2_low), r)
    tail = polynomial(e, r, [1 / math.factorial(k) for k in range(2, f.exp_terms + 1)])
    return n, e.fma(e.mul(r, r), tail, r)


def exp(e: VectorEmitter, x: Value) -> Value:
    """Return e**x: inf on overflow, subnormals and 0 on underflow, NaN of NaN."""
    f = _FORMATS[e.element]
    high = (f.bias + 2) * math.log(2)
    low = -(f.bias + f.mantissa + 2) * math.log(2)
    # The constant comes first: a comparison with NaN is false and lets it through.
    clamped = e.select(e.b.fcmp_ordered("<", x, constant(x.type, low)), constant(x.type, low), x)
    clamped = e.select(
        e.b.fcmp_ordered(">", clamped, constant(x.type, high)), constant(x.type, high), clamped
    )
    n, q = _expm1_parts(e, clamped)
    magic = constant(x.type, f.magic + f.bias)
    # 2**n in two factors: it may be out of range where the result is not.
    half = e.floor(e.mul(n, constant(x.type, 0.5)))
    scaled = e.mul(e.add(q, constant(x.type, 1.0)), _power_of_two(e, e.add(half, magic)))
    return e.mul(scaled, _power_of_two(e, e.add(e.sub(n, half), magic)))


def log(e: VectorEmitter, x: Value) -> Value:
    """Return ln x: -inf at 0, NaN below 0, inf of inf.

    x = 2**k * m with m near 1, and ln m by the series of 2 atanh((m - 1) / (m + 1)).
    """
    f, b = _FORMATS[e.element], e.b
    kind = with_lanes_of(x, ir.IntType(f.bits))
    tiny = b.fcmp_ordered("<", x, constant(x.type, 2.0 ** (1 - f.bias)))
    lift = f.mantissa + 1
    normal = e.select(tiny, e.mul(x, constant(x.type, 2.0**lift)), x)
    root_half = int((f.bias - 1) << f.mantissa) + int((math.sqrt(0.5) * 2 - 1) * 2**f.mantissa)
    shifted = b.sub(b.bitcast(normal, kind), constant(kind, root_half))
    exponent = b.sitofp(b.ashr(shifted, constant(kind, f.mantissa)), x.type)
    exponent = e.select(tiny, e.sub(exponent, constant(x.type, float(lift))), exponent)
    m_bits = b.add(
        b.and_(shifted, constant(kind, (1 << f.mantissa) - 1)), constant(kind, root_half)
    )
    m = b.bitcast(m_bits, x.type)
    one = constant(x.type, 1.0)
    s = e.div(e.sub(m, one), e.add(m, one))
    z = e.mul(s, s)
    series = polynomial(e, z, [2 / (2 * k + 1) for k in range(1, f.log_terms + 1)])
    tail = e.fma(e.mul(s, z), series, e.mul(exponent, constant(x.type, f.ln2_low)))
    body = e.add(e.mul(exponent, constant(x.type, f.ln2_high)), e.add(e.add(s, s), tail))
    result = e.select(
        b.fcmp_ordered("==", x, constant(x.type, 0.0)), constant(x.type, -math.inf), body
    )
    result = e.select(
        b.fcmp_unordered("<", x, constant(x.type, 0.0)), constant(x.type, math.nan), result
    )
    return e.select(b.fcmp_ordered("==", x, constant(x.type, math.inf)), x, result)


def tanh(e: VectorEmitter, x: Value) -> Value:
    """Return tanh x = u / (u + 2), u = expm1(2|x|), with the sign of x; accurate at 0 too."""
    f, b = _FORMATS[e.element], e.b
    limit = constant(x.type, f.tanh_one)
    a = e.abs(x)
    a = e.select(b.fcmp_ordered(">", a, limit), limit, a)
    n, q = _expm1_parts(e, e.add(a, a))
    power = _power_of_two(e, e.add(n, constant(x.type, f.magic + f.bias)))
    u = e.fma(power, q, e.sub(power, constant(x.type, 1.0)))
    return e.intrinsic("copysign", _quotient(e, u, e.add(u, constant(x.type, 2.0))), x)


def _quotient(e: VectorEmitter, a: Value, b: Value) -> Value:
    """Return a / b for finite a and 1 <= b < 2**100 (NaN of NaN), to one unit in the last place.

    AVX-512 divides 16 lanes in as much time as it takes for 20 multiply-adds. An approximation of
    1 / b to 14 bits, corrected by the remainder, takes five; one of float64 is squared first.
    """
    if not e.isa.scalef or a.type != e.V:
        return e.div(a, b)
    suffix, mask = ("ps", ir.IntType(16)) if e.element == "float32" else ("pd", ir.IntType(8))
    name = f"llvm.x86.avx512.rcp14.{suffix}.512"
    function = declare(e.b.module, name, e.V, [e.V, e.V, mask])
    inverse = e.b.call(function, [b, e.const(0.0), ir.Constant(mask, -1)])
    if e.element == "float64":
        inverse = e.fma(e.fma(e.neg(b), inverse, e.const(1.0)), inverse, inverse)
    quotient = e.mul(a, inverse)
    return e.fma(e.fma(e.neg(quotient), b, a), inverse, quotient)


def floor_by_conversion(e: VectorEmitter, x: Value) -> Value:
    """Return floor x where the ISA has no such instruction (`llvm.floor` would become a call)."""
    f = _FORMATS[e.element]
    whole = constant(x.type, 2.0**f.mantissa)
    a = e.abs(x)
    nearest = e.intrinsic("copysign", e.sub(e.add(a, whole), whole), x)
    below = e.select(
        e.b.fcmp_ordered(">", nearest, x), e.sub(nearest, constant(x.type, 1.0)), nearest
    )
    return e.select(e.b.fcmp_ordered("<", a, whole), below, x)


def floordiv(e: VectorEmitter, a: Value, b: Value) -> Value:
    """Return floor(a / b) of integers, b > 0.

    32-bit lanes go through float64, where the quotient cannot round across an integer (a gap of 1/b
    is far wider than its last place); 64-bit integers through the scalar division of the machine.
    """
    if isinstance(a.type, ir.VectorType) and a.type.element.width == 32:
        doubles = ir.VectorType(F64, a.type.count)
        quotient = e.b.fdiv(e.b.sitofp(a, doubles), e.b.sitofp(b, doubles))
        truncated = e.b.fptosi(quotient, a.type)
    else:
        truncated = e.b.sdiv(a, b)
    remainder = e.b.sub(a, e.b.mul(truncated, b))
    negative = e.b.icmp_signed("<", remainder, constant(a.type, 0))
    return e.b.sub(truncated, e.b.zext(negative, a.type))


def transpose(e: VectorEmitter, rows: Sequence[Value]) -> list[Value]:
    """Return the transpose of w vectors of w lanes.

    Interleaves inside 128-bit lanes, then an exchange of whole lanes: w log2(w) instructions.
    """
    per_lane = 16 // e.esz
    groups = [_transpose_in_lanes(e, rows[i : i + per_lane]) for i in range(0, e.w, per_lane)]
    columns: list[Value] = [None] * e.w
    for c in range(per_lane):
        for k, vector in enumerate(_exchange_lanes(e, [group[c] for group in groups], per_lane)):
            columns[k * per_lane + c] = vector
    return columns


def _transpose_in_lanes(e: VectorEmitter, rows: Sequence[Value]) -> list[Value]:
    """Transpose 2 x 2 float64 or 4 x 4 float32 blocks inside each 128-bit lane."""
    starts = range(0, e.w, 16 // e.esz)
    if e.esz == 8:
        return [
            e.shuffle(rows[0], rows[1], [x for s in starts for x in (s + c, e.w + s + c)])
            for c in (0, 1)
        ]
    pairs = [
        [
            e.shuffle(
                rows[r],
                rows[r + 1],
                [x for s in starts for c in (h, h + 1) for x in (s + c, e.w + s + c)],
            )
            for h in (0, 2)
        ]
        for r in (0, 2)
    ]
    out = []
    for half in (0, 1):
        for c in (0, 2):
            lanes = [x for s in starts for x in (s + c, s + c + 1, e.w + s + c, e.w + s + c + 1)]
            out.append(e.shuffle(pairs[0][half], pairs[1][half], lanes))
    return out


def _exchange_lanes(e: VectorEmitter, vectors: Sequence[Value], per_lane: int) -> list[Value]:
    """Transpose G vectors of G 128-bit lanes: even and odd ones apart, log2(G) times."""
    if len(vectors) == 1:
        return list(vectors)
    parts = []
    for parity in (0, 1):
        wanted = [
            x
            for s in range(parity * per_lane, 2 * e.w, 2 * per_lane)
            for x in range(s, s + per_lane)
        ]
        joined = [e.shuffle(a, b, wanted) for a, b in zip(vectors[::2], vectors[1::2], strict=True)]
        parts.append(_exchange_lanes(e, joined, per_lane))
    return [vector for pair in zip(*parts, strict=True) for vector in pair]


def transpose_bytes(e: VectorEmitter, rows: Sequence[Value]) -> list[Value]:
    """Return the transpose of w vectors of w bytes, as fewer vectors that follow each other.

    The bytes of up to four rows are joined into integers with shifts, which leaves the unit of the
    shuffles to those that make a key's integers adjacent.
    """
    joined = min(4, e.w)
    wide = [e.b.zext(row, e.IV(8 * joined)) for row in rows]
    packed = []
    for first in range(0, e.w, joined):
        value = wide[first]
        for r in range(1, joined):
            value = e.or_(value, e.b.shl(wide[first + r], e.iconst(8 * r, 8 * joined)))
        packed.append(value)
    return _interleave(e, packed)


def _interleave(e: VectorEmitter, vectors: Sequence[Value]) -> list[Value]:
    """Return the elements of G vectors (a power of two) in turn, as G vectors."""
    if len(vectors) == 1:
        return list(vectors)
    even, odd = _interleave(e, vectors[::2]), _interleave(e, vectors[1::2])
    halves = (range(e.w // 2), range(e.w // 2, e.w))
    lanes = [[x for lane in half for x in (lane, e.w + lane)] for half in halves]
    return [e.shuffle(a, b, half) for a, b in zip(even, odd, strict=True) for half in lanes]
