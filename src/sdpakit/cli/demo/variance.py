"""Why the factor is 1/sqrt(D): the spread of the logits for three widths, with and without it."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

import sdpakit as sk
from sdpakit.cli.demo.checks import Check, check_call

WIDTHS = (16, 64, 256)
HEADS, LENGTH = 2, 256


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: what a width does to the rows, with a factor or without.

    Attributes
    ----------
    head_dim : int
        Width D.
    factor : str
        As text.
    logit_std : float
        Standard deviation of the logits.
    share : float
        Mean entropy as a share of ln n.
    sum_p2 : float
        Mean of sum p^2.
    compile_seconds : float
        Time that `compile` took.
    """

    head_dim: int
    factor: str
    logit_std: float
    share: float
    sum_p2: float
    compile_seconds: float


def show(console: Console, backend: str) -> Iterator[Check]:
    """Print the part about the factor, and yield its checks.

    Parameters
    ----------
    console : rich.console.Console
        Where to print.
    backend : str
        A name, or "auto".

    Yields
    ------
    Check
        One for each output of each line.
    """
    console.rule("[bold]what the factor 1/sqrt(D) does")
    console.print(
        f"q and k with independent entries of variance 1, {LENGTH} keys: <q, k> has variance D.\n"
    )
    rows: list[Row] = []
    for head_dim in WIDTHS:
        for scale in (None, 1.0):
            row, checks = measure(head_dim, scale, backend)
            rows.append(row)
            yield from checks
    console.print(_table(rows))
    console.print(describe(rows))
    times = ", ".join(f"{row.compile_seconds:.2f}" for row in rows)
    console.print(
        f"Seconds in compile(), line by line: {times}. The factor is a value of the call, so the "
        "second line of each width finds its kernel made.\n"
    )


def measure(head_dim: int, scale: float | None, backend: str) -> tuple[Row, list[Check]]:
    """Return what rows of random operands look like at a width, and the checks of the call.

    Parameters
    ----------
    head_dim : int
        Width D.
    scale : float or None
        As in the spec: None is 1/sqrt(D).
    backend : str
        A name, or "auto".

    Returns
    -------
    Row, list of Check
        A line of the table, and one check for each output.
    """
    rng = np.random.default_rng(head_dim)
    shape = (1, HEADS, LENGTH, head_dim)
    q, k, v = (rng.standard_normal(shape, dtype=np.float32) for _ in "qkv")
    spec = _spec(head_dim, scale)
    start = time.perf_counter()
    kernel = sk.compile(spec, backend=backend)
    seconds = time.perf_counter() - start
    results = kernel(q, k, v)
    factor = "1/sqrt(D)" if scale is None else "none"
    checks, truth = check_call(f"D {head_dim}, factor {factor}", spec, results, (q, k, v), {})
    row = Row(
        head_dim,
        factor,
        logit_std=float(truth.logits.std()),
        share=float(results.entropy.mean()) / math.log(LENGTH),
        sum_p2=float(results.sum_p2.mean()),
        compile_seconds=seconds,
    )
    return row, checks


def _spec(head_dim: int, scale: float | None) -> sk.AttentionSpec:
    fields: dict[str, Any] = {"q_heads": HEADS, "head_dim": head_dim, "scale": scale}
    with warnings.catch_warnings():
        # To leave the factor out is the mistake that this part shows; the lint rightly warns of it.
        warnings.simplefilter("ignore", sk.ScaleWarning)
        return sk.AttentionSpec(**fields, outputs=("out", "entropy", "sum_p2"))


def describe(rows: list[Row]) -> str:
    """Return in words what the table says.

    Parameters
    ----------
    rows : list of Row
        All lines.

    Returns
    -------
    str
        Two sentences.
    """
    scaled = [row for row in rows if row.factor != "none"]
    bare = [row for row in rows if row.factor == "none"]
    widest = max(bare, key=lambda row: row.head_dim)
    low, high = min(r.logit_std for r in scaled), max(r.logit_std for r in scaled)
    return (
        f"With the factor the spread of the logits is {low:.2f} to {high:.2f} at every width. "
        f"Without it, it grows as sqrt(D): at D = {widest.head_dim} sum p^2 is {widest.sum_p2:.2f} "
        f"(1 = one key takes all), and 1 - sum p^2 = {1 - widest.sum_p2:.2f} is all that lets "
        "gradients through."
    )


def _table(rows: list[Row]) -> Table:
    table = Table(box=SIMPLE_HEAD)
    headings = (
        "D",
        "factor",
        "std of logits",
        "entropy / ln n",
        "sum p^2",
        "1 - sum p^2",
    )
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "factor" else "right")
    for row in rows:
        table.add_row(
            str(row.head_dim),
            row.factor,
            f"{row.logit_std:.2f}",
            f"{row.share:.0%}",
            f"{row.sum_p2:.3f}",
            f"{1 - row.sum_p2:.3f}",
        )
    return table
