import numpy as np
import pytest
from tests.ptxemu.lanes import execute

from sdpakit import ptxemu

RANDOM = np.random.default_rng(2)


def words(dtype, count=100):
    return RANDOM.integers(0, np.iinfo(dtype).max, count, dtype, endpoint=True)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("b16", "u2"), ("u32", "u4"), ("f32", "u4"), ("b64", "u8"), ("f64", "u8"), ("s64", "u8")],
)
def test_registers(kind, dtype):
    a = words(dtype)
    assert (execute(f"mov.{kind} d, a", {"d": dtype}, a=a) == a).all()


def test_predicates():
    p = np.arange(40) % 3 == 0
    assert (execute("mov.pred q, p", {"q": bool}, p=p) == p).all()


CONSTANTS = [
    ("mov.u32 d, 4294967295", "u4", 2**32 - 1),
    ("mov.s32 d, -2", "i4", -2),
    ("mov.b32 d, 0f3FC00000", "f4", 1.5),
    ("mov.f32 d, 0fFF800000", "f4", -np.inf),
    ("mov.f64 d, 0d3FF8000000000000", "f8", 1.5),
    ("mov.f32 d, 1.25", "f4", 1.25),
    ("mov.b64 d, 0x123456789ABCDEF0", "u8", 0x1234_5678_9ABC_DEF0),
    ("mov.b16 d, 0x3C00", "f2", 1.0),
]


@pytest.mark.parametrize(("text", "dtype", "value"), CONSTANTS)
def test_constants(text, dtype, value):
    assert (execute(text, {"d": dtype}) == np.array(value, dtype)).all()


PACKING = [("b64", "u8", "u4", 2), ("b64", "u8", "u2", 4), ("b32", "u4", "u2", 2)]


@pytest.mark.parametrize(("kind", "whole", "part", "count"), PACKING)
def test_packing(kind, whole, part, count):
    names = "abce"[:count]
    parts = {name: words(part) for name in names}
    expected = np.stack(list(parts.values()), axis=1).view(whole)[:, 0]
    vector = "{" + ", ".join(names) + "}"
    found = execute(f"mov.{kind} d, {vector}", {"d": whole}, **parts)
    assert (found == expected).all()
    found = execute(f"mov.{kind} {vector}, d", dict.fromkeys(names, part), d=expected)
    assert all((x == y).all() for x, y in zip(found, parts.values(), strict=True))


def test_packing_of_some_lanes_and_of_constants():
    a, p = words("u4"), np.arange(100) % 2 == 0
    text = "mov.b64 d, 0;\n@p mov.b64 d, {a, 7}"
    expected = np.where(p, a.astype("u8") | 7 << 32, 0)
    assert (execute(text, {"d": "u8"}, a=a, p=p) == expected).all()


def test_unpacking_what_nobody_wants():
    a = words("u8")
    assert (execute("mov.b64 {_, d}, a", {"d": "u4"}, a=a) == a >> 32).all()


def test_special_registers():
    thread = execute("mov.u32 d, %tid.x", {"d": "u4"}, a=np.zeros(300, "u4"))
    assert (thread == np.arange(300) % 128).all()
    block = execute("cvt.u64.u32 d, %ctaid.x", {"d": "u8"}, a=np.zeros(300, "u4"))
    assert (block == np.arange(300) // 128).all()


ADDRESSES = """
    .shared .align 16 .b8 tile[64];
    .reg .b64 own, generic, back;
    mov.u64 own, tile;
    add.u64 own, own, 12;
    cvta.shared.u64 generic, own;
    cvta.to.shared.u64 back, generic;
    sub.u64 d, back, own;
    isspacep.shared p, generic;
    isspacep.global q, generic;
    isspacep.local r, generic
"""


def test_shared_addresses():
    outputs = {"d": "u8", "p": bool, "q": bool, "r": bool}
    d, p, q, r = execute(ADDRESSES, outputs)
    assert (d == 0).all()
    assert p.all()
    assert not q.any()
    assert not r.any()


def test_global_addresses_are_generic():
    a = words("u8") | np.uint64(1 << 63)
    text = "cvta.to.global.u64 d, a; isspacep.global p, a"
    d, p = execute(text, {"d": "u8", "p": bool}, a=a)
    assert (d == a).all()
    assert p.all()


def test_local_addresses():
    text = """
        .local .align 4 .b8 frame[16];
        .reg .b64 own, generic;
        mov.u64 own, frame;
        cvta.local.u64 generic, own;
        isspacep.local p, generic;
        isspacep.shared::cta q, generic
    """
    p, q = execute(text, {"p": bool, "q": bool})
    assert p.all()
    assert not q.any()


def test_constant_addresses():
    text = """
        .visible .entry test(.param .u64 out) {
            .reg .b64 %a, %at; .reg .pred %p; .reg .b32 %d;
            ld.param.u64 %at, [out];
            mov.u64 %a, table;
            cvta.const.u64 %a, %a;
            isspacep.const %p, %a;
            selp.u32 %d, 1, 0, %p;
            isspacep.const %p, %at;
            @%p mov.u32 %d, 2;
            st.global.u32 [%at], %d;
            ret;
        }
    """
    head = (
        ".version 8.5\n.target sm_90\n.address_size 64\n.const .align 4 .u32 table[2] = {1, 2};\n"
    )
    out = np.zeros(1, "u4")
    ptxemu.launch(head + text, 1, 1, [out])
    assert out[0] == 1


@pytest.mark.parametrize("text", ["mov.b32 {a, a, a}, d", "mov.b32 d, {a, a}", "isspacep.tex p, d"])
def test_forms_that_are_lacking(text):
    with pytest.raises(ptxemu.PtxError):
        execute(f".reg .pred p;\n.reg .b32 a;\n{text}", {"d": "u8"}, d=np.zeros(1, "u8"))
