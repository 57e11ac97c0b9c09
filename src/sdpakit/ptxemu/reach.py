"""Finds what an entry uses: variables that it or the functions it calls name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sdpakit.ptxemu.syntax import (
    Body,
    Both,
    Braces,
    Brackets,
    Code,
    Function,
    Not,
    Parentheses,
    Reference,
    Tree,
    TreeOperand,
    Variable,
)


def used_variables(tree: Tree, entry: Function) -> list[Variable]:
    """Return the variables that an entry needs, in the order of the text.

    A name stands for all variables called so, so that one more than needed may come.
    """
    functions = {function.name: function for function in tree.functions if function.body}
    names: set[str] = set()
    wanted = {v.name for v in tree.variables} | functions.keys() | tree.aliases.keys()
    reached, waiting = {entry.name}, [entry]
    own: list[Variable] = []
    while waiting:
        for statement in _statements(waiting.pop().body):
            if isinstance(statement, Variable):
                own.append(statement)
                continue
            found = wanted.intersection(_names(statement.operands))
            names |= found
            called = {tree.aliases.get(name, name) for name in found} & functions.keys() - reached
            reached |= called
            waiting += [functions[name] for name in sorted(called)]
    everything = [*(v for v in tree.variables if v.name in names), *own]
    return sorted(everything, key=lambda variable: variable.at)


def _statements(body: Body | None) -> Iterator[Code | Variable]:
    for statement in body.statements if body else ():
        if isinstance(statement, Body):
            yield from _statements(statement)
        elif isinstance(statement, Code | Variable):
            yield statement


def _names(operands: Iterable[TreeOperand]) -> Iterator[str]:
    for operand in operands:
        match operand:
            case Reference():
                yield operand.name
            case Brackets():
                yield from _names((operand.base, *operand.coordinates))
            case Braces() | Parentheses():
                yield from _names(operand.items)
            case Not():
                yield from _names((operand.operand,))
            case Both():
                yield from _names((operand.first, operand.second))
