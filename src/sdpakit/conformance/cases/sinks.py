"""Sinks: one more logit in the denominator."""

from __future__ import annotations

from typing import Any

import numpy as np

from sdpakit.conformance.cases.make import ALL, FOUR, gh, make
from sdpakit.conformance.model import Case, Shape
from sdpakit.masks import Causal


def cases() -> list[Case]:
    """Return the cases of this family."""
    return [*_by_hand(), *_random(), *_extreme()]


def _sinks(*values: float, dtype: str = "float32") -> Any:
    return lambda draw: {"sinks": draw.array(np.array(values), dtype)}


def _flat(*values: float) -> Any:
    return lambda draw: {**draw.flat(), "sinks": draw.array(np.array(values), "float32")}


def _by_hand() -> list[Case]:
    shape = Shape(q_heads=1, q_len=1, kv_len=3)
    found = make(
        "sinks.share_of_a_quarter",
        "SINK-1 SINK-2",
        "a sink that is dropped, has a value, or is in lse: three equal logits and a sink of 0",
        shape=shape,
        spec={"sinks": True},
        recipe=_flat(0.0),
        bound="hard",
        dtypes=FOUR,
        expect=lambda: {
            "out": np.array([0.75, 0.75, *[0.0] * 6])[None, None, None],
            "lse": np.full((1, 1, 1), np.log(3.0)),
        },
        source=gh("pytorch/torchtitan!2211"),
    )
    found += make(
        "sinks.not_capped",
        "SINK-1 CAP-1",
        "a sink of 4 squashed by a cap of 2",
        shape=Shape(q_heads=1, q_len=2, kv_len=5),
        spec={"sinks": True, "softcap": 2.0},
        recipe=_flat(4.0),
        bound="hard",
        expect=lambda: {
            "out": np.broadcast_to(
                np.array([10.0, 5.0, *[0.0] * 6]) / (5.0 + np.exp(4.0)), (1, 1, 2, 8)
            )
        },
        source=gh("ROCm/rocm-libraries!12229"),
    )
    found += make(
        "sinks.not_scaled",
        "SINK-1 SCALE-1",
        "a sink times the scale",
        shape=Shape(q_len=4, kv_len=9),
        spec={"sinks": True, "scale": 0.01},
        recipe=_sinks(5.0, -5.0),
    )
    return found


def _random() -> list[Case]:
    found = make(
        "sinks.one_for_each_query_head",
        "SINK-1 SHAPE-2",
        "a sink for each kv head",
        shape=Shape(q_heads=4, kv_heads=2, q_len=3, kv_len=5),
        spec={"sinks": True},
        recipe=_sinks(-2.0, 0.0, 2.0, 4.0),
        outputs=ALL,
        dtypes=FOUR,
        source=gh("sgl-project/sgl-kernel-xpu!254"),
    )
    found += make(
        "sinks.once_for_all_tiles",
        "SINK-1",
        "a sink counted once for every tile",
        shape=Shape(q_len=40, kv_len=500),
        spec={"sinks": True, "mask": Causal("bottom_right")},
        recipe=_sinks(4.0, 6.0),
        dtypes=FOUR,
    )
    for dtype in FOUR:
        found += make(
            f"sinks.of_{dtype}",
            "SINK-1 MOD-1",
            "sinks read in the dtype of q",
            shape=Shape(q_len=4, kv_len=9),
            spec={"sinks": True},
            recipe=_sinks(0.3, 1.7, dtype=dtype),
            dtypes=("float32", "float16"),
        )
    return found


def _extreme() -> list[Case]:
    found = make(
        "sinks.dominant",
        "SINK-1 NUM-2",
        "a sink far above every logit: tiny finite output, not NaN",
        shape=Shape(q_heads=1, q_len=2, kv_len=3),
        spec={"sinks": True},
        recipe=_sinks(200.0),
        outputs=ALL,
        source=gh("NVIDIA/TensorRT-LLM!19220"),
    )
    for name, values in (
        ("minus_inf", (-np.inf, 1.0)),
        ("far_below", (-1e30, -2000.0)),
        ("far_above", (1e30, 2000.0)),
        ("nan", (np.nan, 0.0)),
        ("plus_inf", (np.inf, 0.0)),
    ):
        found += make(
            f"sinks.{name}",
            "SINK-1 NUM-4" if name in ("nan", "plus_inf") else "SINK-1 NUM-2",
            "exp(sink - m) that overflows, or a sink of NaN that is swallowed or reaches lse",
            shape=Shape(q_len=5, kv_len=9),
            spec={"sinks": True},
            recipe=_sinks(*values),
            outputs=ALL,
            dtypes=FOUR if name in ("far_above", "nan") else ("float32",),
        )
    found += make(
        "sinks.nan_and_an_empty_row",
        "SINK-1 NUM-4 EMPTY-1",
        "an empty row that takes the NaN of its sink",
        shape=Shape(q_len=6, kv_len=4),
        spec={"sinks": True, "mask": Causal("bottom_right")},
        recipe=_sinks(np.nan, np.inf),
        outputs=ALL,
    )
    found += make(
        "sinks.strided",
        "SINK-1 SHAPE-5",
        "sinks read as if they were contiguous",
        shape=Shape(q_heads=4, q_len=5, kv_len=9),
        spec={"sinks": True},
        recipe=lambda draw: {"sinks": draw.normal(8, dtype="float32")[::-2]},
    )
    return found
