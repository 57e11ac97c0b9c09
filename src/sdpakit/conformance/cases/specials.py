"""NaN, infinities and zeros in places that count."""

from __future__ import annotations

from typing import Any

import numpy as np

from sdpakit.conformance.cases.make import ALL, FOUR, gh, make
from sdpakit.conformance.inputs import Array, Draw, guarded
from sdpakit.conformance.model import Case, Shape
from sdpakit.masks import Causal, Dense

SHAPE = Shape(q_len=19, kv_len=37)


def cases() -> list[Case]:
    """Return the cases of this family."""
    return [*_logits(), *_infinite_logits(), *_values(), *_flags()]


def _put(name: str, where: tuple[Any, ...], value: float) -> Any:
    """Return a recipe of random operands with one value put somewhere."""

    def recipe(draw: Draw) -> dict[str, Array]:
        found = draw.qkv()
        found[name][where] = value
        return {name: found[name], **{other: found[other] for other in "qkv" if other != name}}

    return recipe


def _logits() -> list[Case]:
    found = make(
        "specials.nan_query",
        "NUM-4",
        "a NaN row that is swallowed by a maximum, or that reaches its tile",
        shape=SHAPE,
        recipe=_put("q", (0, 0, 3, 3), np.nan),
        outputs=ALL,
        dtypes=FOUR,
        source=gh("pytorch/pytorch#141128"),
    )
    found += make(
        "specials.nan_query_of_few_keys",
        "NUM-4",
        "a NaN row that is zero where there are fewer keys than the width of a vector",
        shape=Shape(q_heads=1, q_len=3, kv_len=4),
        recipe=_put("q", (0, 0, 1, 3), np.nan),
        outputs=ALL,
        dtypes=FOUR,
    )
    found += make(
        "specials.nan_key",
        "NUM-4 MASK-2",
        "a NaN key that reaches rows that do not see it",
        shape=SHAPE,
        spec={"mask": Causal("top_left")},
        recipe=_put("k", (0, 1, 6, 0), np.nan),
        outputs=ALL,
        dtypes=FOUR,
    )
    found += make(
        "specials.nan_key_in_a_later_tile",
        "NUM-4",
        "a NaN that comes after the maximum is settled",
        shape=Shape(q_len=3, kv_len=300),
        recipe=_put("k", (0, 1, 270, 0), np.nan),
        outputs=ALL,
    )
    found += make(
        "specials.nan_bias",
        "NUM-4 MASK-6",
        "a NaN bias that hides its key",
        shape=SHAPE,
        spec={"bias": "float32"},
        recipe=_strange_bias(np.nan),
        outputs=ALL,
    )
    return found


def _infinite_logits() -> list[Case]:
    found = make(
        "specials.infinite_logit",
        "NUM-4",
        "a logit of +inf that gives its key all the weight, or 0/0 in part of the row",
        shape=SHAPE,
        spec={"bias": "float32"},
        recipe=_strange_bias(np.inf),
        outputs=ALL,
        dtypes=FOUR,
    )
    found += make(
        "specials.infinite_logit_alone",
        "NUM-4",
        "a single key of +inf, where inf - inf is the whole row",
        shape=Shape(q_len=4, kv_len=1),
        spec={"bias": "float32"},
        recipe=lambda draw: {"bias": draw.array(np.full((4, 1), np.inf), "float32")},
        outputs=ALL,
    )
    found += make(
        "specials.minus_infinite_logits",
        "MASK-6",
        "keys of -inf that keep a weight, also in the first tile",
        shape=Shape(q_len=5, kv_len=130),
        spec={"bias": "float32"},
        recipe=lambda draw: {
            "bias": draw.array(np.where(np.arange(130)[None] < 100, -np.inf, 0.0), "float32")
        },
        outputs=ALL,
        dtypes=FOUR,
    )
    found += make(
        "specials.infinite_keys_point_away",
        "MASK-6 NUM-4",
        "an infinite component that gives -inf for some rows and +inf for others",
        shape=Shape(q_heads=1, q_len=8, kv_len=20),
        recipe=_infinite_component,
        outputs=ALL,
        bound="hard",
    )
    return found


def _strange_bias(value: float) -> Any:
    def recipe(draw: Draw) -> dict[str, Array]:
        bias = draw.rng.standard_normal((1, 2, 19, 37))
        bias[0, 1, 4, 30] = value
        bias[0, 0, 18, 0] = value
        return {"bias": draw.array(bias, "float32")}

    return recipe


def _infinite_component(draw: Draw) -> dict[str, Array]:
    q, k = draw.q(), draw.k()
    q[..., 0] = np.array([1, -1] * 4)[None, None]
    k[:, :, 11, 0] = -np.inf
    return {"q": q, "k": k}


def _values() -> list[Case]:
    found = make(
        "specials.nan_value",
        "NUM-4",
        "a NaN in one channel of v that spreads to others, or is lost",
        shape=Shape(q_heads=1, q_len=3, kv_len=4),
        recipe=_put("v", (0, 0, 1, 5), np.nan),
        dtypes=FOUR,
        source=gh("intel/torch-xpu-ops!5022"),
    )
    found += make(
        "specials.infinite_values",
        "NUM-4",
        "infinities of v that become NaN by a rescaling with 0, or meet with the wrong sign",
        shape=Shape(q_heads=1, q_len=40, kv_len=40),
        spec={"mask": Causal("top_left")},
        recipe=_infinite_values,
        dtypes=FOUR,
    )
    found += make(
        "specials.largest_values",
        "NUM-1 NUM-5",
        "values at the end of the range, which a sum before the division overflows",
        shape=Shape(q_heads=1, q_len=4, kv_len=50),
        recipe=_largest_values,
        bound="hard",
        dtypes=("float16",),
    )
    found += make(
        "specials.zeros",
        "SOFT-1",
        "0/0 where everything is zero",
        recipe=lambda draw: {name: draw.array(0.0 * x) for name, x in draw.qkv().items()},
        outputs=ALL,
        dtypes=FOUR,
        bound="hard",
    )
    return found


def _infinite_values(draw: Draw) -> dict[str, Array]:
    v = draw.v()
    v[0, 0, 3, 0] = np.inf
    v[0, 0, 9, 0] = -np.inf  # NaN from row 9 on
    v[0, 0, 35, 1] = -np.inf
    return {"v": v}


def _largest_values(draw: Draw) -> dict[str, Array]:
    v = np.full((1, 1, 50, 8), 65504.0)
    v[..., 4:] *= -1.0
    return {"v": draw.array(v)}


def _flags() -> list[Case]:
    """Return what a compiler that assumes finite operands breaks."""
    return make(
        "specials.nan_row_beside_empty_row",
        "NUM-4 EMPTY-1",
        "isnan or a comparison with -inf that was optimised away",
        shape=Shape(q_heads=1, q_len=4, kv_len=5),
        spec={"mask": Dense()},
        recipe=_nan_beside_empty,
        outputs=ALL,
        dtypes=FOUR,
        source=gh("numba/numba#2919"),
    )


def _nan_beside_empty(draw: Draw) -> dict[str, Array]:
    q = draw.q()
    q[0, 0, 1] = np.nan
    return {"q": q, "mask": guarded(np.array([[1], [1], [0], [1]], bool))}
