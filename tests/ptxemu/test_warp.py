"""Shuffles, votes, matches, reductions and elections, by rules written out lane by lane."""

import numpy as np
import pytest
from tests.ptxemu.threads import executions, kernel, line, run

from sdpakit import ptxemu

POISON = 0x7FC0DEAD
LANES = range(32)


def shuffled(mode, values, b, c, mask=0xFFFFFFFF):
    """Return what each lane of a warp gets, and whether its source is in range."""
    found, valid = [], []
    for lane in LANES:
        segment, limit = c[lane] >> 8 & 31, c[lane] & 31
        last = (lane & segment) | (limit & ~segment)
        offset = b[lane] & 31
        source = {
            "up": lane - offset,
            "down": lane + offset,
            "bfly": lane ^ offset,
            "idx": (lane & segment) | (offset & ~segment),
        }[mode]
        inside = source >= last if mode == "up" else source <= last
        source = source if inside else lane
        found.append(values[source] if mask >> source & 1 else POISON)
        valid.append(inside)
    return found, valid


@pytest.mark.parametrize("threads", [64, 48])
@pytest.mark.parametrize(
    ("mode", "b", "c"),
    [
        ("up", 1, 0),
        ("up", 3, 0x1800),
        ("down", 4, 31),
        ("down", 2, 0x1C1F),
        ("bfly", 16, 31),
        ("bfly", 1, 31),
        ("bfly", 5, 0x181F),
        ("idx", 0, 31),
        ("idx", 37, 0x101F),
        ("idx", 9, 7),
    ],
)
def test_shuffles_by_constants(mode, b, c, threads):
    body = f"""
    mul.lo.u32 %r10, %r3, 3;
    shfl.sync.{mode}.b32 %r11|%p1, %r10, {b}, {c}, -1;
    selp.u32 %r12, 1, 0, %p1;
    shl.b32 %r12, %r12, 31;
    or.b32 %r9, %r11, %r12;
"""
    out, _ = run(body, threads, 2)
    for block in range(2):
        for first in range(0, threads, 32):
            count = min(32, threads - first)
            values = [3 * (block * threads + first + lane) for lane in LANES]
            found, valid = shuffled(mode, values, [b] * 32, [c] * 32, (1 << count) - 1)
            wanted = [f | v << 31 for f, v in zip(found, valid, strict=True)]
            assert out[block, first : first + 32].tolist() == wanted[:count]


@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
def test_shuffles_by_values_of_each_lane(mode):
    body = f"""
    mul.lo.u32 %r10, %r3, 5;
    mul.lo.u32 %r11, %r4, 7;
    shr.u32 %r12, %r4, 3;
    mad.lo.u32 %r12, %r12, 512, {0 if mode == "up" else 31};
    shfl.sync.{mode}.b32 %r9, %r10, %r11, %r12, 0xffffffff;
"""
    out, _ = run(body, 64)
    b, c = [7 * n for n in LANES], [(n // 8) * 512 + (0 if mode == "up" else 31) for n in LANES]
    for warp in range(2):
        found, _ = shuffled(mode, [5 * (32 * warp + n) for n in LANES], b, c)
        assert out[0, 32 * warp :][:32].tolist() == found


def test_a_shuffle_of_a_part_of_a_warp():
    # A part of the warp takes another way; what it would give is poison.
    body = """
    setp.ge.u32 %p1, %r4, 8;
    mov.u32 %r9, 1;
    @%p1 bra STORE;
    add.u32 %r10, %r4, 100;
    shfl.sync.down.b32 %r9, %r10, 2, 31, 0xff;
"""
    out, _ = run(body, 32)
    assert out[0].tolist() == [102, 103, 104, 105, 106, 107, POISON, POISON] + [1] * 24


def test_two_parts_of_a_warp_shuffle_at_one_place_with_their_own_masks():
    body = """
    setp.lt.u32 %p1, %r4, 16;
    selp.b32 %r10, 0xffff, 0xffff0000, %p1;
    shfl.sync.bfly.b32 %r9, %r4, 8, 31, %r10; // once
"""
    out, report = run(body)
    assert (out[0] == (np.arange(64) % 32 ^ 8)).all()
    assert executions(body, "once", report) == 2


def test_a_shuffle_waits_for_lanes_that_come_later():
    # Lanes leave a loop one after the other, and shuffle outside of it before the last has left.
    body = """
    mov.u32 %r10, 0;
SPIN:
    ld.volatile.global.u32 %r11, [%rd1];
    setp.lt.u32 %p1, %r11, %r4;
    @%p1 bra SPIN;
    add.u32 %r12, %r4, 1;
    st.volatile.global.u32 [%rd1], %r12;
    shfl.sync.idx.b32 %r9, %r12, 31, 31, -1; // together
"""
    out, report = run(body)
    assert (out[0] == 32).all()
    assert executions(body, "together", report) >= 2


def test_a_shuffle_without_lanes_that_ended():
    body = """
    setp.ge.u32 %p1, %r4, 24;
    @%p1 ret;
    shfl.sync.bfly.b32 %r9, %r3, 16, 31, -1;
"""
    out, _ = run(body, 32)
    assert out[0].tolist() == (
        [n + 16 for n in range(8)] + [POISON] * 8 + [n - 16 for n in range(16, 24)] + [0xDEAD] * 8
    )


def test_lanes_ahead_wait_and_go_on_when_the_others_end():
    body = """
    setp.lt.u32 %p1, %r4, 16;
    @%p1 bra SLOW;
    vote.sync.ballot.b32 %r9, 1, -1;
    bra STORE;
SLOW:
    add.u32 %r10, %r4, 1;
    ret;
"""
    out, _ = run(body, 32)
    assert out[0].tolist() == [0xDEAD] * 16 + [0xFFFF0000] * 16


@pytest.mark.parametrize(
    ("vote", "wanted"),
    [
        ("vote.sync.ballot.b32 %r9, %p1, -1;", [0x88888888, 0xFFFFFFFF, 0]),
        ("vote.sync.ballot.b32 %r9, !%p1, 0xffffffff;", [0x77777777, 0, 0xFFFFFFFF]),
        ("vote.sync.all.pred %p2, %p1, -1; selp.u32 %r9, 1, 0, %p2;", [0, 1, 0]),
        ("vote.sync.any.pred %p2, %p1, -1; selp.u32 %r9, 1, 0, %p2;", [1, 1, 0]),
        ("vote.sync.uni.pred %p2, %p1, -1; selp.u32 %r9, 1, 0, %p2;", [0, 1, 1]),
        ("vote.sync.any.pred %p2, !%p1, -1; selp.u32 %r9, 1, 0, %p2;", [1, 0, 1]),
        ("vote.ballot.b32 %r9, %p1;", [0x88888888, 0xFFFFFFFF, 0]),
    ],
)
def test_votes(vote, wanted):
    body = f"""
    and.b32 %r10, %r4, 3;
    setp.eq.u32 %p1, %r10, 3;
    setp.eq.or.u32 %p1, %r5, 1, %p1;
    setp.ne.and.u32 %p1, %r5, 2, %p1;
    {vote}
"""
    out, _ = run(body, 96, 2)
    assert (out.reshape(2, 3, 32) == np.array(wanted, np.uint32)[None, :, None]).all()


def test_votes_of_a_part_of_a_warp():
    body = """
    setp.lt.u32 %p1, %r4, 10;
    mov.u32 %r9, 1;
    @!%p1 bra STORE;
    setp.gt.u32 %p2, %r4, 5;
    vote.sync.ballot.b32 %r9, %p2, 0x3ff;
    setp.lt.u32 %p2, %r4, 30;
    vote.sync.all.pred %p3, %p2, 0x3ff;
    @!%p3 mov.u32 %r9, 2;
"""
    out, _ = run(body)
    assert (out[0] == np.where(np.arange(64) % 32 < 10, 0x3C0, 1)).all()


def test_active_lanes():
    body = """
    setp.lt.u32 %p1, %r4, 7;
    @%p1 bra FEW;
    activemask.b32 %r9;
    bra STORE;
FEW:
    activemask.b32 %r9;
"""
    out, _ = run(body)
    assert (out[0] == np.where(np.arange(64) % 32 < 7, 0x7F, 0xFFFFFF80)).all()


@pytest.mark.parametrize("threads", [64, 40])
@pytest.mark.parametrize(("kind", "divisor"), [("b32", 5), ("b64", 3)])
def test_matches(kind, divisor, threads):
    wide = "%rd2" if kind == "b64" else "%r10"
    body = f"""
    rem.u32 %r10, %r0, {divisor};
    cvt.u64.u32 %rd2, %r10;
    match.any.sync.{kind} %r9, {wide}, -1;
"""
    out, _ = run(body, threads)
    key = np.arange(threads) % divisor
    for warp in range(0, threads, 32):
        keys = key[warp : warp + 32]
        wanted = [sum(1 << j for j, other in enumerate(keys) if other == k) for k in keys]
        assert out[0, warp : warp + 32].tolist() == wanted


def test_matches_of_all():
    body = """
    min.u32 %r10, %r0, 32;
    match.all.sync.b32 %r9|%p1, %r10, -1;
    @!%p1 mov.u32 %r9, 5;
    setp.ge.u32 %p2, %r4, 16;
    @%p2 bra STORE;
    shr.u32 %r10, %r0, 5;
    match.all.sync.b32 %r9, %r10, 0xffff;
"""
    out, _ = run(body)
    assert out[0].reshape(4, 16)[:, 0].tolist() == [0xFFFF, 5, 0xFFFF, 0xFFFFFFFF]
    assert (out[0].reshape(4, 16) == out[0].reshape(4, 16)[:, :1]).all()


@pytest.mark.parametrize("mask", [0xFFFFFFFF, 0x0000FFF0])
@pytest.mark.parametrize(
    ("operation", "function"),
    [
        ("add.u32", lambda x: x.sum(dtype=np.uint32)),
        ("add.s32", lambda x: x.sum(dtype=np.uint32)),
        ("min.u32", np.min),
        ("max.u32", np.max),
        ("min.s32", lambda x: x.view(np.int32).min().view(np.uint32)),
        ("max.s32", lambda x: x.view(np.int32).max().view(np.uint32)),
        ("and.b32", np.bitwise_and.reduce),
        ("or.b32", np.bitwise_or.reduce),
        ("xor.b32", np.bitwise_xor.reduce),
    ],
)
def test_reductions(operation, function, mask):
    body = f"""
    mov.u32 %r10, {mask};
    shr.u32 %r10, %r10, %r4;
    and.b32 %r10, %r10, 1;
    setp.eq.u32 %p1, %r10, 0;
    @%p1 bra STORE;
    mad.lo.u32 %r10, %r3, 0x9E3779B1, 0x40000;
    redux.sync.{operation} %r9, %r10, {mask};
"""
    out, _ = run(body)
    values = np.arange(64, dtype=np.uint32) * np.uint32(0x9E3779B1) + np.uint32(0x40000)
    named = np.array([mask >> lane & 1 for lane in LANES], bool)
    for warp in (slice(0, 32), slice(32, 64)):
        assert (out[0, warp][named] == function(values[warp][named])).all()
        assert (out[0, warp][~named] == 0).all()


@pytest.mark.parametrize(
    ("operation", "wanted"),
    [("min", -31.0), ("max", 30.0), ("min.abs", 1.0), ("max.abs", 31.0), ("max.NaN", np.nan)],
)
def test_reductions_of_floats(operation, wanted):
    # Lane n has n or -n; lane 0 has a NaN.
    body = f"""
    .reg .f32 %f<4>;
    cvt.rn.f32.u32 %f1, %r4;
    and.b32 %r10, %r4, 1;
    setp.ne.u32 %p1, %r10, 0;
    @%p1 neg.f32 %f1, %f1;
    setp.eq.u32 %p1, %r4, 0;
    @%p1 mov.f32 %f1, 0f7FC00000;
    redux.sync.{operation}.f32 %f2, %f1, -1;
    mov.b32 %r9, %f2;
"""
    out, _ = run(body, 32)
    assert np.array_equal(
        out.view(np.float32), np.full((1, 32), wanted, np.float32), equal_nan=True
    )


def test_elections():
    body = """
    setp.lt.u32 %p1, %r4, 5;
    mov.u32 %r9, 100;
    @%p1 bra STORE;
    elect.sync %r9|%p2, 0xffffffe0;
    @%p2 add.u32 %r9, %r9, 1000;
    elect.sync _|%p2, 0xffffffe0;
    @%p2 add.u32 %r9, %r9, 10000;
"""
    out, _ = run(body)
    assert out[0, :32].tolist() == [100] * 5 + [11005] + [5] * 26
    assert (out[0, :32] == out[0, 32:]).all()


def test_a_lane_outside_of_its_own_mask():
    body = "    shfl.sync.bfly.b32 %r9, %r4, 1, 31, 0xffff;\n"
    with pytest.raises(ptxemu.Divergence, match="not in its own mask 0x0000ffff") as caught:
        run(body)
    assert caught.value.thread == 16
    run(body, checks=ptxemu.Checks(divergence=False))


def test_lanes_that_shuffle_with_each_other_at_different_places():
    body = """
    setp.lt.u32 %p1, %r4, 12;
    @%p1 bra LOW;
    shfl.sync.bfly.b32 %r9, %r4, 1, 31, -1; // high
    bra STORE;
LOW:
    shfl.sync.bfly.b32 %r9, %r4, 2, 31, -1; // low
"""
    with pytest.raises(ptxemu.Divergence, match="wait for each other") as caught:
        run(body, 32)
    text = kernel(body)
    assert caught.value.line in {line(text, "// high"), line(text, "// low")}
    assert "warp 0: threads 12-31 at line" in str(caught.value)
    assert "threads 0-11 at line" in str(caught.value)


def test_a_shuffle_with_lanes_that_wait_for_ever_is_a_deadlock():
    body = """
    setp.lt.u32 %p1, %r4, 12;
    @%p1 barrier.sync 1, 64;
    shfl.sync.bfly.b32 %r9, %r4, 1, 31, -1;
"""
    with pytest.raises(ptxemu.Deadlock, match="all 32 threads") as caught:
        run(body, 32)
    assert "barrier 1 has 12 of 64 threads" in str(caught.value)
    assert "but threads 0-11 at line" in str(caught.value)


@pytest.mark.parametrize(
    "text", ["shfl.sync.rotate.b32 %r9, %r4, 1, 31, -1;", "redux.sync.add.f32 %r9, %r4, -1;"]
)
def test_forms_that_do_not_exist(text):
    with pytest.raises(ptxemu.UnsupportedInstruction, match="the emulator has no"):
        run(text)
