"""Sequences of unequal lengths packed end to end (layout `thd`), kept as data.

A spec cannot say this layout yet, so a case here is judged sequence by sequence: every sequence
means the same as if it were called alone (SHAPE-1), and is called alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sdpakit.conformance.cases.make import gh, make
from sdpakit.conformance.inputs import Array, Draw
from sdpakit.conformance.model import Case, Shape
from sdpakit.masks import Causal

NOT_YET = "AttentionSpec has no layout 'thd': called sequence by sequence"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ragged:
    """One packed call.

    Attributes
    ----------
    name, catches, source : str
        As in `Case`.
    cu_q, cu_kv : tuple of int
        Offsets of the sequences in the packed rows and keys, as the caller gives them.
    shape : Shape
        Heads and widths; batch and lengths have no meaning.
    spec : mapping
        Keyword arguments of the spec.
    refused : bool
        Whether the offsets are an error (MASK-4).
    reason : str
        Why it is not called as it stands.
    """

    name: str
    catches: str
    source: str
    cu_q: tuple[int, ...]
    cu_kv: tuple[int, ...]
    shape: Shape = field(default_factory=Shape)
    spec: Mapping[str, Any] = field(default_factory=dict)
    refused: bool = False
    gradients: bool = False
    reason: str = NOT_YET


RAGGED: tuple[Ragged, ...] = (
    Ragged(
        name="own_key_offsets",
        catches="keys cut by the offsets of the queries",
        source=gh("flashinfer-ai/flashinfer!4018"),
        cu_q=(0, 2, 5),
        cu_kv=(0, 6, 9),
    ),
    Ragged(
        name="sequence_without_keys",
        catches="a sequence without keys that is not zeros, or moves its neighbours",
        source=gh("Dao-AILab/flash-attention!1155"),
        cu_q=(0, 2, 4, 6),
        cu_kv=(0, 3, 3, 5),
    ),
    Ragged(
        name="lengths_of_0_and_1_in_groups",
        catches="every query length 0 or 1, several heads to a kv head",
        source=gh("Dao-AILab/flash-attention#1537"),
        cu_q=(0, 0, 1, 1, 2),
        cu_kv=(0, 0, 3, 3, 8),
        shape=Shape(q_heads=9, kv_heads=3),
    ),
    Ragged(
        name="sequence_without_queries",
        catches="a sequence without queries that shifts those behind it",
        source=gh("Dao-AILab/flash-attention#1713"),
        cu_q=(0, 2, 2, 5),
        cu_kv=(0, 3, 6, 7),
    ),
    Ragged(
        name="keys_without_queries_have_no_gradient",
        catches="gradients of keys that no row sees",
        source=gh("Dao-AILab/flash-attention#2562"),
        cu_q=(0, 0, 3, 4, 4),
        cu_kv=(0, 2, 4, 5, 7),
        shape=Shape(kv_heads=1),
        gradients=True,
    ),
    Ragged(
        name="causal_of_each_sequence",
        catches="one offset for all sequences",
        source=gh("Dao-AILab/flash-attention#380"),
        cu_q=(0, 4, 6),
        cu_kv=(0, 4, 9),
        spec={"mask": Causal("bottom_right")},
    ),
    Ragged(
        name="offsets_beyond_the_data",
        catches="offsets that end at 7 where there are 4 tokens",
        source=gh("Dao-AILab/flash-attention#1773"),
        cu_q=(0, 2, 7),
        cu_kv=(0, 2, 4),
        shape=Shape(q_heads=1),
        refused=True,
        reason="AttentionSpec has no layout 'thd', so there are no offsets to refuse",
    ),
)


def sequences(ragged: Ragged) -> list[Case]:
    """Return one case for each sequence of a packed call.

    Parameters
    ----------
    ragged : Ragged
        The packed call.

    Returns
    -------
    list of Case
        None for a call that is an error.
    """
    if ragged.refused:
        return []
    found: list[Case] = []
    spans = zip(_spans(ragged.cu_q), _spans(ragged.cu_kv), strict=True)
    for number, (rows, keys) in enumerate(spans):
        shape = Shape(
            q_heads=ragged.shape.q_heads,
            kv_heads=ragged.shape.kv_heads,
            q_len=rows[1] - rows[0],
            kv_len=keys[1] - keys[0],
            head_dim=ragged.shape.head_dim,
        )
        found += make(
            f"ragged.{ragged.name}.sequence_{number}",
            "SHAPE-1 EMPTY-1 SHAPE-4",
            ragged.catches,
            shape=shape,
            spec=ragged.spec,
            recipe=_cut(ragged, rows, keys),
            source=ragged.source,
        )
    return found


def _spans(offsets: tuple[int, ...]) -> list[tuple[int, int]]:
    return list(itertools.pairwise(offsets))


def _cut(ragged: Ragged, rows: tuple[int, int], keys: tuple[int, int]) -> Any:
    """Return a recipe of views into the packed arrays; what lies beside belongs to others."""

    def recipe(draw: Draw) -> dict[str, Array]:
        heads, kv, width = ragged.shape.q_heads, ragged.shape.kv, ragged.shape.head_dim
        q = draw.normal(1, heads, ragged.cu_q[-1], width)
        k = draw.normal(1, kv, ragged.cu_kv[-1], width)
        v = draw.normal(1, kv, ragged.cu_kv[-1], width)
        return {
            "q": q[:, :, rows[0] : rows[1]],
            "k": k[:, :, keys[0] : keys[1]],
            "v": v[:, :, keys[0] : keys[1]],
        }

    return recipe


def cases() -> list[Case]:
    """Return the cases of this family."""
    return [case for ragged in RAGGED for case in sequences(ragged)]
