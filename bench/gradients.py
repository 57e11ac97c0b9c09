"""`python -m bench.gradients`: the backward pass beside that of torch and the multiply-add ceiling.

The forward pass is outside the clock on both sides: ours has what it saved, torch its graph. Flops
are those of the five products, 10 * heads * q_len * kv_len * head_dim, and half of it if causal.
"""

from __future__ import annotations

import importlib
import json as json_module
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from bench import environment
from bench.workloads import Goal, Workload

SCHEMA = "sdpakit-gradients/1"
_L2048 = Workload("", batch=1, q_heads=4, kv_heads=4, q_len=2048, kv_len=2048, head_dim=64)
_L512 = replace(_L2048, q_heads=8, kv_heads=8, q_len=512, kv_len=512)
_D128 = replace(_L2048, head_dim=128)

WORKLOADS: tuple[Workload, ...] = (
    replace(_L2048, name="grad_f32_l2048_d64", goal=Goal(0.88, 1.3, "torch")),
    replace(
        _L2048, name="grad_f32_l2048_d64_causal", mask="causal", goal=Goal(0.85, 1.55, "torch")
    ),
    replace(_D128, name="grad_f32_l2048_d128", goal=Goal(0.88, 1.15, "torch")),
    replace(_D128, name="grad_f32_l2048_d128_causal", mask="causal", goal=Goal(0.86, 1.4, "torch")),
    replace(_L512, name="grad_f32_l512_d64"),
    replace(_L512, name="grad_f32_l512_d64_causal", mask="causal"),
)
# Largest difference from torch that is timed, as a share of the largest gradient: both are float32.
DIFFERENCE_LIMIT = 1e-4

Gradients = tuple[Any, Any, Any]


@dataclass(frozen=True, slots=True)
class Row:
    """What was measured of one workload.

    Attributes
    ----------
    name : str
        The workload.
    difference : float
        Largest difference of dq, dk or dv from torch, relative to the largest element.
    milliseconds : mapping of str to float or None
        Median of "ours" and "torch".
    share, ratio : float or None
        Of the ceiling; times torch. Medians over pairs of the same round.
    samples : mapping
        All samples, by call.
    """

    name: str
    difference: float
    milliseconds: Mapping[str, float | None]
    share: float | None
    ratio: float | None
    samples: Mapping[str, list[dict[str, Any]]]


def flops(workload: Workload) -> float:
    """Return the floating-point operations of the five products over the useful pairs."""
    return workload.flops * 2.5


def calls_of(workload: Workload, threads: int) -> dict[str, Callable[[], Gradients]]:
    """Return the backward passes of ours and of torch, ready to be timed."""
    import numpy as np

    from bench import inputs, targets

    made = inputs.make(workload)
    dout = np.random.default_rng(1).standard_normal(made.q.shape, dtype=np.float32)
    sdpakit, torch = (importlib.import_module(name) for name in ("sdpakit", "torch"))
    torch.set_num_threads(threads)
    backward = sdpakit.compile_backward(targets.spec_of(sdpakit, workload), backend="numba_cpu")
    _, saved = backward.forward(made.q, made.k, made.v, threads=threads)
    leaves = [torch.from_numpy(x).requires_grad_() for x in (made.q, made.k, made.v)]
    attention = torch.nn.functional.scaled_dot_product_attention
    out = attention(*leaves, is_causal=workload.mask == "causal")
    upstream = torch.from_numpy(dout)

    def ours() -> Gradients:
        found = backward(made.q, made.k, made.v, dout, saved=saved, threads=threads)
        return found.dq, found.dk, found.dv

    def theirs() -> Gradients:
        found: Gradients = torch.autograd.grad(out, leaves, upstream, retain_graph=True)
        return found

    return {"ours": ours, "torch": theirs}


def largest_difference(ours: Gradients, other: Gradients) -> float:
    """Return the largest difference of two results, relative to the largest element."""
    pairs = [(a, b.numpy()) for a, b in zip(ours, other, strict=True)]
    return max(float(abs(a - b).max() / abs(b).max()) for a, b in pairs)


def run(workload: Workload, plan: Any, ceiling: Any) -> Row:
    """Check and time one workload.

    Raises
    ------
    RuntimeError
        If the gradients are not those of torch.
    """
    from bench import timing

    calls = calls_of(workload, plan.threads)
    difference = largest_difference(calls["ours"](), calls["torch"]())
    if not difference <= DIFFERENCE_LIMIT:
        raise RuntimeError(f"{workload.name}: {difference:.2g} of the largest gradient from torch")
    samples = timing.measure({"ceiling": ceiling.call, **calls}, plan)
    seconds = {name: timing.typical_seconds(samples[name], plan) for name in calls}
    slower = timing.paired_ratio(samples["ours"], samples["ceiling"], plan)
    ratio = timing.paired_ratio(samples["torch"], samples["ours"], plan)
    share = None if slower is None else flops(workload) / ceiling.work / slower.median
    return Row(
        name=workload.name,
        difference=difference,
        milliseconds={name: None if s is None else 1e3 * s for name, s in seconds.items()},
        share=share,
        ratio=None if ratio is None else ratio.median,
        samples={name: [asdict(s) for s in own] for name, own in samples.items()},
    )


def table(rows: list[Row], threads: int) -> Table:
    """Return the rows for the terminal."""
    goals = {workload.name: workload.goal or Goal() for workload in WORKLOADS}
    made = Table(title=f"backward pass, float32, threads: {threads}")
    made.add_column("workload")
    for name in ("ours, ms", "torch, ms", "of the ceiling", "goal", "times torch", "goal "):
        made.add_column(name, justify="right")
    for row in rows:
        goal = goals[row.name] if threads == 1 else Goal()
        made.add_row(
            row.name,
            *(_number(row.milliseconds[name], ".1f") for name in ("ours", "torch")),
            _number(row.share, ".0%"),
            _number(goal.share, ".0%"),
            _number(row.ratio, ".2f"),
            _number(goal.ratio, ".2f"),
        )
    return made


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


Cases = Annotated[list[str] | None, typer.Option("--case", help="Run this workload; repeatable.")]
Threads = Annotated[int, typer.Option(min=1, help="1 = processor time; more = wall time.")]
Rounds = Annotated[int, typer.Option(min=1, help="Interleaved rounds.")]
Json = Annotated[Path | None, typer.Option("--json", help="Where to write all samples.")]


def main(case: Cases = None, threads: Threads = 1, rounds: Rounds = 7, json: Json = None) -> None:
    """Check the gradients against those of torch, then time both beside the ceiling."""
    known = [workload.name for workload in WORKLOADS]
    if unknown := [name for name in case or [] if name not in known]:
        raise typer.BadParameter(f"case: got {unknown}\n  allowed: {', '.join(known)}")
    prepared = environment.prepare(threads)
    # Imported here: NumPy and torch read thread counts and affinity while they are loaded.
    from bench import ceilings, timing

    plan = timing.Plan(threads, rounds, 0.06 if threads == 1 else 0.25)
    ceiling = ceilings.fma_ceiling("float32", threads)
    chosen = [workload for workload in WORKLOADS if not case or workload.name in case]
    rows = [run(workload, plan, ceiling) for workload in chosen]
    document = {
        "schema": SCHEMA,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "environment": environment.describe(prepared),
        "rows": [asdict(row) for row in rows],
    }
    path = json or environment.local_result(f"gradients-{threads}t")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json_module.dumps(document, indent=1) + "\n", encoding="utf-8")
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(table(rows, threads))
    console.print(f"all samples: {path}", highlight=False)


if __name__ == "__main__":
    typer.run(main)
