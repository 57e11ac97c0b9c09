"""Blocks that touch what other blocks write."""

import numpy as np
import pytest
from tests.ptxemu.texts import POINTERS, START, kernel

from sdpakit import ptxemu

PLACE = f"""{START}
  mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mad.lo.u32 %r3, %r1, %r2, %r0;
  mul.wide.u32 %rd2, %r3, 4; add.u64 %rd3, %rd0, %rd2; add.u64 %rd4, %rd1, %rd2;
"""


def run(body, *, blocks=4, threads=32, checks=None, **options):
    x = np.zeros(1024, np.uint32)
    ptxemu.launch(
        kernel(POINTERS, PLACE + body), blocks, threads, [x, x.copy()], checks=checks, **options
    )
    return x


def race(body, **options):
    run(body, checks=ptxemu.Checks(race=False), **options)
    with pytest.raises(ptxemu.Race, match="nothing orders blocks") as info:
        run(body, **options)
    return info.value


def test_blocks_that_write_the_same_place():
    error = race("setp.eq.u32 %p1, %r0, 3; @%p1 st.global.u32 [%rd1+20], 7;")
    assert error.thread == 3
    assert "byte 20 of argument 1 (uint32[1024]), which block (3, 0, 0) writes" in str(error)
    assert error.block == (0, 0, 0)


def test_blocks_that_overlap_by_one_element():
    error = race(
        "st.global.u32 [%rd3], 1; setp.eq.u32 %p1, %r0, 0; @%p1 st.global.u32 [%rd3+128], 1;"
    )
    assert "128 of argument 0" in str(error)
    run("st.global.u32 [%rd3], 1; setp.eq.u32 %p1, %r0, 0; @%p1 st.global.u32 [%rd3], 1;")


def test_block_that_reads_what_another_writes():
    line = "st.global.u32 [%rd3], 1; ld.global.u32 %r4, [%rd3+128];"
    assert "ld.global.u32" in str(race(line))
    run(line.replace("+128", ""))
    run(line.replace("%rd3+128", "%rd4+128"))


@pytest.mark.parametrize("wide", ["u8", "u16"])
def test_neighbours_in_one_word_are_no_race(wide):
    size = int(wide[1:]) // 8
    body = f"mul.wide.u32 %rd5, %r1, {size}; add.u64 %rd5, %rd0, %rd5; " + (
        f"setp.eq.u32 %p1, %r0, 0; @%p1 st.global.{wide} [%rd5], 1;"
    )
    run(body)
    run("setp.eq.u32 %p1, %r0, 0; @%p1 st.global.u32 [%rd4], 1;" + body)
    race("st.global.u32 [%rd4], 1;" + body.replace("[%rd5]", "[%rd0]"))


def test_wide_stores_are_seen_whole():
    body = """
      setp.eq.u32 %p1, %r0, 0; mul.wide.u32 %rd5, %r1, 16; add.u64 %rd5, %rd0, %rd5;
      @%p1 st.global.v4.u32 [%rd5], {%r1, %r1, %r1, %r1};
    """
    run(body)
    assert "byte 28 of" in str(
        race(body + "setp.eq.and.u32 %p1, %r1, 2, %p1; @%p1 st.global.u32 [%rd0+28], 1;")
    )


def test_batches_of_one_launch_see_each_other():
    body = (
        "setp.eq.u32 %p1, %r1, 0; setp.eq.or.u32 %p1, %r1, 99, %p1; @%p1 st.global.u32 [%rd1], 1;"
    )
    assert "block (0, 0, 0)" in str(race(body, blocks=100, threads=1))


def test_blocks_of_a_cluster_may_order_themselves():
    body = """
      and.b32 %r4, %r1, 1; setp.eq.u32 %p1, %r4, 0; @%p1 st.global.u32 [%rd3], %r1;
      barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
      sub.u64 %rd5, %rd3, 128; @!%p1 ld.global.u32 %r5, [%rd5];
    """
    run(body, cluster=2)
    race(body)
    assert "the cluster of block (2, 0, 0)" in str(
        race("st.volatile.global.u32 [%rd3], 1; st.global.u32 [%rd1], 1;", cluster=2, threads=1)
    )


@pytest.mark.parametrize(
    "body",
    [
        "red.global.add.u32 [%rd0], 1;",
        "st.volatile.global.u32 [%rd0], 1;",
        "st.relaxed.gpu.global.u32 [%rd0], 1;",
    ],
)
def test_what_is_meant_to_meet(body):
    run(body)


def test_last_block_may_read_what_all_wrote():
    body = """
      st.global.u32 [%rd3], 1; membar.gl; bar.sync 0;
      setp.eq.u32 %p1, %r0, 0; mov.u32 %r5, 0; @%p1 atom.global.add.u32 %r5, [%rd1], 1;
      setp.eq.u32 %p1, %r5, 3; @%p1 ld.global.u32 %r6, [%rd0];
    """
    run(body)


def test_next_launch_begins_anew():
    device = ptxemu.Device()
    p, q = device.allocate(np.zeros(256, np.uint32)), device.allocate(np.zeros(256, np.uint32))
    text = kernel(POINTERS, PLACE + "ld.global.u32 %r4, [%rd3]; st.global.u32 [%rd4], %r4;")
    device.launch(text, 4, 32, [p, q])
    device.launch(text, 2, 64, [q, p])
    assert device.writers is None


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_blocks_along_every_axis_are_others(axis):
    grid = tuple(2 if at == axis else 1 for at in range(3))
    error = race("st.global.u32 [%rd0], 1;", blocks=grid, threads=1)
    assert f"block {tuple(int(at == axis) for at in range(3))} writes" in str(error)


def test_first_and_last_byte_written_are_seen():
    write = (
        "setp.eq.u32 %p1, %r1, 0; @%p1 st.global.u32 [%rd1+64], 1; @%p1 st.global.u32 [%rd1+80], 1;"
    )
    for at in (64, 80):
        body = f"{write} @!%p1 ld.global.u32 %r4, [%rd1+{at}];"
        assert f"byte {at} of argument 1" in str(race(body, blocks=2, threads=1))
    run(f"{write} @!%p1 ld.global.u32 %r4, [%rd1+72];", blocks=2, threads=1)
