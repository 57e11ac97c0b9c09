import itertools

import numpy as np
import pytest
from tests.ptxemu.lanes import execute

from sdpakit import ptxemu


def corners(dtype):
    """Integers where signs, carries and overflows are, and some others."""
    limits = np.iinfo(dtype)
    near = [limits.min, limits.min + 1, limits.max, limits.max - 1, 0, 1, 2, 3, 7, 100]
    near += [-1, -2, -7] if limits.min else [limits.max // 2, limits.max // 2 + 1, 77]
    random = np.random.default_rng(limits.bits)
    return np.concatenate(
        [np.array(near, dtype), random.integers(limits.min, limits.max, 8, dtype, endpoint=True)]
    )


def meet(dtype, count):
    """All pairs of corners; further operands come from a shuffle."""
    values = corners(dtype)
    pairs = [np.repeat(values, len(values)), np.tile(values, len(values))]
    random = np.random.default_rng(0)
    return [*pairs, *(random.permutation(pairs[0]) for _ in range(count - 2))][:count]


def wrapped(results, dtype):
    bits = np.iinfo(dtype).bits
    unsigned = np.array([int(result) % 2**bits for result in results], f"u{bits // 8}")
    return unsigned.view(dtype)


def toward_zero(a, b):
    return abs(a) // abs(b) * (-1 if (a < 0) != (b < 0) else 1)


def clamp(value, dtype):
    limits = np.iinfo(dtype)
    return min(max(value, limits.min), limits.max)


def low_24(value, kind):
    value %= 2**24
    return value - 2**24 if kind == "s32" and value >= 2**23 else value


WIDTHS = {"u16": "u2", "s16": "i2", "u32": "u4", "s32": "i4", "u64": "u8", "s64": "i8"}
ALL = tuple(WIDTHS)
SIGNED, WORDS = ("s16", "s32", "s64"), ("u32", "s32")

# Opcode: types, function of Python integers; operands follow from its parameters.
SAME_WIDTH = {
    "add": (ALL, lambda a, b: a + b),
    "sub": (ALL, lambda a, b: a - b),
    "mul.lo": (ALL, lambda a, b: a * b),
    "mad.lo": (ALL, lambda a, b, c: a * b + c),
    "min": (ALL, min),
    "max": (ALL, max),
    "abs": (SIGNED, abs),
    "neg": (SIGNED, lambda a: -a),
    "sad": (ALL, lambda a, b, c: c + abs(a - b)),
    "add.sat": (("s32",), lambda a, b: clamp(a + b, "i4")),
    "sub.sat": (("s32",), lambda a, b: clamp(a - b, "i4")),
    "mad.hi.sat": (("s32",), lambda a, b, c: clamp((a * b >> 32) + c, "i4")),
    "min.relu": (("s32",), lambda a, b: max(min(a, b), 0)),
    "max.relu": (("s32",), lambda a, b: max(a, b, 0)),
}
CASES = [(opcode, kind) for opcode, (kinds, _) in SAME_WIDTH.items() for kind in kinds]


def arity(function):
    return 2 if function in (min, max) else 1 if function is abs else function.__code__.co_argcount


@pytest.mark.parametrize(("opcode", "kind"), CASES)
def test_same_width(opcode, kind):
    function, dtype = SAME_WIDTH[opcode][1], np.dtype(WIDTHS[kind])
    values = meet(dtype, arity(function))
    names = "abc"[: len(values)]
    found = execute(
        f"{opcode}.{kind} d, {', '.join(names)}",
        {"d": dtype},
        **dict(zip(names, values, strict=True)),
    )
    expected = wrapped([function(*map(int, row)) for row in zip(*values, strict=True)], dtype)
    assert (found == expected).all()


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("opcode", ["div", "rem"])
def test_division_is_toward_zero(opcode, kind):
    dtype = np.dtype(WIDTHS[kind])
    a, b = meet(dtype, 2)
    a, b = a[b != 0], b[b != 0]
    found = execute(f"{opcode}.{kind} d, a, b", {"d": dtype}, a=a, b=b)
    quotients = [toward_zero(int(x), int(y)) for x, y in zip(a, b, strict=True)]
    rest = [int(x) - q * int(y) for x, q, y in zip(a, quotients, b, strict=True)]
    assert (found == wrapped(quotients if opcode == "div" else rest, dtype)).all()


@pytest.mark.parametrize("kind", ["u32", "s64"])
def test_division_by_zero(kind):
    dtype = np.dtype(WIDTHS[kind])
    a = corners(dtype)
    b = np.arange(len(a), dtype=dtype) % 2
    ones = wrapped([-1], dtype)[0]
    quotient = execute(f"div.{kind} d, a, b", {"d": dtype}, a=a, b=b)
    assert (quotient == np.where(b == 0, ones, a)).all()
    rest = execute(f"rem.{kind} d, a, b", {"d": dtype}, a=a, b=b)
    assert (rest == np.where(b == 0, a, 0)).all()


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("opcode", ["mul", "mad"])
def test_upper_half_of_products(opcode, kind):
    dtype = np.dtype(WIDTHS[kind])
    a, b, c = meet(dtype, 3)
    bits = 8 * dtype.itemsize
    text = f"{opcode}.hi.{kind} d, a, b" + (", c" if opcode == "mad" else "")
    addends = c if opcode == "mad" else 0 * c
    found = execute(text, {"d": dtype}, a=a, b=b, c=c)
    expected = [(int(x) * int(y) >> bits) + int(z) for x, y, z in zip(a, b, addends, strict=True)]
    assert (found == wrapped(expected, dtype)).all()


@pytest.mark.parametrize("kind", ["u16", "s16", "u32", "s32"])
@pytest.mark.parametrize("opcode", ["mul", "mad"])
def test_wide_products(opcode, kind):
    dtype = np.dtype(WIDTHS[kind])
    wide = np.dtype(f"{dtype.kind}{2 * dtype.itemsize}")
    a, b = meet(dtype, 2)
    c = np.resize(corners(wide), a.shape)
    text = f"{opcode}.wide.{kind} d, a, b" + (", c" if opcode == "mad" else "")
    found = execute(text, {"d": wide}, a=a, b=b, c=c)
    addends = c if opcode == "mad" else 0 * c
    expected = [int(x) * int(y) + int(z) for x, y, z in zip(a, b, addends, strict=True)]
    assert (found == wrapped(expected, wide)).all()


@pytest.mark.parametrize("kind", WORDS)
@pytest.mark.parametrize(("part", "shift"), [("lo", 0), ("hi", 16)])
def test_of_24_bits(part, shift, kind):
    dtype = np.dtype(WIDTHS[kind])
    a, b, c = meet(dtype, 3)
    products = [
        low_24(int(x), kind) * low_24(int(y), kind) >> shift for x, y in zip(a, b, strict=True)
    ]
    found = execute(f"mul24.{part}.{kind} d, a, b", {"d": dtype}, a=a, b=b)
    assert (found == wrapped(products, dtype)).all()
    found = execute(f"mad24.{part}.{kind} d, a, b, c", {"d": dtype}, a=a, b=b, c=c)
    assert (found == wrapped([p + int(z) for p, z in zip(products, c, strict=True)], dtype)).all()


def test_saturated_mad_of_24_bits():
    a, b, c = meet(np.dtype("i4"), 3)
    found = execute("mad24.hi.sat.s32 d, a, b, c", {"d": "i4"}, a=a, b=b, c=c)
    products = [
        low_24(int(x), "s32") * low_24(int(y), "s32") >> 16 for x, y in zip(a, b, strict=True)
    ]
    assert (found == [clamp(p + int(z), "i4") for p, z in zip(products, c, strict=True)]).all()


PACKED = {"add": np.add, "sub": np.subtract, "min": np.minimum, "max": np.maximum}


PACKED_CASES = [(opcode, kind) for opcode in PACKED for kind in ("u16x2", "s16x2")]
PACKED_CASES += [("min.relu", "s16x2"), ("max.relu", "s16x2")]


@pytest.mark.parametrize(("opcode", "kind"), PACKED_CASES)
def test_pairs_of_short_integers(opcode, kind):
    dtype = np.dtype("i2" if kind == "s16x2" else "u2")
    a, b = (np.resize(values, 300) for values in meet(dtype, 2))
    words = [np.ascontiguousarray(values).view("u4") for values in (a, b)]
    found = execute(f"{opcode}.{kind} d, a, b", {"d": "u4"}, a=words[0], b=words[1])
    expected = PACKED[opcode.split(".")[0]](a, b)
    if "relu" in opcode:
        expected = np.maximum(expected, 0)
    assert (found.view(dtype) == expected).all()


@pytest.mark.parametrize(("first", "second"), list(itertools.product(WORDS, WORDS)))
def test_dot_products_of_bytes(first, second):
    a, b, c = (values.view("u4") for values in meet(np.dtype("i4"), 3))
    kinds = [np.dtype(f"{'i' if kind == 's32' else 'u'}1") for kind in (first, second)]
    halves = a.view(np.dtype(f"{kinds[0].kind}2")).reshape(-1, 2).astype("i8")
    parts = [
        x.view(kind).reshape(-1, 4).astype("i8") for x, kind in zip((a, b), kinds, strict=True)
    ]
    found = execute(f"dp4a.{first}.{second} d, a, b, c", {"d": "u4"}, a=a, b=b, c=c)
    assert (found == wrapped((parts[0] * parts[1]).sum(1) + c, "u4")).all()
    for part, chosen in (("lo", slice(0, 2)), ("hi", slice(2, 4))):
        text = f"dp2a.{part}.{first}.{second} d, a, b, c"
        found = execute(text, {"d": "u4"}, a=a, b=b, c=c)
        assert (found == wrapped((halves * parts[1][:, chosen]).sum(1) + c, "u4")).all()


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("sign", [1, -1])
def test_carries_go_from_word_to_word(bits, sign):
    opcode, dtype = ("add" if sign == 1 else "sub"), np.dtype(f"u{bits // 8}")
    a, b, c, e = meet(dtype, 4)
    text = f"""
        {opcode}.cc.u{bits} low, a, b;
        {opcode}c.cc.u{bits} middle, c, e;
        {opcode}c.u{bits} high, a, e
    """
    outputs = dict.fromkeys(("low", "middle", "high"), dtype)
    low, middle, high = execute(text, outputs, a=a, b=b, c=c, e=e)
    for row in zip(a, b, c, e, low, middle, high, strict=True):
        w, x, y, z, *found = map(int, row)
        number = w + (y << bits) + (w << 2 * bits)
        other = x + (z << bits) + (z << 2 * bits)
        total = (number + sign * other) % 2 ** (3 * bits)
        assert found == [total >> shift & 2**bits - 1 for shift in (0, bits, 2 * bits)]


@pytest.mark.parametrize("bits", [32, 64])
def test_carries_of_products(bits):
    dtype = np.dtype(f"u{bits // 8}")
    a, b, c, e = meet(dtype, 4)
    text = f"""
        mad.lo.cc.u{bits} low, a, b, c;
        madc.hi.u{bits} high, a, b, e
    """
    low, high = execute(text, {"low": dtype, "high": dtype}, a=a, b=b, c=c, e=e)
    for row in zip(a, b, c, e, low, high, strict=True):
        w, x, y, z, *found = map(int, row)
        total = w * x + y + (z << bits)
        assert found == [total & 2**bits - 1, total >> bits & 2**bits - 1]


def test_carry_is_set_where_a_difference_borrows_nothing():
    a, b = meet(np.dtype("u4"), 2)
    found = execute("sub.cc.u32 d, a, b;\naddc.u32 d, 0, 0", {"d": "u4"}, a=a, b=b)
    assert (found == (a >= b)).all()


def test_constants_on_either_side():
    a = corners(np.dtype("i4"))
    assert (execute("sub.s32 d, 7, a", {"d": "i4"}, a=a) == 7 - a).all()
    assert (execute("add.s32 d, 3, 4", {"d": "i4"}, a=a) == 7).all()


def test_some_lanes_only():
    a = np.arange(100, dtype="i4")
    text = """
        .reg .pred p;
        setp.lt.s32 p, a, 50;
        mov.b32 d, 0;
        @p add.s32 d, a, 1
    """
    assert (execute(text, {"d": "i4"}, a=a) == np.where(a < 50, a + 1, 0)).all()


@pytest.mark.parametrize(
    "text", ["add.ftz.s32 d, a, a", "add.sat.u32 d, a, a", "add.s32 d, a", "mul.s32 d, a, a"]
)
def test_forms_that_ptx_lacks_are_refused(text):
    with pytest.raises(ptxemu.UnsupportedInstruction, match="the emulator has no"):
        execute(text, {"d": "i4"}, a=np.zeros(1, "i4"))
