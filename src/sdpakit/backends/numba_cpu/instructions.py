"""What drivers are written in beyond Python: calls by address, loads and stores, an atomic counter.

Each instruction stands in a driver as a function with types, and says which LLVM code it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from sdpakit.backends.numba_cpu.functions import declare
from sdpakit.backends.numba_cpu.irtypes import F32, F64, I32, I64, PTR, IrType, Value


@dataclass(frozen=True)
class Instruction:
    """One instruction.

    Attributes
    ----------
    emit : callable
        Takes an IRBuilder and values of the arguments, and returns the value of the call; those of
        tuples are tuples.
    """

    emit: Callable[..., Any]

    def __call__(self, *_arguments: object) -> Any:
        """Refuse: there is no machine below a driver that Python runs."""
        raise NotImplementedError("an instruction of a driver runs in compiled code alone")


def _call(b: Any, address: Value, arguments: tuple[Value, ...]) -> Value:
    kind = ir.FunctionType(I64, [I64] * len(arguments))
    return b.call(b.inttoptr(address, ir.PointerType(kind)), arguments)


def _fetch_add(b: Any, address: Value, amount: Value) -> Value:
    return b.atomic_rmw("add", b.inttoptr(address, ir.PointerType(I64)), amount, "acq_rel")


def _prefetch(b: Any, address: Value) -> None:
    fetch = declare(b.module, "llvm.prefetch.p0", ir.VoidType(), [PTR, I32, I32, I32])
    read, second_level, data = I32(0), I32(2), I32(1)
    b.call(fetch, [b.inttoptr(address, PTR), read, second_level, data])


def _get(b: Any, d: Value, field: Value) -> Value:
    return b.load(b.gep(b.inttoptr(d, PTR), [field], source_etype=I64), typ=I64)


def _loader(kind: IrType) -> Instruction:
    def emit(b: Any, address: Value) -> Value:
        loaded = b.load(b.inttoptr(address, PTR), typ=kind, align=1)
        return b.fpext(loaded, F64) if kind == F32 else loaded

    return Instruction(emit)


def _storer(kind: IrType) -> Instruction:
    def emit(b: Any, address: Value, value: Value) -> None:
        stored = b.fptrunc(value, F32) if kind == F32 else value
        b.store(stored, b.inttoptr(address, PTR), align=1)

    return Instruction(emit)


# Call the function at an address with a tuple of int64 and return its int64.
call: Callable[[int, Any], int] = Instruction(_call)
# Add to the int64 at an address in one step and return what it was.
fetch_add: Callable[[int, int], int] = Instruction(_fetch_add)
# Ask for the cache line at an address, mapped or not, in the second-level cache.
prefetch: Callable[[int], None] = Instruction(_prefetch)
# Return a field of the descriptor at an address.
get: Callable[[int, int], int] = Instruction(_get)
# Return the float64 of some bits, and the bits of a float64.
float_of: Callable[[int], float] = Instruction(lambda b, bits: b.bitcast(bits, F64))
bits_of: Callable[[float], int] = Instruction(lambda b, number: b.bitcast(number, I64))

load_int: Callable[[int], int] = _loader(I64)
load_float32: Callable[[int], float] = _loader(F32)
load_float64: Callable[[int], float] = _loader(F64)
store_int: Callable[[int, int], None] = _storer(I64)
store_float32: Callable[[int, float], None] = _storer(F32)
store_float64: Callable[[int, float], None] = _storer(F64)
