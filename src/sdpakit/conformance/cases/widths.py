"""Widths of heads from 1 to 576, odd ones and unequal ones included."""

from __future__ import annotations

import numpy as np

from sdpakit.conformance.cases.make import F32, FOUR, gh, make
from sdpakit.conformance.inputs import Array, Draw
from sdpakit.conformance.model import Case, Shape

PAIRS: tuple[tuple[int, int], ...] = (
    *((1, 1), (2, 2), (3, 5), (5, 3), (7, 7), (12, 20), (15, 17), (16, 16), (24, 17), (31, 33)),
    *((32, 24), (40, 40), (48, 48), (63, 65), (64, 64), (72, 72), (80, 80), (96, 96), (100, 1)),
    *((1, 100), (112, 112), (127, 129), (128, 128), (160, 160), (192, 128), (200, 72)),
    *((256, 256), (257, 255), (320, 320), (512, 512), (576, 512), (575, 1), (1, 576)),
)
OF_EVERY_DTYPE = {(5, 3), (15, 17), (64, 64), (127, 129), (192, 128), (576, 512)}
CORE = {(1, 1), (5, 3), (15, 17), (64, 64), (80, 80), (128, 128), (192, 128), (576, 512)}

SOURCES = {
    (32, 24): "pytorch/pytorch#176767",
    (80, 80): "sgl-project/sglang!28637",
    (320, 320): "KempnerInstitute/KempnerForge!206",
}


def cases() -> list[Case]:
    """Return the cases of this family."""
    found: list[Case] = []
    for head_dim, v_head_dim in PAIRS:
        pair = (head_dim, v_head_dim)
        found += make(
            f"widths.{head_dim}_and_{v_head_dim}",
            "SHAPE-3 SCALE-1",
            "a head padded or cut, or out with the width of q",
            shape=Shape(q_heads=1, q_len=19, kv_len=35, head_dim=head_dim, v_head_dim=v_head_dim),
            dtypes=FOUR if pair in OF_EVERY_DTYPE else (F32,),
            level="core" if pair in CORE else "full",
            source=gh(SOURCES[pair]) if pair in SOURCES else "",
        )
    found += make(
        "widths.upper_half_only",
        "SHAPE-3",
        "a kernel that reads 64 of 128 components, and sees q = 0",
        shape=Shape(q_heads=1, q_len=3, kv_len=4, head_dim=128),
        recipe=_upper_half,
        source=gh("triton-lang/triton#621"),
    )
    found += make(
        "widths.last_component_only",
        "SHAPE-3",
        "a remainder of one component that is dropped",
        shape=Shape(q_heads=1, q_len=3, kv_len=9, head_dim=33),
        recipe=_last_component,
    )
    return found


def _upper_half(draw: Draw) -> dict[str, Array]:
    q = draw.q(3.0)
    q[..., :64] = 0
    return {"q": q}


def _last_component(draw: Draw) -> dict[str, Array]:
    q = draw.q(3.0)
    q[..., :32] = 0
    return {"q": q, "k": draw.array(np.asarray(draw.k(3.0)))}
