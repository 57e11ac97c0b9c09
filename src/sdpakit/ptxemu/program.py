"""A linked kernel: instructions whose operands name registers by slot and blocks by number."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

from sdpakit.ptxemu.scalars import TYPES, ScalarType

Space = Literal["global", "shared", "local", "param", "const"]


@dataclass(frozen=True, slots=True)
class Register:
    """A virtual register; `slot` is its index in `Program.registers`."""

    name: str
    slot: int
    type: ScalarType


@dataclass(frozen=True, slots=True)
class Immediate:
    """An integer, as written; it is cut to the width of the instruction's type."""

    value: int


@dataclass(frozen=True, slots=True)
class FloatImmediate:
    """A float: its value, and its bits where PTX gave them (``0f3F800000``, ``0d...``)."""

    value: float
    bits: int | None
    width: int


@dataclass(frozen=True, slots=True)
class Special:
    """A read-only register such as ``%tid.x``, with its component in the name."""

    name: str


@dataclass(frozen=True, slots=True)
class Symbol:
    """The address of a variable: `offset` bytes into what the program keeps in `space`.

    For ``param`` that is the kernel's parameter block, for ``shared`` the block's static memory,
    for ``local`` a thread's frame, for ``global`` and ``const`` the module's data (`Program.data`).
    """

    name: str
    space: Space
    offset: int


@dataclass(frozen=True, slots=True)
class Address:
    """``[base + offset]``; `coordinates` are those of a tensor copy, ``[map, {x, y}]``."""

    base: Operand
    offset: int = 0
    coordinates: tuple[Operand, ...] = ()


@dataclass(frozen=True, slots=True)
class Vector:
    """``{a, b, ...}``."""

    items: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Negated:
    """``!p``."""

    operand: Operand


@dataclass(frozen=True, slots=True)
class Pair:
    """``d|p``: a result with a second one beside it."""

    first: Operand
    second: Operand


@dataclass(frozen=True, slots=True)
class Sink:
    """``_``: a result nobody wants."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where a branch goes: the number of a block. `len(Program.blocks)` is the end."""

    block: int
    label: str


Operand: TypeAlias = (
    Register
    | Immediate
    | FloatImmediate
    | Special
    | Symbol
    | Address
    | Vector
    | Negated
    | Pair
    | Sink
    | Target
)


def registers_in(operands: Iterable[Operand]) -> Iterator[Register]:
    """Yield the registers that operands name, those in addresses and vectors among them."""
    for operand in operands:
        match operand:
            case Register():
                yield operand
            case Vector(items):
                yield from registers_in(items)
            case Address(base=base, coordinates=coordinates):
                yield from registers_in((base, *coordinates))
            case Negated(inner):
                yield from registers_in((inner,))
            case Pair(first, second):
                yield from registers_in((first, second))


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction.

    Attributes
    ----------
    opcode : str
        The first part of its name: ``"mma"``.
    modifiers : tuple of str
        The other parts, ``::`` kept: ``("sync", "aligned", "m16n8k16", ...)``.
    operands : tuple of Operand
        In the order of PTX: destinations first.
    guard : Register or None
        The predicate of ``@p``.
    guard_negated : bool
        Whether it is ``@!p``.
    line : int
        In the PTX text, from 1.
    text : str
        As written, white space made single.
    """

    opcode: str
    modifiers: tuple[str, ...]
    operands: tuple[Operand, ...]
    guard: Register | None
    guard_negated: bool
    line: int
    text: str

    @property
    def types(self) -> tuple[ScalarType, ...]:
        """The types among the modifiers, in order."""
        return tuple(TYPES[name] for name in self.modifiers if name in TYPES)

    @property
    def type(self) -> ScalarType:
        """The last type among the modifiers: that of what is read, in most instructions."""
        return self.types[-1]

    def has(self, *modifiers: str) -> bool:
        """Return whether it has any of these modifiers."""
        return any(modifier in self.modifiers for modifier in modifiers)

    @property
    def space(self) -> str:
        """The state space among the modifiers, ``::cta`` and the like kept; else ``generic``."""
        for modifier in self.modifiers:
            if modifier.split("::")[0] in {"global", "shared", "local", "param", "const"}:
                return modifier
        return "generic"


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of the entry. `type` is None for a byte array (a struct by value)."""

    name: str
    type: ScalarType | None
    offset: int
    size: int
    alignment: int


@dataclass(frozen=True, slots=True)
class Relocation:
    """Where in `Program.data` 8 bytes hold an address: that of `symbol`, once data is placed."""

    offset: int
    symbol: Symbol


@dataclass(frozen=True, slots=True)
class Block:
    """Instructions ``start`` to ``stop`` of the program; only the last may jump, wait or end."""

    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Limits:
    """What the entry says of its launch; None where it says nothing."""

    max_threads: tuple[int, int, int] | None = None
    required_threads: tuple[int, int, int] | None = None
    cluster: tuple[int, int, int] | None = None


@dataclass(frozen=True)
class Program:
    """A kernel, ready to run.

    Attributes
    ----------
    name : str
        Of the entry.
    target : str
        Architecture, as in ``.target``: ``"sm_90a"``.
    parameters : tuple of Parameter
        In order.
    registers : tuple of ScalarType
        The type of each register, by slot.
    instructions : tuple of Instruction
        All of them, calls inlined.
    blocks : tuple of Block
        Cover `instructions` in order; a block falls through to the next.
    static_shared : int
        Bytes of shared variables with a size. Dynamic shared memory begins at
        `dynamic_shared_start`, which is aligned to what the external variable asks (1024 at least,
        as drivers place it, so that swizzled tiles fit).
    dynamic_shared_start : int
        Offset of dynamic shared memory in the block's shared memory.
    local_bytes : int
        Frame of a thread in local memory.
    data : bytes
        Initial contents of the module's ``.global`` and ``.const`` variables.
    constant_ranges : tuple of (int, int)
        Which parts of `data` are ``.const``.
    data_ranges : tuple of (int, int)
        Which parts of `data` belong to a variable; between them nobody may go.
    relocations : tuple of Relocation
        Addresses that whoever places `data` writes into it.
    limits : Limits
        What the entry says of its launch.
    """

    name: str
    target: str
    parameters: tuple[Parameter, ...]
    registers: tuple[ScalarType, ...]
    instructions: tuple[Instruction, ...]
    blocks: tuple[Block, ...]
    static_shared: int
    dynamic_shared_start: int
    local_bytes: int
    data: bytes
    constant_ranges: tuple[tuple[int, int], ...]
    data_ranges: tuple[tuple[int, int], ...]
    relocations: tuple[Relocation, ...]
    limits: Limits

    @cached_property
    def parameter_bytes(self) -> int:
        """Size of the parameter block."""
        return max((p.offset + p.size for p in self.parameters), default=0)
