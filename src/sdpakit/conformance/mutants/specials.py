"""Mutants that let masked keys through, or lose or spread NaN and infinities."""

from __future__ import annotations

import dataclasses

import numpy as np

from sdpakit.conformance.inputs import Array
from sdpakit.conformance.mutants.bases import Entry, Logits, Plain
from sdpakit.conformance.mutants.model import Mutant, mutant
from sdpakit.reference.operands import Operands


def mask_adds_minus_1e4(right: Plain, ops: Operands, b: int) -> Logits:
    """A mask adds -10000."""
    x, attended = right.logits(ops, b)
    seen = attended | (x == -np.inf)
    return np.where(seen, x, x - 1e4), np.ones_like(attended)


def mask_adds_minus_1e9(right: Plain, ops: Operands, b: int) -> Logits:
    """A mask adds -1e9, and an empty row is the mean of its values."""
    x, attended = right.logits(ops, b)
    seen = attended | (x == -np.inf)
    return np.where(seen, x, x - 1e9).astype(x.dtype), np.ones_like(attended)


def mask_is_the_lowest_number(right: Plain, ops: Operands, b: int) -> Logits:
    """A masked logit is the lowest finite number."""
    x, attended = right.logits(ops, b)
    seen = attended | (x == -np.inf)
    return np.where(seen, x, np.finfo(x.dtype).min), np.ones_like(attended)


def mask_adds_minus_infinity(right: Plain, ops: Operands, b: int) -> Logits:
    """A mask adds -inf to whatever is there, NaN and +inf included."""
    x, attended = right.logits(ops, b)
    strange = ~attended & (np.isnan(x) | (x == np.inf))
    return np.where(strange, np.nan, x), attended | strange


def mask_multiplies(_right: Plain, e: Array, v: Array, _attended: Array) -> Array:
    """Masked values are multiplied by weights of 0."""
    return np.asarray(e @ v)


def mask_after_the_softmax(right: Plain, ops: Operands, b: int) -> Entry:
    """Weights are masked after they were normalised over all keys."""
    found = right.entry(ops, b)
    x, attended = right.logits(ops, b)
    x = np.where(np.isfinite(x), x, -np.inf)
    m = np.where(np.isneginf(found["max_logit"]), 0, found["max_logit"])
    e = np.exp(x - m[..., None])
    share = (e * attended).sum(axis=-1) / np.where(e.sum(axis=-1) == 0, 1, e.sum(axis=-1))
    return {**found, "out": found["out"] * share[..., None]}


def nan_swallowed(found: Entry, _ops: Operands) -> Entry:
    """A row that is NaN gives 0."""
    return {**found, "out": np.where(np.isnan(found["lse"])[..., None], 0.0, found["out"])}


def nan_logit_is_absent(right: Plain, ops: Operands, b: int) -> Logits:
    """A key whose logit is NaN is left out."""
    x, attended = right.logits(ops, b)
    return x, attended & ~np.isnan(x)


def nan_of_one_row_in_all(found: Entry, _ops: Operands) -> Entry:
    """A NaN in one row reaches the rows computed with it."""
    lost = np.asarray(np.isnan(found["lse"]).any(axis=-1, keepdims=True))
    return {**found, "out": np.where(lost[..., None], np.nan, found["out"])}


def nan_in_out_alone(found: Entry, _ops: Operands) -> Entry:
    """A NaN logit does not show in the largest logit: a maximum drops NaN."""
    m = found["max_logit"]
    return {**found, "max_logit": np.where(np.isnan(m), 0.0, m)}


def nan_value_in_every_channel(found: Entry, _ops: Operands) -> Entry:
    """A NaN in one channel of v reaches all channels."""
    lost = np.isnan(found["out"]).any(axis=-1, keepdims=True)
    return {**found, "out": np.where(lost, np.nan, found["out"])}


def infinite_values_cleaned(right: Plain, ops: Operands, b: int) -> Entry:
    """NaN and infinities in v are replaced by numbers."""
    return right.entry(dataclasses.replace(ops, v=np.where(np.isfinite(ops.v), ops.v, 0.0)), b)


def infinite_logit_wins(right: Plain, ops: Operands, b: int) -> Logits:
    """A logit of +inf takes all the weight."""
    x, attended = right.logits(ops, b)
    return np.where(x == np.inf, 3e38, x), attended


def infinite_logit_is_absent(right: Plain, ops: Operands, b: int) -> Logits:
    """A key whose logit is +inf is left out."""
    x, attended = right.logits(ops, b)
    return x, attended & (x != np.inf)


MUTANTS: tuple[Mutant, ...] = (
    mutant(
        Plain,
        "logits",
        mask_adds_minus_1e4,
        "empty.not_the_mean_of_v.float32 bias.below_a_sentinel.float32",
    ),
    mutant(Plain, "logits", mask_adds_minus_1e9, "empty.not_the_mean_of_v.float32"),
    mutant(Plain, "logits", mask_is_the_lowest_number, "empty.not_the_mean_of_v.float32"),
    mutant(
        Plain,
        "logits",
        mask_adds_minus_infinity,
        "poison.masked_keys_nan.float32",
        "pytorch/pytorch#101967",
    ),
    mutant(
        Plain,
        "mix",
        mask_multiplies,
        "poison.masked_keys_nan.float32 poison.rows_apart_causal.float32",
        "Dao-AILab/flash-attention#2374",
    ),
    mutant(Plain, "entry", mask_after_the_softmax, "masks.causal_random.float32"),
    mutant(Plain, "finish", nan_swallowed, "specials.nan_query.float32"),
    mutant(Plain, "logits", nan_logit_is_absent, "specials.nan_query.float32"),
    mutant(Plain, "finish", nan_of_one_row_in_all, "specials.nan_query.float32"),
    mutant(Plain, "finish", nan_in_out_alone, "specials.nan_query.float32"),
    mutant(Plain, "finish", nan_value_in_every_channel, "specials.infinite_values.float32"),
    mutant(Plain, "entry", infinite_values_cleaned, "specials.infinite_values.float32"),
    mutant(Plain, "logits", infinite_logit_wins, "specials.infinite_logit.float32"),
    mutant(Plain, "logits", infinite_logit_is_absent, "specials.infinite_logit.float32"),
)
