"""Large, small, equal and saturated logits; sums that a narrow accumulator gets wrong."""

from __future__ import annotations

from typing import Any

import numpy as np

from sdpakit.conformance.cases.make import ALL, F16, F32, F64, FOUR, gh, make
from sdpakit.conformance.inputs import Array, Draw, mean_indices
from sdpakit.conformance.model import Case, Shape


def cases() -> list[Case]:
    """Return the cases of this family."""
    return [*_random(), *_large(), *_reported(), *_sums(), *_equal(), *_small()]


def _spread(q_spread: float) -> Any:
    return lambda draw: draw.qkv(q_spread)


def _random() -> list[Case]:
    """Random rows of every kind: the sharp bound tells narrow arithmetic from right."""
    found: list[Case] = []
    for name, spread, shape, catches in (
        ("unit", 1.0, Shape(q_heads=1, q_len=32, kv_len=512, head_dim=64), "tf32 products"),
        ("saturated", 30.0, Shape(q_heads=1, q_len=32, kv_len=512, head_dim=64), "tf32 products"),
        ("narrow", 1.0, Shape(q_heads=1, q_len=32, kv_len=64, head_dim=8), "float16 weights"),
        ("wide", 1.0, Shape(q_heads=1, q_len=32, kv_len=1024, head_dim=256), "float16 sums"),
        ("two_keys", 1.0, Shape(q_heads=1, q_len=32, kv_len=2, head_dim=64), "float16 weights"),
    ):
        found += make(
            f"precision.{name}",
            "NUM-1 NUM-6 SCALE-1",
            f"float32 that is not: {catches}",
            shape=shape,
            recipe=_spread(spread),
            outputs=ALL,
            dtypes=FOUR if name in ("unit", "saturated") else (F32, F64),
            source=gh("facebookresearch/xformers#677"),
        )
    found += make(
        "precision.doubles",
        "NUM-1 NUM-6",
        "float64 operands that are multiplied or kept in float32 on their way",
        shape=Shape(q_heads=1, q_len=8, kv_len=96, head_dim=32),
        outputs=ALL,
        dtypes=(F64,),
    )
    found += make(
        "precision.range_of_bfloat16",
        "NUM-1",
        "bfloat16 operands of 1e6 and 1e-6 that pass through float16, which holds neither",
        shape=Shape(q_heads=1, q_len=8, kv_len=96, head_dim=32),
        recipe=lambda draw: {"q": draw.q(1e6), "k": draw.k(1e-6)},
        outputs=ALL,
        dtypes=("bfloat16",),
    )
    found += make(
        "precision.long",
        "NUM-1 NUM-6",
        "an accumulator that loses what thousands of keys add",
        shape=Shape(q_heads=1, q_len=8, kv_len=4096, head_dim=64),
        outputs=ALL,
        dtypes=(F32, F16),
        level="full",
    )
    return found


def _large() -> list[Case]:
    found: list[Case] = []
    for power in (2, 3, 4, 5, 6):
        found += make(
            f"precision.logits_of_1e{power}",
            "NUM-1 SOFT-1",
            "exp before the maximum is taken out",
            shape=Shape(q_len=17, kv_len=45),
            spec={"scale": 10.0**power / 3.0},
            outputs=ALL,
        )
    for name, mean in (("plus", 1000.0), ("minus", -1000.0)):
        found += make(
            f"precision.lse_near_{name}_1000",
            "NUM-2 SOFT-1",
            "rows far from 0, where exp(-lse) or exp(lse) alone overflows",
            shape=Shape(q_len=9, kv_len=40),
            spec={"bias": "float32"},
            recipe=_shifted(mean),
            outputs=ALL,
            dtypes=FOUR,
        )
    return found


def _reported() -> list[Case]:
    found = make(
        "precision.products_beyond_half",
        "NUM-1",
        "a raw product of 518400 that float16 does not hold",
        shape=Shape(q_heads=1, q_len=2, kv_len=3, head_dim=64, v_head_dim=1),
        recipe=_ninety,
        bound="hard",
        dtypes=(F16,),
        expect=lambda: {"out": np.full((1, 1, 2, 1), 3.0)},
        source=gh("pytorch/pytorch#119131"),
    )
    found += make(
        "precision.logits_beyond_half",
        "NUM-1",
        "a logit of 7e5 that becomes infinite where inputs are float16",
        shape=Shape(q_len=4, kv_len=20, head_dim=64),
        spec={"scale": 10.0},
        recipe=lambda draw: {"q": draw.q(100.0), "k": draw.k(30.0)},
        outputs=ALL,
        dtypes=FOUR,
        bound="hard",
    )
    found += make(
        "precision.large_and_close",
        "SOFT-1",
        "logits of 10000 and 9900",
        shape=Shape(q_heads=1, q_len=1, kv_len=3, head_dim=1),
        recipe=_close,
        outputs=ALL,
        bound="hard",
        expect=lambda: {"out": np.full((1, 1, 1, 1), 1.0), "lse": np.full((1, 1, 1), 1e4)},
        source=gh("stanford-crfm/mistral#67"),
    )
    found += make(
        "precision.all_far_below_zero",
        "NUM-2",
        "logits near -245000, below any sentinel in use",
        shape=Shape(q_heads=1, q_len=1, kv_len=2, head_dim=2, v_head_dim=1),
        spec={"scale": 1.0},
        recipe=_far_below,
        outputs=ALL,
        bound="hard",
        source=gh("flashinfer-ai/flashinfer#4267"),
    )
    return found


def _shifted(mean: float) -> Any:
    return lambda draw: {
        "bias": draw.array(mean + draw.rng.standard_normal((9, 40)), "float32"),
    }


def _ninety(draw: Draw) -> dict[str, Array]:
    return {
        "q": draw.array(np.full((1, 1, 2, 64), 90.0)),
        "k": draw.array(np.full((1, 1, 3, 64), 90.0)),
        "v": draw.array(np.array([1.0, 2.0, 6.0]).reshape(1, 1, 3, 1)),
    }


def _close(draw: Draw) -> dict[str, Array]:
    return {
        "q": draw.array(np.full((1, 1, 1, 1), 100.0)),
        "k": draw.array(np.array([100.0, 99.0, -100.0]).reshape(1, 1, 3, 1)),
        "v": draw.array(np.array([1.0, 2.0, 3.0]).reshape(1, 1, 3, 1)),
    }


def _far_below(draw: Draw) -> dict[str, Array]:
    return {
        "q": draw.array(np.full((1, 1, 1, 2), 350.0)),
        "k": draw.array(np.array([[-350.0, -350.0], [-350.0, -350.01]])[None, None]),
        "v": draw.array(np.array([1.0, 2.0]).reshape(1, 1, 2, 1)),
    }


def _sums() -> list[Case]:
    found = make(
        "precision.half_row_sum",
        "NUM-1",
        "a float16 row sum, which stops at 2048",
        shape=Shape(q_heads=1, q_len=1, kv_len=5000, head_dim=4, v_head_dim=1),
        recipe=_alternating,
        bound="hard",
        dtypes=(F16, F32),
        expect=lambda: {"out": np.full((1, 1, 1, 1), 0.5), "lse": np.full((1, 1, 1), np.log(5e3))},
        source=gh("ggml-org/llama.cpp!24389"),
    )
    found += make(
        "precision.cancelling_values",
        "NUM-1 NUM-6",
        "large values that cancel, summed in the dtype of the output",
        shape=Shape(q_heads=1, q_len=8, kv_len=600),
        recipe=_cancelling,
        dtypes=FOUR,
    )
    found += make(
        "precision.one_dominant_key",
        "SOFT-1 NUM-2",
        "a key 2000 above the rest, neither in the first tile nor in the last",
        shape=Shape(q_heads=1, q_len=1, kv_len=300, head_dim=1),
        recipe=_dominant,
        outputs=ALL,
        bound="hard",
        dtypes=FOUR,
        expect=lambda: {"out": np.full((1, 1, 1, 1), 150.0), "lse": np.zeros((1, 1, 1))},
        source=gh("Dao-AILab/flash-attention#1930"),
    )
    for order in ("rising", "falling"):
        found += make(
            f"precision.{order}_logits",
            "SOFT-1 NUM-2",
            "a rescaling that is wrong whenever the maximum moves, or never happens",
            shape=Shape(q_heads=1, q_len=3, kv_len=500),
            spec={"bias": "float32"},
            recipe=_ordered(order),
            outputs=ALL,
            dtypes=(F32, F64),
        )
    return found


def _alternating(draw: Draw) -> dict[str, Array]:
    v = (np.arange(5000) % 2).reshape(1, 1, 5000, 1)
    zero = np.zeros((1, 1, 5000, 4))
    return {"q": draw.array(zero[:, :, :1]), "k": draw.array(zero), "v": draw.array(v)}


def _cancelling(draw: Draw) -> dict[str, Array]:
    v = 1000.0 * (-1.0) ** np.arange(600)[:, None] + draw.rng.standard_normal((600, 8))
    return {"q": draw.q(0.1), "v": draw.array(v[None, None])}


def _dominant(draw: Draw) -> dict[str, Array]:
    index = np.arange(300.0).reshape(1, 1, 300, 1)
    return {
        "q": draw.array(np.ones((1, 1, 1, 1))),
        "k": draw.array(np.where(index == 150, 0.0, -2000.0)),
        "v": draw.array(np.where(index == 150, 150.0, index % 100)),
    }


def _ordered(order: str) -> Any:
    ramp = np.linspace(0.0, 400.0, 500)[None]
    return lambda draw: {
        "bias": draw.array(ramp if order == "rising" else ramp[:, ::-1], "float32"),
    }


def _equal() -> list[Case]:
    shape = Shape(q_heads=1, q_len=3, kv_len=33)
    every = [list(range(33))] * 3
    found = make(
        "precision.equal_logits",
        "SOFT-1",
        "weights that do not add up to one",
        shape=shape,
        recipe=lambda draw: draw.flat(),
        outputs=ALL,
        bound="hard",
        dtypes=FOUR,
        expect=lambda: {
            **mean_indices(every, shape),
            "entropy": np.full((1, 1, 3), np.log(33.0)),
            "sum_p2": np.full((1, 1, 3), 1.0 / 33.0),
            "max_logit": np.zeros((1, 1, 3)),
        },
    )
    found += make(
        "precision.equal_logits_of_minus_128",
        "MASK-3 SOFT-1",
        "columns that pad a tile with logits of 0, which would take all the weight",
        shape=shape,
        spec={"scale": 1.0},
        recipe=_minus_128,
        bound="hard",
        expect=lambda: {"out": mean_indices(every, shape)["out"]},
        source=gh("tenstorrent/tt-metal#54833"),
    )
    return found


def _minus_128(draw: Draw) -> dict[str, Array]:
    found = draw.flat()
    found["q"][...] = 2.0
    found["k"][...] = -8.0
    return found


def _small() -> list[Case]:
    found = make(
        "precision.subnormal_operands",
        "NUM-1 NUM-5",
        "subnormal halves that are flushed to zero on the way in",
        shape=Shape(q_heads=1, q_len=6, kv_len=9),
        spec={"scale": 2.0**20},
        recipe=lambda draw: {"q": draw.q(1e-6)},
        outputs=ALL,
        bound="hard",
        dtypes=(F16,),
    )
    found += make(
        "precision.subnormal_results",
        "NUM-5",
        "results below the normal range of the output that are flushed to zero",
        shape=Shape(q_heads=1, q_len=6, kv_len=9),
        recipe=lambda draw: {"v": draw.array(draw.rng.standard_normal((1, 1, 9, 8)) * 1e-6)},
        bound="hard",
        dtypes=(F16,),
    )
    found += make(
        "precision.tiny_weights_times_large_values",
        "SOFT-1",
        "weights of 1e-30 that are dropped although their values are 1e30",
        shape=Shape(q_heads=1, q_len=1, kv_len=40, head_dim=1),
        spec={"scale": 1.0},
        recipe=_tiny_times_large,
        bound="hard",
        dtypes=(F32, F64),
    )
    found += make(
        "precision.out_dtype",
        "NUM-5",
        "a result rounded twice, or to the dtype of q",
        shape=Shape(q_heads=1, q_len=21, kv_len=33),
        spec={"out_dtype": "float32"},
        dtypes=(F16, "bfloat16", F64),
    )
    found += make(
        "precision.out_dtype_narrow",
        "NUM-5",
        "a result that keeps the dtype of q",
        shape=Shape(q_heads=1, q_len=21, kv_len=33),
        spec={"out_dtype": "bfloat16"},
        dtypes=(F32, F16, F64),
    )
    found += make(
        "precision.out_dtype_overflows",
        "NUM-5",
        "a result beyond what float16 holds that is clamped instead of infinite",
        shape=Shape(q_heads=1, q_len=4, kv_len=5),
        spec={"out_dtype": "float16"},
        recipe=lambda draw: {"v": draw.array(draw.v(1.0) * 1e3 + np.arange(8) * 2e4)},
        bound="hard",
        dtypes=(F32,),
    )
    return found


def _tiny_times_large(draw: Draw) -> dict[str, Array]:
    k = np.full(40, -69.0)
    k[0] = 0.0
    v = np.full(40, 1e30)
    v[0] = 1.0
    return {
        "q": draw.array(np.ones((1, 1, 1, 1))),
        "k": draw.array(k.reshape(1, 1, 40, 1)),
        "v": draw.array(v.reshape(1, 1, 40, 1)),
    }
