"""Mutants of batches without padding: offsets (RAGGED-1) and block tables (PAGED-1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from sdpakit.conformance.mutants.bases import Call, Entry, Plain, Wrapped
from sdpakit.conformance.mutants.model import Mutant, mutant

if TYPE_CHECKING:
    from sdpakit.spec import AttentionSpec

Kernel = Callable[..., Any]


def keys_cut_by_query_offsets(spec: AttentionSpec, given: dict[str, Any]) -> Call:
    """Keys are cut by the offsets of the queries."""
    if "cu_kv_lens" in given:
        given["cu_kv_lens"] = np.minimum(given["cu_q_lens"], len(given["k"]))
    return spec, given


def tokens_past_the_last_joined(spec: AttentionSpec, given: dict[str, Any]) -> Call:
    """The last entry is taken to reach to the end of the arrays."""
    for name, tokens in (("cu_q_lens", "q"), ("cu_kv_lens", "k")):
        if name in given and len(given[name]) > 1:
            given[name] = np.append(given[name][:-1], len(given[tokens]))
    return spec, given


def tokens_past_the_last_unwritten(
    right: Plain, spec: AttentionSpec, q: Any, k: Any, v: Any, **operands: Any
) -> Entry:
    """Rows past the last entry keep what was in memory."""
    found = right.attention(spec, q, k, v, **operands)
    if spec.layout == "thd":
        for x in found.values():
            x[int(operands["cu_q_lens"][-1]) :] = 1.0
    return found


def statistics_with_heads_first(
    right: Plain, spec: AttentionSpec, q: Any, k: Any, v: Any, **operands: Any
) -> Entry:
    """Row statistics of a ragged batch have heads before tokens."""
    found = right.attention(spec, q, k, v, **operands)
    if spec.layout == "thd":
        found = {name: x if name == "out" else x.swapaxes(0, 1) for name, x in found.items()}
    return found


def pages_of_the_first_entry(spec: AttentionSpec, given: dict[str, Any]) -> Call:
    """All entries read the pages of the first."""
    if spec.paged and len(given["block_table"]):
        first = np.clip(given["block_table"][0], 0, len(given["k"]) - 1)
        given["block_table"] = np.tile(first, (len(given["block_table"]), 1))
    return spec, given


def pages_in_order(spec: AttentionSpec, given: dict[str, Any]) -> Call:
    """Pages are read one behind the other, the table notwithstanding."""
    if spec.paged:
        table = given["block_table"]
        numbers = np.arange(table.size).reshape(table.shape)
        given["block_table"] = np.minimum(numbers, len(given["k"]) - 1)
    return spec, given


def last_page_to_its_end(spec: AttentionSpec, given: dict[str, Any]) -> Call:
    """The last page of an entry is read to its end."""
    if spec.paged:
        size = given["k"].shape[1]
        given["kv_lens"] = -(-given["kv_lens"] // size) * size
    return spec, given


def offsets_clamped(kernel: Kernel, spec: AttentionSpec, given: dict[str, Any]) -> Any:
    """Offsets beyond the tokens are cut in silence."""
    for name, tokens in (("cu_q_lens", "q"), ("cu_kv_lens", "k")):
        if isinstance(given.get(name), np.ndarray) and given[name].dtype.kind in "iu":
            given[name] = np.clip(given[name], 0, len(given[tokens]))
    return kernel(**given)


def page_numbers_wrapped(kernel: Kernel, spec: AttentionSpec, given: dict[str, Any]) -> Any:
    """Numbers of pages that there are not are taken modulo those that there are."""
    if isinstance(given.get("block_table"), np.ndarray) and len(given["k"]):
        given["block_table"] = given["block_table"] % len(given["k"])
    return kernel(**given)


MUTANTS: tuple[Mutant, ...] = (
    mutant(
        Plain,
        "change",
        keys_cut_by_query_offsets,
        "ragged.own_key_offsets.float32",
        "flashinfer-ai/flashinfer!4018",
    ),
    mutant(Plain, "change", tokens_past_the_last_joined, "ragged.tokens_past_the_last.float32"),
    mutant(
        Plain,
        "attention",
        tokens_past_the_last_unwritten,
        "ragged.tokens_past_the_last.float32 ragged.no_entries.float32",
    ),
    mutant(Plain, "attention", statistics_with_heads_first, "ragged.own_key_offsets.float32"),
    mutant(Plain, "change", pages_of_the_first_entry, "paged.pages_of_16.float32"),
    mutant(Plain, "change", pages_in_order, "paged.pages_of_16.float32 paged.pages_of_1.float32"),
    mutant(
        Plain,
        "change",
        last_page_to_its_end,
        "paged.pages_of_16.float32 paged.a_page_larger_than_the_length.float32",
    ),
    mutant(
        Wrapped,
        "call",
        offsets_clamped,
        "refusals.offsets_beyond_the_data.float32 refusals.offsets_negative.float32",
        "Dao-AILab/flash-attention#1773",
    ),
    mutant(
        Wrapped,
        "call",
        page_numbers_wrapped,
        "refusals.pages_past_the_pages.float32 refusals.pages_negative.float32",
    ),
)
