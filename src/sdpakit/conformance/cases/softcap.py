"""The soft cap: its value, and its place between scale and bias."""

from __future__ import annotations

import numpy as np

from sdpakit.conformance.cases.make import ALL, FOUR, gh, make
from sdpakit.conformance.inputs import mean_indices
from sdpakit.conformance.model import Case, Recipe, Shape
from sdpakit.expr.functions import where
from sdpakit.masks import Causal


def cases() -> list[Case]:
    """Return the cases of this family."""
    return [*_order(), *_values()]


def _order() -> list[Case]:
    found = make(
        "softcap.then_bias",
        "CAP-1 MOD-1",
        "a bias of 3 squashed by a cap of 2",
        shape=Shape(q_heads=1, q_len=1, kv_len=2),
        spec={"softcap": 2.0, "bias": "float32"},
        recipe=lambda draw: {**draw.flat(), "bias": draw.array([[0.0, 3.0]], "float32")},
        bound="hard",
        dtypes=FOUR,
        expect=lambda: {
            "out": np.array([1.0 / (1.0 + np.exp(-3.0)), 1.0, *[0.0] * 6])[None, None, None]
        },
        source=gh("onnx/onnx!7867"),
    )
    found += make(
        "softcap.then_user_logits",
        "CAP-1 MOD-1",
        "a user's change of the logits squashed by the cap",
        shape=Shape(q_len=5, kv_len=8),
        spec={
            "softcap": 1.5,
            "bias": "float32",
            "logits": lambda x, i: x * 2.0 + where(i.k == i.q, 3.0, -1.0),
        },
        recipe=lambda draw: {"bias": draw.normal(5, 8, dtype="float32", spread=4.0)},
        outputs=ALL,
    )
    shape = Shape(q_heads=1, q_len=4, kv_len=4)
    found += make(
        "softcap.small_and_causal",
        "CAP-1 MASK-3",
        "capped masked logits: with a small cap they are as large as the others",
        shape=shape,
        spec={"softcap": 0.5, "mask": Causal("top_left")},
        recipe=lambda draw: draw.flat(),
        bound="hard",
        expect=lambda: mean_indices([list(range(i + 1)) for i in range(4)], shape),
        source=gh("Dao-AILab/flash-attention#1181"),
    )
    return found


def _spread(spread: float) -> Recipe:
    return lambda draw: {"q": draw.q(spread)}


def _values() -> list[Case]:
    found = make(
        "softcap.applied",
        "CAP-1",
        "a cap that is dropped in silence; the logits reach beyond 20",
        shape=Shape(q_len=9, kv_len=17),
        spec={"softcap": 5.0},
        recipe=lambda draw: {"q": draw.q(3.0), "k": draw.k(3.0)},
        outputs=ALL,
        dtypes=FOUR,
        source=gh("sgl-project/sglang#33915"),
    )
    for name, cap, spread in (
        ("large", 1e4, 3.0),
        ("of_saturated_logits", 30.0, 1e4),
        ("tiny", 1e-3, 3.0),
        ("of_tiny_logits", 20.0, 1e-6),
        ("of_typical_models", 50.0, 20.0),
    ):
        found += make(
            f"softcap.{name}",
            "CAP-1",
            "tanh by a formula that overflows, or that loses small arguments",
            shape=Shape(q_len=9, kv_len=17),
            spec={"softcap": cap},
            recipe=_spread(spread),
            outputs=ALL,
        )
    return found
