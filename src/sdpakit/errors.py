"""Exception tree and the one format of error messages (ERR-1).

A message says where, what came, what is allowed and what to do. Mistakes of the caller derive from
the fitting built-in; a defect of the compiler is an `InternalError`, never one of those classes.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches


class SdpakitError(Exception):
    """Base of every exception that sdpakit raises on purpose."""


class SpecError(SdpakitError, ValueError):
    """The spec contradicts itself or holds a value that has no meaning."""


class ArgumentError(SdpakitError, ValueError):
    """An argument of a call does not fit the spec."""


class ArgumentTypeError(SdpakitError, TypeError):
    """An argument of a call is of a kind or dtype that the spec does not take."""


class UnsupportedSpecError(SdpakitError, NotImplementedError):
    """No asked-for backend can compile the spec; `reasons` says why, by backend.

    Parameters
    ----------
    message : str
        The whole text shown to the user.
    reasons : mapping of str to sequence of str
        At least one reason for every backend that was asked.
    """

    def __init__(self, message: str, reasons: Mapping[str, Sequence[str]]) -> None:
        super().__init__(message)
        self.reasons: dict[str, list[str]] = {name: list(texts) for name, texts in reasons.items()}


class BackendError(SdpakitError, RuntimeError):
    """A backend could not be used or failed."""


class UnknownBackendError(BackendError, LookupError):
    """The name is not that of a backend."""


class BackendUnavailableError(BackendError, ImportError):
    """The backend exists and cannot run here; the message holds a hint."""


class InternalError(SdpakitError, RuntimeError):
    """A defect of sdpakit itself: please report it with the text of the message."""


class VerifyError(InternalError):
    """An IR program broke a rule of well-formed IR."""


class LoweringError(InternalError):
    """A backend met a program it had promised to lower and could not."""


class ScaleWarning(UserWarning):
    """A scale that looks like a known mistake (see `sdpakit.lints`)."""


class CacheWarning(UserWarning):
    """Compiled code could not be kept on disk; everything still works, only slower."""


def warn_user(message: str, category: type[Warning]) -> None:
    """Issue a warning that points at the line of the user which called into sdpakit.

    Parameters
    ----------
    message : str
        What to say.
    category : type
        Of the warning.
    """
    package = __file__.removesuffix("errors.py")
    frame, level = inspect.currentframe(), 1
    while frame is not None and frame.f_code.co_filename.startswith(package):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def format_error(where: str, *, got: object, allowed: str, fix: str) -> str:
    """Return the text of an error in the form that every message of sdpakit has.

    Parameters
    ----------
    where : str
        The field or argument that is wrong.
    got : object
        What came.
    allowed : str
        What would be right.
    fix : str
        What to do about it.

    Returns
    -------
    str
        One line for each of the four.
    """
    return f"{where}: got {got}\n  allowed: {allowed}\n  remedy: {fix}"


def shown(value: object) -> str:
    """Return how a message shows a value: an array by its shape, anything else by its repr.

    Parameters
    ----------
    value : object
        What came.

    Returns
    -------
    str
        For `got` of `format_error`.
    """
    shape = getattr(value, "shape", None)
    return f"an array of shape {shape}" if shape is not None else repr(value)


def did_you_mean(name: object, candidates: Iterable[str], otherwise: str) -> str:
    """Return the remedy for a name that is not known.

    Parameters
    ----------
    name : object
        What came.
    candidates : iterable of str
        The names that there are.
    otherwise : str
        The remedy where none of them resembles it.

    Returns
    -------
    str
        For `fix` of `format_error`.
    """
    near = get_close_matches(str(name), list(candidates), n=1)
    return f"did you mean {near[0]!r}?" if near else otherwise
