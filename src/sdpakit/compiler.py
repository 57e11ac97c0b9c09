"""`compile`: choose a backend, build, lower and load once; everything equal shares the loaded code.

The key of loaded code is the program, the backend and the options. Values that may change between
calls (scale, cap, window sizes, lengths) are no part of a program, so specs that differ in these
alone share one compilation.
"""

from __future__ import annotations

import copyreg
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from sdpakit import backends
from sdpakit.backends.selection import Choice, select
from sdpakit.binding import Signature
from sdpakit.calling import checked_call
from sdpakit.errors import ArgumentTypeError, format_error
from sdpakit.ir.build import build
from sdpakit.kernel import Kernel
from sdpakit.passes import run_pipeline
from sdpakit.spec import AttentionSpec

if TYPE_CHECKING:
    from sdpakit.backends.base import Artifact, Backend, GradientBackend
    from sdpakit.ir.program import Program

__all__ = ["Stats", "clear", "compile", "stats"]


@dataclass(frozen=True, slots=True)
class Stats:
    """What the process has compiled so far.

    Attributes
    ----------
    compilations : int
        Programs that were lowered and loaded.
    reuses : int
        Times that `compile` found loaded code.
    cached : int
        Programs that are loaded now.
    """

    compilations: int = 0
    reuses: int = 0
    cached: int = 0


@checked_call
def compile(  # noqa: A001 - the verb of the package; nobody needs the built-in here
    spec: AttentionSpec,
    backend: str | Sequence[str] = "auto",
    options: Mapping[str, Any] | None = None,
) -> Kernel:
    """Compile a spec.

    Parameters
    ----------
    spec : AttentionSpec
        What to compute.
    backend : str or sequence of str, optional
        A name, which is never replaced by another; names in order of wish; or "auto", which is
        ``numba_cpu`` and then ``interp``. `sdpakit.backends.status()` lists the names.
    options : mapping, optional
        Options of the backend, which it lists in its capabilities; they change how, never what.

    Returns
    -------
    Kernel
        Callable; equal programs share their code.

    Raises
    ------
    UnknownBackendError
        If a name is that of no backend.
    BackendUnavailableError
        If none of the named backends can run here.
    UnsupportedSpecError
        If no asked-for backend compiles the spec; it says why, by backend.
    ArgumentTypeError, ArgumentError
        If the spec is no spec, or an option is unknown or no plain value.

    Examples
    --------
    >>> import sdpakit as sk
    >>> kernel = sk.compile(sk.AttentionSpec(q_heads=8, head_dim=64), backend="interp")
    >>> kernel.backend
    'interp'
    """
    signature, choice, loaded = loaded_code(spec, backend, options)
    return Kernel(signature, choice, loaded.artifact, loaded.launcher)


def loaded_code(
    spec: AttentionSpec,
    backend: str | Sequence[str],
    options: Mapping[str, Any] | None,
    *,
    gradients: bool = False,
) -> tuple[Signature, Choice, Loaded]:
    """Choose a backend and return the code of a spec on it, compiled if this is the first request.

    Parameters
    ----------
    spec, backend, options
        As of `compile`.
    gradients : bool
        Whether the code of the backward pass is wanted.

    Returns
    -------
    tuple of Signature, Choice and Loaded
        What calls must give, which backend it is, and its code.
    """
    _check_spec(spec)
    order = _order(backend)
    given = _checked_options(options)
    chosen, passed_over = select(spec, order, given, gradients=gradients)
    asked = backend if isinstance(backend, str) else ", ".join(order)
    choice = Choice(chosen.name, given, asked, passed_over)
    program, constants = build(spec)
    loaded = _CACHE.get(chosen, program, given, gradients=gradients)
    return Signature.of(spec, program, loaded.program, constants), choice, loaded


def stats() -> Stats:
    """Return how much was compiled and how often loaded code was found."""
    return _CACHE.stats()


def clear() -> None:
    """Forget all loaded code; kernels that exist keep theirs."""
    _CACHE.clear()


@dataclass(frozen=True, slots=True)
class Loaded:
    """Loaded code.

    Attributes
    ----------
    program : Program
        After the passes.
    artifact : Artifact
        The code as data.
    launcher : Launcher or BackwardLauncher
        The code as something to call.
    """

    program: Program
    artifact: Artifact
    launcher: Any


class _Cache:
    """Loaded code by (program, backend, options); one thread compiles a key, the others wait."""

    def __init__(self) -> None:
        self.reset_locks()
        self._loaded: dict[tuple[Any, ...], Loaded] = {}
        self._stats = Stats()

    def reset_locks(self) -> None:
        """Make new locks: a fork may leave those of the parent held by threads it did not copy."""
        self._lock = threading.Lock()
        self._key_locks: dict[tuple[Any, ...], threading.Lock] = {}

    def get(
        self, backend: Backend, program: Program, options: Mapping[str, Any], *, gradients: bool
    ) -> Loaded:
        """Return the loaded code of a program, compiling it if this is the first request."""
        key = (program, backend.name, tuple(sorted(options.items())), gradients)
        with self._lock:
            if (found := self._find(key)) is not None:
                return found
            key_lock = self._key_locks.setdefault(key, threading.Lock())
        with key_lock:
            with self._lock:
                if (found := self._find(key)) is not None:
                    return found
            loaded = _compile(backend, program, options, gradients=gradients)
            with self._lock:
                self._loaded[key] = loaded
                self._key_locks.pop(key, None)
                self._stats = replace(self._stats, compilations=self._stats.compilations + 1)
            return loaded

    def stats(self) -> Stats:
        """Return the counters."""
        with self._lock:
            return replace(self._stats, cached=len(self._loaded))

    def clear(self) -> None:
        """Forget everything that is loaded; the counters go on."""
        with self._lock:
            self._loaded.clear()

    def _find(self, key: tuple[Any, ...]) -> Loaded | None:
        found = self._loaded.get(key)
        if found is not None:
            self._stats = replace(self._stats, reuses=self._stats.reuses + 1)
        return found


def _compile(
    backend: Backend, program: Program, options: Mapping[str, Any], *, gradients: bool
) -> Loaded:
    scheduled = run_pipeline(program)
    if gradients:
        capable = cast("GradientBackend", backend)  # its capabilities say so
        artifact = capable.lower_backward(scheduled, options)
        return Loaded(scheduled, artifact, capable.load_backward(artifact))
    artifact = backend.lower(scheduled, options)
    return Loaded(scheduled, artifact, backend.load(artifact))


def _check_spec(spec: object) -> None:
    if not isinstance(spec, AttentionSpec):
        raise ArgumentTypeError(
            format_error(
                "spec",
                got=type(spec).__name__,
                allowed="an AttentionSpec",
                fix="write compile(AttentionSpec(...)), or call sdpakit.attention(q, k, v)",
            )
        )


def _order(backend: object) -> tuple[str, ...]:
    if backend == "auto":
        return backends.AUTO
    if isinstance(backend, str):
        return (backend,)
    order: tuple[object, ...] = tuple(backend) if isinstance(backend, Sequence) else ()
    names = tuple(name for name in order if isinstance(name, str))
    if not names or len(names) < len(order):
        raise ArgumentTypeError(
            format_error(
                "backend",
                got=repr(backend),
                allowed="'auto', a name, or a non-empty sequence of names in order of wish",
                fix=f"name one of {', '.join(backends.names())}",
            )
        )
    return names


def _checked_options(options: object) -> dict[str, Any]:
    if options is None:
        return {}
    if not isinstance(options, Mapping) or not all(isinstance(name, str) for name in options):
        raise ArgumentTypeError(
            format_error(
                "options",
                got=type(options).__name__,
                allowed="a mapping from names to plain values",
                fix="pass options={'name': value}",
            )
        )
    for name, value in options.items():
        if not isinstance(value, bool | int | float | str | None):
            raise ArgumentTypeError(
                format_error(
                    f"options[{name!r}]",
                    got=f"{value!r} ({type(value).__name__})",
                    allowed="bool, int, float, str or None",
                    fix="pass a plain value",
                )
            )
    return dict(options)


def _reduce(kernel: Kernel) -> tuple[Any, ...]:
    """Pickle a kernel as the request that makes it again (code is bound to the process)."""
    return compile, (kernel.spec, kernel.backend, kernel.options)


_CACHE = _Cache()
copyreg.pickle(Kernel, _reduce)
if hasattr(os, "register_at_fork"):  # where there is no fork, no lock is lost in one
    os.register_at_fork(after_in_child=_CACHE.reset_locks)
