import numpy as np
import pytest
from tests.ptxemu import texts
from tests.ptxemu.pairs import check_pair

from sdpakit import ptxemu

# Of each thread: its number %r0, warp %r1, the address of its word %r2 and of the word of the
# thread with the same lane in the next warp %r3. %p1: first warp, %p2: first thread.
HEAD = """
  .shared .align 16 .b8 words[1024];
  .shared .align 8 .b64 barrier;
  .shared .align 8 .b64 other;
  shr.u32 %r1, %r0, 5;
  shl.b32 %r4, %r0, 2;
  mov.u32 %r20, words;
  add.u32 %r2, %r20, %r4;
  xor.b32 %r5, %r4, 128;
  add.u32 %r3, %r20, %r5;
  setp.eq.u32 %p1, %r1, 0;
  setp.eq.u32 %p2, %r0, 0;
"""
INIT = """
  @%p2 mbarrier.init.shared::cta.b64 [barrier], 32;
  @%p2 mbarrier.init.shared::cta.b64 [other], 1;
  bar.sync 0;
"""


def wait(label, where="barrier", parity=0):
    return f"""
  {label}:
  mbarrier.try_wait.parity.shared::cta.b64 %p7, [{where}], {parity};
  @!%p7 bra {label};
"""


PAIRS = {
    "read after a write": ("this read .* after a write by warp", """
      st.shared.u32 [%r2], %r0;
    + bar.sync 0;
      ld.shared.u32 %r6, [%r3];
    """),
    "write after a read": ("this write .* after a read by warp", """
      st.shared.u32 [%r2], %r0;
      bar.sync 0;
      ld.shared.u32 %r6, [%r3];
    + bar.sync 0;
      st.shared.u32 [%r2], %r6;
    """),
    "write after a write": ("this write .* after a write by warp", """
      st.shared.u32 [%r2], %r0;
    + bar.sync 0;
      st.shared.u32 [%r3], %r0;
    """),
    "write of wide words after a narrow one": ("after a write by warp", """
      st.shared.u32 [%r2], %r0;
    + bar.sync 0;
      @%p2 st.shared.v4.u32 [words+128], {%r0, %r0, %r0, %r0};
    """),
    "an arrival does not wait": ("this read .* after a write by warp 1", """
      @%p1 bra first;
      st.shared.u32 [%r2], %r0;
      bar.sync 1, 64;
      bra end;
    first:
    - bar.arrive 1, 64;
    + bar.sync 1, 64;
      ld.shared.u32 %r6, [%r3];
    end:
    """),
    "an arrival orders what came before, not what comes after": ("not ordered after a", """
      st.shared.u32 [%r2], %r0;
      bar.sync 0;
      @%p1 bra first;
      bar.sync 1, 64;
      ld.shared.u32 %r6, [%r3];
      bra end;
    first:
    - bar.arrive 1, 64;
      st.shared.u32 [%r2], %r0;
    + bar.arrive 1, 64;
    end:
    """),
    "barriers with other numbers order nothing": ("not ordered after a", """
      st.shared.u32 [%r2], %r0;
      bar.sync 0;
      @%p1 bra first;
    - bar.sync 2, 32;
    + bar.sync 1, 64;
      ld.shared.u32 %r6, [%r3];
      bra end;
    first:
      st.shared.u32 [%r2], %r0;
    - bar.sync 1, 32;
    + bar.sync 1, 64;
    end:
    """),
    "wait for an mbarrier": ("this read .* after a write by warp 0", INIT + """
      @!%p1 bra second;
      st.shared.u32 [%r2], %r0;
      mbarrier.arrive.shared::cta.b64 _, [barrier];
      bra end;
    second:
    + """ + wait("again").replace("\n", "\n    + ").rstrip("+ ") + """
      ld.shared.u32 %r6, [%r3];
    end:
    """),
    "arrival at an mbarrier before the last read": ("this write .* after a read by", INIT + """
      st.shared.u32 [%r2], %r0;
      bar.sync 0;
      @!%p1 bra second;
    - mbarrier.arrive.shared::cta.b64 _, [barrier];
      ld.shared.u32 %r6, [%r3];
    + mbarrier.arrive.shared::cta.b64 _, [barrier];
      bra end;
    second:
    """ + wait("again") + """
      st.shared.u32 [%r2], %r0;
    end:
    """),
    "relaxed arrivals order nothing": ("this read .* after a write by warp 0", INIT + """
      @!%p1 bra second;
      st.shared.u32 [%r2], %r0;
    - mbarrier.arrive.relaxed.cta.shared::cta.b64 _, [barrier];
    + mbarrier.arrive.release.cta.shared::cta.b64 _, [barrier];
      bra end;
    second:
    """ + wait("again") + """
      ld.shared.u32 %r6, [%r3];
    end:
    """),
    "mbarrier used before its init is known": ("nothing orders that after its mbarrier.init", """
      @%p2 mbarrier.init.shared::cta.b64 [barrier], 64;
    + bar.sync 0;
      mbarrier.arrive.shared::cta.b64 _, [barrier];
    """),
    "ordinary read of what atomics count": ("this read .* after an atomic access by warp", """
      @%p2 st.shared.u32 [words], 0;
      bar.sync 0;
      atom.shared.add.u32 %r6, [words], 1;
    + bar.sync 0;
      ld.shared.u32 %r7, [words];
    """),
    "atomic access after an ordinary write": ("this atomic access .* after a write by warp 0", """
      @%p2 st.shared.u32 [words], 0;
    + bar.sync 0;
      red.shared.add.u32 [words], 1;
    """),
    "atomic access after an ordinary read": ("this atomic access .* after a read by warp", """
      @%p2 st.shared.u32 [words], 0;
      bar.sync 0;
      ld.shared.u32 %r7, [words];
    + bar.sync 0;
      red.shared.add.u32 [words], 1;
    """),
    "ordinary write after atomic accesses": ("this write .* after an atomic access by warp 1", """
      @%p2 st.shared.u32 [words], 0;
      bar.sync 0;
      red.shared.add.u32 [words], 1;
    + bar.sync 0;
      @%p2 st.shared.u32 [words], 0;
    """),
    "ordinary read of what is written volatile": ("this read .* after an atomic access", """
      st.volatile.shared.u32 [%r2], %r0;
    + bar.sync 0;
      ld.shared.u32 %r6, [%r3];
    """),
    "chunk read by another warp than the one that waited": ("this read .* after a write", """
      cp.async.ca.shared.global [%r2], [%rd2], 4;
      cp.async.wait_all;
    + bar.sync 0;
      ld.shared.u32 %r6, [%r3];
    """),
    "barrier before the wait for chunks": ("this read .* after a write by warp", """
      cp.async.ca.shared.global [%r2], [%rd2], 4;
    - bar.sync 0;
      cp.async.wait_all;
    + bar.sync 0;
      ld.shared.u32 %r6, [%r3];
    """),
    "chunks over what others read": ("this write .* after a read by warp", """
      st.shared.u32 [%r2], %r0;
      bar.sync 0;
      ld.shared.u32 %r6, [%r3];
    + bar.sync 0;
      cp.async.ca.shared.global [%r2], [%rd2], 4;
      cp.async.wait_all;
    """),
    "chunks that an mbarrier tracks": ("a write by an asynchronous copy", INIT + """
      @!%p1 bra second;
      cp.async.ca.shared.global [%r2], [%rd2], 4;
      cp.async.mbarrier.arrive.noinc.shared::cta.b64 [barrier];
    """ + wait("again") + """
      @%p2 mbarrier.arrive.shared::cta.b64 _, [other];
      bra end;
    second:
    - mbarrier.try_wait.parity.relaxed.cta.shared::cta.b64 %p3, [other], 0;
    - mbarrier.try_wait.parity.relaxed.cta.shared::cta.b64 %p3, [other], 0;
    """ + "    + " + wait("more", "other").strip().replace("\n", "\n    + ") + """
      ld.shared.u32 %r6, [%r3];
    end:
    """),
    "copy that another mbarrier completes": ("this read .* an asynchronous copy", INIT + """
      @!%p2 bra begun;
      mbarrier.init.shared::cta.b64 [words+512], 1;
      mbarrier.arrive.expect_tx.shared::cta.b64 _, [words+512], 128;
      mbarrier.arrive.expect_tx.shared::cta.b64 _, [other], 128;
      mov.u32 %r8, words+512;
      LOAD [%r20], [%rd0], 128, [%r8];
      mov.u32 %r9, other;
      add.u32 %r10, %r20, 128;
      LOAD [%r10], [%rd0], 128, [%r9];
    begun:
      bar.sync 0;
    """ + wait("again", "other") + """
    +w2: mbarrier.try_wait.parity.shared::cta.b64 %p7, [words+512], 0;
    + @!%p7 bra w2;
      @%p1 ld.shared.u32 %r6, [%r2];
    """),
    "bulk copy over what others read": ("this write .* after a read by warp 1", INIT + """
      st.shared.u32 [%r2], %r0;
      bar.sync 0;
      ld.shared.u32 %r6, [%r2];
    + bar.sync 0;
      @!%p2 bra end;
      fence.proxy.async;
      mbarrier.arrive.expect_tx.shared::cta.b64 _, [other], 256;
      mov.u32 %r9, other;
      LOAD [%r20], [%rd0], 256, [%r9];
    """ + wait("again", "other") + """
    end:
    """),
    "write over what a bulk store reads": ("this write .* after reads that go on", """
      st.shared.u32 [%r2], %r0;
      fence.proxy.async;
      bar.sync 0;
      @!%p2 bra end;
      cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r20], 256;
      cp.async.bulk.commit_group;
    + cp.async.bulk.wait_group.read 0;
      st.shared.u32 [%r2], %r0;
    - cp.async.bulk.wait_group.read 0;
    end:
    """),
    "write over what another warp's bulk store read": ("this write .* after a read by warp 0", """
      st.shared.u32 [%r2], %r0;
      fence.proxy.async;
      bar.sync 0;
      @%p2 cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r20], 256;
      @%p2 cp.async.bulk.commit_group;
      @%p2 cp.async.bulk.wait_group.read 0;
    + bar.sync 0;
      @!%p1 st.shared.u32 [%r2], %r0;
    """),
    "bulk store of what another warp writes": ("this read .* after a write by warp 1", """
      st.shared.u32 [%r2], %r0;
      fence.proxy.async;
    + bar.sync 0;
      @%p2 cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r20], 256;
      @%p2 cp.async.bulk.commit_group;
      @%p2 cp.async.bulk.wait_group 0;
    """),
}  # fmt: skip


def launch(text, threads=64, **options):
    x = np.arange(256, dtype=np.uint32)
    return ptxemu.launch(text, 1, threads, [x, np.zeros_like(x)], **options)


@pytest.mark.parametrize("name", PAIRS)
def test_accesses_that_nothing_orders(name):
    match, body = PAIRS[name]
    check_pair(HEAD + body, ptxemu.Race, match, launch)


NO_RACES = {
    "bytes of one word": """
      mul.lo.u32 %r6, %r0, 97;
      rem.u32 %r6, %r6, 96;
      add.u32 %r6, %r20, %r6;
      cvt.u16.u32 %h0, %r0;
      st.shared.u8 [%r6], %h0;
      st.shared.u8 [%r6], %h0;
      ld.shared.u8 %h1, [%r6];
    """,
    "bytes far apart in a word, by two warps": """
      and.b32 %r6, %r0, 31;
      mad.lo.u32 %r6, %r6, 4, %r1;
      add.u32 %r6, %r20, %r6;
      st.shared.u8 [%r6], %h0;
      st.shared.u8 [%r6], %h0;
      ld.shared.u8 %h1, [%r6];
    """,
    "halves of one word, by two warps": """
      and.b32 %r6, %r0, 31;
      shl.b32 %r6, %r6, 3;
      mad.lo.u32 %r6, %r1, 2, %r6;
      add.u32 %r6, %r6, %r20;
      st.shared.b16 [%r6], %h0;
      st.shared.b16 [%r6], %h0;
      ld.shared.b16 %h1, [%r6];
    """,
    "what a warp does with its own": """
      st.shared.u32 [%r2], %r0;
      ld.shared.u32 %r6, [%r2];
      st.shared.u32 [%r2], %r6;
      atom.shared.add.u32 %r6, [%r2], 1;
      ld.shared.u32 %r6, [%r2];
    """,
    "atomics among each other": """
      @%p2 st.shared.u32 [words], 0;
      bar.sync 0;
      red.shared.add.u32 [words], 1;
      @%p1 red.shared.add.u32 [words], 1;
      ld.volatile.shared.u32 %r6, [words];
    """,
    "reads of one word by all": """
      @%p2 st.shared.u32 [words], 0;
      bar.sync 0;
      ld.shared.u32 %r6, [words];
      ld.shared.u32 %r6, [words];
    """,
    "order by way of a third warp": """
      setp.eq.u32 %p3, %r1, 1;
      @%p2 st.shared.u32 [words], %r0;
      bar.sync 0;
      @%p1 bra first;
      @%p3 bra second;
      bar.sync 2, 64;
      ld.shared.u32 %r6, [words];
      bra end;
    second:
      bar.sync 1, 64;
      bar.arrive 2, 64;
      bra end;
    first:
      @%p2 st.shared.u32 [words], %r0;
      bar.arrive 1, 64;
    end:
    """,
}


@pytest.mark.parametrize("name", NO_RACES)
def test_accesses_that_are_no_race(name):
    launch(texts.copying(HEAD + NO_RACES[name]), threads=96)


def test_a_third_warp_passes_on_only_what_it_waited_for():
    text = texts.copying(HEAD + NO_RACES["order by way of a third warp"])
    text = text.replace("bar.sync 1, 64", "bar.arrive 1, 64")
    with pytest.raises(ptxemu.Race, match=r"by warp 0|by warp 2"):
        launch(text, threads=96)


def test_the_message_has_both_lines_and_the_place():
    body = HEAD + "st.shared.u32 [%r2], %r0;\nld.shared.u32 %r6, [%r3];"
    text = texts.copying(body)
    lines = text.splitlines()
    with pytest.raises(ptxemu.Race) as caught:
        launch(text)
    fault = caught.value
    assert lines[fault.line - 1] == "ld.shared.u32 %r6, [%r3];"
    written = next(n for n, row in enumerate(lines, 1) if "st.shared" in row)
    assert f"by warp 1 at PTX line {written}" in fault.problem
    assert "bytes 128 to 131" in fault.problem
    assert fault.thread == 0
    assert "bar.sync" in fault.remedy


def test_races_can_be_switched_off():
    text = texts.copying(HEAD + "st.shared.u32 [%r2], %r0;\nld.shared.u32 %r6, [%r3];")
    checks = {name: name != "race" for name in ("race", "proxy", "wait", "barrier")}
    launch(text, checks=ptxemu.Checks(**checks))


CLUSTER = """
  .shared .align 16 .b8 words[1024];
  mov.u32 %r1, %cluster_ctarank;
  xor.b32 %r2, %r1, 1;
  mov.u32 %r3, words;
  mapa.shared::cluster.u32 %r4, %r3, %r2;
  shl.b32 %r5, %r0, 2;
  add.u32 %r3, %r3, %r5;
  add.u32 %r4, %r4, %r5;
  {store}
  {between}
  {load}
  barrier.cluster.arrive.aligned;
  barrier.cluster.wait.aligned;
"""


@pytest.mark.parametrize("way", ["stores", "loads"])
def test_blocks_of_a_cluster_race_without_its_barrier(way):
    store, load = ("%r4", "%r3") if way == "stores" else ("%r3", "%r4")
    parts = {
        "store": f"st.shared::cluster.u32 [{store}], %r0;",
        "load": f"ld.shared::cluster.u32 %r6, [{load}];",
    }
    barrier = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
    x = np.zeros(64, np.uint32)
    text = texts.copying(CLUSTER.format(**parts, between=barrier))
    ptxemu.launch(text, 4, 64, [x, x], cluster=2)
    text = texts.copying(CLUSTER.format(**parts, between="bar.sync 0;"))
    with pytest.raises(ptxemu.Race, match="of block rank"):
        ptxemu.launch(text, 4, 64, [x, x], cluster=2)


# The first warp writes and says so by a flag, for which the second one waits.
FLAG = """
      @%p2 st.shared.u32 [words+512], 0;
      bar.sync 0;
      @!%p1 bra second;
      st.shared.u32 [%r2], %r0;
      bar.warp.sync -1;
      {say}
      bra end;
    second:
      {hear}
      setp.eq.u32 %p3, %r6, 0;
      @%p3 bra second;
      {learn}
      ld.shared.u32 %r7, [%r3];
    end:
"""
HANDSHAKES = {
    "release and acquire": (
        "@%p2 st.release.cta.shared.u32 [words+512], 1;",
        "ld.acquire.cta.shared.u32 %r6, [words+512];", ""),
    "fences around volatile accesses": (
        "membar.cta; @%p2 st.volatile.shared.u32 [words+512], 1;",
        "ld.volatile.shared.u32 %r6, [words+512];", "membar.cta;"),
    "a fence and a relaxed store; acquire": (
        "fence.acq_rel.cta; @%p2 st.relaxed.cta.shared.u32 [words+512], 1;",
        "ld.acquire.cta.shared.u32 %r6, [words+512];", ""),
    "atomic operations": (
        "@%p2 atom.release.cta.shared.exch.b32 %r6, [words+512], 1;",
        "atom.acq_rel.cta.shared.add.u32 %r6, [words+512], 0;", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", HANDSHAKES)
def test_flags_order_what_they_hand_on(name):
    say, hear, learn = HANDSHAKES[name]
    launch(texts.copying(HEAD + FLAG.format(say=say, hear=hear, learn=learn)))


@pytest.mark.parametrize("name", HANDSHAKES)
@pytest.mark.parametrize("side", ["say", "hear"])
def test_flags_without_fences_order_nothing(name, side):
    say, hear, learn = HANDSHAKES[name]

    def weak(text):
        for strong in (".release", ".acquire", ".acq_rel"):
            text = text.replace(f"{strong}.cta.shared", ".relaxed.cta.shared")
        return text.replace("membar.cta;", "").replace("fence.acq_rel.cta;", "")

    parts = {"say": say, "hear": hear, "learn": learn}
    parts[side] = weak(parts[side])
    if side == "hear":
        parts["learn"] = weak(learn)
    with pytest.raises(ptxemu.Race, match=r"this read .* write by warp 0"):
        launch(texts.copying(HEAD + FLAG.format(**parts)))


def test_a_lock_guards_what_it_is_for():
    body = """
      @%p2 st.shared.u32 [words+512], 0;
      @%p2 st.shared.u32 [words], 0;
      bar.sync 0;
      and.b32 %r6, %r0, 31;
      setp.ne.u32 %p3, %r6, 0;
      @%p3 bra end;
    locked:
      atom.acquire.cta.shared.cas.b32 %r7, [words+512], 0, 1;
      setp.ne.u32 %p4, %r7, 0;
      @%p4 bra locked;
      ld.shared.u32 %r8, [words];
      add.u32 %r8, %r8, 1;
      st.shared.u32 [words], %r8;
      st.release.cta.shared.u32 [words+512], 0;
    end:
      bar.sync 0;
      ld.shared.u32 %r8, [words];
      st.global.u32 [%rd3], %r8;
    """
    y = np.zeros(96, np.uint32)
    ptxemu.launch(texts.copying(HEAD + body), 1, 96, [y, y])
    assert (y == 3).all()
    with pytest.raises(ptxemu.Race):
        ptxemu.launch(texts.copying(HEAD + body.replace(".acquire", "")), 1, 96, [y, y])
