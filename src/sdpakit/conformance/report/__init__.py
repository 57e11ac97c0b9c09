"""Reports of a run: JSON to keep and compare, a matrix for the terminal, one page to read.

Nothing here judges; a report shows what a `Run` holds, beside what the cases say about themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sdpakit.conformance.report.facts import About, about, command
from sdpakit.conformance.report.files import check_path, read, write
from sdpakit.conformance.report.page import html
from sdpakit.conformance.report.records import SCHEMA_VERSION, from_json, schema, to_json
from sdpakit.conformance.report.tally import Shown, Tally, is_wrong, matrix, shown

if TYPE_CHECKING:
    from rich.console import RenderableType

    from sdpakit.conformance.model import Run

__all__ = [
    "SCHEMA_VERSION",
    "About",
    "Shown",
    "Tally",
    "about",
    "check_path",
    "command",
    "from_json",
    "html",
    "is_wrong",
    "matrix",
    "read",
    "schema",
    "shown",
    "terminal",
    "to_json",
    "write",
]


def terminal(run: Run, *, failures: int | None = 20) -> RenderableType:
    """Return a run as something that `rich` prints, at any width.

    Parameters
    ----------
    run : Run
        What to show.
    failures : int, optional
        How many failures of each target to spell out; None for all.

    Returns
    -------
    rich renderable
        A matrix of families and targets, then the failures.
    """
    # rich is a third of the import time of this package, and JSON and pages do without it.
    from sdpakit.conformance.report.screen import Screen

    return Screen(run, failures)
