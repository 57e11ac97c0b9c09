"""What a mutant is: a right program with one step replaced, and the cases that must notice it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from sdpakit.conformance.cases.make import gh
from sdpakit.conformance.target import BaseTarget

T = TypeVar("T", bound=BaseTarget)


@dataclass(frozen=True, slots=True)
class Mutant:
    """A deliberately wrong program.

    Attributes
    ----------
    name : str
        "mutant:NAME" is what the command line takes.
    factory : callable
        Makes a fresh target; state that one keeps is not shared with the next.
    killed_by : tuple of str
        Core cases, or core relations with their dtype, that it fails.
    says : str
        The mistake, in one line.
    source : str
        A public report of a program that makes it, "" where none is known.
    right : class
        The right program that it was made from.
    keeps_no_state : bool
        Whether a call depends on its operands alone, and writes to none but them.
    """

    name: str
    factory: Callable[[], BaseTarget]
    killed_by: tuple[str, ...]
    says: str
    source: str
    right: type[BaseTarget]
    keeps_no_state: bool


def replaced(right: type[T], step: str, by: Callable[..., Any]) -> T:
    """Return a right program with one step replaced.

    Parameters
    ----------
    right, step, by
        As for `mutant`.

    Returns
    -------
    object of the class
        A target.
    """
    made = right()
    alone: tuple[str, ...] = getattr(right, "alone", ())
    setattr(made, step, by if step in alone else functools.partial(by, right()))
    return made


def mutant(
    right: type[BaseTarget],
    step: str,
    by: Callable[..., Any],
    killed_by: str,
    source: str = "",
) -> Mutant:
    """Return a mutant: a right program with one step replaced.

    Parameters
    ----------
    right : class
        The right program. Its `alone` names the steps that are replaced by themselves; a function
        for any other step gets a right program as its first argument, to call its steps.
    step : str
        Name of a method.
    by : callable
        What is done in its place. Its name is that of the mutant, the first line of its docstring
        says the mistake. A class is made anew for every target, for what keeps a state.
    killed_by : str
        Ids, separated by blanks.
    source : str
        "owner/repo#12", "owner/repo!12" or "".

    Returns
    -------
    Mutant
        Named in small letters with underscores.
    """
    name = by.__name__

    def factory() -> BaseTarget:
        made = replaced(right, step, by() if isinstance(by, type) else by)
        made.name = f"mutant:{name}"
        return made

    says = (by.__doc__ or "").strip().split("\n", maxsplit=1)[0]
    address = gh(source) if source else ""
    keeps_no_state = not (isinstance(by, type) or right.takes_out)
    return Mutant(name, factory, tuple(killed_by.split()), says, address, right, keeps_no_state)
