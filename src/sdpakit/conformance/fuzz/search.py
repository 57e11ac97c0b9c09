"""The search: random cases until the time is over or one fails; the failing one is shrunk."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy

from sdpakit.conformance.fuzz.differential import split
from sdpakit.conformance.fuzz.paste import paste
from sdpakit.conformance.fuzz.strategies import cases
from sdpakit.conformance.judge import check
from sdpakit.conformance.model import Case, Shape
from sdpakit.conformance.target import Target
from sdpakit.errors import UnsupportedSpecError

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
    """

    message: str
    source: str


@dataclass(slots=True)
class Search:
    """What a search has done so far.

    Attributes
    ----------
    tried, refused : int
        Cases that ran, and those of them that every target refused.
    finding : Finding or None
        The first one; the search ends there.
    """

    tried: int = 0
    refused: int = 0
    finding: Finding | None = None


class _FoundError(AssertionError):
    """Tells hypothesis that a case failed."""


def search(
    targets: Sequence[Target],
    *,
    seconds: float,
    first_seed: int = 0,
    hostile: bool = True,
    before_case: Callable[[Case, Search], None] | None = None,
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
    before_case : callable, optional
        Called with each case before a target sees it.

    Returns
    -------
    Search
        With the finding, if there is one.
    """
    state, end = Search(), time.monotonic() + seconds
    judge = _judged_alone if len(targets) == 1 else _judged_together
    kinds = [False, True] if len(targets) == 1 and _has_gradients(targets[0]) else [False]

    for number in _rounds(end):
        wanted = cases(hostile=hostile, gradients=kinds[number % len(kinds)])

        def one(case: Case) -> None:
            # A case being shrunk is looked at again and again, whatever the clock says.
            if time.monotonic() > end and state.finding is None:
                return
            if before_case is not None:
                before_case(case, state)
            state.tried += 1
            message = judge(targets, case, state)
            if message:
                names = tuple(target.name for target in targets)
                state.finding = Finding(message, paste(case, names))
                raise _FoundError(message)

        with _until_found():
            _round(wanted, one, first_seed + number)
        if state.finding is not None:
            break
    return state


def _rounds(end: float) -> Iterator[int]:
    number = 0
    while time.monotonic() < end:
        yield number
        number += 1


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


def _judged_alone(targets: Sequence[Target], case: Case, state: Search) -> str:
    outcome = check(targets[0], case)
    state.refused += outcome.verdict == "refused"
    return "" if outcome.verdict in ("ok", "refused") else f"{outcome.verdict}: {outcome.message}"


def _judged_together(targets: Sequence[Target], case: Case, state: Search) -> str:
    found = split(targets, case)
    state.refused += found.answered < 2
    return found.message


def _has_gradients(target: Target) -> bool:
    probe = Case(id="", rules=(), catches="", shape=Shape(), spec={"dtype": "float32"})
    try:
        target.prepare_gradients(probe.attention_spec())
    except UnsupportedSpecError:
        return False
    return True
