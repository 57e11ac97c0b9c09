"""`python -m bench.model FILE ...`: what the cost model expects beside what a run measured.

The model times nothing; it knows caches, and what a core issues. Shares of the multiply-add peak
need no more. For shares of the read bandwidth the file says what a cycle is (its multiply-add
ceiling) and what memory yields (its read ceiling).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

import sdpakit
from bench.calm import ENOUGH_QUIET
from bench.inputs import make
from bench.results import OURS, Document, ResultRecord
from bench.targets import spec_of
from bench.workloads import Workload

LIMIT = 0.15  # of the measured share: what the model may be wrong by


@dataclass(frozen=True, slots=True)
class Row:
    """One workload of one file.

    Attributes
    ----------
    name : str
        The workload.
    expected, measured : float
        Shares of the ceiling, 0 to 1.
    low, high : float
        Quartiles of the measured share.
    disturbed : bool
        Neighbours disturbed so many samples that all had to count.
    """

    name: str
    expected: float
    measured: float
    low: float
    high: float
    disturbed: bool

    @property
    def error(self) -> float:
        """What the expected share is wrong by, as a share of the measured one."""
        return self.expected / self.measured - 1


def rows(documents: Iterable[Document]) -> list[Row]:
    """Return a row for every workload for which a run of one thread has a share of ours.

    Parameters
    ----------
    documents : iterable of Document
        Runs of one machine; the latest run of a workload counts.

    Returns
    -------
    list of Row
        In the order of the files.
    """
    entries: dict[str, ResultRecord] = {}
    for document in documents:
        if document["threads"] == 1:
            entries |= {entry["workload"]["name"]: entry for entry in document["results"]}
    hertz = _hertz(entries.values())
    found = []
    for name, entry in entries.items():
        ours = entry["targets"].get(OURS)
        if ours is None or ours["share"] is None:
            continue
        share, needed = ours["share"], min(ENOUGH_QUIET, len(ours["samples"]))
        expected = _expected(entry, hertz)
        if expected is not None:
            spread = share["median"], share["low"], share["high"]
            found.append(Row(name, expected, *spread, ours["calm_samples"] < needed))
    return found


def explain(workload: Workload) -> Mapping[str, Any]:
    """Return what the kernel of a workload says of its call with one thread, mask included."""
    kernel = sdpakit.compile(spec_of(sdpakit, workload), backend="numba_cpu")
    w = workload
    given: dict[str, Any] = {"batch": w.batch, "q_len": w.q_len, "kv_len": w.kv_len, "threads": 1}
    if w.mask in ("random", "documents"):  # which tiles these leave out stands in the array
        given["mask"] = make(w).mask
    if w.bias != "none":  # an array that takes no memory
        heads = 1 if w.bias == "shared" else w.q_heads
        given["bias"] = np.broadcast_to(np.float32(0), (1, heads, w.q_len, w.kv_len))
    facts: Mapping[str, Any] = kernel.explain(**given)["expected"]
    return facts


def _expected(entry: ResultRecord, hertz: float | None) -> float | None:
    """Return the expected share; None for gradients, and where the file does not say of what."""
    known = {field.name for field in fields(Workload)}
    workload = Workload(**{k: x for k, x in entry["workload"].items() if k in known})
    if workload.backward:  # the model counts the forward pass
        return None
    facts = explain(workload)
    if workload.resource == "fma":
        return float(workload.flops / (facts["cycles"] * facts["peak_a_cycle"]))
    rate = entry["ceiling"]["rate"]
    if hertz is None or rate is None:
        return None
    reading = workload.kv_bytes / (rate / hertz)
    arithmetic = facts["parts"]["reading"] + facts["parts"].get("products beyond it", 0)
    fixed = facts["cycles"] - arithmetic
    return float(reading / (max(reading, facts["products_beside_reading"]) + fixed))


def _hertz(entries: Iterable[ResultRecord]) -> float | None:
    """Return the cycles a second that multiply-adds ran at."""
    ceilings = [entry["ceiling"] for entry in entries]
    rates = [
        ceiling["rate"] / explain(_SMALL)["peak_a_cycle"]
        for ceiling in ceilings
        if ceiling["resource"] == "fma" and ceiling["dtype"] == "float32" and ceiling["rate"]
    ]
    return median(rates) if rates else None


_SMALL = Workload("", batch=1, q_heads=1, kv_heads=1, q_len=32, kv_len=32, head_dim=64)


def show(found: Sequence[Row], console: Console) -> None:
    """Print the rows, and those that are off by more than `LIMIT`."""
    table = Table(title="share of the ceiling, one thread; ~ disturbed")
    table.add_column("case", no_wrap=True)
    for name in ("expected", "measured", "quartiles", "error"):
        table.add_column(name, justify="right")
    for row in found:
        mark = "~" if row.disturbed else ""
        table.add_row(
            row.name,
            f"{100 * row.expected:.1f} %",
            f"{mark}{100 * row.measured:.1f} %",
            f"{100 * row.low:.1f} to {100 * row.high:.1f}",
            f"{100 * row.error:+.1f} %",
        )
    console.print(table)
    console.print(verdict(found), highlight=False)


def verdict(found: Sequence[Row]) -> str:
    """Return which rows are off by more than `LIMIT`, in a line."""
    off = [f"{row.name} ({100 * row.error:+.0f} %)" for row in found if abs(row.error) > LIMIT]
    within = f"{len(found) - len(off)} of {len(found)} within {100 * LIMIT:.0f} %"
    return f"{within}; off: {', '.join(off)}" if off else within


Files = Annotated[list[Path], typer.Argument(help="Runs that were written with --json.")]


def main(files: Files) -> None:
    """Show expected beside measured shares of written runs; nothing is timed."""
    documents = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    show(rows(documents), Console())


if __name__ == "__main__":
    typer.run(main)
