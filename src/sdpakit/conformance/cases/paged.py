"""Keys and values in pages that a block table names (PAGED-1, PAGED-2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sdpakit.conformance.cases.make import ALL, FOUR, make
from sdpakit.conformance.inputs import Array, Draw, guarded
from sdpakit.conformance.model import Case, Shape
from sdpakit.logits import Alibi
from sdpakit.masks import Causal, Window

HERE, BOTH = "PAGED-1", "PAGED-1 PAGED-2"
UNUSED = (2**31 - 1, -1)  # what stands in a block table past the length


def cases() -> list[Case]:
    """Return the cases of this family."""
    return [*_sizes(), *_rows(), *_tables()]


def _paged(  # noqa: PLR0913 - the fields of a case
    name: str,
    catches: str,
    page_size: int,
    lengths: Sequence[int],
    *,
    rules: str = HERE,
    shape: Mapping[str, Any] | None = None,
    spec: Mapping[str, Any] | None = None,
    given: Mapping[str, Any] | None = None,
    recipe: Any = None,
    shared: int = 0,
    table: str = "int32",
    **fields: Any,
) -> list[Case]:
    """Return cases of a paged call; the first `shared` pages of all entries are the same."""
    sizes = Shape(**{"batch": len(lengths), "kv_len": max(lengths), **(shape or {})})

    def operands(draw: Draw) -> dict[str, Any]:
        found = {name: guarded(np.array(x, np.int32)) for name, x in (given or {}).items()}
        found |= {} if recipe is None else recipe(draw)
        numbers = _table(draw, page_size, lengths, shared).astype(table)
        for part, width in (("k", draw.shape.head_dim), ("v", draw.shape.width)):
            found[part] = _filled(draw, page_size, lengths, numbers, width)
        lens = guarded(np.array(lengths, np.int32))
        return {**found, "kv_lens": lens, "block_table": guarded(numbers)}

    return make(
        f"paged.{name}",
        rules,
        catches,
        shape=sizes,
        spec={"paged": True, "kv_lens": True, **(spec or {})},
        recipe=operands,
        **fields,
    )


def _table(draw: Draw, size: int, lengths: Sequence[int], shared: int) -> Array:
    """Return a block table of pages out of order, with nonsense where nobody may look."""
    counts = [-(-length // size) for length in lengths]
    order = draw.rng.permutation(sum(counts) + 2)
    table = np.resize(np.array(UNUSED), (len(lengths), max(counts) + 1))
    start = 0
    for b, count in enumerate(counts):
        table[b, :count] = order[start : start + count]
        start += count
        table[b, : min(shared, count)] = table[0, : min(shared, count)]
    return table


def _filled(draw: Draw, size: int, lengths: Sequence[int], table: Array, width: int) -> Array:
    """Return random pages, with NaN in every slot that no entry has a key in (MASK-3)."""
    counts = [-(-length // size) for length in lengths]
    pages = draw.normal(sum(counts) + 2, size, draw.shape.kv, width)
    used = np.zeros(pages.shape[:2], bool)
    for b, length in enumerate(lengths):
        for j in range(length):
            used[table[b, j // size], j % size] = True
    pages[~used] = np.nan
    return pages


def _sizes() -> list[Case]:
    return [
        *_paged(
            "pages_of_16",
            "pages taken in order, a last page read to its end, or the table of one entry for all",
            16,
            (37, 5, 0, 16),
            rules=f"{BOTH} MASK-2 MASK-3 EMPTY-1",
            spec={"mask": Causal("bottom_right")},
            shape={"q_heads": 4, "kv_heads": 2},
            outputs=ALL,
            dtypes=FOUR,
        ),
        *_paged(
            "pages_of_1",
            "a page size that is taken to be a multiple of something",
            1,
            (3, 11, 7),
            dtypes=FOUR,
        ),
        *_paged(
            "a_page_larger_than_the_length",
            "a page that is taken to be full",
            64,
            (3, 1, 20),
            rules=f"{BOTH} MASK-3",
            dtypes=FOUR,
        ),
        *_paged(
            "pages_of_7_across_tiles",
            "pages that do not divide a tile of keys",
            7,
            (300, 190, 1),
            shape={"q_heads": 2, "kv_heads": 1, "head_dim": 16, "v_head_dim": 5, "q_len": 3},
            spec={"mask": Causal("bottom_right")},
            level="full",
            dtypes=FOUR,
        ),
        *_paged("no_keys", "lengths of 0, and no page at all", 4, (0, 0), rules=f"{HERE} EMPTY-1"),
    ]


def _rows() -> list[Case]:
    ends = {"cu_q_lens": (0, 3, 3, 4)}
    return [
        *_paged(
            "decoding",
            "one new row for each entry, several heads to a kv head",
            8,
            (19, 8, 1, 30),
            shape={"q_heads": 8, "kv_heads": 2, "q_len": 1},
            spec={"mask": Causal("bottom_right")},
            outputs=ALL,
            dtypes=FOUR,
        ),
        *_paged(
            "ragged_rows",
            "offsets of rows taken for those of keys",
            4,
            (9, 2, 6),
            rules=f"{HERE} RAGGED-1",
            shape={"batch": 1, "q_len": 4, "q_heads": 4, "kv_heads": 1},
            spec={"layout": "thd", "mask": Causal("bottom_right")},
            given=ends,
            outputs=ALL,
            dtypes=FOUR,
        ),
        *_paged(
            "rows_before_heads",
            "pages laid out as the layout of q",
            4,
            (9, 2, 6),
            spec={"layout": "bshd", "mask": Window(3, 0, "bottom_right")},
        ),
        *_paged(
            "true_query_lengths",
            "an alignment by padded lengths",
            4,
            (9, 2, 6),
            rules=f"{HERE} MASK-2 MASK-4",
            spec={"q_lens": True, "mask": Causal("bottom_right")},
            given={"q_lens": (5, 1, 3)},
        ),
    ]


def _tables() -> list[Case]:
    return [
        *_paged(
            "shared_pages",
            "a page that two entries share, and one of them writes or owns",
            4,
            (10, 14, 4),
            shared=2,
            spec={"mask": Causal("bottom_right")},
        ),
        *_paged(
            "wide_table",
            "a block table of another integer dtype",
            4,
            (10, 3),
            table="int64",
        ),
        *_paged(
            "everything_at_once",
            "a feature that does not go with pages",
            16,
            (40, 17, 33),
            rules=f"{BOTH} SINK-1 CAP-1 STAT-1 EXPR-1",
            shape={"q_heads": 6, "kv_heads": 2, "v_head_dim": 3, "q_len": 9},
            spec={
                "mask": Window(12, 0, "bottom_right"),
                "logits": Alibi("slopes", "bottom_right"),
                "softcap": 3.0,
                "sinks": True,
            },
            recipe=lambda draw: {
                "sinks": draw.normal(6, dtype="float32"),
                "params": {"slopes": draw.normal(6, dtype="float32")},
            },
            outputs=ALL,
            dtypes=FOUR,
        ),
    ]
