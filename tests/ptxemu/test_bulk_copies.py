import numpy as np
import pytest
from tests.ptxemu import texts
from tests.ptxemu.pairs import LOAD, check_pair

from sdpakit import ptxemu
from sdpakit.ptxemu.scalars import bf16_to_f32, f32_to_bf16

# %p1: the first thread. x has 1024 bytes, as has data; barrier is at data + 1024.
HEAD = """
  .shared .align 128 .b8 data[1024];
  .shared .align 8 .b64 barrier;
  mov.u32 %r20, data;
  mov.u32 %r10, barrier;
  setp.eq.u32 %p1, %r0, 0;
  shl.b32 %r2, %r0, 4;
  add.u32 %r2, %r2, %r20;
"""
INIT = "@%p1 mbarrier.init.shared::cta.b64 [%r10], 1;\nbar.sync 0;\n"
WAIT = """
again:
  mbarrier.try_wait.parity.shared::cta.b64 %p7, [%r10], 0;
  @!%p7 bra again;
"""
STORE = """
  mul.wide.u32 %rd5, %r0, 16;
  add.u64 %rd3, %rd1, %rd5;
  ld.shared.v4.u32 {%r4, %r5, %r6, %r7}, [%r2];
  st.global.v4.u32 [%rd3], {%r4, %r5, %r6, %r7};
"""
FILL = """
  mul.wide.u32 %rd5, %r0, 16;
  add.u64 %rd3, %rd0, %rd5;
  ld.global.v4.u32 {%r4, %r5, %r6, %r7}, [%rd3];
  st.shared.v4.u32 [%r2], {%r4, %r5, %r6, %r7};
  fence.proxy.async.shared::cta;
  bar.sync 0;
"""
SEND = "cp.async.bulk.global.shared::cta.bulk_group"


def expect(count):
    return f"@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r10], {count};\n"


def launch(text, x=None, y=None, blocks=1, **options):
    x = np.arange(256, dtype=np.uint32) + 1 if x is None else x
    y = np.zeros(256 * blocks, np.uint32) if y is None else y
    report = ptxemu.launch(text, blocks, 64, [x, y], **options)
    return y, report


def run(body, *args, **options):
    return launch(texts.copying(HEAD + body), *args, **options)[0]


X = np.arange(256, dtype=np.uint32) + 1


@pytest.mark.parametrize(
    "form",
    [
        f"{LOAD} [%r20], [%rd0], 1024, [%r10]",
        f"{LOAD}.L2::cache_hint [%r20], [%rd0], 1024, [%r10], %rd9",
        "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes"
        " [%r20], [%rd0], 1024, [%r10]",
    ],
)
def test_loads(form):
    text = texts.copying(HEAD + f"mov.u64 %rd9, 0;{INIT}{expect(1024)}@%p1 {form};{WAIT}{STORE}")
    found, report = launch(text)
    assert (found == X).all()
    assert report.counters.copied_bytes == 1024


def test_several_loads_complete_one_phase():
    found = run(INIT + expect(1024) + f"""
      mov.u32 %r8, 16;
      @%p1 {LOAD} [%r20], [%rd0], %r8, [%r10];
      add.u64 %rd9, %rd0, 16;
      @%p1 {LOAD} [%r20+16], [%rd9], 1008, [%r10];
    """ + WAIT + STORE)  # fmt: skip
    assert (found == X).all()


def test_each_thread_may_copy():
    found = run(INIT + expect(1024) + f"""
      bar.sync 0;
      mul.wide.u32 %rd5, %r0, 16;
      add.u64 %rd9, %rd0, %rd5;
      {LOAD} [%r2], [%rd9], 16, [%r10];
    """ + WAIT + STORE)  # fmt: skip
    assert (found == X).all()


@pytest.mark.parametrize("hint", ["", ".L2::cache_hint"])
def test_stores(hint):
    found = run(FILL + f"""
      add.u64 %rd9, %rd1, 64;
      mov.u64 %rd8, 0;
      @%p1 {SEND}{hint} [%rd9], [%r20+128], 256{", %rd8" if hint else ""};
      @%p1 cp.async.bulk.commit_group;
      @%p1 cp.async.bulk.wait_group 0;
    """)  # fmt: skip
    wanted = np.zeros_like(X)
    wanted[16:80] = X[32:96]
    assert (found == wanted).all()


def test_a_source_that_was_read_may_change_while_the_store_goes_on():
    found = run(FILL + f"""
      @%p1 {SEND} [%rd1], [%r20], 1024;
      @%p1 cp.async.bulk.commit_group;
      @%p1 cp.async.bulk.wait_group.read 0;
      @%p1 st.shared.u32 [%r20], 99;
      @%p1 ld.global.u32 %r8, [%rd1];
      @%p1 cp.async.bulk.wait_group 0;
      @%p1 ld.global.u32 %r9, [%rd1];
      @%p1 shl.b32 %r9, %r9, 8;
      @%p1 or.b32 %r8, %r8, %r9;
      @%p1 st.global.u32 [%rd1], %r8;
    """)  # fmt: skip
    assert found[0] == 1 << 8  # not there before the last wait, there after it
    assert (found[1:] == X[1:]).all()


def test_groups_of_stores_land_in_order():
    found = run(FILL + f"""
      @!%p1 bra done;
      {SEND} [%rd1], [%r20], 16;
      cp.async.bulk.commit_group;
      {SEND} [%rd1+16], [%r20+16], 16;
      cp.async.bulk.commit_group;
      cp.async.bulk.wait_group 1;
      ld.global.u32 %r8, [%rd1];
      ld.global.u32 %r9, [%rd1+16];
      st.global.u32 [%rd1+32], %r8;
      st.global.u32 [%rd1+48], %r9;
      cp.async.bulk.wait_group 0;
    done:
    """)  # fmt: skip
    assert (found[:16:4] == [1, 5, 1, 0]).all()


def test_stores_that_were_read_land_when_the_block_ends():
    found = run(FILL + f"""
      @%p1 {SEND} [%rd1], [%r20], 1024;
      @%p1 cp.async.bulk.commit_group;
      @%p1 cp.async.bulk.wait_group.read 0;
    """)  # fmt: skip
    assert (found == X).all()


def test_prefetches_do_nothing():
    assert not run("""
      cp.async.bulk.prefetch.L2.global [%rd0], 1024;
      cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%rd0, {%r0, %r0}];
    """).any()


def numbers(kind, seed):
    random = np.random.default_rng(seed)
    bits = random.integers(0, 2**63, 128, np.uint64)
    if kind == "bf16":
        return f32_to_bf16(random.standard_normal(512).astype(np.float32))
    if kind in {"f16", "f32", "f64"}:
        dtype = np.dtype(f"f{int(kind[1:]) // 8}")
        return random.standard_normal(1024 // dtype.itemsize).astype(dtype)
    return bits.view(np.dtype(kind.replace("s", "i")[0] + str(int(kind[1:]) // 8)))


def reduced(operation, kind, old, new):
    """Say it with Python's integers, or with NumPy's floats."""
    if kind == "bf16":
        return f32_to_bf16(reduced(operation, "f32", *map(bf16_to_f32, (old, new))))
    if old.dtype.kind == "f":
        return {"add": np.add, "min": np.minimum, "max": np.maximum}[operation](old, new)
    mask = (1 << 8 * old.itemsize) - 1
    function = {
        "add": lambda a, b: a + b, "min": min, "max": max,
        "and": lambda a, b: a & b, "or": lambda a, b: a | b, "xor": lambda a, b: a ^ b,
        "inc": lambda a, b: 0 if a >= b else a + 1,
        "dec": lambda a, b: b if a == 0 or a > b else a - 1,
    }[operation]  # fmt: skip
    found = [function(a, b) & mask for a, b in zip(old.tolist(), new.tolist(), strict=True)]
    return np.array(found, np.uint64).astype(f"u{old.itemsize}").view(old.dtype)


REDUCTIONS = [
    *((op, kind) for op in ("add", "min", "max") for kind in ("u32", "s32", "u64", "s64")),
    *((op, kind) for op in ("min", "max", "add") for kind in ("f16", "bf16")),
    *(("add", kind) for kind in ("f32", "f64")),
    *((op, "b32") for op in ("and", "or", "xor")),
    *((op, "u32") for op in ("inc", "dec")),
]


@pytest.mark.parametrize(("operation", "kind"), REDUCTIONS)
def test_reductions(operation, kind):
    of = kind.replace("b", "u") if kind == "b32" else kind
    new, old = numbers(of, 0), numbers(of, 1)
    if operation in {"inc", "dec"}:
        old, new = old % 5, new % 5
    form = f"{operation}.noftz.{kind}" if kind in {"f16", "bf16"} and operation == "add" else (
        f"{operation}.{kind}")  # fmt: skip
    y = old.copy()
    run(FILL + f"""
      @%p1 cp.reduce.async.bulk.global.shared::cta.bulk_group.{form} [%rd1], [%r20], 1024;
      @%p1 cp.async.bulk.commit_group;
      @%p1 cp.async.bulk.wait_group 0;
    """, new, y)  # fmt: skip
    assert (y.view(np.uint8) == reduced(operation, of, old, new).view(np.uint8)).all()


# Block 0 of each cluster sends to block 1.
CLUSTER = (
    """
  mov.u32 %r11, %cluster_ctarank;
  setp.eq.u32 %p2, %r11, 0;
  and.pred %p3, %p1, %p2;
  @%p1 mbarrier.init.shared::cta.b64 [%r10], 1;
"""
    + FILL
    + """
  barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
  @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r10], {expected};
  barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
  mapa.shared::cluster.u32 %r12, %r20, 1;
  mapa.shared::cluster.u32 %r13, %r10, 1;
  {copy}
  @%p2 bra sent;
"""
    + WAIT
    + """
sent:
  {end}
  mov.u32 %r14, %ctaid.x;
  mad.wide.u32 %rd1, %r14, 1024, %rd1;
"""
    + STORE
)


def test_copies_to_another_block_of_the_cluster():
    copy = (
        "@%p3 cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"
        " [%r12+64], [%r20], 128, [%r13];"
    )
    end = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
    text = CLUSTER.replace("{copy}", copy).replace("{end}", end).replace("{expected}", "128")
    text = text.replace("@%p1 mbarrier.arrive", "@%p2 bra later; @%p1 mbarrier.arrive")
    text = text.replace("128;\n  barrier", "128;\nlater:\n  barrier")
    found = run(text, blocks=4, cluster=2).reshape(4, 256)
    wanted = np.tile(X, (4, 1))
    wanted[1::2, 16:48] = X[:32]
    assert (found == wanted).all()


def test_the_source_of_a_copy_to_another_block_is_read_until_that_completes():
    copy = (
        "@%p3 cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"
        " [%r12+64], [%r20], 128, [%r13]; @%p3 st.shared.u32 [%r20], 3;"
    )
    text = CLUSTER.replace("{copy}", copy).replace("{end}", "").replace("{expected}", "128")
    with pytest.raises(ptxemu.Race, match="reads that go on"):
        run(text, blocks=2, cluster=2)


def test_a_load_may_go_to_several_blocks():
    body = """
      mov.u32 %r11, %cluster_ctarank;
      setp.eq.u32 %p2, %r11, 1;
      and.pred %p3, %p1, %p2;
      @%p1 mbarrier.init.shared::cta.b64 [%r10], 1;
      barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    """ + expect(1024) + f"""
      barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
      mov.u16 %h1, 5;
      @%p3 {LOAD}.multicast::cluster [%r20], [%rd0], 1024, [%r10], %h1;
      setp.ne.u32 %p4, %r11, 0;
      setp.ne.u32 %p5, %r11, 2;
      and.pred %p4, %p4, %p5;
      @%p4 bra done;
    """ + WAIT + """
      mov.u32 %r14, %ctaid.x;
      mad.wide.u32 %rd1, %r14, 1024, %rd1;
    """ + STORE + """
    done:
      barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    """  # fmt: skip
    found = run(body, blocks=4, cluster=4).reshape(4, 256)
    assert (found[[0, 2]] == X).all()
    assert not found[[1, 3]].any()
    with pytest.raises(ptxemu.OutOfBounds, match="mask 0x25"):
        run(body.replace("%h1, 5", "%h1, 37"), blocks=4, cluster=4)


PAIRS = {
    "read before the wait": (ptxemu.MissingWait, "under way", INIT + expect(16) + f"""
      @%p1 {LOAD} [%r20], [%rd0], 16, [%r10];
    - @%p1 ld.shared.u32 %r8, [%r20];
    """ + WAIT),
    "write before the wait": (ptxemu.MissingWait, "under way", INIT + expect(16) + f"""
      @%p1 {LOAD} [%r20], [%rd0], 16, [%r10];
    - @%p1 st.shared.u32 [%r20+12], 0;
    """ + WAIT),
    "two loads to one place": (ptxemu.MissingWait, "under way", INIT + expect(48) + f"""
      @%p1 {LOAD} [%r20], [%rd0], 32, [%r10];
    - @%p1 {LOAD} [%r20+16], [%rd0], 16, [%r10];
    + @%p1 {LOAD} [%r20+32], [%rd0], 16, [%r10];
    """ + WAIT),
    "a load that nobody waits for": (
        ptxemu.MissingWait, "all threads ended", INIT + expect(16) + f"""
      @%p1 {LOAD} [%r20], [%rd0], 16, [%r10];
    - bra done;
    """ + WAIT + "done:"),
    "a store that nobody waits for": (ptxemu.MissingWait, "ended without a wait", FILL + f"""
      @%p1 {SEND} [%rd1], [%r20], 1024;
      @%p1 cp.async.bulk.commit_group;
    + @%p1 cp.async.bulk.wait_group.read 0;
    """),
    "a store in no group": (ptxemu.MissingWait, "ended without a wait", FILL + f"""
      @%p1 {SEND} [%rd1], [%r20], 1024;
    + @%p1 cp.async.bulk.commit_group;
      @%p1 cp.async.bulk.wait_group 0;
    """),
    "ordinary stores without a fence": (
        ptxemu.MissingProxyFence, "a write by warp 0 at PTX line",
        FILL.replace("  fence", "+ fence") + f"""
      @%p1 {SEND} [%rd1], [%r20], 16;
      @%p1 cp.async.bulk.commit_group;
      @%p1 cp.async.bulk.wait_group 0;
    """),
    "store of what nobody wrote": (ptxemu.UninitialisedRead, "shared address 0", """
    + """ + FILL.strip().replace("\n", "\n    + ") + f"""
      @%p1 {SEND} [%rd1], [%r20], 32;
      @%p1 cp.async.bulk.commit_group;
      @%p1 cp.async.bulk.wait_group 0;
    """),
    "store of what is under way": (ptxemu.MissingWait, "under way", INIT + expect(16) + f"""
      @%p1 {LOAD} [%r20], [%rd0], 16, [%r10];
    - @%p1 {SEND} [%rd1], [%r20], 16;
    """ + WAIT),
    "size of 24": (ptxemu.Misaligned, "a bulk copy of 24 bytes", INIT + """
    - mov.u32 %r8, 24;
    + mov.u32 %r8, 32;
    """ + f"""
      @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r10], %r8;
      @%p1 {LOAD} [%r20], [%rd0], %r8, [%r10];
    """ + WAIT),
    "no size": (ptxemu.Misaligned, "a bulk copy of 0 bytes", FILL + f"""
    - @%p1 {SEND} [%rd1], [%r20], 0;
    """),
    "source at a multiple of 8": (ptxemu.Misaligned, "no multiple of 16", INIT + expect(16) + f"""
    - @%p1 {LOAD} [%r20], [%rd0+8], 16, [%r10];
    + @%p1 {LOAD} [%r20], [%rd0+16], 16, [%r10];
    """ + WAIT),
    "destination at a multiple of 8": (
        ptxemu.Misaligned, "shared address 0x8 is no multiple of 16", INIT + expect(16) + f"""
    - @%p1 {LOAD} [%r20+8], [%rd0], 16, [%r10];
    + @%p1 {LOAD} [%r20+16], [%rd0], 16, [%r10];
    """ + WAIT),
    "source past the end": (ptxemu.OutOfBounds, "16 bytes at global", INIT + expect(32) + f"""
    - @%p1 {LOAD} [%r20], [%rd0+1008], 32, [%r10];
    + @%p1 {LOAD} [%r20], [%rd0+992], 32, [%r10];
    """ + WAIT),
    "destination past the end": (ptxemu.OutOfBounds, "shared address", INIT + expect(64) + f"""
    - @%p1 {LOAD} [%r20+1008], [%rd0], 64, [%r10];
    + @%p1 {LOAD} [%r20+960], [%rd0], 64, [%r10];
    """ + WAIT),
    "global destination past the end": (ptxemu.OutOfBounds, "16 bytes at global", FILL + f"""
    - @%p1 {SEND} [%rd1+1008], [%r20], 32;
    + @%p1 {SEND} [%rd1+992], [%r20], 32;
      @%p1 cp.async.bulk.commit_group;
      @%p1 cp.async.bulk.wait_group 0;
    """),
    "no mbarrier": (ptxemu.BarrierMisuse, "there is no mbarrier", INIT + expect(16) + f"""
    - @%p1 {LOAD} [%r20], [%rd0], 16, [%r20];
    + @%p1 {LOAD} [%r20], [%rd0], 16, [%r10];
    """ + WAIT),
    "data over an mbarrier": (ptxemu.BarrierMisuse, "holds an mbarrier", INIT.replace(
        "%r10]", "%r20+24]") + INIT.replace("\n", " ") + expect(16) + f"""
    - @%p1 {LOAD} [%r20+16], [%rd0], 16, [%r10];
    + @%p1 {LOAD} [%r20], [%rd0], 16, [%r10];
    """ + WAIT),
    "a copy that an mbarrier did not expect": (
        ptxemu.BarrierMisuse, "16 bytes more arrive", INIT + """
    - @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r10], 16;
    + @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r10], 32;
    """ + f"""
      @%p1 {LOAD} [%r20], [%rd0], 32, [%r10];
    """ + WAIT),
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_misuse(name):
    fault, match, body = PAIRS[name]
    check_pair(HEAD + body, fault, match, launch)


@pytest.mark.parametrize(
    "line",
    [
        "cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.u32"
        " [%r20], [%r20], 16, [%r10];",
        "cp.async.bulk.global.shared::cta.bulk_group.cp_mask [%rd1], [%r20], 16, %h1;",
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.sub.u32 [%rd1], [%r20], 16;",
        "cp.async.bulk.wait_group %r0;",
        "cp.reduce.sync [%r20], [%r20];",
    ],
)
def test_forms_that_are_lacking(line):
    with pytest.raises(ptxemu.UnsupportedInstruction, match="the emulator has no"):
        run(line)
