"""`python -m bench`: the command line.

It fixes threads and core first, and only then loads what depends on them.
"""

from __future__ import annotations

import math
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bench import environment, workloads

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

Cases = Annotated[list[str] | None, typer.Option("--case", help="Run this workload; repeatable.")]
Names = Annotated[list[str] | None, typer.Option("--target", help="Run this target; repeatable.")]
Group = Annotated[str, typer.Option(help=f"Workloads to run: {', '.join(workloads.GROUPS)}.")]
Threads = Annotated[
    int, typer.Option(min=1, help="1 = processor time on one core; more = wall time.")
]
Core = Annotated[int | None, typer.Option(help="Core for one thread; the last one if not given.")]
Rounds = Annotated[int, typer.Option(min=1, help="Interleaved rounds.")]
Patience = Annotated[
    float, typer.Option(help="Seconds in which rounds for calm samples may begin, of a workload.")
]
Json = Annotated[Path | None, typer.Option("--json", help="Where to write all samples.")]
Require = Annotated[
    str | None, typer.Option(help="Fail unless goals of this level are met: floor, goal.")
]
Listing = Annotated[bool, typer.Option("--list", help="List the workloads and stop.")]


@app.command()
def main(  # noqa: PLR0913, PLR0917 - each parameter is an option of the command
    group: Group = "floor",
    case: Cases = None,
    target: Names = None,
    threads: Threads = 1,
    core: Core = None,
    rounds: Rounds = 7,
    patience: Patience = math.inf,
    json: Json = None,
    require: Require = None,
    list_only: Listing = False,  # noqa: FBT002 - a flag
) -> None:
    """Check every target against float64, then time it beside the ceilings of this machine."""
    if require not in (None, "floor", "goal"):
        raise typer.BadParameter(f"require: got {require!r}\n  allowed: floor, goal")
    try:
        chosen = workloads.select(group, case or [])
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if list_only:
        for workload in chosen:
            typer.echo(workload.name)
        return
    prepared = environment.prepare(threads, core)
    path = json or environment.local_result(f"{'cases' if case else group}-{threads}t")
    sys.exit(_run(chosen, target or [], prepared, (rounds, patience), path, require))


def _run(
    chosen: tuple[workloads.Workload, ...],
    names: list[str],
    prepared: environment.Preparation,
    sampling: tuple[int, float],
    path: Path,
    require: str | None,
) -> int:
    """Run, show and write; return the exit status."""
    # Imported here: NumPy and torch read thread counts and affinity while they are loaded.
    from bench import report, results, targets, timing
    from bench.run import run

    known = {target.name: target for target in targets.TARGETS}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise typer.BadParameter(f"target: got {unknown}\n  allowed: {', '.join(known)}")
    used = [known[name] for name in names] or list(targets.TARGETS)
    plan = timing.Plan.of(prepared.threads, *sampling)
    console = Console(width=None if sys.stdout.isatty() else 250)
    with Console(stderr=True).status("starting") as status:
        document = run(
            chosen,
            used,
            plan,
            command=shlex.join(["python", "-m", "bench", *sys.argv[1:]]),
            announce=status.update,
        )
    document["environment"] = environment.describe(prepared)
    report.write(document, path)
    report.show(document, console)
    console.print(f"all samples: {path}", highlight=False)
    problems = results.failures(document, require)
    for line in problems:
        console.print(f"[red]{line}[/]", highlight=False)
    return 1 if problems else 0


if __name__ == "__main__":
    app()
