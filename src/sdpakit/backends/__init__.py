"""The table of backends: built-in ones and plug-ins of the entry-point group ``sdpakit.backends``.

Nothing is imported before a backend is asked for. A plug-in that is broken, or that takes a name
twice, is an error of whoever asks for that name and a line of `status()`; it can never break
`import sdpakit` or another backend.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, cast

from sdpakit.errors import (
    BackendError,
    BackendUnavailableError,
    UnknownBackendError,
    did_you_mean,
    format_error,
)

if TYPE_CHECKING:
    from sdpakit.backends.base import Backend

__all__ = ["AUTO", "BackendStatus", "Status", "get", "names", "status"]

GROUP = "sdpakit.backends"
# Order of wish of backend="auto". Installing a plug-in must not change what it chooses.
AUTO: tuple[str, ...] = ("numba_cpu", "interp")
_BUILTIN: dict[str, str] = {
    "numba_cpu": "sdpakit.backends.numba_cpu.backend:BACKEND",
    "interp": "sdpakit.backends.interp:BACKEND",
    "cupy": "sdpakit.backends.cupy.backend:BACKEND",
}
_MEMBERS = ("availability", "capabilities", "unsupported_reasons", "lower", "load")


@dataclass(frozen=True, slots=True)
class BackendStatus:
    """One line of `status()`.

    Attributes
    ----------
    name : str
        What `backend=` takes.
    ok : bool
        Whether it can run here.
    source : str
        "built-in", or the distribution that brought the plug-in.
    reason, hint : str
        Why it cannot run, and what to do.
    """

    name: str
    ok: bool
    source: str
    reason: str = ""
    hint: str = ""

    def __str__(self) -> str:
        """Return one line of text."""
        state = "available" if self.ok else f"not available: {self.reason}"
        hint = f" ({self.hint})" if self.hint and not self.ok else ""
        return f"{self.name} [{self.source}]: {state}{hint}"


class Status(tuple[BackendStatus, ...]):
    """The states of all backends; prints as one line each."""

    __slots__ = ()

    def __repr__(self) -> str:
        """Return one line for each backend."""
        return "\n".join(str(line) for line in self)


def names() -> tuple[str, ...]:
    """Return the names that `backend=` takes, built-in ones first."""
    return tuple(dict.fromkeys((*_BUILTIN, *(plugin.name for plugin in _plugins()))))


def get(name: str) -> Backend:
    """Return the backend of a name, loading its module.

    Parameters
    ----------
    name : str
        One of `names()`.

    Returns
    -------
    Backend
        The manifest; it may be unable to run here (`availability`).

    Raises
    ------
    UnknownBackendError
        If no backend has the name.
    BackendUnavailableError
        If its module cannot be imported.
    BackendError
        If two distributions claim the name, or what the entry point names is no backend.
    """
    plugins = [plugin for plugin in _plugins() if plugin.name == name]
    if name not in _BUILTIN and not plugins:
        _refuse_unknown(name)
    claims = ["sdpakit itself"] * (name in _BUILTIN) + [_distribution(plugin) for plugin in plugins]
    if len(claims) > 1:
        raise BackendError(
            format_error(
                f"backend {name!r}",
                got=f"the name claimed by {' and by '.join(claims)}",
                allowed=f"one distribution for each name of the entry-point group {GROUP!r}",
                fix="uninstall all but one of them",
            )
        )
    target = _BUILTIN[name] if name in _BUILTIN else plugins[0].value
    return _load(name, target, claims[0])


def status() -> Status:
    """Return the state of every backend, with the reason and a hint where it cannot run.

    Returns
    -------
    Status
        One `BackendStatus` for each name; broken plug-ins included.
    """
    return Status(_status_lines())


def _status_lines() -> Iterator[BackendStatus]:
    for name in names():
        sources = [_distribution(plugin) for plugin in _plugins() if plugin.name == name]
        source = " and ".join(["built-in"] * (name in _BUILTIN) + sources)
        try:
            found = get(name).availability()
        except Exception as error:  # noqa: BLE001 - a line of the table, whatever a plug-in raises
            yield BackendStatus(name, ok=False, source=source, reason=_one_line(error))
        else:
            yield BackendStatus(
                name, ok=found.ok, source=source, reason=found.reason, hint=found.hint
            )


@functools.cache
def _plugins() -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group=GROUP))


def _distribution(plugin: EntryPoint) -> str:
    return plugin.dist.name if plugin.dist is not None else "an unnamed distribution"


def _load(name: str, target: str, source: str) -> Backend:
    module, _, attribute = target.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # a plug-in may fail with anything; it becomes an error of that name
        raise BackendUnavailableError(
            format_error(
                f"backend {name!r}",
                got=f"{type(error).__name__} while loading {target} of {source}: {error}",
                allowed="a module that can be imported",
                fix=f"repair or uninstall {source}, or name another backend: {', '.join(AUTO)}",
            )
        ) from error
    missing = [member for member in _MEMBERS if not callable(getattr(found, member, None))]
    if missing or getattr(found, "name", None) != name:
        raise BackendError(
            format_error(
                f"backend {name!r}",
                got=f"{target} of {source}, with name {getattr(found, 'name', None)!r}"
                + (f" and without {', '.join(missing)}" if missing else ""),
                allowed="an object with the six members of sdpakit.backends.base.Backend",
                fix=f"report it to the authors of {source}",
            )
        )
    return cast("Backend", found)


def _refuse_unknown(name: str) -> None:
    known = names()
    raise UnknownBackendError(
        format_error(
            "backend",
            got=repr(name),
            allowed=", ".join(("auto", *known)),
            fix=did_you_mean(name, known, "use one of these names"),
        )
    )


def _one_line(error: Exception) -> str:
    """Return what came and the remedy of an error in one line."""
    lines = [line.strip() for line in str(error).splitlines()]
    return "; ".join(line for line in lines if not line.startswith("allowed:"))
