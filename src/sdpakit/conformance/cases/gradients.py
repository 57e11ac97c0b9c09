"""Gradients: every forward family again, through dq, dk, dv, dbias, dsinks and tables."""

from __future__ import annotations

import numpy as np

from sdpakit.conformance.cases import (
    gradients_dout,
    gradients_masks,
    gradients_numbers,
    gradients_operands,
    gradients_specials,
)
from sdpakit.conformance.cases.gradients_make import gradient
from sdpakit.conformance.cases.make import BF16, F16, F32, F64, FOUR
from sdpakit.conformance.model import Case, Shape


def cases() -> list[Case]:
    """Return the cases of this family."""
    return [
        *_plain(),
        *_heads(),
        *_widths(),
        *_lengths(),
        *gradients_dout.cases(),
        *gradients_masks.cases(),
        *gradients_operands.cases(),
        *gradients_numbers.cases(),
        *gradients_specials.cases(),
    ]


def _plain() -> list[Case]:
    found = gradient(
        "not_causal",
        "GRAD-1",
        "a backward that is always causal",
        "triton-lang/triton#4541",
        shape=Shape(q_len=6, kv_len=6),
        dtypes=FOUR,
    )
    for name, shape, catches in (
        ("unit", Shape(q_heads=1, q_len=32, kv_len=64, head_dim=64), "tf32 products"),
        ("long", Shape(q_heads=1, q_len=16, kv_len=512, head_dim=32), "sums over keys in half"),
        ("tall", Shape(q_heads=1, q_len=512, kv_len=16, head_dim=32), "sums over rows in half"),
        ("wide", Shape(q_heads=1, q_len=8, kv_len=24, head_dim=256), "sums over widths in half"),
    ):
        found += gradient(
            name,
            "GRAD-1 GRAD-3 NUM-1",
            f"float32 that is not, in the backward: {catches}",
            shape=shape,
            dtypes=FOUR if name == "unit" else (F32, F64),
        )
    return found


def _heads() -> list[Case]:
    found = gradient(
        "of_a_group",
        "GRAD-1 SHAPE-2",
        "dk and dv of the last head of a group, not of all",
        "marin-community/levanter!449",
        shape=Shape(batch=2, q_heads=4, kv_heads=2, q_len=3, kv_len=5, head_dim=4),
        dtypes=FOUR,
    )
    found += gradient(
        "of_one_kv_head",
        "GRAD-1 GRAD-3 SHAPE-2",
        "dk and dv of six heads rounded to the operand's dtype one by one, then added up",
        shape=Shape(batch=2, q_heads=6, kv_heads=1, q_len=19, kv_len=9),
        dtypes=(F16, BF16, F32, F64),
    )
    found += gradient(
        "of_groups_of_three",
        "GRAD-1 SHAPE-2",
        "the index of a head in its group taken for that of the group",
        "XunhaoLai/native-sparse-attention-triton#27",
        shape=Shape(batch=2, q_heads=6, kv_heads=2, q_len=4, kv_len=5),
    )
    found += gradient(
        "of_two_entries",
        "GRAD-1",
        "dk of a batch entry added to that of the next",
        "NVIDIA/TransformerEngine#3216",
        shape=Shape(batch=3, q_heads=2, kv_heads=1, q_len=5, kv_len=5, head_dim=16),
    )
    return found


def _widths() -> list[Case]:
    found = gradient(
        "of_wide_values",
        "GRAD-1 SHAPE-3",
        "channels of v beyond D that are left out of dq",
        "XunhaoLai/native-sparse-attention-triton#27",
        shape=Shape(q_len=3, kv_len=5, head_dim=3, v_head_dim=7),
    )
    found += gradient(
        "of_narrow_values",
        "GRAD-1 SHAPE-3",
        "a width of v of 17 beside 24",
        "Dao-AILab/flash-attention#2552",
        shape=Shape(q_len=4, kv_len=5, head_dim=24, v_head_dim=17),
    )
    for head_dim, v_head_dim in ((1, 1), (5, 5), (80, 96), (129, 65)):
        found += gradient(
            f"of_widths_{head_dim}_and_{v_head_dim}",
            "GRAD-1 SHAPE-3",
            "components behind an odd width, or beyond a tile of 64 or 128",
            shape=Shape(q_len=5, kv_len=9, head_dim=head_dim, v_head_dim=v_head_dim),
        )
    found += gradient(
        "of_no_values",
        "GRAD-1 SHAPE-3",
        "a width of v of 0, where every gradient is zero",
        shape=Shape(q_len=3, kv_len=4, v_head_dim=0),
        expect=lambda: {"dq": np.zeros((1, 2, 3, 8)), "dk": np.zeros((1, 2, 4, 8))},
    )
    return found


def _lengths() -> list[Case]:
    found = gradient(
        "of_small_operands",
        "GRAD-1",
        "a last tile of one key, and gradients of 1e-3",
        "pytorch/pytorch#119320",
        shape=Shape(q_heads=1, q_len=33, kv_len=65, head_dim=4),
        recipe=lambda draw: {"q": draw.q(0.1), "k": draw.k(0.1), "v": draw.v()},
    )
    for q_len, kv_len in ((1, 100), (129, 1), (17, 33), (65, 17)):
        found += gradient(
            f"of_{q_len}_by_{kv_len}",
            "GRAD-1",
            "a tile of rows or keys that is not full: padded ones that take part",
            shape=Shape(q_len=q_len, kv_len=kv_len),
        )
    for name, shape in (
        ("batch", Shape(batch=0)),
        ("heads", Shape(q_heads=0)),
        ("rows", Shape(q_len=0)),
        ("keys", Shape(batch=2, q_len=3, kv_len=0)),
    ):
        found += gradient(
            f"of_no_{name}",
            "GRAD-1 SHAPE-4 EMPTY-1",
            "gradients left unwritten where no tile runs",
            shape=shape,
            spec={"sinks": True, "bias": F32},
            recipe=lambda draw: {
                "sinks": draw.normal(draw.shape.q_heads, dtype=F32),
                "bias": draw.normal(draw.shape.q_len, draw.shape.kv_len, dtype=F32),
            },
        )
    return found
