"""Looks up names: what a name of the text stands for at a place, and operands made of names."""

from __future__ import annotations

from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import TypeAlias

from sdpakit.ptxemu.errors import PtxError, UnsupportedInstruction
from sdpakit.ptxemu.lexer import Position, error_at
from sdpakit.ptxemu.program import (
    Address,
    FloatImmediate,
    Immediate,
    Negated,
    Operand,
    Pair,
    Register,
    Sink,
    Special,
    Symbol,
    Vector,
)
from sdpakit.ptxemu.scalars import TYPES, ScalarType
from sdpakit.ptxemu.syntax import (
    Both,
    Braces,
    Brackets,
    Not,
    Parentheses,
    Reference,
    TreeOperand,
    Variable,
)

_COMPONENTS = {name: index for index, name in enumerate("xyzw")}
_COMPONENTS |= {name: index for index, name in enumerate("rgba")}
_SPECIALS = frozenset(
    f"%{name}"
    for group in (
        ("laneid", "warpid", "nwarpid", "smid", "nsmid", "gridid"),
        ("clock", "clock_hi", "clock64", "globaltimer", "globaltimer_lo", "globaltimer_hi"),
        ("lanemask_eq", "lanemask_le", "lanemask_lt", "lanemask_ge", "lanemask_gt"),
        ("is_explicit_cluster", "cluster_ctarank", "cluster_nctarank"),
        ("dynamic_smem_size", "total_smem_size", "aggr_smem_size", "current_graph_exec"),
    )
    for name in group
)
_VECTOR_SPECIALS = frozenset(
    f"%{prefix}{name}" for name in ("tid", "ctaid", "clusterid") for prefix in ("", "n")
) | {"%cluster_ctaid", "%cluster_nctaid"}


class Place:
    """A label: the number of the instruction behind it, once known."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.index = -1


@dataclass(frozen=True, slots=True)
class Declared:
    """A register that nothing has used so far; it gets a slot when something does."""

    type: str
    vector: int


@dataclass(frozen=True, slots=True)
class Placed:
    """A variable, and where it is."""

    symbol: Symbol
    variable: Variable


@dataclass(frozen=True, slots=True)
class Unavailable:
    """Something that an operand may not name, and why."""

    reason: str


Binding: TypeAlias = (
    Declared | Register | tuple[Register, ...] | Placed | tuple[Place, ...] | Unavailable
)


class RegisterFile:
    """Gives out slots; `types` holds the type of each."""

    def __init__(self) -> None:
        self.types: list[ScalarType] = []

    def add(self, name: str, kind: ScalarType) -> Register:
        """Return a new register."""
        self.types.append(kind)
        return Register(name, len(self.types) - 1, kind)


class Scope:
    """The names that hold between two braces.

    Parameters
    ----------
    file : RegisterFile
        Where registers get their slots.
    source : str
        The text, for messages.
    parent : Scope, optional
        The scope around it.
    end : Place, optional
        Where ``ret`` goes; None in a kernel.

    Attributes
    ----------
    names : dict
        Registers, variables and lists of branch targets.
    labels : dict
        Labels.
    """

    def __init__(
        self,
        file: RegisterFile,
        source: str,
        parent: Scope | None = None,
        end: Place | None = None,
    ) -> None:
        self.file, self.source, self.parent, self.end = file, source, parent, end
        self.names: dict[str, Binding] = {}
        self.labels: dict[str, Place] = {}

    def inner(self) -> Scope:
        """Return a scope inside this one."""
        return Scope(self.file, self.source, self, self.end)

    def error(self, at: Position, message: str) -> PtxError:
        """Return an error at a place of the text."""
        return error_at(self.source, at, message)

    def declare(self, name: str, binding: Binding, at: Position) -> None:
        """Bind a name.

        Raises
        ------
        PtxSyntaxError
            If the scope has it.
        """
        if name in self.names:
            raise self.error(at, f"{name!r} is declared twice in one scope")
        self.names[name] = binding

    def label(self, reference: Reference) -> Place:
        """Return the label that a branch names.

        Raises
        ------
        PtxSyntaxError
            If there is none.
        """
        scope: Scope | None = self
        known: list[str] = []
        while scope is not None:
            if reference.name in scope.labels:
                return scope.labels[reference.name]
            known += scope.labels
            scope = scope.parent
        raise self.error(
            reference.at,
            f"no label {reference.name!r} is in reach{_suggest(reference.name, known)}",
        )

    def find(self, reference: Reference) -> Binding | None:
        """Return what a name stands for; a register gets its slot now.

        Raises
        ------
        UnsupportedInstruction
            If the emulator does not have it.
        """
        name = reference.name
        scope: Scope | None = self
        while scope is not None:
            binding = scope.names.get(name)
            if isinstance(binding, Declared):
                binding = scope.names[name] = self._materialise(reference, binding)
            elif isinstance(binding, Unavailable):
                raise self._refused(reference, binding.reason)
            if binding is not None:
                return binding
            scope = scope.parent
        return None

    def _refused(self, reference: Reference, reason: str) -> UnsupportedInstruction:
        line, column = reference.at
        return UnsupportedInstruction(
            f"PTX line {line}, column {column}: {reference.name!r} {reason}"
        )

    def _materialise(self, reference: Reference, declared: Declared) -> Binding:
        name = reference.name
        if declared.type not in TYPES:
            raise self._refused(
                reference, f"is a register of type .{declared.type}; there are {', '.join(TYPES)}"
            )
        kind = TYPES[declared.type]
        if declared.vector == 1:
            return self.file.add(name, kind)
        return tuple(self.file.add(f"{name}.{'xyzw'[i]}", kind) for i in range(declared.vector))

    def known(self) -> list[str]:
        """Return all names in reach."""
        return [*self.names, *(self.parent.known() if self.parent else ())]

    def resolve(self, operand: TreeOperand) -> Operand:
        """Return an operand with its names looked up.

        Raises
        ------
        PtxSyntaxError
            If a name is not declared, or stands for something that cannot be an operand.
        """
        match operand:
            case Reference():
                return self._reference(operand)
            case Immediate() | FloatImmediate() | Sink():
                return operand
            case Brackets():
                return self._address(operand)
            case Braces():
                return Vector(tuple(map(self.resolve, operand.items)))
            case Not():
                return Negated(self.resolve(operand.operand))
            case Both():
                return Pair(self.resolve(operand.first), self.resolve(operand.second))
            case Parentheses():
                raise TypeError("only calls have operands in parentheses")

    def _reference(self, reference: Reference) -> Operand:
        binding = self.find(reference)
        if isinstance(binding, Register) and not reference.component:
            return self._whole(reference, binding)
        if isinstance(binding, Placed):
            offset = reference.offset + reference.element * binding.variable.element_size
            return replace(binding.symbol, offset=binding.symbol.offset + offset)
        if binding is None:
            return self._whole(reference, self._special(reference))
        items = binding if isinstance(binding, tuple) else ()
        registers = [each for each in items if isinstance(each, Register)]
        if registers and not reference.component:
            return Vector(tuple(registers))
        index = _COMPONENTS.get(reference.component, len(registers))
        if index >= len(registers):
            raise self.error(
                reference.at, f"{reference.name!r} has no component .{reference.component}"
            )
        return self._whole(reference, registers[index])

    def _whole(self, reference: Reference, operand: Operand) -> Operand:
        if reference.offset or reference.element:
            raise self.error(
                reference.at,
                f"an offset behind {reference.name!r}, which is no variable; expected ',' or ';'",
            )
        return operand

    def _special(self, reference: Reference) -> Operand:
        name, component = reference.name, reference.component
        if name in _SPECIALS and not component:
            return Special(name)
        if name in _VECTOR_SPECIALS:
            axes = {axis: Special(f"{name}.{axis}") for axis in "xyz"} | {"w": Immediate(0)}
            whole = {"": Vector(tuple(axes.values()))}
            if component not in axes | whole:
                raise self.error(reference.at, f"expected {name}.x, {name}.y or {name}.z")
            return (axes | whole)[component]
        known = [*self.known(), *_SPECIALS, *_VECTOR_SPECIALS]
        raise self.error(
            reference.at,
            f"{name!r} is not declared; expected a register, a variable or a special register"
            f"{_suggest(name, known)}",
        )

    def _address(self, brackets: Brackets) -> Address:
        base, offset = brackets.base, 0
        if isinstance(base, Reference) and not isinstance(self.find(base), Placed):
            base, offset = replace(base, offset=0), base.offset
        return Address(self.resolve(base), offset, tuple(map(self.resolve, brackets.coordinates)))


def _suggest(name: str, known: list[str]) -> str:
    near = get_close_matches(name, known, n=1)
    return f"; there is {near[0]!r}" if near else ""
