"""Operands of a real model: a saturated layer and a mild one, padded sentences."""

from __future__ import annotations

from typing import Any

from sdpakit.conformance.cases.make import ALL, BF16, F16, F32, F64, make
from sdpakit.conformance.inputs import Draw
from sdpakit.conformance.model import Case, Recipe, Shape
from sdpakit.data import minilm


def cases() -> list[Case]:
    """Return the cases of this family."""
    found: list[Case] = []
    for name, layer, catches in (
        ("saturated_layer", 0, "exp in half precision, which logits of 98 overflow"),
        ("mild_layer", 5, "padded rows and keys that take part"),
    ):
        found += make(
            f"real.{name}",
            "NUM-1 MASK-4 SOFT-1 STAT-1",
            catches,
            shape=Shape(batch=4, q_heads=12, q_len=58, kv_len=58, head_dim=32),
            spec={"q_lens": True, "kv_lens": True},
            recipe=_layer(layer),
            outputs=ALL,
            dtypes=(F16, F32, BF16, F64),
        )
    return found


def _layer(number: int) -> Recipe:
    def recipe(draw: Draw) -> dict[str, Any]:
        stored = minilm(number)
        lengths = {"q_lens": stored.lengths, "kv_lens": stored.lengths}
        return {name: draw.array(getattr(stored, name)) for name in "qkv"} | lengths

    return recipe
