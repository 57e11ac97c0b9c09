"""Bank conflicts, sectors and instructions are those that can be counted by hand."""

import numpy as np
import pytest
from tests.ptxemu.texts import POINTERS, START, kernel

from sdpakit import ptxemu


def profiled(body, *, threads=32, words=4096, profile=True):
    ptx = kernel(POINTERS, START + body, module=".extern .shared .align 16 .b8 tile[];")
    arrays = [np.zeros(words, np.uint32), np.zeros(words, np.uint32)]
    options = {"shared": 65536, "profile": profile}
    checks = ptxemu.Checks(race=False)
    return ptxemu.launch(ptx, 1, threads, arrays, checks=checks, **options).counters


def shared_store(factor, width=4):
    what = {4: "%r2", 8: "%rd8", 16: "{%rd8, %rd9}"}[width]
    form = {4: "u32", 8: "u64", 16: "v2.u64"}[width]
    return f"""mov.u32 %r3, tile; mad.lo.u32 %r1, %r0, {factor}, %r3; mov.u32 %r2, 1;
      mov.u64 %rd8, 1; mov.u64 %rd9, 1; st.shared.{form} [%r1], {what};"""


@pytest.mark.parametrize(
    ("stride", "width", "wavefronts", "ideal"),
    [
        (4, 4, 1, 1),
        (8, 4, 2, 1),
        (16, 4, 4, 1),
        (128, 4, 32, 1),
        (132, 4, 1, 1),
        (0, 4, 1, 1),  # all lanes in one word
        (8, 8, 2, 2),
        (16, 8, 4, 2),
        (136, 8, 2, 2),
        (16, 16, 4, 4),
        (128, 16, 32, 4),
        (144, 16, 4, 4),
    ],
)
def test_wavefronts_of_a_stride(stride, width, wavefronts, ideal):
    counters = profiled(shared_store(stride, width))
    assert counters.shared_requests == 1
    assert counters.shared_wavefronts == wavefronts
    assert counters.shared_wavefronts_ideal == ideal
    assert counters.bank_conflicts == wavefronts - ideal


def test_warps_are_counted_apart():
    counters = profiled(shared_store(8), threads=80)
    assert counters.shared_requests == 3
    assert counters.shared_wavefronts == 2 + 2 + 1
    assert counters.shared_wavefronts_ideal == 3


def test_bytes_of_one_word_do_not_conflict():
    body = "mov.u32 %r1, tile; add.u32 %r1, %r1, %r0; st.shared.u8 [%r1], 1;"
    assert profiled(body).shared_wavefronts == 1


@pytest.mark.parametrize(
    ("stride", "sectors", "use"),
    [(4, 4, 1.0), (8, 8, 0.5), (32, 32, 0.125), (0, 1, 4.0), (128, 32, 0.125)],
)
def test_sectors_of_a_stride(stride, sectors, use):
    body = f"mul.wide.u32 %rd2, %r0, {stride}; add.u64 %rd2, %rd0, %rd2; ld.global.u32 %r1, [%rd2];"
    counters = profiled(body)
    assert counters.global_requests == 1
    assert counters.global_sectors == sectors
    assert counters.global_bytes == 128
    assert counters.sector_use == use


def test_sectors_are_those_of_each_warp():
    body = "ld.global.u32 %r1, [%rd0]; red.global.add.u32 [%rd1], 1;"
    counters = profiled(body, threads=96)
    assert counters.global_requests == 6
    assert counters.global_sectors == 6


def test_nothing_is_counted_of_memory_without_profile():
    body = shared_store(8) + "ld.global.u32 %r1, [%rd0];"
    counters = profiled(body, profile=False)
    assert counters.shared_requests == counters.global_requests == 0
    assert counters.by_opcode["st"] == 1
    assert profiled(body).by_opcode == counters.by_opcode


def test_instructions_are_counted_by_line_and_opcode():
    ptx = kernel("", "mov.u32 %r1, 5;\nadd.u32 %r1, %r1, %r1;\nadd.u32 %r1, %r1, %r1;")
    report = ptxemu.launch(ptx, 3, 40, [])
    counters = report.counters
    assert counters.by_opcode == {"mov": 6, "add": 12, "ret": 6}
    assert counters.warp_instructions == 24
    assert counters.thread_instructions == 480
    assert sorted(counters.by_line.values()) == [6, 6, 6, 6]
    summary = report.summary(lines=2)
    assert summary.startswith("k (sm_90a): 24 warp instructions, 480 thread instructions")
    assert "6 x line" in summary
