"""Runs of the kit: targets over cases and relations, isolated where a target is named by text.

A target that comes as an object is judged in this process: nothing protects the run from a hang
or a crash of it, and no time limit holds.
"""

from __future__ import annotations

import math
import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from sdpakit.conformance.model import Case, Outcome, Run, TargetInfo
from sdpakit.conformance.selection import Check, as_level, find, select
from sdpakit.conformance.target import Target
from sdpakit.conformance.undisturbed import at_load
from sdpakit.errors import ArgumentError, format_error

TIME_LIMIT = 60.0
AnyTarget: TypeAlias = "str | Target | Callable[..., Any]"
OnOutcome: TypeAlias = "Callable[[Outcome], object] | None"


class Subject(Protocol):
    """A target made ready to be judged, in this process or in others."""

    name: str

    def load(self) -> TargetInfo:
        """Return what a report says about the target, or raise if it cannot be loaded."""
        ...

    def run(self, checks: Sequence[Check], on_outcome: OnOutcome = None) -> Iterator[Outcome]:
        """Judge the target; outcomes come in the order of the checks."""
        ...

    def close(self) -> None:
        """Give back what the judging took."""
        ...


def run(
    target: AnyTarget,
    cases: Iterable[Case | str],
    *,
    level: str = "core",
    time_limit: float = TIME_LIMIT,
    isolated: bool = True,
    relations: bool = True,
    workers: int | None = None,
    on_outcome: OnOutcome = None,
) -> Iterator[Outcome]:
    """Judge one target on cases.

    Parameters
    ----------
    target : str, Target or callable
        A text is resolved, in processes of their own if `isolated`; an object or a plain function
        is judged in this process.
    cases : iterable of Case or str
        Cases, or ids of cases and relations. Isolated targets take only those of the kit.
    level : {"core", "full", "stress"}
        Which relations are run besides.
    time_limit : float
        Seconds for one case of an isolated target; the first of each process has three times this.
    isolated : bool
        Whether a target named by text gets processes of its own.
    relations : bool
        Whether the relations of the level are run after the cases.
    workers : int, optional
        How many processes; two if there are as many cores.
    on_outcome : callable, optional
        Is told each outcome when it is there, which may be out of order.

    Returns
    -------
    iterator of Outcome
        In the order of the cases.

    Raises
    ------
    ArgumentError
        Before anything runs if an argument has no meaning, before the first outcome if the target
        cannot be loaded.
    """
    checks: list[Check] = [find(case) if isinstance(case, str) else case for case in cases]
    if relations:
        checks += [find(name) for name in select(as_level(level), family="relations")]
    subject = prepare(target, time_limit=time_limit, isolated=isolated, workers=workers)
    return _closing(subject, checks, on_outcome)


def collect(
    targets: Sequence[AnyTarget],
    level: str = "core",
    *,
    ids: Sequence[str] | None = None,
    time_limit: float = TIME_LIMIT,
    workers: int | None = None,
    on_outcome: OnOutcome = None,
) -> Run:
    """Judge targets on a level, or on some of its cases, and keep what a report needs.

    Parameters
    ----------
    targets : sequence of str, Target or callable
        As for `run`; each is loaded before the first is judged.
    level : {"core", "full", "stress"}
        Which cases and relations run.
    ids : sequence of str, optional
        Only these; see `selection.select`.
    time_limit, workers, on_outcome
        As for `run`.

    Returns
    -------
    Run
        With no ledger applied, and without what did not concern a target.

    Raises
    ------
    ArgumentError
        Before anything runs, if an argument has no meaning or a target cannot be loaded.
    """
    known = as_level(level)
    checks = [find(name) for name in (select(known) if ids is None else ids)]
    started, begin = datetime.now(UTC), time.perf_counter()
    subjects = [
        prepare(target, time_limit=time_limit, workers=workers) for target in _each_once(targets)
    ]
    _check_names(subjects)
    try:
        infos = tuple(subject.load() for subject in subjects)
        outcomes = [o for subject in subjects for o in subject.run(checks, on_outcome) if o.asked]
    finally:
        for subject in subjects:
            subject.close()
    return Run(
        targets=infos,
        outcomes=tuple(outcomes),
        level=known,
        started=started.isoformat(timespec="seconds"),
        seconds=time.perf_counter() - begin,
        versions=versions(),
        machine=machine(),
    )


def judge(target: Target, wanted: Check) -> Outcome:
    """Judge a target on a case or relation, in this process.

    Parameters
    ----------
    target : Target
        What is judged.
    wanted : Case, or (Relation, str)
        A relation comes with its dtype.

    Returns
    -------
    Outcome
        Timed.
    """
    from sdpakit.conformance.judge import check
    from sdpakit.conformance.relations import check_relation

    if isinstance(wanted, Case):
        return check(target, wanted)
    begin = time.perf_counter()
    outcome = check_relation(target, *wanted)
    return replace(outcome, seconds=time.perf_counter() - begin)


def full_note(target: Target) -> str:
    """Return what a target says of itself, and what loading it changed in the process.

    Parameters
    ----------
    target : Target
        As `resolve` returned it.

    Returns
    -------
    str
        One line.
    """
    changes = at_load(target)
    left = f"loading it changed the process (ENV-1), which was put right: {'; '.join(changes)}"
    return "; ".join([*([target.note] if target.note else []), *([left] if changes else [])])


def judged_nothing(outcomes: Iterable[Outcome]) -> bool:
    """Return whether a target gave no result at all, so that no error of it could show.

    Parameters
    ----------
    outcomes : iterable of Outcome
        Of one target.

    Returns
    -------
    bool
        Cases that ask for a refusal do not count: some of them never reach the target.
    """
    asked = [o for o in outcomes if not getattr(find(o.case), "refuses", "")]
    return bool(asked) and all(outcome.verdict == "refused" for outcome in asked)


def prepare(
    target: AnyTarget,
    *,
    time_limit: float = TIME_LIMIT,
    isolated: bool = True,
    workers: int | None = None,
) -> Subject:
    """Make a target ready to be judged; nothing is loaded yet where it is isolated.

    Parameters
    ----------
    target, time_limit, isolated, workers
        As for `run`.

    Returns
    -------
    Subject
        To be closed.

    Raises
    ------
    ArgumentError
        If an argument has no meaning, or an object is no target.
    """
    if not (time_limit > 0 and not math.isnan(time_limit)):
        raise _no_number("time limit", time_limit, "more than 0 seconds", "60 is usual")
    count = min(2, _cores()) if workers is None else workers
    if count < 1:
        raise _no_number("workers", count, "1 or more", "leave it out")
    if isinstance(target, str) and isolated:
        from sdpakit.conformance.isolation import Pool

        return Pool(target, workers=count, time_limit=time_limit)
    return InProcess(target)


class InProcess:
    """A target judged in this process.

    Parameters
    ----------
    target : str, Target or callable
        A text is resolved here, a plain function adopted.
    """

    def __init__(self, target: AnyTarget) -> None:
        self._target = _as_target(target)
        self.name = target if isinstance(target, str) else self._target.name

    def load(self) -> TargetInfo:
        """Return what a report says about the target."""
        return TargetInfo(self.name, dict(self._target.versions), full_note(self._target))

    def run(self, checks: Sequence[Check], on_outcome: OnOutcome = None) -> Iterator[Outcome]:
        """Judge the target; see `Subject.run`."""
        for wanted in checks:
            outcome = replace(judge(self._target, wanted), target=self.name)
            if on_outcome is not None:
                on_outcome(outcome)
            yield outcome

    def close(self) -> None:
        """Do nothing: the target is not this object's to end."""


def versions() -> Mapping[str, str]:
    """Return the versions that every judgement depends on.

    Returns
    -------
    mapping of str to str
        sdpakit, Python and NumPy.
    """
    import numpy as np

    from sdpakit import __version__

    return {"sdpakit": __version__, "python": platform.python_version(), "numpy": np.__version__}


def machine() -> str:
    """Return processor and system in one line.

    Returns
    -------
    str
        As the system names them.
    """
    processor, table = platform.processor() or platform.machine(), Path("/proc/cpuinfo")
    if table.is_file():
        for line in table.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                processor = line.partition(":")[2].strip()
                break
    return f"{processor}, {_cores()} cores, {platform.system()} {platform.release()}"


def _closing(subject: Subject, checks: list[Check], on_outcome: OnOutcome) -> Iterator[Outcome]:
    try:
        subject.load()
        yield from (o for o in subject.run(checks, on_outcome) if o.asked)
    finally:
        subject.close()


def _each_once(targets: Iterable[AnyTarget]) -> list[AnyTarget]:
    """Leave out what is named or given again; a target need not have a hash."""
    return list({t if isinstance(t, str) else id(t): t for t in targets}.values())


def _check_names(subjects: Sequence[Subject]) -> None:
    names = [subject.name for subject in subjects]
    for name in names:
        if names.count(name) > 1:
            raise ArgumentError(
                format_error(
                    "targets",
                    got=f"{names.count(name)} targets of the name {name!r}",
                    allowed="names that tell targets apart: outcomes are kept by them",
                    fix='give them names: FunctionTarget(function, name="...")',
                )
            )


def _cores() -> int:
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _no_number(where: str, got: float, allowed: str, fix: str) -> ArgumentError:
    return ArgumentError(format_error(where, got=got, allowed=allowed, fix=fix))


def _as_target(target: AnyTarget) -> Target:
    from sdpakit.conformance.target import adopt
    from sdpakit.conformance.targets.resolve import resolve

    return resolve(target) if isinstance(target, str) else adopt(target)
