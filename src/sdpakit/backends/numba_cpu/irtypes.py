"""Types and constants of LLVM IR, for scalars and vectors alike."""

from __future__ import annotations

import functools
from typing import Any

from llvmlite import ir

Value = Any  # a value of llvmlite.ir, which carries no types
IrType = Any

I1, I8, I16, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
F16, F32, F64 = ir.HalfType(), ir.FloatType(), ir.DoubleType()
PTR = ir.PointerType()


def element_of(kind: IrType) -> IrType:
    """Return the type of one lane."""
    return kind.element if isinstance(kind, ir.VectorType) else kind


def with_lanes_of(value: Value, scalar: IrType) -> IrType:
    """Return the type that has elements of `scalar` and as many lanes as the value."""
    kind = value.type
    return ir.VectorType(scalar, kind.count) if isinstance(kind, ir.VectorType) else scalar


class _Splat(ir.Constant):
    """One number in all lanes, written `splat (float 1.0)`, which is quick to emit and read."""

    def __init__(self, kind: IrType, number: float | int) -> None:
        super().__init__(kind, ir.Undefined)
        self._text = f"splat ({ir.Constant(kind.element, number)})"

    def _get_reference(self) -> str:
        return self._text


def constant(kind: IrType, number: float | int) -> Value:
    """Return a constant of a type, the same in all lanes."""
    return (_Splat if isinstance(kind, ir.VectorType) else ir.Constant)(kind, number)


@functools.lru_cache(maxsize=1024)
def whole(number: int) -> Value:
    """Return an i64 constant; kept, as is its text, because few numbers come thousands of times."""
    return ir.Constant(I64, number)


@functools.lru_cache(maxsize=1024)
def lane_numbers(lanes: tuple[int, ...]) -> Value:
    """Return a vector of i32 constants, kept likewise: each shuffle has one."""
    return ir.Constant(ir.VectorType(I32, len(lanes)), lanes)


def constant_like(value: Value, number: float | int) -> Value:
    """Return a constant of the type of a value."""
    return constant(value.type, number)
