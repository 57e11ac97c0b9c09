import math

import numpy as np
import pytest
from tests.ptxemu import exact
from tests.ptxemu.lanes import execute

from sdpakit import ptxemu

DTYPES = {"f32": "f4", "f64": "f8", "f16": "f2"}
DIRECTIONS = ("rn", "rz", "rm", "rp")


def subtract(a, b, form, direction):
    return exact.add(a, -b, form, direction)


def reciprocal(a, form, direction):
    return exact.divide(1.0, a, form, direction)


# Opcode: oracle, number of operands, whether halves have it.
ROUNDED = {
    "add": (exact.add, 2, True),
    "sub": (subtract, 2, True),
    "mul": (exact.multiply, 2, True),
    "fma": (exact.fma, 3, True),
    "mad": (exact.fma, 3, False),
    "div": (exact.divide, 2, False),
    "rcp": (reciprocal, 1, False),
    "sqrt": (exact.root, 1, False),
}


def check(text, kind, oracle, direction, values):
    names = "abc"[: len(values)]
    found = execute(
        f"{text}.{kind} d, {', '.join(names)}",
        {"d": DTYPES[kind]},
        **dict(zip(names, values, strict=True)),
    )
    form = exact.FORMATS[kind]
    expected = [oracle(*map(float, row), form, direction) for row in zip(*values, strict=True)]
    wrong = ~exact.same(found, expected)
    assert not wrong.any(), [x[wrong][:4].tolist() for x in (*values, found, np.array(expected))]


@pytest.mark.parametrize("kind", ["f32", "f64"])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("opcode", ROUNDED)
def test_every_direction(opcode, direction, kind):
    oracle, count, _ = ROUNDED[opcode]
    values = exact.operands(exact.FORMATS[kind], DTYPES[kind], count, rows=250)
    check(f"{opcode}.{direction}", kind, oracle, direction, values)


@pytest.mark.parametrize("opcode", [name for name, (*_, halves) in ROUNDED.items() if halves])
def test_f16(opcode):
    oracle, count, _ = ROUNDED[opcode]
    values = exact.operands(exact.F16, "f2", count)
    check(f"{opcode}.rn", "f16", oracle, "rn", values)


def as_bf16(values):
    return (np.asarray(values, "f4").view("u4") >> 16).astype("u2")


def bf16_values(bits):
    return (bits.astype("u4") << 16).view("f4")


@pytest.mark.parametrize("opcode", [name for name, (*_, halves) in ROUNDED.items() if halves])
def test_bf16(opcode):
    oracle, count, _ = ROUNDED[opcode]
    values = exact.operands(exact.BF16, "f4", count)
    names = "abc"[:count]
    bits = {name: as_bf16(value) for name, value in zip(names, values, strict=True)}
    found = execute(f"{opcode}.rn.bf16 d, {', '.join(names)}", {"d": "u2"}, **bits)
    expected = [oracle(*map(float, row), exact.BF16, "rn") for row in zip(*values, strict=True)]
    assert exact.same(bf16_values(found), np.array(expected, "f4")).all()


@pytest.mark.parametrize("opcode", ["add", "mul", "fma", "min", "max", "neg", "abs"])
@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_pairs_are_two_halves(opcode, kind):
    count = {"fma": 3, "neg": 1, "abs": 1}.get(opcode, 2)
    form = exact.FORMATS[kind]
    values = [np.resize(value, 400) for value in exact.operands(form, "f4", count)]
    halves = [
        value.astype("f2").view("u2") if kind == "f16" else as_bf16(value) for value in values
    ]
    names = "abc"[:count]
    rounding = ".rn" if opcode in ("add", "mul", "fma") else ""
    text = f"{opcode}{rounding}.{{}} d, {', '.join(names)}"
    singles = execute(text.format(kind), {"d": "u2"}, **dict(zip(names, halves, strict=True)))
    words = {name: half.view("u4") for name, half in zip(names, halves, strict=True)}
    pairs = execute(text.format(f"{kind}x2"), {"d": "u4"}, **words)
    assert (pairs.view("u2") == singles).all()


@pytest.mark.parametrize("options", ["rn", "rz", "rp.ftz", "rn.ftz"])
@pytest.mark.parametrize("opcode", ["add", "sub", "mul", "fma"])
def test_pairs_of_f32(opcode, options):
    count = ROUNDED[opcode][1]
    values = exact.operands(exact.F32, "f4", count)
    names = "abc"[:count]
    text = f"{opcode}.{options}.{{}} d, {', '.join(names)}"
    singles = execute(text.format("f32"), {"d": "u4"}, **dict(zip(names, values, strict=True)))
    words = {name: value.view("u8") for name, value in zip(names, values, strict=True)}
    pairs = execute(text.format("f32x2"), {"d": "u8"}, **words)
    assert exact.same(pairs.view("f4"), singles.view("f4")).all()


def test_fma_of_f32_is_rounded_once():
    # The sum in float64 is a tie of float32, which the dropped part decides.
    a = np.array([1 + 2.0**-12, 1 + 2.0**-12, 2.0**-75, 1.5 * 2.0**-75], "f4")
    b = np.array([1 + 2.0**-12, -(1 + 2.0**-12), 2.0**-75, 2.0**-75], "f4")
    c = np.array([2.0**-80, 2.0**-80, 0, 2.0**-149], "f4")
    check("fma.rn", "f32", exact.fma, "rn", [a, b, c])
    naive = (a.astype("f8") * b + c).astype("f4")
    assert (naive != execute("fma.rn.f32 d, a, b, c", {"d": "f4"}, a=a, b=b, c=c)).any()


def test_fma_of_f32_on_many_random_numbers():
    random = np.random.default_rng(3)
    bits = random.integers(0, 2**32, (3, 2000), "u8").astype("u4")
    # Close exponents, so that sums cancel and carry.
    bits = (bits & 0x807F_FFFF) | (random.integers(100, 130, bits.shape) << 23).astype("u4")
    check("fma.rn", "f32", exact.fma, "rn", list(bits.view("f4")))


@pytest.mark.parametrize("kind", ["f32", "f16"])
@pytest.mark.parametrize("opcode", ["add", "mul", "fma"])
def test_flushed(opcode, kind):
    oracle, count, _ = ROUNDED[opcode]
    form, dtype = exact.FORMATS[kind], np.dtype(DTYPES[kind])
    normal = 2.0**form.least

    def flush(value):
        return math.copysign(0.0, value) if abs(value) < normal else value

    def flushed(*operands):
        *values, form, direction = operands
        return flush(oracle(*map(flush, values), form, direction))

    check(f"{opcode}.rn.ftz", kind, flushed, "rn", exact.operands(form, dtype, count))


def clamp(value):
    return 0.0 if math.isnan(value) or value <= 0 else min(value, 1.0)


@pytest.mark.parametrize("kind", ["f32", "f16"])
@pytest.mark.parametrize("opcode", ["add", "mul", "fma"])
def test_saturated(opcode, kind):
    oracle, count, _ = ROUNDED[opcode]
    values = exact.operands(exact.FORMATS[kind], DTYPES[kind], count)
    check(f"{opcode}.rn.sat", kind, lambda *operands: clamp(oracle(*operands)), "rn", values)


def test_rectified():
    values = exact.operands(exact.F16, "f2", 3)
    found = execute(
        "fma.rn.relu.f16 d, a, b, c", {"d": "f2"}, **dict(zip("abc", values, strict=True))
    )
    rows = [exact.fma(*map(float, row), exact.F16, "rn") for row in zip(*values, strict=True)]
    expected = [row if math.isnan(row) or row > 0 else 0.0 for row in rows]
    assert exact.same(found, expected).all()
    assert (found.view("u2")[np.isnan(found)] == 0x7FFF).all()


def test_default_directions_and_mixed_types():
    a, c = exact.operands(exact.F16, "f2", 2)
    c = c.astype("f4") * np.float32(1.1)
    found = execute("add.f32.f16 d, a, c", {"d": "f4"}, a=a, c=c)
    assert exact.same(found, a.astype("f4") + c).all()
    found = execute("fma.rn.f32.f16 d, a, a, c", {"d": "f4"}, a=a, c=c)
    wide = a.astype("f8")
    expected = [
        exact.fma(x, x, float(y), exact.F32, "rn") for x, y in zip(wide.tolist(), c, strict=True)
    ]
    assert exact.same(found, expected).all()


# ------------------------------------------------------------------------------------- extremes


def extreme(a, b, larger, nan):
    """min or max by PTX: NaN loses unless .NaN; -0 is less than +0."""
    if math.isnan(a) or math.isnan(b):
        return math.nan if nan or (math.isnan(a) and math.isnan(b)) else b if math.isnan(a) else a
    key = lambda x: (x, math.copysign(1, x))
    return max(a, b, key=key) if larger else min(a, b, key=key)


@pytest.mark.parametrize("kind", DTYPES)
@pytest.mark.parametrize("nan", ["", ".NaN"])
@pytest.mark.parametrize("opcode", ["min", "max"])
def test_extremes(opcode, nan, kind):
    values = exact.operands(exact.FORMATS[kind], DTYPES[kind], 2)

    def oracle(a, b, form, direction):
        return extreme(a, b, opcode == "max", bool(nan))

    check(f"{opcode}{nan}", kind, oracle, "rn", values)


def test_extremes_of_three_and_flushed():
    values = exact.operands(exact.F32, "f4", 3)

    def oracle(a, b, c, form, direction):
        return extreme(extreme(a, b, True, False), c, True, False)

    check("max", "f32", oracle, "rn", values)
    a = np.array([1e-40, -1e-40, 2.0], "f4")
    found = execute("max.ftz.f32 d, a, b", {"d": "f4"}, a=a, b=np.array([-1.0, -1e-41, 1], "f4"))
    assert exact.same(found, [0.0, -0.0, 2.0]).all()


@pytest.mark.parametrize(
    ("kind", "bits"), [("f32", 0x7FFF_FFFF), ("f16", 0x7FFF), ("f64", 2**63 - 1)]
)
def test_extreme_of_two_nan_is_canonical(kind, bits):
    nan = np.array([np.nan, -np.nan], DTYPES[kind])
    found = execute(f"min.{kind} d, a, b", {"d": DTYPES[kind]}, a=nan, b=-nan)
    assert (found.view(f"u{found.itemsize}") == bits).all()


# ---------------------------------------------------------------------------------------- signs


@pytest.mark.parametrize("kind", DTYPES)
def test_signs(kind):
    dtype = DTYPES[kind]
    (a,) = exact.operands(exact.FORMATS[kind], dtype, 1)
    assert exact.same(execute(f"neg.{kind} d, a", {"d": dtype}, a=a), -a).all()
    assert exact.same(execute(f"abs.{kind} d, a", {"d": dtype}, a=a), np.abs(a)).all()


@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_copysign(kind):
    a, b = exact.operands(exact.FORMATS[kind], DTYPES[kind], 2)
    found = execute(f"copysign.{kind} d, a, b", {"d": DTYPES[kind]}, a=a, b=b)
    assert exact.same(found, np.copysign(b, a)).all()


def test_flushed_signs():
    a = np.array([1e-40, -1e-40, -3.0], "f4")
    assert exact.same(execute("neg.ftz.f32 d, a", {"d": "f4"}, a=a), [-0.0, 0.0, 3.0]).all()
    assert exact.same(execute("abs.ftz.f32 d, a", {"d": "f4"}, a=a), [0.0, 0.0, 3.0]).all()


TESTS = {
    "finite": math.isfinite,
    "infinite": math.isinf,
    "number": lambda x: not math.isnan(x),
    "notanumber": math.isnan,
}


@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_testp(kind):
    form = exact.FORMATS[kind]
    (a,) = exact.operands(form, DTYPES[kind], 1)
    normal = 2.0**form.least
    tests = TESTS | {
        "normal": lambda x: math.isfinite(x) and abs(x) >= normal,
        "subnormal": lambda x: 0 < abs(x) < normal,
    }
    for name, oracle in tests.items():
        found = execute(f"testp.{name}.{kind} p, a", {"p": bool}, a=a)
        assert found.tolist() == [oracle(x) for x in a.tolist()]


# ------------------------------------------------------------------------------- approximations

APPROXIMATED = {
    "rcp.approx": lambda x: 1 / x,
    "sqrt.approx": np.sqrt,
    "rsqrt.approx": lambda x: 1 / np.sqrt(x),
    "sin.approx": np.sin,
    "cos.approx": np.cos,
    "lg2.approx": np.log2,
    "ex2.approx": np.exp2,
    "tanh.approx": np.tanh,
}


@pytest.mark.parametrize("ftz", ["", ".ftz"])
@pytest.mark.parametrize("opcode", APPROXIMATED)
def test_approximations(opcode, ftz):
    (a,) = exact.operands(exact.F32, "f4", 1)
    a = np.concatenate([a, np.linspace(-3, 3, 61, dtype="f4")])
    found = execute(f"{opcode}{ftz}.f32 d, a", {"d": "f4"}, a=a)
    flush = (
        (lambda x: np.where(np.abs(x) < 2.0**-126, np.copysign(0, x), x)) if ftz else (lambda x: x)
    )
    with np.errstate(all="ignore"):
        if opcode in ("sin.approx", "cos.approx"):
            a, found = a[np.abs(a) < 100], found[np.abs(a) < 100]
        expected = flush(APPROXIMATED[opcode](flush(a.astype("f8"))).astype("f4").astype("f8"))
    close = np.isclose(found, expected, rtol=3e-7, atol=1e-7 if "lg2" in opcode else 0)
    assert (close | (np.isnan(found) & np.isnan(expected))).all()
    zero = expected == 0
    assert (np.signbit(found[zero]) == np.signbit(expected[zero])).all()


@pytest.mark.parametrize("opcode", ["ex2", "tanh"])
@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_approximations_of_halves(opcode, kind):
    (a,) = exact.operands(exact.FORMATS[kind], "f4", 1)
    bits = a.astype("f2").view("u2") if kind == "f16" else as_bf16(a)
    ftz = ".ftz" if opcode == "ex2" and kind == "bf16" else ""
    found = execute(f"{opcode}.approx{ftz}.{kind} d, a", {"d": "u2"}, a=bits)
    found = found.view("f2").astype("f4") if kind == "f16" else bf16_values(found)
    with np.errstate(all="ignore"):
        expected = getattr(np, {"ex2": "exp2", "tanh": "tanh"}[opcode])(a.astype("f8"))
        expected = expected.astype("f2" if kind == "f16" else "f4")
    assert np.isclose(found, expected, rtol=2.0**-7, atol=2.0**-125, equal_nan=True).all()
    words = np.resize(bits, 2 * len(bits)).view("u4")
    pairs = execute(f"{opcode}.approx{ftz}.{kind}x2 d, a", {"d": "u4"}, a=words)
    singles = execute(f"{opcode}.approx{ftz}.{kind} d, a", {"d": "u2"}, a=words.view("u2"))
    assert (pairs.view("u2") == singles).all()


def test_quotients():
    a, b = exact.operands(exact.F32, "f4", 2)
    with np.errstate(all="ignore"):
        expected = a / b
    found = execute("div.full.f32 d, a, b", {"d": "f4"}, a=a, b=b)
    assert np.isclose(found, expected, rtol=3e-7, equal_nan=True).all()
    # Divisors above 2**126 give zero, as their reciprocal is subnormal.
    found = execute("div.approx.f32 d, a, b", {"d": "f4"}, a=a, b=b)
    small = np.abs(b) <= 2.0**126
    assert np.isclose(found[small], expected[small], rtol=3e-7, equal_nan=True).all()
    large = np.isfinite(b) & ~small & np.isfinite(a)
    assert large.any()
    assert (found[large] == 0).all()


def test_reciprocals_of_upper_words():
    a = np.array([3.0, -7.25, 1e-310, 0.0, math.inf, 1e308], "f8")
    found = execute("rcp.approx.ftz.f64 d, a", {"d": "f8"}, a=a)
    assert (found.view("u8") & 0xFFFF_FFFF == 0).all()
    with np.errstate(all="ignore"):
        expected = 1 / np.where(np.abs(a) < 2.0**-1022, 0, a)
    assert np.isclose(found, np.where(np.abs(expected) < 2.0**-1022, 0, expected), rtol=1e-6).all()
    found = execute("rsqrt.approx.f64 d, a", {"d": "f8"}, a=np.abs(a[:3]))
    assert np.allclose(found, 1 / np.sqrt(np.abs(a[:3])), rtol=1e-15)


@pytest.mark.parametrize(
    "text",
    [
        "min.xorsign.abs.f32 d, a, a",
        "div.rn.f16 d, a, a",
        "fma.rn.oob.f16 d, a, a, a",
        "sin.f64 d, a",
    ],
)
def test_forms_that_are_lacking(text):
    with pytest.raises(ptxemu.UnsupportedInstruction, match="the emulator has no"):
        execute(text, {"d": "f4"}, a=np.zeros(1, "f4"))
