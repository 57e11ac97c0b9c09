"""Memory: layouts, strides of every kind, alignment, read-only arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from sdpakit.conformance.cases.make import FOUR, gh, make
from sdpakit.conformance.inputs import Array, Draw, guarded, repeated, with_strides
from sdpakit.conformance.model import Case, Shape
from sdpakit.masks import Causal, Dense

ORDERS = {
    "bshd": "pytorch/pytorch#181133",
    "fortran": "cupy/cupy#9233",
    "reversed": "cupy/cupy#10303",
    "sliced": "cupy/cupy#7267",
    "channels_first": "pytorch/pytorch#109607",
    "every_other": "cupy/cupy#7267",
    "unaligned": "facebookresearch/xformers#813",
    "read_only": "raphaelvallat/antropy!23",
}


def cases() -> list[Case]:
    """Return the cases of this family."""
    return [*_views(), *_repeated(), *_one_by_one(), *_layout()]


def _views() -> list[Case]:
    found: list[Case] = []
    for order, source in ORDERS.items():
        found += make(
            f"strides.{order}",
            "SHAPE-5",
            "strides that are ignored, or copied wrongly while packing",
            shape=Shape(batch=2, q_heads=4, kv_heads=2, q_len=19, kv_len=43),
            recipe=_all(order),
            dtypes=FOUR,
            source=gh(source),
        )
        found += make(
            f"strides.{order}_wide",
            "SHAPE-5",
            "a fast path for wide rows that takes their elements to be neighbours",
            shape=Shape(q_len=9, kv_len=33, head_dim=64),
            recipe=_all(order),
            level="full",
        )
    return found


def _all(order: str) -> Any:
    return lambda draw: {name: with_strides(x, order=order) for name, x in draw.qkv().items()}


def _repeated() -> list[Case]:
    found = make(
        "strides.kv_stride_0",
        "SHAPE-5 MASK-1",
        "keys and values broadcast over the heads with stride 0",
        shape=Shape(q_heads=4, q_len=5, kv_len=33),
        spec={"mask": Dense()},
        recipe=lambda draw: {
            "k": repeated(draw.k(), 1, 4),
            "v": repeated(draw.v(), 1, 4),
            "mask": draw.bools(5, 33, share=0.8),
        },
        source=gh("pytorch/pytorch#191937"),
    )
    for name, axis, count in (("batch", 0, 3), ("lengths", 2, 17), ("width", 3, 8)):
        found += make(
            f"strides.stride_0_along_{name}",
            "SHAPE-5",
            "a stride of 0 taken for 'contiguous'",
            shape=Shape(batch=3, q_len=17, kv_len=17),
            recipe=_stride_0(axis, count),
            dtypes=FOUR if name == "lengths" else ("float32",),
        )
    found += make(
        "strides.any_stride_of_size_1",
        "SHAPE-5",
        "axes of size 1 that carry strides of no meaning",
        shape=Shape(q_heads=1, q_len=1, kv_len=4),
        recipe=_strange_size_1,
        source=gh("pytorch/pytorch#116333"),
    )
    return found


def _stride_0(axis: int, count: int) -> Any:
    return lambda draw: {name: repeated(x, axis, count) for name, x in draw.qkv().items()}


def _strange_size_1(draw: Draw) -> dict[str, Array]:
    q = draw.q()
    return {"q": np.lib.stride_tricks.as_strided(q, q.shape, (4, 8, 12, q.itemsize))}


def _one_by_one() -> list[Case]:
    """Only one operand lies oddly: a test of all at once would not tell which is ignored."""
    found: list[Case] = []
    for name in "qkv":
        found += make(
            f"strides.only_{name}_reversed",
            "SHAPE-5",
            "strides of one operand used for another",
            shape=Shape(q_len=11, kv_len=11),
            recipe=_only(name, "reversed"),
        )
        found += make(
            f"strides.only_{name}_channels_first",
            "SHAPE-5",
            "strides of one operand used for another",
            shape=Shape(q_len=11, kv_len=11),
            recipe=_only(name, "channels_first"),
            dtypes=("float16", "bfloat16"),
        )
    found += make(
        "strides.unaligned_operands_and_bias",
        "SHAPE-5 MOD-1",
        "aligned loads of a bias whose rows have 43 elements",
        shape=Shape(q_len=5, kv_len=43),
        spec={"bias": "float32"},
        recipe=lambda draw: {
            **_all("unaligned")(draw),
            "bias": with_strides(draw.normal(1, 1, 5, 43, dtype="float32"), order="unaligned"),
        },
        source=gh("facebookresearch/xformers#813"),
    )
    found += make(
        "strides.read_only_operands",
        "SHAPE-5",
        "read-only arrays that are refused",
        shape=Shape(batch=2, q_len=3, kv_len=4),
        spec={"mask": Dense(), "bias": "float32", "sinks": True, "kv_lens": True},
        recipe=_all_read_only,
        source=gh("raphaelvallat/antropy!23"),
    )
    return found


def _only(name: str, order: str) -> Any:
    return lambda draw: {name: with_strides(getattr(draw, name)(), order=order)}


def _all_read_only(draw: Draw) -> dict[str, Array]:
    found = {
        **draw.qkv(),
        "mask": draw.bools(3, 4),
        "bias": draw.normal(3, 4, dtype="float32"),
        "sinks": draw.normal(2, dtype="float32"),
        "kv_lens": guarded(np.array([4, 3])),
    }
    for array in found.values():
        array.flags.writeable = False
    return found


def _layout() -> list[Case]:
    found = make(
        "strides.layout_bshd",
        "SHAPE-1 SHAPE-5",
        "axes 1 and 2 swapped for some of q, k, v, out and not for others",
        shape=Shape(batch=2, q_heads=4, kv_heads=2, q_len=5, kv_len=7),
        spec={"layout": "bshd"},
        dtypes=FOUR,
    )
    found += make(
        "strides.layout_bshd_with_everything",
        "SHAPE-1 MOD-1 MASK-2",
        "bias, mask or lse brought to the layout of q",
        shape=Shape(batch=2, q_heads=3, q_len=5, kv_len=6, v_head_dim=4),
        spec={
            "layout": "bshd",
            "mask": Causal("bottom_right") & Dense(),
            "bias": "float32",
            "kv_lens": True,
        },
        recipe=lambda draw: {
            "mask": draw.bools(3, 5, 6),
            "bias": draw.normal(2, 3, 5, 6, dtype="float32"),
            "kv_lens": np.array([6, 4]),
        },
        dtypes=FOUR,
    )
    return found
