"""`sdpakit demo`: attention of a real model, checked, explained and timed."""

from __future__ import annotations

from rich.console import Console

from sdpakit.cli.demo import layers, speed, variance

__all__ = ["run"]


def run(console: Console, *, backend: str = "auto", timing: bool = True) -> bool:
    """Run all parts of the demo and print what they show.

    Parameters
    ----------
    console : rich.console.Console
        Where to print.
    backend : str, optional
        A name, or "auto".
    timing : bool, optional
        Whether to run the part that compares speeds.

    Returns
    -------
    bool
        Whether every result lay inside its error bound.
    """
    checks = [*layers.show(console, backend), *variance.show(console, backend)]
    if timing:
        checks += speed.show(console, backend)
    wrong = [check for check in checks if not check.ok]
    if wrong:
        console.print(f"[bold red]{len(wrong)} of {len(checks)} checks failed[/]")
        for check in wrong:
            console.print(f"  {check}")
    else:
        calls = len({check.call for check in checks})
        console.print(
            f"[bold green]all {len(checks)} checks passed[/]: one for each output of {calls} "
            "calls, every element within its error bound of float64"
        )
    return not wrong
