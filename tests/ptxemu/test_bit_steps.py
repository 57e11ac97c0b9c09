from functools import partial

import numpy as np
import pytest
from tests.ptxemu.lanes import execute

RANDOM = np.random.default_rng(5)


def words(bits, count=200):
    """Numbers with few bits set, few bits clear, and others."""
    few = [0, 1, 2**bits - 1, 2 ** (bits - 1), 2 ** (bits - 1) - 1, 0xAA, 2**bits - 2]
    random = RANDOM.integers(0, 2**bits - 1, count - len(few), "u8", endpoint=True)
    return np.concatenate([np.array(few, "u8"), random]).astype(f"u{bits // 8}")


def amounts(count=200):
    """Counts and positions: within the width, at it, beyond it, and huge."""
    corners = [0, 1, 31, 32, 33, 63, 64, 65, 127, 255, 256, 257, 1 << 16, (1 << 32) - 1]
    random = RANDOM.integers(0, 70, count - len(corners))
    return RANDOM.permutation(np.concatenate([np.array(corners), random])).astype("u4")


def signed(value, bits):
    return value - (1 << bits) if value >> (bits - 1) else value


def check(text, function, dtype, **values):
    """Compare a step with a function of Python integers."""
    found = execute(text, {"d": dtype}, **values)
    bits = 8 * np.dtype(dtype).itemsize
    expected = [function(*map(int, row)) % 2**bits for row in zip(*values.values(), strict=True)]
    assert found.tolist() == expected


LOGIC = {
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
}


@pytest.mark.parametrize("bits", [16, 32, 64])
@pytest.mark.parametrize("opcode", LOGIC)
def test_logic(opcode, bits):
    a, b = words(bits), words(bits)[::-1]
    check(f"{opcode}.b{bits} d, a, b", LOGIC[opcode], f"u{bits // 8}", a=a, b=b)


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_not_and_cnot(bits):
    check(f"not.b{bits} d, a", lambda a: ~a, f"u{bits // 8}", a=words(bits))
    check(f"cnot.b{bits} d, a", lambda a: a == 0, f"u{bits // 8}", a=words(bits))


@pytest.mark.parametrize("opcode", LOGIC)
def test_logic_of_predicates(opcode):
    p, q = np.array([0, 0, 1, 1], bool), np.array([0, 1, 0, 1], bool)
    found = execute(f"{opcode}.pred r, p, q", {"r": bool}, p=p, q=q)
    assert (found == LOGIC[opcode](p, q)).all()
    assert (execute("not.pred r, p", {"r": bool}, p=p) == ~p).all()


@pytest.mark.parametrize("bits", [16, 32, 64])
class TestShifts:
    def test_left(self, bits):
        text, dtype = f"shl.b{bits} d, a, b", f"u{bits // 8}"
        check(text, lambda a, b: a << min(b, bits), dtype, a=words(bits), b=amounts())

    def test_right(self, bits):
        text, dtype = f"shr.u{bits} d, a, b", f"u{bits // 8}"
        check(text, lambda a, b: a >> min(b, bits), dtype, a=words(bits), b=amounts())

    def test_right_keeps_the_sign(self, bits):
        text, dtype = f"shr.s{bits} d, a, b", f"u{bits // 8}"
        check(text, lambda a, b: signed(a, bits) >> min(b, bits), dtype, a=words(bits), b=amounts())

    @pytest.mark.parametrize("by", [0, 3, 15, 16, 31, 32, 64, 70])
    def test_by_constants(self, bits, by):
        dtype = f"u{bits // 8}"
        check(f"shl.b{bits} d, a, {by}", lambda a: a << by, dtype, a=words(bits))
        check(f"shr.b{bits} d, a, {by}", lambda a: a >> by, dtype, a=words(bits))
        check(f"shr.s{bits} d, a, {by}", lambda a: signed(a, bits) >> by, dtype, a=words(bits))


@pytest.mark.parametrize("mode", ["clamp", "wrap"])
def test_funnel_shifts(mode):
    def amount(c):
        return min(c, 32) if mode == "clamp" else c & 31

    values = {"a": words(32), "b": words(32)[::-1], "c": amounts()}
    check(
        f"shf.l.{mode}.b32 d, a, b, c",
        lambda a, b, c: ((b << 32 | a) << amount(c)) >> 32,
        "u4",
        **values,
    )
    check(
        f"shf.r.{mode}.b32 d, a, b, c",
        lambda a, b, c: (b << 32 | a) >> amount(c),
        "u4",
        **values,
    )


@pytest.mark.parametrize("bits", [32, 64])
class TestCounting:
    def test_popc(self, bits):
        check(f"popc.b{bits} d, a", lambda a: a.bit_count(), "u4", a=words(bits))

    def test_clz(self, bits):
        check(f"clz.b{bits} d, a", lambda a: bits - a.bit_length(), "u4", a=words(bits))

    def test_brev(self, bits):
        def reverse(a):
            return int(f"{a:0{bits}b}"[::-1], 2)

        check(f"brev.b{bits} d, a", reverse, f"u{bits // 8}", a=words(bits))

    @pytest.mark.parametrize("sign", ["u", "s"])
    def test_bfind(self, bits, sign):
        def find(a):
            value = signed(a, bits) if sign == "s" else a
            return (~value if value < 0 else value).bit_length() - 1

        def shift(a):
            return bits - 1 - find(a) if find(a) >= 0 else -1

        check(f"bfind.{sign}{bits} d, a", find, "u4", a=words(bits))
        check(f"bfind.shiftamt.{sign}{bits} d, a", shift, "u4", a=words(bits))


def extract(a, position, length, bits, is_signed):
    """The definition of ``bfe``, bit by bit."""
    position, length = position & 255, length & 255
    sign = 0
    if is_signed and length:
        sign = a >> min(position + length - 1, bits - 1) & 1
    inside = [i < length and position + i < bits for i in range(bits)]
    return sum((a >> (position + i) & 1 if inside[i] else sign) << i for i in range(bits))


def insert(a, b, position, length, bits):
    position, length = position & 255, length & 255
    for i in range(bits):
        if i < length and position + i < bits:
            at = 1 << (position + i)
            b = b | at if a >> i & 1 else b & ~at
    return b


@pytest.mark.parametrize("bits", [32, 64])
class TestFields:
    @pytest.mark.parametrize("sign", ["u", "s"])
    def test_bfe(self, bits, sign):
        check(
            f"bfe.{sign}{bits} d, a, b, c",
            lambda a, b, c: extract(a, b, c, bits, sign == "s"),
            f"u{bits // 8}",
            a=words(bits),
            b=amounts(),
            c=amounts(),
        )

    def test_bfi(self, bits):
        check(
            f"bfi.b{bits} d, a, b, c, e",
            lambda a, b, c, e: insert(a, b, c, e, bits),
            f"u{bits // 8}",
            a=words(bits),
            b=words(bits)[::-1],
            c=amounts(),
            e=amounts(),
        )

    @pytest.mark.parametrize("length", [0, 32, 64])
    def test_whole_and_empty_fields(self, bits, length):
        def whole(a, is_signed):
            return extract(a, 0, length, bits, is_signed)

        a, b, dtype = words(bits), words(bits)[::-1], f"u{bits // 8}"
        for sign in "us":
            text = f"bfe.{sign}{bits} d, a, 0, {length}"
            check(text, partial(whole, is_signed=sign == "s"), dtype, a=a)
        text = f"bfi.b{bits} d, a, b, 0, {length}"
        check(text, lambda a, b: insert(a, b, 0, length, bits), dtype, a=a, b=b)


@pytest.mark.parametrize("mode", ["clamp", "wrap"])
class TestMasks:
    def test_bmsk(self, mode):
        def mask(a, b):
            if mode == "wrap":
                a, b = a & 31, b & 31
            ones = sum(1 << i for i in range(min(b, 32)))
            return (ones << min(a, 32)) & 0xFFFF_FFFF

        check(f"bmsk.{mode}.b32 d, a, b", mask, "u4", a=amounts(), b=amounts())

    @pytest.mark.parametrize("sign", ["u", "s"])
    def test_szext(self, mode, sign):
        def extend(a, b):
            b = min(b, 32) if mode == "clamp" else b & 31
            low = a & ((1 << b) - 1)
            return signed(low, b) if sign == "s" and b else low

        check(f"szext.{mode}.{sign}32 d, a, b", extend, "u4", a=words(32), b=amounts())


@pytest.mark.parametrize("start", range(0, 256, 32))
def test_lop3(start):
    """All 256 functions: truth tables are read off the result for 0xF0, 0xCC, 0xAA."""
    a, b, c = (np.array([v], "u4") for v in (0xF0F0_F0F0, 0xCCCC_CCCC, 0xAAAA_AAAA))
    tables = range(start, start + 32)
    names = [f"d{table}" for table in tables]
    text = ";\n".join(f"lop3.b32 d{table}, a, b, c, {table}" for table in tables)
    found = execute(text, dict.fromkeys(names, "u4"), a=a, b=b, c=c)
    assert [int(x[0]) for x in found] == [0x0101_0101 * table for table in tables]


@pytest.mark.parametrize("join", ["and", "or"])
def test_lop3_with_a_predicate(join):
    a = np.array([0, 0, 5, 5], "u4")
    q = np.array([0, 1, 0, 1], bool)
    text = f"lop3.{join}.b32 d|p, a, a, a, 0x80, q"
    d, p = execute(text, {"d": "u4", "p": bool}, a=a, q=q)
    assert (d == a).all()
    assert (p == ((a != 0) & q if join == "and" else (a != 0) | q)).all()


def permute(a, b, selector):
    source = (b << 32 | a).to_bytes(8, "little")
    found = []
    for place in range(4):
        nibble = selector >> 4 * place & 15
        byte = source[nibble & 7]
        found.append((0xFF if byte & 0x80 else 0) if nibble & 8 else byte)
    return int.from_bytes(bytes(found), "little")


def test_prmt():
    a, b = words(32), words(32)[::-1]
    check("prmt.b32 d, a, b, c", permute, "u4", a=a, b=b, c=words(32))


@pytest.mark.parametrize("selector", [0x5410, 0x7632, 0x3210, 0x0123, 0x1111, 0x6420, 0xBA98])
def test_prmt_by_constants(selector):
    text = f"prmt.b32 d, a, b, {selector}"
    check(text, lambda a, b: permute(a, b, selector), "u4", a=words(32), b=words(32)[::-1])


# Which bytes each mode takes for c = 0, 1, 2, 3, from the highest to the lowest.
MODES = {
    "f4e": ("3210", "4321", "5432", "6543"),
    "b4e": ("5670", "6701", "7012", "0123"),
    "rc8": ("0000", "1111", "2222", "3333"),
    "ecl": ("3210", "3211", "3222", "3333"),
    "ecr": ("0000", "1110", "2210", "3210"),
    "rc16": ("1010", "3232", "1010", "3232"),
}


@pytest.mark.parametrize("mode", MODES)
def test_prmt_modes(mode):
    check(
        f"prmt.b32.{mode} d, a, b, c",
        lambda a, b, c: permute(a, b, int(MODES[mode][c & 3], 16)),
        "u4",
        a=words(32),
        b=words(32)[::-1],
        c=amounts(),
    )
