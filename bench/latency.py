"""`python -m bench.latency`: compile times, import time, call overhead, compile count and scratch.

Each figure comes from processes of its own (`bench.probes`), with caches in a folder that starts
empty, so that nothing which lies on the machine makes a figure better.
"""

from __future__ import annotations

import json as json_module
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from bench import environment

SCHEMA = "sdpakit-latency/1"
_REPEATS = 5
_MEBIBYTE = 2**20

Probe = Callable[[str], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number and its limits; smaller is better.

    Attributes
    ----------
    name : str
        What was measured.
    unit : str
        Its unit.
    value : float
        The figure that is judged, a median where it was repeated.
    floor, goal : float or None
        The most that a release may have, and what the design asks for.
    samples : list of float
        All repeats.
    detail : mapping
        Everything else that the probes said.
    """

    name: str
    unit: str
    value: float
    floor: float | None
    goal: float | None
    samples: list[float]
    detail: Mapping[str, Any]

    def met(self, level: str) -> bool | None:
        """Say whether a limit is kept; None where there is none."""
        limit = self.floor if level == "floor" else self.goal
        return None if limit is None else self.value <= limit


class Processes:
    """Starts probes in fresh processes that share one folder of caches."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def probe(self, name: str) -> dict[str, Any]:
        """Return what a probe printed.

        Raises
        ------
        RuntimeError
            If it failed; with what it said.
        """
        variables = {
            **os.environ,
            "SDPAKIT_CACHE_DIR": str(self._folder / "sdpakit"),
            "NUMBA_CACHE_DIR": str(self._folder / "numba"),
        }
        done = subprocess.run(
            [sys.executable, "-m", "bench.probes", name],
            cwd=environment.ROOT,
            env=variables,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"probe {name}: status {done.returncode}\n{done.stderr}")
        facts: dict[str, Any] = json_module.loads(done.stdout)
        return facts

    def forget_kernels(self) -> None:
        """Empty the cache of kernels; that of the driver stays."""
        for path in sorted(self._folder.glob("sdpakit/**/*"), reverse=True):
            path.unlink() if path.is_file() else path.rmdir()


def import_figures(probe: Probe) -> list[Figure]:
    """Return the time of `import sdpakit` and the count of heavy modules that it loads."""
    runs = [probe("import_time") for _ in range(_REPEATS)]
    seconds = [1e3 * run["seconds"]["cpu"] for run in runs]
    loaded = runs[0]["loaded"]
    detail = {"loaded": loaded}
    count = float(len(loaded))
    return [
        Figure("import sdpakit", "ms", median(seconds), None, 30.0, seconds, detail),
        Figure("heavy modules that it loads", "", count, 0.0, 0.0, [count], detail),
    ]


def compile_figures(processes: Processes) -> list[Figure]:
    """Return the times of compiling: everything cold, new specs, and specs found on disk."""
    cold = processes.probe("first_use")
    processes.forget_kernels()
    fresh = processes.probe("compile_specs")
    warm = processes.probe("compile_specs")
    started = processes.probe("first_use")

    def of_specs(run: Mapping[str, Any]) -> list[float]:
        return [seconds["cpu"] for seconds in run["specs"].values()]

    new, known = of_specs(fresh), [1e3 * s for s in of_specs(warm)]
    first, again = cold["seconds"]["cpu"], started["seconds"]["cpu"]
    return [
        Figure("compile and call a new spec", "s", median(new), 0.5, 0.4, new, fresh),
        Figure("the same, code on disk", "ms", median(known), None, 15.0, known, warm),
        Figure("fresh install to first answer", "s", first, None, 4.0, [first], cold),
        Figure("fresh process to first answer", "s", again, None, None, [again], started),
    ]


def gradient_figures(processes: Processes) -> list[Figure]:
    """Return the times of compiling gradients: nothing on disk, and all but the mask known."""
    runs = []
    for _ in range(3):
        processes.forget_kernels()
        runs.append(processes.probe("compile_gradients"))
    detail = {"runs": runs}
    figures = []
    for name, title, goal in (
        ("new", "compile gradients", 0.5),
        ("another mask", "the same, another mask", 0.2),
    ):
        seconds = [run[name]["cpu"] for run in runs]
        figures.append(Figure(title, "s", median(seconds), None, goal, seconds, detail))
    return figures


def call_figures(probe: Probe) -> list[Figure]:
    """Return the overhead of a call and the compilations of a sweep over lengths."""
    overhead = [probe("call_overhead") for _ in range(3)]
    allocating = [run["allocating"] for run in overhead]
    into_out = [run["into out"] for run in overhead]
    swept = probe("sweep")
    made = float(swept["compile"] + swept["sweep"])
    torch = {"torch": [run["torch"] for run in overhead]}
    return [
        Figure("call (1,1,16,16,64)", "µs", median(allocating), None, 4.0, allocating, torch),
        Figure("the same with out=", "µs", median(into_out), None, 4.0, into_out, torch),
        Figure("modules compiled for 50 lengths", "", made, 1.0, 1.0, [made], swept),
    ]


def memory_figures(probe: Probe) -> list[Figure]:
    """Return the scratch of one thread at the longest shapes."""
    figures = []
    for name, shape in (("scratch_decode", "1 x 1,000,000"), ("scratch_prefill", "32,768 squared")):
        facts = probe(name)
        size = facts["grown_bytes"] / _MEBIBYTE
        figures.append(Figure(f"scratch, {shape}", "MiB", size, 32.0, 32.0, [size], facts))
    return figures


def measure() -> list[Figure]:
    """Return all figures."""
    with tempfile.TemporaryDirectory() as folder:
        processes = Processes(Path(folder))
        compiled = [*compile_figures(processes), *gradient_figures(processes)]
        return [
            *import_figures(processes.probe),
            *compiled,
            *call_figures(processes.probe),
            *memory_figures(processes.probe),
        ]


def table(figures: list[Figure]) -> Table:
    """Return the figures for the terminal."""
    made = Table(title="one thread, processor time; smaller is better")
    made.add_column("figure")
    for name in ("value", "least to most", "floor", "goal"):
        made.add_column(name, justify="right")
    for f in figures:
        limits = (_limit(f, level) for level in ("floor", "goal"))
        spread = f"{min(f.samples):.3g} to {max(f.samples):.3g}" if len(f.samples) > 1 else ""
        made.add_row(f.name, f"{f.value:.3g} {f.unit}", spread, *limits)
    return made


def _limit(figure: Figure, level: str) -> str:
    limit = figure.floor if level == "floor" else figure.goal
    if limit is None:
        return ""
    verdict = "[green]met[/]" if figure.met(level) else "[red]over[/]"
    return f"{verdict} {limit:g}"


Json = Annotated[Path | None, typer.Option("--json", help="Where to write all samples.")]
Require = Annotated[str | None, typer.Option(help="Fail unless kept at this level: floor, goal.")]


def main(json: Json = None, require: Require = None) -> None:
    """Measure latencies and scratch memory of sdpakit."""
    if require not in (None, "floor", "goal"):
        raise typer.BadParameter(f"require: got {require!r}\n  allowed: floor, goal")
    prepared = environment.prepare(1)
    figures = measure()
    document = {
        "schema": SCHEMA,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "environment": environment.describe(prepared),
        "figures": [asdict(figure) for figure in figures],
    }
    path = json or environment.local_result("latency")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json_module.dumps(document, indent=1) + "\n", encoding="utf-8")
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(table(figures))
    console.print(f"all samples: {path}", highlight=False)
    over = [f.name for f in figures if require and f.met(require) is False]
    for name in over:
        console.print(f"[red]over its {require}: {name}[/]", highlight=False)
    sys.exit(1 if over else 0)


if __name__ == "__main__":
    typer.run(main)
