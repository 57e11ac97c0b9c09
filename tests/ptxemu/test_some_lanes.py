"""Instructions of some lanes write those only, whatever way the emulator takes to do it."""

import numpy as np
import pytest
from tests.ptxemu.lanes import execute

RANDOM = np.random.default_rng(4)
COUNT = 512
LANE = np.arange(COUNT)

# Which lanes execute: many, few, whole warps, one.
CHOICES = {
    "many": RANDOM.random(COUNT) < 0.6,
    "few": LANE % 29 == 3,
    "warps": LANE // 32 % 3 == 1,
    "one": LANE == 77,
}

WORDS = {name: RANDOM.integers(0, 2**32, COUNT, "u8").astype("u4") for name in "abc"}
FLOATS = {name: RANDOM.standard_normal(COUNT).astype("f4") for name in "abc"}
DOUBLES = {name: RANDOM.standard_normal(COUNT) for name in "abc"}
SHORTS = {name: RANDOM.standard_normal(COUNT).astype("f2") for name in "abc"}
LONGS = {name: RANDOM.integers(0, 2**63, COUNT, "u8") for name in "abc"}

# Instruction, its sources, dtype of its result d.
CASES = [
    ("add.u32 d, a, b", WORDS, "u4"),
    ("add.u32 d, a, 7", WORDS, "u4"),
    ("add.u32 d, 6, 7", WORDS, "u4"),
    ("mad.wide.u32 d, a, 3, d", WORDS, "u8"),
    ("mad.lo.u32 d, a, b, c", WORDS, "u4"),
    ("div.s32 d, a, b", WORDS, "u4"),
    ("shl.b64 d, a, 5", LONGS, "u8"),
    ("bfi.b32 d, a, b, 3, 9", WORDS, "u4"),
    ("prmt.b32 d, a, b, c", WORDS, "u4"),
    ("mov.b64 d, {a, b}", WORDS, "u8"),
    ("mov.b64 d, {a, 5}", WORDS, "u8"),
    ("mov.b64 {d, _}, a", LONGS, "u4"),
    ("mov.u32 d, a", WORDS, "u4"),
    ("mov.u32 d, %tid.x", WORDS, "u4"),
    ("add.f32 d, a, b", FLOATS, "f4"),
    ("fma.rn.f32 d, a, b, c", FLOATS, "f4"),
    ("fma.rm.f32 d, a, b, c", FLOATS, "f4"),
    ("fma.rn.f64 d, a, b, c", DOUBLES, "f8"),
    ("add.rn.ftz.sat.f32 d, a, b", FLOATS, "f4"),
    ("fma.rn.f16 d, a, b, c", SHORTS, "f2"),
    ("fma.rn.bf16x2 d, a, b, c", WORDS, "u4"),
    ("min.f32 d, a, b", FLOATS, "f4"),
    ("neg.f32 d, a", FLOATS, "f4"),
    ("ex2.approx.ftz.f32 d, a", FLOATS, "f4"),
    ("cvt.rn.bf16x2.f32 d, a, b", FLOATS, "u4"),
    ("cvt.rn.f16.f32 d, a", FLOATS, "f2"),
    ("cvt.s64.s32 d, a", WORDS, "u8"),
    ("set.lt.u32.f32 d, a, b", FLOATS, "u4"),
    ("selp.b32 d, a, b, q", WORDS, "u4"),
    ("setp.gt.f32 q, a, b", FLOATS, "?"),
    ("setp.gt.xor.f32 q|r, a, b, q", FLOATS, "?"),
]


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize(("text", "values", "dtype"), CASES, ids=[case[0] for case in CASES])
def test_guarded_and_branched(text, values, dtype, choice):
    name = text.split()[1].strip("{},")[0] if "{d" not in text else "d"
    p, old = CHOICES[choice], np.arange(COUNT).astype(dtype)
    if dtype == "?":
        old = LANE % 2 == 0
    others = {} if name == "q" or ", q" not in text else {"q": LANE % 5 == 0}
    head = ".reg .pred r;\n"
    branch = f"@!p bra $skip;\n{text};\n$skip:\nmov.pred r, p"
    sources = {"p": p, name: old, **values, **others}
    whole = execute(head + text, {name: dtype}, **sources)
    expected = np.where(p, whole, old)
    for form in (f"@p {text}", branch):
        found = execute(head + form, {name: dtype}, **sources)
        assert (found.view("u1") == expected.astype(dtype).view("u1")).all()


@pytest.mark.parametrize("choice", CHOICES)
def test_carries_of_some_lanes(choice):
    p = CHOICES[choice]
    text = """
        add.cc.u32 d, a, b;
        @p add.cc.u32 d, c, c;
        addc.u32 d, 0, 0
    """
    found = execute(text, {"d": "u4"}, p=p, **WORDS)
    a, b, c = (WORDS[name].astype("u8") for name in "abc")
    assert (found == np.where(p, c + c, a + b) >> 32).all()
