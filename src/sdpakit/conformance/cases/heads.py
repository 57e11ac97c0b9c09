"""Groups of query heads on one key/value head."""

from __future__ import annotations

import numpy as np

from sdpakit.conformance.cases.make import FOUR, gh, make
from sdpakit.conformance.inputs import Array, Draw
from sdpakit.conformance.model import Case, Shape
from sdpakit.masks import Dense, Predicate


def cases() -> list[Case]:
    """Return the cases of this family."""
    found = make(
        "heads.repeat_not_tile",
        "SHAPE-2",
        "query head h on kv head h % Hkv",
        shape=Shape(q_heads=4, kv_heads=2, q_len=2, kv_len=3),
        recipe=_value_is_the_head,
        dtypes=FOUR,
        bound="hard",
        expect=lambda: {
            "out": np.broadcast_to(
                np.array([1.0, 1.0, 2.0, 2.0])[None, :, None, None], (1, 4, 2, 8)
            )
        },
        source=gh("onnx/onnx!7274"),
    )
    for q_heads, kv_heads in ((8, 1), (8, 2), (6, 3), (7, 7), (9, 3), (1, 1)):
        found += make(
            f"heads.{q_heads}_on_{kv_heads}",
            "SHAPE-2",
            "a group whose heads read another kv head, or rows of another head",
            shape=Shape(batch=2, q_heads=q_heads, kv_heads=kv_heads, q_len=3, kv_len=19),
            dtypes=FOUR if q_heads == 8 and kv_heads == 2 else ("float32",),
        )
    found += make(
        "heads.one_kv_head_with_mask",
        "SHAPE-2 MASK-1",
        "a mask indexed by kv head",
        shape=Shape(batch=2, q_heads=5, kv_heads=1, q_len=3, kv_len=4),
        spec={"mask": Dense()},
        recipe=lambda draw: {"mask": draw.bools(5, 3, 4)},
        source=gh("pytorch/pytorch#149132"),
    )
    found += make(
        "heads.decode_of_a_group",
        "SHAPE-2",
        "one row a head, where the heads of a group are taken together",
        shape=Shape(batch=3, q_heads=32, kv_heads=4, q_len=1, kv_len=130),
        dtypes=FOUR,
    )
    found += make(
        "heads.predicate_of_the_head",
        "SHAPE-2 EXPR-1",
        "i.h that is the kv head, or the head within the group",
        shape=Shape(q_heads=6, kv_heads=2, q_len=4, kv_len=12),
        spec={"mask": Predicate(lambda i: i.k % 6 == i.h)},
    )
    return found


def _value_is_the_head(draw: Draw) -> dict[str, Array]:
    v = np.empty((1, 2, 3, 8))
    v[:, 0], v[:, 1] = 1.0, 2.0
    return {"v": draw.array(v)}
