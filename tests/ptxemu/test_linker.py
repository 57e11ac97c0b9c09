"""What the linker of PTX makes of a module: names, blocks, memory, inlined calls."""

from __future__ import annotations

import struct
from itertools import pairwise
from pathlib import Path

import pytest

from sdpakit.ptxemu import flattening, linker
from sdpakit.ptxemu.errors import LaunchError, PtxSyntaxError, UnsupportedInstruction
from sdpakit.ptxemu.layout import module_data
from sdpakit.ptxemu.module import parse
from sdpakit.ptxemu.parser import parse_tree
from sdpakit.ptxemu.program import (
    Address,
    Block,
    Immediate,
    Instruction,
    Negated,
    Pair,
    Register,
    Relocation,
    Special,
    Symbol,
    Target,
    Vector,
)
from sdpakit.ptxemu.registry import ends_block

HEAD = ".version 8.7\n.target sm_90a\n.address_size 64\n"
REGISTERS = ".reg .pred %p<4>; .reg .b32 %r<4>; .reg .b64 %rd<4>;\n"
KERNELS = sorted((Path(__file__).parent / "kernels" / "ptx").glob("*.ptx"))


def link(body, before="", parameters=""):
    """Link a kernel of which each register has a slot of its own."""
    tree = parse_tree(f"{HEAD}{before}.entry k({parameters})\n{{\n{REGISTERS}{body}\n}}\n")
    return linker.link(tree, module_data(tree), tree.functions[-1])


def written(program):
    """Return instructions as short lines: registers with their slots, targets with their blocks."""
    return [_line(ins) for ins in program.instructions]


def _line(ins: Instruction) -> str:
    guard = f"@{'!' if ins.guard_negated else ''}{ins.guard.name} " if ins.guard else ""
    operands = ", ".join(map(_operand, ins.operands))
    return f"{guard}{'.'.join((ins.opcode, *ins.modifiers))} {operands}".strip()


def _operand(operand):
    match operand:
        case Register():
            return f"{operand.name}#{operand.slot}"
        case Immediate():
            return str(operand.value)
        case Symbol():
            return f"{operand.space}:{operand.offset}"
        case Address():
            return f"[{_operand(operand.base)}+{operand.offset}]"
        case Vector():
            return "{" + " ".join(map(_operand, operand.items)) + "}"
        case Target():
            return f"->{operand.block}"
    return str(operand)


# ------------------------------------------------------------------------------------------- blocks


def test_blocks_end_at_branches_and_begin_at_their_targets():
    program = link(
        "mov.b32 %r1, 0;\nL: add.u32 %r1, %r1, 1;\nsetp.lt.u32 %p1, %r1, 5;\n@%p1 bra L;\nret;"
    )
    assert program.blocks == (Block(0, 1), Block(1, 4), Block(4, 5))
    assert program.instructions[3].operands == (Target(1, "L"),)


def test_labels_that_nobody_jumps_to_cut_nothing():
    assert link("A: mov.b32 %r1, 0;\nB: mov.b32 %r2, 0;\nret;").blocks == (Block(0, 3),)


def test_a_label_behind_the_last_instruction_is_the_end():
    program = link("bra E;\nmov.b32 %r1, 0;\nE:")
    assert program.instructions[0].operands == (Target(2, "E"),)
    assert program.blocks == (Block(0, 1), Block(1, 2))


def test_waiting_instructions_end_their_block():
    program = link(
        "bar.sync 0;\nmbarrier.try_wait.b64 %p1, [%r1], %rd1;\nmbarrier.init.b64 [%r1], 1;\nret;"
    )
    assert program.blocks == (Block(0, 1), Block(1, 2), Block(2, 4))


def test_an_empty_kernel_has_no_blocks():
    program = parse(f"{HEAD}.entry k() {{ }}").program()
    assert (program.blocks, program.instructions) == ((), ())


def test_a_branch_by_index_has_the_index_and_its_targets():
    program = link("ts: .branchtargets A, B, A;\nbrx.idx %r1, ts;\nA: ret;\nB: ret;")
    index, targets = program.instructions[0].operands
    assert isinstance(index, Register)
    assert targets == Vector((Target(1, "A"), Target(2, "B"), Target(1, "A")))


# -------------------------------------------------------------------------------------------- names


def test_registers_get_slots_in_the_order_of_their_use():
    program = link("mov.b32 %r3, %r1;\nmov.b64 %rd2, 0;")
    assert written(program) == ["mov.b32 %r3#0, %r1#1", "mov.b64 %rd2#2, 0"]
    assert [kind.name for kind in program.registers] == ["b32", "b32", "b64"]


def test_an_inner_scope_hides_and_is_left_again():
    program = link(
        "mov.b32 %r1, 1;\n{ .reg .f32 %r1; mov.f32 %r1, %r2; bra D; D: }\n"
        "{ .reg .f64 %r1; mov.f64 %r1, 2; bra D; D: }\nmov.b32 %r1, 3;"
    )
    lines = written(program)
    assert lines[0] == "mov.b32 %r1#0, 1"
    assert lines[1] == "mov.f32 %r1#1, %r2#2"
    assert lines[2:5:2] == ["bra ->1", "bra ->2"]
    assert lines[3] == "mov.f64 %r1#3, 2"
    assert lines[5] == "mov.b32 %r1#0, 3"


def test_vector_registers_are_their_components():
    program = link(
        ".reg .v2 .f32 v;\nmov.f32 v.y, v.x;\nld.global.v2.f32 v, [%rd1];\nmov.f32 v.g, 0;"
    )
    assert written(program) == [
        "mov.f32 v.y#1, v.x#0",
        "ld.global.v2.f32 {v.x#0 v.y#1}, [%rd1#2+0]",
        "mov.f32 v.y#1, 0",
    ]


def test_special_registers_negations_and_pairs():
    program = link("mov.u32 %r1, %tid.x;\nsetp.eq.and.b32 %p1|%p2, %r1, %laneid, !%p3;")
    assert program.instructions[0].operands[1] == Special("%tid.x")
    pair, _, lane, negated = program.instructions[1].operands
    assert isinstance(pair, Pair)
    assert lane == Special("%laneid")
    assert isinstance(negated, Negated)


def test_special_vectors_have_four_components():
    program = link("mov.u32 %r1, %ntid.w;\nmov.v4.u32 {%r0, %r1, %r2, %r3}, %ctaid;")
    assert program.instructions[0].operands[1] == Immediate(0)
    axes = [Special(f"%ctaid.{axis}") for axis in "xyz"]
    assert program.instructions[1].operands[1] == Vector((*axes, Immediate(0)))


def test_offsets_are_of_registers_but_in_symbols():
    program = link(
        "ld.global.b32 %r1, [%rd1+-4];\nld.shared.b32 %r1, [s+8];\nmov.b32 %r2, s[2];\n"
        "mov.b32 %r2, s+2;\nld.shared.b32 %r1, [64];",
        before=".shared .b32 pad[4];\n.shared .b32 s[8];\n",
    )
    assert written(program)[0] == "ld.global.b32 %r1#0, [%rd1#1+-4]"
    assert [line.split(", ")[1] for line in written(program)[1:]] == [
        "[shared:8+0]",
        "shared:8",
        "shared:2",
        "[64+0]",
    ]


@pytest.mark.parametrize(
    ("body", "line", "column", "message"),
    [
        ("mov.u32 %r9, 1;", 7, 9, "'%r9' is not declared; expected a register"),
        ("mov.u32 %r1, %tid.xy;", 7, 14, "expected %tid.x, %tid.y or %tid.z"),
        ("mov.u32 %r1, %laneid.x;", 7, 14, "'%laneid' is not declared"),
        ("bra L;\nLoop: ret;", 7, 5, "no label 'L' is in reach"),
        ("bra Lop;\nLoop: ret;", 7, 5, "there is 'Loop'"),
        ("{ L: ret; }\nbra L;", 8, 5, "no label 'L' is in reach"),
        ("bra 5;", 7, 1, "expected a label after 'bra'"),
        ("L: brx.idx %r1, L;", 7, 17, "expected the name of '.branchtargets', found 'L'"),
        ("L: ret; L: ret;", 7, 9, "the label 'L' is there twice"),
        (".reg .b32 %r1;", 7, 6, "'%r1' is declared twice in one scope"),
        ("@%r1 ret;", 7, 2, "the guard '%r1' is no predicate register"),
        ("mov.b32 %r1, %r2+4;", 7, 14, "an offset behind '%r2', which is no variable"),
        (".reg .v2 .f32 v; mov.f32 v.z, 0;", 7, 26, "'v' has no component .z"),
        ("mov.b32 %r1.x, 0;", 7, 9, "'%r1' has no component .x"),
        ("call 5;", 7, 1, "expected the name of a function after 'call'"),
    ],
)
def test_names_that_do_not_fit(body, line, column, message):
    with pytest.raises(PtxSyntaxError) as caught:
        link(body)
    assert str(caught.value).startswith(f"PTX line {line}, column {column}: ")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("before", "body", "message"),
    [
        ("", ".reg .b128 q;\nmov.b128 q, q;", "'q' is a register of type .b128"),
        ("", "mov.u64 %rd1, k;", "'k' is a function; the emulator has no pointers to functions"),
        (
            ".func f();\n.global .u64 t[2] = {0, f};\n",
            "mov.b64 %rd1, t;",
            "holds the address of 'f'",
        ),
        (".extern .global .u32 g;\n", "mov.u64 %rd1, g;", "'g' is defined in another module"),
    ],
)
def test_what_the_emulator_does_not_have(before, body, message):
    with pytest.raises(UnsupportedInstruction, match="PTX line") as caught:
        link(body, before=before)
    assert message in str(caught.value)


def test_what_is_not_used_need_not_be_there():
    link("ret;", before=".extern .func f();\n.global .u64 table[2] = {0, f};\n")


def test_what_is_declared_first_and_defined_later_is_there():
    program = link(
        "mov.u64 %rd1, g;", before=".extern .global .u32 g;\n.visible .global .u32 g = 7;\n"
    )
    assert program.instructions[0].operands[1] == Symbol("g", "global", 0)


# ------------------------------------------------------------------------------------------- memory


def test_parameters_are_placed_as_drivers_place_them():
    program = link(
        "ld.param.f32 %r1, [c+0];",
        parameters=".param .u8 a, .param .u64 b, .param .f32 c, .param .align 64 .b8 m[128]",
    )
    assert [(p.name, p.offset, p.size) for p in program.parameters] == [
        ("a", 0, 1),
        ("b", 8, 8),
        ("c", 16, 4),
        ("m", 64, 128),
    ]
    assert [p.type and p.type.name for p in program.parameters] == ["u8", "u64", "f32", None]
    assert program.parameter_bytes == 192
    assert written(program) == ["ld.param.f32 %r1#0, [param:16+0]"]


def test_shared_variables_that_are_not_used_take_no_room():
    program = link(
        ".shared .align 8 .b8 own[12];\nmov.u32 %r1, b;\nmov.u32 %r1, own;",
        before=".shared .b8 a[100];\n.shared .align 16 .b8 b[20];\n",
    )
    assert (program.static_shared, program.dynamic_shared_start) == (36, 1024)
    assert [_operand(ins.operands[1]) for ins in program.instructions] == ["shared:0", "shared:24"]


def test_dynamic_shared_memory_begins_behind_the_static():
    extern = ".extern .shared .align 2048 .b8 d[];\n.extern .shared .b32 e[];\n"
    program = link(
        "mov.u32 %r1, s;\nmov.u32 %r1, d;\nmov.u32 %r1, e;", before=extern + ".shared .b8 s[3];\n"
    )
    assert (program.static_shared, program.dynamic_shared_start) == (3, 2048)
    assert [_operand(ins.operands[1]) for ins in program.instructions] == [
        "shared:0",
        "shared:2048",
        "shared:2048",
    ]


def test_dynamic_shared_memory_alone_begins_at_0():
    program = link("mov.u32 %r1, d;", before=".extern .shared .align 16 .b8 d[];\n")
    assert (program.static_shared, program.dynamic_shared_start) == (0, 0)


def test_local_variables_are_bytes_of_a_frame():
    program = link(".local .align 16 .b8 a[20];\n.local .b64 b;\nst.local.b64 [b], %rd1;")
    assert program.local_bytes == 32
    assert written(program) == ["st.local.b64 [local:24+0], %rd1#0"]


def test_data_of_the_module_is_filled_with_red_zones_between():
    program = link(
        "mov.u64 %rd1, f;",
        before=".const .align 4 .b8 c[4] = {1, 2, 255};\n.global .f32 f[3] = {1.5, 0f3F800000};\n"
        ".global .f16 h = 2.0;\n.global .bf16 b = 1.0;\n.global .f64 d = 3;\n"
        ".global .s16 i = -2;\n",
    )
    (c, f, h, b, d, i) = ranges = program.data_ranges
    assert program.constant_ranges == (c,)
    assert all(stop + 32 <= start for (_, stop), (start, _) in pairwise(ranges))
    assert all(start % 8 == 0 for start, _ in (d,))
    parts = [program.data[start:stop] for start, stop in ranges]
    assert parts == [
        b"\1\2\xff\0",
        struct.pack("<3f", 1.5, 1.0, 0.0),
        struct.pack("<e", 2.0),
        b"\x80\x3f",
        struct.pack("<d", 3.0),
        b"\xfe\xff",
    ]
    assert (h[1] - h[0], b[1] - b[0], i[1] - i[0]) == (2, 2, 2)
    assert program.instructions[0].operands[1] == Symbol("f", "global", f[0])


def test_addresses_in_data_are_relocated_later():
    program = link(
        "ret;", before=".global .b8 s[8];\n.global .u64 p[2] = {generic(s), generic(s)+4};\n"
    )
    (_, (start, _)) = program.data_ranges
    assert program.relocations == (
        Relocation(start, Symbol("s", "global", 0)),
        Relocation(start + 8, Symbol("s", "global", 4)),
    )


@pytest.mark.parametrize(
    ("before", "message"),
    [
        (".global .u32 c = 5.0;\n", "a float is no u32; expected an integer"),
        (".global .u64 p = q;\n", "'q' is no address of 8 bytes known here"),
        (".global .u32 q; .global .u32 p = q;\n", "'q' is no address of 8 bytes known here"),
    ],
)
def test_initial_values_that_do_not_fit(before, message):
    with pytest.raises(PtxSyntaxError, match=message):
        link("ret;", before=before)


# -------------------------------------------------------------------------------------------- calls


def test_a_call_shares_the_memory_of_its_parameters():
    function = (
        ".func (.param .b32 out) twice(.param .align 4 .b8 x[8])\n{ .reg .b32 %r<3>; "
        "ld.param.b32 %r1, [x+4]; add.u32 %r2, %r1, %r1; st.param.b32 [out+0], %r2; ret; }\n"
    )
    program = link(
        "{ .param .align 4 .b8 p[8]; st.param.b32 [p+4], 5; .param .b32 q; "
        "call.uni (q), twice, (p); ld.param.b32 %r1, [q+0]; }\nret;",
        before=function,
    )
    assert written(program) == [
        "st.local.b32 [local:4+0], 5",
        "ld.local.b32 %r1#0, [local:4+0]",
        "add.u32 %r2#1, %r1#0, %r1#0",
        "st.local.b32 [local:8+0], %r2#1",
        "ld.local.b32 %r1#2, [local:8+0]",
        "ret",
    ]
    assert program.local_bytes == 12
    assert [ins.line for ins in program.instructions] == [9, 5, 5, 5, 9, 10]


def test_a_call_moves_registers_and_numbers():
    function = (
        ".func (.reg .f32 out) g(.reg .f32 x, .reg .u32 n, .param .b32 m)\n"
        "{ .reg .b32 a; ld.param.b32 a, [m]; mov.f32 out, x; ret; }\n"
    )
    program = link("call (%r1), g, (%r2, 7, %r3);\nret;", before=function)
    assert written(program) == [
        "mov.f32 x#0, %r2#1",
        "mov.u32 n#2, 7",
        "st.local.b32 [local:0+0], %r3#3",
        "ld.local.b32 a#6, [local:0+0]",
        "mov.f32 out#5, x#0",
        "mov.f32 %r1#4, out#5",
        "ret",
    ]


def test_calls_between_memory_and_registers():
    function = ".func (.reg .b32 out) g(.reg .b32 x)\n{ mov.b32 out, x; ret; }\n"
    program = link(
        "{ .param .b32 p; .param .b32 q; call (q), g, (p); call (_), g, (p); }\nret;",
        before=function,
    )
    assert written(program) == [
        "ld.local.b32 x#0, [local:0+0]",
        "mov.b32 out#1, x#0",
        "st.local.b32 [local:4+0], out#1",
        "ld.local.b32 x#2, [local:0+0]",
        "mov.b32 out#3, x#2",
        "ret",
    ]


def test_returns_of_a_function_go_to_its_end_and_each_call_has_its_own_labels():
    function = (
        ".func g(.reg .pred p)\n{ .reg .b32 a; @p ret; L: mov.b32 a, 0; @!p bra L; ret.uni; }\n"
    )
    program = link("call g, (%p1);\ncall.uni g, (%p1);\nret;", before=function)
    assert written(program) == [
        "mov.pred p#0, %p1#1",
        "@p bra ->2",
        "mov.b32 a#2, 0",
        "@!p bra ->1",
        "mov.pred p#3, %p1#1",
        "@p bra ->4",
        "mov.b32 a#4, 0",
        "@!p bra ->3",
        "ret",
    ]


def test_a_guarded_call_is_jumped_over():
    program = link("@%p1 call g;\nret;", before=".func g() { exit; ret; }\n")
    assert written(program) == ["@!%p1 bra ->2", "exit", "ret"]


def test_shared_variables_of_functions_are_one_for_all_calls():
    function = (
        ".func g() { .shared .b32 s; .local .b32 l; .reg .b32 a; mov.b32 a, s; mov.b32 a, l; }\n"
    )
    program = link("call g;\ncall g;\nret;", before=function)
    assert [_operand(ins.operands[1]) for ins in program.instructions[:-1]] == [
        "shared:0",
        "local:0",
        "shared:0",
        "local:4",
    ]
    assert program.static_shared == 4


def test_functions_may_call_functions_and_have_aliases():
    program = link(
        "call h;\nret;",
        before=".func f();\n.func g() { call f; }\n.func f() { trap; }\n.alias h, g;\n",
    )
    assert written(program) == ["trap", "ret"]


def test_a_failed_assert_traps():
    declared = ".extern .func __assertfail(.param .b64 a);\n"
    program = link("{ .param .b64 p; call.uni __assertfail, (p); }\nret;", before=declared)
    assert written(program) == ["trap", "ret"]
    assert program.instructions[0].text == "call.uni __assertfail, (p)"


@pytest.mark.parametrize(
    ("before", "body", "message"),
    [
        (".extern .func f();\n", "call f;", "'f' has no body here; calls out of the module"),
        ("", "call %rd1, (%r1);", "'%rd1' is no function of this module; indirect calls"),
        (
            ".func g();\n.func f() { call g; }\n.func g() { call f; }\n",
            "call f;",
            "a function calls itself (f -> g -> f); recursion",
        ),
    ],
)
def test_calls_that_cannot_be_inlined(before, body, message):
    with pytest.raises(UnsupportedInstruction, match="PTX line") as caught:
        link(body, before=before)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("call f, (%r1);", "1 arguments and 0 results; expected 2 and 0, as 'f' has them"),
        ("call (5), g;", "expected a register, a variable or '_' for a result"),
        ("{ .param .b64 p; call f, (p, 1); }", "'p' has 8 bytes; expected 4"),
    ],
)
def test_arguments_that_do_not_fit(body, message):
    with pytest.raises(PtxSyntaxError, match="PTX line 8, column") as caught:
        link(
            body, before=".func f(.param .b32 a, .reg .b32 b) { ret; } .func (.reg .b32 r) g() {}\n"
        )
    assert message in str(caught.value)


# ------------------------------------------------------------------------------------------ modules


def test_calls_of_calls_have_an_end(monkeypatch):
    monkeypatch.setattr(flattening, "MOST_INSTRUCTIONS", 100)
    functions = ".func f0() { trap; }\n" + "".join(
        f".func f{n + 1}() {{ call f{n}; call f{n}; }}\n" for n in range(7)
    )
    assert len(link("call f6;", before=functions).instructions) == 64
    with pytest.raises(UnsupportedInstruction, match="over 100 instructions, calls inlined"):
        link("call f7;", before=functions)


def test_a_module_gives_each_program_once():
    module = parse(f"{HEAD}.entry a() {{ ret; }}\n.func f() {{ }}\n.entry b() {{ }}")
    assert module.entries == ("a", "b")
    assert module.target == "sm_90a"
    assert module.program("a") is module.program("a")
    assert module.program("b").name == "b"


@pytest.mark.parametrize(
    ("entries", "name", "message"),
    [
        (("a", "b"), None, "the module has 2 entries, so give the name of one: a, b"),
        ((), None, "the module has 0 entries, so give the name of one: there is none"),
        (("a",), "c", "the module has no entry 'c'; it has a"),
    ],
)
def test_an_entry_that_is_not_there(entries, name, message):
    module = parse(HEAD + "".join(f".entry {each}() {{ ret; }}\n" for each in entries))
    with pytest.raises(LaunchError, match=message):
        module.program(name)


@pytest.mark.parametrize("path", KERNELS, ids=lambda path: path.stem)
def test_what_compilers_emit_is_linked(path):
    module = parse(path.read_text())
    assert module.entries
    for name in module.entries:
        program = module.program(name)
        _check_blocks(program)
        assert max(_slots(program)) < len(program.registers)


def _check_blocks(program):
    starts = [block.start for block in program.blocks]
    assert [0, *(block.stop for block in program.blocks)] == [*starts, len(program.instructions)]
    last = {block.stop - 1 for block in program.blocks}
    for index, ins in enumerate(program.instructions):
        assert index in last or not ends_block(ins.opcode, ins.modifiers)
        for target in _flat(ins.operands):
            assert not isinstance(target, Target) or 0 <= target.block <= len(program.blocks)


def _slots(program):
    for ins in program.instructions:
        yield from (each.slot for each in _flat(ins.operands) if isinstance(each, Register))


def _flat(operands):
    for operand in operands:
        match operand:
            case Vector():
                yield from _flat(operand.items)
            case Address():
                yield from _flat((operand.base, *operand.coordinates))
            case Pair():
                yield from _flat((operand.first, operand.second))
            case Negated():
                yield from _flat((operand.operand,))
            case _:
                yield operand
