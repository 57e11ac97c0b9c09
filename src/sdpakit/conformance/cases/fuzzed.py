"""What the fuzzer found: in a backend, in the reference, or in the bounds themselves."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sdpakit.conformance.cases.make import ALL, BF16, F16, F32, F64, FOUR, make
from sdpakit.conformance.fuzz.recipe import Hostile, Operands
from sdpakit.conformance.inputs import Draw
from sdpakit.conformance.model import Case, Shape
from sdpakit.expr.functions import exp, tanh, to_float, where
from sdpakit.masks import Window


def cases() -> list[Case]:
    """Return the cases of this family; all are of level full, for core knows their mistakes."""
    return [*_infinities(), *_unread(), *_apart_by_rounding(), *_flushed(), *_subnormal()]


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


def _apart_by_rounding() -> list[Case]:
    """Logits near 1e9, where float32 holds multiples of 64: what is lost decides the row."""
    fields: dict[str, Any] = {
        "shape": Shape(q_heads=1, q_len=2, kv_len=3, head_dim=2, v_head_dim=2),
        "outputs": ALL,
        "dtypes": (F32, F16, BF16),
        "bound": "hard",
        "level": "full",
    }
    return [
        *make(
            "fuzzed.entropy_of_a_lost_difference",
            "STAT-1 NUM-6",
            "an entropy that says whether a difference of logits was lost, as float32 must",
            spec={"scale": 1.0, "bias": "float32"},
            recipe=lambda draw: _near_a_billion(draw, 0.0, -12.0),
            **fields,
        ),
        *make(
            "fuzzed.entropy_of_a_made_up_difference",
            "STAT-1 NUM-6",
            "statistics that say whether equal logits are equal, as float32 cannot",
            spec={"scale": 1.0, "bias": "float32", "logits": _forty_in_two_ways},
            recipe=lambda draw: _near_a_billion(draw, 0.0, 24.0),
            **fields,
        ),
    ]


def _forty_in_two_ways(x: Any, i: Any) -> Any:
    """Make logits of 1e9 + 0 and 1e9 + 24 equal: the first rounds up to 1e9 + 64, the other not."""
    return x + where(i.k == 0, 40.0, 16.0)


def _near_a_billion(draw: Draw, *products: float) -> dict[str, np.ndarray]:
    """Give two keys of three a bias of 1e9."""
    k, bias = np.zeros((1, 1, 3, 2)), np.zeros((1, 1, 1, 3))
    k[0, 0, :2, 0], bias[..., :2] = products, 1e9
    return {
        "q": draw.array(np.ones((1, 1, 2, 2))),
        "k": draw.array(k),
        "bias": draw.array(bias, "float32"),
    }


def _flushed() -> list[Case]:
    shape = Shape(q_heads=1, q_len=2, kv_len=5, head_dim=2, v_head_dim=2)
    fields: dict[str, Any] = {"shape": shape, "dtypes": FOUR, "bound": "hard", "level": "full"}
    return [
        *make(
            "fuzzed.weights_at_the_end_of_the_range",
            "NUM-6 NUM-4",
            "weights of up to four times the smallest normal number that come out as 0",
            spec={"scale": 1.0},
            recipe=lambda draw: _at_the_end(draw, infinite=True),
            outputs=ALL,
            **fields,
        ),
        *make(
            "fuzzed.gradients_at_the_end_of_the_range",
            "GRAD-1 GRAD-3",
            "delta of weights that come out as 0, where it has nothing else in it",
            spec={"scale": 1.0, "bias": "float32"},
            recipe=lambda draw: _at_the_end(draw, bias=draw.array(np.zeros((2, 5)), "float32")),
            outputs=("out",),
            gradients=True,
            **fields,
        ),
    ]


def _at_the_end(draw: Draw, *, infinite: bool = False, **more: np.ndarray) -> dict[str, np.ndarray]:
    """Give key 0 all the weight and no value, the others 1/2 to 4 times the least and large ones.

    The largest logit is just above a multiple of two in log2 units, for programs that round it up.
    """
    k, v = np.zeros((1, 1, 5, 2)), np.full((1, 1, 5, 2), 1000.0)
    lowest = -707.5 if draw.dtype == F64 else -86.5
    k[0, 0, :, 0] = [0.0625, lowest + 0.5, lowest, lowest - 0.5, lowest - 1.0]
    v[0, 0, 0] = 0.0
    if infinite:
        v[0, 0, 1, 1] = math.inf
    q = draw.array(np.ones((1, 1, 2, 2)))
    return {"q": q, "k": draw.array(k), "v": draw.array(v), **more}


def _subnormal() -> list[Case]:
    fields: dict[str, Any] = {
        "shape": Shape(q_heads=1, q_len=2, kv_len=3, head_dim=2, v_head_dim=2),
        "recipe": _tiny_queries,
        "outputs": ("out", "lse", "max_logit"),
        "dtypes": (F32, F64),
        "bound": "hard",
        "level": "full",
    }
    return [
        *make(
            "fuzzed.subnormal_quotient_of_a_cap",
            "CAP-1 NUM-6",
            "a largest logit so small that its quotient by the cap has few digits left, as it must",
            spec={"scale": 1.0, "softcap": 50.0},
            **fields,
        ),
        *make(
            "fuzzed.subnormal_quotient_of_an_expression",
            "EXPR-1 NUM-6",
            "the same in a change of the logits that says the cap out",
            spec={"scale": 1.0, "logits": _cap_of_fifty},
            **fields,
        ),
        *make(
            "fuzzed.constant_below_the_range",
            "EXPR-1 NUM-6",
            "a number that float32 cannot hold and a product makes visible",
            spec={"scale": 1.0, "logits": _nothing_enlarged},
            **fields | {"dtypes": (F32,)},
        ),
    ]


def _cap_of_fifty(x: Any, _: Any) -> Any:
    return tanh(x / 50.0) * 50.0


def _nothing_enlarged(x: Any, i: Any) -> Any:
    return x + where(i.k == 0, 1e-46, 0.0) * 2.0**100


def _tiny_queries(draw: Draw) -> dict[str, np.ndarray]:
    """Make every logit a few thousand times the smallest subnormal number."""
    tiny = 2.0**-1063 if draw.dtype == F64 else 2.0**-138
    q, k = np.full((1, 1, 2, 2), tiny), np.array([[-1.0, -0.25], [-1.0, -0.75], [-2.0, 0.5]])
    return {"q": draw.array(q), "k": draw.array(k[None, None])}
