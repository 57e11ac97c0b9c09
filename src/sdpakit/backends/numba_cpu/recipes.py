"""What IR text will be made of: a function and its arguments stand for the text that they make.

To find machine code that is kept, the text is not needed, and making it takes most of the time of a
compilation that has nothing to compile. So keys are made of a *description* of the arguments.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from sdpakit.backends.numba_cpu.forks import computed_once
from sdpakit.errors import InternalError
from sdpakit.expr.nodes import Expr
from sdpakit.expr.text import to_text

KEPT_TEXTS = 64


def described(value: object) -> str:
    """Return text of a value that no other value has, dataclasses field by field.

    Parameters
    ----------
    value : object
        A plain value, an expression, or a tuple or dataclass of such.

    Raises
    ------
    InternalError
        If it is or holds something else: a key that leaves something out would find wrong code.
    """
    if value is None or type(value) in (bool, int, float, str):
        return repr(value)
    if isinstance(value, Expr):
        return f"<{to_text(value)}>"
    if isinstance(value, tuple):
        return f"({', '.join(map(described, value))})"
    if is_dataclass(value) and not isinstance(value, type):
        parts = (f"{field.name}={described(getattr(value, field.name))}" for field in fields(value))
        return f"{type(value).__qualname__}({', '.join(parts)})"
    raise InternalError(f"no key can be made of a {type(value).__name__}")


@dataclass(frozen=True)
class ModuleRecipe:
    """How the text of one module is made.

    Attributes
    ----------
    emit : callable
        Returns the text; a function with a name of its own, whose result depends on the sources of
        the emitter and on the arguments alone.
    arguments : tuple
        What it is called with: values that `described` takes.
    """

    emit: Callable[..., str]
    arguments: tuple[Any, ...]

    def text(self) -> str:
        """Return the text of the module; made now, unless it was not long ago."""
        return _text(self)

    @computed_once
    def description(self) -> str:
        """What stands for the text in a key."""
        return f"{self.emit.__module__}.{self.emit.__qualname__}{described(self.arguments)}"


@functools.lru_cache(maxsize=KEPT_TEXTS)
def _text(recipe: ModuleRecipe) -> str:
    return recipe.emit(*recipe.arguments)


@dataclass(frozen=True)
class KernelRecipe:
    """The modules of a kernel: one of its own, and those that it shares with other kernels.

    Each is compiled for itself and kept for itself, so that a new kernel costs its own part. They
    are linked when they are loaded: one may call functions of another.

    Attributes
    ----------
    own : ModuleRecipe
        What nobody else needs.
    shared : tuple of ModuleRecipe
        Further modules, without a name that occurs twice.
    """

    own: ModuleRecipe
    shared: tuple[ModuleRecipe, ...] = ()

    def __iter__(self) -> Iterator[ModuleRecipe]:
        return iter((self.own, *self.shared))

    def text(self) -> str:
        """Return the text of all modules."""
        return "\n".join(module.text() for module in self)


def digest(kernels: Iterable[KernelRecipe]) -> str:
    """Return a key of some kernels: equal where their code is equal, whatever the host."""
    parts = "\n".join(module.description for kernel in kernels for module in kernel)
    return hashlib.sha256(parts.encode()).hexdigest()
