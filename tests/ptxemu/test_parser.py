"""What the parser of PTX makes of text, and where it says that something is wrong."""

from __future__ import annotations

import struct

import pytest

from sdpakit.ptxemu.errors import PtxSyntaxError
from sdpakit.ptxemu.expressions import constant, operand
from sdpakit.ptxemu.lexer import Position, TokenStream
from sdpakit.ptxemu.parser import parse_tree
from sdpakit.ptxemu.program import FloatImmediate, Immediate, Limits, Sink
from sdpakit.ptxemu.syntax import (
    Body,
    Both,
    Braces,
    Brackets,
    Code,
    Label,
    Not,
    Parentheses,
    Reference,
    Registers,
    TargetList,
    Variable,
)

HEAD = ".version 8.7\n.target sm_90a\n.address_size 64\n"


def body_of(text, head=HEAD):
    tree = parse_tree(f"{head}.visible .entry k()\n{{\n{text}\n}}\n")
    return tree.functions[-1].body.statements


def code_of(text):
    (found,) = body_of(text)
    assert isinstance(found, Code)
    return found


def parse_operand(text):
    stream = TokenStream(text)
    found = operand(stream)
    assert stream.next.kind == "end"
    return found


def name(text, **parts):
    """Return a matcher of references that does not look at positions."""
    found = parse_operand(text)
    assert isinstance(found, Reference)
    return (found.name, found.component, found.offset, found.element) == (
        parts.get("name", text),
        parts.get("component", ""),
        parts.get("offset", 0),
        parts.get("element", 0),
    )


# ------------------------------------------------------------------------------------------- tokens


def test_tokens_know_their_place_behind_comments_of_several_lines():
    stream = TokenStream("a /* one\n two */ b // rest\n\tc")
    found = []
    while stream.next.kind != "end":
        found.append((stream.next.text, stream.take().at))
    assert found == [("a", (1, 1)), ("b", (2, 9)), ("c", (3, 2))]


def test_modifiers_may_begin_with_a_digit_and_have_colons():
    code = code_of("cp.async.bulk.tensor.2d.shared::cta.mbarrier::complete_tx::bytes;")
    assert code.opcode == "cp"
    assert code.modifiers[3:] == ("2d", "shared::cta", "mbarrier::complete_tx::bytes")


def test_a_null_at_the_end_of_the_text_is_no_part_of_it():
    assert parse_tree(HEAD + "\0\0").target == "sm_90a"


# ----------------------------------------------------------------------------------------- literals


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("17", 17),
        ("0", 0),
        ("0x1fU", 31),
        ("0b101", 5),
        ("017", 15),
        ("42U", 42),
        ("-3", -3),
        ("~0", -1),
        ("(1+2)*4-6/4", 11),
        ("-7/2", -3),
        ("-7 % 2", -1),
        ("1<<4|3", 19),
        ("WARP_SZ-1", 31),
        ("!5 || 2 && 1", 1),
        ("7 >= 7", 1),
        ("6^3&2", 4),
        ("-16>>2", -4),
    ],
)
def test_constants_are_those_of_c(text, value):
    stream = TokenStream(text)
    assert constant(stream) == value
    assert stream.next.kind == "end"


@pytest.mark.parametrize(
    ("text", "value", "bits", "width"),
    [
        ("0f3F800000", 1.0, 0x3F800000, 32),
        ("0FBF800000", -1.0, 0xBF800000, 32),
        ("-0f3F800000", -1.0, 0xBF800000, 32),
        ("0d4000000000000000", 2.0, 0x4000000000000000, 64),
        ("1.5", 1.5, None, 64),
        ("-2.", -2.0, None, 64),
        ("25e-1", 2.5, None, 64),
        (".25", 0.25, None, 64),
        ("-.5", -0.5, None, 64),
    ],
)
def test_floats_keep_the_bits_that_were_written(text, value, bits, width):
    assert parse_operand(text) == FloatImmediate(value, bits, width)


def test_a_float_that_is_no_number_keeps_its_payload():
    found = parse_operand("0f7FC0DEAD")
    assert isinstance(found, FloatImmediate)
    assert found.bits == 0x7FC0DEAD
    assert struct.pack("<f", found.value) == struct.pack("<f", float("nan")) or found.value != 1


# ----------------------------------------------------------------------------------------- operands


def test_names_have_components_offsets_and_indices():
    assert name("%r1")
    assert name("$L__BB0_1")
    assert name("%tid.x", name="%tid", component="x")
    assert name("v.w", name="v", component="w")
    assert name("table+8", name="table", offset=8)
    assert name("table + 8 - 2*2", name="table", offset=4)
    assert name("table[3]", name="table", element=3)


@pytest.mark.parametrize(
    ("text", "offset"),
    [
        ("[%rd1]", 0),
        ("[%rd1+16]", 16),
        ("[%rd1+-16]", -16),
        ("[%rd1-16]", -16),
        ("[%rd1 + 4 + 4]", 8),
        ("[%rd1+0x10]", 16),
    ],
)
def test_addresses_have_offsets(text, offset):
    found = parse_operand(text)
    assert isinstance(found, Brackets)
    assert isinstance(found.base, Reference)
    assert (found.base.name, found.base.offset, found.coordinates) == ("%rd1", offset, ())


def test_an_address_may_be_a_number():
    assert parse_operand("[0x20+4]") == Brackets(Immediate(36))


def test_addresses_of_tensor_copies_have_coordinates():
    found = parse_operand("[%rd1, {%r1, 0, -2}]")
    assert isinstance(found, Brackets)
    first, *rest = found.coordinates
    assert isinstance(first, Reference)
    assert rest == [Immediate(0), Immediate(-2)]


def test_vectors_pairs_negations_and_sinks():
    vector = parse_operand("{%r1, _, 3, 0f00000000}")
    assert isinstance(vector, Braces)
    assert vector.items[1:] == (Sink(), Immediate(3), FloatImmediate(0.0, 0, 32))
    pair = parse_operand("%r1|%p2")
    assert isinstance(pair, Both)
    assert isinstance(parse_operand("_|%p1"), Both)
    assert isinstance(parse_operand("!%p1"), Not)


# ------------------------------------------------------------------------------------- instructions


def test_an_instruction_keeps_its_text_line_and_guard():
    code = code_of("  @!%p1   add.s32\n\t%r1,  %r2, // half\n 5 ;")
    assert code.text == "@!%p1 add.s32 %r1, %r2, 5"
    assert code.at == Position(6, 3)
    assert code.guard is not None
    assert (code.guard.name, code.guard_negated) == ("%p1", True)


def test_an_instruction_may_have_no_operands():
    assert code_of("ret.uni;") == Code("ret", ("uni",), (), None, False, Position(6, 1), "ret.uni")


def test_calls_have_lists():
    code = code_of("call.uni (r0), f, (a, 5, %r1);")
    results, function, arguments = code.operands
    assert isinstance(results, Parentheses)
    assert isinstance(function, Reference)
    assert isinstance(arguments, Parentheses)
    assert arguments.items[1] == Immediate(5)


def test_labels_scopes_and_lists_of_targets():
    label, inner, targets, code = body_of(
        "A: { .reg .pred p; B: ret; } ts: .branchtargets A, A; ret;"
    )
    assert isinstance(label, Label)
    assert isinstance(inner, Body)
    assert len(inner.statements) == 3
    assert isinstance(targets, TargetList)
    assert [each.name for each in targets.labels] == ["A", "A"]
    assert isinstance(code, Code)


def test_lines_of_a_preprocessor_are_skipped():
    code = code_of('mov.b32 %r1,\n  # 5 "kernel.cu"\n  3;')
    assert code.operands[1] == Immediate(3)
    assert code.text == "mov.b32 %r1, 3"


def test_prototypes_are_read_past():
    (found, _) = body_of(
        "proto: .callprototype (.param .b32 _) _ (.param .b64 _, .param .b64 _); ret;"
    )
    assert isinstance(found, TargetList)


# ------------------------------------------------------------------------------------- declarations


def test_registers_are_counted_out():
    (found,) = body_of(".reg .b32 %r<3>, x;")
    assert isinstance(found, Registers)
    assert (found.type, found.vector, found.names) == ("b32", 1, ("%r0", "%r1", "%r2", "x"))


def test_registers_may_be_vectors():
    (found,) = body_of(".reg .v4 .f32 v;")
    assert isinstance(found, Registers)
    assert (found.type, found.vector, found.names) == ("f32", 4, ("v",))


@pytest.mark.parametrize(
    ("text", "size", "alignment", "shape"),
    [
        (".shared .align 16 .b8 a[64];", 64, 16, (64,)),
        (".shared .f32 a;", 4, 4, None),
        (".shared .v4 .f32 a;", 16, 16, None),
        (".shared .v2 .b16 a[3];", 12, 4, (3,)),
        (".local .align 8 .b8 a[3][5];", 15, 8, (3, 5)),
        (".shared .b64 a[2*(1+1)];", 32, 8, (4,)),
        (".local .b128 a;", 16, 16, None),
    ],
)
def test_variables_have_sizes(text, size, alignment, shape):
    (found,) = body_of(text)
    assert isinstance(found, Variable)
    assert (found.size, found.alignment, found.shape) == (size, alignment, shape)


def test_variables_of_one_type_may_stand_together():
    first, second = body_of(".shared .align 8 .b32 a, b[2];")
    assert isinstance(first, Variable)
    assert isinstance(second, Variable)
    assert (first.name, first.alignment, second.name, second.size) == ("a", 8, "b", 8)


def test_initial_values_are_flattened_and_may_give_the_size():
    tree = parse_tree(HEAD + ".const .s16 a[] = {{1, -2}, 3}; .global .u64 p = generic(q+4)+4;")
    first, second = tree.variables
    assert [each.value for each in first.initial] == [Immediate(1), Immediate(-2), Immediate(3)]
    assert (first.shape, first.size) == ((3,), 6)
    (pointer,) = second.initial
    assert isinstance(pointer.value, Reference)
    assert (pointer.value.name, pointer.value.offset) == ("q", 8)


def test_parameters_of_entries():
    tree = parse_tree(
        HEAD + ".entry k(.param .u64 .ptr .global .align 16 a, .param .align 64 .b8 m[128],\n"
        ".param .u64 .ptr .align 1 b, .param .f32 s) { ret; }"
    )
    found = [(p.name, p.size, p.alignment) for p in tree.functions[0].parameters]
    assert found == [("a", 8, 8), ("m", 128, 64), ("b", 8, 8), ("s", 4, 4)]


def test_functions_have_results_and_may_be_declared_only():
    tree = parse_tree(
        HEAD + ".extern .func (.param .b32 r) f (.param .b64 x) ;\n"
        ".func (.reg .f32 o) g(.reg .f32 i) .noreturn { ret; }\n.alias h, g;"
    )
    f, g = tree.functions
    assert (f.body, len(f.results), len(f.parameters)) == (None, 1, 1)
    assert g.body is not None
    assert g.results[0].storage == "reg"
    assert tree.aliases == {"h": "g"}


def test_attributes_are_skipped():
    tree = parse_tree(
        HEAD + ".global .attribute(.managed) .u32 g;\n"
        ".global .attribute(.unified(1, 2)) .align 8 .u64 h;\n"
        ".func .attribute(.unified(3, 4)) f() .abi_preserve 3 { ret; }"
    )
    assert [v.name for v in tree.variables] == ["g", "h"]
    assert tree.functions[0].name == "f"
    with pytest.raises(PtxSyntaxError, match=r"expected '\)' after the attributes"):
        parse_tree(HEAD + ".global .attribute(.managed .u32 g;")


def test_directives_of_performance():
    tree = parse_tree(
        HEAD + ".entry k() .maxntid 128 .minnctapersm 2 .maxnreg 64\n"
        ".explicitcluster .reqnctapercluster 2, 1, 1 .reqntid 64, 2, 1 { ret; }"
    )
    assert tree.functions[0].limits == Limits((128, 1, 1), (64, 2, 1), (2, 1, 1))


def test_what_debuggers_read_is_skipped():
    statements = body_of(
        ".loc 1 15 0\nmov.u32 %r1, 1;\n.loc 1 16 3, function_name $L__info+4, inlined_at 1 2 3\n"
        '.pragma "nounroll";\n;\nret;'
    )
    assert [each.opcode for each in statements if isinstance(each, Code)] == ["mov", "ret"]
    tree = parse_tree(
        HEAD + '.file 1 "a.cu", 12, 34\n.section .debug_abbrev { .b8 1, 2\n$L__x: .b32 $L__x {} }\n'
        ".global .align 1 .b8 x;"
    )
    assert [each.name for each in tree.variables] == ["x"]


# ------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("text", "line", "column", "expected"),
    [
        ("mov.u32 %r1, %tid.x\nret;", 7, 1, "expected ',' or ';' after an operand, found 'ret'"),
        ("mov.u32 %r1 %r2;", 6, 13, "expected ',' or ';' after an operand, found '%r2'"),
        ("ld.global.u32 %r1, [%r2;", 6, 24, "expected ']' at the end of an address, found ';'"),
        ("mov.b32 %r1, {%r2, };", 6, 20, "expected an operand"),
        ('mov.b32 %r1, "x";', 6, 14, "expected an operand"),
        ("mov.b32 %r1, 4/0;", 6, 15, "division by zero"),
        ("mov.b32 %r1, 08;", 6, 14, "'08' is no number; expected a decimal"),
        ("mov.f32 %r1, 0f3F8;", 6, 14, "'0f3F8' is no number"),
        ("mov.b32 %r1, #;", 6, 14, "unexpected character '#'"),
        ("/* never\nends", 6, 1, "a comment that does not end; expected '*/'"),
        ('.pragma "nounroll;', 6, 9, "a string that does not end"),
        (".reg .b33 x;", 6, 6, "expected a type such as '.b32', found '.b33'"),
        (".reg .b32 %r<4;", 6, 15, "expected '>' after the number of registers, found ';'"),
        (".shared .b8 s[4;", 6, 16, "expected ']' after the size of an array, found ';'"),
        (".shared .align 12 .b8 s;", 6, 16, "expected a power of two as alignment, found 12"),
        (".local .b8 s = 4;", 6, 12, "a local variable has no initial value"),
        (".maxntid 4;", 6, 1, "expected a declaration"),
        (".loc 1 2\nret;", 7, 1, "expected an integer, found 'ret'"),
        ("{ ret;", 5, 1, "a body that does not end"),
        ("ret; }", 7, 1, "expected a directive"),
        ("] ;", 6, 1, "expected an instruction, a label, a declaration, '{' or '}', found ']'"),
        ("@ ret;", 6, 6, "expected an opcode, found ';'"),
        ("call (%r1) f;", 6, 12, "expected ',' or ';' after an operand of a call, found 'f'"),
        ("p: .callprototype _ ()", 8, 1, "expected ';' after '.callprototype'"),
        ('.pragma "a", b;', 6, 14, "expected the text of a pragma, found 'b'"),
        ("@7 ret;", 6, 2, "expected a name, found '7'"),
    ],
)
def test_errors_in_bodies(text, line, column, expected):
    with pytest.raises(PtxSyntaxError) as caught:
        body_of(text)
    message = str(caught.value)
    assert message.startswith(f"PTX line {line}, column {column}: ")
    assert expected in message


@pytest.mark.parametrize(
    ("text", "line", "column", "expected"),
    [
        ("", 1, 1, "the module has no '.target'"),
        ("hello", 1, 1, "expected a directive, '.entry', '.func' or a variable"),
        (".version 8.7\n.target sm_90\n.address_size 32", 3, 15, "'.address_size 64'"),
        (HEAD + ".entry k(.u32 x) {}", 4, 10, "expected '.param' or '.reg'"),
        (HEAD + ".entry k() ret;", 4, 12, "expected '{' before the body"),
        (HEAD + ".entry k() { ret;", 4, 12, "expected '}'"),
        (HEAD + ".global .u8 c[2] = {1,2,3};", 4, 13, "3 initial values for 'c' of 2 bytes"),
        (HEAD + ".global .texref t;", 4, 9, "no textures"),
        (HEAD + ".section {", 4, 10, "expected the name of a section, found '{'"),
        (".target sm_90,", 1, 15, "expected an option of the target, found the end of the text"),
        (HEAD + ".section .debug { .b8 1", 4, 17, "a section that does not end"),
        (".version big", 1, 10, "expected a version such as 8.7, found 'big'"),
    ],
)
def test_errors_in_modules(text, line, column, expected):
    with pytest.raises(PtxSyntaxError) as caught:
        parse_tree(text)
    message = str(caught.value)
    assert message.startswith(f"PTX line {line}, column {column}: ")
    assert expected in message


def test_an_error_shows_the_line_and_points_at_the_column():
    with pytest.raises(PtxSyntaxError) as caught:
        body_of("\tmov.u32 %r1, #;")
    shown, pointer = str(caught.value).split("\n")[1:]
    assert shown[pointer.index("^")] == "#"
