"""What takes minutes: very long rows, large batches, guard pages, random specs (level "stress")."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sdpakit.conformance.cases.make import ALL, F16, F32, F64, FOUR, make
from sdpakit.conformance.cases.random_specs import random_case
from sdpakit.conformance.inputs import Array, Draw, at_page_border
from sdpakit.conformance.model import Case, Shape
from sdpakit.masks import Causal, Window

RANDOM_SPECS = 200


def cases() -> list[Case]:
    """Return the cases of this family."""
    return [
        *_long_rows(),
        *_large_batches(),
        *_guard_pages(),
        *(random_case(number) for number in range(RANDOM_SPECS)),
    ]


def _long_rows() -> list[Case]:
    found: list[Case] = []
    for kv_len, q_len, dtypes in ((100_003, 4, (F32, F16, F64)), (1_000_003, 1, (F32, "bfloat16"))):
        found += make(
            f"stress.rows_of_{kv_len}_keys",
            "NUM-1 NUM-6 SOFT-1",
            "sums of a million weights, one after another, in the dtype of the operands",
            shape=Shape(q_heads=1, q_len=q_len, kv_len=kv_len, head_dim=16),
            outputs=ALL,
            dtypes=dtypes,
            level="stress",
        )
    for name, scale in (("saturated", 8.0), ("uniform", 0.0)):
        found += make(
            f"stress.{name}_rows_of_200000_keys",
            "NUM-1 SOFT-1 SCALE-2",
            "a running maximum that moves a hundred times, or a row sum that stops growing",
            shape=Shape(q_heads=2, kv_heads=1, q_len=3, kv_len=200_000, head_dim=8),
            spec={"scale": scale},
            outputs=ALL,
            dtypes=(F32, F16),
            level="stress",
        )
    for name, mask in (
        ("causal", Causal("bottom_right")),
        ("window", Window(4000, 0, "bottom_right")),
    ):
        found += make(
            f"stress.{name}_of_3001_rows",
            "MASK-2 NUM-6",
            "positions or tiles counted in 16 bits, or skipped where thousands are",
            shape=Shape(q_heads=1, q_len=701, kv_len=3001, head_dim=32),
            spec={"mask": mask},
            dtypes=(F32, F16),
            level="stress",
        )
    return found


def _large_batches() -> list[Case]:
    found: list[Case] = []
    for batch, q_heads, kv_heads, q_len in ((1025, 4, 2, 1), (3, 257, 1, 3), (70_001, 1, 1, 1)):
        found += make(
            f"stress.{batch}_entries_of_{q_heads}_heads",
            "SHAPE-1 SHAPE-2 MASK-4",
            "entries and heads counted in 16 bits, or shared out among threads wrongly",
            shape=Shape(batch, q_heads, kv_heads, q_len=q_len, kv_len=9, head_dim=4),
            spec={"kv_lens": True},
            recipe=_some_lengths,
            level="stress",
            heavy=f"{batch * q_heads} rows, one after another in the reference",
        )
    return found


def _some_lengths(draw: Draw) -> dict[str, Array]:
    return {"kv_lens": draw.ints(0, draw.shape.kv_len + 1, draw.shape.batch)}


def _guard_pages() -> list[Case]:
    """Operands beside memory that may not be touched: whoever reads past them dies."""
    found: list[Case] = []
    for end in ("low", "high"):
        for kv_len, width in ((101, 8), (64, 64), (33, 5)):
            found += make(
                f"stress.guard_page_{end}_{kv_len}_keys_of_{width}",
                "SHAPE-5 MASK-4",
                "memory beside an operand that is read, whatever becomes of it",
                shape=Shape(batch=2, q_len=7, kv_len=kv_len, head_dim=width),
                spec={"mask": Causal("bottom_right"), "kv_lens": True, "bias": "float32"},
                recipe=_at_border(end),
                dtypes=FOUR,
                level="stress",
            )
    return found


def _at_border(end: str) -> Callable[[Draw], dict[str, Any]]:
    def recipe(draw: Draw) -> dict[str, Any]:
        s = draw.shape
        found = {
            **draw.qkv(),
            "bias": draw.normal(1, s.q_heads, s.q_len, s.kv_len, dtype="float32"),
            "kv_lens": np.array([s.kv_len, s.kv_len - 9], np.int64),
        }
        return {name: at_page_border(x, end) for name, x in found.items()}

    return recipe
