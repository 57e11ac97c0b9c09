"""Gradients under masks, lengths and empty rows; poison where nothing is attended."""

from __future__ import annotations

from typing import Any

import numpy as np

from sdpakit.conformance.cases.gradients_make import gradient
from sdpakit.conformance.cases.make import F32, F64, FOUR
from sdpakit.conformance.inputs import Array, Draw, guarded
from sdpakit.conformance.model import Case, Shape
from sdpakit.expr.functions import sqrt, to_float
from sdpakit.masks import Causal, Dense, Dilated, Document, Predicate, Prefix, Window

TOP, BOTTOM, OFFSET = Causal("top_left"), Causal("bottom_right"), Causal("offset")


def cases() -> list[Case]:
    """Return the cases of this part."""
    return [*_causal(), *_windows(), *_others(), *_lengths(), *_empty(), *_poison(), *_outside()]


def _causal() -> list[Case]:
    found = gradient(
        "bottom_right",
        "GRAD-1 MASK-2",
        "a backward aligned to the other corner",
        "Dao-AILab/flash-attention#20",
        shape=Shape(q_len=3, kv_len=8, head_dim=4),
        spec={"mask": BOTTOM},
        dtypes=FOUR,
    )
    for name, mask, q_len, kv_len in (
        ("top_left_square", TOP, 19, 19),
        ("top_left_more_keys", TOP, 7, 19),
        ("top_left_more_rows", TOP, 19, 7),
        ("bottom_right_more_rows", BOTTOM, 19, 7),
        ("bottom_right_one_key_more", BOTTOM, 18, 19),
    ):
        found += gradient(
            f"causal_{name}",
            "GRAD-1 MASK-2",
            "a first row tile of a key tile that is one off, or of the other corner",
            shape=Shape(q_len=q_len, kv_len=kv_len),
            spec={"mask": mask},
        )
    found += gradient(
        "causal_offset_per_entry",
        "GRAD-1 MASK-2",
        "an offset of the first batch entry for all, in the backward alone",
        shape=Shape(batch=3, q_len=4, kv_len=9),
        spec={"mask": OFFSET},
        recipe=lambda _draw: {"q_offset": np.array([0, 4, -1])},
    )
    found += gradient(
        "of_keys_without_queries",
        "GRAD-1",
        "dk and dv of keys that no row sees",
        "Dao-AILab/flash-attention#2562",
        shape=Shape(q_heads=2, kv_heads=1, q_len=3, kv_len=7, head_dim=4),
        spec={"mask": TOP},
    )
    return found


def _windows() -> list[Case]:
    found: list[Case] = []
    for name, mask in (
        ("left", Window(3, 0, "top_left")),
        ("right", Window(0, 3, "top_left")),
        ("both", Window(5, 2, "bottom_right")),
        ("open", Window(None, 2, "bottom_right")),
        ("and_causal", Window(4, None, "bottom_right") & BOTTOM),
    ):
        found += gradient(
            f"window_{name}",
            "GRAD-1 MASK-2",
            "a window that the forward has and the backward has not",
            "meta-pytorch/MSLK!263" if name == "left" else "ROCm/aiter!3742",
            shape=Shape(q_len=21, kv_len=26),
            spec={"mask": mask},
        )
    return found


def _others() -> list[Case]:
    found: list[Case] = []
    for name, mask, recipe in (
        ("documents", Document("ids"), _ids(19)),
        ("documents_and_causal", Document("ids") & TOP, _ids(19)),
        ("prefix_or_causal", Prefix(5) | TOP, None),
        ("not_of_a_window", ~Window(2, 2, "top_left"), None),
        ("dilated", Dilated(3, "top_left") & TOP, None),
        ("predicate", Predicate(lambda i: (i.q + i.k + i.h) % 3 != 0), None),
        ("dense", Dense(), lambda draw: {"mask": draw.bools(2, 2, 19, 19)}),
        ("dense_of_keys", Dense(), lambda draw: {"mask": draw.bools(2, 1, 1, 19)}),
        ("dense_and_causal", Dense() & TOP, lambda draw: {"mask": draw.bools(19, 19, share=0.8)}),
    ):
        found += gradient(
            f"mask_{name}",
            "GRAD-1 MASK-1 MASK-7",
            "a mask that the backward reads transposed, or leaves out",
            shape=Shape(batch=2, q_len=19, kv_len=19),
            spec={"mask": mask},
            recipe=recipe,
        )
    return found


def _ids(length: int) -> Any:
    return lambda draw: {"params": {"ids": draw.ints(0, 4, 2, length)}}


def _lengths() -> list[Case]:
    found = gradient(
        "of_a_window_with_lengths",
        "GRAD-1 MASK-2 MASK-4",
        "keys past the length that get a gradient",
        shape=Shape(batch=2, q_len=6, kv_len=7, head_dim=4),
        spec={"mask": Window(2, 1, "bottom_right"), "kv_lens": True, "q_lens": True},
        recipe=lambda _draw: {"kv_lens": np.array([7, 3]), "q_lens": np.array([5, 6])},
    )
    found += gradient(
        "of_kv_lens",
        "GRAD-1 MASK-4",
        "a batch entry without keys, whose rows get a gradient",
        "pytorch/pytorch#81077",
        shape=Shape(batch=3, q_len=5, kv_len=9),
        spec={"kv_lens": True},
        recipe=lambda _draw: {"kv_lens": np.array([9, 0, 4], np.int32)},
        dtypes=FOUR,
    )
    found += gradient(
        "of_q_lens",
        "GRAD-1 MASK-4 EMPTY-1",
        "rows past the length that add to dk and dv",
        shape=Shape(batch=3, q_len=9, kv_len=5),
        spec={"q_lens": True},
        recipe=lambda _draw: {"q_lens": np.array([4, 0, 9], np.int32)},
    )
    found += gradient(
        "of_both_lens_bottom_right",
        "GRAD-1 MASK-2 MASK-4",
        "the corner of the padded lengths",
        shape=Shape(batch=3, q_len=8, kv_len=9),
        spec={"mask": BOTTOM, "q_lens": True, "kv_lens": True},
        recipe=lambda _draw: {"q_lens": np.array([8, 3, 5]), "kv_lens": np.array([5, 9, 5])},
    )
    return found


def _empty() -> list[Case]:
    found = gradient(
        "of_an_empty_row",
        "GRAD-1 EMPTY-1",
        "an empty row that makes dk and dv NaN",
        "pytorch/pytorch!196170",
        shape=Shape(q_len=4, kv_len=4, head_dim=4),
        spec={"mask": TOP & Dense()},
        recipe=lambda _draw: {
            "mask": np.array([1, 1, 0, 0], bool) & np.array([[1], [1], [1], [0]], bool)
        },
        dtypes=FOUR,
    )
    found += gradient(
        "of_empty_rows_by_bias",
        "GRAD-1 GRAD-2 EMPTY-1 MASK-6",
        "a row of -inf: 0 times NaN in the backward of a softmax",
        "pytorch/pytorch#41508",
        shape=Shape(q_len=6, kv_len=5),
        spec={"bias": F32},
        recipe=_infinite_bias,
        dtypes=FOUR,
    )
    found += gradient(
        "of_many_empty_rows",
        "GRAD-1 EMPTY-1",
        "whole tiles of rows without a key",
        "Xilinx/brevitas!1591",
        shape=Shape(q_len=70, kv_len=20),
        spec={"mask": Dense()},
        recipe=lambda _draw: {"mask": guarded(np.arange(70)[:, None] % 35 > np.arange(20) + 12)},
    )
    found += gradient(
        "of_nothing_but_empty_rows",
        "GRAD-1 EMPTY-1",
        "a call in which no pair takes part",
        shape=Shape(q_len=3, kv_len=4),
        spec={"mask": Dense(), "sinks": True, "bias": F32},
        recipe=lambda draw: {
            "mask": np.zeros((3, 4), bool),
            "sinks": draw.array([-np.inf, 1.0], F32),
            "bias": draw.normal(4, dtype=F32),
        },
        expect=lambda: {
            "dq": np.zeros((1, 2, 3, 8)),
            "dk": np.zeros((1, 2, 4, 8)),
            "dv": np.zeros((1, 2, 4, 8)),
            "dbias": np.zeros(4),
            "dsinks": np.zeros(2),
        },
    )
    found += gradient(
        "of_rows_that_are_nan",
        "GRAD-1 EMPTY-1",
        'empty_row="nan" that reaches a gradient',
        shape=Shape(q_len=6, kv_len=4),
        spec={"mask": BOTTOM, "empty_row": "nan"},
        dtypes=FOUR,
    )
    found += gradient(
        "of_empty_rows_with_a_sink",
        "GRAD-1 GRAD-2 EMPTY-1 SINK-1",
        "an empty row that adds to dsinks",
        shape=Shape(q_len=6, kv_len=4),
        spec={"mask": BOTTOM, "sinks": True},
        recipe=lambda draw: {"sinks": draw.array([0.5, -300.0], F32)},
    )
    return found


def _infinite_bias(draw: Draw) -> dict[str, Array]:
    bias = draw.rng.standard_normal((6, 5))
    bias[2, :] = -np.inf
    bias[4, 1:] = -np.inf
    return {"bias": draw.array(bias, F32)}


def _poison() -> list[Case]:
    found = gradient(
        "of_poisoned_masked_keys",
        "GRAD-1 MASK-3",
        "NaN of masked keys in dq, or anything but 0 in their dk and dv",
        "tile-ai/tilelang!2461",
        shape=Shape(q_len=3, kv_len=5, head_dim=4),
        spec={"mask": Dense()},
        recipe=_poisoned(np.nan),
        dtypes=FOUR,
    )
    for name, value in (("infinite", np.inf), ("huge", 1e30)):
        found += gradient(
            f"of_{name}_masked_keys",
            "GRAD-1 MASK-3",
            "a masked key that is multiplied by zero",
            shape=Shape(q_len=3, kv_len=5, head_dim=4),
            spec={"mask": Dense()},
            recipe=_poisoned(value),
        )
    for name, value in (("nan", np.nan), ("infinite", np.inf)):
        found += gradient(
            f"of_{name}_past_lengths",
            "GRAD-1 MASK-3 MASK-4 EMPTY-1",
            "memory past the lengths, dout of empty rows included, that reaches dk and dv",
            shape=Shape(batch=3, q_heads=4, kv_heads=2, q_len=8, kv_len=24),
            spec={"q_lens": True, "kv_lens": True, "mask": Window(30, 30, "top_left")},
            recipe=_poisoned_tail(value),
            dtypes=FOUR if name == "nan" else (F32,),
        )
    found += gradient(
        "of_poison_in_empty_rows",
        "GRAD-1 MASK-3 EMPTY-1",
        "NaN in q and dout of a row that attends to nothing",
        shape=Shape(q_len=7, kv_len=4),
        spec={"mask": BOTTOM},
        recipe=_poisoned_rows,
        dtypes=FOUR,
    )
    return found


def _poisoned(value: float) -> Any:
    def recipe(draw: Draw) -> dict[str, Array]:
        k, v = draw.k(), draw.v()
        k[:, :, 3:] = value
        v[:, :, 3:] = value
        return {"k": k, "v": v, "mask": guarded(np.array([1, 1, 1, 0, 0], bool))}

    return recipe


def _poisoned_tail(value: float) -> Any:
    def recipe(draw: Draw) -> dict[str, Array]:
        q, k, v, dout = draw.q(), draw.k(), draw.v(), draw.dout()
        for b, (rows, keys) in enumerate(zip((5, 2, 0), (13, 24, 0), strict=True)):
            for array in (q, dout):
                array[b, :, rows:] = value
            for array in (k, v):
                array[b, :, keys:] = value
        lens = {"q_lens": np.array([5, 2, 0]), "kv_lens": np.array([13, 24, 0])}
        return {"q": q, "k": k, "v": v, "dout": dout, **lens}

    return recipe


def _poisoned_rows(draw: Draw) -> dict[str, Array]:
    q, dout = draw.q(), draw.dout()
    q[:, :, :3] = np.nan
    dout[:, :, :3] = np.nan
    return {"q": q, "dout": dout}


def _outside() -> list[Case]:
    """Poison in what changes the logits of masked pairs."""
    found = gradient(
        "of_a_masked_bias",
        "GRAD-2 MASK-3",
        "a bias of NaN at masked pairs, whose gradient is zero",
        shape=Shape(q_len=9, kv_len=9),
        spec={"mask": TOP, "bias": F32, "softcap": 3.0},
        recipe=lambda draw: {"bias": draw.array(np.where(np.tri(9, dtype=bool), 0.5, np.nan), F32)},
        dtypes=FOUR,
    )
    found += gradient(
        "of_an_expression_nan_at_masked_pairs",
        "GRAD-1 MASK-3 EXPR-1",
        "a slope that is NaN where the mask hides the pair",
        shape=Shape(q_len=9, kv_len=9),
        spec={
            "logits": lambda x, i: x * (1.0 + sqrt(to_float(i.q - i.k))) / to_float(i.q + 1),
            "mask": TOP,
        },
        dtypes=(F32, F64),
    )
    return found
