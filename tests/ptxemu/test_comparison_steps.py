import operator

import numpy as np
import pytest
from tests.ptxemu import exact
from tests.ptxemu.lanes import execute

from sdpakit import ptxemu

ORDERED = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}
UNSIGNED = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
JOINS = {"and": operator.and_, "or": operator.or_, "xor": operator.xor}


def integers(dtype):
    limits = np.iinfo(dtype)
    values = np.array([limits.min, limits.max, limits.min + 1, 0, 1, limits.max // 2], dtype)
    return np.repeat(values, 6), np.tile(values, 6)


@pytest.mark.parametrize("kind", ["u16", "s16", "u32", "s32", "u64", "s64"])
@pytest.mark.parametrize("name", ORDERED)
def test_integers(name, kind):
    dtype = f"{'i' if kind[0] == 's' else 'u'}{int(kind[1:]) // 8}"
    a, b = integers(dtype)
    found = execute(f"setp.{name}.{kind} p, a, b", {"p": bool}, a=a, b=b)
    assert (found == ORDERED[name](a, b)).all()


@pytest.mark.parametrize("name", UNSIGNED)
def test_other_names_for_unsigned(name):
    a, b = integers("u4")
    found = execute(f"setp.{name}.u32 p, a, b", {"p": bool}, a=a, b=b)
    assert (found == ORDERED[UNSIGNED[name]](a, b)).all()


@pytest.mark.parametrize("text", ["setp.lt.b32 p, a, a", "setp.lo.s32 p, a, a"])
def test_comparisons_that_a_type_lacks(text):
    with pytest.raises(ptxemu.UnsupportedInstruction, match="comparison of"):
        execute(text, {"p": bool}, a=np.zeros(1, "u4"))


FLOATS = {"f16": "f2", "f32": "f4", "f64": "f8"}
UNORDERED = {f"{name}u": name for name in ORDERED}


def floats(kind):
    values = exact.values_of(exact.FORMATS[kind], FLOATS[kind], count=4)
    return np.repeat(values, len(values)), np.tile(values, len(values))


def compare(name, a, b):
    """What PTX says: NaN makes ordered comparisons false, unordered ones true."""
    nan = np.isnan(a) | np.isnan(b)
    if name in ("num", "nan"):
        return nan if name == "nan" else ~nan
    if name in ORDERED:
        return ORDERED[name](a, b) & ~nan
    return ORDERED[UNORDERED[name]](a, b) | nan


@pytest.mark.parametrize("kind", FLOATS)
@pytest.mark.parametrize("name", [*ORDERED, *UNORDERED, "num", "nan"])
def test_floats(name, kind):
    a, b = floats(kind)
    found = execute(f"setp.{name}.{kind} p, a, b", {"p": bool}, a=a, b=b)
    assert (found == compare(name, a, b)).all()


def test_bf16():
    bits = np.array([0x3F80, 0xBF80, 0x7FC0, 0x0000, 0x8000, 0x7F80], "u2")
    a, b = np.repeat(bits, 6), np.tile(bits, 6)
    values = [(x.astype("u4") << 16).view("f4") for x in (a, b)]
    found = execute("setp.ltu.bf16 p, a, b", {"p": bool}, a=a, b=b)
    assert (found == compare("ltu", *values)).all()


def test_flushed_subnormals_are_zero():
    a = np.array([1e-40, -1e-40, 1e-30], "f4")
    assert execute("setp.eq.ftz.f32 p, a, 0f00000000", {"p": bool}, a=a).tolist() == [1, 1, 0]
    assert execute("setp.eq.f32 p, a, 0f00000000", {"p": bool}, a=a).tolist() == [0, 0, 0]


@pytest.mark.parametrize("negated", ["", "!"])
@pytest.mark.parametrize("join", JOINS)
def test_joined_with_a_predicate(join, negated):
    a, b, c = np.array([1, 1, 2, 2]), 2, np.array([0, 1, 0, 1], bool)
    text = f"setp.lt.{join}.s64 p|q, a, b, {negated}c"
    p, q = execute(text, {"p": bool, "q": bool}, a=a, b=b, c=c)
    other = ~c if negated else c
    assert (p == JOINS[join](a < b, other)).all()
    assert (q == JOINS[join](a >= b, other)).all()


def test_a_result_may_replace_the_predicate_it_is_joined_with():
    a, p = np.array([1, 1, 3, 3], "i4"), np.array([0, 1, 0, 1], bool)
    found = execute("setp.lt.and.s32 p|q, a, 2, p", {"p": bool, "q": bool}, a=a, p=p)
    assert [x.tolist() for x in found] == [[0, 1, 0, 0], [0, 0, 0, 1]]


def halves(kind):
    a, b = (np.resize(x, 2 * len(x)) for x in floats("f16"))
    if kind == "f16x2":
        return a, b, *(x.view("u4") for x in (a, b))
    wide = [np.nan_to_num(x.astype("f4"), nan=np.nan) for x in (a, b)]
    bits = [(x.view("u4") >> 16).astype("u2") for x in wide]
    return *((x.astype("u4") << 16).view("f4") for x in bits), *(x.view("u4") for x in bits)


@pytest.mark.parametrize("kind", ["f16x2", "bf16x2"])
def test_pairs(kind):
    a, b, first, second = halves(kind)
    expected = compare("le", a, b).reshape(-1, 2)
    outputs = {"p": bool, "q": bool}
    p, q = execute(f"setp.le.{kind} p|q, a, b", outputs, a=first, b=second)
    assert (p == expected[:, 0]).all()
    assert (q == expected[:, 1]).all()
    c = np.arange(len(first)) % 3 == 0
    p, q = execute(f"setp.le.or.{kind} p|q, a, b, c", outputs, a=first, b=second, c=c)
    assert (p == (expected[:, 0] | c)).all()
    assert (q == (expected[:, 1] | c)).all()


SET_RESULTS = {"u32": ("u4", 2**32 - 1), "s32": ("i4", -1), "f32": ("f4", 1.0)}


@pytest.mark.parametrize("target", SET_RESULTS)
@pytest.mark.parametrize("join", ["", "xor"])
def test_set(target, join):
    a, b = floats("f32")
    c = np.arange(len(a)) % 2 == 0
    dtype, true = SET_RESULTS[target]
    text = f"set.gt{'.' + join if join else ''}.{target}.f32 d, a, b" + (", c" if join else "")
    found = execute(text, {"d": dtype}, a=a, b=b, c=c)
    expected = compare("gt", a, b) ^ c if join else compare("gt", a, b)
    assert (found == np.where(expected, np.array(true, dtype), 0)).all()


@pytest.mark.parametrize(
    ("target", "dtype", "true"),
    [("f16", "f2", 1.0), ("u16", "u2", 0xFFFF), ("u32", "u4", 2**32 - 1)],
)
def test_set_of_halves(target, dtype, true):
    a, b = floats("f16")
    found = execute(f"set.neu.{target}.f16 d, a, b", {"d": dtype}, a=a, b=b)
    assert (found == np.where(compare("neu", a, b), np.array(true, dtype), 0)).all()


@pytest.mark.parametrize(("target", "true"), [("f16x2", 0x3C00), ("u32", 0xFFFF)])
def test_set_of_pairs(target, true):
    a, b, first, second = halves("f16x2")
    found = execute(f"set.lt.{target}.f16x2 d, a, b", {"d": "u4"}, a=first, b=second)
    assert (found.view("u2") == np.where(compare("lt", a, b), true, 0)).all()


def test_set_of_bf16_pairs():
    a, b, first, second = halves("bf16x2")
    found = execute("set.lt.bf16x2.bf16x2 d, a, b", {"d": "u4"}, a=first, b=second)
    assert (found.view("u2") == np.where(compare("lt", a, b), 0x3F80, 0)).all()


@pytest.mark.parametrize(
    ("kind", "dtype"), [("b16", "u2"), ("u32", "u4"), ("f32", "f4"), ("f64", "f8"), ("s64", "i8")]
)
def test_selp(kind, dtype):
    a, b = np.arange(10).astype(dtype), np.arange(20, 30).astype(dtype)
    p = np.arange(10) % 3 == 0
    found = execute(f"selp.{kind} d, a, b, p", {"d": dtype}, a=a, b=b, p=p)
    assert (found == np.where(p, a, b)).all()
    assert (execute("selp.b32 d, 1, -1, p", {"d": "i4"}, p=p) == np.where(p, 1, -1)).all()


def test_slct():
    c = np.array([1.0, -0.0, -1e-40, -2, np.nan, np.inf], "f4")
    found = execute("slct.u32.f32 d, 1, 2, c", {"d": "u4"}, c=c)
    assert found.tolist() == [1, 1, 2, 2, 2, 1]
    found = execute("slct.ftz.u32.f32 d, 1, 2, c", {"d": "u4"}, c=c)
    assert found.tolist() == [1, 1, 1, 2, 2, 1]
    c = np.array([0, -1, 5, -(2**31)], "i4")
    assert execute("slct.u64.s32 d, 1, 2, c", {"d": "u8"}, c=c).tolist() == [1, 2, 1, 2]
