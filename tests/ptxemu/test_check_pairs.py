"""Each check has a kernel that trips it and a mended one that does not.

Both are one text: the broken kernel lacks the lines that begin with ``+`` and has those with ``-``;
the mended one the other way round.
"""

import re
from dataclasses import fields

import numpy as np
import pytest

from sdpakit import ptxemu

HEAD = ".version 8.4\n.target sm_90a\n.address_size 64\n"
COPY = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
REGISTERS = """
.reg .pred %p<8>; .reg .b16 %h<8>; .reg .b32 %r<32>; .reg .f32 %f<32>; .reg .b64 %rd<32>;
mov.u32 %r0, %tid.x;
ld.param.u64 %rd0, [x];
mul.wide.u32 %rd1, %r0, 4;
add.u64 %rd1, %rd0, %rd1;
"""


def versions(body):
    """Return the broken and the mended kernel.

    In both `%rd0` is x, `%r0` the thread, `%rd1` the address of x[thread].
    """
    body = body.replace("COPY", COPY)
    broken = re.sub(r"^\s*\+.*\n", "", body, flags=re.M)
    mended = re.sub(r"^\s*-.*\n", "", body, flags=re.M)
    start = HEAD + ".visible .entry kernel(.param .u64 x) {" + REGISTERS
    assert broken != mended
    return (
        start + re.sub(r"^\s*-", "", broken, flags=re.M) + "\nret;\n}\n",
        start + re.sub(r"^\s*\+", "", mended, flags=re.M) + "\nret;\n}\n",
    )


class Pair:
    """A kernel of one array, and the fault of its broken version."""

    def __init__(self, name, fault, body, *, threads=64, x=64, output=False, check=None):
        self.name, self.fault, self.threads = name, fault, threads
        self.broken, self.mended = versions(body)
        self.x, self.output = x, output
        self.check = fault.name if check is None else check

    def run(self, text, checks=None):
        """Run a version on an array of `x` numbers."""
        x = np.arange(self.x, dtype=np.uint32)
        argument = ptxemu.Output(x) if self.output else x
        ptxemu.launch(text, 1, self.threads, [argument], checks=checks or ptxemu.Checks())


WGMMA = """
    .shared .align 128 .b8 tiles[2304];
    // A is 64 by 16, B 16 by 8, both of zeros, without swizzle.
    mov.u32 %r1, tiles;
    mov.u32 %r2, 0;
    mad.lo.u32 %r3, %r0, 16, %r1;
    st.shared.v4.b32 [%r3], {%r2, %r2, %r2, %r2};
    setp.lt.u32 %p1, %r0, 16;
    @%p1 st.shared.v4.b32 [%r3+2048], {%r2, %r2, %r2, %r2};
    fence.proxy.async.shared::cta;
    bar.sync 0;
    shr.u32 %r1, %r1, 4;
    cvt.u64.u32 %rd2, %r1;
    // The next 8 k lie 128 bytes on, the next 8 rows 256.
    or.b64 %rd2, %rd2, 0x1000080000;
    add.u64 %rd3, %rd2, 128;
    mov.f32 %f0, 0f00000000; mov.f32 %f1, %f0; mov.f32 %f2, %f0; mov.f32 %f3, %f0;
"""
PRODUCT = """wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16
    {%f0, %f1, %f2, %f3}, %rd2, %rd3, 1, 1, 1, 0, 0;"""

PAIRS = [
    Pair("store past the end", ptxemu.OutOfBounds, """
        setp.lt.u32 %p1, %r0, 63;
    +   @%p1
        st.global.u32 [%rd1], %r0;
    """, x=63),
    Pair("shared load past the end", ptxemu.OutOfBounds, """
        .shared .align 4 .b8 buffer[256];
        shl.b32 %r1, %r0, 2;
        mov.u32 %r2, buffer;
        add.u32 %r2, %r2, %r1;
        st.shared.u32 [%r2], %r0;
    -   ld.shared.u32 %r3, [%r2+1024];
    +   ld.shared.u32 %r3, [%r2];
    """),
    Pair("8 bytes at a multiple of 4", ptxemu.Misaligned, """
    -   ld.global.u64 %rd2, [%rd0+4];
    +   ld.global.u64 %rd2, [%rd0+8];
    """),
    Pair("vector in shared memory", ptxemu.Misaligned, """
        .shared .align 16 .b8 buffer[2048];
        mul.lo.u32 %r1, %r0, 16;
        mov.u32 %r2, buffer;
        add.u32 %r2, %r2, %r1;
    -   add.u32 %r2, %r2, 8;
        st.shared.v4.u32 [%r2], {%r0, %r0, %r0, %r0};
    """),
    Pair("shared memory that nobody wrote", ptxemu.UninitialisedRead, """
        .shared .align 4 .b8 buffer[256];
        shl.b32 %r1, %r0, 2;
        mov.u32 %r2, buffer;
        add.u32 %r2, %r2, %r1;
    +   st.shared.u32 [%r2], %r0;
        ld.shared.u32 %r3, [%r2];
    """),
    Pair("output read before it is written", ptxemu.UninitialisedRead, """
    -   ld.global.u32 %r1, [%rd1];
        st.global.u32 [%rd1], %r0;
    +   ld.global.u32 %r1, [%rd1];
    """, output=True),
    Pair("local memory that the thread did not write", ptxemu.UninitialisedRead, """
        .local .align 4 .b8 mine[16];
        mov.u64 %rd2, mine;
        st.local.u32 [%rd2], %r0;
    +   st.local.u32 [%rd2+4], %r0;
        ld.local.u32 %r1, [%rd2+4];
    """),
    Pair("last element of an output", ptxemu.UnwrittenOutput, """
        st.global.u32 [%rd1], %r0;
        setp.eq.u32 %p1, %r0, 0;
    +   @%p1 st.global.u32 [%rd0+256], %r0;
    """, x=65, output=True),
    Pair("read of what another warp wrote", ptxemu.Race, """
        .shared .align 4 .b8 buffer[256];
        shl.b32 %r1, %r0, 2;
        mov.u32 %r2, buffer;
        add.u32 %r3, %r2, %r1;
        st.shared.u32 [%r3], %r0;
    +   bar.sync 0;
        xor.b32 %r1, %r1, 128;
        add.u32 %r3, %r2, %r1;
        ld.shared.u32 %r4, [%r3];
    """),
    Pair("write over what another warp reads", ptxemu.Race, """
        .shared .align 4 .b8 buffer[256];
        shl.b32 %r1, %r0, 2;
        mov.u32 %r2, buffer;
        add.u32 %r3, %r2, %r1;
        st.shared.u32 [%r3], %r0;
        bar.sync 0;
        xor.b32 %r1, %r1, 128;
        add.u32 %r4, %r2, %r1;
        ld.shared.u32 %r5, [%r4];
    +   bar.sync 0;
        st.shared.u32 [%r3], %r5;
    """),
    Pair("barrier that names too few threads", ptxemu.Race, """
        .shared .align 4 .b8 buffer[4];
        setp.ne.u32 %p1, %r0, 0;
        @%p1 bra read;
        st.shared.u32 [buffer], %r0;
    read:
        shr.u32 %r1, %r0, 5;
        add.u32 %r1, %r1, 1;
    -   bar.sync %r1, 32;
    +   bar.sync 1, 64;
        ld.shared.u32 %r2, [buffer];
    """),
    Pair("cp.async that nobody waited for", ptxemu.MissingWait, """
        .shared .align 16 .b8 buffer[1024];
        shl.b32 %r1, %r0, 4;
        mov.u32 %r2, buffer;
        add.u32 %r2, %r2, %r1;
        mul.wide.u32 %rd2, %r1, 1;
        add.u64 %rd2, %rd0, %rd2;
        cp.async.cg.shared.global [%r2], [%rd2], 16;
        cp.async.commit_group;
    +   cp.async.wait_group 0;
        ld.shared.u32 %r3, [%r2];
    """, x=256),
    Pair("bulk copy that nobody waited for", ptxemu.MissingWait, """
        .shared .align 16 .b8 buffer[256];
        .shared .align 8 .b64 barrier;
        setp.ne.u32 %p1, %r0, 0;
        @%p1 bra begun;
        mbarrier.init.shared::cta.b64 [barrier], 1;
        fence.proxy.async.shared::cta;
        mbarrier.arrive.expect_tx.shared::cta.b64 _, [barrier], 256;
        mov.u32 %r1, buffer;
        mov.u32 %r2, barrier;
        COPY [%r1], [%rd0], 256, [%r2];
    begun:
        bar.sync 0;
    +wait:
    +   mbarrier.try_wait.parity.shared::cta.b64 %p2, [barrier], 0;
    +   @!%p2 bra wait;
        ld.shared.u32 %r3, [buffer];
    """),
    Pair("bulk store of ordinary stores", ptxemu.MissingProxyFence, """
        .shared .align 16 .b8 buffer[256];
        shl.b32 %r1, %r0, 2;
        mov.u32 %r2, buffer;
        add.u32 %r1, %r2, %r1;
        st.shared.u32 [%r1], %r0;
    +   fence.proxy.async.shared::cta;
        bar.sync 0;
        setp.ne.u32 %p1, %r0, 0;
        @%p1 bra done;
        cp.async.bulk.global.shared::cta.bulk_group [%rd0], [%r2], 256;
        cp.async.bulk.commit_group;
        cp.async.bulk.wait_group 0;
    done:
    """),
    Pair("wgmma of ordinary stores", ptxemu.MissingProxyFence,
        WGMMA.replace("    fence.proxy", "+   fence.proxy") + f"""
        wgmma.fence.sync.aligned;
        {PRODUCT}
        wgmma.commit_group.sync.aligned;
        wgmma.wait_group.sync.aligned 0;
    """, threads=128),
    Pair("accumulator read too early", ptxemu.AccumulatorInFlight, WGMMA + f"""
        wgmma.fence.sync.aligned;
        {PRODUCT}
        wgmma.commit_group.sync.aligned;
    -   add.f32 %f4, %f0, %f1;
        wgmma.wait_group.sync.aligned 0;
    +   add.f32 %f4, %f0, %f1;
    """, threads=128),
    Pair("wgmma without its fence", ptxemu.AccumulatorInFlight, WGMMA + f"""
    +   wgmma.fence.sync.aligned;
        {PRODUCT}
        wgmma.commit_group.sync.aligned;
        wgmma.wait_group.sync.aligned 0;
    """, threads=128),
    Pair("wgmma that nobody waited for", ptxemu.AccumulatorInFlight, WGMMA + f"""
        wgmma.fence.sync.aligned;
        {PRODUCT}
        wgmma.commit_group.sync.aligned;
    +   wgmma.wait_group.sync.aligned 0;
    """, threads=128),
    Pair("mbarrier with an arrival too many", ptxemu.BarrierMisuse, """
        .shared .align 16 .b8 buffer[256];
        .shared .align 8 .b64 barrier;
        setp.ne.u32 %p1, %r0, 0;
        @%p1 bra begun;
    -   mbarrier.init.shared::cta.b64 [barrier], 1;
    +   mbarrier.init.shared::cta.b64 [barrier], 2;
        fence.proxy.async.shared::cta;
        mov.u32 %r1, buffer;
        mov.u32 %r2, barrier;
        mbarrier.arrive.expect_tx.shared::cta.b64 _, [barrier], 128;
        COPY [%r1], [%rd0], 128, [%r2];
        mbarrier.arrive.expect_tx.shared::cta.b64 _, [barrier], 128;
        add.u32 %r1, %r1, 128;
        COPY [%r1], [%rd0], 128, [%r2];
    begun:
        bar.sync 0;
    wait:
        mbarrier.try_wait.parity.shared::cta.b64 %p2, [barrier], 0;
        @!%p2 bra wait;
    """),
    Pair("named barrier with two counts", ptxemu.BarrierMisuse, """
        setp.lt.u32 %p1, %r0, 32;
        @%p1 bra first;
        bar.sync 1, 64;
        bra done;
    first:
    -   bar.sync 1, 96;
    +   bar.sync 1, 64;
    done:
    """),
    Pair("shuffle by halves of a warp", ptxemu.Divergence, """
        and.b32 %r1, %r0, 31;
        setp.ge.u32 %p1, %r1, 16;
    -   @%p1 bra upper;
        shfl.sync.bfly.b32 %r2, %r0, 1, 31, -1;
        bra done;
    upper:
        shfl.sync.bfly.b32 %r2, %r0, 1, 31, -1;
    done:
        st.global.u32 [%rd1], %r2;
    """),
    Pair("shuffle by a lane that its mask does not name", ptxemu.Divergence, """
        and.b32 %r1, %r0, 31;
        setp.ge.u32 %p1, %r1, 16;
    -   mov.u32 %r1, 0xffff;
    +   mov.u32 %r1, 0xffffffff;
        shfl.sync.bfly.b32 %r2, %r0, 1, 31, %r1;
    """),
    Pair("matrix product in half a warp", ptxemu.Divergence, """
        and.b32 %r1, %r0, 31;
        setp.ge.u32 %p1, %r1, 16;
        mov.f32 %f0, 0f00000000; mov.f32 %f1, %f0; mov.f32 %f2, %f0; mov.f32 %f3, %f0;
    -   @%p1
        mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32
            {%f0, %f1, %f2, %f3}, {%r1, %r1, %r1, %r1}, {%r1, %r1}, {%f0, %f1, %f2, %f3};
    """),
    Pair("named barrier that one warp does not know", ptxemu.Deadlock, """
        setp.ge.u32 %p1, %r0, 32;
        @%p1 bra other;
        bar.sync 1, 64;
        bra done;
    other:
    +   bar.arrive 1, 64;
    done:
    """, check=""),
    Pair("bytes that never come", ptxemu.Deadlock, """
        .shared .align 16 .b8 buffer[256];
        .shared .align 8 .b64 barrier;
        setp.ne.u32 %p1, %r0, 0;
        @%p1 bra begun;
        mbarrier.init.shared::cta.b64 [barrier], 1;
        fence.proxy.async.shared::cta;
    -   mbarrier.arrive.expect_tx.shared::cta.b64 _, [barrier], 272;
    +   mbarrier.arrive.expect_tx.shared::cta.b64 _, [barrier], 256;
        mov.u32 %r1, buffer;
        mov.u32 %r2, barrier;
        COPY [%r1], [%rd0], 256, [%r2];
    begun:
        bar.sync 0;
    wait:
        mbarrier.try_wait.parity.shared::cta.b64 %p2, [barrier], 0;
        @!%p2 bra wait;
    """, check=""),
    Pair("trap", ptxemu.Trap, """
        setp.gt.u32 %p1, %r0, 63;
    -   setp.gt.u32 %p1, %r0, 62;
        @%p1 trap;
    """, check=""),
]  # fmt: skip


def named(pair):
    return f"{pair.fault.name}: {pair.name}"


@pytest.mark.parametrize("pair", PAIRS, ids=named)
def test_broken_kernel_trips_its_check(pair):
    with pytest.raises(pair.fault) as caught:
        pair.run(pair.broken)
    assert type(caught.value) is pair.fault


@pytest.mark.parametrize("pair", PAIRS, ids=named)
def test_mended_kernel_trips_none(pair):
    pair.run(pair.mended)


SWITCHED = [pair for pair in PAIRS if pair.check]


@pytest.mark.parametrize("pair", SWITCHED, ids=named)
def test_one_check_alone_suffices(pair):
    with pytest.raises(pair.fault):
        pair.run(pair.broken, ptxemu.Checks.only(pair.check))


# Accesses outside of all memory and barriers that can never open are refused whatever is off.
ALWAYS_REFUSED = {"shared load past the end", "named barrier with two counts"}


@pytest.mark.parametrize(
    "pair", [pair for pair in SWITCHED if pair.name not in ALWAYS_REFUSED], ids=named
)
def test_check_can_be_switched_off(pair):
    others = {field.name for field in fields(ptxemu.Checks)} - {pair.check}
    found = None
    try:
        pair.run(pair.broken, ptxemu.Checks.only(*others))
    except ptxemu.KernelFault as fault:
        found = fault.name
    # The mistake may have another side, which another check sees.
    assert found != pair.check


@pytest.mark.parametrize("field", fields(ptxemu.Checks), ids=lambda field: field.name)
def test_every_check_has_a_pair(field):
    assert field.name in {pair.check for pair in PAIRS}


def test_every_fault_has_a_pair():
    faults = {
        kind
        for kind in vars(ptxemu).values()
        if isinstance(kind, type) and issubclass(kind, ptxemu.KernelFault)
    }
    assert faults - {ptxemu.KernelFault} == {pair.fault for pair in PAIRS}


@pytest.mark.parametrize("pair", PAIRS, ids=named)
def test_message_says_what_where_and_what_to_do(pair):
    with pytest.raises(pair.fault) as caught:
        pair.run(pair.broken)
    fault = caught.value
    assert str(fault).startswith(f"{fault.name}: {fault.problem}")
    assert f"remedy: {fault.remedy}" in str(fault)
    assert len(fault.problem) > 10
    assert len(fault.remedy) > 10
    if fault.line is not None:
        line = pair.broken.splitlines()[fault.line - 1]
        assert fault.text.split()[0].split(".")[0].lstrip("@!") in line
