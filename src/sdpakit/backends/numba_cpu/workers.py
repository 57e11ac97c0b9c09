"""Workers, compiled by Numba, which keeps them on disk where it can."""

from __future__ import annotations

import inspect
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

from numba import config, njit, types

from sdpakit.errors import CacheWarning, warn_user

Worker = TypeVar("Worker", bound=Callable[..., None])


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


def compiled(work: Worker) -> Worker:
    """Return a function of int64s that returns nothing, compiled, from Numba's cache if it can."""
    signature = types.void(*[types.int64] * len(inspect.signature(work).parameters))
    try:
        _check_place_of_cache()
        return cast(Worker, njit(signature, nogil=True, cache=True)(work))
    except (RuntimeError, OSError, EOFError, pickle.UnpicklingError) as error:
        # A full or read-only disk, no home, a damaged file; a fault of the code shows again below.
        warn_user(
            f"the driver of numba_cpu is compiled anew in every process: {error}; "
            "set NUMBA_CACHE_DIR to a directory that can be written",
            CacheWarning,
        )
    return cast(Worker, njit(signature, nogil=True)(work))


def address_of(worker: Callable[..., None]) -> int:
    """Return the address of a function that `compiled` returned, for callers in machine code."""
    (version,) = cast(Any, worker).overloads.values()
    name = version.fndesc.llvm_cfunc_wrapper_name
    return cast(int, version.library.get_pointer_to_function(name))
