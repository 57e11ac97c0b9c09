"""`sdpakit conformance`: judge targets, or list what there is to judge and to be judged."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from sdpakit.conformance import report
from sdpakit.conformance.ledger import Ledger
from sdpakit.conformance.model import Level, Outcome, Run
from sdpakit.conformance.rules import RULES
from sdpakit.conformance.runner import OnOutcome, collect, judged_nothing
from sdpakit.conformance.selection import find, select
from sdpakit.errors import ArgumentError, format_error


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What was asked for on the command line.

    Attributes
    ----------
    targets : sequence of str
        Texts that `resolve` knows.
    level : {"core", "full", "stress"}
        Which cases and relations.
    family : str or None
        Only those of this family.
    ids : sequence of str
        Only these; of any level.
    time_limit : float
        Seconds for one case.
    workers : int or None
        Processes of a target.
    ledger : Path or None
        Known failures.
    reports : sequence of Path
        Files to write, .json or .html.
    failures : int
        How many failures of each target to spell out.
    """

    targets: Sequence[str]
    level: Level
    family: str | None
    ids: Sequence[str]
    time_limit: float
    workers: int | None
    ledger: Path | None
    reports: Sequence[Path]
    failures: int


def judge(console: Console, request: Request) -> bool:
    """Judge the targets, print the result and write the reports.

    Parameters
    ----------
    console : rich.console.Console
        Where to print; a terminal also gets a progress bar.
    request : Request
        What to do.

    Returns
    -------
    bool
        Whether all is well: nothing is wrong but what the ledger names, no entry of it is stale,
        and no target refused all that it was asked.

    Raises
    ------
    ArgumentError
        If something asked for is not there; before anything runs.
    """
    if not request.targets:
        raise _no_target()
    ids = select(request.level, family=request.family, ids=request.ids)
    ledger = None if request.ledger is None else Ledger.read(request.ledger)
    for path in request.reports:
        report.check_path(path)
    with _progress(console, len(ids) * len(set(request.targets))) as on_outcome:
        run = collect(
            request.targets,
            request.level,
            ids=ids,
            time_limit=request.time_limit,
            workers=request.workers,
            on_outcome=on_outcome,
        )
    if ledger is not None:
        run = ledger.apply(run)
    console.print(report.terminal(run, failures=request.failures))
    for text in () if ledger is None else ledger.unused(run):
        console.out(f"ledger: not used: {text}", highlight=False)
    for path in request.reports:
        console.out(f"report: {report.write(run, path)}", highlight=False)
    # Said in any case, beside what else is wrong.
    return not _refused_all(console, run) and not report.is_wrong(run)


def report_paths(*, json: Path | None, html: Path | None) -> list[Path]:
    """Return the files to write, each with the suffix that its option stands for.

    Parameters
    ----------
    json, html : Path or None
        As given.

    Returns
    -------
    list of Path
        Those that were given.

    Raises
    ------
    ArgumentError
        If a name has another suffix.
    """
    found = []
    for path, suffix in ((json, ".json"), (html, ".html")):
        if path is not None and path.suffix != suffix:
            option = f"--{suffix[1:]}"
            fix = f"write {option} {path}{suffix}"
            raise ArgumentError(
                format_error(option, got=repr(str(path)), allowed=f"a name in {suffix}", fix=fix)
            )
        if path is not None:
            found.append(path)
    return found


def show_list(console: Console, level: Level, family: str | None) -> None:
    """Print the targets, the rules with their cases, and the cases with what they catch.

    Parameters
    ----------
    console : rich.console.Console
        Where to print; lines are not folded, so that they can be searched.
    level : {"core", "full", "stress"}
        Which cases and relations.
    family : str or None
        Only those of this family.

    Raises
    ------
    ArgumentError
        If there is no such family, or none of it in this level.
    """
    from sdpakit.conformance.targets import names

    ids = select(level, family=family)
    console.out("targets, and any package.module:object or path/to/file.py:object", highlight=False)
    for name in names():
        console.out(f"  {name}", highlight=False)
    by_rule: dict[str, int] = defaultdict(int)
    for name in ids:
        for rule in _about(name)[0]:
            by_rule[rule] += 1
    console.out("\nrules of docs/semantics.md, and how many of these cases show them")
    for rule, status in RULES.items():
        console.out(f"  {rule:9}{by_rule[rule]:4}  {status}", highlight=False)
    console.out(f"\n{len(ids)} cases and relations of level {level}, and what they catch")
    for name in ids:
        rules, catches = _about(name)
        console.out(f"  {name}  {' '.join(rules)}  {catches}", highlight=False)


def _about(name: str) -> tuple[tuple[str, ...], str]:
    wanted = find(name)
    about = wanted[0] if isinstance(wanted, tuple) else wanted
    return about.rules, about.catches


@contextmanager
def _progress(console: Console, total: int) -> Iterator[OnOutcome]:
    """Show a bar on a terminal, and nothing where the output is kept."""
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as bar:
        task = bar.add_task("loading", total=total)

        def advance(outcome: Outcome) -> None:
            bar.update(task, advance=1, description=outcome.target)

        yield advance


def _refused_all(console: Console, run: Run) -> bool:
    """Say which targets refused all they were asked; a run without one answer is no success."""
    found = False
    for info in run.targets:
        if judged_nothing(o for o in run.outcomes if o.target == info.name):
            console.out(f"{info.name} refused every case: nothing was judged", highlight=False)
            found = True
    return found


def _no_target() -> ArgumentError:
    from sdpakit.conformance.targets import names

    allowed = f"{', '.join(names())}, package.module:object, path/to/file.py:object"
    fix = "name one: sdpakit conformance numba_cpu"
    return ArgumentError(format_error("TARGET", got="none", allowed=allowed, fix=fix))
