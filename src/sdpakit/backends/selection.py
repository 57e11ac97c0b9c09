"""Which backend compiles a spec: the first in the order of wish that can, and why not another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from sdpakit.backends import get
from sdpakit.errors import (
    ArgumentError,
    BackendError,
    BackendUnavailableError,
    UnknownBackendError,
    UnsupportedSpecError,
    did_you_mean,
    format_error,
)

if TYPE_CHECKING:
    from sdpakit.backends.base import Backend
    from sdpakit.spec import AttentionSpec


@dataclass(frozen=True, slots=True)
class Choice:
    """Which backend compiled a kernel, and why.

    Attributes
    ----------
    backend : str
        Its name.
    options : mapping
        The options that it was given.
    asked : str
        What the caller asked for, as text.
    passed_over : mapping of str to sequence of str
        Backends that came first in the order of wish, and why they were not taken.
    """

    backend: str
    options: Mapping[str, Any]
    asked: str
    passed_over: Mapping[str, tuple[str, ...]]


@dataclass(slots=True)
class _Search:
    """What was found so far: backends that can run here, and why the others cannot."""

    usable: dict[str, Backend] = field(default_factory=dict)
    unavailable: dict[str, tuple[str, ...]] = field(default_factory=dict)
    refusals: dict[str, tuple[str, ...]] = field(default_factory=dict)


def select(
    spec: AttentionSpec,
    order: Sequence[str],
    options: Mapping[str, Any],
    *,
    gradients: bool = False,
) -> tuple[Backend, dict[str, tuple[str, ...]]]:
    """Return the first backend that compiles `spec` with `options`.

    Parameters
    ----------
    spec : AttentionSpec
        What to compile.
    order : sequence of str
        Names in order of wish.
    options : mapping
        Backend options.
    gradients : bool
        Whether the backend must have gradients.

    Returns
    -------
    tuple of Backend and dict
        The backend, and the reasons of those that were passed over, by name.

    Raises
    ------
    UnknownBackendError, BackendError
        If a name is that of no backend, or the only one named is broken.
    BackendUnavailableError
        If none can run here.
    ArgumentError
        If no asked-for backend knows an option.
    UnsupportedSpecError
        If all that can run refuse the spec.
    """
    search = _find_usable(order)
    if not search.usable:
        _refuse_unavailable(search)
    _check_options(search.usable, options)
    for name, backend in search.usable.items():
        reasons = backend.capabilities().reasons_against(spec, options, gradients=gradients)
        reasons = reasons or list(backend.unsupported_reasons(spec, options))
        if not reasons:
            before = search.unavailable | search.refusals
            return backend, {other: before[other] for other in order if other in before}
        search.refusals[name] = tuple(reasons)
    raise _unsupported(spec, order, search)


def _find_usable(order: Iterable[str]) -> _Search:
    search = _Search()
    names = tuple(dict.fromkeys(order))
    for name in names:
        try:
            backend = get(name)
        except UnknownBackendError:
            raise
        except BackendError as error:
            if len(names) == 1:
                raise
            search.unavailable[name] = (_got_of(error),)
            continue
        state = backend.availability()
        if state.ok:
            search.usable[name] = backend
        else:
            hint = f" ({state.hint})" if state.hint else ""
            search.unavailable[name] = (f"not available: {state.reason}{hint}",)
    return search


def _got_of(error: BackendError) -> str:
    return str(error).splitlines()[0]


def _refuse_unavailable(search: _Search) -> NoReturn:
    raise BackendUnavailableError(
        format_error(
            "backend",
            got="; ".join(f"{name}: {reasons[0]}" for name, reasons in search.unavailable.items()),
            allowed="a backend that can run on this machine",
            fix="follow the hint, or use backend='interp', which runs everywhere and is slow",
        )
    )


def _check_options(usable: Mapping[str, Backend], options: Mapping[str, Any]) -> None:
    known = sorted({name for backend in usable.values() for name in backend.capabilities().options})
    for name in options:
        if name not in known:
            raise ArgumentError(
                format_error(
                    "options",
                    got=f"the unknown option {name!r}",
                    allowed=f"{', '.join(known) or 'none'} (of {', '.join(usable)})",
                    fix=did_you_mean(name, known, f"leave {name!r} away"),
                )
            )


def _unsupported(
    spec: AttentionSpec, order: Iterable[str], search: _Search
) -> UnsupportedSpecError:
    reasons = search.unavailable | search.refusals
    lines = [f"  {name}: {'; '.join(reasons[name])}" for name in dict.fromkeys(order)]
    return UnsupportedSpecError(
        "\n".join(
            (
                f"no asked-for backend compiles {spec!r}",
                *lines,
                "  remedy: change what is named, or use backend='interp', which takes every spec",
            )
        ),
        reasons,
    )
