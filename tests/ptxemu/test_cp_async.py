import numpy as np
import pytest
from tests.ptxemu import texts
from tests.ptxemu.pairs import check_pair

from sdpakit import ptxemu

# %r1: place of the thread in shared memory, 16 bytes each; %rd2: x + 16 * thread.
HEAD = """
  .shared .align 16 .b8 data[2048];
  .shared .align 8 .b64 barrier;
  mov.u32 %r20, data;
  shl.b32 %r1, %r0, 4;
  add.u32 %r1, %r1, %r20;
  mul.wide.u32 %rd5, %r0, 12;
  add.u64 %rd2, %rd2, %rd5;
  setp.eq.u32 %p1, %r0, 0;
"""
STORE = """
  mul.wide.u32 %rd5, %r0, 16;
  add.u64 %rd3, %rd1, %rd5;
  ld.shared.v4.u32 {%r4, %r5, %r6, %r7}, [%r1];
  st.global.v4.u32 [%rd3], {%r4, %r5, %r6, %r7};
"""
THREADS = 64


def launch(text, x=None, **options):
    x = np.arange(4 * THREADS, dtype=np.uint32) + 1 if x is None else x
    y = np.zeros(4 * THREADS, np.uint32)
    report = ptxemu.launch(text, 1, THREADS, [x, y], **options)
    return y.reshape(THREADS, 4), report


def run(body, x=None):
    return launch(texts.copying(HEAD + body + STORE), x)[0]


FULL = np.arange(4 * THREADS, dtype=np.uint32).reshape(THREADS, 4) + 1


@pytest.mark.parametrize(
    "form",
    [
        "cg.shared.global [%r1], [%rd2], 16",
        "cg.shared::cta.global.L2::128B [%r1], [%rd2], 16",
        "ca.shared.global [%r1], [%rd2], 16",
        "cg.shared.global.L2::cache_hint [%r1], [%rd2], 16, %rd9",
        "cg.shared.global [%r1], [%rd2], 16, 16",
    ],
)
def test_whole_chunks(form):
    found = run(f"mov.u64 %rd9, 0; cp.async.{form}; cp.async.wait_all;")
    assert (found == FULL).all()


@pytest.mark.parametrize("width", [4, 8])
def test_narrow_chunks(width):
    found = run(f"""
      st.shared.v4.u32 [%r1], {{0, 0, 0, 0}};
      cp.async.ca.shared.global [%r1+8], [%rd2+8], {width};
      cp.async.commit_group;
      cp.async.wait_group 0;
    """)
    wanted = FULL * np.array([0, 0, 1, width == 8], np.uint32)
    assert (found == wanted).all()


@pytest.mark.parametrize("hint", ["", ".L2::cache_hint"])
def test_sizes_of_sources_fill_with_zeros(hint):
    # Thread n reads n % 17 bytes.
    policy = ", %rd9" if hint else ""
    found = run(f"""
      rem.u32 %r8, %r0, 17;
      mov.u64 %rd9, 0;
      cp.async.cg.shared.global{hint} [%r1], [%rd2], 16, %r8{policy};
      cp.async.wait_all;
    """)
    raw = FULL.view(np.uint8).copy()
    raw[np.arange(16) >= np.arange(THREADS)[:, None] % 17] = 0
    assert (found.view(np.uint8) == raw).all()


@pytest.mark.parametrize("sign", ["", "!"])
def test_sources_may_be_ignored(sign):
    found = run(f"""
      and.b32 %r8, %r0, 1;
      setp.eq.u32 %p2, %r8, 0;
      cp.async.cg.shared.global [%r1], [%rd2], 16, {sign}%p2;
      cp.async.wait_all;
    """)
    reads = np.arange(THREADS)[:, None] % 2 == (0 if sign else 1)
    assert (found == FULL * reads).all()


def test_sources_that_are_ignored_may_be_anywhere():
    found = run("""
      setp.ne.u32 %p2, %r0, 5;
      selp.u32 %r8, 0, 16, %p2;
      mul.wide.u32 %rd9, %r0, 4096;
      add.u64 %rd9, %rd9, %rd0;
      selp.b64 %rd2, %rd9, %rd2, %p2;
      cp.async.cg.shared.global [%r1], [%rd2], 16, %r8;
      cp.async.wait_all;
    """)
    assert (found == FULL * (np.arange(THREADS)[:, None] == 5)).all()


def test_the_source_is_read_late():
    found = run("""
      cp.async.ca.shared.global [%r1], [%rd2], 16;
      st.global.u32 [%rd2+4], 7;
      cp.async.wait_all;
    """)
    assert (found[:, 1] == 7).all()


def test_groups_land_in_order():
    found = run("""
      cp.async.ca.shared.global [%r1], [%rd2], 4;
      cp.async.commit_group;
      cp.async.ca.shared.global [%r1+4], [%rd2+4], 4;
      cp.async.ca.shared.global [%r1+8], [%rd2+8], 4;
      cp.async.commit_group;
      cp.async.commit_group;
      cp.async.ca.shared.global [%r1+12], [%rd2+12], 4;
      cp.async.wait_group 2;
      ld.shared.u32 %r8, [%r1];
      cp.async.wait_group 1;
      ld.shared.u64 %rd8, [%r1+8-8];
      cp.async.commit_group;
      cp.async.wait_group 0;
    """)
    assert (found == FULL).all()


def test_threads_have_groups_of_their_own():
    found = run("""
      and.b32 %r8, %r0, 1;
      setp.eq.u32 %p2, %r8, 0;
      @%p2 cp.async.ca.shared.global [%r1], [%rd2], 16;
      @%p2 cp.async.commit_group;
      @!%p2 cp.async.ca.shared.global [%r1], [%rd2], 16;
      @%p2 cp.async.wait_group 0;
      @!%p2 cp.async.commit_group;
      @!%p2 cp.async.commit_group;
      @!%p2 cp.async.wait_group 1;
    """)
    assert (found == FULL).all()


HALF_WAITS = """
      and.b32 %r8, %r0, 1;
      setp.eq.u32 %p2, %r8, 0;
      rem.u32 %r9, %r0, 17;
      cp.async.ca.shared.global [%r1], [%rd2], 16, %r9;
      cp.async.commit_group;
      @%p2 cp.async.wait_group 0;
      @{read} ld.shared.u32 %r8, [%r1];
      cp.async.wait_group 0;
"""


def test_threads_that_wait_get_their_chunks_only():
    found = run(HALF_WAITS.format(read="%p2"))
    assert (found[16] == FULL[16]).all()
    assert (found[33] == FULL[33]).all()
    with pytest.raises(ptxemu.MissingWait, match="shared address 16,"):
        run(HALF_WAITS.format(read="!%p2"))


WAIT = """
again:
  mbarrier.try_wait.parity.shared::cta.b64 %p7, [barrier], 0;
  @!%p7 bra again;
"""


@pytest.mark.parametrize(("form", "count"), [(".noinc", 64), ("", 1)])
def test_mbarriers_track_chunks(form, count):
    # Without .noinc the arrival of a thread is made up for, so one more must come.
    found = run(f"""
      @%p1 mbarrier.init.shared::cta.b64 [barrier], {count};
      bar.sync 0;
      cp.async.ca.shared.global [%r1], [%rd2], 8;
      cp.async.ca.shared.global [%r1+8], [%rd2+8], 8;
      cp.async.mbarrier.arrive{form}.shared::cta.b64 [barrier];
      bar.sync 0;
      {"@%p1 mbarrier.arrive.shared::cta.b64 _, [barrier];" if not form else ""}
    """ + WAIT + """
      xor.b32 %r8, %r0, 32;     // another warp's chunks
      shl.b32 %r8, %r8, 4;
      add.u32 %r1, %r8, %r20;
    """)  # fmt: skip
    assert (found == np.roll(FULL, 32, axis=0)).all()


def test_later_chunks_are_not_tracked():
    body = (
        """
      @%p1 mbarrier.init.shared::cta.b64 [barrier], 64;
      bar.sync 0;
      cp.async.ca.shared.global [%r1], [%rd2], 8;
      cp.async.mbarrier.arrive.noinc.shared::cta.b64 [barrier];
      cp.async.ca.shared.global [%r1+8], [%rd2+8], 8;
    """
        + WAIT
    )
    with pytest.raises(ptxemu.MissingWait, match="shared address 8"):
        run(body)
    assert (run(body + "cp.async.wait_all;") == FULL).all()


def test_blocks_need_not_land_what_they_track_together():
    # In block 0 a bulk copy is under way before the chunks are tracked.
    head = HEAD.replace("[2048]", "[1024]") + """
      .shared .align 8 .b64 other;
      @%p1 mbarrier.init.shared::cta.b64 [barrier], 64;
      @%p1 mbarrier.init.shared::cta.b64 [other], 1;
      bar.sync 0;
      mov.u32 %r10, %ctaid.x;
      setp.eq.u32 %p3, %r10, 0;
      setp.ne.u32 %p4, %r10, 0;
      and.pred %p3, %p3, %p1;
      .shared .align 16 .b8 more[16];
      mov.u32 %r11, more;
      mov.u32 %r12, other;
      @%p3 mbarrier.arrive.expect_tx.shared::cta.b64 _, [other], 16;
      @%p3 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes
        [%r11], [%rd0], 16, [%r12];
      cp.async.ca.shared.global [%r1], [%rd2], 16;
      cp.async.mbarrier.arrive.noinc.shared::cta.b64 [barrier];
    """  # fmt: skip
    tail = """
      @%p4 bra track;
    load:
      mbarrier.try_wait.parity.shared::cta.b64 %p7, [other], 0;
      @!%p7 bra load;
    track:
      mul.wide.u32 %rd6, %r10, 1024;
      add.u64 %rd1, %rd1, %rd6;
    """
    x, y = np.arange(4 * THREADS, dtype=np.uint32) + 1, np.zeros((2, THREADS, 4), np.uint32)
    ptxemu.launch(texts.copying(head + WAIT + tail + STORE), 2, THREADS, [x, y])
    assert (y == FULL).all()


def test_chunks_may_be_waited_for_in_both_ways():
    found = run("""
      @%p1 mbarrier.init.shared::cta.b64 [barrier], 64;
      bar.sync 0;
      cp.async.ca.shared.global [%r1], [%rd2], 16;
      cp.async.mbarrier.arrive.noinc.shared::cta.b64 [barrier];
      cp.async.wait_all;
      ld.shared.u32 %r8, [%r1];
    """ + WAIT + """
      xor.b32 %r8, %r0, 32;
      shl.b32 %r8, %r8, 4;
      add.u32 %r1, %r8, %r20;
    """)  # fmt: skip
    assert (found == np.roll(FULL, 32, axis=0)).all()


def test_copied_bytes_are_counted():
    text = texts.copying(HEAD + "cp.async.ca.shared.global [%r1], [%rd2], 8; cp.async.wait_all;")
    assert launch(text)[1].counters.copied_bytes == 8 * THREADS


PAIRS = {
    "read before the wait": (ptxemu.MissingWait, "shared address 0", """
      cp.async.ca.shared.global [%r1], [%rd2], 16;
    + cp.async.wait_all;
      ld.shared.u32 %r8, [%r1];
    """),
    "group that is not committed": (ptxemu.MissingWait, "under way", """
      cp.async.ca.shared.global [%r1], [%rd2], 16;
    + cp.async.commit_group;
      cp.async.wait_group 0;
      ld.shared.u32 %r8, [%r1];
    """),
    "one group too many left": (ptxemu.MissingWait, "under way", """
      cp.async.ca.shared.global [%r1], [%rd2], 4;
      cp.async.commit_group;
      cp.async.ca.shared.global [%r1+4], [%rd2+4], 4;
      cp.async.commit_group;
    - cp.async.wait_group 1;
    + cp.async.wait_group 0;
      ld.shared.u64 %rd8, [%r1];
    """),
    "write while the chunk is under way": (ptxemu.MissingWait, "under way", """
      cp.async.ca.shared.global [%r1], [%rd2], 16;
    + cp.async.wait_all;
      st.shared.u32 [%r1+12], %r0;
    """),
    "two chunks to one place": (ptxemu.MissingWait, "under way", """
      cp.async.ca.shared.global [%r1], [%rd2], 16;
    + cp.async.wait_all;
      cp.async.ca.shared.global [%r1], [%rd2], 16;
    """),
    "source past the end": (ptxemu.OutOfBounds, "16 bytes at global address", """
      setp.ne.u32 %p2, %r0, 63;
    - cp.async.ca.shared.global [%r1], [%rd2+16], 16;
    + @%p2 cp.async.ca.shared.global [%r1], [%rd2+16], 16;
    """),
    "part of the source past the end": (ptxemu.OutOfBounds, "1 bytes at global address", """
    - mov.u32 %r8, 1;
    + mov.u32 %r8, 0;
      cp.async.ca.shared.global [%r1], [%rd0+1024], 16, %r8;
    """),
    "destination past the end": (ptxemu.OutOfBounds, "16 bytes at shared address", """
    - cp.async.ca.shared.global [%r1+1040], [%rd2], 16;
    + cp.async.ca.shared.global [%r1+1024], [%rd2], 16;
    """),
    "destination at a multiple of 4": (ptxemu.Misaligned, "16 bytes", """
    - cp.async.ca.shared.global [%r1+4], [%rd2], 16;
    + cp.async.ca.shared.global [%r1+4], [%rd2], 4;
    """),
    "source at a multiple of 4": (ptxemu.Misaligned, "16 bytes", """
    - cp.async.ca.shared.global [%r1], [%rd2+4], 16, 16;
    + cp.async.ca.shared.global [%r1], [%rd2+4], 4;
    """),
    "part of a source at a multiple of 4": (ptxemu.Misaligned, "no multiple of 16", """
    - add.u64 %rd2, %rd2, 4;
      mov.u32 %r8, 4;
      cp.async.ca.shared.global [%r1], [%rd2], 16, %r8;
    """),
    "more source than chunk": (ptxemu.OutOfBounds, "17 bytes are to be read for a copy of 16", """
    - mov.u32 %r8, 17;
    + mov.u32 %r8, 16;
      cp.async.ca.shared.global [%r1], [%rd2], 16, %r8;
    """),
    "chunk over an mbarrier": (ptxemu.BarrierMisuse, "holds an mbarrier", """
      @%p1 mbarrier.init.shared::cta.b64 [barrier], 64;
      bar.sync 0;
    - @%p1 cp.async.ca.shared.global [%r20+2048], [%rd2], 8;
    + @%p1 cp.async.ca.shared.global [%r20+2040], [%rd2], 8;
    """),
    "mbarrier that tracks chunks is not there": (ptxemu.BarrierMisuse, "there is no mbarrier", """
    + @%p1 mbarrier.init.shared::cta.b64 [barrier], 64;
    + bar.sync 0;
      cp.async.mbarrier.arrive.noinc.shared::cta.b64 [barrier];
    """ + WAIT),
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_misuse(name):
    fault, match, body = PAIRS[name]
    check_pair(HEAD + body, fault, match, launch)


@pytest.mark.parametrize(
    "line",
    [
        "cp.async.ca.shared.global [%r1], [%rd2], 12;",
        "cp.async.ca.shared.global [%r1], [%rd2], %r0;",
        "cp.async.wait_group %r0;",
        "cp.async.shared.global [%r1], [%rd2], 16;",
    ],
)
def test_forms_that_are_lacking(line):
    with pytest.raises(ptxemu.UnsupportedInstruction, match="the emulator has no"):
        run(line)
