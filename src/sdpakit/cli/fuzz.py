"""`sdpakit fuzz`: random cases, and those that fail."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.syntax import Syntax

from sdpakit.errors import ArgumentError, format_error

if TYPE_CHECKING:
    from sdpakit.conformance.fuzz.search import Search


_FEW = 0.2  # of the cases, which are too few to have been judged


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked for.

    Attributes
    ----------
    targets : sequence of str
        Names that `resolve` knows.
    seconds, time_limit : float
        For the search, and for one case.
    seed : int
        Of the first round.
    plain : bool
        Whether to leave out NaN, infinities and huge numbers.
    """

    targets: Sequence[str]
    seconds: float
    time_limit: float
    seed: int
    plain: bool


def run(console: Console, request: Request) -> bool:
    """Search, with a progress bar on a terminal, and print what was found.

    Parameters
    ----------
    console : rich.console.Console
        Where to print.
    request : Request
        What to search.

    Returns
    -------
    bool
        Whether nothing was found.

    Raises
    ------
    ArgumentError
        If a number is out of range, hypothesis is missing, or a target cannot be loaded.
    """
    _refuse_nonsense(request)
    from sdpakit.conformance.fuzz.session import fuzz

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("loading", total=request.seconds)

        def moved(state: Search) -> None:
            spent = progress.tasks[0].elapsed or 0.0
            progress.update(bar, completed=spent, description=f"{state.tried} cases")

        found = fuzz(
            request.targets,
            seconds=request.seconds,
            first_seed=request.seed,
            hostile=not request.plain,
            time_limit=request.time_limit,
            on_case=moved if console.is_terminal else None,
        )
    _show(console, request, found)
    return not found.findings


def _refuse_nonsense(request: Request) -> None:
    for name, value in (("--seconds", request.seconds), ("--time-limit", request.time_limit)):
        if not (math.isfinite(value) and value > 0):
            raise ArgumentError(
                format_error(name, got=value, allowed="a number of seconds > 0", fix="give one")
            )
    if len(set(request.targets)) != len(request.targets):
        raise ArgumentError(
            format_error(
                "TARGET",
                got=" ".join(request.targets),
                allowed="each target once",
                fix="name different targets to hold them against each other",
            )
        )
    if importlib.util.find_spec("hypothesis") is None:
        raise ArgumentError(
            format_error(
                "sdpakit fuzz",
                got="no package hypothesis",
                allowed="hypothesis, which draws and shrinks the cases",
                fix="python -m pip install hypothesis",
            )
        )


def _show(console: Console, request: Request, found: Search) -> None:
    names = ", ".join(request.targets)
    tried = (
        f"{found.tried} cases: {found.judged} judged, {found.refused} refused; seed {request.seed}"
    )
    if found.tried and found.judged < _FEW * found.tried:
        text = f"warning: fewer than {_FEW:.0%} of the cases were judged, the rest was refused"
        console.print(text, markup=False, highlight=False)
    if not found.findings:
        console.print(f"{names}: nothing found in {request.seconds:g} s ({tried})", markup=False)
        return
    count = len(found.findings)
    what = "one finding" if count == 1 else f"{count} findings, no two alike"
    console.print(f"{names}: {what} ({tried}, shrinking included)", markup=False)
    for number, finding in enumerate(found.findings, start=1):
        console.print(f"\n{number}. {finding.message}", markup=False, highlight=False)
        console.print("\nThe case, ready to paste:\n", markup=False)
        if console.is_terminal:
            console.print(Syntax(finding.source, "python", word_wrap=True))
        else:
            # Wrapped lines would not be Python any more.
            console.file.write(finding.source)
