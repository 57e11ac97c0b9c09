"""Turns an entry into one run of instructions: names looked up, scopes opened, calls inlined."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sdpakit.ptxemu.errors import UnsupportedInstruction
from sdpakit.ptxemu.layout import Frame
from sdpakit.ptxemu.lexer import Position
from sdpakit.ptxemu.program import Address, Operand, Register, Symbol
from sdpakit.ptxemu.scopes import Declared, Place, Placed, RegisterFile, Scope
from sdpakit.ptxemu.syntax import (
    Body,
    Code,
    Function,
    Label,
    Reference,
    Registers,
    Statement,
    TargetList,
    Variable,
)

# Calls are inlined, so functions that call each other twice each would grow without bound.
MOST_INSTRUCTIONS = 1_000_000


@dataclass(slots=True)
class Draft:
    """An instruction whose branch targets are still labels; only branches have `targets`."""

    opcode: str
    modifiers: tuple[str, ...]
    operands: tuple[Operand, ...]
    guard: Register | None
    guard_negated: bool
    line: int
    text: str
    targets: tuple[Place, ...] = ()


class Flattener:
    """Writes the instructions of one entry.

    Parameters
    ----------
    variables : mapping of Variable to Symbol
        Where variables are that are not local.
    source : str
        The text, for messages.

    Attributes
    ----------
    drafts : list of Draft
        The instructions.
    registers : RegisterFile
        Their registers.
    frame : Frame
        The local memory of a thread.
    """

    def __init__(self, variables: Mapping[Variable, Symbol], source: str) -> None:
        self.variables, self.source = variables, source
        self.drafts: list[Draft] = []
        self.registers = RegisterFile()
        self.frame = Frame("local")
        self._module_scope = Scope(self.registers, source)

    def write(self, entry: Function, module_variables: tuple[Variable, ...]) -> None:
        """Write an entry.

        Raises
        ------
        PtxSyntaxError
            If a name is not declared.
        UnsupportedInstruction
            If it calls what cannot be inlined.
        """
        for variable in module_variables:
            if not variable.external or variable in self.variables:
                self._variable(variable, self._module_scope)
        scope = self._module_scope.inner()
        frame = Frame("param")
        for variable in entry.parameters:
            placed = Placed(frame.place(variable), variable.element_size)
            scope.declare(variable.name, placed, variable.at)
        if entry.body is not None:
            self._body(entry.body, scope)

    def _variable(self, variable: Variable, scope: Scope) -> None:
        symbol = self.variables.get(variable)
        if symbol is None:
            if variable.storage not in {"local", "param"}:
                return  # a shared variable of the module that this entry does not use
            symbol = self.frame.place(variable)
        scope.declare(variable.name, Placed(symbol, variable.element_size), variable.at)

    def _body(self, body: Body, scope: Scope) -> None:
        for statement in body.statements:
            if isinstance(statement, Label):
                if statement.name in scope.labels:
                    raise scope.error(statement.at, f"the label {statement.name!r} is there twice")
                scope.labels[statement.name] = Place(statement.name)
        for statement in body.statements:
            self._statement(statement, scope)

    def _statement(self, statement: Statement, scope: Scope) -> None:
        match statement:
            case Code():
                self._code(statement, scope)
            case Label():
                scope.labels[statement.name].index = len(self.drafts)
            case Registers():
                for name in statement.names:
                    scope.declare(name, Declared(statement.type, statement.vector), statement.at)
            case Variable():
                self._variable(statement, scope)
            case TargetList():
                places = tuple(map(scope.label, statement.labels))
                scope.declare(statement.name, places, statement.at)
            case Body():
                self._body(statement, scope.inner())

    def _code(self, code: Code, scope: Scope) -> None:
        if code.opcode == "call":
            raise UnsupportedInstruction(f"PTX line {code.at.line}: {code.text}: calls")
        if code.opcode in {"bra", "brx"}:
            self._branch(code, scope)
        elif code.opcode == "ret" and scope.end is not None:
            self._emit(code, scope, "bra", (), (), (scope.end,))
        else:
            operands = tuple(map(scope.resolve, code.operands))
            modifiers = _spaces(code.modifiers, operands)
            self._emit(code, scope, code.opcode, modifiers, operands)

    def _branch(self, code: Code, scope: Scope) -> None:
        label = code.operands[-1] if code.operands else None
        if not isinstance(label, Reference):
            raise scope.error(code.at, f"expected a label after {code.opcode!r}")
        if code.opcode == "bra":
            self._emit(code, scope, "bra", code.modifiers, (), (scope.label(label),))
            return
        places = scope.find(label.name)
        if not isinstance(places, tuple) or not all(isinstance(p, Place) for p in places):
            raise scope.error(
                label.at, f"expected the name of '.branchtargets', found {label.name!r}"
            )
        index = tuple(map(scope.resolve, code.operands[:-1]))
        targets = tuple(place for place in places if isinstance(place, Place))
        self._emit(code, scope, "brx", code.modifiers, index, targets)

    def _emit(
        self,
        code: Code,
        scope: Scope,
        opcode: str,
        modifiers: tuple[str, ...],
        operands: tuple[Operand, ...],
        targets: tuple[Place, ...] = (),
    ) -> None:
        """Write an instruction with the guard, line and text of what stands there."""
        guard = self._guard(code, scope)
        self._append(
            Draft(
                opcode,
                modifiers,
                operands,
                guard,
                code.guard_negated,
                code.at.line,
                code.text,
                targets,
            ),
            code.at,
        )

    def _append(self, draft: Draft, at: Position) -> None:
        if len(self.drafts) >= MOST_INSTRUCTIONS:
            raise UnsupportedInstruction(
                f"PTX line {at.line}: over {MOST_INSTRUCTIONS} instructions, calls inlined"
            )
        self.drafts.append(draft)

    def _guard(self, code: Code, scope: Scope) -> Register | None:
        if code.guard is None:
            return None
        guard = scope.resolve(code.guard)
        if not isinstance(guard, Register) or guard.type.kind != "predicate":
            raise scope.error(
                code.guard.at, f"the guard {code.guard.name!r} is no predicate register"
            )
        return guard


def _spaces(modifiers: tuple[str, ...], operands: tuple[Operand, ...]) -> tuple[str, ...]:
    """Return modifiers where parameters of inlined calls, which are local memory, are called so."""
    if not any(modifier.split("::")[0] == "param" for modifier in modifiers):
        return modifiers
    symbols = [each.base if isinstance(each, Address) else each for each in operands]
    inlined = any(isinstance(each, Symbol) and each.space == "local" for each in symbols)
    space = "local" if inlined or "param::func" in modifiers else "param"
    return tuple(space if each.split("::")[0] == "param" else each for each in modifiers)
