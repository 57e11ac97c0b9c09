"""What the fuzzer found: in a backend, in the reference, or in the bounds themselves."""

from __future__ import annotations

import math

import numpy as np

from sdpakit.conformance.cases.make import F16, F32, FOUR, make
from sdpakit.conformance.fuzz.recipe import Hostile, Operands
from sdpakit.conformance.inputs import Draw
from sdpakit.conformance.model import Case, Shape
from sdpakit.expr.functions import exp, tanh, to_float
from sdpakit.masks import Window


def cases() -> list[Case]:
    """Return the cases of this family; all are of level full, for core knows their mistakes."""
    return [*_infinities(), *_unread()]


def _infinities() -> list[Case]:
    small = Shape(q_heads=1, q_len=2, kv_len=3, head_dim=2, v_head_dim=2)
    return [
        *make(
            "fuzzed.infinite_value_of_no_weight",
            "NUM-4",
            "a finite result for an infinite value whose weight underflows: NaN and inf are right",
            shape=small,
            recipe=_infinite_value,
            outputs=("out",),
            dtypes=FOUR,
            bound="hard",
            level="full",
        ),
        *make(
            "fuzzed.infinite_product_under_a_cap",
            "CAP-1",
            "an infinite product that a cap makes NaN: it is the cap",
            shape=small,
            spec={"softcap": 2.0},
            recipe=Operands(hostile=(Hostile("q", math.inf),)),
            dtypes=FOUR,
            bound="hard",
            level="full",
        ),
        *make(
            "fuzzed.infinity_in_an_expression",
            "EXPR-1",
            "an infinity that a bounded function of the user makes NaN",
            shape=small,
            spec={"logits": lambda x, i: tanh(x) * 3.0 + exp(-to_float(i.k) * 0.125)},
            recipe=Operands(hostile=(Hostile("q", math.inf),)),
            dtypes=FOUR,
            bound="hard",
            level="full",
        ),
        *make(
            "fuzzed.huge_bias_beside_a_nan_row",
            "NUM-4 NUM-6",
            "a row of NaN that spoils what is known of its neighbours",
            shape=small,
            spec={"bias": "bfloat16"},
            recipe=Operands(
                bias="bfloat16",
                hostile=(Hostile("q", math.nan), Hostile("bias", 1e30, whole_rows=True)),
            ),
            dtypes=(F16, F32),
            outputs=("out",),
            bound="hard",
            level="full",
        ),
    ]


def _infinite_value(draw: Draw) -> dict[str, np.ndarray]:
    """Give key 0 an infinite value and logits far below those of key 1."""
    k, v = np.zeros((1, 1, 3, 2)), np.ones((1, 1, 3, 2))
    k[..., 0, :], k[..., 1, :], v[..., 0, 0] = -900.0, 900.0, math.inf
    return {"q": draw.array(np.ones((1, 1, 2, 2))), "k": draw.array(k), "v": draw.array(v)}


def _unread() -> list[Case]:
    return make(
        "fuzzed.window_without_sides",
        "MASK-2",
        "a position asked of a call in which no side of the window reads it",
        spec={"mask": Window(None, None, "offset")},
        level="full",
    )
