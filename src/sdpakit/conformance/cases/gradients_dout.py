"""The gradient that comes in, and memory of all operands: strides, layouts, single elements."""

from __future__ import annotations

from typing import Any

import numpy as np

from sdpakit.conformance.cases.gradients_make import gradient
from sdpakit.conformance.cases.make import BF16, F16, F32, F64, FOUR
from sdpakit.conformance.cases.strides import ORDERS
from sdpakit.conformance.inputs import Array, Draw, guarded, repeated, with_strides
from sdpakit.conformance.model import Case, Shape
from sdpakit.masks import Causal, Dense

SHAPE = Shape(batch=2, q_heads=4, kv_heads=2, q_len=7, kv_len=11)


def cases() -> list[Case]:
    """Return the cases of this part."""
    return [*_strides(), *_layout(), *_values(), *_sizes()]


def _strides() -> list[Case]:
    found = gradient(
        "dout_in_another_layout",
        "GRAD-3",
        "a gradient read with the strides of out",
        "ROCm/aotriton#236",
        shape=Shape(batch=2, q_heads=3, q_len=4, kv_len=5),
        recipe=lambda draw: {"dout": with_strides(draw.dout(), order="bshd")},
        dtypes=FOUR,
    )
    found += gradient(
        "dout_of_stride_0",
        "GRAD-3",
        "the gradient of a sum, all strides 0",
        "pytorch/pytorch#138529",
        shape=Shape(q_len=3, kv_len=4, head_dim=4),
        recipe=lambda draw: {"dout": np.broadcast_to(draw.array(1.0), (1, 2, 3, 4))},
        bound="hard",
    )
    for order in ORDERS:
        if order != "bshd":
            found += gradient(
                f"dout_{order}",
                "GRAD-3 SHAPE-5",
                "strides of dout that are ignored, or taken from another operand",
                shape=SHAPE,
                recipe=_dout(order),
                dtypes=(F32, F16),
            )
        found += gradient(
            f"operands_{order}",
            "GRAD-1 SHAPE-5",
            "strides of q, k, v that the backward ignores, or gives its gradients",
            shape=SHAPE,
            recipe=_all(order),
            dtypes=(F32, BF16),
        )
    found += gradient(
        "kv_stride_0",
        "GRAD-1 SHAPE-5",
        "gradients written to memory that heads share",
        "pytorch/pytorch#191937",
        shape=Shape(q_heads=4, q_len=5, kv_len=9),
        recipe=lambda draw: {"k": repeated(draw.k(), 1, 4), "v": repeated(draw.v(), 1, 4)},
    )
    return found


def _dout(order: str) -> Any:
    return lambda draw: {"dout": with_strides(draw.dout(), order=order)}


def _all(order: str) -> Any:
    def recipe(draw: Draw) -> dict[str, Array]:
        return {name: with_strides(x, order=order) for name, x in draw.qkv().items()}

    return recipe


def _layout() -> list[Case]:
    found = gradient(
        "layout_bshd",
        "GRAD-1 GRAD-3 SHAPE-1",
        "gradients in another layout than their operands",
        shape=Shape(batch=2, q_heads=3, q_len=4, kv_len=5),
        spec={"layout": "bshd"},
        dtypes=FOUR,
    )
    found += gradient(
        "layout_bshd_with_everything",
        "GRAD-1 GRAD-2 SHAPE-1 MOD-1 MASK-2",
        "dbias brought to the layout of q",
        shape=Shape(batch=2, q_heads=4, kv_heads=2, q_len=4, kv_len=6, v_head_dim=4),
        spec={
            "layout": "bshd",
            "mask": Causal("bottom_right") & Dense(),
            "bias": F32,
            "kv_lens": True,
            "sinks": True,
        },
        recipe=lambda draw: {
            "mask": draw.bools(4, 4, 6),
            "bias": draw.normal(2, 4, 4, 6, dtype=F32),
            "kv_lens": np.array([6, 4]),
            "sinks": draw.normal(4, dtype=F32),
        },
    )
    return found


def _values() -> list[Case]:
    found = gradient(
        "dout_zero",
        "GRAD-1",
        "gradients of nothing that are not zero",
        recipe=lambda draw: {"dout": draw.array(np.zeros((1, 2, 5, 8)))},
        bound="hard",
        dtypes=FOUR,
        expect=lambda: {
            "dq": np.zeros((1, 2, 5, 8)),
            "dk": np.zeros((1, 2, 7, 8)),
            "dv": np.zeros((1, 2, 7, 8)),
        },
    )
    found += gradient(
        "dout_of_one_row",
        "GRAD-1",
        "a row whose gradient reaches its tile: dq of every other row is zero",
        shape=Shape(q_len=35, kv_len=40),
        recipe=_one((0, 1, 20)),
    )
    found += gradient(
        "dout_of_one_head",
        "GRAD-1 SHAPE-2",
        "a head whose gradient reaches keys of another group",
        shape=Shape(batch=2, q_heads=4, kv_heads=2, q_len=6, kv_len=9),
        recipe=_one((1, 2)),
    )
    found += gradient(
        "dout_of_one_channel",
        "GRAD-1",
        "a channel whose gradient reaches dv of another",
        shape=Shape(q_len=6, kv_len=9, v_head_dim=33),
        recipe=_one((slice(None), slice(None), slice(None), 32)),
    )
    return found


def _one(where: tuple[Any, ...]) -> Any:
    def recipe(draw: Draw) -> dict[str, Array]:
        full = draw.dout()
        only = np.zeros(full.shape, full.dtype)
        only[where] = full[where]
        return {"dout": guarded(only)}

    return recipe


def _sizes() -> list[Case]:
    found: list[Case] = []
    for name, size, catches in (
        ("large", 1e4, "<dout, v> beyond 65504, which half precision does not hold"),
        ("small", 1e-6, "products that half precision flushes to zero"),
    ):
        found += gradient(
            f"dout_{name}",
            "GRAD-1 GRAD-3 NUM-1",
            catches,
            shape=Shape(q_len=9, kv_len=17, head_dim=32),
            recipe=_spread_dout(size),
            dtypes=(F16, BF16, F32),
        )
    found += gradient(
        "dout_of_1e_minus_30",
        "GRAD-1 GRAD-3",
        "float64 in name, whose products of 1e-40 float32 does not hold",
        shape=Shape(q_len=5, kv_len=9),
        recipe=lambda draw: {
            "dout": draw.array(1e-30 * draw.dout().astype(float)),
            "k": _tiny(draw),
        },
        bound="hard",
        dtypes=(F64, F32),
    )
    return found


def _tiny(draw: Draw) -> Array:
    return draw.array(1e-10 * draw.k().astype(float))


def _spread_dout(size: float) -> Any:
    return lambda draw: {"dout": draw.array(size * draw.dout().astype(float))}
