"""What a report says about a case beside its outcome, for cases and relations alike."""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

from sdpakit.conformance.model import LEVELS, Case, Level, Run
from sdpakit.conformance.report.tally import target_names
from sdpakit.conformance.selection import Check, find, select

_FEW = 20  # cases that a command names one by one


@dataclass(frozen=True, slots=True)
class About:
    """A case or relation in words.

    Attributes
    ----------
    id : str
        As in the outcome.
    rules : tuple of str
        Rules of docs/semantics.md that it shows.
    catches : str
        The wrong program that fails here; "" if this version has no such case.
    source : str
        Address of a public report of a program that got it wrong, "" if there is none.
    bound : {"sharp", "hard", ""}
        Which bound judges it; "" where none does.
    level : {"core", "full", "stress"}
        The level from which on it runs.
    seed : int or None
        Seed of its inputs, None where the relation alone knows it.
    refuses : str
        Name of the exception that is the right answer, "" where a result is.
    known : bool
        Whether this version of sdpakit has it; a file may come from another.
    """

    id: str
    rules: tuple[str, ...] = ()
    catches: str = ""
    source: str = ""
    bound: str = ""
    level: str = "core"
    seed: int | None = None
    refuses: str = ""
    known: bool = False

    @property
    def family(self) -> str:
        """First part of the id."""
        return self.id.split(".")[0]


def about(case: str) -> About:
    """Return what there is to say about a case.

    Parameters
    ----------
    case : str
        Id of a case, or of a relation with its dtype.

    Returns
    -------
    About
        With the id alone if this version has no such case.
    """
    return _all().get(case) or About(case)


def command(target: str, case: str) -> str:
    """Return the line for a shell that judges one target on one case again.

    Parameters
    ----------
    target, case : str
        Name and id.

    Returns
    -------
    str
        Quoted where a shell needs it.
    """
    return f"{command_head(target)} --case {shlex.quote(case)}"


def command_head(*targets: str) -> str:
    """Return the command without options."""
    return " ".join(["sdpakit", "conformance", *map(shlex.quote, targets)])


def first_sentence(text: str) -> str:
    """Return a text up to its first full stop."""
    return re.split(r"(?<=\.) (?=[^a-z])", text, maxsplit=1)[0]


def run_command(run: Run) -> str:
    """Return the line for a shell that judges as this run did, as far as a run tells.

    Parameters
    ----------
    run : Run
        What to repeat.

    Returns
    -------
    str
        With the family or the cases it was kept to, "" where these are too many to name.
    """
    came = {outcome.case for outcome in run.outcomes}
    if not came:
        return ""
    line = f"{command_head(*target_names(run))} --level {run.level}"
    whole = [name for name, entry in _all().items() if _is_in(entry.level, run.level)]
    if _as_good_as(came, whole):
        return line
    family, *others = {name.split(".")[0] for name in came}
    if not others and _as_good_as(came, (name for name in whole if about(name).family == family)):
        return f"{line} --family {shlex.quote(family)}"
    if len(came) <= _FEW and came <= set(_all()):
        cases = "".join(f" --case {shlex.quote(name)}" for name in sorted(came))
        return command_head(*target_names(run)) + cases
    return ""


def _as_good_as(came: set[str], wanted: Iterable[str]) -> bool:
    """Return whether all came; bad calls, which do not concern every target, may be missing."""
    missing = came.symmetric_difference(wanted)
    return missing.isdisjoint(came) and all(about(name).refuses for name in missing)


def _is_in(level: str, other: str) -> bool:
    return LEVELS.index(cast("Level", level)) <= LEVELS.index(cast("Level", other))


@functools.cache
def _all() -> dict[str, About]:
    """Return what there is to say about all cases and relations, by id."""
    found: dict[str, About] = {}
    for level in LEVELS:
        for name in select(level):
            if name not in found:
                found[name] = _about(name, find(name), level)
    return found


def _about(name: str, wanted: Check, level: Level) -> About:
    if isinstance(wanted, Case):
        return About(
            name,
            wanted.rules,
            wanted.catches,
            wanted.source,
            bound="" if wanted.refuses else wanted.bound,
            level=level,
            seed=wanted.seed,
            refuses=wanted.refuses,
            known=True,
        )
    relation, _ = wanted
    return About(name, relation.rules, relation.catches, relation.source, level=level, known=True)
