"""`sdpakit info`: the backends, the compilers for GPUs, and the machine."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from sdpakit import backends
from sdpakit.backends.gpu.toolchain import Toolchain, toolchain
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
    _show_toolchain(console, toolchain())
    console.print(_pairs("machine", facts()))
    console.print(_pairs("packages", packages()))


def _show_toolchain(console: Console, found: Toolchain) -> None:
    table = Table(title="compilers for GPUs", title_justify="left")
    for heading in ("name", "for", "version"):
        table.add_column(heading, overflow="fold")
    missing = [part for part in found.parts if part.version is None]
    for part in found.parts:
        table.add_row(
            part.name, part.purpose, part.version or f"[yellow]missing[/]: {part.trouble}"
        )
    console.print(table)
    for part in missing:  # commands are to be copied: nothing may break their lines
        console.print(f"{part.name}: {part.install}", soft_wrap=True, markup=False, highlight=False)
    if found.driver:
        console.print(
            f"NVRTC emits PTX {found.ptx_version}; its machine code runs on drivers from "
            f"{found.driver} on. Compiling needs no driver."
        )
    console.print()


def _pairs(title: str, pairs: dict[str, str]) -> Table:
    table = Table(title=title, title_justify="left", show_header=False)
    for name, text in pairs.items():
        table.add_row(name, text)
    return table
