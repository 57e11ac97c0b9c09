"""NaN and infinities in live places: which gradients they reach, and which not."""

from __future__ import annotations

from typing import Any

import numpy as np

from sdpakit.conformance.cases.gradients_make import gradient
from sdpakit.conformance.cases.make import F32, FOUR
from sdpakit.conformance.inputs import Array, Draw
from sdpakit.conformance.model import Case, Shape
from sdpakit.masks import Window

# Row i sees keys i - 2 .. i, so that most rows and keys lie outside of what is strange.
NARROW = Window(2, 0, "top_left")
SHAPE = Shape(q_heads=2, q_len=24, kv_len=24)


def cases() -> list[Case]:
    """Return the cases of this part."""
    return [*_in_operands(), *_in_additions()]


def _in_operands() -> list[Case]:
    found: list[Case] = []
    for name, operand, where, value, catches in (
        ("a_nan_query", "q", (0, 1, 9, 3), np.nan, "keys that the row of a NaN does not see"),
        ("a_nan_key", "k", (0, 1, 9, 3), np.nan, "rows that do not see the key of a NaN"),
        ("a_nan_value", "v", (0, 1, 9, 3), np.nan, "dv, which a NaN in v does not reach"),
        (
            "a_nan_in_dout",
            "dout",
            (0, 1, 9, 3),
            np.nan,
            "dq of other rows, or dv of other channels",
        ),
        ("an_infinite_value", "v", (0, 1, 9, 3), np.inf, "dv, or rows that do not see the value"),
    ):
        found += gradient(
            f"of_{name}",
            "GRAD-1 NUM-4",
            f"what is strange in one place reaches {catches}, or is swallowed",
            shape=SHAPE,
            spec={"mask": NARROW},
            recipe=_put(operand, where, value),
            dtypes=FOUR,
        )
    return found


def _put(name: str, where: tuple[int, ...], value: float) -> Any:
    def recipe(draw: Draw) -> dict[str, Array]:
        found = {**draw.qkv(), "dout": draw.dout()}
        found[name][where] = value
        return found

    return recipe


def _in_additions() -> list[Case]:
    found: list[Case] = []
    for name, value in (("nan", np.nan), ("infinite", np.inf)):
        found += gradient(
            f"of_a_{name}_bias",
            "GRAD-1 GRAD-2 NUM-4",
            "a row that is NaN and reaches rows and keys beside it, or is swallowed",
            shape=SHAPE,
            spec={"mask": NARROW, "bias": F32},
            recipe=_bias(value),
        )
    found += gradient(
        "of_a_nan_sink",
        "GRAD-2 NUM-4 SINK-1",
        "a sink of NaN that reaches another head, or empty rows",
        shape=Shape(q_len=6, kv_len=9),
        spec={"sinks": True},
        recipe=lambda draw: {"sinks": draw.array([np.nan, 0.5], F32)},
    )
    return found


def _bias(value: float) -> Any:
    def recipe(draw: Draw) -> dict[str, Array]:
        bias = draw.rng.standard_normal((2, 24, 24))
        bias[1, 9, 8] = value
        return {"bias": draw.array(bias, F32)}

    return recipe
