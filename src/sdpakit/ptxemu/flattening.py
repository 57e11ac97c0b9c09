"""Turns an entry into one run of instructions: names looked up, scopes opened, calls inlined."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sdpakit.ptxemu.errors import UnsupportedInstruction
from sdpakit.ptxemu.inlining import Inliner
from sdpakit.ptxemu.layout import Frame
from sdpakit.ptxemu.program import Address, Operand, Register, Symbol
from sdpakit.ptxemu.scopes import Declared, Place, Placed, RegisterFile, Scope, Unavailable
from sdpakit.ptxemu.syntax import (
    Body,
    Code,
    Function,
    Label,
    Reference,
    Registers,
    Statement,
    TargetList,
    Tree,
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
    tree : Tree
        The module.
    variables : mapping of Variable to Symbol
        Where variables are that are not local.
    unknown : mapping of Variable to str
        Of variables that nobody may use, what they point to.

    Attributes
    ----------
    drafts : list of Draft
        The instructions.
    registers : RegisterFile
        Their registers.
    frame : Frame
        The local memory of a thread.
    """

    def __init__(
        self, tree: Tree, variables: Mapping[Variable, Symbol], unknown: Mapping[Variable, str]
    ) -> None:
        self._tree, self._variables, self._unknown = tree, variables, unknown
        self.drafts: list[Draft] = []
        self.registers = RegisterFile()
        self.frame = Frame("local")
        self._module_scope = Scope(self.registers, tree.source)
        self._inliner = Inliner(tree, self)

    @property
    def here(self) -> int:
        """The number of the instruction that comes next."""
        return len(self.drafts)

    def write(self, entry: Function) -> None:
        """Write an entry.

        Raises
        ------
        PtxSyntaxError
            If a name is not declared.
        UnsupportedInstruction
            If it calls what cannot be inlined.
        """
        for variable in self._tree.variables:
            self._module_variable(variable)
        for function in self._tree.functions:
            pointer = Unavailable("is a function; the emulator has no pointers to functions")
            self._module_scope.names.setdefault(function.name, pointer)
        scope = self._module_scope.inner()
        frame = Frame("param")
        for variable in entry.parameters:
            scope.declare(variable.name, Placed(frame.place(variable), variable), variable.at)
        if entry.body is not None:
            self.body(entry.body, scope)

    def _module_variable(self, variable: Variable) -> None:
        names = self._module_scope.names
        if variable.external and variable not in self._variables:
            elsewhere = Unavailable("is defined in another module; the emulator links only one")
            names.setdefault(variable.name, elsewhere)
            return
        if isinstance(names.get(variable.name), Unavailable):  # declared first, defined later
            del names[variable.name]
        self._variable(variable, self._module_scope)

    def _variable(self, variable: Variable, scope: Scope) -> None:
        symbol = self._variables.get(variable)
        if symbol is None:
            if variable.storage not in {"local", "param"}:
                return  # a shared variable of the module that this entry does not use
            symbol = self.frame.place(variable)
        if variable in self._unknown:
            reason = f"holds the address of {self._unknown[variable]!r}, which the emulator has not"
            scope.declare(variable.name, Unavailable(reason), variable.at)
            return
        scope.declare(variable.name, Placed(symbol, variable), variable.at)

    def body(self, body: Body, scope: Scope) -> None:
        """Write a body into a scope of its own."""
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
                scope.labels[statement.name].index = self.here
            case Registers():
                for name in statement.names:
                    scope.declare(name, Declared(statement.type, statement.vector), statement.at)
            case Variable():
                self._variable(statement, scope)
            case TargetList():
                places = tuple(map(scope.label, statement.labels))
                scope.declare(statement.name, places, statement.at)
            case Body():
                self.body(statement, scope.inner())

    def _code(self, code: Code, scope: Scope) -> None:
        if code.opcode == "call":
            self._inliner.call(code, scope, self._module_scope)
        elif code.opcode in {"bra", "brx"}:
            self._branch(code, scope)
        elif code.opcode == "ret" and scope.end is not None:
            self.emit(code, scope, "bra", (), (), (scope.end,))
        else:
            operands = tuple(map(scope.resolve, code.operands))
            modifiers = _spaces(code.modifiers, operands)
            self.emit(code, scope, code.opcode, modifiers, operands)

    def _branch(self, code: Code, scope: Scope) -> None:
        label = code.operands[-1] if code.operands else None
        if not isinstance(label, Reference):
            raise scope.error(code.at, f"expected a label after {code.opcode!r}")
        if code.opcode == "bra":
            self.emit(code, scope, "bra", code.modifiers, (), (scope.label(label),))
            return
        places = scope.find(label)
        if not isinstance(places, tuple) or not all(isinstance(p, Place) for p in places):
            raise scope.error(
                label.at, f"expected the name of '.branchtargets', found {label.name!r}"
            )
        index = tuple(map(scope.resolve, code.operands[:-1]))
        targets = tuple(place for place in places if isinstance(place, Place))
        self.emit(code, scope, "brx", code.modifiers, index, targets)

    def emit(
        self,
        code: Code,
        scope: Scope,
        opcode: str,
        modifiers: tuple[str, ...],
        operands: tuple[Operand, ...],
        targets: tuple[Place, ...] = (),
    ) -> None:
        """Write an instruction with the guard, line and text of what stands there."""
        if self.here >= MOST_INSTRUCTIONS:
            raise UnsupportedInstruction(
                f"PTX line {code.at.line}: over {MOST_INSTRUCTIONS} instructions, calls inlined"
            )
        guard, negated = self._guard(code, scope), code.guard_negated
        line, text = code.at.line, code.text
        self.drafts.append(Draft(opcode, modifiers, operands, guard, negated, line, text, targets))

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
