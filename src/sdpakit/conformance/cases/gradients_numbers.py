"""Gradients where numbers are hard: lse far from 0, saturated rows, cancellation, real data."""

from __future__ import annotations

from typing import Any

import numpy as np

from sdpakit.conformance.cases.gradients_make import gradient
from sdpakit.conformance.cases.make import BF16, F16, F32, F64, FOUR
from sdpakit.conformance.inputs import Array, Draw
from sdpakit.conformance.model import Case, Shape
from sdpakit.data import minilm


def cases() -> list[Case]:
    """Return the cases of this part."""
    return [*_lse(), *_saturated(), *_large(), *_cancelling(), *_by_hand(), *_real()]


def _lse() -> list[Case]:
    found = gradient(
        "of_low_lse",
        "NUM-3 GRAD-1",
        "exp(0 - lse) of a padded column, with lse below -89",
        "pytorch/pytorch#196678",
        shape=Shape(q_heads=1, q_len=17, kv_len=17),
        recipe=lambda draw: {"q": draw.q(0.1, 3.0), "k": draw.k(0.1, -12.0)},
        dtypes=(F32, F64),
    )
    for name, mean in (("minus", -1000.0), ("plus", 1000.0)):
        found += gradient(
            f"of_lse_near_{name}_1000",
            "NUM-3 GRAD-1",
            "exp(-lse) alone, which overflows or underflows",
            shape=Shape(q_heads=1, q_len=5, kv_len=9),
            spec={"bias": F64},
            recipe=lambda draw, mean=mean: {
                "bias": draw.array(mean + draw.rng.standard_normal((5, 9)), F64)
            },
            dtypes=FOUR,
        )
    found += gradient(
        "of_rows_apart_by_1000",
        "NUM-3 GRAD-1",
        "one shift for a tile of rows, which lie at -1000 and +1000",
        shape=Shape(q_heads=1, q_len=8, kv_len=9),
        spec={"bias": F32},
        recipe=lambda draw: {
            "bias": draw.array(np.where(np.arange(8) % 2, 1000.0, -1000.0)[:, None], F32)
        },
    )
    found += gradient(
        "of_equal_logits_of_minus_1e9",
        "NUM-2 MASK-5 GRAD-1",
        "NaN where a lse of -1e9 swallows log n",
        shape=Shape(q_heads=1, q_len=2, kv_len=5),
        spec={"bias": F32, "scale": 0.0},
        recipe=lambda draw: {"bias": draw.array(np.full((2, 5), -1e9), F32)},
        bound="hard",
        dtypes=FOUR,
    )
    return found


def _saturated() -> list[Case]:
    found = gradient(
        "of_a_saturated_row",
        "GRAD-1",
        "a one-hot row: all of the gradient goes to one value, none to q and k",
        shape=Shape(q_heads=1, q_len=1, kv_len=2, head_dim=2),
        recipe=_one_hot,
        dtypes=(F32, F16, BF16, F64),
        bound="hard",
        expect=lambda: {
            "out": np.array([1.0, 2.0]).reshape(1, 1, 1, 2),
            "dq": np.zeros((1, 1, 1, 2)),
            "dk": np.zeros((1, 1, 2, 2)),
            "dv": np.array([[1.0, 1.0], [0.0, 0.0]])[None, None],
        },
    )
    found += gradient(
        "of_saturated_rows",
        "GRAD-1 NUM-1",
        "dP - delta, whose digits cancel where one key has most of the weight",
        shape=Shape(q_heads=1, q_len=24, kv_len=64, head_dim=64),
        recipe=lambda draw: {"q": draw.q(8.0)},
        dtypes=FOUR,
    )
    found += gradient(
        "of_one_dominant_key",
        "GRAD-1",
        "a weight of 1 - 1e-6 that is rounded to 1",
        shape=Shape(q_len=9, kv_len=20),
        spec={"bias": F32},
        recipe=lambda draw: {"bias": draw.array(np.where(np.arange(20) == 11, 16.0, 0.0), F32)},
    )
    return found


def _one_hot(draw: Draw) -> dict[str, Array]:
    return {
        "q": draw.array(np.array([100.0, 0.0]).reshape(1, 1, 1, 2)),
        "k": draw.array(np.array([[100.0, 0.0], [0.0, 100.0]])[None, None]),
        "v": draw.array(np.array([[1.0, 2.0], [3.0, 4.0]])[None, None]),
        "dout": draw.array(np.ones((1, 1, 1, 2))),
    }


def _large() -> list[Case]:
    found: list[Case] = []
    for power in (2, 4, 6):
        found += gradient(
            f"of_logits_of_1e{power}",
            "GRAD-1 NUM-1",
            "exp before the maximum, or lse, is taken out",
            shape=Shape(q_len=11, kv_len=23),
            spec={"scale": 10.0**power / 3.0},
        )
    found += gradient(
        "of_products_beyond_half",
        "GRAD-1 NUM-1",
        "logits, or <dout, v>, beyond what float16 holds",
        "pytorch/pytorch#119131",
        shape=Shape(q_len=4, kv_len=20, head_dim=64),
        spec={"scale": 1e-3},
        recipe=lambda draw: {"q": draw.q(100.0), "k": draw.k(30.0), "v": draw.v(200.0)},
        dtypes=(F16, F32),
    )
    return found


def _cancelling() -> list[Case]:
    found = gradient(
        "of_values_far_from_zero",
        "GRAD-1 GRAD-3",
        "delta in half precision: values of 100 +- 1",
        "Dao-AILab/flash-attention!2481",
        shape=Shape(q_len=9, kv_len=33, head_dim=16),
        recipe=lambda draw: {"v": draw.v(1.0, 100.0)},
        dtypes=(F32, F64),
    )
    found += gradient(
        "of_a_stored_out",
        "GRAD-1 GRAD-3",
        "delta of an out that was rounded to half precision, and no word of it in the profile",
        shape=Shape(q_len=9, kv_len=33, head_dim=16),
        recipe=lambda draw: {"v": draw.v(1.0, 30.0)},
        dtypes=(F16, BF16),
    )
    found += gradient(
        "of_equal_values",
        "GRAD-1",
        "dP - delta where every dP is the same: dq and dk are zero but for roundings",
        shape=Shape(q_len=9, kv_len=33, head_dim=16),
        recipe=lambda draw: {"v": draw.array(np.broadcast_to(draw.v()[:, :, :1], (1, 2, 33, 16)))},
    )
    found += gradient(
        "of_keys_far_from_zero",
        "GRAD-1 GRAD-3",
        "dq as a sum of dS k whose digits cancel: dS rounded to half precision",
        shape=Shape(q_len=9, kv_len=33, head_dim=16),
        recipe=lambda draw: {"k": draw.k(1.0, 30.0), "q": draw.q(0.1)},
        dtypes=FOUR,
    )
    return found


def _by_hand() -> list[Case]:
    found = gradient(
        "of_a_single_key",
        "GRAD-1",
        "a softmax over one key, which is constant: no gradient to q and k",
        shape=Shape(q_heads=1, q_len=3, kv_len=1, head_dim=2),
        recipe=lambda draw: {
            "v": draw.array(np.array([[1.0, -2.0]])[None, None]),
            "dout": draw.array(np.array([[1.0, 2.0], [3.0, -1.0], [0.5, 0.25]])[None, None]),
        },
        bound="hard",
        dtypes=FOUR,
        expect=lambda: {
            "dq": np.zeros((1, 1, 3, 2)),
            "dk": np.zeros((1, 1, 1, 2)),
            "dv": np.array([[4.5, 1.25]])[None, None],
        },
    )
    found += gradient(
        "of_two_equal_keys",
        "GRAD-1 SCALE-1",
        "a factor of 2, the scale left out, or delta left out: p = 1/2, dP = (5, 1), dS = +-1",
        shape=Shape(q_heads=1, q_len=1, kv_len=2, head_dim=4, v_head_dim=1),
        recipe=_two_equal,
        bound="hard",
        dtypes=FOUR,
        expect=lambda: {
            "dq": np.array([1.0, -1.0, 0.0, 0.0]).reshape(1, 1, 1, 4),
            "dk": np.array([[0.0, 0.0, 2.0, 0.0], [0.0, 0.0, -2.0, 0.0]])[None, None],
            "dv": np.array([[0.5], [0.5]])[None, None],
        },
    )
    return found


def _two_equal(draw: Draw) -> dict[str, Array]:
    """Return q across k_1 and k_2; scale 1/2."""
    return {
        "q": draw.array(np.array([0.0, 0.0, 4.0, 0.0]).reshape(1, 1, 1, 4)),
        "k": draw.array(np.array([[2.0, 0.0, 0.0, 0.0], [0.0, 2.0, 0.0, 0.0]])[None, None]),
        "v": draw.array(np.array([[5.0], [1.0]])[None, None]),
        "dout": draw.array(np.ones((1, 1, 1, 1))),
    }


def _real() -> list[Case]:
    found: list[Case] = []
    for name, layer in (("saturated", 0), ("mild", 5)):
        found += gradient(
            f"of_a_{name}_layer",
            "GRAD-1 GRAD-3 MASK-4 NUM-3",
            "what random operands do not show: activations of a real model, padded sentences",
            "NVIDIA/TransformerEngine#3216",
            shape=Shape(batch=4, q_heads=12, q_len=58, kv_len=58, head_dim=32),
            spec={"q_lens": True, "kv_lens": True},
            recipe=_layer(layer),
            dtypes=(F16, F32, BF16, F64),
        )
    return found


def _layer(number: int) -> Any:
    def recipe(draw: Draw) -> dict[str, Any]:
        stored = minilm(number)
        lengths = {"q_lens": stored.lengths, "kv_lens": stored.lengths}
        return {name: draw.array(getattr(stored, name)) for name in "qkv"} | lengths

    return recipe
