"""What was found out by hand about each failing case, and whether it still is so.

A finding covers cases of peers by pattern. A failure without one is new, and a finding that no
failure bears out any more is stale.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from sdpakit.conformance.model import LEVELS, Level
from sdpakit.errors import ArgumentError, format_error

PLACE = Path(__file__).with_name("findings.toml")
KINDS: Mapping[str, str] = {
    "defect": "a wrong answer by the peer's own documentation, or by its other kernels",
    "divergence": "another rule than that of docs/semantics.md",
    "numerics": "fewer digits than accum_dtype gives",
    "refusal": "an exception for a call that the rules allow",
    "unchecked": "bad input that it computes with",
}
BAD = ("fail", "error", "hang", "crash")


@dataclass(frozen=True, slots=True)
class Finding:
    """One cause of failures.

    Attributes
    ----------
    id : str
        Short name.
    peers, cases : tuple of str
        Patterns as of a shell.
    shows : str
        Regular expression that the message of the failure has; "" for any message. A cause that
        shows all over the suite, such as the answer for an empty row, is told by it.
    kind : str
        A key of `KINDS`.
    says : str
        What the peer answers, and what the rule is.
    thread : str
        "owner/repo#12" where it is known in public, "" where no report was found.
    level : str
        The first level with a case that shows it.
    """

    id: str
    peers: tuple[str, ...]
    cases: tuple[str, ...]
    kind: str
    says: str
    shows: str = ""
    thread: str = ""
    level: Level = "core"

    def covers(self, answer: Answer) -> bool:
        """Return whether a failure is of this cause."""
        named = _any(answer.peer, self.peers) and _any(answer.case, self.cases)
        return named and re.search(self.shows, answer.message) is not None


@dataclass(frozen=True, slots=True)
class Answer:
    """One outcome of a peer: name, case, verdict and message."""

    peer: str
    case: str
    verdict: str
    message: str


def read(path: Path = PLACE) -> tuple[Finding, ...]:
    """Return the findings of a file.

    Parameters
    ----------
    path : Path
        TOML with tables `[[finding]]`.

    Returns
    -------
    tuple of Finding
        In the order of the file.

    Raises
    ------
    ArgumentError
        For a kind that there is not, or an id used twice.
    """
    tables = tomllib.loads(path.read_text(encoding="utf-8"))["finding"]
    found = tuple(_finding(table) for table in tables)
    ids = [one.id for one in found]
    twice = sorted({name for name in ids if ids.count(name) > 1})
    if twice:
        raise ArgumentError(
            format_error("id", got=f"{twice} twice", allowed="once", fix="choose another name")
        )
    return found


def _finding(table: Mapping[str, Any]) -> Finding:
    if table["kind"] not in KINDS:
        raise ArgumentError(
            format_error(
                f"kind of {table['id']}",
                got=table["kind"],
                allowed=", ".join(KINDS),
                fix="name one of these",
            )
        )
    fields = {name: tuple(table[name]) for name in ("peers", "cases")}
    return Finding(**{**table, **fields})


def cause(findings: Sequence[Finding], answer: Answer) -> Finding | None:
    """Return the first finding that covers an outcome, or None."""
    return next((one for one in findings if one.covers(answer)), None)


def unexplained(findings: Sequence[Finding], answers: Iterable[Answer]) -> list[Answer]:
    """Return the failures without a finding.

    Parameters
    ----------
    findings : sequence of Finding
        What is known.
    answers : iterable of Answer
        Outcomes of a run.

    Returns
    -------
    list of Answer
        In the order of the run.
    """
    bad = (one for one in answers if one.verdict in BAD)
    return [one for one in bad if cause(findings, one) is None]


def stale(
    findings: Sequence[Finding], answers: Iterable[Answer], levels: Mapping[str, Level]
) -> list[Finding]:
    """Return the findings of peers that ran which no failure of theirs bears out.

    Parameters
    ----------
    findings : sequence of Finding
        What is known.
    answers : iterable of Answer
        Outcomes of a run.
    levels : mapping of str to str
        Which peers ran, and at what level.

    Returns
    -------
    list of Finding
        Those of levels that did not run are not among them.
    """
    seen = {one.id for a in answers if a.verdict in BAD and (one := cause(findings, a))}

    def asked(finding: Finding) -> bool:
        least = LEVELS.index(finding.level)
        ran = (peer for peer, level in levels.items() if LEVELS.index(level) >= least)
        return any(_any(peer, finding.peers) for peer in ran)

    return [one for one in findings if one.id not in seen and asked(one)]


def _any(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
