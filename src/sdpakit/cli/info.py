"""`sdpakit info`: the backends and the machine."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from sdpakit import backends
from sdpakit.cli.machine import facts, packages


def show(console: Console) -> None:
    """Print the state of every backend, versions and facts of the machine.

    Parameters
    ----------
    console : rich.console.Console
        Where to print.
    """
    table = Table(title="backends", title_justify="left")
    for heading in ("name", "from", "state", "what to do"):
        table.add_column(heading, overflow="fold")
    for line in backends.status():
        state = "[green]ready[/]" if line.ok else f"[red]cannot run[/]: {line.reason}"
        table.add_row(line.name, line.source, state, "" if line.ok else line.hint)
    console.print(table)
    order = " then ".join(backends.AUTO)
    console.print(f'backend="auto" takes {order}: the first that can compile the spec.\n')
    console.print(_pairs("machine", facts()))
    console.print(_pairs("packages", packages()))


def _pairs(title: str, pairs: dict[str, str]) -> Table:
    table = Table(title=title, title_justify="left", show_header=False)
    for name, text in pairs.items():
        table.add_row(name, text)
    return table
