"""The scale: its default, explicit values of every kind, folding."""

from __future__ import annotations

import numpy as np

from sdpakit.conformance.cases.make import ALL, FOUR, gh, make
from sdpakit.conformance.inputs import Array, Draw
from sdpakit.conformance.model import Case, Shape
from sdpakit.masks import Causal


def cases() -> list[Case]:
    """Return the cases of this family."""
    return [*_default(), *_explicit(), *_signs(), *_folded()]


def _default() -> list[Case]:
    found = make(
        "scale.default_of_width_5",
        "SCALE-1",
        "1/sqrt(8) after padding the head",
        shape=Shape(q_heads=1, q_len=1, kv_len=2, head_dim=5, v_head_dim=1),
        recipe=_ones_of_5,
        bound="hard",
        dtypes=FOUR,
        expect=lambda: {"out": np.full((1, 1, 1, 1), 1.0 / (1.0 + np.exp(-np.sqrt(5.0))))},
        source=gh("intel/ipex-llm!12619"),
    )
    found += make(
        "scale.default_of_width_1",
        "SCALE-1",
        "1/sqrt of the model width",
        shape=Shape(q_heads=4, q_len=3, kv_len=5, head_dim=1),
        source=gh("FrancescoSaverioZuppichini/ViT#1"),
    )
    found += make(
        "scale.default_is_not_of_v",
        "SCALE-1 SHAPE-3",
        "1/sqrt of the width of v",
        shape=Shape(q_len=4, kv_len=9, head_dim=16, v_head_dim=64),
    )
    return found


def _ones_of_5(draw: Draw) -> dict[str, Array]:
    return {
        "q": draw.array(np.ones((1, 1, 1, 5))),
        "k": draw.array(np.array([[0.0] * 5, [1.0] * 5])[None, None]),
        "v": draw.array(np.array([0.0, 1.0]).reshape(1, 1, 2, 1)),
    }


def _explicit() -> list[Case]:
    found: list[Case] = []
    for name, scale, catches in (
        ("half", 0.5, "a scale that is accepted and ignored"),
        ("two", 2.0, "a scale kept from the call before"),
        ("zero", 0.0, "0 taken for 'use the default'"),
        ("minus_one", -1.0, "the absolute value, or a running maximum of the raw products"),
        (
            "negative",
            -0.3,
            "the maximum of q.k scaled, where a negative scale asks for the minimum",
        ),
        ("tiny", 1e-30, "a scale flushed to zero in a product with something large"),
        ("subnormal", 1e-42, "a scale below the normal range that turns into NaN"),
        ("huge", 1e6, "one-hot rows from a scale of 1e6"),
    ):
        found += make(
            f"scale.{name}",
            "SCALE-1 SCALE-2",
            catches,
            shape=Shape(q_len=7, kv_len=21),
            spec={"scale": scale},
            outputs=ALL,
            dtypes=FOUR if name in ("zero", "negative") else ("float32",),
            source=gh(
                {"zero": "SKaiNET-developers/SKaiNET#860"}.get(name, "tenstorrent/tt-metal#33304")
            ),
        )
    return found


def _signs() -> list[Case]:
    found = make(
        "scale.zero_and_infinite_key",
        "SCALE-2 NUM-4",
        "0 * inf that is taken for 0",
        shape=Shape(q_heads=1, q_len=3, kv_len=4),
        spec={"scale": 0.0},
        recipe=_infinite_key,
        outputs=ALL,
        bound="hard",
    )
    found += make(
        "scale.negative_and_causal",
        "SCALE-2 MASK-2",
        "a negative scale times a mask value of -inf",
        shape=Shape(q_len=9, kv_len=9),
        spec={"scale": -0.7, "mask": Causal("top_left")},
        dtypes=FOUR,
    )
    found += make(
        "scale.zero_and_causal",
        "SCALE-2 MASK-2",
        "a scale of 0 times a mask value of -inf",
        shape=Shape(q_len=4, kv_len=4),
        spec={"scale": 0.0, "mask": Causal("top_left")},
    )
    found += make(
        "scale.minus_one_by_hand",
        "SCALE-2",
        "a sign that is lost",
        shape=Shape(q_heads=1, q_len=1, kv_len=2, head_dim=1),
        spec={"scale": -1.0},
        recipe=lambda draw: {
            "q": draw.array(np.ones((1, 1, 1, 1))),
            "k": draw.array(np.array([0.0, 1.0]).reshape(1, 1, 2, 1)),
            "v": draw.array(np.array([0.0, 1.0]).reshape(1, 1, 2, 1)),
        },
        bound="hard",
        expect=lambda: {"out": np.full((1, 1, 1, 1), 1.0 / (1.0 + np.e))},
        source=gh("pytorch/pytorch!105202"),
    )
    return found


def _infinite_key(draw: Draw) -> dict[str, Array]:
    k = draw.k()
    k[0, 0, 2, 1] = np.inf
    return {"k": k}


def _folded() -> list[Case]:
    """Operands that come out of weights into which the factor was folded; the spec says 1.0."""
    return [
        *make(
            "scale.folded_into_q",
            "FOLD-1 SCALE-1",
            "the factor applied once more to operands that have it",
            shape=Shape(q_len=6, kv_len=11, head_dim=16),
            spec={"scale": 1.0},
            recipe=lambda draw: {"q": draw.q(16**-0.5)},
        ),
        *make(
            "scale.folded_into_both",
            "FOLD-1 SCALE-1",
            "the factor applied once more to operands that have it",
            shape=Shape(q_len=6, kv_len=11, head_dim=16),
            spec={"scale": 1.0},
            recipe=lambda draw: {"q": draw.q(16**-0.25), "k": draw.k(16**-0.25)},
        ),
    ]
