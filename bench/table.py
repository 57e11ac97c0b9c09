"""`python -m bench.table`: every row that the design asks of the CPU, in one table.

Threads and cores of a process are fixed before NumPy is loaded, so each part runs in a child of its
own, by the command that measures it alone; what they wrote is joined. Parts can be measured one at
a time and joined with an earlier file (`--only`, `--into`).
"""

from __future__ import annotations

import json as json_module
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from bench import environment, joined, sheet
from bench.joined import RowRecord, TableDocument
from bench.rows import PARTS, Part, Row, select

Runner = Callable[[Part, Sequence[Row], int, Path], None]


def run_child(part: Part, rows: Sequence[Row], rounds: int, path: Path) -> None:
    """Measure some rows of a part in a child process.

    Parameters
    ----------
    part : Part
        What to run.
    rows : sequence of Row
        Which of its rows, where it can choose.
    rounds : int
        Interleaved rounds, where it has them.
    path : Path
        Where the child writes its document.

    Raises
    ------
    RuntimeError
        If it wrote none; with the last line that it said.
    """
    command = [sys.executable, "-m", part.module, *part.arguments, "--json", str(path)]
    command += ["--rounds", str(rounds)] if part.sampled else []
    for row in rows if part.by_case else ():
        command += ["--case", row.name]
    done = subprocess.run(
        command,
        cwd=environment.ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if not path.is_file():  # its status is 1, too, where an answer is wrong, which is a result
        said = done.stderr.strip().splitlines() or ["nothing"]
        raise RuntimeError(f"status {done.returncode}: {said[-1]}")


def measure(
    part: Part, rows: Sequence[Row], rounds: int, run: Runner = run_child
) -> tuple[dict[str, Any] | None, list[RowRecord]]:
    """Return the run of a part without its entries, None if it failed, and the records of rows."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "part.json"
        try:
            run(part, rows, rounds, path)
        except RuntimeError as error:
            return None, [joined.blank(row, "failed", str(error)) for row in rows]
        document = json_module.loads(path.read_text(encoding="utf-8"))
    entries = document.pop("results") if "results" in document else document.pop("figures")
    named = {entry.get("name") or entry["workload"]["name"]: entry for entry in entries}
    document["part"] = part.name
    records = [
        joined.derive(row, named[row.name], document, 0)
        if row.name in named
        else joined.blank(row, "failed", f"{part.module} measured no such row")
        for row in rows
    ]
    return document, records


def fill(
    rows: Sequence[Row],
    rounds: int,
    table: TableDocument,
    announce: Callable[[str], None],
    keep: Callable[[TableDocument], object],
    run: Runner = run_child,
) -> TableDocument:
    """Return a table with some rows measured anew; it is kept after each part."""
    start, before = time.perf_counter(), table["wall_seconds"]
    for part in PARTS:
        own = [row for row in rows if row.part == part.name]
        if not own:
            continue
        announce(f"{part.title}: {len(own)} rows")
        made, records = measure(part, own, rounds, run)
        runs = [made] if made else []
        seconds = before + time.perf_counter() - start
        anew: TableDocument = table | {"runs": runs, "rows": records, "wall_seconds": seconds}
        table = joined.join(table, anew)
        keep(table)
    return table


Only = Annotated[
    list[str] | None,
    typer.Option(
        "--only", help=f"PART or PART/ROW; repeatable: {', '.join(p.name for p in PARTS)}"
    ),
]
Into = Annotated[
    Path | None, typer.Option(help="Join with the rows of this file, and write there.")
]
Rounds = Annotated[int, typer.Option(min=1, help="Interleaved rounds.")]
Quick = Annotated[bool, typer.Option("--quick", help="Two rounds: a look, not a figure.")]
Markdown = Annotated[bool, typer.Option("--markdown", help="Print the table in Markdown.")]
Require = Annotated[str | None, typer.Option(help="Fail unless every goal is met: goal.")]
Listing = Annotated[bool, typer.Option("--list", help="List parts and rows and stop.")]


def main(
    only: Only = None,
    into: Into = None,
    rounds: Rounds = 5,
    quick: Quick = False,  # noqa: FBT002 - a flag
    markdown: Markdown = False,  # noqa: FBT002 - a flag
    require: Require = None,
    list_only: Listing = False,  # noqa: FBT002 - a flag
) -> None:
    """Measure every row of the design's table for the CPU, each beside its ceiling and peers."""
    if require not in (None, "goal"):
        raise typer.BadParameter(f"require: got {require!r}\n  allowed: goal")
    try:
        rows = select(tuple(only or ()))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if list_only:
        typer.echo("\n".join(row.key for row in rows))
        return
    path = into or environment.local_result("table")
    table = joined.join(_read(path), _empty())
    path.parent.mkdir(parents=True, exist_ok=True)
    console = Console(width=None if sys.stdout.isatty() else 250)
    with Console(stderr=True).status("starting") as status:
        table = fill(rows, 2 if quick else rounds, table, status.update, partial(_write, path))
    seen = _known(table) if only else table
    if markdown:
        typer.echo(sheet.markdown(seen))
    else:
        sheet.show(seen, console)
        console.print(f"all samples: {path}", highlight=False)
    problems = joined.failures(table, required=require == "goal")
    for line in problems:
        typer.echo(line, err=True)
    sys.exit(1 if problems else 0)


def _known(table: TableDocument) -> TableDocument:
    """Return a table without the rows that nobody has measured yet, now or in an earlier file."""
    return {**table, "rows": [row for row in table["rows"] if row["status"] != joined.NOT_RUN]}


def _read(path: Path) -> TableDocument | None:
    """Return the table of a file; None where there is no such file."""
    if not path.is_file():
        return None
    table: TableDocument = json_module.loads(path.read_text(encoding="utf-8"))
    if table["schema"] != joined.SCHEMA:
        raise typer.BadParameter(
            f"into: got a file of schema {table['schema']}\n  allowed: {joined.SCHEMA}"
        )
    return table


def _write(path: Path, table: TableDocument) -> None:
    path.write_text(json_module.dumps(table, indent=1) + "\n", encoding="utf-8")


def _empty() -> TableDocument:
    return {
        "schema": joined.SCHEMA,
        "command": shlex.join(["python", "-m", "bench.table", *sys.argv[1:]]),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "wall_seconds": 0.0,
        "runs": [],
        "rows": [],
    }


if __name__ == "__main__":
    typer.run(main)
