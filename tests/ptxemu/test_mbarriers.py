import numpy as np
import pytest
from tests.ptxemu import texts
from tests.ptxemu.pairs import LOAD, check_pair

from sdpakit import ptxemu

# %r0 thread, %r1 warp; %p1: first thread, %p2: first warp. Results go to y: %r9 of each thread.
HEAD = """
  .shared .align 16 .b8 data[1024];
  .shared .align 8 .b64 barrier;
  shr.u32 %r1, %r0, 5;
  setp.eq.u32 %p1, %r0, 0;
  setp.eq.u32 %p2, %r1, 0;
  mov.u32 %r10, barrier;
  mov.u32 %r20, data;
  mov.u32 %r9, 0;
"""
STORE = "\nst.global.u32 [%rd3], %r9;\n"


def launch(text, threads=64, blocks=1, **options):
    x = np.arange(256, dtype=np.uint32)
    y = np.zeros(threads * blocks, np.uint32)
    ptxemu.launch(text, blocks, threads, [x, y], **options)
    return y


def run(body, threads=64, **options):
    return launch(texts.copying(HEAD + body + STORE), threads, **options)


def wait(parity, label="again", where="%r10"):
    return f"""
  {label}:
  mbarrier.try_wait.parity.shared::cta.b64 %p7, [{where}], {parity};
  @!%p7 bra {label};
"""


def init(count):
    return f"@%p1 mbarrier.init.shared::cta.b64 [%r10], {count};\nbar.sync 0;\n"


def test_states_tell_the_arrivals_that_were_pending():
    found = run(
        init(70)
        + """
      mbarrier.arrive.shared::cta.b64 %rd10, [%r10];
      mbarrier.pending_count.b64 %r9, %rd10;
    """
    )
    assert found.tolist() == [70 - thread for thread in range(64)]


def test_counts_of_arrivals():
    found = run(
        init(65)
        + """
      @%p1 mbarrier.arrive.shared::cta.b64 %rd10, [barrier], 2;
      @!%p1 mbarrier.arrive.shared::cta.b64 %rd10, [barrier], 1;
    """
        + wait(0)
        + "mbarrier.pending_count.b64 %r9, %rd10;"
    )
    assert found[:2].tolist() == [65, 63]


@pytest.mark.parametrize("kind", ["test_wait", "try_wait"])
def test_waits_by_state(kind):
    found = run(
        init(64)
        + f"""
      mbarrier.arrive.shared::cta.b64 %rd10, [%r10];
    again:
      mbarrier.{kind}.shared::cta.b64 %p7, [%r10], %rd10;
      @!%p7 bra again;
      selp.u32 %r9, 1, 0, %p7;
    """
    )
    assert found.all()


@pytest.mark.parametrize("kind", ["test_wait", "try_wait"])
def test_the_phase_before_the_first_one_is_over(kind):
    assert run(
        init(1)
        + f"""
      mbarrier.{kind}.parity.shared::cta.b64 %p7, [%r10], 1;
      selp.u32 %r9, 1, 0, %p7;
    """
    ).all()


def test_a_first_wait_for_what_is_not_over_returns_false():
    found = run(
        init(64)
        + """
      mbarrier.try_wait.parity.shared::cta.b64 %p6, [%r10], 0, 1000;
      mbarrier.arrive.shared::cta.b64 _, [%r10];
      mbarrier.test_wait.parity.shared::cta.b64 %p7, [%r10], 0;
      selp.u32 %r9, 1, 0, %p6;
      selp.u32 %r8, 2, 0, %p7;
      or.b32 %r9, %r9, %r8;
    """
    )
    assert found.tolist() == [2] * 64


def test_a_thread_may_do_something_else_after_waits_that_failed():
    # The first warp polls until nobody can run, and then arrives itself.
    assert run(
        init(32)
        + """
      @!%p2 bra second;
      mov.u32 %r8, 0;
    poll:
      mbarrier.test_wait.parity.shared::cta.b64 %p7, [%r10], 0;
      add.u32 %r8, %r8, 1;
      setp.lt.u32 %p6, %r8, 3;
      @%p6 bra poll;
      mbarrier.arrive.shared::cta.b64 _, [%r10];
    second:
    """
        + wait(0)
        + "mov.u32 %r9, 1;"
    ).all()


def test_phases_follow_each_other():
    # Two warps hand a number to and fro; each adds one, 6 times.
    body = """
      @%p1 mbarrier.init.shared::cta.b64 [barrier], 32;
      @%p1 mbarrier.init.shared::cta.b64 [data+512], 32;
      @%p1 st.shared.u32 [data], 0;
      bar.sync 0;
      add.u32 %r11, %r20, 512;
      selp.u32 %r12, %r10, %r11, %p2;   // what this warp arrives at
      selp.u32 %r13, %r11, %r10, %p2;   // and waits for
      selp.u32 %r14, 1, 0, %p2;         // the phase before the first one is over
      mov.u32 %r8, 0;
      and.b32 %r15, %r0, 31;
      setp.eq.u32 %p3, %r15, 0;
    round:
    again:
      mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 %p7, [%r13], %r14;
      @!%p7 bra again;
      xor.b32 %r14, %r14, 1;
      ld.shared.u32 %r9, [data];
      add.u32 %r9, %r9, 1;
      bar.warp.sync -1;
      @%p3 st.shared.u32 [data], %r9;
      bar.warp.sync -1;
      mbarrier.arrive.release.cta.shared::cta.b64 _, [%r12];
      add.u32 %r8, %r8, 1;
      setp.lt.u32 %p6, %r8, 6;
      @%p6 bra round;
    """
    assert run(body).tolist() == [11] * 32 + [12] * 32


def test_dropped_arrivals_are_not_expected_any_more():
    assert (
        run(
            init(64)
            + """
      @!%p2 mbarrier.arrive_drop.shared::cta.b64 _, [%r10];
      @%p2 mbarrier.arrive.shared::cta.b64 _, [%r10];
      @!%p2 bra done;
    """
            + wait(0)
            + "mbarrier.arrive.shared::cta.b64 _, [%r10];"
            + wait(1, "more")
            + """
      mov.u32 %r9, 1;
    done:
    """
        ).tolist()
        == [1] * 32 + [0] * 32
    )


def test_dropping_with_expected_bytes():
    assert run(
        init(2)
        + f"""
      @!%p1 bra waits;
      mbarrier.arrive_drop.expect_tx.shared::cta.b64 _, [%r10], 256;
      mbarrier.arrive.shared::cta.b64 _, [%r10];
      {LOAD} [%r20], [%rd0], 256, [%r10];
    waits:
    """
        + wait(0)
        + """
      @%p1 mbarrier.arrive.shared::cta.b64 _, [%r10];
    """
        + wait(1, "more")
        + "mov.u32 %r9, 1;"
    ).all()


def test_bytes_are_expected_and_completed_without_copies():
    assert (
        run(
            init(1)
            + """
      @!%p1 bra waits;
      mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r10], 100;
      mbarrier.arrive.shared::cta.b64 _, [%r10];
      mbarrier.test_wait.parity.shared::cta.b64 %p6, [%r10], 0;
      selp.u32 %r8, 2, 0, %p6;
      mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r10], 60;
      mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r10], 40;
    waits:
    """
            + wait(0)
            + "add.u32 %r9, %r8, 1;"
        )[0]
        == 1
    )


def test_bytes_may_come_before_they_are_expected():
    assert run(
        init(1)
        + """
      @!%p1 bra waits;
      mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r10], 64;
      mbarrier.arrive.expect_tx.shared::cta.b64 %rd10, [%r10], 64;
    waits:
    """
        + wait(0)
        + "mov.u32 %r9, 1;"
    ).all()


def test_an_object_ends_and_its_bytes_are_free():
    assert (
        run(
            init(64)
            + """
      mbarrier.arrive.shared::cta.b64 _, [%r10];
    """
            + wait(0)
            + """
      bar.sync 0;
      @%p1 mbarrier.inval.shared::cta.b64 [%r10];
      @%p1 st.shared.u32 [%r10], 5;
      bar.sync 0;
      ld.shared.u32 %r9, [%r10];
      bar.sync 0;
      @%p1 mbarrier.init.shared::cta.b64 [%r10], 64;
      bar.sync 0;
      mbarrier.arrive.shared::cta.b64 _, [%r10];
    """
            + wait(0, "more")
        ).tolist()
        == [5] * 64
    )


def test_generic_addresses():
    assert run("""
      cvt.u64.u32 %rd9, %r10;
      cvta.shared.u64 %rd10, %rd9;
      @%p1 mbarrier.init.b64 [%rd10], 64;
      bar.sync 0;
      mbarrier.arrive.b64 %rd11, [%rd10];
    again:
      mbarrier.try_wait.b64 %p7, [%rd10], %rd11;
      @!%p7 bra again;
      mov.u32 %r9, 1;
    """).all()


def test_expecting_form_without_a_state():
    assert (
        run(
            init(1)
            + f"""
      @!%p1 bra waits;
      mbarrier.arrive.expect_tx.shared::cta.b64 [%r10], 64;
      {LOAD} [%r20], [%rd0], 64, [%r10];
    waits:
    """
            + wait(0)
            + "ld.shared.u32 %r9, [%r20+12];"
        ).tolist()
        == [3] * 64
    )


CLUSTER = """
  mov.u32 %r11, %cluster_ctarank;
  xor.b32 %r12, %r11, 1;
  mapa{space}.{kind} {there}, {here}, %r12;
  getctarank{space}.{kind} %r13, {there};
  barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
  mbarrier.arrive.release.cluster{arrive}.b64 _, [{there}];
again:
  mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p7, [%r10], 0;
  @!%p7 bra again;
  mad.lo.u32 %r9, %r13, 16, %r11;
  barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
  mov.u32 %r14, %ctaid.x;
  mad.wide.u32 %rd3, %r14, 256, %rd3;
"""


def test_arrivals_in_another_block_of_the_cluster():
    head = "@%p1 mbarrier.init.shared::cta.b64 [barrier], 64;"
    body = CLUSTER.format(
        space=".shared::cluster", kind="u32", there="%r15", here="%r10", arrive=".shared::cluster"
    )
    text = texts.copying(HEAD + head + body + STORE)
    found = launch(text, blocks=4, cluster=2).reshape(4, 64)
    assert (found == np.array([[16], [1], [16], [1]])).all()


def test_generic_addresses_of_another_block():
    head = """
      @%p1 mbarrier.init.shared::cta.b64 [barrier], 64;
      cvt.u64.u32 %rd9, %r10;
      cvta.shared.u64 %rd10, %rd9;
    """
    body = CLUSTER.format(space="", kind="u64", there="%rd11", here="%rd10", arrive="")
    text = texts.copying(HEAD + head + body + STORE)
    found = launch(text, blocks=2, cluster=2).reshape(2, 64)
    assert (found == np.array([[16], [1]])).all()


def test_the_rank_of_ones_own_addresses():
    body = """
      getctarank.shared::cluster.u32 %r9, %r10;
      mov.u32 %r14, %ctaid.x;
      mad.wide.u32 %rd3, %r14, 256, %rd3;
    """
    text = texts.copying(HEAD + body + STORE)
    assert launch(text, blocks=2, cluster=2).tolist() == [0] * 64 + [1] * 64


PAIRS = {
    "no init": (ptxemu.BarrierMisuse, "there is no mbarrier at shared address 1024", f"""
    + {init(64)}
      mbarrier.arrive.shared::cta.b64 _, [%r10];
    """.replace("\nbar", "\n    + bar")),
    "init by all": (ptxemu.BarrierMisuse, "is initialised again", """
    - mbarrier.init.shared::cta.b64 [%r10], 64;
    + @%p1 mbarrier.init.shared::cta.b64 [%r10], 64;
    """),
    "no arrivals": (ptxemu.BarrierMisuse, "an mbarrier for 0 arrivals", """
    - @%p1 mbarrier.init.shared::cta.b64 [%r10], 0;
    + @%p1 mbarrier.init.shared::cta.b64 [%r10], 1048575;
    """),
    "more arrivals than there can be": (ptxemu.BarrierMisuse, "for 1048576 arrivals", """
    - @%p1 mbarrier.init.shared::cta.b64 [%r10], 1048576;
    + @%p1 mbarrier.init.shared::cta.b64 [%r10], 1;
    """),
    "one more arrival": (ptxemu.BarrierMisuse, "once more than the 1 times", init(1) + """
      @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r10], 64;
    - @%p1 mbarrier.arrive.shared::cta.b64 _, [%r10];
      @%p1 mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r10], 64;
    """),
    "more bytes than expected": (ptxemu.BarrierMisuse, "16 bytes more arrive", init(1) + """
    - @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r10], 48;
    + @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r10], 64;
      @%p1 mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r10], 64;
    """),
    "more bytes than can be expected": (ptxemu.BarrierMisuse, "1048576 bytes", init(1) + """
    - @%p1 mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r10], 1048576;
    + @%p1 mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r10], 1048575;
    """),
    "an object that others wait for ends": (
        ptxemu.BarrierMisuse, "ends while threads wait", init(1) + """
      @%p2 bra waits;
    - mbarrier.test_wait.parity.shared::cta.b64 %p6, [%r10], 0;
    - mbarrier.test_wait.parity.shared::cta.b64 %p6, [%r10], 0;
      bra done;
    waits:
      @%p1 mbarrier.test_wait.parity.shared::cta.b64 %p6, [%r10], 1;
      @%p1 mbarrier.inval.shared::cta.b64 [%r10];
    done:
    """),
    "data over an object": (ptxemu.BarrierMisuse, "holds an mbarrier object", init(1) + """
    - @%p1 st.shared.u32 [%r20+1024], 0;
    + @%p1 st.shared.u32 [%r20+1020], 0;
    """),
    "an object at a multiple of 4": (ptxemu.Misaligned, "8 bytes at", """
    - @%p1 mbarrier.init.shared::cta.b64 [data+4], 1;
    + @%p1 mbarrier.init.shared::cta.b64 [data+8], 1;
    """),
    "an arrival too few": (ptxemu.Deadlock, "lacks 1 of 64 arrivals", init(64) + """
    - @!%p1
      mbarrier.arrive.shared::cta.b64 _, [%r10];
    """.replace("- @!%p1\n", "- @!%p1 bra arrives;\n    - bra waits;\n    arrives:\n") + """
    waits:
    """ + wait(0)),
    "bytes too few": (ptxemu.Deadlock, "lacks 0 of 1 arrivals and 16 bytes", init(1) + f"""
    - @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r10], 80;
    + @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r10], 64;
      @%p1 {LOAD} [%r20], [%rd0], 64, [%r10];
    """ + wait(0)),
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_misuse(name):
    fault, match, body = PAIRS[name]
    check_pair(HEAD + body, fault, match, launch)


def test_a_deadlock_says_who_waits_for_what():
    with pytest.raises(ptxemu.Deadlock) as caught:
        run(init(65) + "mbarrier.arrive.shared::cta.b64 _, [%r10];" + wait(0))
    message = str(caught.value)
    assert "64 threads wait at PTX line" in message
    assert "the mbarrier at shared address 1024 of block (0, 0, 0), in phase 0" in message
    assert "lacks 1 of 65 arrivals" in message


def test_a_deadlock_says_that_bytes_were_not_announced():
    with pytest.raises(ptxemu.Deadlock, match="an announcement of 32 bytes that came"):
        run(init(1) + f"@%p1 {LOAD} [%r20], [%rd0], 32, [%r10];" + wait(0))


def test_some_wait_for_this_phase_and_some_for_the_next():
    # The second warp passes when the phase that the first one completes is over; the first
    # warp waits for the phase after it, which the second one completes.
    found = run(init(32) + """
      @%p2 mbarrier.arrive.shared::cta.b64 %rd10, [%r10];
      setp.ne.u32 %p3, %r1, 0;
      @%p3 bra second;
    """ + wait(0) + wait(1, "more") + """
      mov.u32 %r9, 1;
      bra done;
    second:
    """ + wait(0, "other") + """
      mbarrier.arrive.shared::cta.b64 _, [%r10];
      mov.u32 %r9, 2;
    done:
    """)  # fmt: skip
    assert found.tolist() == [1] * 32 + [2] * 32


def test_misuse_can_be_switched_off():
    checks = ptxemu.Checks(barrier=False, race=False)
    run(
        """
      mbarrier.init.shared::cta.b64 [%r10], 64;
      bar.sync 0;
      mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r10], 0;
      @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r10], 64;
    """,
        checks=checks,
    )


@pytest.mark.parametrize(
    "line",
    [
        "mbarrier.arrive.noComplete.shared::cta.b64 %rd10, [%r10], 1;",
        "mbarrier.arrive_drop.noComplete.shared::cta.b64 %rd10, [%r10], 1;",
        "mbarrier.park.shared::cta.b64 [%r10];",
        "mbarrier.arrive.shared::cta.b64 _, [%r10], 1, 1;",
    ],
)
def test_forms_that_are_lacking(line):
    with pytest.raises(ptxemu.UnsupportedInstruction, match="the emulator has no"):
        run(init(1) + line)
