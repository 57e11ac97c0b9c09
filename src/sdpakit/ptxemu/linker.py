"""Makes a `Program` of an entry: places variables, writes instructions, cuts them into blocks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sdpakit.ptxemu.flattening import Draft, Flattener
from sdpakit.ptxemu.layout import ModuleData, kernel_parameters, shared_layout
from sdpakit.ptxemu.program import Block, Instruction, Operand, Program, Target, Vector
from sdpakit.ptxemu.reach import used_variables
from sdpakit.ptxemu.registry import ends_block
from sdpakit.ptxemu.scopes import Place
from sdpakit.ptxemu.syntax import Function, Tree


def link(tree: Tree, data: ModuleData, entry: Function) -> Program:
    """Link an entry of a module.

    Parameters
    ----------
    tree : Tree
        The module.
    data : ModuleData
        Its variables in global memory.
    entry : Function
        One of its entries, with a body.

    Returns
    -------
    Program
        Ready to run.

    Raises
    ------
    PtxSyntaxError
        If a name is not declared, or declared twice.
    UnsupportedInstruction
        If it calls what cannot be inlined.
    """
    shared = shared_layout(v for v in used_variables(tree, entry) if v.storage == "shared")
    flattener = Flattener(tree, {**data.symbols, **shared.symbols}, data.unknown)
    flattener.write(entry)
    blocks, instructions = _cut(flattener.drafts)
    return Program(
        name=entry.name,
        target=tree.target,
        parameters=kernel_parameters(entry),
        registers=tuple(flattener.registers.types),
        instructions=instructions,
        blocks=blocks,
        static_shared=shared.static,
        dynamic_shared_start=shared.dynamic_start,
        local_bytes=flattener.frame.size,
        data=data.contents,
        constant_ranges=data.constant_ranges,
        data_ranges=data.ranges,
        relocations=data.relocations,
        limits=entry.limits,
    )


def _cut(drafts: list[Draft]) -> tuple[tuple[Block, ...], tuple[Instruction, ...]]:
    """Cut instructions into blocks, and make labels the numbers of blocks."""
    starts = sorted({0, *_starts(drafts)} & set(range(len(drafts))))
    stops = [*starts[1:], len(drafts)]
    numbers = {start: number for number, start in enumerate(starts)}
    numbers[len(drafts)] = len(starts)
    instructions = tuple(_finish(draft, numbers) for draft in drafts)
    return tuple(map(Block, starts, stops)), instructions


def _starts(drafts: Iterable[Draft]) -> Iterator[int]:
    for index, draft in enumerate(drafts):
        yield from (place.index for place in draft.targets)
        if ends_block(draft.opcode, draft.modifiers):
            yield index + 1


def _finish(draft: Draft, numbers: dict[int, int]) -> Instruction:
    targets: tuple[Operand, ...] = tuple(_target(place, numbers) for place in draft.targets)
    if draft.opcode == "brx":  # its second operand is the list
        targets = (Vector(targets),)
    return Instruction(
        draft.opcode,
        draft.modifiers,
        draft.operands + targets,
        draft.guard,
        draft.guard_negated,
        draft.line,
        draft.text,
    )


def _target(place: Place, numbers: dict[int, int]) -> Target:
    return Target(numbers[place.index], place.name)
