"""Speed beside a plain NumPy attention, and PyTorch where it is installed, in one process."""

from __future__ import annotations

import importlib.util
import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import Progress, TaskID
from rich.table import Table

import sdpakit as sk
from sdpakit.binding.threads import usable_cores
from sdpakit.cli.demo.checks import Check, check_call

Array = np.ndarray[Any, Any]

HEADS, HEAD_DIM = 8, 64
LENGTHS = (512, 2048)
ROUNDS, SECONDS = 15, 2.5  # at most so many rounds, and about so long, for each line


Quartiles = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table.

    Attributes
    ----------
    length : int
        Queries and keys.
    causal : bool
        Whether the mask is causal.
    seconds : dict of str to tuple of float
        Lower quartile, median and upper quartile by candidate.
    flops : float
        Useful operations of the call: 4 B H D for each pair that attends.
    """

    length: int
    causal: bool
    seconds: dict[str, Quartiles]
    flops: float


def show(console: Console, backend: str) -> Iterator[Check]:
    """Print the part about speed, and yield the checks that were made before anything was timed.

    Parameters
    ----------
    console : rich.console.Console
        Where to print.
    backend : str
        A name, or "auto".

    Yields
    ------
    Check
        One for each line of the table.
    """
    console.rule("[bold]speed")
    peers = "NumPy" + (" and PyTorch" if _has_torch() else "")
    cases = [(length, causal) for length in LENGTHS for causal in (False, True)]
    console.print(
        f"float32, 1 x {HEADS} heads, width {HEAD_DIM}; interleaved runs beside {peers} in this "
        f"process, {usable_cores()} cores for everybody: median, and below it the quartiles. "
        f"This takes up to {len(cases) * (SECONDS + 2):.0f} s.\n"
    )
    lines = []
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("timing", total=len(cases) * ROUNDS)
        for length, causal in cases:
            progress.update(task, description=f"L {length}{' causal' if causal else ''}")
            line, check = measure(length, causal=causal, backend=backend, bar=(progress, task))
            lines.append(line)
            yield check
    console.print(_table(lines))
    console.print("GFLOP/s counts the pairs that attend only; a causal mask halves the work.")
    if (busy := os.getloadavg()[0]) > usable_cores() + 0.5:
        console.print(
            f"[yellow]The machine is busy (load {busy:.1f}): these times swing, and suffer most in "
            "libraries whose threads wait for each other.[/]"
        )
    console.print()


def measure(
    length: int, *, causal: bool, backend: str, bar: tuple[Progress, TaskID]
) -> tuple[Line, Check]:
    """Check one case, then time all candidates on it.

    Parameters
    ----------
    length : int
        Queries and keys.
    causal : bool
        Whether the mask is causal.
    backend : str
        A name, or "auto".
    bar : Progress and TaskID
        Moved on by `ROUNDS`.

    Returns
    -------
    Line, Check
        Times, and the check of the first head.
    """
    rng = np.random.default_rng(length)
    shape = (1, HEADS, length, HEAD_DIM)
    q, k, v = (rng.standard_normal(shape, dtype=np.float32) for _ in "qkv")
    mask = sk.Causal() if causal else None
    spec = sk.AttentionSpec(q_heads=HEADS, head_dim=HEAD_DIM, mask=mask, equal_lens=True)
    kernel = sk.compile(spec, backend=backend)
    name = f"L {length}{' causal' if causal else ''}"
    check = _check_first_head(name, spec, kernel(q, k, v), (q, k, v))
    candidates = {"sdpakit": lambda: kernel(q, k, v), **_peers(q, k, v, causal=causal)}
    pairs = length * (length + 1) / 2 if causal else length**2
    seconds = _interleaved(candidates, bar)
    return Line(length, causal, seconds, 4 * HEADS * HEAD_DIM * pairs), check


def _check_first_head(
    name: str, spec: sk.AttentionSpec, out: Array, arrays: tuple[Array, Array, Array]
) -> Check:
    """Check one head of all, which are independent: float64 on each would outlast the demo."""
    one = spec.replace(q_heads=1, kv_heads=1)
    first = tuple(array[:, :1] for array in arrays)
    checks, _ = check_call(f"{name}, head 0", one, out[:, :1], first, {})
    return checks[0]


def _interleaved(
    candidates: dict[str, Callable[[], Any]], bar: tuple[Progress, TaskID]
) -> dict[str, Quartiles]:
    progress, task = bar
    samples: dict[str, list[float]] = {name: [] for name in candidates}
    begin = time.perf_counter()
    for done in range(ROUNDS):
        for name, call in candidates.items():
            start = time.perf_counter()
            call()
            samples[name].append(time.perf_counter() - start)
        progress.advance(task)
        if done >= 2 and time.perf_counter() - begin > SECONDS:
            progress.advance(task, ROUNDS - 1 - done)
            break
    # The first round warms caches and thread pools of everybody.
    return {name: _quartiles(times[1:]) for name, times in samples.items()}


def _quartiles(times: list[float]) -> Quartiles:
    low, middle, high = statistics.quantiles(times, n=4, method="inclusive")
    return low, middle, high


def plain_attention(q: Array, k: Array, v: Array, *, causal: bool) -> Array:
    """Return attention as one writes it in NumPy, in the dtype of the operands.

    Parameters
    ----------
    q, k, v : ndarray
        (B, H, L, D).
    causal : bool
        Whether key j is hidden from rows before j.

    Returns
    -------
    ndarray
        (B, H, L, D).
    """
    x = (q @ k.swapaxes(-1, -2)) * np.float32(q.shape[-1] ** -0.5)
    if causal:
        x = np.where(np.tri(q.shape[2], dtype=bool), x, np.float32(-np.inf))
    x -= x.max(axis=-1, keepdims=True)
    np.exp(x, out=x)
    x /= x.sum(axis=-1, keepdims=True)
    return x @ v


def _peers(q: Array, k: Array, v: Array, *, causal: bool) -> dict[str, Callable[[], Any]]:
    peers: dict[str, Callable[[], Any]] = {"NumPy": lambda: plain_attention(q, k, v, causal=causal)}
    if _has_torch():
        torch = importlib.import_module("torch")
        tensors = tuple(torch.from_numpy(array) for array in (q, k, v))
        attend = torch.nn.functional.scaled_dot_product_attention
        peers["PyTorch"] = lambda: attend(*tensors, is_causal=causal)
    return peers


def _has_torch() -> bool:
    return importlib.util.find_spec("torch") is not None


def _table(lines: list[Line]) -> Table:
    ours, *others = lines[0].seconds
    table = Table(box=SIMPLE_HEAD)
    times = (f"{name}\nms" for name in lines[0].seconds)
    ratios = (f"faster than\n{other}" for other in others)
    for heading in ("L", "mask", *times, "GFLOP/s", *ratios):
        table.add_column(heading, justify="left" if heading == "mask" else "right")
    for line in lines:
        medians = {name: middle for name, (_, middle, _) in line.seconds.items()}
        mine = medians[ours]
        table.add_row(
            str(line.length),
            "causal" if line.causal else "full",
            *map(_in_ms, line.seconds.values()),
            f"{line.flops / mine * 1e-9:.0f}",
            *(f"[bold]{medians[other] / mine:.1f}x[/]" for other in others),
        )
    return table


def _in_ms(seconds: Quartiles) -> str:
    low, middle, high = (1e3 * x for x in seconds)
    return f"{middle:.1f}\n({low:.1f}-{high:.1f})"
