"""Writes the body of a function where it is called: parameters become local memory or registers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sdpakit.ptxemu.errors import PtxError, UnsupportedInstruction
from sdpakit.ptxemu.program import Address, Operand, Register, Sink, Symbol
from sdpakit.ptxemu.scopes import Declared, Place, Placed, Scope
from sdpakit.ptxemu.syntax import (
    Body,
    Code,
    Function,
    Parentheses,
    Reference,
    Tree,
    TreeOperand,
    Variable,
)

if TYPE_CHECKING:
    from sdpakit.ptxemu.flattening import Flattener

# What ``assert`` calls when it fails; it ends the kernel as ``trap`` does.
_FAILURES = frozenset({"__assertfail", "__assert_fail"})


@dataclass(frozen=True, slots=True)
class _Call:
    results: tuple[TreeOperand, ...]
    function: Function
    arguments: tuple[TreeOperand, ...]


class Inliner:
    """Writes calls.

    Parameters
    ----------
    tree : Tree
        The module, which has the functions.
    flattener : Flattener
        Takes the instructions.
    """

    def __init__(self, tree: Tree, flattener: Flattener) -> None:
        self._aliases = tree.aliases
        self._flattener = flattener
        self._functions: dict[str, Function] = {}
        for function in tree.functions:  # a declaration may stand before the body or after it
            if function.body is not None or function.name not in self._functions:
                self._functions[function.name] = function
        self._active: list[str] = []

    def call(self, code: Code, scope: Scope, module_scope: Scope) -> None:
        """Write a call.

        Raises
        ------
        PtxSyntaxError
            If arguments and parameters differ.
        UnsupportedInstruction
            If the function is not known here, or calls itself.
        """
        call = self._take_apart(code, scope)
        if call.function.name in _FAILURES:
            self._flattener.emit(code, scope, "trap", (), ())
            return
        self._check(code, scope, call)
        after, end = Place("after the call"), Place("end of the function")
        if code.guard is not None:
            inverse = replace(code, guard_negated=not code.guard_negated)
            self._flattener.emit(inverse, scope, "bra", (), (), (after,))
        plain = replace(code, guard=None, guard_negated=False)
        inside = Scope(self._flattener.registers, scope.source, module_scope, end)
        self._body(plain, call, scope, inside)
        after.index = self._flattener.here

    def _body(self, code: Code, call: _Call, outer: Scope, inner: Scope) -> None:
        function = call.function
        for formal, actual in zip(function.parameters, call.arguments, strict=True):
            if not self._share(formal, actual, outer, inner):
                place = self._fresh(formal, inner)
                self._copy(code, outer, formal.type, place, outer.resolve(actual))
        back: list[tuple[str, Operand, Operand]] = []
        for formal, actual in zip(function.results, call.results, strict=True):
            if not self._share(formal, actual, outer, inner):
                back.append((formal.type, outer.resolve(actual), self._fresh(formal, inner)))
        self._active.append(function.name)
        self._flattener.body(_without_last_return(function.body), inner.inner())
        self._active.pop()
        if inner.end is not None:
            inner.end.index = self._flattener.here
        for kind, target, source in back:
            if not isinstance(target, Sink):
                self._copy(code, outer, kind, target, source)

    def _share(self, formal: Variable, actual: TreeOperand, outer: Scope, inner: Scope) -> bool:
        """Let a parameter in memory be the caller's variable itself; return whether it is."""
        if formal.storage != "param" or not isinstance(actual, Reference):
            return False
        found = outer.find(actual)
        if not isinstance(found, Placed):
            return False
        if found.variable.size != formal.size:
            raise outer.error(
                actual.at,
                f"{actual.name!r} has {found.variable.size} bytes; "
                f"expected {formal.size}, for the parameter {formal.name!r}",
            )
        inner.declare(formal.name, Placed(found.symbol, formal), formal.at)
        return True

    def _fresh(self, formal: Variable, inner: Scope) -> Operand:
        """Return a new register or variable for a parameter."""
        if formal.storage == "reg":
            inner.declare(formal.name, Declared(formal.type, formal.vector), formal.at)
        else:
            symbol = self._flattener.frame.place(formal)
            inner.declare(formal.name, Placed(symbol, formal), formal.at)
        return inner.resolve(Reference(formal.name, formal.at))

    def _copy(self, code: Code, scope: Scope, kind: str, target: Operand, source: Operand) -> None:
        """Write the instruction that moves a value of a call."""
        match target, source:
            case Symbol(), _:
                self._flattener.emit(code, scope, "st", ("local", kind), (Address(target), source))
            case Register(), Symbol():
                self._flattener.emit(code, scope, "ld", ("local", kind), (target, Address(source)))
            case Register(), _:
                self._flattener.emit(code, scope, "mov", (kind,), (target, source))
            case _:
                raise scope.error(code.at, "expected a register, a variable or '_' for a result")

    # ------------------------------------------------------------------------------- what is called

    def _take_apart(self, code: Code, scope: Scope) -> _Call:
        operands = list(code.operands)
        results = _list(operands)
        name = operands.pop(0) if operands else None
        if not isinstance(name, Reference):
            raise scope.error(code.at, "expected the name of a function after 'call'")
        arguments = _list(operands)
        function = self._functions.get(self._aliases.get(name.name, name.name))
        if function is None:
            raise _refused(code, f"{name.name!r} is no function of this module; indirect calls")
        return _Call(results, function, arguments)

    def _check(self, code: Code, scope: Scope, call: _Call) -> None:
        function = call.function
        if function.body is None:
            raise _refused(code, f"{function.name!r} has no body here; calls out of the module")
        if function.name in self._active:
            chain = " -> ".join([*self._active, function.name])
            raise _refused(code, f"a function calls itself ({chain}); recursion")
        given = (len(call.arguments), len(call.results))
        wanted = (len(function.parameters), len(function.results))
        if given != wanted:
            raise scope.error(
                code.at,
                f"{given[0]} arguments and {given[1]} results; "
                f"expected {wanted[0]} and {wanted[1]}, as {function.name!r} has them",
            )


def _refused(code: Code, what: str) -> PtxError:
    return UnsupportedInstruction(
        f"PTX line {code.at.line}: {code.text}\n  {what} cannot be inlined, "
        "so the emulator does not have them"
    )


def _list(operands: list[TreeOperand]) -> tuple[TreeOperand, ...]:
    """Take a list in parentheses from the front of operands, if one is there."""
    if operands and isinstance(operands[0], Parentheses):
        first = operands.pop(0)
        return first.items if isinstance(first, Parentheses) else ()
    return ()


def _without_last_return(body: Body | None) -> Body:
    """Return a body that runs out at its end instead of jumping there, which saves a block."""
    statements = body.statements if body else ()
    for index in range(len(statements) - 1, -1, -1):
        statement = statements[index]
        if isinstance(statement, Code):
            if statement.opcode == "ret" and statement.guard is None:
                return Body(statements[:index] + statements[index + 1 :])
            break
    return Body(statements)
