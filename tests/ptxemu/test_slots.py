"""Registers that share a slot: each read still finds what the last write of that register left."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from sdpakit.ptxemu import linker
from sdpakit.ptxemu.layout import module_data
from sdpakit.ptxemu.ordering import successors
from sdpakit.ptxemu.parser import parse_tree
from sdpakit.ptxemu.program import Address, Negated, Pair, Register, Vector
from sdpakit.ptxemu.slots import share_slots

KERNELS = sorted((Path(__file__).parent / "kernels" / "ptx").glob("*.ptx"))
HEAD = ".version 8.7\n.target sm_90a\n.address_size 64\n"
# Written here anew, so that a mistake in the list of slots.py is found.
READ_ONLY = frozenset(
    {
        "st",
        "red",
        "bar",
        "barrier",
        "bra",
        "brx",
        "cp",
        "fence",
        "membar",
        "prefetch",
        "ret",
        "exit",
        "trap",
        "stmatrix",
        "nanosleep",
        "setmaxnreg",
        "griddepcontrol",
        "discard",
        "applypriority",
        "pmevent",
        "brkpt",
        "tensormap",
    }
)


def programs(text):
    tree = parse_tree(text)
    data = module_data(tree)
    for function in tree.functions:
        if function.is_entry and function.body is not None:
            yield linker.link(tree, data, function)


def link(body):
    registers = ".reg .pred %p<9>; .reg .b32 %r<9>; .reg .f32 %f<9>; .reg .b64 %rd<9>;"
    (program,) = programs(f"{HEAD}.entry k()\n{{ {registers}\n{body}\n}}")
    return program


def flat(operands):
    for operand in operands:
        match operand:
            case Register():
                yield operand
            case Vector():
                yield from flat(operand.items)
            case Address():
                yield from flat((operand.base, *operand.coordinates))
            case Pair():
                yield from flat((operand.first, operand.second))
            case Negated():
                yield from flat((operand.operand,))


def reads_and_writes(ins):
    """Return the registers that an instruction reads, and those that it writes."""
    guard = [] if ins.guard is None else [ins.guard]
    if ins.opcode == "wgmma":
        return [*flat(ins.operands), *guard], list(flat(ins.operands[:1]))
    no_result = ins.opcode in READ_ONLY or not ins.operands or isinstance(ins.operands[0], Address)
    split = 0 if no_result else 1
    return [*flat(ins.operands[split:]), *guard], list(flat(ins.operands[:split]))


def walk(before, after, rng, steps):
    """Run both programs along one random path and compare where the values read come from."""
    own, shared = {}, {}
    block = 0
    for step in range(steps):
        if block == len(before.blocks):
            return
        span = before.blocks[block]
        for at in range(span.start, span.stop):
            old, new = before.instructions[at], after.instructions[at]
            skipped = old.guard is not None and rng.random() < 0.5
            for mine, theirs in zip(*(reads_and_writes(ins)[0] for ins in (old, new)), strict=True):
                origin = own.get(mine.slot)
                assert origin is None or shared[theirs.slot] == origin, f"{old.line}: {old.text}"
            if skipped:
                continue
            for mine, theirs in zip(*(reads_and_writes(ins)[1] for ins in (old, new)), strict=True):
                own[mine.slot] = shared[theirs.slot] = (step, at, mine.slot)
        block = rng.choice(successors(before, block) or [len(before.blocks)])


@pytest.mark.parametrize("path", KERNELS, ids=lambda path: path.stem)
def test_compiled_kernels_read_what_they_wrote_on_random_paths(path):
    for before in programs(path.read_text()):
        after = share_slots(before)
        assert len(after.registers) <= len(before.registers)
        for old, new in zip(before.instructions, after.instructions, strict=True):
            for mine, theirs in zip(flat(old.operands), flat(new.operands), strict=True):
                assert (mine.name, mine.type) == (theirs.name, theirs.type)
                assert after.registers[theirs.slot].storage == mine.type.storage
        rng = random.Random(1)
        for _ in range(8):
            walk(before, after, rng, 100)


def test_a_chain_of_values_needs_two_slots():
    chain = "\n".join(f"add.u32 %r{n + 1}, %r{n}, 1;" for n in range(1, 7))
    program = share_slots(link(f"mov.b32 %r1, 0;\n{chain}\nst.global.b32 [%rd1], %r7;"))
    assert [kind.name for kind in program.registers] == ["b32", "b64", "b32"]


def test_a_result_does_not_take_the_place_of_an_operand_of_its_instruction():
    program = share_slots(link("mov.b32 %r1, 0;\nmov.b32 %r2, 1;\nadd.u32 %r3, %r1, %r2;"))
    assert len(program.registers) == 3


def test_registers_of_one_width_share_whatever_their_type():
    program = share_slots(
        link("mov.b32 %r1, 0;\nst.global.b32 [0], %r1;\nmov.f32 %f1, 0;\nst.global.f32 [0], %f1;")
    )
    assert len(program.registers) == 1
    assert [next(flat(ins.operands)).type.name for ins in program.instructions[::2]] == [
        "b32",
        "f32",
    ]


def slots_of(body):
    """Return the slot of each register of a kernel, by its name."""
    program = share_slots(link(body))
    return {each.name: each.slot for ins in program.instructions for each in flat(ins.operands)}


def test_a_value_that_a_loop_carries_keeps_its_slot():
    slots = slots_of(
        "mov.b32 %r1, 0;\nmov.b32 %r2, 7;\nL: mov.b32 %r3, 1;\nst.global.b32 [0], %r3;\n"
        "mov.b32 %r4, 2;\nst.global.b32 [0], %r4;\nadd.u32 %r1, %r1, %r2;\n"
        "setp.lt.u32 %p1, %r1, 50;\n@%p1 bra L;"
    )
    assert slots["%r3"] == slots["%r4"]
    assert len({slots["%r1"], slots["%r2"], slots["%r3"]}) == 3


def test_a_value_that_a_loop_makes_anew_is_not_carried():
    slots = slots_of(
        "L: mov.b32 %r1, 1;\nbra M;\nM: st.global.b32 [0], %r1;\nmov.b32 %r2, 2;\n"
        "st.global.b32 [0], %r2;\nsetp.lt.u32 %p1, %r2, 50;\n@%p1 bra L;"
    )
    assert slots["%r1"] == slots["%r2"]


def test_a_guarded_write_keeps_the_value_of_before():
    slots = slots_of(
        "mov.b32 %r1, 0;\nsetp.eq.b32 %p1, %r1, 1;\nL: @%p1 mov.b32 %r1, 1;\n"
        "st.global.b32 [0], %r1;\nmov.b32 %r2, 1;\nst.global.b32 [0], %r2;\n@%p1 bra L;"
    )
    assert slots["%r1"] != slots["%r2"]


def test_a_value_made_further_down_in_the_text_is_kept_from_the_start_of_its_block():
    slots = slots_of(
        "bra C;\nA: mov.b32 %r2, 1;\nst.global.b32 [0], %r2;\nst.global.b32 [0], %r1;\nret;\n"
        "C: mov.b32 %r1, 0;\nbra A;"
    )
    assert slots["%r1"] != slots["%r2"]


def test_registers_that_may_be_read_unwritten_share_with_nobody():
    program = share_slots(link("st.global.b32 [0], %r1;\nmov.b32 %r2, 1;\nst.global.b32 [0], %r2;"))
    assert len(program.registers) == 2


def test_registers_of_asynchronous_products_share_with_nobody():
    body = (
        "mov.b32 %r1, 0;\nmov.b64 %rd1, 0;\nmov.f32 %f1, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f1}, {%r1}, %rd1, 1, 1, 1, 0;\n"
        "mov.b32 %r2, 0;\nst.global.b32 [0], %r2;\nmov.b64 %rd2, 0;\nst.global.b64 [0], %rd2;"
    )
    assert len(share_slots(link(body)).registers) == 5


def test_a_program_without_instructions_is_left_alone():
    (program,) = programs(f"{HEAD}.entry k() {{ }}")
    assert share_slots(program) == program
