"""Batches whose entries lie one behind the other (layout `thd`), cut by offsets (RAGGED-1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sdpakit.conformance.cases.make import ALL, F32, FOUR, HALVES, gh, make
from sdpakit.conformance.inputs import Array, Draw, guarded
from sdpakit.conformance.model import Case, Shape
from sdpakit.expr.operands import Table
from sdpakit.logits import Alibi
from sdpakit.masks import Causal, Document, Predicate, Window

DAO = "Dao-AILab/flash-attention"
HERE, BOTH = "RAGGED-1", "RAGGED-1 RAGGED-2"


def cases() -> list[Case]:
    """Return the cases of this family."""
    return [*_lengths(), *_masks(), *_past(), *_operands()]


def _ragged(  # noqa: PLR0913 - the fields of a case
    name: str,
    catches: str,
    q_ends: Sequence[int],
    kv_ends: Sequence[int],
    *,
    rules: str = HERE,
    past: int = 0,
    shape: Mapping[str, Any] | None = None,
    recipe: Any = None,
    spec: Mapping[str, Any] | None = None,
    **fields: Any,
) -> list[Case]:
    """Return cases of a packed call, with so many tokens of NaN past the last entry."""
    sizes = Shape(**{**(shape or {}), "q_len": q_ends[-1] + past, "kv_len": kv_ends[-1] + past})

    def operands(draw: Draw) -> dict[str, Any]:
        found: dict[str, Any] = dict(draw.qkv() if recipe is None else recipe(draw))
        for part, end in (("q", q_ends[-1]), ("k", kv_ends[-1]), ("v", kv_ends[-1])):
            if past:
                found[part][:, :, end:] = np.nan
        ends = {"cu_q_lens": q_ends, "cu_kv_lens": kv_ends}
        return {**found, **{n: guarded(np.array(x, np.int32)) for n, x in ends.items()}}

    return make(
        f"ragged.{name}",
        rules,
        catches,
        shape=sizes,
        spec={"layout": "thd", **(spec or {})},
        recipe=operands,
        **fields,
    )


def _lengths() -> list[Case]:
    return [
        *_ragged(
            "own_key_offsets",
            "keys cut by the offsets of the queries",
            (0, 2, 5),
            (0, 6, 9),
            dtypes=FOUR,
            outputs=ALL,
            source=gh("flashinfer-ai/flashinfer!4018"),
        ),
        *_ragged(
            "entry_without_keys",
            "an entry without keys that is not zeros, or moves its neighbours",
            (0, 2, 4, 6),
            (0, 3, 3, 5),
            rules=f"{HERE} EMPTY-1",
            source=gh(f"{DAO}#1155"),
        ),
        *_ragged(
            "lengths_of_0_and_1_in_groups",
            "every query length 0 or 1, several heads to a kv head",
            (0, 0, 1, 1, 2),
            (0, 0, 3, 3, 8),
            shape={"q_heads": 9, "kv_heads": 3},
            dtypes=(F32, *HALVES),
            source=gh(f"{DAO}#1537"),
        ),
        *_ragged(
            "entry_without_queries",
            "an entry without queries that shifts those behind it",
            (0, 2, 2, 5),
            (0, 3, 6, 7),
            source=gh(f"{DAO}#1713"),
        ),
        *_ragged(
            "one_row_each_in_groups",
            "the rows of a decoding step taken for one entry",
            (0, 1, 2, 3, 4),
            (0, 70, 71, 71, 300),
            shape={"q_heads": 8, "kv_heads": 2},
            spec={"mask": Causal("bottom_right")},
            outputs=ALL,
        ),
        *_ragged(
            "one_entry",
            "a batch of one entry that is no batch",
            (0, 5),
            (0, 7),
            shape={"q_heads": 4, "kv_heads": 1, "v_head_dim": 5},
        ),
        *_ragged(
            "long_and_short",
            "tiles counted from the first token of all, or past the end of an entry",
            (0, 130, 131, 131, 150, 230),
            (0, 201, 203, 330, 331, 531),
            shape={"q_heads": 2, "kv_heads": 1, "head_dim": 16},
            spec={"mask": Causal("bottom_right")},
            level="full",
            dtypes=FOUR,
        ),
    ]


def _masks() -> list[Case]:
    found: list[Case] = []
    for name, mask, catches in (
        ("causal", Causal("bottom_right"), "one alignment for all entries"),
        ("causal_top_left", Causal("top_left"), "rows counted from the first token of all"),
        ("window", Window(2, 1, "bottom_right"), "a window around tokens, not rows of an entry"),
    ):
        found += _ragged(
            f"{name}_of_each_entry",
            catches,
            (0, 4, 6, 9),
            (0, 4, 9, 11),
            rules=f"{HERE} MASK-2",
            spec={"mask": mask},
            dtypes=FOUR,
            source=gh(f"{DAO}#380") if name == "causal" else "",
        )
    return [
        *found,
        *_ragged(
            "open_alignment_of_equal_lengths",
            "equal lengths of all entries that are taken for one length",
            (0, 4, 5, 9),
            (0, 4, 5, 9),
            rules=f"{HERE} MASK-2",
            spec={"mask": Causal(), "equal_lens": True},
        ),
        *_ragged(
            "offset_of_each_entry",
            "the offset of the first entry for all",
            (0, 2, 4, 5),
            (0, 5, 9, 12),
            rules=f"{HERE} MASK-2",
            spec={"mask": Causal("offset")},
            recipe=lambda draw: {**draw.qkv(), "q_offset": draw.array((1, 3, 0), "int64")},
        ),
        *_ragged(
            "documents_by_entry",
            "a table that is read by tokens, not by entries",
            (0, 4, 6),
            (0, 4, 6),
            rules=f"{HERE} MASK-7",
            spec={"mask": Document("ids") & Causal("top_left")},
            recipe=lambda draw: {
                **draw.qkv(),
                "params": {"ids": draw.array(((0, 0, 1, 1), (2, 1, 9, 9)), "int32")},
            },
        ),
        *_ragged(
            "expression_of_lengths",
            "indices or lengths of an expression that are not those of the entry",
            (0, 3, 4, 8),
            (0, 5, 5, 12),
            rules=f"{HERE} EXPR-1",
            spec={
                "mask": Predicate(lambda i: (i.k + i.b) % 3 != i.q_len % 3),
                "logits": lambda x, i: x + Table("t", "float32", 2)[i.b, i.k] * (i.kv_len - i.k),
            },
            recipe=lambda draw: {
                **draw.qkv(),
                "params": {"t": draw.normal(3, 7, dtype="float32")},
            },
        ),
    ]


def _past() -> list[Case]:
    return [
        *_ragged(
            "tokens_past_the_last",
            "tokens past the last entry that are computed, joined to it, or left unwritten",
            (0, 2, 5),
            (0, 4, 6),
            rules=f"{BOTH} MASK-3 EMPTY-1",
            past=4,
            spec={"mask": Causal("bottom_right")},
            outputs=ALL,
            dtypes=FOUR,
        ),
        *_ragged(
            "tokens_past_the_last_as_nan",
            "empty rows past the last entry that are not those of the spec",
            (0, 1, 3),
            (0, 2, 2),
            rules=f"{BOTH} EMPTY-1",
            past=2,
            spec={"empty_row": "nan"},
        ),
        *_ragged(
            "no_entries",
            "no entry at all, and tokens all the same",
            (0,),
            (0,),
            rules=f"{BOTH} SHAPE-4",
            past=3,
            outputs=ALL,
        ),
    ]


def _fused(draw: Draw) -> dict[str, Array]:
    """Return q, k, v as parts of one array (tokens, 3, heads, width)."""
    s = draw.shape
    both = draw.normal(s.q_len, 3, s.q_heads, s.head_dim)
    return {name: both[:, at] for at, name in enumerate("qkv")}


def _operands() -> list[Case]:
    return [
        *_ragged(
            "parts_of_one_array",
            "tokens that are taken to be contiguous",
            (0, 4, 6),
            (0, 4, 6),
            rules=f"{HERE} SHAPE-5",
            recipe=_fused,
            spec={"mask": Causal("top_left")},
        ),
        *_ragged(
            "everything_at_once",
            "a feature that does not go with offsets",
            (0, 7, 7, 20, 21),
            (0, 9, 12, 40, 41),
            rules=f"{BOTH} SINK-1 CAP-1 STAT-1",
            past=3,
            shape={"q_heads": 6, "kv_heads": 2, "v_head_dim": 3},
            spec={
                "mask": Window(6, 0, "bottom_right"),
                "logits": Alibi("slopes", "bottom_right"),
                "softcap": 3.0,
                "sinks": True,
            },
            recipe=lambda draw: {
                **draw.qkv(),
                "sinks": draw.normal(6, dtype="float32"),
                "params": {"slopes": draw.normal(6, dtype="float32")},
            },
            outputs=ALL,
            dtypes=FOUR,
        ),
    ]
