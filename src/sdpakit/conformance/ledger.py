"""Known failures of targets: a file that says which, and why, and that must not go stale.

    [[expected]]
    target = "torch"
    cases = "poison.*"
    reason = "owner/repo#123: masked keys are multiplied by 0"

`target` and `cases` are patterns as of a shell. A reason names a thread, so that somebody can see
whether it still holds. An entry that matches no case of any level is an error; one whose case
passes or is refused is stale, and fails the run. One that says nothing of a run, as its target or
its cases were not asked for, is neither (see `Ledger.unused`).
"""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from sdpakit.conformance.model import Outcome, Run
from sdpakit.conformance.report.tally import target_names
from sdpakit.errors import ArgumentError, ArgumentTypeError, format_error

_THREAD = re.compile(r"#[1-9]\d*\b")
_WRONG = ("fail", "error", "hang", "crash")
_FIELDS = ("target", "cases", "reason")
_SHOWN = 5  # cases named in one sentence
_FORM = 'target = "NAME", cases = "family.*", reason = "owner/repo#123: what is wrong"'


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """One known failure.

    Attributes
    ----------
    target : str
        Pattern of names of targets.
    cases : str
        Pattern of ids of cases and relations.
    reason : str
        Why, with the number of a thread.
    """

    target: str
    cases: str
    reason: str

    def covers(self, outcome: Outcome) -> bool:
        """Return whether an outcome is of a target and case that the entry names."""
        return _fits(outcome.target, self.target) and _fits(outcome.case, self.cases)


class Ledger:
    """Known failures, to be laid beside a run.

    Parameters
    ----------
    entries : iterable of Entry
        Checked for their reasons here, and for their cases by `apply`.

    Raises
    ------
    ArgumentError
        If a reason names no thread, or two entries are of the same target and cases.
    """

    def __init__(self, entries: Iterable[Entry]) -> None:
        self.entries = tuple(entries)
        seen: set[tuple[str, str]] = set()
        for entry in self.entries:
            where = f"{entry.cases!r} of {entry.target!r}"
            if not _THREAD.search(entry.reason):
                raise _error(
                    f"reason of {where}",
                    repr(entry.reason),
                    "a text with the number of a thread, owner/repo#123 or #123",
                    "report the failure where it belongs, and name the thread",
                )
            if (entry.target, entry.cases) in seen:
                allowed, fix = "one entry for a target and pattern", "drop one of the two"
                raise _error("expected", f"{where} twice", allowed, fix)
            seen.add((entry.target, entry.cases))

    @classmethod
    def of(cls, target: str, reasons: Mapping[str, str]) -> Ledger:
        """Return the ledger of one target.

        Parameters
        ----------
        target : str
            Its name.
        reasons : mapping of str to str
            Pattern of cases -> reason.

        Returns
        -------
        Ledger
            With one entry for each pattern.
        """
        return cls(Entry(target, cases, reason) for cases, reason in reasons.items())

    @classmethod
    def read(cls, path: str | Path) -> Ledger:
        """Return the ledger of a file.

        Parameters
        ----------
        path : str or Path
            A file in TOML, with tables `[[expected]]`.

        Returns
        -------
        Ledger
            With the entries of the file, in their order.

        Raises
        ------
        ArgumentError
            If it cannot be read, is no TOML, or an entry has other keys than it should.
        ArgumentTypeError
            If a value is no text.
        """
        return cls(_entries(Path(path)))

    def apply(self, run: Run) -> Run:
        """Return a run with its known failures.

        Parameters
        ----------
        run : Run
            Any outcomes.

        Returns
        -------
        Run
            The same, with `expected` and `stale` of these entries.

        Raises
        ------
        ArgumentError
            If an entry matches no case of the kit and none of the run.
        """
        self._check_cases(outcome.case for outcome in run.outcomes)
        expected: dict[tuple[str, str], str] = {}
        stale: list[str] = []
        for entry in self.entries:
            covered = [outcome for outcome in run.outcomes if entry.covers(outcome)]
            for outcome in covered:
                if outcome.verdict in _WRONG:
                    expected.setdefault((outcome.target, outcome.case), entry.reason)
            stale.extend(_stale(entry, covered))
        return dataclasses.replace(run, expected=expected, stale=tuple(stale))

    def unused(self, run: Run) -> list[str]:
        """Return a sentence for each entry that says nothing of a run.

        Parameters
        ----------
        run : Run
            Any outcomes.

        Returns
        -------
        list of str
            Entries of other targets, and those whose cases were not selected. They are not stale:
            nothing in this run speaks against them.
        """
        names = target_names(run)
        found = []
        for entry in self.entries:
            if any(entry.covers(outcome) for outcome in run.outcomes):
                continue
            where = f"{entry.cases!r} of {entry.target!r}"
            if any(_fits(name, entry.target) for name in names):
                found.append(f"{where}: none of its cases was selected in this run")
                continue
            near = get_close_matches(entry.target, names, n=1)
            fix = f"; did you mean {near[0]!r}?" if near else ""
            found.append(f"{where}: no target of this run ({', '.join(names)}) has this name{fix}")
        return found

    def _check_cases(self, of_run: Iterable[str]) -> None:
        if not self.entries:
            return
        from sdpakit.conformance.selection import select

        known = sorted({*select("stress"), *of_run})
        for entry in self.entries:
            if not any(_fits(name, entry.cases) for name in known):
                near = get_close_matches(entry.cases, known, n=3)
                fix = f"did you mean {' or '.join(near)}?" if near else "see --list for the ids"
                where = f"cases of {entry.target!r}"
                raise _error(where, repr(entry.cases), "a pattern that matches a case", fix)


def _fits(name: str, pattern: str) -> bool:
    return name == pattern or fnmatchcase(name, pattern)


def _stale(entry: Entry, covered: list[Outcome]) -> Iterator[str]:
    """Say which outcomes do not bear an entry out."""
    for target in dict.fromkeys(outcome.target for outcome in covered):
        for verdict, does in (("ok", "passes"), ("refused", "refuses")):
            cases = [o.case for o in covered if (o.target, o.verdict) == (target, verdict)]
            if cases:
                more = f" and {len(cases) - _SHOWN} more" if len(cases) > _SHOWN else ""
                named = ", ".join(cases[:_SHOWN]) + more
                yield (
                    f"{target} {does} {named}, expected to fail by {entry.cases!r}: {entry.reason}"
                )


def _entries(path: Path) -> list[Entry]:
    data = _toml(path)
    others = sorted(set(data) - {"expected"})
    if others:
        raise _error(str(path), ", ".join(others), "tables [[expected]] alone", _FORM)
    tables = data.get("expected", [])
    if not isinstance(tables, list):
        raise _error(f"{path}: expected", "one table", "tables [[expected]]", "write two brackets")
    return [_entry(f"{path}: entry {number}", table) for number, table in enumerate(tables, 1)]


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        got = error.strerror or type(error).__name__
        raise _error(f"ledger {path}", got, "a file that can be read", "check the path") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        allowed = f"TOML with tables [[expected]]: {_FORM}"
        raise _error(f"ledger {path}", str(error), allowed, "mend the place it names") from error


def _entry(where: str, table: Any) -> Entry:
    if not isinstance(table, dict) or set(table) != set(_FIELDS):
        got = ", ".join(sorted(table)) if isinstance(table, dict) else type(table).__name__
        raise _error(where, got or "nothing", ", ".join(_FIELDS), f"write {_FORM}")
    for name in _FIELDS:
        if not isinstance(table[name], str) or not table[name]:
            got = f"{table[name]!r}"
            raise ArgumentTypeError(
                format_error(f"{where}: {name}", got=got, allowed="a text", fix=f"write {_FORM}")
            )
    return Entry(**table)


def _error(where: str, got: str, allowed: str, fix: str) -> ArgumentError:
    return ArgumentError(format_error(where, got=got, allowed=allowed, fix=fix))
