"""NaN, infinities and 1e30 where nothing may look: masked keys, past lengths, behind the arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from sdpakit.conformance.cases.make import ALL, FOUR, gh, make
from sdpakit.conformance.inputs import Array, Draw, guarded, mean_indices, np_dtype
from sdpakit.conformance.model import Case, Shape
from sdpakit.masks import Causal, Dense, Document, Predicate, Window

POISONS = {"nan": np.nan, "inf": np.inf, "minus_inf": -np.inf, "large": 6e4}


def cases() -> list[Case]:
    """Return the cases of this family."""
    return [*_masked(), *_rows_apart(), *_by_reports(), *_outside()]


def _masked() -> list[Case]:
    found: list[Case] = []
    for name, value in POISONS.items():
        found += make(
            f"poison.masked_keys_{name}",
            "MASK-3",
            "a mask that multiplies or adds, so that masked keys reach the result",
            shape=Shape(batch=2, q_len=17, kv_len=70),
            spec={"mask": Dense()},
            recipe=_poisoned_keys(value),
            outputs=ALL,
            dtypes=FOUR if name in ("nan", "inf") else ("float32",),
            source=gh("pytorch/pytorch#101967"),
        )
    found += make(
        "poison.masked_keys_1e30",
        "MASK-3",
        "logits of 1e60 at masked keys that overflow into the row",
        shape=Shape(batch=2, q_len=17, kv_len=70),
        spec={"mask": Dense()},
        recipe=_poisoned_keys(1e30),
        outputs=ALL,
    )
    for name, value in POISONS.items():
        found += make(
            f"poison.past_lengths_{name}",
            "MASK-3 MASK-4",
            "an unused part of a cache that is multiplied by weights of 0",
            shape=Shape(batch=3, q_len=5, kv_len=40),
            spec={"q_lens": True, "kv_lens": True},
            recipe=_poisoned_tail(value),
            dtypes=FOUR if name == "nan" else ("float32",),
            source=gh("Dao-AILab/flash-attention#2374"),
        )
    return found


def _rows_apart() -> list[Case]:
    found: list[Case] = []
    for name, mask in (
        ("causal", Causal("top_left")),
        ("window", Window(6, 2, "bottom_right")),
        ("predicate", Predicate(lambda i: (i.k + i.q) % 3 == 0)),
        ("documents", Document("rows", "keys")),
    ):
        found += make(
            f"poison.rows_apart_{name}",
            "MASK-3",
            "a key that one row sees and its neighbour in the tile does not",
            shape=Shape(q_heads=1, q_len=33, kv_len=33),
            spec={"mask": mask},
            recipe=_seen_by_some(documents=name == "documents"),
            bound="hard",
        )
    found += make(
        "poison.masked_bias",
        "MASK-3",
        "a bias of NaN at masked pairs",
        shape=Shape(q_len=9, kv_len=9),
        spec={"mask": Causal("top_left"), "bias": "float32", "softcap": 3.0},
        recipe=lambda draw: {
            "bias": draw.array(np.where(np.tri(9, dtype=bool), 0.5, np.nan), "float32")
        },
        outputs=ALL,
        dtypes=FOUR,
    )
    return found


def _poisoned_keys(value: float) -> Any:
    def recipe(draw: Draw) -> dict[str, Array]:
        k, v = draw.k(), draw.v()
        k[:, :, 1::2, 3] = value
        v[:, :, 1::2, :] = value
        return {"k": k, "v": v, "mask": guarded(np.arange(70)[None] % 2 == 0)}

    return recipe


def _poisoned_tail(value: float) -> Any:
    def recipe(draw: Draw) -> dict[str, Array]:
        q, k, v = draw.q(), draw.k(), draw.v()
        for b, (rows, keys) in enumerate(zip((5, 2, 0), (33, 40, 0), strict=True)):
            q[b, :, rows:] = value
            k[b, :, keys:] = value
            v[b, :, keys:] = value
        lens = {"q_lens": np.array([5, 2, 0]), "kv_lens": np.array([33, 40, 0])}
        return {"q": q, "k": k, "v": v, **lens}

    return recipe


def _seen_by_some(*, documents: bool) -> Any:
    def recipe(draw: Draw) -> dict[str, Any]:
        k, v = draw.k(), draw.v()
        k[:, :, 20] = np.nan
        v[:, :, 20] = np.nan
        v[:, :, 9, 2] = np.inf
        found: dict[str, Any] = {"k": k, "v": v}
        if documents:
            ids = draw.ints(0, 3, 1, 33)
            found["params"] = {"rows": ids, "keys": ids.copy()}
        return found

    return recipe


def _by_reports() -> list[Case]:
    found = make(
        "poison.nan_key_of_bool_mask",
        "MASK-3",
        "NaN in one component of a masked key",
        shape=Shape(q_heads=1, q_len=2, kv_len=2, head_dim=4),
        spec={"mask": Dense()},
        recipe=_counting,
        bound="hard",
        expect=lambda: {"out": np.broadcast_to(np.arange(4.0), (1, 1, 2, 4))},
        source=gh("pytorch/pytorch#101967"),
    )
    shape = Shape(q_heads=1)
    found += make(
        "poison.infinite_masked_key",
        "MASK-3 MASK-1",
        "an infinite key that three masks together hide",
        shape=Shape(q_heads=1, q_len=5, kv_len=5),
        spec={"mask": Causal("top_left") & Window(1, 0, "top_left") & Dense()},
        recipe=_infinite_key,
        bound="hard",
        expect=lambda: mean_indices([[0], [0, 1], [1, 2], [2, 3], [3]], shape),
        source=gh("vllm-project/vllm!936"),
    )
    found += make(
        "poison.capped_logits_do_not_leak",
        "CAP-1 MASK-3",
        "a cap applied after the mask, which turns -inf into -cap",
        shape=Shape(q_heads=1, q_len=2, kv_len=4),
        spec={"mask": Dense(), "softcap": 1.0},
        recipe=_loud_masked,
        bound="hard",
        expect=lambda: mean_indices([[0, 1], [0, 1]], Shape(q_heads=1, q_len=2, kv_len=4)),
        source=gh("onnx/onnx#7865"),
    )
    return found


def _counting(draw: Draw) -> dict[str, Array]:
    q = np.arange(8.0).reshape(1, 1, 2, 4)
    k = q.copy()
    k[0, 0, 1, 0] = np.nan
    mask = guarded(np.array([[1, 0], [1, 0]], bool))
    return {"q": draw.array(q), "k": draw.array(k), "v": draw.array(k), "mask": mask}


def _infinite_key(draw: Draw) -> dict[str, Array]:
    found = draw.flat()
    found["k"][:, :, 4] = np.inf
    found["v"][:, :, 4] = np.inf
    return {**found, "mask": guarded(np.array([[1, 1, 1, 1, 0]], bool))}


def _loud_masked(draw: Draw) -> dict[str, Array]:
    found = draw.flat()
    found["v"][:, :, 2:] = 1e6
    return {**found, "mask": guarded(np.array([[1, 1, 0, 0]], bool))}


def _outside() -> list[Case]:
    found = make(
        "poison.behind_the_keys",
        "SHAPE-5",
        "memory behind the last key that is read with it",
        shape=Shape(q_len=3, kv_len=101),
        recipe=_cut_keys,
        dtypes=FOUR,
        source=gh("pytorch/pytorch#133717"),
    )
    found += make(
        "poison.behind_the_width",
        "SHAPE-3 SHAPE-5",
        "components behind a width of 5 that are read with it",
        shape=Shape(q_len=3, kv_len=4, head_dim=5),
        recipe=_cut_width,
        dtypes=FOUR,
        source=gh("Dao-AILab/flash-attention#1347"),
    )
    return found


def _cut_keys(draw: Draw) -> dict[str, Array]:
    found = {}
    for name, values in (("k", draw.k()), ("v", draw.v())):
        longer = np.full((1, 2, 128, 8), np.nan, np_dtype(draw.dtype))
        longer[:, :, :101] = values
        found[name] = longer[:, :, :101]
    return found


def _cut_width(draw: Draw) -> dict[str, Array]:
    found = {}
    for name, values in draw.qkv().items():
        wider = np.full((*values.shape[:-1], 8), np.nan, np_dtype(draw.dtype))
        wider[..., :5] = values
        found[name] = wider[..., :5]
    return found
