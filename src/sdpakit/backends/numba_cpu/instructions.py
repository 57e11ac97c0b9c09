"""What the drivers need beyond Python: calls by address, loads and stores, an atomic counter.

Numba does not look at this file when it decides whether a driver is compiled anew. So none of these
ever changes its meaning: another meaning gets another name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

_I64 = ir.IntType(64)

# Functions that only compiled code calls need no entries from Python, and no exceptions.
inner = njit(
    nogil=True, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True, _nrt=False
)


@intrinsic
def call(_typing: Any, address: Any, arguments: Any) -> Any:
    """Call the function at `address` with a tuple of int64 and return its int64."""

    def generate(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        function = ir.FunctionType(_I64, [_I64] * len(arguments))
        pointer = builder.inttoptr(values[0], function.as_pointer())
        operands = [builder.extract_value(values[1], n) for n in range(len(arguments))]
        return builder.call(pointer, operands)

    return types.int64(address, arguments), generate


@intrinsic
def fetch_add(_typing: Any, address: Any, amount: Any) -> Any:
    """Add to the int64 at `address` in one step and return what it was."""

    def generate(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        pointer = builder.inttoptr(values[0], _I64.as_pointer())
        return builder.atomic_rmw("add", pointer, values[1], "acq_rel")

    return types.int64(address, amount), generate


@intrinsic
def prefetch(_typing: Any, address: Any) -> Any:
    """Ask for the cache line at `address`, mapped or not, in the second-level cache."""

    def generate(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        pointer = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [pointer, *[ir.IntType(32)] * 3])
        fetch = builder.module.globals.get("llvm.prefetch.p0")
        fetch = fetch or ir.Function(builder.module, kind, "llvm.prefetch.p0")
        read, second_level, data = (ir.Constant(ir.IntType(32), n) for n in (0, 2, 1))
        builder.call(fetch, [builder.inttoptr(values[0], pointer), read, second_level, data])
        return context.get_dummy_value()

    return types.void(address), generate


@intrinsic
def get(_typing: Any, d: Any, field: Any) -> Any:
    """Return a field of the descriptor at `d`."""

    def generate(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        pointer = builder.inttoptr(values[0], _I64.as_pointer())
        return builder.load(builder.gep(pointer, [values[1]]))

    return types.int64(d, field), generate


def _loader(element: Any, result: Any) -> Any:
    def generate(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        pointer = builder.inttoptr(values[0], element.as_pointer())
        loaded = builder.load(pointer, align=1)
        return builder.fpext(loaded, ir.DoubleType()) if element == ir.FloatType() else loaded

    return intrinsic(lambda _typing, address: (result(address), generate))


def _storer(element: Any) -> Any:
    def generate(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        value = builder.fptrunc(values[1], element) if element == ir.FloatType() else values[1]
        pointer = builder.inttoptr(values[0], element.as_pointer())
        builder.store(value, pointer, align=1)
        return context.get_dummy_value()

    return intrinsic(lambda _typing, address, value: (types.void(address, value), generate))


@intrinsic
def float_of(_typing: Any, bits: Any) -> Any:
    """Return the float64 of these bits."""

    def generate(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        return builder.bitcast(values[0], ir.DoubleType())

    return types.float64(bits), generate


load_int: Callable[[int], int] = _loader(_I64, types.int64)
load_float32: Callable[[int], float] = _loader(ir.FloatType(), types.float64)
load_float64: Callable[[int], float] = _loader(ir.DoubleType(), types.float64)
store_int = _storer(_I64)
store_float32 = _storer(ir.FloatType())
store_float64 = _storer(ir.DoubleType())
