"""Offsets beyond 2^31 elements, and counts beyond 2^16."""

from __future__ import annotations

from sdpakit.conformance.cases.make import gh, make
from sdpakit.conformance.inputs import Array, Draw, far_rows
from sdpakit.conformance.model import Case, Shape


def cases() -> list[Case]:
    """Return the cases of this family."""
    found = make(
        "huge.element_offset",
        "SHAPE-6 SHAPE-5",
        "an offset of 2^31 + 24 elements held in 32 bits",
        shape=Shape(q_heads=1, q_len=2, kv_len=2),
        recipe=_far_keys,
        dtypes=("float16",),
        source=gh("Dao-AILab/flash-attention#2611"),
        heavy="4.3 GiB of address space, untouched but for two pages",
    )
    found += make(
        "huge.65537_heads",
        "SHAPE-6 SHAPE-2",
        "more heads than 16 bits count",
        shape=Shape(q_heads=65537, q_len=1, kv_len=2, head_dim=1),
        outputs=("out",),
        level="full",
        source=gh("pytorch/pytorch#142228"),
        heavy="65537 heads",
    )
    return found


def _far_keys(draw: Draw) -> dict[str, Array]:
    return {"k": far_rows(draw.k(), 2**31 + 24)}
