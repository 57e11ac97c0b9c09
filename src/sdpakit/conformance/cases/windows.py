"""Sliding windows: inclusive counts, open sides, alignment, edges inside tiles."""

from __future__ import annotations

from typing import Any

import numpy as np

from sdpakit.conformance.cases.make import FOUR, gh, make
from sdpakit.conformance.inputs import guarded, mean_indices
from sdpakit.conformance.model import Case, Shape
from sdpakit.masks import Causal, Dense, Window

TOP = Causal("top_left")


def cases() -> list[Case]:
    """Return the cases of this family."""
    return [*_counted(), *_random()]


def _between(shape: Shape, left: int | None, right: int | None, off: int = 0) -> Any:
    rows = [
        [
            j
            for j in range(shape.kv_len)
            if (left is None or j >= i + off - left) and (right is None or j <= i + off + right)
        ]
        for i in range(shape.q_len)
    ]
    return lambda: mean_indices(rows, shape)


_Counted = tuple[str, tuple[int, int], tuple[Any, Any], int, str, str]
# Name, lengths, window, offset of the position, the wrong program, who reported it.
_COUNTED: tuple[_Counted, ...] = (
    (
        "left_and_own",
        (6, 6),
        (2, 0),
        0,
        "left=2 that keeps two keys, not three",
        "huggingface/transformers#39408",
    ),
    (
        "diagonal",
        (5, 5),
        (0, 0),
        0,
        "a window of 0 taken for no window",
        "vllm-project/vllm#3385",
    ),
    (
        "two_sided",
        (7, 7),
        (1, 2),
        0,
        "one side used for both",
        "Dao-AILab/flash-attention#1116",
    ),
    ("left_open", (5, 5), (None, 0), 0, "None taken for 0", "Dao-AILab/flash-attention#1133"),
    ("right_open", (5, 9), (1, None), 0, "None taken for 0", "Dao-AILab/flash-attention#2199"),
    (
        "right_beyond_the_keys",
        (6, 4),
        (0, 100),
        0,
        "a side clipped so that rows lose keys",
        "Dao-AILab/flash-attention#895",
    ),
    (
        "numpy_integers",
        (5, 5),
        (np.int32(1), np.int64(0)),
        0,
        "counts of NumPy types that are refused or cast",
        "NVIDIA/numba-cuda#623",
    ),
    (
        "decode",
        (1, 10),
        (3, 0),
        9,
        "a window from the start of the cache",
        "karpathy/nanochat!456",
    ),
)


def _counted() -> list[Case]:
    """Cases whose attended keys are counted by hand."""
    found: list[Case] = []
    for name, size, window, off, catches, source in _COUNTED:
        shape = Shape(q_heads=1, q_len=size[0], kv_len=size[1])
        left, right = (None if x is None else int(x) for x in window)
        align = "bottom_right" if off else "top_left"
        found += make(
            f"windows.{name}",
            "MASK-2",
            catches,
            shape=shape,
            spec={"mask": Window(*window, align)},
            recipe=lambda draw: draw.flat(),
            bound="hard",
            dtypes=FOUR if name == "two_sided" else ("float32",),
            expect=_between(shape, left, right, off),
            source=gh(source),
        )
    shape = Shape(q_heads=1, q_len=6, kv_len=6)
    found += make(
        "windows.and_dense",
        "MASK-1 MASK-2",
        "a window that replaces the caller's mask",
        shape=shape,
        spec={"mask": TOP & Window(2, 0, "top_left") & Dense()},
        recipe=lambda draw: {**draw.flat(), "mask": guarded(np.array([1, 0, 1, 1, 0, 1], bool))},
        bound="hard",
        expect=lambda: mean_indices([[0], [0], [0, 2], [2, 3], [2, 3], [3, 5]], shape),
        source=gh("NVIDIA/Megatron-LM#7039"),
    )
    return found


def _random() -> list[Case]:
    found = make(
        "windows.many_tiles",
        "MASK-2",
        "an edge of the window inside a tile",
        shape=Shape(q_heads=1, q_len=150, kv_len=150),
        spec={"mask": TOP & Window(70, 0, "top_left")},
        dtypes=FOUR,
        source=gh("NVIDIA/TransformerEngine#1197"),
    )
    for left, right in ((15, 16), (16, 15), (1, 95), (127, 0), (300, 2)):
        found += make(
            f"windows.edges_{left}_{right}",
            "MASK-2",
            "edges that fall on the border of a tile, or beyond both ends",
            shape=Shape(q_heads=1, q_len=131, kv_len=140),
            spec={"mask": Window(left, right, "bottom_right")},
        )
    found += make(
        "windows.far_past_the_keys",
        "MASK-2 EMPTY-1",
        "rows whose window begins behind the last key",
        shape=Shape(q_len=80, kv_len=20),
        spec={"mask": Window(3, 3, "top_left")},
    )
    found += make(
        "windows.huge_counts",
        "MASK-2",
        "counts near 2^40 that wrap",
        shape=Shape(q_len=9, kv_len=12),
        spec={"mask": Window(2**40, 2**40, "bottom_right")},
    )
    found += make(
        "windows.per_entry_lengths",
        "MASK-2 MASK-4",
        "a bottom-right window placed by padded lengths",
        shape=Shape(batch=3, q_len=6, kv_len=40),
        spec={"mask": TOP | Window(4, 1, "bottom_right"), "kv_lens": True},
        recipe=lambda _draw: {"kv_lens": np.array([40, 7, 1], np.int32)},
    )
    return found
