"""Figures that are one number each: smaller is better, a limit says how small it must be.

The schema is described in bench/README.md; `SCHEMA` names its version.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from bench import environment
from bench.calm import ENOUGH_QUIET, SLOWDOWN_LIMIT

SCHEMA = "sdpakit-figures/1"


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number and its limits.

    Attributes
    ----------
    name : str
        What was measured.
    unit : str
        Its unit.
    value : float or None
        The figure that is judged, a median where it was repeated; None where there is none.
    floor, goal : float or None
        The most that a release may have, and what the design asks for.
    samples : list of float
        All repeats.
    detail : mapping
        Everything else that was found out.
    peers : mapping of str to float
        The same of others, in the same unit.
    calm : (int, int)
        How many processes or samples no neighbour disturbed, and of how many; 0 of 0 for counts.
    reason : str
        What kept it from being measured; empty = nothing.
    """

    name: str
    unit: str
    value: float | None
    floor: float | None
    goal: float | None
    samples: list[float]
    detail: Mapping[str, Any]
    peers: Mapping[str, float] = field(default_factory=dict)
    calm: tuple[int, int] = (0, 0)
    reason: str = ""

    def met(self, level: str) -> bool | None:
        """Say whether a limit is kept; None where there is none, or no value."""
        limit = self.floor if level == "floor" else self.goal
        return None if limit is None or self.value is None else self.value <= limit


def calm_of(slowdowns: Sequence[float]) -> tuple[int, int]:
    """Return the field `calm` of a figure for what the probe of `calm.py` read."""
    return sum(slowdown <= SLOWDOWN_LIMIT for slowdown in slowdowns), len(slowdowns)


def typical(values: Sequence[float], slowdowns: Sequence[float]) -> float:
    """Return the median of the values that no neighbour disturbed; of all where those are few."""
    pairs = zip(values, slowdowns, strict=True)
    calm = [value for value, slowdown in pairs if slowdown <= SLOWDOWN_LIMIT]
    return median(calm if len(calm) >= min(ENOUGH_QUIET, len(values)) else values)


@dataclass(frozen=True, slots=True)
class Record:
    """Begins with a run and ends as its document."""

    prepared: environment.Preparation
    command: str
    clock: str = "process_time"
    started: datetime = field(default_factory=lambda: datetime.now(UTC))
    start: float = field(default_factory=time.perf_counter)

    def document(self, figures: Sequence[Figure]) -> dict[str, Any]:
        """Return the document of the run."""
        return {
            "schema": SCHEMA,
            "command": self.command,
            "started": self.started.isoformat(timespec="seconds"),
            "wall_seconds": time.perf_counter() - self.start,
            "threads": self.prepared.threads,
            "clock": self.clock,
            "environment": environment.describe(self.prepared),
            "figures": [asdict(figure) for figure in figures],
        }

    def finish(self, figures: Sequence[Figure], path: Path, require: str | None = None) -> int:
        """Write and show the figures; return the exit status.

        Parameters
        ----------
        figures : sequence of Figure
            What was measured.
        path : Path
            Where to write all samples.
        require : str or None
            Level of the limits that must be kept.

        Returns
        -------
        int
            1 if something was not measured, or a required limit is not kept.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.document(figures), indent=1) + "\n", encoding="utf-8")
        console = Console(width=None if sys.stdout.isatty() else 120)
        console.print(table(figures, self.prepared.threads, self.clock))
        console.print(f"all samples: {path}", highlight=False)
        lines = [f"{f.name}: {f.reason}" for f in figures if f.reason]
        if require:
            limited = [f for f in figures if getattr(f, require) is not None]
            lines += [f"{require} not kept: {f.name}" for f in limited if not f.met(require)]
        for line in lines:
            console.print(f"[red]{line}[/]", highlight=False)
        return 1 if lines else 0


def table(figures: Sequence[Figure], threads: int, clock: str) -> Table:
    """Return the figures for the terminal."""
    made = Table(title=f"threads: {threads}, {clock}; smaller is better")
    made.add_column("figure")
    for name in ("value", "least to most", "others", "calm", "floor", "goal"):
        made.add_column(name, justify="right")
    for f in figures:
        value = "no figure" if f.value is None else f"{f.value:.3g} {f.unit}"
        spread = f"{min(f.samples):.3g} to {max(f.samples):.3g}" if len(f.samples) > 1 else ""
        others = ", ".join(f"{name} {value:.3g}" for name, value in f.peers.items())
        calm = f"{f.calm[0]}/{f.calm[1]}" if f.calm[1] else ""
        limits = (_limit(f, level) for level in ("floor", "goal"))
        made.add_row(f.name, value, spread, others, calm, *limits)
    return made


def _limit(figure: Figure, level: str) -> str:
    limit = figure.floor if level == "floor" else figure.goal
    if limit is None:
        return ""
    verdicts = {True: "[green]met[/]", False: "[red]over[/]", None: "[yellow]no figure[/]"}
    return f"{verdicts[figure.met(level)]} {limit:g}"
