"""The tree of a PTX module: what was written, with names not yet looked up."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal, TypeAlias

from sdpakit.ptxemu.lexer import Position
from sdpakit.ptxemu.program import FloatImmediate, Immediate, Limits, Sink
from sdpakit.ptxemu.scalars import TYPES

Storage = Literal["reg", "param", "local", "shared", "global", "const"]


@dataclass(frozen=True, slots=True)
class Reference:
    """A name among operands: ``%r1``, ``%tid.x``, ``v.y``, ``table+8``, ``table[2]``.

    `component` is what follows the point, `offset` counts bytes, `element` elements of an array.
    """

    name: str
    at: Position
    component: str = ""
    offset: int = 0
    element: int = 0


@dataclass(frozen=True, slots=True)
class Brackets:
    """``[base+offset]`` or ``[base, {x, y}]``."""

    base: Reference | Immediate
    coordinates: tuple[TreeOperand, ...] = ()


@dataclass(frozen=True, slots=True)
class Braces:
    """``{a, b}``."""

    items: tuple[TreeOperand, ...]


@dataclass(frozen=True, slots=True)
class Parentheses:
    """``(a, b)``: arguments or results of a call."""

    items: tuple[TreeOperand, ...]


@dataclass(frozen=True, slots=True)
class Not:
    """``!p``."""

    operand: TreeOperand


@dataclass(frozen=True, slots=True)
class Both:
    """``d|p``."""

    first: TreeOperand
    second: TreeOperand


TreeOperand: TypeAlias = (
    Reference | Immediate | FloatImmediate | Sink | Brackets | Braces | Parentheses | Not | Both
)


@dataclass(frozen=True, slots=True)
class Code:
    """An instruction as written."""

    opcode: str
    modifiers: tuple[str, ...]
    operands: tuple[TreeOperand, ...]
    guard: Reference | None
    guard_negated: bool
    at: Position
    text: str


@dataclass(frozen=True, slots=True)
class Label:
    """``name:``."""

    name: str
    at: Position


@dataclass(frozen=True, slots=True)
class Registers:
    """``.reg .v2 .b32 %r<9>, %x;``: `names` come expanded; `vector` is 1 for plain registers."""

    type: str
    vector: int
    names: tuple[str, ...]
    at: Position


@dataclass(frozen=True, slots=True)
class Initial:
    """One scalar of an initialiser: a number, or the address of a variable or function.

    Whether it is the generic address is not kept, as those of global memory are.
    """

    value: Immediate | FloatImmediate | Reference
    at: Position


@dataclass(frozen=True, slots=True, eq=False)
class Variable:
    """A declared variable or parameter.

    Attributes
    ----------
    storage : str
        Where it lives; ``reg`` only for parameters of functions.
    type : str
        Of an element; ``b128`` may appear, which `TYPES` lacks.
    vector : int
        Scalars in an element.
    alignment : int
        In bytes.
    shape : tuple of int or None
        None for what is no array; the first may be 0, for ``[]``.
    initial : tuple of Initial
        Flattened in order; fewer than there are elements leave zeros.
    external : bool
        Whether it is defined elsewhere (or, if shared, sized by the launch).
    """

    name: str
    storage: Storage
    type: str
    vector: int
    alignment: int
    shape: tuple[int, ...] | None
    initial: tuple[Initial, ...]
    external: bool
    at: Position

    @property
    def element_size(self) -> int:
        """Bytes of an element."""
        return type_size(self.type) * self.vector

    @property
    def size(self) -> int:
        """Bytes in all."""
        return self.element_size * prod(self.shape or ())


def type_size(name: str) -> int:
    """Return the bytes of a scalar in memory."""
    return 16 if name == "b128" else TYPES[name].size


@dataclass(frozen=True, slots=True)
class TargetList:
    """``name: .branchtargets A, B;``."""

    name: str
    labels: tuple[Reference, ...]
    at: Position


@dataclass(frozen=True, slots=True)
class Body:
    """``{ ... }``: a scope of registers, variables and labels."""

    statements: tuple[Statement, ...]


Statement: TypeAlias = Code | Label | Registers | Variable | TargetList | Body


@dataclass(frozen=True, slots=True, eq=False)
class Function:
    """An ``.entry`` or ``.func``; without a body it is a declaration."""

    name: str
    is_entry: bool
    results: tuple[Variable, ...]
    parameters: tuple[Variable, ...]
    body: Body | None
    limits: Limits
    at: Position


@dataclass(frozen=True, slots=True, eq=False)
class Tree:
    """A module.

    Attributes
    ----------
    source : str
        The text.
    version : str
        PTX version: ``"8.7"``.
    target : str
        Architecture: ``"sm_90a"``.
    variables : tuple of Variable
        Of the module, in order.
    functions : tuple of Function
        Entries and functions, in order; declarations too.
    aliases : dict of str to str
        Other names of functions.
    """

    source: str
    version: str
    target: str
    variables: tuple[Variable, ...]
    functions: tuple[Function, ...]
    aliases: dict[str, str]
