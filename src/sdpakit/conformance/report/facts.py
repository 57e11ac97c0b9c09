"""What a report says about a case beside its outcome, for cases and relations alike."""

from __future__ import annotations

import functools
import re
import shlex
from dataclasses import dataclass

from sdpakit.conformance import rules
from sdpakit.conformance.cases import cases
from sdpakit.conformance.relations import relations


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


def rule_text(rule: str) -> str:
    """Return the text of a rule on one line, "" if there is no such rule."""
    say = getattr(rules, "rule_text", None)
    if say is None:
        from pathlib import Path

        text = (Path(__file__).parents[4] / "docs/semantics.md").read_text()
        found = re.search(rf"\*\*{rule}\*\* (.*?)(?=\n\S|\n\n|\Z)", text, re.S)
        return " ".join(found[1].split()) if found else ""
    return " ".join(say(rule).split()) if rule in rules.RULES else ""


def first_sentence(text: str) -> str:
    """Return a text up to its first full stop."""
    return re.split(r"(?<=[.;]) (?=[^a-z])", text, maxsplit=1)[0]


@functools.cache
def _all() -> dict[str, About]:
    found = {}
    for case in cases("stress"):
        bound = "" if case.refuses else case.bound
        found[case.id] = About(
            case.id, case.rules, case.catches, case.source, bound, case.level, case.seed, known=True
        )
    core = {f"{relation.id}.{dtype}" for relation, dtype in relations("core")}
    for relation, dtype in relations("full"):
        name = f"{relation.id}.{dtype}"
        found[name] = About(
            name,
            relation.rules,
            relation.catches,
            relation.source,
            level="core" if name in core else "full",
            known=True,
        )
    return found
