"""Gradients, judged on the reference: no backend offers them yet."""

from __future__ import annotations

from typing import Any

import numpy as np

from sdpakit.conformance.cases.make import F16, F32, F64, gh, make
from sdpakit.conformance.inputs import Array, Draw, guarded
from sdpakit.conformance.model import Case, Shape
from sdpakit.expr.operands import Table
from sdpakit.logits import Alibi
from sdpakit.masks import Causal, Dense, Window


def cases() -> list[Case]:
    """Return the cases of this family."""
    return [*_plain(), *_of_dout(), *_masked(), *_operands(), *_numerics()]


def _gradient(name: str, rules: str, catches: str, source: str = "", **fields: Any) -> list[Case]:
    fields.setdefault("dtypes", (F64,))
    address = gh(source) if source else ""
    return make(f"gradients.{name}", rules, catches, gradients=True, source=address, **fields)


def _plain() -> list[Case]:
    return [
        *_gradient(
            "not_causal",
            "GRAD-1",
            "a backward that is always causal",
            "triton-lang/triton#4541",
            shape=Shape(q_len=6, kv_len=6),
        ),
        *_gradient(
            "of_a_group",
            "GRAD-1 SHAPE-2",
            "dk and dv of the last head of a group, not of all",
            "marin-community/levanter!449",
            shape=Shape(batch=2, q_heads=4, kv_heads=2, q_len=3, kv_len=5, head_dim=4),
        ),
        *_gradient(
            "of_wide_values",
            "GRAD-1 SHAPE-3",
            "channels of v beyond D that are left out of dq",
            "XunhaoLai/native-sparse-attention-triton#27",
            shape=Shape(q_len=3, kv_len=5, head_dim=3, v_head_dim=7),
        ),
        *_gradient(
            "of_narrow_values",
            "GRAD-1 SHAPE-3",
            "a width of v of 17 beside 24",
            "Dao-AILab/flash-attention#2552",
            shape=Shape(q_len=4, kv_len=5, head_dim=24, v_head_dim=17),
        ),
        *_gradient(
            "of_small_operands",
            "GRAD-1",
            "a last tile of one key, and gradients of 1e-3",
            "pytorch/pytorch#119320",
            shape=Shape(q_heads=1, q_len=33, kv_len=65, head_dim=4),
            recipe=lambda draw: {"q": draw.q(0.1), "k": draw.k(0.1), "v": draw.v()},
        ),
        *_gradient(
            "of_a_cap",
            "GRAD-1 CAP-1",
            "the factor 1 - tanh^2 that is left out",
            "openxla/tokamax!1121",
            shape=Shape(q_len=5, kv_len=6),
            spec={"softcap": 3.0, "mask": Causal("top_left")},
            recipe=lambda draw: {"q": draw.q(2.0), "k": draw.k(2.0)},
        ),
    ]


def _of_dout() -> list[Case]:
    return [
        *_gradient(
            "dout_in_another_layout",
            "GRAD-3",
            "a gradient read with the strides of out",
            "ROCm/aotriton#236",
            shape=Shape(batch=2, q_heads=3, q_len=4, kv_len=5),
            recipe=_dout_bshd,
        ),
        *_gradient(
            "dout_of_stride_0",
            "GRAD-3",
            "the gradient of a sum, all strides 0",
            "pytorch/pytorch#138529",
            shape=Shape(q_len=3, kv_len=4, head_dim=4),
            recipe=lambda draw: {"dout": np.broadcast_to(draw.array(1.0), (1, 2, 3, 4))},
        ),
        *_gradient(
            "layout_bshd",
            "GRAD-1 SHAPE-1",
            "gradients in another layout than their operands",
            shape=Shape(batch=2, q_heads=3, q_len=4, kv_len=5),
            spec={"layout": "bshd"},
        ),
    ]


def _dout_bshd(draw: Draw) -> dict[str, Array]:
    return {"dout": np.ascontiguousarray(draw.dout().transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)}


def _masked() -> list[Case]:
    return [
        *_gradient(
            "of_an_empty_row",
            "GRAD-1 EMPTY-1",
            "an empty row that makes dk and dv NaN",
            "pytorch/pytorch!196170",
            shape=Shape(q_len=4, kv_len=4, head_dim=4),
            spec={"mask": Causal("top_left") & Dense()},
            recipe=lambda _draw: {
                "mask": np.array([1, 1, 0, 0], bool) & np.array([[1], [1], [1], [0]], bool)
            },
        ),
        *_gradient(
            "of_poisoned_masked_keys",
            "GRAD-1 MASK-3",
            "NaN of masked keys in dq, or anything but 0 in their dk and dv",
            "tile-ai/tilelang!2461",
            shape=Shape(q_len=3, kv_len=5, head_dim=4),
            spec={"mask": Dense()},
            recipe=_poisoned,
        ),
        *_gradient(
            "bottom_right",
            "GRAD-1 MASK-2",
            "a backward aligned to the other corner",
            "Dao-AILab/flash-attention#20",
            shape=Shape(q_len=3, kv_len=8, head_dim=4),
            spec={"mask": Causal("bottom_right")},
        ),
        *_gradient(
            "of_a_window_with_lengths",
            "GRAD-1 MASK-2 MASK-4",
            "keys past the length that get a gradient",
            shape=Shape(batch=2, q_len=6, kv_len=7, head_dim=4),
            spec={"mask": Window(2, 1, "bottom_right"), "kv_lens": True, "q_lens": True},
            recipe=lambda _draw: {"kv_lens": np.array([7, 3]), "q_lens": np.array([5, 6])},
        ),
        *_gradient(
            "of_keys_without_queries",
            "GRAD-1",
            "dk and dv of keys that no row sees",
            "Dao-AILab/flash-attention#2562",
            shape=Shape(q_heads=2, kv_heads=1, q_len=3, kv_len=7, head_dim=4),
            spec={"mask": Causal("top_left")},
        ),
    ]


def _poisoned(draw: Draw) -> dict[str, Array]:
    k, v = draw.k(), draw.v()
    k[:, :, 3:] = np.nan
    v[:, :, 3:] = np.nan
    return {"k": k, "v": v, "mask": guarded(np.array([1, 1, 1, 0, 0], bool))}


def _operands() -> list[Case]:
    slopes = {"params": {"slopes": np.array([0.5, 0.25], np.float64)}}
    table = Table("t", "float64", 2)
    return [
        *_gradient(
            "of_sinks",
            "GRAD-2 SINK-1",
            "a sink that takes no weight in the backward",
            "NVIDIA/TransformerEngine!3551",
            shape=Shape(q_len=3, kv_len=4, head_dim=4),
            spec={"mask": Causal("top_left"), "sinks": True},
            recipe=lambda draw: {"sinks": draw.array([1.0, -1.0], F64)},
        ),
        *(
            case
            for name, dims in (("pairs", (2, 5, 7)), ("keys", (7,)), ("rows", (2, 1, 5, 1)))
            for case in _gradient(
                f"of_a_bias_of_{name}",
                "GRAD-2 MOD-1",
                "a gradient of the bias that is not summed over broadcast axes",
                shape=Shape(batch=2),
                spec={"bias": F64},
                recipe=lambda draw, dims=dims: {"bias": draw.normal(*dims, dtype=F64)},
            )
        ),
        *_gradient(
            "of_an_expression",
            "GRAD-1 GRAD-2 EXPR-1",
            "the slope of the user's expression, and the gradient of its table",
            shape=Shape(q_len=4, kv_len=6, head_dim=4),
            spec={
                "logits": lambda x, i: x * x * 0.5 + table[i.h, i.k // 2] * x,
                "softcap": 2.0,
            },
            recipe=lambda draw: {"params": {"t": draw.normal(2, 3, dtype=F64)}},
        ),
        *_gradient(
            "of_alibi",
            "GRAD-1",
            "a logit change of slope 1",
            shape=Shape(q_len=4, kv_len=6, head_dim=4),
            spec={"logits": Alibi("slopes", "bottom_right", F64)},
            recipe=lambda _draw: slopes,
        ),
    ]


def _numerics() -> list[Case]:
    return [
        *_gradient(
            "of_low_lse",
            "NUM-3 GRAD-1",
            "exp(0 - lse) of a padded column, with lse below -89",
            "pytorch/pytorch#196678",
            shape=Shape(q_heads=1, q_len=17, kv_len=17),
            recipe=lambda draw: {"q": draw.q(0.1, 3.0), "k": draw.k(0.1, -12.0)},
            dtypes=(F64, F32),
        ),
        *(
            case
            for name, mean in (("minus", -1000.0), ("plus", 1000.0))
            for case in _gradient(
                f"of_lse_near_{name}_1000",
                "NUM-3 GRAD-1",
                "exp(-lse) alone, which overflows or underflows",
                shape=Shape(q_heads=1, q_len=5, kv_len=9),
                spec={"bias": F64},
                recipe=lambda draw, mean=mean: {
                    "bias": draw.array(mean + draw.rng.standard_normal((5, 9)), F64)
                },
            )
        ),
        *_gradient(
            "of_a_saturated_row",
            "GRAD-1",
            "a one-hot row: all of the gradient goes to one value, none to q and k",
            shape=Shape(q_heads=1, q_len=1, kv_len=2, head_dim=2),
            recipe=_one_hot,
            dtypes=(F32, F16),
            bound="hard",
            expect=lambda: {
                "out": np.array([1.0, 2.0]).reshape(1, 1, 1, 2),
                "dq": np.zeros((1, 1, 1, 2)),
                "dk": np.zeros((1, 1, 2, 2)),
                "dv": np.array([[1.0, 1.0], [0.0, 0.0]])[None, None],
            },
        ),
    ]


def _one_hot(draw: Draw) -> dict[str, Array]:
    return {
        "q": draw.array(np.array([100.0, 0.0]).reshape(1, 1, 1, 2)),
        "k": draw.array(np.array([[100.0, 0.0], [0.0, 100.0]])[None, None]),
        "v": draw.array(np.array([[1.0, 2.0], [3.0, 4.0]])[None, None]),
        "dout": draw.array(np.ones((1, 1, 1, 2))),
    }
