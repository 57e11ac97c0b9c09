import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from tests.ptxemu import exact
from tests.ptxemu.lanes import execute

from sdpakit import ptxemu

INTEGERS = {
    "u8": "u1", "s8": "i1", "u16": "u2", "s16": "i2",
    "u32": "u4", "s32": "i4", "u64": "u8", "s64": "i8",
}  # fmt: skip
FLOATS = {"f16": "f2", "f32": "f4", "f64": "f8"}
DIRECTIONS = ("rn", "rz", "rm", "rp")


def integers(dtype):
    limits = np.iinfo(dtype)
    powers = [
        2**k + d for k in (7, 8, 15, 16, 23, 24, 25, 31, 32, 52, 53, 54, 62) for d in (-1, 0, 1)
    ]
    found = [x for p in powers for x in (p, -p) if limits.min <= x <= limits.max]
    random = np.random.default_rng(0).integers(limits.min, limits.max, 30, dtype, endpoint=True)
    return np.concatenate([np.array([limits.min, limits.max, 0, 1, *found], dtype), random])


def floats(kind, extra=()):
    values = exact.values_of(exact.FORMATS[kind], FLOATS[kind], count=30)
    return np.concatenate([values, np.array(extra, FLOATS[kind])])


# ------------------------------------------------------------------------------------- integers


@pytest.mark.parametrize("target", INTEGERS)
@pytest.mark.parametrize("source", INTEGERS)
def test_between_integers(source, target):
    a = integers(INTEGERS[source])
    # Registers have 16 bits at least; what is above a narrow source does not count.
    dtype = np.dtype(INTEGERS[target])
    with np.errstate(all="ignore"):
        expected = a.astype(dtype)
    assert (execute(f"cvt.{target}.{source} d, a", {"d": dtype}, a=a) == expected).all()
    limits = np.iinfo(dtype)
    found = execute(f"cvt.sat.{target}.{source} d, a", {"d": dtype}, a=a)
    assert found.tolist() == [min(max(x, limits.min), limits.max) for x in a.tolist()]


def test_narrow_results_fill_wide_registers_by_their_sign():
    a = np.array([0x80, 0x7F, 0x1FF, 0xFFFF_FF80], "u4")
    assert execute("cvt.s8.s32 d, a", {"d": "i4"}, a=a).tolist() == [-128, 127, -1, -128]
    assert execute("cvt.u8.u32 d, a", {"d": "i4"}, a=a).tolist() == [128, 127, 255, 128]
    assert execute("cvt.s32.s8 d, a", {"d": "i4"}, a=a).tolist() == [-128, 127, -1, -128]


# ------------------------------------------------------------------------------ float to integer

WHOLE = {"rni": round, "rzi": math.trunc, "rmi": math.floor, "rpi": math.ceil}
AROUND = (0.5, 1.5, 2.5, -0.5, -1.5, 126.5, 127.5, 128, -128.5, 255.5, 256, 32767.5, -32769)
FAR = (65535.5, 2.0**31, -(2.0**31), 2.0**32, 2.0**63, -(2.0**63), 2.0**64, -1.0, 2.0**31 - 128)


@pytest.mark.parametrize("target", INTEGERS)
@pytest.mark.parametrize("source", FLOATS)
@pytest.mark.parametrize("direction", WHOLE)
def test_to_integers(direction, source, target):
    with np.errstate(all="ignore"):
        a = floats(source, AROUND + FAR)
    dtype = np.dtype(INTEGERS[target])
    limits = np.iinfo(dtype)

    def oracle(value):
        if math.isnan(value):
            return 0
        if math.isinf(value):
            return limits.max if value > 0 else limits.min
        return min(max(WHOLE[direction](value), limits.min), limits.max)

    found = execute(f"cvt.{direction}.{target}.{source} d, a", {"d": dtype}, a=a)
    assert found.tolist() == [oracle(x) for x in a.tolist()]


def test_flushed_before_rounding_up():
    a = np.array([1e-40, 1e-30], "f4")
    assert execute("cvt.rpi.ftz.s32.f32 d, a", {"d": "i4"}, a=a).tolist() == [0, 1]
    assert execute("cvt.rpi.s32.f32 d, a", {"d": "i4"}, a=a).tolist() == [1, 1]


# ------------------------------------------------------------------------------ integer to float


@pytest.mark.parametrize("source", INTEGERS)
@pytest.mark.parametrize("target", FLOATS)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_from_integers(direction, target, source):
    a = integers(INTEGERS[source])
    form = exact.FORMATS[target]
    found = execute(f"cvt.{direction}.{target}.{source} d, a", {"d": FLOATS[target]}, a=a)
    expected = [form.round(Fraction(x), direction) for x in a.tolist()]
    assert exact.same(found, expected).all()


@pytest.mark.parametrize("source", ["u64", "s32"])
def test_from_integers_to_bf16(source):
    a = integers(INTEGERS[source])
    found = execute(f"cvt.rn.bf16.{source} d, a", {"d": "u2"}, a=a)
    expected = [exact.BF16.round(Fraction(x), "rn") for x in a.tolist()]
    assert ((found.astype("u4") << 16).view("f4") == np.array(expected)).all()


def test_from_integers_saturated():
    a = np.array([-5, 0, 1, 7], "i4")
    assert execute("cvt.rn.sat.f32.s32 d, a", {"d": "f4"}, a=a).tolist() == [0, 0, 1, 1]


# -------------------------------------------------------------------------------- between floats


def rounded(value, form, direction):
    if not math.isfinite(value) or value == 0:
        return value
    return form.round(Fraction(value), direction)


NARROWING = [("f64", "f32"), ("f64", "f16"), ("f32", "f16")]


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(("source", "target"), NARROWING)
def test_narrowing(source, target, direction):
    form = exact.FORMATS[target]
    hard = exact.values_of(form, "f8", count=30)
    # Just beside and on ties of the target.
    with np.errstate(all="ignore"):
        ties = hard * (1 + 2.0**-form.precision)
        near = np.concatenate([hard, ties, ties * (1 + 2.0**-40), ties * (1 - 2.0**-23)])
        a = np.concatenate([near.astype(FLOATS[source]), floats(source)])
    found = execute(f"cvt.{direction}.{target}.{source} d, a", {"d": FLOATS[target]}, a=a)
    expected = [rounded(x, form, direction) for x in a.tolist()]
    assert exact.same(found, expected).all()


@pytest.mark.parametrize("source", ["f32", "f64"])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_narrowing_to_bf16(direction, source):
    hard = exact.values_of(exact.BF16, "f8", count=30)
    with np.errstate(all="ignore"):
        ties = hard * (1 + 2.0**-8)
        a = np.concatenate([hard, ties, ties * (1 + 2.0**-20), ties * (1 - 2.0**-20)])
        a = a.astype(FLOATS[source])
    found = execute(f"cvt.{direction}.bf16.{source} d, a", {"d": "u2"}, a=a)
    values = (found.astype("u4") << 16).view("f4")
    assert exact.same(values, [rounded(x, exact.BF16, direction) for x in a.tolist()]).all()
    assert (found[np.isnan(a)] == 0x7FFF).all()


@pytest.mark.parametrize(("source", "target"), [("f16", "f32"), ("f16", "f64"), ("f32", "f64")])
def test_widening_is_exact(source, target):
    a = floats(source)
    found = execute(f"cvt.{target}.{source} d, a", {"d": FLOATS[target]}, a=a)
    assert exact.same(found, a.astype(FLOATS[target])).all()


def test_widening_bf16():
    bits = np.arange(0, 2**16, 37, dtype="u2")
    found = execute("cvt.f32.bf16 d, a", {"d": "u4"}, a=bits)
    assert (found == bits.astype("u4") << 16).all()


@pytest.mark.parametrize("kind", FLOATS)
@pytest.mark.parametrize("direction", WHOLE)
def test_to_whole_floats(direction, kind):
    with np.errstate(all="ignore"):
        a = floats(kind, AROUND)
    function = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}[direction]
    found = execute(f"cvt.{direction}.{kind}.{kind} d, a", {"d": FLOATS[kind]}, a=a)
    assert exact.same(found, function(a)).all()


def test_saturated_and_flushed():
    a = np.array([-1, -0.0, 0.25, 2, np.nan, np.inf, 1e-40], "f4")
    found = execute("cvt.sat.f32.f32 d, a", {"d": "f4"}, a=a)
    assert exact.same(found, np.array([0, 0, 0.25, 1, 0, 1, 1e-40], "f4")).all()
    found = execute("cvt.ftz.f32.f32 d, a", {"d": "f4"}, a=a)
    assert exact.same(found, [-1, -0.0, 0.25, 2, np.nan, np.inf, 0]).all()
    # Results are flushed, too.
    a = np.array([-1e-40, 1e-30], "f8")
    found = execute("cvt.rn.ftz.f32.f64 d, a", {"d": "f4"}, a=a)
    assert exact.same(found, np.array([-0.0, 1e-30], "f4")).all()


# ---------------------------------------------------------------------------------------- packed


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize("options", ["rn", "rz", "rn.relu", "rn.satfinite", "rz.relu.satfinite"])
def test_two_f32_to_a_pair(options, kind):
    a, b = exact.operands(exact.F32, "f4", 2)
    found = execute(f"cvt.{options}.{kind}x2.f32 d, a, b", {"d": "u4"}, a=a, b=b)
    single = f"cvt.{options}.{kind}.f32 d, a"
    upper, lower = (execute(single, {"d": "u2"}, a=value) for value in (a, b))
    assert (found == (upper.astype("u4") << 16 | lower)).all()


@pytest.mark.parametrize(("kind", "largest"), [("f16", 0x7BFF), ("bf16", 0x7F7F)])
def test_relu_and_satfinite(kind, largest):
    a = np.array([-1, np.inf, 3.4e38, -np.inf, np.nan, 0.5], "f4")
    found = execute(f"cvt.rn.relu.satfinite.{kind}.f32 d, a", {"d": "u2"}, a=a)
    half = {"f16": 0x3800, "bf16": 0x3F00}[kind]
    assert found.tolist() == [0, largest, largest, 0, 0x7FFF, half]
    found = execute(f"cvt.rn.satfinite.{kind}.f32 d, a", {"d": "u2"}, a=a)
    assert found[3] == largest | 0x8000


BYTES = {"e4m3x2": ml_dtypes.float8_e4m3fn, "e5m2x2": ml_dtypes.float8_e5m2}


@pytest.mark.parametrize("kind", BYTES)
def test_to_floats_of_a_byte(kind):
    largest = float(ml_dtypes.finfo(BYTES[kind]).max)
    random = np.random.default_rng(1)
    codes = np.arange(128).astype("u1").view(BYTES[kind]).astype("f4")
    codes = codes[np.isfinite(codes)]
    middles = (codes[1:] + codes[:-1]) / 2
    a = np.concatenate(
        [codes, middles, middles * np.float32(1 + 2**-20), [1e9, 1e-9, np.inf, np.nan]]
    )
    a = (a * random.choice([-1, 1], len(a))).astype("f4")
    b = random.permutation(a)
    found = execute(f"cvt.rn.satfinite.{kind}.f32 d, a, b", {"d": "u2"}, a=a, b=b)

    def encode(values):
        return np.clip(values, -largest, largest).astype(BYTES[kind]).view("u1")

    for values, bits in ((a, found >> 8), (b, found & 0xFF)):
        nan = np.isnan(values)
        assert (bits[~nan] == encode(values[~nan])).all()
        assert (bits[nan] == 0x7F).all()
    with np.errstate(over="ignore"):
        halves = np.resize(a, 400).astype("f2")
    found = execute(f"cvt.rn.satfinite.{kind}.f16x2 d, a", {"d": "u2"}, a=halves.view("u4"))
    numbers = ~np.isnan(halves)
    assert (found.view("u1")[numbers] == encode(halves[numbers].astype("f4"))).all()


@pytest.mark.parametrize("kind", BYTES)
def test_from_floats_of_a_byte(kind):
    codes = np.arange(256).astype("u1")
    found = execute(f"cvt.rn.f16x2.{kind} d, a", {"d": "u4"}, a=codes.view("u2"))
    assert exact.same(found.view("f2"), codes.view(BYTES[kind]).astype("f2")).all()
    found = execute(f"cvt.rn.relu.f16x2.{kind} d, a", {"d": "u4"}, a=codes.view("u2"))
    expected = np.maximum(codes.view(BYTES[kind]).astype("f2"), 0)
    assert ((found.view("f2") == expected) | np.isnan(expected)).all()


TF32 = exact.Format(11, -126, 127)


@pytest.mark.parametrize("direction", ["rna", "rn", "rz"])
def test_tf32(direction):
    hard = exact.values_of(TF32, "f8", count=40)
    with np.errstate(all="ignore"):
        a = np.concatenate([hard, hard * (1 + 2.0**-11), hard * (1 + 2.0**-12)]).astype("f4")

    def oracle(value):
        if direction != "rna":
            return rounded(value, TF32, direction)
        if not math.isfinite(value) or value == 0:
            return value
        # Ties away from zero: a little farther out, to nearest.
        unit = Fraction(2) ** (max(math.frexp(value)[1] - 1, -126) - 24)
        return TF32.round(Fraction(value) + (unit if value > 0 else -unit), "rn")

    found = execute(f"cvt.{direction}.tf32.f32 d, a", {"d": "f4"}, a=a)
    assert exact.same(found, [oracle(x) for x in a.tolist()]).all()
    assert (found.view("u4") & 0x1FFF)[~np.isnan(a)].max() == 0


@pytest.mark.parametrize(("kind", "bits"), [("s16", 16), ("u16", 16), ("s8", 8), ("u8", 8)])
def test_pack_saturated(kind, bits):
    a, b = integers("i4"), integers("i4")[::-1]
    limits = np.iinfo(INTEGERS[kind])
    parts = [np.clip(x, limits.min, limits.max).astype("i8") & (2**bits - 1) for x in (a, b)]
    packed = parts[0] << bits | parts[1]
    if bits == 16:
        found = execute(f"cvt.pack.sat.{kind}.s32 d, a, b", {"d": "u4"}, a=a, b=b)
        assert (found == packed).all()
        return
    c = np.arange(len(a), dtype="u4") * 0x01010101
    found = execute(f"cvt.pack.sat.{kind}.s32.b32 d, a, b, c", {"d": "u4"}, a=a, b=b, c=c)
    assert (found == (packed | (c.astype("i8") << 16) & 0xFFFF_FFFF)).all()


@pytest.mark.parametrize(
    "text",
    [
        "cvt.s32.f32 d, a",
        "cvt.rs.f16x2.f32 d, a, a, a",
        "cvt.rn.e4m3x2.f32 d, a, a",
        "cvt.tf32.f16 d, a",
    ],
)
def test_forms_that_are_lacking(text):
    with pytest.raises(ptxemu.UnsupportedInstruction, match="the emulator has no"):
        execute(text, {"d": "u4"}, a=np.zeros(1, "f4"))
