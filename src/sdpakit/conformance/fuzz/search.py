"""The search: random cases until the time is over; one that fails is shrunk, and set aside.

A failure of the same kind as one that was found, in a case with at least the features of that one,
counts as known, and the search goes on for others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy

from sdpakit.conformance.fuzz.differential import split
from sdpakit.conformance.fuzz.features import Known, Learned, features, kind
from sdpakit.conformance.fuzz.paste import paste
from sdpakit.conformance.fuzz.strategies import cases
from sdpakit.conformance.judge import check
from sdpakit.conformance.model import Case, Shape
from sdpakit.conformance.target import Target
from sdpakit.errors import UnsupportedSpecError

MOST = 5  # findings of one search
_DEADLY = ("crash", "hang")
_A_ROUND = 50  # cases from one seed; between rounds the clock is looked at


@dataclass(frozen=True, slots=True)
class Finding:
    """A case that came out wrong, shrunk.

    Attributes
    ----------
    message : str
        What is wrong.
    source : str
        A program that shows it again.
    features : frozenset of str
        What the case has beyond the plainest call.
    case : Case or None
        None where it is in another process.
    """

    message: str
    source: str
    features: frozenset[str] = frozenset()
    case: Case | None = field(default=None, compare=False)

    @property
    def known(self) -> Known:
        """The class of failures that this one stands for."""
        return Known(kind(self.message), self.features)


@dataclass(slots=True)
class Search:
    """What a search has done so far.

    Attributes
    ----------
    tried, refused : int
        Cases that ran, and those of them that every target refused.
    findings : list of Finding
        In the order in which they came; none covers another.
    """

    tried: int = 0
    refused: int = 0
    findings: list[Finding] = field(default_factory=list)

    @property
    def finding(self) -> Finding | None:
        """The first one, None if nothing was found."""
        return self.findings[0] if self.findings else None

    def add(self, finding: Finding) -> None:
        """Keep a finding, in the place of those that are only it and more."""
        kept = [one for one in self.findings if not finding.known.covers(one.message, one.features)]
        self.findings = [*kept, finding]

    @property
    def judged(self) -> int:
        """Cases that at least one target answered, or two of several."""
        return self.tried - self.refused


class _FoundError(AssertionError):
    """Tells hypothesis that a case failed."""


def search(
    targets: Sequence[Target],
    *,
    seconds: float,
    first_seed: int = 0,
    hostile: bool = True,
    known: Sequence[Known] = (),
    most: int = MOST,
    before_case: Callable[[Case, Search], None] | None = None,
    on_finding: Callable[[Finding, Search], None] | None = None,
) -> Search:
    """Judge targets on random cases.

    Parameters
    ----------
    targets : sequence of Target
        One is held against the reference. Several are held against each other: a finding is an
        input on which they split.
    seconds : float
        How long to look; a case that fails is shrunk beyond that.
    first_seed : int
        The same seed and version of hypothesis give the same cases.
    hostile : bool
        Whether operands may hold NaN, infinities and huge numbers.
    known : sequence of Known
        Failures that are no findings.
    most : int
        Findings after which it ends.
    before_case, on_finding : callable, optional
        Called with each case before a target sees it, and with each finding.

    Returns
    -------
    Search
        With what was found, nothing twice.
    """
    state, end = Search(), time.monotonic() + seconds
    rounds = _Rounds(targets, state, end, before_case, list(known))
    kinds = [False, True] if len(targets) == 1 and _has_gradients(targets[0]) else [False]
    number = 0
    while time.monotonic() < end and len(state.findings) < most:
        without = rounds.learned.without(number)
        wanted = cases(hostile=hostile, gradients=kinds[number % len(kinds)], without=without)
        finding = rounds.run(wanted, first_seed + number)
        if finding is not None:
            state.add(finding)
            if on_finding is not None:
                on_finding(finding, state)
        number += 1
    return state


@dataclass(slots=True)
class _Rounds:
    """Runs rounds of cases, each until one fails in a way that is not known."""

    targets: Sequence[Target]
    state: Search
    end: float
    before_case: Callable[[Case, Search], None] | None
    known: list[Known]
    learned: Learned = field(default_factory=Learned)
    failed: list[Finding] = field(default_factory=list)

    def run(self, wanted: SearchStrategy[Case], number: int) -> Finding | None:
        """Return what a round found, shrunk; None if nothing new failed."""
        self.failed.clear()
        with _until_found():
            _round(wanted, self._one, number)
        if not self.failed:
            return None
        found = self.failed[-1]  # hypothesis runs the smallest case last
        self.known.append(found.known)
        return found

    def _one(self, case: Case) -> None:
        # A case being shrunk is looked at again and again, whatever the clock says.
        if time.monotonic() > self.end and not self.failed:
            return
        of_case = features(case)
        # A death or a hang would end the process before it could be told from others.
        if any(one.kind.startswith(_DEADLY) and one.features <= of_case for one in self.known):
            return
        if self.before_case is not None:
            self.before_case(case, self.state)
        self.state.tried += 1
        judge = _judged_alone if len(self.targets) == 1 else _judged_together
        refused, message = judge(self.targets, case)
        self.state.refused += refused
        self.learned.add(case, refused=refused)
        if message and not any(one.covers(message, of_case) for one in self.known):
            names = tuple(target.name for target in self.targets)
            self.failed.append(Finding(message, paste(case, names), of_case, case))
            raise _FoundError(message)


def _round(wanted: SearchStrategy[Case], one: Callable[[Case], None], number: int) -> None:
    quiet = settings(
        max_examples=_A_ROUND,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        print_blob=False,
    )
    judged = given(wanted)(one)
    seed(number)(quiet(judged))()


@contextmanager
def _until_found() -> Iterator[None]:
    try:
        yield
    except _FoundError:
        return  # the finding was kept where it was raised


def _judged_alone(targets: Sequence[Target], case: Case) -> tuple[bool, str]:
    """Return whether a case was refused, and what is wrong."""
    outcome = check(targets[0], case)
    wrong = outcome.verdict not in ("ok", "refused")
    return outcome.verdict == "refused", f"{outcome.verdict}: {outcome.message}" if wrong else ""


def _judged_together(targets: Sequence[Target], case: Case) -> tuple[bool, str]:
    found = split(targets, case)
    return found.answered < 2, found.message


def _has_gradients(target: Target) -> bool:
    probe = Case(id="", rules=(), catches="", shape=Shape(), spec={"dtype": "float32"})
    try:
        target.prepare_gradients(probe.attention_spec())
    except UnsupportedSpecError:
        return False
    return True
