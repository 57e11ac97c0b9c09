"""What a target must leave alone in the process that judges it (ENV-1), and how it is put right.

Watched are the functions that the judge computes with, as they were when this module was imported,
the floating-point environment of the thread, and places: the working directory, `sys.path` and what
`os.environ` held. A judge that computes with what a target left behind would find anything right.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import math
import os
import sys
from collections.abc import Callable, Iterator
from operator import is_, itemgetter
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")

_OF_NUMPY = (
    "numpy",
    "numpy.linalg",
    "numpy.random",
    "numpy._core._methods",
    "numpy._core._ufunc_config",
    "numpy._core.fromnumeric",
    "numpy._core.umath",
)
# Consoles and debuggers put their own in the place of these.
_OTHERS_REPLACE = {"breakpoint", "exit", "help", "input", "open", "print", "quit"}


def _functions(module: ModuleType) -> dict[str, Any]:
    return {
        name: found
        for name, found in vars(module).items()
        if callable(found) and not (module is builtins and name in _OTHERS_REPLACE)
        if not (name.startswith("__") or (module is builtins and name.startswith("_")))
    }


_MODULES = [builtins, math, *(sys.modules[name] for name in _OF_NUMPY if name in sys.modules)]
_FUNCTIONS = [(module, _functions(module)) for module in _MODULES]
_KNOWN = [(vars(m), itemgetter(*known), tuple(known.values())) for m, known in _FUNCTIONS]
# Bound here, as a target may replace those of builtins, and what it puts there would be asked.
_all, _map, _vars = all, map, vars

# Bits, for no arithmetic is to be trusted here: 2^-1022 / 2 and 2 * 2^-1074 are subnormal, and each
# mode of rounding but that to nearest makes another number of one of the three sums.
_FACTORS = np.array([0x0010000000000000, 1], np.uint64).view(np.float64), np.array([0.5, 2.0])
_TERMS = np.array([1.0, -1.0, 1.0]), np.array([1.0, -1.0, 1.5]) * 1.1102230246251565e-16
_PRODUCTS_RIGHT = np.array([0x0008000000000000, 2], np.uint64).tobytes()
_SUMS_RIGHT = np.array([0x3FF0000000000000, 0xBFF0000000000000, 0x3FF0000000000001], np.uint64)
_SUMS_RIGHT_BYTES = _SUMS_RIGHT.tobytes()
_multiply, _add = np.multiply, np.add

_at_load: dict[int, tuple[object, list[str]]] = {}


class DisturbedError(Exception):
    """A target changed what it must leave alone.

    Parameters
    ----------
    when : str
        "the call", or what else was done.
    changes : list of str
        What it changed; put right where not said otherwise.
    error : BaseException, optional
        What it raised besides.
    """

    def __init__(self, when: str, changes: list[str], error: BaseException | None = None) -> None:
        beside = f", and {type(error).__name__} was raised" if error is not None else ""
        super().__init__(f"{when} changed the process (ENV-1): {'; '.join(changes)}{beside}")


class Watch:
    """Remembers the process, to tell after a step of a target what became of it.

    Attributes
    ----------
    before : list of str
        What was changed before, by whatever ran since the last look; it is put right.
    """

    def __init__(self) -> None:
        self.before = [*_numbers(), *_replaced()]
        self._folder = _folder()
        self._path = list(sys.path)
        self._environ = dict(os.environ)

    def put_right(self, *, paths: bool = True) -> list[str]:
        """Return a text for each change, and undo it.

        Parameters
        ----------
        paths : bool
            Whether `sys.path` and `os.environ` are looked at; a module may add to both when it is
            imported.

        Returns
        -------
        list of str
            Nothing if all is as it was.
        """
        changes = [*_numbers(), *_replaced(), *self._moved()]
        return [*changes, *self._redirected()] if paths else changes

    def _moved(self) -> Iterator[str]:
        if self._folder is not None and (now := _folder()) != self._folder:
            os.chdir(self._folder)
            yield f"the working directory became {now}"

    def _redirected(self) -> Iterator[str]:
        if sys.path != self._path:
            sys.path[:] = self._path
            yield "sys.path was changed"
        names = [name for name in self._environ if os.environ.get(name) != self._environ[name]]
        if names:
            os.environ.update(self._environ)
            yield f"os.environ was changed ({', '.join(sorted(names))})"


def watched(when: str, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
    """Run one step of a target and look at what it left behind.

    Parameters
    ----------
    when : str
        What the step is, for the message.
    function : callable
        Of the target.
    *args, **kwargs
        Its arguments.

    Returns
    -------
    object
        What the function returned.

    Raises
    ------
    DisturbedError
        If the process was changed, before or by the step. All else comes as it was raised.
    """
    watch = Watch()
    if watch.before:
        raise DisturbedError(f"something before {when}, or loading the target,", watch.before)
    try:
        found = function(*args, **kwargs)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        if changes := watch.put_right():
            raise DisturbedError(when, changes, error) from error
        raise
    if changes := watch.put_right():
        raise DisturbedError(when, changes)
    return found


def loaded(load: Callable[[], T]) -> T:
    """Load a target, and remember what that changed in the process; see `at_load`.

    Parameters
    ----------
    load : callable
        Imports what it must, and returns the target.

    Returns
    -------
    object
        What `load` returned.
    """
    watch = Watch()
    try:
        found = load()
    except BaseException:
        watch.put_right(paths=False)
        raise
    if changes := watch.put_right(paths=False):
        _at_load[id(found)] = (found, changes)  # the object is kept, so that its id stays its own
    return found


def at_load(target: object) -> list[str]:
    """Return what loading a target changed in the process, one text for each.

    Parameters
    ----------
    target : object
        What `loaded` returned.

    Returns
    -------
    list of str
        Nothing for a target that was loaded otherwise.
    """
    return _at_load.get(id(target), (target, []))[1]


def _replaced() -> list[str]:
    """Say which functions are others than they were, and put them back."""
    if _are_known():
        return []
    found = []
    for module, known in _FUNCTIONS:
        for name, right in known.items():
            now = _vars(module)
            if now.get(name) is not right:
                now[name] = right
                found.append(f"{module.__name__}.{name}")
    return [f"{', '.join(found)} {'was' if len(found) == 1 else 'were'} replaced"]


def _are_known() -> bool:
    try:
        return _all(_all(_map(is_, get(now), known)) for now, get, known in _KNOWN)
    except KeyError:  # a name was taken away
        return False


def _numbers() -> list[str]:
    """Say how arithmetic is other than IEEE 754 has it by default, and put that right."""
    wrong = _of_arithmetic()
    if not wrong:
        return []
    _reset_arithmetic()
    lasts = ", and cannot be put right here: no verdict is to be had" if _of_arithmetic() else ""
    return [f"{text}{lasts}" for text in wrong]


def _of_arithmetic() -> list[str]:
    found = []
    if _multiply(*_FACTORS).tobytes() != _PRODUCTS_RIGHT:
        found.append("arithmetic takes subnormal numbers for 0 (flush to zero)")
    if _add(*_TERMS).tobytes() != _SUMS_RIGHT_BYTES:
        found.append("arithmetic does not round to nearest")
    return found


def _reset_arithmetic() -> None:
    """Set the default floating-point environment, as `fesetenv(FE_DFL_ENV)` of C does."""
    with contextlib.suppress(AttributeError, OSError):  # no such function: `_numbers` says so
        library = ctypes.CDLL(None)
        try:
            default: Any = ctypes.byref(ctypes.c_byte.in_dll(library, "_FE_DFL_ENV"))  # macOS
        except ValueError:
            default = ctypes.c_void_p(-1)  # glibc and musl
        library.fesetenv(default)


def _folder() -> Path | None:
    try:
        return Path.cwd()
    except FileNotFoundError:
        return None  # somebody removed it; there is no way back to it
