"""Places variables: module data in global memory, shared variables, parameters, local frames."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from sdpakit.ptxemu.errors import PtxSyntaxError
from sdpakit.ptxemu.lexer import error_at
from sdpakit.ptxemu.program import FloatImmediate, Immediate, Parameter, Relocation, Space, Symbol
from sdpakit.ptxemu.scalars import TYPES, f32_to_bf16
from sdpakit.ptxemu.syntax import Body, Function, Initial, Reference, Tree, Variable, type_size

# Between variables of the module, so that running over the end of one does not land in the next.
_RED_ZONE = 32
# Drivers place dynamic shared memory so that swizzled tiles fit.
_DYNAMIC_ALIGNMENT = 1024


class Frame:
    """A growing run of bytes in one space, into which variables are placed one after the other.

    Parameters
    ----------
    space : str
        Of the symbols.

    Attributes
    ----------
    size : int
        Bytes so far.
    """

    def __init__(self, space: Space) -> None:
        self.space: Space = space
        self.size = 0

    def place(self, variable: Variable, gap: int = 0) -> Symbol:
        """Return where a variable goes, at least `gap` bytes behind the one before."""
        offset = _aligned(self.size + (gap if self.size else 0), variable.alignment)
        self.size = offset + variable.size
        return Symbol(variable.name, self.space, offset)


def _aligned(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment


@dataclass(frozen=True)
class ModuleData:
    """The ``.global`` and ``.const`` variables of a module.

    Attributes
    ----------
    symbols : dict of Variable to Symbol
        Where each is; the offsets are into `contents`.
    contents : bytes
        Initial contents of them all.
    ranges : tuple of (int, int)
        Which bytes belong to a variable; between them nobody may go.
    constant_ranges : tuple of (int, int)
        Which of them are constant.
    relocations : tuple of Relocation
        Addresses to be added into the contents.
    unknown : dict of Variable to str
        Of variables whose contents the emulator cannot know: what they point to.
    """

    symbols: dict[Variable, Symbol]
    contents: bytes
    ranges: tuple[tuple[int, int], ...]
    constant_ranges: tuple[tuple[int, int], ...]
    relocations: tuple[Relocation, ...]
    unknown: dict[Variable, str]


@dataclass
class _DataBuilder:
    tree: Tree
    symbols: dict[Variable, Symbol] = field(default_factory=dict)
    contents: bytearray = field(default_factory=bytearray)
    relocations: list[Relocation] = field(default_factory=list)
    unknown: dict[Variable, str] = field(default_factory=dict)

    def build(self) -> ModuleData:
        placed = [v for v in _all_variables(self.tree) if v.storage in {"global", "const"}]
        frames = Frame("global")
        ranges: dict[str, list[tuple[int, int]]] = {"global": [], "const": []}
        for variable in placed:
            if variable.external:
                continue
            offset = frames.place(variable, _RED_ZONE).offset
            space: Space = "const" if variable.storage == "const" else "global"
            self.symbols[variable] = Symbol(variable.name, space, offset)
            ranges[space].append((offset, offset + variable.size))
        self.contents.extend(bytes(frames.size))
        for variable, symbol in self.symbols.items():
            self._fill(variable, symbol.offset)
        return ModuleData(
            self.symbols,
            bytes(self.contents),
            tuple(sorted(ranges["global"] + ranges["const"])),
            tuple(ranges["const"]),
            tuple(self.relocations),
            self.unknown,
        )

    @cached_property
    def _by_name(self) -> dict[str, Symbol]:
        return {variable.name: symbol for variable, symbol in self.symbols.items()}

    @cached_property
    def _elsewhere(self) -> set[str]:
        """Names of functions, and of variables that are defined in other modules."""
        external = {variable.name for variable in self.tree.variables if variable.external}
        return external | {function.name for function in self.tree.functions}

    def _fill(self, variable: Variable, offset: int) -> None:
        size = type_size(variable.type)
        for number, initial in enumerate(variable.initial):
            start = offset + number * size
            if isinstance(initial.value, Reference):
                self._relocate(variable, initial, initial.value, start)
                continue
            bits = self._bits(variable.type, initial, initial.value)
            self.contents[start : start + size] = bits.to_bytes(size, "little")

    def _relocate(
        self, variable: Variable, initial: Initial, reference: Reference, start: int
    ) -> None:
        found = self._by_name.get(reference.name)
        if found is None and reference.name in self._elsewhere:
            self.unknown[variable] = reference.name
            return
        if found is None or type_size(variable.type) != 8:
            raise self._error(initial, f"{reference.name!r} is no address of 8 bytes known here")
        offset = found.offset + reference.offset
        self.relocations.append(Relocation(start, Symbol(found.name, found.space, offset)))

    def _bits(self, kind: str, initial: Initial, value: Immediate | FloatImmediate) -> int:
        if isinstance(value, FloatImmediate):
            if value.bits is not None and value.width == 8 * type_size(kind):
                return value.bits
            return self._float_bits(kind, initial, value.value)
        if kind in {"f16", "f32", "f64", "bf16"}:
            return self._float_bits(kind, initial, float(value.value))
        return value.value & ((1 << (8 * type_size(kind))) - 1)

    def _float_bits(self, kind: str, initial: Initial, value: float) -> int:
        if kind == "bf16":
            bits = f32_to_bf16(np.array([value], np.float32))
            return int(bits[0])
        formats = {"f16": "<e", "f32": "<f", "f64": "<d"}
        if kind not in formats:
            raise self._error(initial, f"a float is no {kind}; expected an integer")
        return int.from_bytes(struct.pack(formats[kind], value), "little")

    def _error(self, initial: Initial, message: str) -> PtxSyntaxError:
        return error_at(self.tree.source, initial.at, message)


def module_data(tree: Tree) -> ModuleData:
    """Place and fill the variables of a module that live in global memory.

    Raises
    ------
    PtxSyntaxError
        If an initial value does not fit its variable.
    """
    return _DataBuilder(tree).build()


def _all_variables(tree: Tree) -> Iterator[Variable]:
    yield from tree.variables
    for function in tree.functions:
        if function.body:
            yield from _body_variables(function.body)


def _body_variables(body: Body) -> Iterator[Variable]:
    for statement in body.statements:
        if isinstance(statement, Variable):
            yield statement
        elif isinstance(statement, Body):
            yield from _body_variables(statement)


@dataclass(frozen=True)
class SharedLayout:
    """Where shared variables are; `static` and `dynamic_start` are those of `Program`."""

    symbols: dict[Variable, Symbol]
    static: int
    dynamic_start: int


def shared_layout(variables: Iterable[Variable]) -> SharedLayout:
    """Place shared variables; all that have no size share the dynamic memory."""
    frame, symbols, alignment = Frame("shared"), {}, _DYNAMIC_ALIGNMENT
    dynamic: list[Variable] = []
    for variable in variables:
        if variable.size == 0:
            dynamic.append(variable)
            alignment = max(alignment, variable.alignment)
        else:
            symbols[variable] = frame.place(variable)
    start = _aligned(frame.size, alignment)
    for variable in dynamic:
        symbols[variable] = Symbol(variable.name, "shared", start)
    return SharedLayout(symbols, frame.size, start)


def kernel_parameters(entry: Function) -> tuple[Parameter, ...]:
    """Return the parameters of an entry, placed as the driver places them."""
    frame = Frame("param")
    found = []
    for variable in entry.parameters:
        offset = frame.place(variable).offset
        scalar = TYPES[variable.type] if variable.shape is None and variable.vector == 1 else None
        found.append(Parameter(variable.name, scalar, offset, variable.size, variable.alignment))
    return tuple(found)
