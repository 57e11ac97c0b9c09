"""lse and the row statistics."""

from __future__ import annotations

import itertools

import numpy as np

from sdpakit.conformance.cases.make import ALL, FOUR, gh, make
from sdpakit.conformance.inputs import Array, Draw, mean_indices
from sdpakit.conformance.model import Case, Recipe, Shape
from sdpakit.masks import Causal, Dense


def cases() -> list[Case]:
    """Return the cases of this family."""
    return [*_of_lse(), *_of_rows(), *_subsets()]


def _of_lse() -> list[Case]:
    shape = Shape(q_heads=1, q_len=2)
    found = make(
        "statistics.lse_is_natural",
        "SOFT-1",
        "a logarithm to base 2",
        shape=shape,
        recipe=lambda draw: draw.flat(),
        bound="hard",
        dtypes=FOUR,
        expect=lambda: mean_indices([list(range(7))] * 2, shape),
        source=gh("pytorch/pytorch#181645"),
    )
    found += make(
        "statistics.lse_keeps_the_maximum",
        "SOFT-1",
        "log of the sum without the maximum: one key, so lse is its logit of 17",
        shape=Shape(q_heads=1, q_len=1, kv_len=1),
        recipe=_twelve,
        bound="hard",
        expect=lambda: {
            "out": np.ones((1, 1, 1, 8)),
            "lse": np.full((1, 1, 1), 12.0 * np.sqrt(2.0)),
        },
        source=gh("Dao-AILab/flash-attention#404"),
    )
    found += make(
        "statistics.lse_of_empty_rows",
        "EMPTY-1",
        "+inf, 0 or a finite sentinel as lse of an empty row",
        shape=Shape(q_heads=1, q_len=5, kv_len=2),
        spec={"mask": Causal("bottom_right")},
        outputs=("lse",),
        dtypes=FOUR,
        source=gh("flashinfer-ai/flashinfer#4452"),
    )
    return found


def _twelve(draw: Draw) -> dict[str, Array]:
    return {
        "q": draw.array(np.full((1, 1, 1, 8), 3.0)),
        "k": draw.array(np.full((1, 1, 1, 8), 2.0)),
        "v": draw.array(np.ones((1, 1, 1, 8))),
    }


def _spread(spread: float) -> Recipe:
    return lambda draw: {"q": draw.q(spread)}


def _of_rows() -> list[Case]:
    found: list[Case] = []
    for name, spread in (("mild", 1.0), ("spread", 8.0), ("saturated", 100.0)):
        found += make(
            f"statistics.{name}",
            "STAT-1",
            "an entropy from lse and the mean logit, which cancels; p of another maximum",
            shape=Shape(q_len=33, kv_len=77),
            recipe=_spread(spread),
            outputs=ALL,
            dtypes=FOUR,
        )
    found += make(
        "statistics.one_key_rows",
        "STAT-1",
        "an entropy other than 0, a sum of p^2 other than 1 for one key",
        shape=Shape(q_len=9, kv_len=9),
        spec={"mask": Dense(), "scale": 300.0},
        recipe=lambda _draw: {"mask": np.eye(9, dtype=bool)},
        outputs=ALL,
        dtypes=FOUR,
    )
    found += make(
        "statistics.without_the_sink",
        "STAT-1 SINK-2",
        "a sink that joins the maximum, the entropy or the sum of p^2",
        shape=Shape(q_len=9, kv_len=21),
        spec={"sinks": True},
        recipe=lambda draw: {"sinks": draw.array([3.0, -1.0], "float32")},
        outputs=ALL,
        dtypes=FOUR,
    )
    found += make(
        "statistics.many_tiles_far_logits",
        "STAT-1 NUM-2",
        "statistics that are not rescaled when the maximum moves",
        shape=Shape(q_len=5, kv_len=700),
        spec={"bias": "float32"},
        recipe=lambda draw: {
            "bias": draw.array(
                np.linspace(-900.0, 900.0, 700) + draw.rng.standard_normal((5, 700)), "float32"
            )
        },
        outputs=ALL,
    )
    return found


def _subsets() -> list[Case]:
    """Every output alone, and in another order."""
    found: list[Case] = []
    alone = [(name,) for name in ALL[1:]]
    together = [("sum_p2", "out"), ("entropy", "lse", "out"), ("max_logit", "sum_p2")]
    for outputs in itertools.chain[tuple[str, ...]](alone, together):
        found += make(
            f"statistics.outputs_{'_'.join(outputs)}",
            "STAT-1 SOFT-1",
            "outputs that are right only together, or come in another order",
            shape=Shape(q_len=7, kv_len=19),
            spec={"mask": Causal("bottom_right")},
            outputs=outputs,
        )
    return found
