"""Gradients of bias, sinks and tables, and through cap, scale and the user's expression."""

from __future__ import annotations

from typing import Any

import numpy as np

from sdpakit.conformance.cases.gradients_make import gradient
from sdpakit.conformance.cases.make import BF16, F16, F32, F64, FOUR
from sdpakit.conformance.inputs import Draw, with_strides
from sdpakit.conformance.model import Case, Shape
from sdpakit.expr.functions import (
    absolute,
    exp,
    floor,
    log,
    maximum,
    minimum,
    sqrt,
    tanh,
    to_float,
    where,
)
from sdpakit.expr.operands import Scalar, Table
from sdpakit.logits import Alibi
from sdpakit.masks import Causal, Dense

SHAPE = Shape(batch=2, q_heads=4, kv_heads=2, q_len=5, kv_len=21)
T1, T2 = Table("t", F32, 1), Table("t", F32, 2)


def cases() -> list[Case]:
    """Return the cases of this part."""
    return [
        *_bias(),
        *_bias_memory(),
        *_sinks(),
        *_cap(),
        *_scale(),
        *_tables(),
        *_table_forms(),
        *_functions(),
        *_alibi(),
    ]


def _bias() -> list[Case]:
    found: list[Case] = []
    for name, dims in (
        ("one", (1,)),
        ("keys", (21,)),
        ("rows", (5, 1)),
        ("heads", (4, 1, 1)),
        ("batch", (2, 1, 1, 1)),
        ("batch_keys", (2, 1, 1, 21)),
        ("pairs", (5, 21)),
        ("heads_pairs", (4, 5, 21)),
        ("everything", (2, 4, 5, 21)),
    ):
        found += gradient(
            f"of_a_bias_of_{name}",
            "GRAD-2 MOD-1",
            "a gradient of the bias that is not summed over broadcast axes, or over the wrong ones",
            "meta-pytorch/attention-gym#20" if name == "pairs" else "",
            shape=SHAPE,
            spec={"bias": F32},
            recipe=lambda draw, dims=dims: {"bias": draw.normal(*dims, dtype=F32)},
            dtypes=FOUR if name == "heads_pairs" else (F32, F64),
        )
    for dtype in (F16, BF16, F64):
        found += gradient(
            f"of_a_bias_of_{dtype}",
            "GRAD-2 GRAD-3 MOD-1",
            "dbias in the dtype of q, or added up in its own",
            shape=SHAPE,
            spec={"bias": dtype},
            recipe=lambda draw, dtype=dtype: {"bias": draw.normal(4, 1, 21, dtype=dtype)},
            dtypes=(F32, F16),
        )
    return found


def _bias_memory() -> list[Case]:
    found: list[Case] = []
    for name, view in (
        ("transposed", lambda draw: draw.normal(6, 5, dtype=F32).T),
        ("reversed", lambda draw: draw.normal(5, 6, dtype=F32)[::-1, ::-1]),
        ("stride_0", lambda draw: np.broadcast_to(draw.normal(1, 6, dtype=F32), (5, 6))),
        (
            "unaligned",
            lambda draw: with_strides(draw.normal(2, 5, 6, dtype=F32), order="unaligned"),
        ),
    ):
        found += gradient(
            f"of_a_bias_{name}",
            "GRAD-2 SHAPE-5",
            "dbias in the memory order of the bias, or summed where the caller broadcast",
            shape=Shape(q_len=5, kv_len=6),
            spec={"bias": F32},
            recipe=lambda draw, view=view: {"bias": view(draw)},
            dtypes=(F32,),
        )
    found += gradient(
        "of_a_bias_beside_a_mask",
        "GRAD-2 MASK-1",
        "dbias of masked pairs",
        "pytorch/pytorch#107084",
        shape=Shape(q_len=9, kv_len=12),
        spec={"bias": F32, "mask": Dense() & Causal("bottom_right"), "softcap": 4.0},
        recipe=lambda draw: {
            "bias": draw.normal(2, 9, 12, dtype=F32),
            "mask": draw.bools(9, 12, share=0.7),
        },
        dtypes=FOUR,
    )
    return found


def _sinks() -> list[Case]:
    found = gradient(
        "of_sinks",
        "GRAD-2 SINK-1",
        "a sink that takes no weight in the backward",
        "NVIDIA/TransformerEngine!3551",
        shape=Shape(q_len=3, kv_len=4, head_dim=4),
        spec={"mask": Causal("top_left"), "sinks": True},
        recipe=lambda draw: {"sinks": draw.array([1.0, -1.0], F32)},
        dtypes=FOUR,
    )
    for name, values, source in (
        ("of_each_query_head", (-2.0, 0.0, 2.0, 4.0), "NVIDIA/cudnn-frontend!421"),
        ("dominant", (200.0, 30.0, 100.0, 8.0), "Dao-AILab/flash-attention#1973"),
        ("minus_inf", (-np.inf, 1.0, -np.inf, 0.0), ""),
        ("far_below", (-1e30, -2000.0, -90.0, 0.0), ""),
        ("far_above", (1e30, 2000.0, 90.0, 0.0), ""),
    ):
        found += gradient(
            f"of_sinks_{name}",
            "GRAD-2 SINK-1 NUM-3",
            "exp(sink - lse) that overflows, dsinks of the kv head, or a sink's part left out",
            source,
            shape=Shape(batch=2, q_heads=4, kv_heads=2, q_len=7, kv_len=9),
            spec={"sinks": True},
            recipe=lambda draw, values=values: {"sinks": draw.array(values, F32)},
        )
    for dtype in (F16, BF16, F64):
        found += gradient(
            f"of_sinks_of_{dtype}",
            "GRAD-2 GRAD-3 SINK-1",
            "dsinks in the dtype of q, or added up in its own",
            "ISEEKYAN/Megatron-LM!205",
            shape=Shape(batch=2, q_len=40, kv_len=9),
            spec={"sinks": True},
            recipe=lambda draw, dtype=dtype: {"sinks": draw.array([0.3, 1.7], dtype)},
            dtypes=(F32, F16),
        )
    found += gradient(
        "of_sinks_with_everything",
        "GRAD-1 GRAD-2 SINK-1 CAP-1 MOD-1",
        "a sink that is capped, scaled or masked in the backward",
        shape=Shape(q_heads=4, kv_heads=2, q_len=8, kv_len=9),
        spec={
            "sinks": True,
            "softcap": 2.0,
            "bias": F32,
            "scale": 0.7,
            "mask": Causal("bottom_right"),
        },
        recipe=lambda draw: {
            "sinks": draw.normal(4, dtype=F32, spread=2.0),
            "bias": draw.normal(4, 1, 9, dtype=F32),
        },
    )
    return found


def _cap() -> list[Case]:
    found = gradient(
        "of_a_cap",
        "GRAD-1 CAP-1",
        "the factor 1 - tanh^2 that is left out",
        "openxla/tokamax!1121",
        shape=Shape(q_len=5, kv_len=6),
        spec={"softcap": 3.0, "mask": Causal("top_left")},
        recipe=lambda draw: {"q": draw.q(2.0), "k": draw.k(2.0)},
        dtypes=FOUR,
    )
    for name, cap, spread, bound in (
        ("saturated", 2.0, 30.0, "hard"),
        ("far_saturated", 30.0, 1e4, "hard"),
        ("large", 1e4, 3.0, "sharp"),
        ("of_typical_models", 50.0, 20.0, "sharp"),
    ):
        found += gradient(
            f"of_a_cap_{name}",
            "GRAD-1 CAP-1",
            "1 - tanh^2 of the logit and not of the logit over the cap, or of a narrow tanh",
            "Dao-AILab/flash-attention!2544" if name == "of_typical_models" else "",
            shape=Shape(q_len=9, kv_len=17),
            spec={"softcap": cap},
            recipe=lambda draw, spread=spread: {"q": draw.q(spread)},
            bound=bound,
        )
    found += gradient(
        "of_a_cap_then_bias",
        "GRAD-1 GRAD-2 CAP-1 MOD-1",
        "the slope of the cap taken at the logit with its bias",
        shape=Shape(q_len=6, kv_len=8),
        spec={"softcap": 1.5, "bias": F32},
        recipe=lambda draw: {"bias": draw.normal(6, 8, dtype=F32, spread=3.0), "q": draw.q(2.0)},
    )
    return found


def _scale() -> list[Case]:
    found = gradient(
        "of_scale_zero",
        "GRAD-1 SCALE-2",
        "a scale of 0 taken for none: dq and dk are zero",
        spec={"scale": 0.0},
        bound="hard",
        expect=lambda: {"dq": np.zeros((1, 2, 5, 8)), "dk": np.zeros((1, 2, 7, 8))},
    )
    for name, scale in (("negative", -0.6), ("two", 2.0), ("small", 1e-4)):
        found += gradient(
            f"of_scale_{name}",
            "GRAD-1 SCALE-2",
            "the default scale in the backward, its square, or none",
            spec={"scale": scale},
            dtypes=FOUR if name == "negative" else (F32, F64),
        )
    found += gradient(
        "of_scale_default",
        "GRAD-1 SCALE-1",
        "a scale of the width of v, or of a padded width",
        shape=Shape(q_len=6, kv_len=8, head_dim=5, v_head_dim=20),
    )
    return found


def _tables() -> list[Case]:
    found = gradient(
        "of_an_expression",
        "GRAD-1 GRAD-2 EXPR-1",
        "the slope of the user's expression, and the gradient of its table",
        shape=Shape(q_len=4, kv_len=6, head_dim=4),
        spec={"logits": lambda x, i: x * x * 0.5 + T2[i.h, i.k // 2] * x, "softcap": 2.0},
        recipe=lambda draw: {"params": {"t": draw.normal(2, 3, dtype=F32)}},
        dtypes=FOUR,
    )
    found += gradient(
        "of_relative_positions",
        "GRAD-2 EXPR-1",
        "repeated indices of a table whose gradients overwrite each other",
        "pytorch/pytorch#145208",
        shape=SHAPE,
        spec={"logits": lambda x, i: x + T2[i.h, minimum(maximum(i.k - i.q + 8, 0), 16)]},
        recipe=lambda draw: {"params": {"t": draw.normal(4, 17, dtype=F32)}},
        dtypes=FOUR,
    )
    found += gradient(
        "of_a_learned_number",
        "GRAD-2 EXPR-1",
        "a table of one element, which every pair reads",
        "meta-pytorch/attention-gym#171",
        shape=SHAPE,
        spec={"logits": lambda x, i: x * T1[i.k * 0]},
        recipe=lambda draw: {"params": {"t": draw.array([1.3], F32)}},
    )
    found += gradient(
        "of_a_table_of_tables",
        "GRAD-2 EXPR-1",
        "an index that comes from a table, and a gradient of that index",
        "pytorch/pytorch!137452",
        shape=SHAPE,
        spec={"logits": lambda x, i: x + T2[i.h, Table("kind", "int32", 2)[i.b, i.k]]},
        recipe=lambda draw: {
            "params": {"t": draw.normal(4, 5, dtype=F32), "kind": draw.ints(0, 5, 2, 21)}
        },
    )
    found += gradient(
        "of_a_table_read_twice",
        "GRAD-2 EXPR-1",
        "the gradient of one of two loads from a table",
        shape=SHAPE,
        spec={"logits": lambda x, i: x * T1[i.h] + T1[3 - i.h]},
        recipe=lambda draw: {"params": {"t": draw.normal(4, dtype=F32)}},
    )
    return found


def _table_forms() -> list[Case]:
    found = gradient(
        "of_a_table_axis_of_size_1",
        "GRAD-2 EXPR-1",
        "an axis of size 1 that is not added up",
        shape=SHAPE,
        spec={"logits": lambda x, i: x + Table("t", F32, 3)[i.b, i.h, i.k]},
        recipe=lambda draw: {"params": {"t": draw.normal(2, 1, 21, dtype=F32)}},
    )
    found += gradient(
        "of_a_table_strided",
        "GRAD-2 GRAD-3 SHAPE-5",
        "a gradient in the memory order of its table",
        shape=SHAPE,
        spec={"logits": lambda x, i: x + T2[i.q, i.k]},
        recipe=lambda draw: {"params": {"t": draw.normal(21, 10, dtype=F32).T[::-2]}},
    )
    for dtype in (F16, BF16, F64):
        found += gradient(
            f"of_a_table_of_{dtype}",
            "GRAD-2 GRAD-3 EXPR-1",
            "a gradient that is added up in the dtype of its table",
            shape=SHAPE,
            spec={"logits": lambda x, i, dtype=dtype: x + Table("t", dtype, 1)[i.k // 4]},
            recipe=lambda draw, dtype=dtype: {"params": {"t": draw.normal(6, dtype=dtype)}},
            dtypes=(F32, F16),
        )
    found += gradient(
        "of_a_table_in_a_condition",
        "GRAD-2 EXPR-1",
        "a table that no gradient reaches: zeros, not nothing",
        shape=SHAPE,
        spec={
            "logits": lambda x, i: where(T1[i.k] > 0.0, x, x * 0.5) + floor(Table("f", F32, 1)[i.k])
        },
        recipe=lambda draw: {
            "params": {"t": draw.normal(21, dtype=F32), "f": draw.normal(21, dtype=F32)}
        },
    )
    found += gradient(
        "of_a_table_beside_masked_pairs",
        "GRAD-2 MASK-3",
        "elements that only masked pairs read, or NaN in them",
        shape=SHAPE,
        spec={"logits": lambda x, i: x + T1[i.k], "kv_lens": True},
        recipe=lambda draw: {
            "params": {"t": draw.array(np.where(np.arange(21) < 9, 0.3, np.nan), F32)},
            "kv_lens": np.array([9, 4]),
        },
    )
    return found


def _functions() -> list[Case]:
    found: list[Case] = []
    for name, function, catches in (
        ("exp", lambda x, i: exp(minimum(x, 2.0)) - to_float(i.k) * 0.01, "exp'"),
        ("log", lambda x, i: log(1.0 + absolute(x)) * to_float(1 + i.h), "log2' for log'"),
        ("tanh", lambda x, i: 3.0 * tanh(x * 0.5) + to_float(i.q - i.k) * 0.02, "1 - tanh^2"),
        ("sqrt", lambda x, i: sqrt(1.0 + x * x + to_float(i.k)), "the slope of a root"),
        ("division", lambda x, i: x / (1.5 + to_float(i.k) + x * x), "the slope of a quotient"),
        ("relu", lambda x, _i: maximum(x, 0.0) + minimum(x, -1.0) * 0.5, "the other side"),
        ("where", lambda x, i: where(i.k % 2 == 0, x * 3.0, x), "a slope for all pairs"),
        ("number", lambda x, i: x * Scalar("factor") + to_float(i.k), "a factor left out"),
        ("constant", lambda _x, i: where(i.k % 2 == 0, 1.0, -1.0), "dq of what q does not reach"),
    ):
        found += gradient(
            f"through_{name}",
            "GRAD-1 EXPR-1",
            f"{catches} in the gradient of a user's expression",
            shape=SHAPE,
            spec={"logits": function},
            recipe=lambda _draw, name=name: (
                {"params": {"factor": -1.25}} if name == "number" else {}
            ),
        )
    found += gradient(
        "through_the_side_not_taken",
        "GRAD-1 EXPR-1 NUM-4",
        "a slope of NaN times a gradient of zero: the log of a negative number, not taken",
        shape=SHAPE,
        spec={"logits": lambda x, _i: where(x > 0.5, log(x), x)},
        bound="hard",
    )
    return found


def _slopes(draw: Draw) -> dict[str, Any]:
    return {"params": {"slopes": draw.array(2.0 ** -np.arange(1, 5), F32)}}


def _alibi() -> list[Case]:
    found = gradient(
        "of_alibi",
        "GRAD-1 GRAD-2 EXPR-1",
        "a logit change of slope 1, and the gradient of its slopes",
        shape=Shape(q_heads=4, kv_heads=2, q_len=4, kv_len=6, head_dim=4),
        spec={"logits": Alibi("slopes", "bottom_right", F32)},
        recipe=_slopes,
        dtypes=FOUR,
    )
    found += gradient(
        "of_alibi_with_offsets",
        "GRAD-2 EXPR-1 MASK-2",
        "a gradient of slopes that takes the row for its position",
        shape=SHAPE,
        spec={"logits": Alibi("slopes", "offset", F32), "mask": Causal("offset")},
        recipe=lambda draw: {**_slopes(draw), "q_offset": np.array([13, 2])},
    )
    return found
