"""A run as JSON and back, without loss; `schema.json` beside this file describes the form.

JSON has no NaN and no infinity: a number that is not finite is the string "nan", "inf" or "-inf".
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any, TypeAlias, TypeVar, cast, get_args

from sdpakit.conformance.model import LEVELS, Level, Outcome, Run, TargetInfo, Verdict, Worst
from sdpakit.errors import ArgumentError, format_error

FORMAT = "sdpakit-conformance-run"
SCHEMA_VERSION = 1
_NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_VERDICTS: tuple[str, ...] = get_args(Verdict)

T = TypeVar("T")
Json: TypeAlias = "dict[str, Any]"


def schema() -> Json:
    """Return the JSON Schema of a report.

    Returns
    -------
    dict
        Draft 2020-12.
    """
    text = resources.files(__package__).joinpath("schema.json").read_text(encoding="utf-8")
    return cast("Json", json.loads(text))


def to_json(run: Run) -> Json:
    """Return a run as plain data for `json.dumps`.

    Parameters
    ----------
    run : Run
        What to write.

    Returns
    -------
    dict
        As `schema` says; no NaN and no infinity in it.
    """
    return {
        "format": FORMAT,
        "version": SCHEMA_VERSION,
        "level": run.level,
        "started": run.started,
        "seconds": _number(run.seconds),
        "machine": run.machine,
        "versions": dict(run.versions),
        "targets": [
            {"name": t.name, "versions": dict(t.versions), "note": t.note} for t in run.targets
        ],
        "outcomes": [_outcome(outcome) for outcome in run.outcomes],
        "expected": [
            {"target": target, "case": case, "reason": reason}
            for (target, case), reason in run.expected.items()
        ],
        "stale": list(run.stale),
    }


def from_json(data: object) -> Run:
    """Return the run that `to_json` wrote.

    Parameters
    ----------
    data : dict
        What `json.loads` gave.

    Returns
    -------
    Run
        Equal to the one that was written.

    Raises
    ------
    ArgumentError
        If it is no report, one of another version, or has a field that does not fit.
    """
    root = _Reader(_checked_version(data), "")
    expected = root.items("expected", _expected_from)
    run = Run(
        targets=tuple(root.items("targets", _target_from)),
        outcomes=tuple(root.items("outcomes", _outcome_from)),
        level=cast("Level", root.one_of("level", LEVELS)),
        started=root.text("started"),
        seconds=root.number("seconds"),
        versions=root.texts_by_name("versions"),
        machine=root.text("machine"),
        expected=dict(expected),
        stale=root.texts("stale"),
    )
    root.has_no_more()
    return run


def _number(x: float) -> float | str:
    value = float(x)
    if math.isnan(value):
        return "nan"
    return value if math.isfinite(value) else ("inf" if value > 0 else "-inf")


def _outcome(outcome: Outcome) -> Json:
    worst = outcome.worst
    return {
        "target": outcome.target,
        "case": outcome.case,
        "verdict": outcome.verdict,
        "share": _number(outcome.share),
        "message": outcome.message,
        "worst": None if worst is None else _worst(worst),
        "unjudged": list(outcome.unjudged),
        "seconds": _number(outcome.seconds),
        "asked": outcome.asked,
    }


def _worst(worst: Worst) -> Json:
    return {
        "output": worst.output,
        "index": [int(i) for i in worst.index],
        "got": _number(worst.got),
        "right": _number(worst.right),
        "bound": _number(worst.bound),
        "share": _number(worst.share),
    }


def _checked_version(data: object) -> Mapping[str, object]:
    fix = "write one with `sdpakit conformance TARGET --json FILE`"
    if not isinstance(data, Mapping) or data.get("format") != FORMAT:
        kind = data.get("format") if isinstance(data, Mapping) else type(data).__name__
        raise _error("format", kind, f"an object with the format {FORMAT!r}", fix)
    version = data.get("version")
    if isinstance(version, int) and not isinstance(version, bool) and version > SCHEMA_VERSION:
        fix = "read it with the sdpakit that wrote it, or a newer one than this"
    if version != SCHEMA_VERSION or isinstance(version, bool):
        raise _error("version", version, f"{SCHEMA_VERSION}, which this sdpakit reads", fix)
    return data


def _error(where: str, got: object, allowed: str, fix: str) -> ArgumentError:
    text = str(got)
    shortened = text if len(text) <= 80 else f"{text[:77]}..."
    return ArgumentError(format_error(f"report, {where}", got=shortened, allowed=allowed, fix=fix))


@dataclass(slots=True)
class _Reader:
    """Takes the fields of one object and says where one does not fit."""

    data: Mapping[str, object]
    where: str

    def place(self, name: str) -> str:
        """Return how messages name a field."""
        return f"{self.where}.{name}" if self.where else name

    def take(self, name: str, kinds: tuple[type, ...], allowed: str) -> Any:
        """Return a field that must be of some kind."""
        value = self.data.get(name, "nothing")
        if name not in self.data or not isinstance(value, kinds) or isinstance(value, bool):
            self.refuse(name, value, allowed)
        return value

    def refuse(self, name: str, got: object, allowed: str) -> None:
        """Raise for a field that does not fit."""
        fix = "repair the file or write it anew; docs/conformance.md has its form"
        raise _error(self.place(name), got, allowed, fix)

    def text(self, name: str) -> str:
        """Return a field that is a string."""
        return cast("str", self.take(name, (str,), "a string"))

    def one_of(self, name: str, allowed: tuple[str, ...]) -> str:
        """Return a field that is one of some strings."""
        value = self.text(name)
        if value not in allowed:
            self.refuse(name, value, ", ".join(allowed))
        return value

    def number(self, name: str) -> float:
        """Return a field that is a number, finite or not."""
        allowed = 'a number, "nan", "inf" or "-inf"'
        value = self.take(name, (int, float, str), allowed)
        is_huge = isinstance(value, int) and value.bit_length() > 1023  # float() would overflow
        if is_huge or (isinstance(value, str) and value not in _NOT_FINITE):
            self.refuse(name, value, allowed)
        return _NOT_FINITE[value] if isinstance(value, str) else float(value)

    def flag(self, name: str) -> bool:
        """Return a field that is true or false."""
        value = self.data.get(name, "nothing")
        if not isinstance(value, bool):
            self.refuse(name, value, "true or false")
        return value is True

    def texts(self, name: str) -> tuple[str, ...]:
        """Return a field that is a list of strings."""
        values = self.take(name, (list,), "a list of strings")
        if not all(isinstance(value, str) for value in values):
            self.refuse(name, values, "a list of strings")
        return tuple(values)

    def counts(self, name: str) -> tuple[int, ...]:
        """Return a field that is a list of whole numbers."""
        values = self.take(name, (list,), "a list of whole numbers")
        if not all(isinstance(value, int) and not isinstance(value, bool) for value in values):
            self.refuse(name, values, "a list of whole numbers")
        return tuple(values)

    def texts_by_name(self, name: str) -> dict[str, str]:
        """Return a field that is an object of strings."""
        values = self.take(name, (Mapping,), "an object of strings")
        if not all(isinstance(value, str) for value in values.values()):
            self.refuse(name, values, "an object of strings")
        return dict(values)

    def items(self, name: str, make: Callable[[_Reader], T]) -> list[T]:
        """Return a field that is a list of objects, each made into something."""
        found = []
        for index, value in enumerate(self.take(name, (list,), "a list of objects")):
            place = f"{self.place(name)}[{index}]"
            if not isinstance(value, Mapping):
                raise _error(place, value, "an object", "repair the file or write it anew")
            reader = _Reader(value, place)
            found.append(make(reader))
            reader.has_no_more()
        return found

    def has_no_more(self) -> None:
        """Refuse fields that this version does not know."""
        known = _FIELDS[self.where.rsplit(".", 1)[-1].split("[")[0]]
        for name in self.data:
            if name not in known:
                self.refuse(name, "a field of this name", f"only {', '.join(known)}")


_FIELDS: dict[str, tuple[str, ...]] = {
    "": (
        *("format", "version", "level", "started", "seconds", "machine", "versions", "targets"),
        *("outcomes", "expected", "stale"),
    ),
    "targets": ("name", "versions", "note"),
    "outcomes": (
        *("target", "case", "verdict", "share", "message", "worst", "unjudged", "seconds"),
        "asked",
    ),
    "worst": ("output", "index", "got", "right", "bound", "share"),
    "expected": ("target", "case", "reason"),
}


def _target_from(data: _Reader) -> TargetInfo:
    return TargetInfo(data.text("name"), data.texts_by_name("versions"), data.text("note"))


def _expected_from(data: _Reader) -> tuple[tuple[str, str], str]:
    return (data.text("target"), data.text("case")), data.text("reason")


def _outcome_from(data: _Reader) -> Outcome:
    return Outcome(
        target=data.text("target"),
        case=data.text("case"),
        verdict=cast("Verdict", data.one_of("verdict", _VERDICTS)),
        share=data.number("share"),
        message=data.text("message"),
        worst=_worst_from(data),
        unjudged=data.texts("unjudged"),
        seconds=data.number("seconds"),
        asked=data.flag("asked"),
    )


def _worst_from(data: _Reader) -> Worst | None:
    value = data.take("worst", (Mapping, type(None)), "an object or null")
    if value is None:
        return None
    inner = _Reader(value, data.place("worst"))
    worst = Worst(
        output=inner.text("output"),
        index=inner.counts("index"),
        got=inner.number("got"),
        right=inner.number("right"),
        bound=inner.number("bound"),
        share=inner.number("share"),
    )
    inner.has_no_more()
    return worst
