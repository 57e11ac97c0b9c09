"""Barriers of blocks, warps and clusters: who waits for whom, and what a deadlock says."""

import numpy as np
import pytest
from tests.ptxemu.threads import kernel, line, run

from sdpakit import ptxemu

# The word of a thread in shared memory, and that of its neighbour.
WORDS = """
    mov.u32 %r21, memory;
    shl.b32 %r20, %r0, 2;
    add.u32 %r20, %r21, %r20;
    add.u32 %r22, %r0, 32;
    rem.u32 %r22, %r22, %r2;
    shl.b32 %r22, %r22, 2;
    add.u32 %r22, %r21, %r22;
"""


@pytest.mark.parametrize(
    "barrier",
    [
        "bar.sync 0;",
        "bar.cta.sync 3;",
        "bar.sync 2, 96;",
        "barrier.sync 1;",
        "barrier.cta.sync.aligned 15, 96;",
        "bar.sync %r1;",
        "bar.sync 0, %r2;",
    ],
)
def test_a_barrier_makes_stores_visible(barrier):
    body = f"""
    {WORDS}
    setp.eq.u32 %p1, %r5, 0;
    @%p1 bra FIRST;
    st.shared.u32 [%r20], %r3;
    bra MEET;
FIRST:
    mov.u32 %r10, 0;
SLOWLY:
    add.u32 %r10, %r10, 1;
    setp.lt.u32 %p2, %r10, 20;
    @%p2 bra SLOWLY;
    st.shared.u32 [%r20], %r3;
MEET:
    {barrier}
    ld.shared.u32 %r9, [%r22];
"""
    out, _ = run(body, threads=96, blocks=3)
    neighbour = (np.arange(96) + 32) % 96
    assert (out == neighbour + 96 * np.arange(3)[:, None]).all()


def test_threads_that_ended_are_not_waited_for():
    body = f"""
    {WORDS}
    setp.ge.u32 %p1, %r0, 40;
    @%p1 ret;
    st.shared.u32 [%r20], %r3;
    bar.sync 0;
    sub.u32 %r22, 39, %r0;
    shl.b32 %r22, %r22, 2;
    add.u32 %r22, %r21, %r22;
    ld.shared.u32 %r9, [%r22];
"""
    out, _ = run(body, threads=96)
    assert (out[0, :40] == 39 - np.arange(40)).all()
    assert (out[0, 40:] == 0xDEAD).all()


def test_threads_that_end_while_others_wait_are_not_waited_for():
    body = """
    setp.lt.u32 %p1, %r0, 32;
    @%p1 bra MEET;
    mov.u32 %r10, 0;
SLOWLY:
    add.u32 %r10, %r10, 1;
    setp.lt.u32 %p2, %r10, 20;
    @%p2 bra SLOWLY;
    ret;
MEET:
    bar.sync 0;
    mov.u32 %r9, 1;
"""
    out, _ = run(body)
    assert (out[0] == np.where(np.arange(64) < 32, 1, 0xDEAD)).all()


def test_barriers_of_parts_of_a_block():
    body = f"""
    {WORDS}
    shr.u32 %r10, %r0, 6;
    add.u32 %r11, %r10, 1;
    xor.b32 %r12, %r0, 32;
    shl.b32 %r12, %r12, 2;
    add.u32 %r12, %r21, %r12;
    mov.u32 %r13, 0;
AGAIN:
    add.u32 %r14, %r13, %r3;
    st.shared.u32 [%r20], %r14;
    bar.sync %r11, 64;
    ld.shared.u32 %r15, [%r12];
    add.u32 %r9, %r9, %r15;
    bar.sync %r11, 64;
    add.u32 %r13, %r13, 1;
    setp.le.u32 %p1, %r13, %r11;
    @%p1 bra AGAIN;
"""
    out, _ = run(body, threads=128, blocks=2)
    thread = np.arange(128)
    rounds = thread // 64 + 2
    other = (thread ^ 32) + 128 * np.arange(2)[:, None]
    assert (out == rounds * other + rounds * (rounds - 1) // 2).all()


def test_producers_arrive_and_consumers_wait():
    # Warp 0 fills, warp 1 empties one buffer of 32 words: barrier 1 says full, 2 says empty.
    body = """
    mov.u32 %r21, memory;
    shl.b32 %r20, %r4, 2;
    add.u32 %r20, %r21, %r20;
    mov.u32 %r10, 0;
    setp.eq.u32 %p1, %r5, 1;
    @%p1 bra CONSUMER;
FILL:
    bar.sync 2, 64;
    mad.lo.u32 %r11, %r10, 100, %r4;
    st.shared.u32 [%r20], %r11;
    bar.arrive 1, 64;
    add.u32 %r10, %r10, 1;
    setp.lt.u32 %p2, %r10, 5;
    @%p2 bra FILL;
    bra STORE;
CONSUMER:
    bar.arrive 2, 64;
    bar.sync 1, 64;
    ld.shared.u32 %r11, [%r20];
    add.u32 %r9, %r9, %r11;
    add.u32 %r10, %r10, 1;
    setp.lt.u32 %p2, %r10, 5;
    @%p2 bra CONSUMER;
"""
    out, _ = run(body, blocks=3)
    assert (out[:, :32] == 0).all()
    assert (out[:, 32:] == 100 * 10 + 5 * np.arange(32)).all()


@pytest.mark.parametrize(
    ("barrier", "wanted"),
    [
        ("bar.red.popc.u32 %r9, 1, %p1;", 30),
        ("bar.red.popc.u32 %r9, 1, 96, !%p1;", 66),
        ("barrier.cta.red.popc.aligned.u32 %r9, 1, %p1;", 30),
        ("bar.red.and.pred %p3, 0, %p1; selp.u32 %r9, 1, 0, %p3;", 0),
        ("bar.red.and.pred %p3, 0, %p2; selp.u32 %r9, 1, 0, %p3;", 1),
        ("bar.red.or.pred %p3, 0, %p1; selp.u32 %r9, 1, 0, %p3;", 1),
        ("bar.red.or.pred %p3, 0, !%p2; selp.u32 %r9, 1, 0, %p3;", 0),
    ],
)
def test_barriers_that_reduce(barrier, wanted):
    body = f"""
    setp.lt.u32 %p1, %r0, 30;
    setp.lt.u32 %p2, %r0, 96;
    {barrier}
"""
    out, _ = run(body, threads=96, blocks=2)
    assert (out == wanted).all()


def test_lanes_of_a_warp_meet():
    # Lanes arrive from different places, and a second round uses the mask of a part.
    body = """
    mov.u32 %r21, memory;
    shl.b32 %r20, %r4, 2;
    add.u32 %r20, %r21, %r20;
    setp.lt.u32 %p1, %r4, 16;
    @%p1 bra LOW;
    st.shared.u32 [%r20], 5;
    bar.warp.sync 0xffffffff;
    bra MEET;
LOW:
    add.u32 %r9, %r9, 1;
    bar.warp.sync -1;
    ld.shared.u32 %r10, [%r20+64];
    add.u32 %r9, %r9, %r10;
    bar.warp.sync 0xffff;
MEET:
    add.u32 %r9, %r9, 100;
"""
    out, _ = run(body, threads=32, blocks=2)
    assert (out == np.where(np.arange(32) < 16, 106, 100)).all()


CLUSTER = """
    setp.eq.u32 %p1, %r1, 0;
    @%p1 bra LATE;
ARRIVE:
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;
    ld.volatile.global.u32 %r9, [%rd1];
    bra STORE;
LATE:
    mov.u32 %r10, 0;
SLOWLY:
    add.u32 %r10, %r10, 1;
    setp.lt.u32 %p2, %r10, 20;
    @%p2 bra SLOWLY;
    st.volatile.global.u32 [%rd1], 7;
    bra ARRIVE;
"""


def test_blocks_of_a_cluster_meet():
    out, _ = run(CLUSTER, blocks=4, cluster=2)
    assert (out[:2] == 7).all()


def test_a_cluster_does_not_wait_for_blocks_that_ended():
    body = """
    setp.eq.u32 %p1, %r1, 0;
    @%p1 ret;
    barrier.cluster.arrive.release;
    barrier.cluster.wait.acquire;
    mov.u32 %r9, 1;
"""
    out, _ = run(body, blocks=2, cluster=2)
    assert (out == np.array([0xDEAD, 1])[:, None]).all()


def test_a_cluster_meets_again_and_again():
    body = """
    mov.u32 %r10, 0;
AGAIN:
    barrier.cluster.arrive.relaxed.aligned;
    add.u32 %r9, %r9, %r10;
    barrier.cluster.wait.aligned;
    add.u32 %r10, %r10, 1;
    setp.le.u32 %p1, %r10, 6;
    @%p1 bra AGAIN;
"""
    out, _ = run(body, blocks=4, cluster=4)
    assert (out == 21).all()


# ---- misuse and deadlock


def fault(kind, body, part, match, **options):
    """Check that a body faults at the line that contains a part."""
    with pytest.raises(kind, match=match) as caught:
        run(body, **options)
    assert caught.value.line == line(kernel(body), part)
    return str(caught.value)


def test_counts_that_are_no_multiple_of_a_warp():
    fault(ptxemu.BarrierMisuse, "bar.sync 0, 40;", "bar.sync", "a barrier for 40 threads")
    fault(ptxemu.BarrierMisuse, "bar.sync %r2;", "bar.sync", "there is no barrier 64")


def test_counts_that_disagree():
    body = """
    setp.eq.u32 %p1, %r5, 0;
    @%p1 bar.sync 1, 96;
    @!%p1 bar.sync 1, 64;
"""
    fault(ptxemu.BarrierMisuse, body, "1, 64", "for 64 threads here, but for 96 at line")


def test_more_threads_than_a_barrier_is_for():
    body = """
    bar.sync 1, 64; // too few
"""
    message = fault(
        ptxemu.BarrierMisuse, body, "too few", "96 threads arrived at barrier 1", threads=96
    )
    assert "which is for 64" in message
    assert "remedy:" in message


def test_sync_and_reduction_at_one_barrier():
    body = """
    setp.eq.u32 %p1, %r5, 0;
    @%p1 bar.sync 1;
    @!%p1 bar.red.popc.u32 %r9, 1, %p1;
"""
    fault(ptxemu.BarrierMisuse, body, "popc", "bar.red and bar.sync meet at barrier 1")


def test_a_thread_arrives_twice_at_its_cluster():
    body = """
    barrier.cluster.arrive;
    barrier.cluster.arrive; // again
"""
    fault(ptxemu.BarrierMisuse, body, "again", "a thread arrives twice")


def test_a_thread_waits_for_its_cluster_without_having_arrived():
    body = "    barrier.cluster.wait;\n"
    fault(ptxemu.BarrierMisuse, body, "wait", "a thread waits but has not arrived")


def test_a_deadlock_says_which_threads_wait_where():
    body = """
    setp.lt.u32 %p1, %r0, 64;
    @%p1 bra FIRST;
    bar.sync 2, 128; // second
    bra STORE;
FIRST:
    bar.sync 1, 128; // first
"""
    message = fault(ptxemu.Deadlock, body, "first", "all 96 threads", threads=96)
    text = kernel(body)
    first, second = line(text, "// first"), line(text, "// second")
    block = "block (0, 0, 0): barrier"
    assert (
        f"{block} 1 has 64 of 128 threads; threads 0-63 wait at line {first} (bar.sync 1, 128)"
        in message
    )
    assert (
        f"{block} 2 has 32 of 128 threads; threads 64-95 wait at line {second} (bar.sync 2, 128)"
        in message
    )


def test_a_deadlock_of_many_blocks_is_told_shortly():
    message = fault(ptxemu.Deadlock, "bar.sync 1, 96;", "bar.sync", "all 1920 threads", blocks=30)
    assert message.count("barrier 1 has") == 12
    assert "and 18 more" in message


def test_a_warp_that_waits_for_lanes_of_its_own_elsewhere():
    body = """
    setp.lt.u32 %p1, %r4, 4;
    @%p1 bra LOW;
    bar.sync 0; // high
    bra STORE;
LOW:
    bar.sync 0; // low
"""
    message = fault(ptxemu.Divergence, body, "high", "wait for each other", threads=32)
    low = line(kernel(body), "// low")
    assert "block (0, 0, 0), warp 0: threads 4-31 at line" in message
    assert f"but threads 0-3 at line {low} (bar.sync 0)" in message


def test_a_warp_barrier_whose_lanes_do_not_come():
    body = """
    setp.lt.u32 %p1, %r4, 8;
    @%p1 bar.warp.sync 0xfff; // some
    @!%p1 bar.sync 0;
"""
    message = fault(ptxemu.Deadlock, body, "some", "all 32 threads", threads=32)
    assert "bar.warp.sync for lanes 0x00000fff; threads 0-7 wait at line" in message
    assert "threads 8-31 at line" in message


def test_a_cluster_of_which_a_block_does_not_come():
    body = """
    setp.eq.u32 %p1, %r1, 0;
    @%p1 bar.sync 0, 96;
    barrier.cluster.arrive;
    barrier.cluster.wait;
"""
    with pytest.raises(ptxemu.Deadlock) as caught:
        run(body, blocks=2, cluster=2)
    wait = line(kernel(body), "cluster.wait")
    assert "cluster of block (0, 0, 0): barrier.cluster has 64 of 128 threads; " in str(
        caught.value
    )
    assert f"64 wait at line {wait} (barrier.cluster.wait)" in str(caught.value)
    assert "block (0, 0, 0): barrier 0 has 64 of 96 threads" in str(caught.value)
