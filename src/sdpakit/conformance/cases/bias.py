"""Additive arrays: dtypes, broadcasts, strides, finite extremes."""

from __future__ import annotations

from typing import Any

import numpy as np

from sdpakit.conformance.cases.make import ALL, F16, F32, FOUR, gh, make
from sdpakit.conformance.inputs import Array, Draw, mean_indices
from sdpakit.conformance.model import Case, Shape
from sdpakit.masks import Causal, Dense

SHAPE = Shape(batch=2, q_heads=4, kv_heads=2, q_len=5, kv_len=21)


def cases() -> list[Case]:
    """Return the cases of this family."""
    return [*_dtypes(), *_broadcasts(), *_by_hand(), *_finite(), *_sentinels()]


def _normal(*dims: int, dtype: str = F32, spread: float = 1.0) -> Any:
    return lambda draw: {"bias": draw.normal(*dims, dtype=dtype, spread=spread)}


def _dtypes() -> list[Case]:
    found: list[Case] = []
    for bias in FOUR:
        found += make(
            f"bias.of_{bias}",
            "MOD-1",
            "a bias rounded to the dtype of q, or read as if it had it",
            shape=SHAPE,
            spec={"bias": bias},
            recipe=_normal(1, 4, 5, 21, dtype=bias, spread=3.0),
            outputs=ALL,
            dtypes=FOUR,
            level="core" if bias == F32 else "full",
        )
    return found


def _broadcasts() -> list[Case]:
    found: list[Case] = []
    for name, dims in (
        ("one", (1,)),
        ("keys", (21,)),
        ("rows", (5, 1)),
        ("heads", (4, 1, 1)),
        ("batch", (2, 1, 1, 1)),
        ("batch_keys", (2, 1, 1, 21)),
        ("heads_pairs", (4, 5, 21)),
        ("everything", (2, 4, 5, 21)),
    ):
        found += make(
            f"bias.broadcast_{name}",
            "MOD-1",
            "a bias read along the wrong axis",
            shape=SHAPE,
            spec={"bias": F32},
            recipe=_normal(*dims),
        )
    found += make(
        "bias.transposed",
        "MOD-1 SHAPE-5",
        "a bias whose last axis is not contiguous",
        shape=Shape(q_len=5, kv_len=6),
        spec={"bias": F32},
        recipe=lambda draw: {"bias": draw.normal(6, 5, dtype=F32).T},
        source=gh("pytorch/pytorch#109607"),
    )
    found += make(
        "bias.stride_0",
        "MOD-1 SHAPE-5",
        "a bias that is broadcast by the caller",
        shape=SHAPE,
        spec={"bias": F32},
        recipe=lambda draw: {
            "bias": np.broadcast_to(draw.normal(4, 1, 21, dtype=F32), (2, 4, 5, 21))
        },
    )
    found += make(
        "bias.reversed",
        "MOD-1 SHAPE-5",
        "a bias with negative strides",
        shape=SHAPE,
        spec={"bias": F16},
        recipe=lambda draw: {"bias": draw.normal(4, 5, 21, dtype=F16)[:, ::-1, ::-1]},
    )
    return found


def _by_hand() -> list[Case]:
    row = Shape(q_heads=1, q_len=1, kv_len=2)

    def first(weight: float) -> Any:
        return lambda: {"out": np.array([weight, 1.0, *[0.0] * 6])[None, None, None]}

    found = make(
        "bias.zeros_and_ones",
        "MOD-1",
        "a float array of 0 and 1 taken for a mask",
        shape=row,
        spec={"bias": F32},
        recipe=lambda draw: {**draw.flat(), "bias": draw.array([[1.0, 0.0]], F32)},
        bound="hard",
        expect=first(1.0 / (1.0 + np.e)),
        source=gh("ml-explore/mlx#2626"),
    )
    found += make(
        "bias.not_scaled",
        "MOD-1 SCALE-1",
        "a bias that is scaled with the product",
        shape=row,
        spec={"bias": "float64", "scale": 0.25},
        recipe=lambda draw: {**draw.flat(), "bias": draw.array([[0.0, np.log(3.0)]], "float64")},
        bound="hard",
        dtypes=("float64", F32),
        source=gh("tenstorrent/tt-metal!42891"),
    )
    found += make(
        "bias.and_mask",
        "MOD-1 MASK-1",
        "a bias that is dropped beside a mask",
        shape=Shape(q_len=4, kv_len=6),
        spec={"bias": F32, "mask": Dense()},
        recipe=lambda draw: {
            "bias": draw.normal(1, 2, 4, 6, dtype=F32),
            "mask": draw.bools(4, 6, share=0.7),
        },
        outputs=ALL,
        dtypes=FOUR,
        source=gh("pytorch/pytorch#107084"),
    )
    found += make(
        "bias.in_skipped_tiles",
        "MOD-1 MASK-2",
        "a bias indexed by the tile that runs, not by the key",
        shape=Shape(q_len=90, kv_len=90),
        spec={"bias": F32, "mask": ~Causal("top_left")},
        recipe=_normal(2, 90, 90),
    )
    return found


def _finite() -> list[Case]:
    lowest = float(np.finfo(np.float32).min)
    two_rows = Shape(q_heads=1, q_len=2, kv_len=5)
    found = make(
        "bias.lowest_at_some_keys",
        "MASK-5",
        "finfo.min as padding: its keys have a weight of exactly zero",
        shape=two_rows,
        spec={"bias": F32},
        recipe=lambda draw: {**draw.flat(), "bias": draw.array([[0, 0, 0, lowest, lowest]], F32)},
        bound="hard",
        dtypes=FOUR,
        expect=lambda: mean_indices([[0, 1, 2]] * 2, two_rows),
        source=gh("pytorch/pytorch#110213"),
    )
    for name, value in (("minus_1e9", -1e9), ("lowest", lowest)):
        found += make(
            f"bias.{name}_everywhere",
            "MASK-5 NUM-2",
            "a row of equal finite logits that comes out as zero or NaN, not as the mean of v",
            shape=two_rows,
            spec={"bias": F32},
            recipe=_everywhere(value),
            outputs=ALL,
            bound="hard",
            dtypes=FOUR,
        )
    return found


def _sentinels() -> list[Case]:
    found: list[Case] = []
    four = Shape(q_heads=1, q_len=2, kv_len=4)
    found += make(
        "bias.minus_1e9_with_half_operands",
        "MASK-5 MOD-1",
        "-1e9 rounded to float16, which is -inf",
        shape=four,
        spec={"bias": F32},
        recipe=lambda draw: {**draw.flat(), "bias": draw.array([[0, -1e9, 0, -1e9]], F32)},
        bound="hard",
        dtypes=(F16, "bfloat16"),
        expect=lambda: mean_indices([[0, 2]] * 2, four),
        source=gh("unit8co/darts!3087"),
    )
    found += make(
        "bias.finer_than_half_operands",
        "MOD-1",
        "a float32 bias rounded to the dtype of q",
        shape=Shape(q_heads=1, q_len=4, kv_len=19),
        spec={"bias": F32},
        recipe=lambda draw: {"bias": draw.normal(4, 19, spread=30.0, dtype=F32)},
        dtypes=(F16, "bfloat16"),
    )
    found += make(
        "bias.below_a_sentinel",
        "NUM-2 MASK-3",
        "a mask value of -10000 above a live logit of -20000",
        shape=Shape(q_heads=1, q_len=2, kv_len=2, head_dim=1),
        spec={"mask": Dense(), "scale": 1.0},
        recipe=_below_sentinel,
        bound="hard",
        expect=lambda: {"out": np.ones((1, 1, 2, 1))},
        source=gh("ohdearquant/lattice#361"),
    )
    found += make(
        "bias.constant_in_a_row",
        "MOD-1 SOFT-1",
        "a bias that shifts lse and nothing else",
        shape=four,
        spec={"bias": F32},
        recipe=lambda draw: {**draw.flat(), "bias": draw.array(np.full((2, 4), 1000.0), F32)},
        outputs=ALL,
        bound="hard",
        expect=lambda: {
            "out": mean_indices([list(range(4))] * 2, four)["out"],
            "lse": np.full((1, 1, 2), 1000.0 + np.log(4.0)),
        },
        source=gh("vllm-project/vllm!945"),
    )
    return found


def _everywhere(value: float) -> Any:
    return lambda draw: {**draw.flat(), "bias": draw.array(np.full((2, 5), value), F32)}


def _below_sentinel(draw: Draw) -> dict[str, Array]:
    return {
        "q": draw.array(np.array([-20000.0, 0.0]).reshape(1, 1, 2, 1)),
        "k": draw.array(np.array([1.0, 0.0]).reshape(1, 1, 2, 1)),
        "v": draw.array(np.array([1.0, 100.0]).reshape(1, 1, 2, 1)),
        "mask": np.array([[1, 0]], bool),
    }
