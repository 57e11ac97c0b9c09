"""Rows, tiles, entries and dimensions without anything in them."""

from __future__ import annotations

from typing import Any

import numpy as np

from sdpakit.conformance.cases.make import ALL, FOUR, gh, make
from sdpakit.conformance.inputs import Array, Draw, guarded
from sdpakit.conformance.model import Case, Shape
from sdpakit.masks import Causal, Dense, Predicate

NAN = {"empty_row": "nan"}


def cases() -> list[Case]:
    """Return the cases of this family."""
    return [*_rows(), *_tiles(), *_policy(), *_dims()]


def _mask(rows: Any) -> Any:
    return lambda _draw: {"mask": guarded(np.asarray(rows, bool))}


def _some_rows(q_len: int, kv_len: int, empty: list[int]) -> Array:
    mask = np.tri(q_len, kv_len, dtype=bool)
    mask[empty] = False
    return mask


def _rows() -> list[Case]:
    found = make(
        "empty.last_row",
        "EMPTY-1 NUM-2",
        "a padded row that is NaN or the mean of v",
        shape=Shape(q_len=6, kv_len=10),
        spec={"mask": Dense()},
        recipe=_mask(_some_rows(6, 10, [5])),
        outputs=ALL,
        dtypes=FOUR,
        source=gh("pytorch/pytorch#103749"),
    )
    found += make(
        "empty.by_bias",
        "EMPTY-1 MASK-6",
        "a row of -inf that is NaN",
        shape=Shape(batch=2, q_len=4, kv_len=5),
        spec={"bias": "float32"},
        recipe=_infinite_bias,
        outputs=ALL,
        dtypes=FOUR,
        source=gh("pytorch/pytorch#41508"),
    )
    found += make(
        "empty.not_the_mean_of_v",
        "EMPTY-1 NUM-2",
        "a finite mask value, which gives the mean of v (100) in an empty row",
        shape=Shape(batch=2, q_heads=1, q_len=3, kv_len=4),
        spec={"mask": Dense()},
        recipe=lambda draw: {
            "v": draw.array(np.full((2, 1, 4, 8), 100.0)),
            "mask": np.array([1, 0], bool)[:, None, None, None],
        },
        bound="hard",
        expect=lambda: {"out": np.stack([np.full((1, 3, 8), 100.0), np.zeros((1, 3, 8))])},
        source=gh("microsoft/onnxruntime!28958"),
    )
    found += make(
        "empty.entry_without_keys",
        "EMPTY-1 MASK-4",
        "a batch entry without a valid key",
        shape=Shape(batch=3, q_len=4, kv_len=5),
        spec={"kv_lens": True},
        recipe=lambda _draw: {"kv_lens": np.array([5, 0, 3], np.int32)},
        outputs=ALL,
        source=gh("pytorch/pytorch#81077"),
    )
    return found


def _tiles() -> list[Case]:
    found: list[Case] = []
    for name, empty in (("leading", range(14)), ("inner", range(17, 50)), ("all", range(70))):
        found += make(
            f"empty.{name}_rows",
            "EMPTY-1 NUM-2",
            "whole tiles of rows without a key",
            shape=Shape(q_len=70, kv_len=70),
            spec={"mask": Dense()},
            recipe=_mask(_some_rows(70, 70, list(empty))),
            outputs=ALL,
            source=gh("ikawrakow/ik_llama.cpp#2344"),
        )
    for name, keys in (("leading", slice(None, 630)), ("trailing", slice(5, None))):
        found += make(
            f"empty.{name}_keys",
            "NUM-2 MASK-3",
            "running statistics that do not survive tiles without a key",
            shape=Shape(q_heads=1, q_len=4, kv_len=640),
            spec={"mask": Dense()},
            recipe=_without_keys(keys),
            outputs=ALL,
            source=gh("pytorch/pytorch#127055"),
        )
    found += make(
        "empty.trailing_keys_and_low_logits",
        "NUM-2",
        "a running maximum stuck at 0 while every logit is about -400",
        shape=Shape(q_len=3, kv_len=448),
        spec={"mask": Dense(), "scale": 1.0},
        recipe=_low_logits,
        outputs=ALL,
        bound="hard",
        dtypes=FOUR,
        source=gh("Dao-AILab/flash-attention#2082"),
    )
    found += make(
        "empty.leading_tiles_and_low_logits",
        "NUM-2",
        "a guarded maximum of 0, kept after tiles without a key, where logits are about -800",
        shape=Shape(q_len=3, kv_len=448),
        spec={"mask": Dense(), "scale": 1.0},
        recipe=lambda draw: {**_low_logits(draw), "mask": np.arange(448)[None] >= 443},
        outputs=ALL,
        bound="hard",
        dtypes=FOUR,
    )
    found += make(
        "empty.one_key_a_row",
        "SOFT-1 STAT-1",
        "a single attended key far from the others, in a tile of its own",
        shape=Shape(q_len=50, kv_len=200),
        spec={"mask": Predicate(lambda i: i.k == (i.q * 37) % 200)},
        outputs=ALL,
    )
    return found


def _infinite_bias(draw: Draw) -> dict[str, Array]:
    bias = np.zeros((1, 1, 4, 5), np.float32)
    bias[..., 2, :] = -np.inf
    bias[..., 1, 1:] = -np.inf
    return {"bias": draw.array(bias, "float32")}


def _without_keys(keys: slice) -> Any:
    mask = np.ones((4, 640), bool)
    mask[:, keys] = False
    return lambda _draw: {"mask": guarded(mask)}


def _low_logits(draw: Draw) -> dict[str, Array]:
    k = draw.array(-10.0 + 0.05 * draw.rng.standard_normal((1, 2, 448, 8)))
    return {"q": draw.array(np.full((1, 2, 3, 8), 10.0)), "k": k, "mask": np.arange(448)[None] < 5}


def _policy() -> list[Case]:
    found = make(
        "empty.nan_policy",
        "EMPTY-1",
        'empty_row="nan" that is ignored, or that reaches lse or other rows',
        shape=Shape(q_len=6, kv_len=4),
        spec={"mask": Causal("bottom_right"), **NAN},
        outputs=ALL,
        dtypes=FOUR,
    )
    found += make(
        "empty.nan_policy_lengths",
        "EMPTY-1 MASK-4",
        "rows past q_lens that are not empty rows",
        shape=Shape(batch=2, q_len=5, kv_len=6),
        spec={"q_lens": True, "kv_lens": True, **NAN},
        recipe=lambda _draw: {"q_lens": np.array([3, 5]), "kv_lens": np.array([6, 0])},
        outputs=ALL,
    )
    found += make(
        "empty.with_sink",
        "EMPTY-1 SINK-1 SINK-2",
        "an empty row whose sink makes it 0/0, or finite in lse",
        shape=Shape(q_len=6, kv_len=4),
        spec={"mask": Causal("bottom_right"), "sinks": True},
        recipe=lambda draw: {"sinks": draw.array([0.5, -300.0], "float32")},
        outputs=ALL,
        dtypes=FOUR,
    )
    return found


def _dims() -> list[Case]:
    found: list[Case] = []
    for name, shape in (
        ("batch", Shape(batch=0)),
        ("heads", Shape(q_heads=0)),
        ("rows", Shape(q_len=0)),
        ("rows_and_keys", Shape(q_len=0, kv_len=0)),
        ("width_of_v", Shape(v_head_dim=0)),
    ):
        found += make(
            f"empty.no_{name}",
            "SHAPE-4 SHAPE-3" if name == "width_of_v" else "SHAPE-4",
            "a division by a size, or a launch of nothing",
            shape=shape,
            outputs=ALL,
            source=gh("pytorch/pytorch!174951"),
        )
    for policy in ("zero", "nan"):
        found += make(
            f"empty.no_keys_{policy}",
            "SHAPE-4 EMPTY-1",
            "outputs left unwritten where no tile runs",
            shape=Shape(batch=2, q_len=3, kv_len=0),
            spec={"empty_row": policy, "sinks": True},
            recipe=lambda draw: {"sinks": draw.array([0.0, 1.0], "float32")},
            outputs=ALL,
            dtypes=FOUR,
            source=gh("Dao-AILab/flash-attention!2470"),
        )
    found += make(
        "empty.no_keys_with_operands",
        "SHAPE-4",
        "empty mask, bias and tables that are refused or indexed",
        shape=Shape(batch=2, q_len=3, kv_len=0),
        spec={"mask": Dense() & Causal("bottom_right"), "bias": "float32", "kv_lens": True},
        recipe=lambda draw: {
            "mask": np.ones((3, 0), bool),
            "bias": draw.normal(2, 1, 1, 0, dtype="float32"),
            "kv_lens": np.zeros(2, np.int64),
        },
    )
    return found
