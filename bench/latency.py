"""`python -m bench.latency`: compile times, import time, call overhead, compile count and scratch.

Each figure comes from processes of its own (`bench.probes`), with caches in a folder that starts
empty, so that nothing which lies on the machine makes a figure better.
"""

from __future__ import annotations

import json as json_module
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer

from bench import environment
from bench.calm import Probe as Neighbours
from bench.figures import Figure, Record, calm_of, typical

_REPEATS = 5
_MEBIBYTE = 2**20

Probe = Callable[[str], dict[str, Any]]


class Processes:
    """Starts probes in fresh processes that share one folder of caches."""

    def __init__(self, folder: Path, neighbours: Neighbours) -> None:
        self._folder = folder
        self._neighbours = neighbours

    def probe(self, name: str) -> dict[str, Any]:
        """Return what a probe printed, and "slowdown" by neighbours before and after it.

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
        slowdown = self._neighbours.wait()
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
        return facts | {"slowdown": max(slowdown, self._neighbours.slowdown())}

    def forget_kernels(self) -> None:
        """Empty the cache of kernels and drivers; that of Numba stays."""
        for path in sorted(self._folder.glob("sdpakit/**/*"), reverse=True):
            path.unlink() if path.is_file() else path.rmdir()


def _calm(runs: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    return calm_of([run["slowdown"] for run in runs])


def _typical(values: Sequence[float], runs: Sequence[Mapping[str, Any]]) -> float:
    return typical(values, [run["slowdown"] for run in runs])


def import_figures(processes: Processes) -> list[Figure]:
    """Return the time of `import sdpakit` and the count of heavy modules that it loads."""
    runs = [processes.probe("import_time") for _ in range(_REPEATS)]
    seconds = [1e3 * run["seconds"]["cpu"] for run in runs]
    loaded = runs[0]["loaded"]
    count = float(len(loaded))
    return [
        Figure(
            "import sdpakit",
            "ms",
            _typical(seconds, runs),
            None,
            30.0,
            seconds,
            {},
            calm=_calm(runs),
        ),
        Figure("heavy modules that it loads", "", count, 0.0, 0.0, [count], {"loaded": loaded}),
    ]


def compile_figures(processes: Processes) -> list[Figure]:
    """Return the times of compiling: everything cold, new specs, and specs found on disk."""
    cold = processes.probe("first_use")
    processes.forget_kernels()
    fresh = processes.probe("compile_specs")
    warm = processes.probe("compile_specs")
    started = processes.probe("first_use")

    def figure(
        name: str, unit: str, limits: tuple[float | None, float | None], run: Mapping[str, Any]
    ) -> Figure:
        found = [run] if "seconds" in run else run["specs"].values()
        factor = 1e3 if unit == "ms" else 1.0
        seconds = [factor * one.get("seconds", one)["cpu"] for one in found]
        return Figure(name, unit, median(seconds), *limits, seconds, run, calm=_calm([run]))

    return [
        figure("compile and call a new spec", "s", (0.5, 0.4), fresh),
        figure("the same, code on disk", "ms", (None, 15.0), warm),
        figure("fresh install to first answer", "s", (None, 4.0), cold),
        figure("fresh process to first answer", "s", (None, None), started),
    ]


def gradient_figures(processes: Processes) -> list[Figure]:
    """Return the times of compiling gradients: nothing on disk, and all but the mask known."""
    runs = []
    for _ in range(3):
        processes.forget_kernels()
        runs.append(processes.probe("compile_gradients"))
    figures = []
    for name, title, goal in (
        ("new", "compile gradients", 0.5),
        ("another mask", "the same, another mask", 0.2),
    ):
        seconds = [run[name]["cpu"] for run in runs]
        detail = {"runs": runs}
        figures.append(
            Figure(
                title, "s", _typical(seconds, runs), None, goal, seconds, detail, calm=_calm(runs)
            )
        )
    return figures


def call_figures(probe: Probe) -> list[Figure]:
    """Return the overhead of a call and the compilations of a sweep over lengths."""
    runs = [probe("call_overhead") for _ in range(3)]
    theirs = [run["torch"] for run in runs if run["torch"] is not None]
    torch = {"torch": median(theirs)} if theirs else {}
    figures = []
    for name, key in (("call (1,1,16,16,64)", "allocating"), ("the same with out=", "into out")):
        own = [run[key] for run in runs]
        detail = {"torch": theirs}
        figures.append(
            Figure(
                name,
                "µs",
                _typical(own, runs),
                None,
                4.0,
                own,
                detail,
                peers=torch,
                calm=_calm(runs),
            )
        )
    swept = probe("sweep")
    made = float(swept["compile"] + swept["sweep"])
    return [
        *figures,
        Figure("modules compiled for 50 lengths", "", made, 1.0, 1.0, [made], swept),
    ]


def memory_figures(probe: Probe) -> list[Figure]:
    """Return the scratch of each thread at the longest shapes."""
    figures = []
    for name, shape in (
        ("scratch_decode", "decode, 16 heads of 1 x 1,000,000"),
        ("scratch_prefill", "32,768 squared"),
        ("scratch_backward", "backward, 16,384 squared"),
    ):
        for threads, suffix in ((1, ""), (2, "_two_threads")):
            facts = probe(name + suffix)
            size = facts["grown_bytes"] / threads / _MEBIBYTE
            title = f"scratch, {shape}" + (", each of 2 threads" if threads == 2 else "")
            figures.append(Figure(title, "MiB", size, 32.0, 32.0, [size], facts))
    return figures


PARTS: dict[str, Callable[[Processes], list[Figure]]] = {
    "import": import_figures,
    "compile": compile_figures,
    "gradients": gradient_figures,
    "call": lambda processes: call_figures(processes.probe),
    "memory": lambda processes: memory_figures(processes.probe),
}


def measure(parts: Sequence[str]) -> list[Figure]:
    """Return all figures of some parts."""
    with tempfile.TemporaryDirectory() as folder:
        processes = Processes(Path(folder), Neighbours())
        return [figure for part in parts for figure in PARTS[part](processes)]


Parts = Annotated[
    list[str] | None,
    typer.Option("--part", help=f"Measure this part; repeatable: {', '.join(PARTS)}."),
]
Json = Annotated[Path | None, typer.Option("--json", help="Where to write all samples.")]
Require = Annotated[str | None, typer.Option(help="Fail unless kept at this level: floor, goal.")]


def main(part: Parts = None, json: Json = None, require: Require = None) -> None:
    """Measure latencies and scratch memory of sdpakit."""
    if require not in (None, "floor", "goal"):
        raise typer.BadParameter(f"require: got {require!r}\n  allowed: floor, goal")
    if unknown := [name for name in part or [] if name not in PARTS]:
        raise typer.BadParameter(f"part: got {unknown}\n  allowed: {', '.join(PARTS)}")
    command = shlex.join(["python", "-m", "bench.latency", *sys.argv[1:]])
    record = Record(environment.prepare(1), command)
    figures = measure(part or list(PARTS))
    sys.exit(record.finish(figures, json or environment.local_result("latency"), require))


if __name__ == "__main__":
    typer.run(main)
