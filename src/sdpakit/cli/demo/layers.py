"""Two layers of a real model: compiled, run with the true lengths, checked, and described."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

import sdpakit as sk
from sdpakit import data
from sdpakit.cli.demo.checks import Check, check_call

if TYPE_CHECKING:
    from sdpakit.output import AttentionOutput
    from sdpakit.reference import Detail

Array = np.ndarray[Any, Any]

STATISTICS = ("out", "lse", "max_logit", "entropy", "sum_p2")

# A head is called saturated where its mean sum p^2 is at least this: 1 - sum p^2, the trace of the
# softmax Jacobian (STAT-1), and with it the gradient of q and k, is then below a tenth.
SATURATED_SUM_P2 = 0.9
# ... and indifferent where its entropy is this close to ln n, the entropy of equal weights.
INDIFFERENT_SHARE = 0.97
# exp(x) is past the largest float16 above this logit.
HALF_EXP_LIMIT = math.log(65504.0)


@dataclass(frozen=True, slots=True, eq=False)
class Figures:
    """What a layer's rows look like, by head (averages over the live rows of all sentences).

    Attributes
    ----------
    logit_std : ndarray
        (H,) standard deviation of the logits of live pairs.
    largest : ndarray
        (H,) largest logit.
    entropy, log_n : ndarray
        (H,) mean entropy of the weights and mean ln n, its upper limit, in nats.
    sum_p2 : ndarray
        (H,) mean of sum p^2: 1 / n for equal weights, 1 for one key with all the weight.
    """

    logit_std: Array
    largest: Array
    entropy: Array
    log_n: Array
    sum_p2: Array

    @property
    def share(self) -> Array:
        """Entropy as a share of its limit, (H,)."""
        return self.entropy / self.log_n

    @property
    def saturated(self) -> Array:
        """Heads that give nearly all weight to one key."""
        return np.flatnonzero(self.sum_p2 >= SATURATED_SUM_P2)


def show(console: Console, backend: str) -> Iterator[Check]:
    """Print the part about the real layers, and yield its checks.

    Parameters
    ----------
    console : rich.console.Console
        Where to print.
    backend : str
        A name, or "auto".

    Yields
    ------
    Check
        One for each output of each layer.
    """
    spec = sk.AttentionSpec(
        q_heads=12, head_dim=32, dtype="float16", q_lens=True, kv_lens=True, outputs=STATISTICS
    )
    start = time.perf_counter()
    kernel = sk.compile(spec, backend=backend)
    seconds = time.perf_counter() - start
    console.rule("[bold]a real model")
    console.print(
        "q, k, v of all-MiniLM-L6-v2 on four sentences: float16, 12 heads of width 32, "
        "padded to 58 tokens.",
        f"Compiled once for both layers by [bold]{kernel.backend}[/] in {seconds:.2f} s, "
        "its start included.\n",
        sep="\n",
    )
    for layer in data.LAYERS:
        operands = data.minilm(layer)
        arrays = (operands.q, operands.k, operands.v)
        lengths: dict[str, Any] = {"q_lens": operands.lengths, "kv_lens": operands.lengths}
        results = kernel(*arrays, **lengths)
        checks, truth = check_call(f"layer {layer}", spec, results, arrays, lengths)
        figures = measure(results, truth, operands.lengths)
        console.print(_table(layer, figures))
        console.print(describe(figures))
        out, *statistics = checks
        worst = max(statistics, key=lambda check: check.share)
        console.print(
            "Largest error against float64, as a share of its derived bound (up to 100% is right): "
            f"[bold]{worst.share:.0%}[/] in the statistics ({worst.output}), "
            f"[bold]{out.share:.0%}[/] in out, where both error and bound are little else than the "
            "one rounding to float16.\n"
        )
        yield from checks


def measure(results: AttentionOutput, truth: Detail, lengths: Array) -> Figures:
    """Return the figures of a layer from the row statistics that the kernel computed.

    Parameters
    ----------
    results : AttentionOutput
        With `max_logit`, `entropy` and `sum_p2`, (B, H, L).
    truth : Detail
        Logits and attended pairs of the same call.
    lengths : ndarray
        (B,) true lengths; rows past them are left out.

    Returns
    -------
    Figures
        By head.
    """
    heads = results.entropy.shape[1]
    live = np.arange(results.entropy.shape[2]) < lengths[:, None]
    log_n = float(np.mean(np.repeat(np.log(lengths), lengths)))

    def mean(rows: Array) -> Array:
        return np.stack([rows[:, h][live].mean(dtype=np.float64) for h in range(heads)])

    pairs = [truth.logits[:, h][truth.attended[:, h]] for h in range(heads)]
    return Figures(
        logit_std=np.stack([x.std() for x in pairs]),
        largest=np.stack([results.max_logit[:, h][live].max() for h in range(heads)]),
        entropy=mean(results.entropy),
        log_n=np.full(heads, log_n),
        sum_p2=mean(results.sum_p2),
    )


def describe(figures: Figures) -> str:
    """Return in words what the figures of a layer say, by the thresholds at the head of this file.

    Parameters
    ----------
    figures : Figures
        By head.

    Returns
    -------
    str
        A few sentences.
    """
    saturated = figures.saturated
    others = np.setdiff1d(np.arange(figures.sum_p2.size), saturated)
    sentences = [_saturation(figures, saturated)]
    if others.size:
        sentences.append(_the_rest(figures, others, some_saturated=saturated.size > 0))
    largest = float(figures.largest.max())
    if largest > HALF_EXP_LIMIT:
        sentences.append(
            f"Its largest logit, {largest:.1f}, is past {HALF_EXP_LIMIT:.2f}, where exp overflows "
            "in half precision: logits are kept in float32, whatever the dtype of q (NUM-1)."
        )
    return " ".join(sentences)


def _saturation(figures: Figures, saturated: Array) -> str:
    if not saturated.size:
        return "No head is saturated: keys share the weight, and gradients pass the softmax."
    names = ", ".join(map(str, saturated))
    left = 1 - float(figures.sum_p2[saturated].max())
    heads = f"Head {names} is" if saturated.size == 1 else f"Heads {names} are"
    spread = figures.logit_std[saturated].max()
    return (
        f"{heads} [bold]saturated[/]: logits spread by {spread:.1f}, "
        f"one key takes the weight, and 1 - sum p^2 = {left:.2g} is all that lets gradients "
        "through to q and k."
    )


def _the_rest(figures: Figures, others: Array, *, some_saturated: bool) -> str:
    share, spread = figures.share[others], figures.logit_std[others]
    which = f"The other {others.size} heads are" if some_saturated else f"All {others.size} are"
    kind = "close to indifferent" if share.min() >= INDIFFERENT_SHARE else "mild"
    return (
        f"{which} [bold]{kind}[/]: logits spread by {spread.min():.1f} to {spread.max():.1f} "
        f"(1/sqrt(D) aims at 1), entropy {share.min():.0%} to {share.max():.0%} of ln n."
    )


def _table(layer: int, figures: Figures) -> Table:
    table = Table(title=f"layer {layer}", title_justify="left", box=SIMPLE_HEAD)
    for heading in ("heads", "logit std", "largest", "entropy", "of ln n", "sum p^2"):
        table.add_column(heading, justify="left" if heading == "heads" else "right")
    everything = np.arange(figures.sum_p2.size)
    table.add_row("all 12", *_cells(figures, everything))
    sharpest = int(figures.sum_p2.argmax())
    table.add_row(f"sharpest: {sharpest}", *_cells(figures, np.array([sharpest])))
    table.add_row("the other 11", *_cells(figures, np.delete(everything, sharpest)))
    return table


def _cells(figures: Figures, heads: Array) -> list[str]:
    # Variances of heads can be averaged, standard deviations cannot.
    std = math.sqrt(float(np.mean(figures.logit_std[heads] ** 2)))
    entropy, log_n = figures.entropy[heads].mean(), figures.log_n[heads].mean()
    return [
        f"{std:.2f}",
        f"{figures.largest[heads].max():.1f}",
        f"{entropy:.2f}",
        f"{entropy / log_n:.0%} of {log_n:.2f}",
        f"{figures.sum_p2[heads].mean():.3f}",
    ]
