"""Opcodes that integers and floats share: which module builds their steps."""

from __future__ import annotations

from sdpakit.ptxemu.program import Instruction
from sdpakit.ptxemu.registry import BuilderFunction, Step, instruction, unsupported
from sdpakit.ptxemu.steps import carry, floating, integer

_FLOATS = frozenset({"f16", "bf16", "f16x2", "bf16x2", "f32", "f32x2", "f64"})


def _share(opcode: str, of_integers: BuilderFunction, of_floats: BuilderFunction) -> None:
    @instruction(opcode)
    def build(ins: Instruction) -> Step:
        if not ins.types:
            raise unsupported(ins, f"form of {opcode} without a type")
        return of_floats(ins) if ins.type.name in _FLOATS else of_integers(ins)


def _with_carry(of_words: BuilderFunction, of_one: BuilderFunction) -> BuilderFunction:
    return lambda ins: of_words(ins) if ins.has("cc") else of_one(ins)


_share("add", _with_carry(carry.add, integer.add), floating.add)
_share("sub", _with_carry(carry.subtract, integer.subtract), floating.subtract)
_share("mul", integer.multiply, floating.multiply)
_share("mad", _with_carry(carry.multiply_add, integer.multiply_add), floating.multiply_add)
_share("div", integer.divide, floating.divide)
_share("abs", integer.absolute, floating.absolute)
_share("neg", integer.negate, floating.negate)
_share("min", integer.minimum, floating.minimum)
_share("max", integer.maximum, floating.maximum)
