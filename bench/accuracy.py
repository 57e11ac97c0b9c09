"""Errors of gradients beside torch's: `python -m bench.accuracy`.

The gradients of every workload `grad_...`, of the first and the last head, are held against those
in float64 (`gradients.py`). A figure is our root mean square error in units of torch's on the same
arrays: 1 means that nobody is nearer to the truth. The goal is kept for dk and dv of causal
workloads, the sums over many rows where order and precision show most. The details have the largest
errors and the share of the bound as well. Nothing is timed.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from bench import environment, workloads
from bench.figures import Figure, Record
from bench.workloads import Workload

Array = np.ndarray[Any, np.dtype[Any]]

TARGETS = ("ours", "torch")
GRADIENTS = ("dq", "dk", "dv")
ALLOWED = 1.0  # of torch's error
JUDGED = ("dk", "dv")


def errors(workload: Workload) -> dict[str, dict[str, Array]]:
    """Return the errors of every target and gradient, and the bound under "bound".

    Parameters
    ----------
    workload : Workload
        With a backward pass.

    Returns
    -------
    dict
        By target, then gradient: arrays of shape (rows of the heads looked at, head_dim), got minus
        float64.
    """
    from bench import gradients, inputs, targets

    case = targets.Case(workload, inputs.make(workload), threads=1)
    expected = gradients.expect(workload, case.inputs)
    places = expected.batch, expected.heads, expected.rows
    found = {"bound": expected.strict}
    for target in (t for t in targets.TARGETS if t.name in TARGETS):
        prepared = target.prepare(case)
        found[target.name] = prepared.to_numpy(prepared.call())[places] - expected.out
    return {
        name: {g: of[expected.batch == n] for n, g in enumerate(GRADIENTS)}
        for name, of in found.items()
    }


def figures_of(workload: Workload) -> list[Figure]:
    """Return our error in units of torch's for dq, dk and dv."""
    found = errors(workload)
    return [
        _figure(workload, name, {target: of[name] for target, of in found.items()})
        for name in GRADIENTS
    ]


def _figure(workload: Workload, gradient: str, found: dict[str, Array]) -> Figure:
    root = {target: float(np.sqrt(np.mean(found[target] ** 2))) for target in TARGETS}
    detail = {
        target: {
            "root mean square": root[target],
            "largest": float(np.abs(found[target]).max()),
            "share of bound": float((np.abs(found[target]) / found["bound"]).max()),
        }
        for target in TARGETS
    }
    ratio = root["ours"] / root["torch"]
    limit = ALLOWED if workload.mask == "causal" and gradient in JUDGED else None
    return Figure(f"{workload.name}: {gradient}", "x torch", ratio, limit, limit, [ratio], detail)


Cases = Annotated[list[str] | None, typer.Option("--case", help="This workload; repeatable.")]
Json = Annotated[Path | None, typer.Option("--json", help="Where to write all errors.")]
Require = Annotated[str | None, typer.Option(help="Fail unless kept at this level: floor, goal.")]


def chosen(names: Sequence[str]) -> tuple[Workload, ...]:
    """Return the named workloads, or all with a backward pass.

    Raises
    ------
    typer.BadParameter
        If a named one has none.
    """
    found = workloads.select(None if names else "backward", names)
    if without := [workload.name for workload in found if not workload.backward]:
        allowed = ", ".join(w.name for w in workloads.select("backward", []))
        raise typer.BadParameter(f"case: got {', '.join(without)}\n  allowed: {allowed}")
    return found


def main(case: Cases = None, json: Json = None, require: Require = None) -> None:
    """Compare the errors of our gradients with those of torch."""
    if require not in (None, "floor", "goal"):
        raise typer.BadParameter(f"require: got {require!r}\n  allowed: floor, goal")
    wanted = chosen(case or [])
    command = shlex.join(["python", "-m", "bench.accuracy", *sys.argv[1:]])
    record = Record(environment.prepare(1), command)
    figures = [figure for workload in wanted for figure in figures_of(workload)]
    sys.exit(record.finish(figures, json or environment.local_result("accuracy"), require))


if __name__ == "__main__":
    typer.run(main)
