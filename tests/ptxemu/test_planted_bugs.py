"""Mistakes of authors, planted in what compilers emitted, and the check that catches each."""

import re

import pytest
from tests.ptxemu import compiled

from sdpakit import ptxemu

# ------------------------------------------------ changes of a text: each must find its place


def places(text, pattern):
    """Return the matches of a pattern at the beginning of lines, guards and white space aside."""
    return list(re.finditer(rf"^[ \t]*(?:{pattern}).*\n", text, re.M))


def without(pattern, number=None):
    """Return a change that takes lines away: all, or one of them."""
    return instead(pattern, "", number)


def instead(pattern, line, number=None):
    """Return a change that puts a line in their place; ``\\1`` is what the pattern caught."""

    def change(text):
        found = places(text, pattern)
        assert found, pattern
        for match in reversed(found if number is None else [found[number]]):
            text = text[: match.start()] + match.expand(line) + text[match.end() :]
        return text

    return change


def moved(pattern, behind, number=0):
    """Return a change that moves a line behind the next one that matches another pattern."""

    def change(text):
        line = places(text, pattern)[number]
        anchor = next(m for m in places(text, behind) if m.start() > line.end())
        return "".join(
            [text[: line.start()], text[line.end() : anchor.end()], line[0], text[anchor.end() :]]
        )

    return change


COMMIT_WAIT = r"cp\.async\.wait_group 0;"
A_OPERAND = r"mma\.sync(.*?\{.*?\}, *\{)(%r\d+), *(%r\d+), *(%r\d+), *(%r\d+)(.*)"


def both(first, second):
    """Return a change that makes two."""
    return lambda text: second(first(text))


BUGS = {
    # Block-wide barriers.
    "softmax: sums over maxima that others still read": (
        compiled.softmax, without(r"bar\.sync", 1), ptxemu.Race),
    "softmax: maxima read before all are there": (
        compiled.softmax, without(r"bar\.sync", 0), ptxemu.Race),
    "histogram: counts added up before all have counted": (
        compiled.histogram, without(r"bar\.sync", 1), ptxemu.Race),
    "matmul: no barrier in the loop": (
        compiled.matmul_mma, without(r"bar\.sync"), ptxemu.Race),
    "flash: buffer of V filled while others multiply": (
        compiled.flash_mma, without(r"bar\.sync", 1), ptxemu.Race),
    "numba softmax: no barrier before the halves of a reduction": (
        compiled.numba_softmax, without(r"bar\.sync", 0), ptxemu.Race),
    "triton matmul: no barrier before the product": (
        lambda: compiled.triton_matmul(80), without(r"bar\.sync", 0), ptxemu.Race),
    "wgmma: barrier of more threads than come": (
        compiled.matmul_wgmma, instead(r"bar\.sync 1, 128", "bar.sync 1, 160;\n"), ptxemu.Deadlock),
    "flash: turn not given back": (
        compiled.flash_wgmma, without(r"bar\.arrive 2, 256"), ptxemu.Deadlock),
    "cluster: sums read before all are there": (
        compiled.cluster_sum,
        both(without(r"barrier\.cluster", 0), without(r"barrier\.cluster", 0)), ptxemu.Race),
    "cluster: block ends while others read its memory": (
        compiled.cluster_sum,
        both(without(r"barrier\.cluster", 2), without(r"barrier\.cluster", 2)), ptxemu.Race),
    # Asynchronous copies.
    "matmul: no wait for cp.async": (
        compiled.matmul_mma, without(r"cp\.async\.wait_group"), ptxemu.MissingWait),
    "flash: waits for all groups but two": (
        compiled.flash_mma,
        instead(r"cp\.async\.wait_group", "cp.async.wait_group 2;\n", 1),
        ptxemu.MissingWait),
    "triton matmul: waits for one group too few": (
        lambda: compiled.triton_matmul(80),
        instead(r"cp\.async\.wait_group\s+2", "cp.async.wait_group 3;\n"),
        ptxemu.MissingWait),
    "bulk: no wait for the bytes": (
        compiled.bulk_scale, without(r"mbarrier\.try_wait|@!done"), ptxemu.MissingWait),
    "bulk: asks only once whether the bytes are there": (
        compiled.bulk_scale, without(r"@!done"), ptxemu.MissingWait),
    "bulk: expects fewer bytes than come": (
        compiled.bulk_scale, instead(r"(mbarrier.*expect_tx.*), %r7;", r"\1, 4080;" "\n"),
        ptxemu.BarrierMisuse),
    # Proxies.
    "bulk: ordinary stores sent off without a fence": (
        compiled.bulk_scale, without(r"fence\.proxy", 1), ptxemu.MissingProxyFence),
    "wgmma: output tile sent off without a fence": (
        compiled.matmul_wgmma, without(r"fence\.proxy", 1), ptxemu.MissingProxyFence),
    "triton matmul: product of what was stored, without a fence": (
        lambda: compiled.triton_matmul(90), without(r"fence\.proxy"), ptxemu.MissingProxyFence),
    # mbarriers.
    "flash: expects more bytes than come": (
        compiled.flash_wgmma,
        instead(r"mov\.u32 \t(%r\d+), 8192;", r"mov.u32 \1, 8208;" "\n"), ptxemu.Deadlock),
    "flash: producer does not wait for the buffer": (
        compiled.flash_wgmma, without(r"mbarrier\.try_wait.*\[%r478\]|@!done bra again_5"),
        ptxemu.BarrierMisuse),
    "flash: producer waits for the wrong parity": (
        compiled.flash_wgmma, instead(r"not\.b32 \t(%r\d+), (%r\d+);", r"mov.b32 \1, \2;" "\n"),
        ptxemu.Deadlock),
    "flash: V released while the product reads it": (
        compiled.flash_wgmma,
        moved(r"wgmma\.wait_group\.sync\.aligned 0", r"\$L__BB0_24:", 1), ptxemu.Race),
    "wgmma: buffer released while the product reads it": (
        compiled.matmul_wgmma,
        moved(r"wgmma\.wait_group\.sync\.aligned 1", r"\$L__BB0_7:"), ptxemu.Race),
    "numba wgmma: buffer never released": (
        compiled.numba_wgmma, without(r"(@%p\d+ )?mbarrier\.arrive\.shared"), ptxemu.Deadlock),
    # Products of warpgroups.
    "flash: logits read before they are there": (
        compiled.flash_wgmma,
        without(r"wgmma\.wait_group\.sync\.aligned 1"), ptxemu.AccumulatorInFlight),
    "wgmma: sums read before they are there": (
        compiled.matmul_wgmma,
        without(r"wgmma\.wait_group\.sync\.aligned 0"), ptxemu.AccumulatorInFlight),
    "flash: product after ordinary arithmetic, without a fence": (
        compiled.flash_wgmma, without(r"wgmma\.fence", 1), ptxemu.AccumulatorInFlight),
    "wgmma: no fence at all": (
        compiled.matmul_wgmma, without(r"wgmma\.fence"), ptxemu.AccumulatorInFlight),
    # Bounds, alignment, what is read and written.
    "flash: row after the last is stored": (
        compiled.flash_mma,
        instead(r"setp\.ge\.s32 \t(%p82), (.*)", r"setp.gt.s32 \1, \2" "\n"), ptxemu.OutOfBounds),
    "softmax: one number too many": (
        compiled.softmax,
        instead(r"ld\.global\.nc\.f32 \t%f22, \[%rd65\]", "ld.global.nc.f32 %f22, [%rd65+4];\n"),
        ptxemu.OutOfBounds),
    "matmul: pairs stored where no pair begins": (
        compiled.matmul_mma,
        instead(r"st\.global\.v2\.f32 \t\[(.*)\+32\](.*)", r"st.global.v2.f32 [\1+36]\2" "\n", 0),
        ptxemu.Misaligned),
    "histogram: counts begin as they are": (
        compiled.histogram, without(r"st\.shared\.u32"), ptxemu.UninitialisedRead),
    "flash: columns left out": (
        compiled.flash_mma, without(r"st\.global\.u32 \t\[%rd105\+16\]"), ptxemu.UnwrittenOutput),
    # Warps.
    "softmax: shuffle by those who need it": (
        compiled.softmax,
        instead(r"(shfl\.sync\.down.*)", r"@%p12 \1" "\n", 0), ptxemu.Divergence),
    # What only the numbers show.
    "matmul: halves of a fragment swapped": (
        compiled.matmul_mma, instead(A_OPERAND, r"mma.sync\1\2, \4, \3, \5\6" "\n"), None),
    "flash: causal mask off by one": (
        compiled.flash_mma,
        instead(r"setp\.gt\.s32 \t(.*, %r409|.*, %r411);", r"setp.ge.s32 \1;" "\n"), None),
    "flash: keys after the end": (
        lambda: compiled.flash_mma(causal=False),
        instead(r"setp\.lt\.s32 \t(%p6\d, .*, %r84);", r"setp.le.s32 \1;" "\n"), None),
    "wgmma: output tile without its swizzle": (
        compiled.matmul_wgmma,
        instead(r"xor\.b32  \t(%r\d+), (%r\d+), %r131;", r"mov.b32 \1, \2;" "\n"), None),
    "wgmma: descriptor of the swizzle of 64 bytes": (
        compiled.matmul_wgmma,
        instead(r"or\.b64  \t(%rd\d+), (%rd\d+), 4611686293305360384;",
                rf"or.b64 \1, \2, {4611686293305360384 ^ 3 << 62};" "\n"), None),
}  # fmt: skip


@pytest.mark.parametrize("name", BUGS)
def test_planted_bug_is_caught(name):
    make, change, fault = BUGS[name]
    launch = make()
    text = change(launch.text)
    if fault is None:
        launch.run(text)
        with pytest.raises(AssertionError, match="Not equal to tolerance"):
            launch.compare()
        return
    with pytest.raises(fault) as caught:
        launch.run(text)
    assert type(caught.value) is fault


def test_each_kind_of_fault_is_planted():
    planted = {fault for _, _, fault in BUGS.values()}
    faults = [kind for kind in vars(ptxemu).values() if isinstance(kind, type)]
    faults = {kind for kind in faults if issubclass(kind, ptxemu.KernelFault)}
    assert planted - {None} == faults - {ptxemu.KernelFault, ptxemu.Trap}
