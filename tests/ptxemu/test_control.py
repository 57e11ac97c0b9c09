"""Branches: lanes part and meet again, loops end when they should, and nobody starves."""

import numpy as np
import pytest
from tests.ptxemu.threads import executions, kernel, line, run

from sdpakit import ptxemu
from sdpakit.ptxemu.machine import Machine
from sdpakit.ptxemu.scheduler import Scheduler

THREADS = np.arange(64)


def test_branches_part_lanes_which_then_meet():
    body = """
    setp.lt.u32 %p1, %r4, 8;
    @%p1 bra LOW;
    setp.lt.u32 %p2, %r4, 16;
    @!%p2 bra HIGH;
    mov.u32 %r9, 200;
    bra MEET;
LOW:
    mov.u32 %r9, 100;
    bra MEET;
HIGH:
    mov.u32 %r9, 300;
MEET:
    add.u32 %r9, %r9, %r4; // together
"""
    out, report = run(body)
    lane = THREADS % 32
    base = np.where(lane < 8, 100, np.where(lane < 16, 200, 300))
    assert (out[0] == base + lane).all()
    assert executions(body, "together", report) == 2


def test_guards_select_lanes():
    body = """
    setp.lt.u32 %p1, %r0, 40;
    @%p1 mov.u32 %r9, 1;
    @!%p1 mov.u32 %r9, 2;
    setp.gt.u32 %p2, %r0, 1000;
    @%p2 mov.u32 %r9, 3;
    @!%p2 add.u32 %r9, %r9, 10;
"""
    out, _ = run(body)
    assert (out[0] == np.where(THREADS < 40, 11, 12)).all()


def test_loops_with_their_own_numbers_of_rounds():
    body = """
    mov.u32 %r10, 0;
LOOP:
    setp.ge.u32 %p1, %r10, %r0;
    @%p1 bra LEFT;
    add.u32 %r9, %r9, %r10;
    add.u32 %r10, %r10, 1; // round
    bra LOOP;
LEFT:
    add.u32 %r9, %r9, 1; // after
"""
    out, report = run(body)
    assert (out[0] == THREADS * (THREADS - 1) // 2 + 1).all()
    assert executions(body, "after", report) == 2
    assert executions(body, "round", report) == 31 + 63  # each warp as often as its last lane


def test_nested_loops_with_their_own_numbers_of_rounds():
    body = """
    mov.u32 %r10, 0;
OUTER:
    mov.u32 %r11, 0; // outer
INNER:
    add.u32 %r9, %r9, 1; // inner
    add.u32 %r11, %r11, 1;
    setp.le.u32 %p1, %r11, %r4;
    @%p1 bra INNER;
    add.u32 %r10, %r10, 1; // between
    and.b32 %r12, %r4, 3;
    setp.le.u32 %p1, %r10, %r12;
    @%p1 bra OUTER;
    add.u32 %r9, %r9, 1000; // after
"""
    out, report = run(body)
    lane = THREADS % 32
    assert (out[0] == (lane + 1) * (lane % 4 + 1) + 1000).all()
    assert executions(body, "after", report) == 2
    assert executions(body, "between", report) == 2 * 4
    assert executions(body, "inner", report) == 2 * 4 * 32


def test_a_rare_case_behind_the_end_is_waited_for():
    # As compilers place what is unlikely: lanes must meet at MEET although RARE stands after it.
    body = """
    setp.eq.u32 %p1, %r4, 5;
    @%p1 bra RARE;
MEET:
    add.u32 %r9, %r9, %r4; // together
    bra STORE;
RARE:
    mov.u32 %r9, 500;
    bra MEET;
"""
    out, report = run(body)
    lane = THREADS % 32
    assert (out[0] == lane + np.where(lane == 5, 500, 0)).all()
    assert executions(body, "together", report) == 2


def test_a_next_round_waits_for_lanes_that_are_late_in_this_one():
    body = """
    mov.u32 %r10, 0;
NEXT:
    add.u32 %r10, %r10, 1; // head
    setp.eq.u32 %p2, %r10, 9;
    @%p2 bra STORE;
    and.b32 %r11, %r4, 1;
    setp.eq.u32 %p1, %r11, 0;
    @%p1 bra NEXT;
    add.u32 %r9, %r9, 1; // odd
    bra NEXT;
"""
    out, report = run(body)
    assert (out[0] == 8 * (THREADS % 2)).all()
    assert executions(body, "head", report) == 2 * 9
    assert executions(body, "odd", report) == 2 * 8


def test_a_table_of_branches():
    body = """
    and.b32 %r10, %r0, 3;
TABLE: .branchtargets ZERO, ONE, STORE, THREE;
    brx.idx %r10, TABLE;
ZERO:
    mov.u32 %r9, 10;
    bra STORE;
ONE:
    mov.u32 %r9, 11;
    bra STORE;
THREE:
    mov.u32 %r9, 13;
"""
    out, _ = run(body)
    assert (out[0] == np.array([10, 11, 0, 13])[THREADS % 4]).all()


def test_a_table_of_branches_that_is_too_short():
    body = """
TABLE: .branchtargets ZERO, STORE;
    brx.idx %r0, TABLE; // here
ZERO:
    mov.u32 %r9, 10;
"""
    with pytest.raises(ptxemu.OutOfBounds, match="index 2 of 2 targets") as caught:
        run(body)
    assert caught.value.thread == 2
    assert caught.value.line == line(kernel(body), "here")


def test_threads_that_end_early_leave_the_rest_alone():
    body = """
    setp.eq.u32 %p1, %r4, 3;
    @%p1 ret;
    setp.eq.u32 %p1, %r4, 4;
    @%p1 exit;
    mov.u32 %r9, 7;
"""
    out, _ = run(body)
    ended = np.isin(THREADS % 32, (3, 4))
    assert (out[0] == np.where(ended, 0xDEAD, 7)).all()


def test_trap_names_its_thread():
    body = """
    setp.eq.u32 %p1, %r3, 70;
    @%p1 trap;
"""
    with pytest.raises(ptxemu.Trap, match="executed trap") as caught:
        run(body, blocks=2)
    assert (caught.value.block, caught.value.thread) == ((1, 0, 0), 6)


# ---- waiting for what others do


def spin_on(flag, value):
    return f"""
SPIN:
    ld.volatile.global.u32 %r20, [%rd1+{4 * flag}];
    setp.ne.u32 %p7, %r20, {value};
    @%p7 bra SPIN;
"""


def test_a_warp_spins_until_a_later_one_sets_a_flag():
    body = f"""
    setp.eq.u32 %p1, %r5, 1;
    @%p1 bra SETS;
    {spin_on(2, 5)}
    mov.u32 %r9, 1;
    bra STORE;
SETS:
    mov.u32 %r10, 0;
WORK:
    add.u32 %r10, %r10, 1;
    setp.lt.u32 %p2, %r10, 100;
    @%p2 bra WORK;
    st.volatile.global.u32 [%rd1+8], 5;
    mov.u32 %r9, 2;
"""
    out, _ = run(body)
    assert (out[0] == np.where(THREADS < 32, 1, 2)).all()


def test_a_block_spins_until_a_later_one_sets_a_flag():
    body = f"""
    setp.eq.u32 %p1, %r1, 2;
    @%p1 st.volatile.global.u32 [%rd1], 1;
    {spin_on(0, 1)}
    setp.eq.u32 %p1, %r1, 1;
    @%p1 st.volatile.global.u32 [%rd1], 2;
    setp.eq.u32 %p1, %r1, 0;
    @!%p1 bra STORE;
SPIN2:
    ld.volatile.global.u32 %r20, [%rd1];
    setp.ne.u32 %p7, %r20, 2;
    @%p7 bra SPIN2;
    mov.u32 %r9, 3;
"""
    out, _ = run(body, blocks=3)
    assert (out == np.array([3, 0, 0])[:, None]).all()


def test_a_lane_spins_until_another_of_its_warp_sets_a_flag():
    body = f"""
    setp.eq.u32 %p1, %r4, 31;
    @%p1 bra SETS;
    {spin_on(0, 1)}
    mov.u32 %r9, 1;
    bra STORE;
SETS:
    st.volatile.global.u32 [%rd1], 1;
    mov.u32 %r9, 2;
"""
    out, _ = run(body, threads=32)
    assert (out[0] == np.where(THREADS[:32] < 31, 1, 2)).all()


def test_a_lock_that_lanes_of_a_warp_take_in_turn():
    body = """
TRY:
    atom.global.cas.b32 %r10, [%rd1], 0, 1;
    setp.ne.u32 %p1, %r10, 0;
    @%p1 bra TRY;
    ld.volatile.global.u32 %r9, [%rd1+4];
    add.u32 %r11, %r9, 1;
    st.volatile.global.u32 [%rd1+4], %r11;
    membar.gl;
    atom.global.exch.b32 %r10, [%rd1], 0;
"""
    out, _ = run(body)
    assert sorted(out[0].tolist()) == list(range(64))


def test_a_warp_spins_until_another_has_what_it_copied():
    # The copy lands only when somebody has waited long enough, be it by spinning.
    body = f"""
    .shared .align 16 .b8 object[16];
    mov.u32 %r21, memory;
    mov.u32 %r22, object;
    setp.eq.u32 %p1, %r0, 0;
    @%p1 mbarrier.init.shared.b64 [%r22], 1;
    bar.sync 0;
    setp.ne.u32 %p2, %r0, 0;
    @%p2 bra OTHERS;
    mbarrier.arrive.expect_tx.shared.b64 _, [%r22], 32;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r21], [%rd1], 32, [%r22];
TRY:
    mbarrier.try_wait.parity.shared.b64 %p3, [%r22], 0;
    @!%p3 bra TRY;
    ld.shared.u32 %r9, [%r21+8];
    st.volatile.global.u32 [%rd1], 1;
    bra STORE;
OTHERS:
    setp.lt.u32 %p2, %r5, 1;
    @%p2 bra STORE;
    {spin_on(0, 1)}
    mov.u32 %r9, 4;
"""
    out, _ = run(body)
    assert (out[0] == np.where(THREADS < 32, 0, 4)).all()


def test_a_loop_without_end_is_found():
    text = kernel("FOREVER:\n    bra FOREVER;\n")
    program = ptxemu.parse(text).program("kernel")
    out = np.zeros(64, np.uint32)
    with pytest.raises(ptxemu.Trap, match="ran 1000 blocks of instructions") as caught:
        ptxemu.launch(program, 1, 64, [out, out], limit=1000)
    assert caught.value.line == line(text, "bra FOREVER")


def test_counters_count_warps_and_threads():
    body = """
    setp.lt.u32 %p1, %r0, 8;
    @%p1 bra STORE;
    mov.u32 %r9, 1; // some
"""
    out, report = run(body, threads=48, blocks=2)
    assert (out == (np.arange(48) >= 8)).all()
    counters = report.counters
    assert executions(body, "some", report) == 4
    assert counters.by_opcode["bra"] == 4
    assert counters.by_opcode["st"] == 4
    assert counters.warp_instructions == sum(counters.by_line.values())
    everybody = (counters.warp_instructions - 4) // 4 * 96
    assert counters.thread_instructions == everybody + 2 * 40


def test_an_error_of_the_emulator_says_where_it_was(monkeypatch):
    def special(machine, name, lanes):
        raise KeyError(name)

    monkeypatch.setattr(Machine, "special", special)
    with pytest.raises(KeyError) as caught:
        run("    mov.u32 %r9, 1;\n")
    first = line(kernel(""), "%tid.x")
    assert caught.value.__notes__ == [f"at PTX line {first}: mov.u32 %r0, %tid.x"]


def test_steps_of_a_program_are_built_before_anything_runs():
    text = kernel(
        "    mov.u32 %r9, 1;\n    tex.1d.v4.f32.s32 {%r1, %r2, %r3, %r4}, [%rd1, {%r5}];\n"
    )
    with pytest.raises(ptxemu.UnsupportedInstruction, match="opcode 'tex'"):
        Scheduler(ptxemu.parse(text).program("kernel"))
