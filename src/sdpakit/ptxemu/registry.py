"""Which function builds the step of which opcode.

A *builder* looks at an instruction once, before anything runs, and returns its *step*: a function
of the machine and of the lanes that execute it. A step that ends its block may return the block
where all its lanes go; None says that the scheduler finds each lane's own in
`Machine.position` and `Machine.state`. What cannot change from run to run (types,
modifiers, constants) is decided in the builder; unknown forms are refused there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from sdpakit.ptxemu.errors import UnsupportedInstruction
from sdpakit.ptxemu.program import Instruction

if TYPE_CHECKING:
    from sdpakit.ptxemu.machine import Lanes, Machine

Step: TypeAlias = "Callable[[Machine, Lanes], int | None]"
BuilderFunction: TypeAlias = Callable[[Instruction], Step]
_F = TypeVar("_F", bound=BuilderFunction)

_builders: dict[str, BuilderFunction] = {}

# The last instruction of a block may send lanes elsewhere or make them wait.
_ENDING = frozenset({"bra", "brx", "ret", "exit", "trap", "bar", "barrier", "barrier_cluster"})


def instruction(*opcodes: str) -> Callable[[_F], _F]:
    """Register a builder for some opcodes."""

    def register(builder: _F) -> _F:
        for opcode in opcodes:
            if opcode in _builders:
                raise ValueError(f"two builders for {opcode!r}")
            _builders[opcode] = builder
        return builder

    return register


def build(ins: Instruction) -> Step:
    """Return the step of an instruction.

    Raises
    ------
    UnsupportedInstruction
        If there is none.
    """
    builder = _builders.get(ins.opcode)
    if builder is None:
        raise unsupported(ins, f"opcode {ins.opcode!r}")
    return builder(ins)


def unsupported(ins: Instruction, what: str) -> UnsupportedInstruction:
    """Return the error for a form that the emulator lacks; the builder raises it."""
    return UnsupportedInstruction(
        f"PTX line {ins.line}: {ins.text}\n  the emulator has no {what}; "
        f"it has the opcodes {', '.join(opcodes())}"
    )


def opcodes() -> tuple[str, ...]:
    """Return all opcodes that have a builder, sorted."""
    return tuple(sorted(_builders))


def ends_block(opcode: str, modifiers: tuple[str, ...]) -> bool:
    """Return whether an instruction may jump, wait or end, so that its block ends with it."""
    waits = opcode == "mbarrier" and modifiers[0] in {"try_wait", "test_wait"}
    return opcode in _ENDING or waits
