"""A run as a table: for the terminal, or in Markdown (`python -m bench.report FILE --markdown`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from bench.calm import ENOUGH_QUIET
from bench.results import (
    OURS,
    Document,
    GoalRecord,
    ResultRecord,
    TargetRecord,
    best_peer,
    describe_goal,
)

_UNITS = {"fma": "GF/s", "read": "GB/s"}
_VERDICTS = {True: "[green]met[/]", False: "[red]below[/]", None: "[yellow]no figure[/]"}


def write(document: Document, path: Path) -> None:
    """Write a run as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def show(document: Document, console: Console) -> None:
    """Print a run: figures, then whatever was not as it should be, then where it was run."""
    peers = _peers(document)
    console.print(_table(document, peers))
    for line in _remarks(document):
        console.print(line, highlight=False)
    environment = document["environment"]
    if environment:
        versions = environment["versions"]
        console.print(
            ", ".join(f"{name} {version or 'absent'}" for name, version in versions.items()),
            highlight=False,
        )
        console.print(
            f"{environment['machine']['processor']}; {document['clock']}", highlight=False
        )


def markdown(document: Document) -> str:
    """Return the figures as a table in Markdown, without goals.

    Peers show how many times faster ours is.
    """
    peers = _peers(document)
    names = ["case", "ceiling", OURS, *peers]
    lines = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    for entry in document["results"]:
        targets = entry["targets"]
        ours = targets.get(OURS)
        share = ours["share"] if ours else None
        cells = [
            entry["workload"]["name"],
            f"{_rate(entry['ceiling']['rate'])} {_UNITS[entry['ceiling']['resource']]}",
            f"{_cell(ours)} ({100 * share['median']:.0f} %)" if share else _cell(ours),
            *(_faster(targets[name]) if name in targets else "" for name in peers),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _peers(document: Document) -> list[str]:
    names: dict[str, None] = {}
    for entry in document["results"]:
        names.update(dict.fromkeys(n for n, t in entry["targets"].items() if t["is_peer"]))
    return list(names)


def _table(document: Document, peers: list[str]) -> Table:
    threads = document["threads"]
    table = Table(
        title=f"{threads} thread{'s' if threads > 1 else ''}, {document['clock']}; "
        "a peer's figure is its rate, then how many times faster ours is; ~ disturbed"
    )
    table.add_column("case", no_wrap=True)
    for name in ("ceiling", OURS, "share", *peers, "best peer"):
        table.add_column(name, justify="right")
    for name in ("floor", "goal"):
        table.add_column(name)
    for entry in document["results"]:
        table.add_row(*_row(entry, peers))
    return table


def _row(entry: ResultRecord, peers: list[str]) -> list[str]:
    targets = entry["targets"]
    unit = _UNITS[entry["ceiling"]["resource"]]
    ours = targets.get(OURS)
    share = ours["share"] if ours else None
    best = best_peer(targets)
    return [
        entry["workload"]["name"],
        f"{_rate(entry['ceiling']['rate'])} {unit}",
        _cell(ours),
        f"{100 * share['median']:.1f} %" if share else "",
        *(_cell(targets.get(name)) for name in peers),
        f"{best} {_faster(targets[best])}" if best else "",
        *(_goal(entry["goals"].get(level)) for level in ("floor", "goal")),
    ]


def _mark(record: TargetRecord) -> str:
    """Return `~` where a neighbour disturbed so many samples that all had to count."""
    wanted = min(ENOUGH_QUIET, len(record["samples"]))
    return "" if record["calm_samples"] >= wanted else "~"


def _rate(rate: float | None) -> str:
    return "noisy" if rate is None else f"{rate / 1e9:.1f}"


def _faster(record: TargetRecord) -> str:
    return f"{record['ours_faster']['median']:.2f}x" if record["ours_faster"] else ""


def _cell(record: TargetRecord | None) -> str:
    if record is None:
        return ""
    if record["status"] != "ok":
        return "" if record["status"] == "unsupported" else record["status"]
    ratio = f" ({_faster(record)})" if record["is_peer"] and record["ours_faster"] else ""
    return _mark(record) + _rate(record["rate"]) + ratio


def _goal(goal: GoalRecord | None) -> str:
    return "" if goal is None else f"{_VERDICTS[goal['met']]} {describe_goal(goal)}"


def _remarks(document: Document) -> list[str]:
    lines = []
    for entry in document["results"]:
        name = entry["workload"]["name"]
        for target, record in entry["targets"].items():
            if record["is_peer"] and record["status"] in ("wrong", "failed"):
                lines.append(f"[red]{name}: {target} {record['status']}[/]: {record['reason']}")
    absent = {
        f"{target} is absent: {record['reason']}": None
        for entry in document["results"]
        for target, record in entry["targets"].items()
        if record["is_peer"] and record["status"] == "absent"
    }
    return [*absent, *lines]


File = Annotated[Path, typer.Argument(help="A run that was written with --json.")]
Markdown = Annotated[bool, typer.Option("--markdown", help="Print a table in Markdown.")]


def main(file: File, as_markdown: Markdown = False) -> None:  # noqa: FBT002 - a flag of the command
    """Show a written run."""
    document: Document = json.loads(file.read_text(encoding="utf-8"))
    if as_markdown:
        typer.echo(markdown(document))
    else:
        show(document, Console())


if __name__ == "__main__":
    typer.run(main)
