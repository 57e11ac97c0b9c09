"""Calls whose arguments do not fit the parameters: one helpful exception in place of Python's.

Python decides whether arguments fit before a function begins. A wrapper waits for the `TypeError`
that says they do not, and only then looks what is wrong: a good call costs one frame more. Where
that is too much, as on the way to a kernel, a function takes whatever comes and asks
`unfit_operands` itself.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ParamSpec, TypeVar

from sdpakit.errors import ArgumentTypeError, SdpakitError, SpecError, did_you_mean, format_error

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=type)

_SEVERAL = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_NAMED_ONLY = inspect.Parameter.KEYWORD_ONLY


def checked_call(function: Callable[P, R]) -> Callable[P, R]:
    """Return a function that answers arguments which do not fit with an `ArgumentTypeError`.

    Parameters
    ----------
    function : callable
        A function of the user's, without a parameter called self.

    Returns
    -------
    callable
        The same function otherwise.
    """
    return _checked(function, function.__name__, ArgumentTypeError, bound=0)


def checked_method(function: Callable[P, R]) -> Callable[P, R]:
    """Return a method that answers arguments which do not fit with an `ArgumentTypeError`.

    Parameters
    ----------
    function : callable
        A method, whose first parameter is the object.

    Returns
    -------
    callable
        The same method otherwise.
    """
    owner, _, name = function.__qualname__.rpartition(".")
    where = owner if name == "__call__" else f"{owner}.{name}"
    return _checked(function, where, ArgumentTypeError, bound=1)


def checked_init(cls: C) -> C:
    """Return a class, a part of a spec, whose constructor answers a bad call with a `SpecError`.

    Parameters
    ----------
    cls : type
        A class with `__init__`, after `dataclass` has made it.

    Returns
    -------
    type
        The same class.
    """
    made: Any = cls
    made.__init__ = _checked(made.__init__, cls.__name__, SpecError, bound=1)
    return cls


def unfit_call(
    where: str,
    signature: inspect.Signature,
    given: tuple[tuple[Any, ...], Mapping[str, Any]],
    remedies: Mapping[str, str] | None = None,
) -> str | None:
    """Return what is wrong with the arguments of a call, None if they fit.

    Parameters
    ----------
    where : str
        What was called.
    signature : inspect.Signature
        What it takes.
    given : tuple of tuple and mapping
        Positional and named arguments.
    remedies : mapping of str to str, optional
        What to do about certain unknown names.

    Returns
    -------
    str or None
        Text of an exception.
    """
    args, named = given
    try:
        signature.bind(*args, **named)
    except TypeError:
        got, fix = _trouble(signature, args, named, remedies or {})
        return format_error(where, got=got, allowed=_written(where, signature), fix=fix)
    return None


def unfit_operands(
    where: str,
    signature: inspect.Signature,
    given: tuple[tuple[Any, ...], Mapping[str, Any]],
    remedies: Mapping[str, str],
) -> str | None:
    """Return what is wrong with a call that takes whatever comes, to refuse it itself.

    Parameters
    ----------
    where, signature, given, remedies
        See `unfit_call`. q, k and v are needed, and None at the end of them is nothing; all else
        has to be named.

    Returns
    -------
    str or None
        Text of an exception.
    """
    needed = [
        p.replace(kind=p.POSITIONAL_OR_KEYWORD, default=p.empty) if p.name in "qkv" else p
        for p in signature.parameters.values()
        if p.kind not in _SEVERAL
    ]
    operands, named = given
    while operands and operands[-1] is None:
        operands = operands[:-1]
    return unfit_call(where, inspect.Signature(needed), (operands, named), remedies)


def _checked(
    function: Callable[P, R], where: str, error: type[SdpakitError], bound: int
) -> Callable[P, R]:
    @functools.wraps(function)
    def checked(*args: P.args, **named: P.kwargs) -> R:
        try:
            return function(*args, **named)
        except TypeError as raised:
            text = None
            # What the body of the function raised has frames below this one.
            if raised.__traceback__ is not None and raised.__traceback__.tb_next is None:
                text = unfit_call(where, _without(function, bound), (args[bound:], named))
            if text is None:
                raise
        raise error(text)

    return checked


def _without(function: Callable[..., Any], bound: int) -> inspect.Signature:
    """Return the signature as the caller sees it, without the object of a method."""
    whole = inspect.signature(function)
    return whole.replace(parameters=list(whole.parameters.values())[bound:])


def _trouble(
    signature: inspect.Signature,
    args: tuple[Any, ...],
    named: Mapping[str, Any],
    remedies: Mapping[str, str],
) -> tuple[str, str]:
    """Return what came and what to do about it, of a call that does not fit."""
    own = [p for p in signature.parameters.values() if p.kind not in _SEVERAL]
    by_order = [p.name for p in own if p.kind is not _NAMED_ONLY]
    unknown = [name for name in named if name not in signature.parameters]
    if unknown:
        name = unknown[0]
        free = (p.name for p in own if p.name not in named)
        fix = remedies.get(name) or did_you_mean(name, free, f"leave {name!r} away")
        return f"the unknown argument {name!r}", fix
    if len(args) > len(by_order):
        plural = "s" if len(args) > 1 else ""
        return f"{len(args)} argument{plural} without a name", _name_the_rest(own, by_order)
    twice = [name for name in by_order[: len(args)] if name in named]
    if twice:
        return f"{twice[0]!r} twice", f"give {twice[0]!r} by its place or by its name"
    lacking = [
        p.name
        for p in own
        if p.default is p.empty and p.name not in named and p.name not in by_order[: len(args)]
    ]
    return f"no {_listed(lacking)}", f"give {_listed(lacking)} too"


def _name_the_rest(own: Iterable[inspect.Parameter], by_order: list[str]) -> str:
    named = next((p.name for p in own if p.kind is _NAMED_ONLY), None)
    if named is None:
        return f"give {len(by_order)} at most" if by_order else "give none"
    return f"write names before the others, such as {named}=..."


def _listed(names: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _written(where: str, signature: inspect.Signature) -> str:
    """Return a signature without annotations, which are for programs."""
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    return where + str(signature.replace(parameters=bare, return_annotation=signature.empty))
