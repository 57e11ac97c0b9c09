"""The worker of all drivers: takes items of a call until none are left, without Python's lock.

It is the one function that Numba compiles, which keeps it on disk where it can; what an item is,
the driver knows, whose addresses are in the descriptor.

Numba recompiles when this file changes, and only then: whatever the compiled code depends on has
to stay in this file.
"""

from __future__ import annotations

import functools
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from llvmlite import ir
from numba import config, njit, types
from numba.extending import intrinsic

from sdpakit.errors import CacheWarning, warn_user

# The first fields of every descriptor, int64.
(
    NEXT_ITEM,  # counter: the next item that nobody has taken
    DONE_ITEMS,  # counter: items that are done
    ITEMS,
    RUN_ITEM,  # address of a function (descriptor, number of the item, scratch)
    REBIND,  # address of a function of all arguments of the worker; 0: no call is repeated
    OWN_FIELDS,  # those of the driver begin here
) = range(6)

Worker = Callable[[int, int, int, int, int, int], None]

_I64 = ir.IntType(64)


@intrinsic
def _call(_typing: Any, address: Any, arguments: Any) -> Any:
    """Call the function at `address` with a tuple of int64 and return its int64."""

    def generate(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        function = ir.FunctionType(_I64, [_I64] * len(arguments))
        pointer = builder.inttoptr(values[0], function.as_pointer())
        operands = [builder.extract_value(values[1], n) for n in range(len(arguments))]
        return builder.call(pointer, operands)

    return types.int64(address, arguments), generate


@intrinsic
def _fetch_add(_typing: Any, address: Any, amount: Any) -> Any:
    """Add to the int64 at `address` in one step and return what it was."""

    def generate(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        pointer = builder.inttoptr(values[0], _I64.as_pointer())
        return builder.atomic_rmw("add", pointer, values[1], "acq_rel")

    return types.int64(address, amount), generate


@intrinsic
def _get(_typing: Any, d: Any, field: Any) -> Any:
    """Return a field of the descriptor at `d`."""

    def generate(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        pointer = builder.inttoptr(values[0], _I64.as_pointer())
        return builder.load(builder.gep(pointer, [values[1]]))

    return types.int64(d, field), generate


def _work(d: int, scratch: int, q: int, k: int, v: int, out: int) -> None:
    """Take items of the call with the descriptor at `d` until none are left.

    The last four are 0, or addresses of array objects to do the call with, by one thread alone.
    """
    if q != 0:
        _call(_get(d, REBIND), (d, scratch, q, k, v, out))
    while True:
        number = _fetch_add(d + 8 * NEXT_ITEM, 1)
        if number >= _get(d, ITEMS):
            return
        _call(_get(d, RUN_ITEM), (d, number, scratch))
        _fetch_add(d + 8 * DONE_ITEMS, 1)


def _check_place_of_cache() -> None:
    """Raise RuntimeError where Numba's cache would be a folder named "~" in the working directory.

    Numba takes the directory that is configured, else that of this file, else the user's, which it
    does not find without a home.
    """
    beside = Path(__file__).with_name("__pycache__")
    if not beside.is_dir():
        beside = beside.parent
    named = config.CACHE_DIR or os.environ.get("XDG_CACHE_HOME")
    if not named and not os.access(beside, os.W_OK):
        Path.home()


@functools.cache
def worker() -> Worker:
    """Return the compiled worker, from Numba's cache on disk if it can."""
    signature = types.void(*[types.int64] * 6)
    try:
        _check_place_of_cache()
        return cast(Worker, njit(signature, nogil=True, cache=True)(_work))
    except (RuntimeError, OSError, EOFError, pickle.UnpicklingError) as error:
        # A full or read-only disk, no home, a damaged file; a fault of the code shows again below.
        warn_user(
            f"the worker of numba_cpu is compiled anew in every process: {error}; "
            "set NUMBA_CACHE_DIR to a directory that can be written",
            CacheWarning,
        )
    return cast(Worker, njit(signature, nogil=True)(_work))


def address_of(worker: Worker) -> int:
    """Return the address of the function that `worker` returned, for callers in machine code."""
    (version,) = cast(Any, worker).overloads.values()
    name = version.fndesc.llvm_cfunc_wrapper_name
    return cast(int, version.library.get_pointer_to_function(name))
