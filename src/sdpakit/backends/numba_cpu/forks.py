"""What lets a child of fork compile, whatever the other threads of its parent were doing.

A lock that another thread holds during a fork stays locked in the child for ever. Importing Numba
and LLVM, compiling and the files of the cache all take locks of other people. So whoever does that
here holds `LLVM_LOCK`, and a fork waits for it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")

LLVM_LOCK = threading.RLock()

# The hook of `logging` also takes a lock before a fork, and Numba logs while it compiles: the hook
# that is registered last runs first, so `logging` has to be imported before ours is registered.
_ = logging

_at_fork: list[contextlib.ExitStack] = []


def _hold() -> None:
    """Wait until no thread of ours compiles and none of anybody is inside LLVM."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(LLVM_LOCK)
        # The collector disposes of modules in any thread, and users of Numba compile without us.
        wrapper = getattr(sys.modules.get("llvmlite.binding.ffi"), "lib", None)
        if wrapper is not None:
            stack.enter_context(wrapper._lock)  # noqa: SLF001 - it offers no other way to wait
        _at_fork.append(stack.pop_all())


def _release() -> None:
    """Undo `_hold`, in the parent and in the child: the thread that forks lives in both."""
    if _at_fork:
        _at_fork.pop().close()


if hasattr(os, "register_at_fork"):  # where there is no fork, no lock is lost in one
    os.register_at_fork(before=_hold, after_in_parent=_release, after_in_child=_release)


class computed_once(Generic[T]):  # noqa: N801 - used as a decorator, like the one it replaces
    """A property that is kept in the instance, without the lock of `functools.cached_property`.

    That of Python 3.11 holds a lock while it computes. Here threads at once may compute the same
    value twice, which does no harm.
    """

    def __init__(self, function: Callable[[Any], T]) -> None:
        self._function = function
        self.__doc__ = function.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> computed_once[T]: ...

    @overload
    def __get__(self, instance: object, owner: type) -> T: ...

    def __get__(self, instance: object | None, owner: type) -> T | computed_once[T]:
        if instance is None:
            return self
        value = self._function(instance)
        instance.__dict__[self._function.__name__] = value  # found before this is asked again
        return value
