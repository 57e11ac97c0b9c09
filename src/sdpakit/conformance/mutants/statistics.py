"""Mutants of lse, the row statistics, sinks and empty rows."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from sdpakit.conformance.mutants.bases import Call, Entry, Logits, Plain, respec
from sdpakit.conformance.mutants.model import Mutant, mutant
from sdpakit.reference.operands import Operands, accum_dtype

if TYPE_CHECKING:
    from sdpakit.spec import AttentionSpec


def lse_base_2(found: Entry, _ops: Operands) -> Entry:
    """The lse is a logarithm to the base 2."""
    return {**found, "lse": found["lse"] / np.log(2.0)}


def lse_of_empty_rows_finite(found: Entry, _ops: Operands) -> Entry:
    """The lse of an empty row is -1e30."""
    return {**found, "lse": np.where(np.isneginf(found["lse"]), -1e30, found["lse"])}


def lse_of_empty_rows_plus_infinity(found: Entry, _ops: Operands) -> Entry:
    """The lse of an empty row is +inf."""
    return {**found, "lse": np.where(np.isneginf(found["lse"]), np.inf, found["lse"])}


def lse_of_empty_rows_zero(found: Entry, _ops: Operands) -> Entry:
    """The lse of an empty row is 0, as a buffer of zeros has it."""
    return {**found, "lse": np.where(np.isneginf(found["lse"]), 0.0, found["lse"])}


def lse_without_maximum(found: Entry, _ops: Operands) -> Entry:
    """The lse is the logarithm of the sum alone."""
    m = found["max_logit"]
    return {**found, "lse": found["lse"] - np.where(np.isneginf(m), 0.0, m)}


def lse_with_sink(found: Entry, ops: Operands) -> Entry:
    """The sink is in the lse."""
    if ops.sinks is None:
        return found
    return {**found, "lse": np.logaddexp(found["lse"], ops.sinks[:, None])}


def lse_by_heads_last(
    right: Plain, spec: AttentionSpec, q: Any, k: Any, v: Any, **operands: Any
) -> Entry:
    """The lse follows the layout of q."""
    found = right.attention(spec, q, k, v, **operands)
    if spec.layout != "bshd":
        return found
    return {**found, "lse": np.ascontiguousarray(found["lse"].swapaxes(1, 2))}


def lse_with_a_last_axis(
    right: Plain, spec: AttentionSpec, q: Any, k: Any, v: Any, **operands: Any
) -> Entry:
    """The lse keeps an axis of size 1."""
    found = right.attention(spec, q, k, v, **operands)
    return {**found, "lse": found["lse"][..., None]}


def entropy_by_difference(right: Plain, ops: Operands, b: int) -> Entry:
    """The entropy is the small difference of two large numbers."""
    found = right.entry(ops, b)
    x, attended = right.logits(ops, b)
    accum = accum_dtype(ops.spec)
    lse = found["lse"].astype(accum)[..., None]
    p = np.where(attended, np.exp(x.astype(accum) - lse), 0).astype(accum)
    mean = np.where(attended, p * x.astype(accum), 0).sum(axis=-1, dtype=accum)
    return {**found, "entropy": np.where(np.isneginf(lse[..., 0]), 0, lse[..., 0] - mean)}


def entropy_in_bits(found: Entry, _ops: Operands) -> Entry:
    """The entropy is in bits."""
    return {**found, "entropy": found["entropy"] / np.log(2.0)}


def entropy_negative(found: Entry, _ops: Operands) -> Entry:
    """The sign of the entropy is lost."""
    return {**found, "entropy": -found["entropy"]}


def sum_p2_of_unnormalised(found: Entry, _ops: Operands) -> Entry:
    """The squares are divided by the sum once, not twice."""
    total = np.exp(found["lse"] - found["max_logit"])
    square = np.where(np.isneginf(found["lse"]), 0, found["sum_p2"] * total)
    return {**found, "sum_p2": square}


def max_logit_of_products(found: Entry, ops: Operands) -> Entry:
    """The largest logit is that before the scale."""
    m = found["max_logit"]
    return {**found, "max_logit": m / ops.scale if ops.scale else m}


def max_logit_of_all_keys(right: Plain, ops: Operands, b: int) -> Entry:
    """The largest logit counts masked keys."""
    found = right.entry(ops, b)
    x, _ = right.logits(ops, b)
    empty = np.isneginf(found["max_logit"])
    return {**found, "max_logit": np.where(empty, -np.inf, x.max(axis=-1, initial=-np.inf))}


def max_logit_at_least_zero(found: Entry, _ops: Operands) -> Entry:
    """The largest logit is never below 0."""
    m = found["max_logit"]
    return {**found, "max_logit": np.where(np.isneginf(m), m, np.maximum(m, 0))}


def statistics_with_the_sink(right: Plain, ops: Operands, b: int) -> Entry:
    """The statistics are those of the weights that the sink has made smaller."""
    found = right.entry(ops, b)
    if ops.sinks is None:
        return found
    share = 1.0 / (1.0 + np.exp(ops.sinks[:, None] - found["lse"]))
    square = np.where(np.isneginf(found["lse"]), 0, found["sum_p2"] * share * share)
    return {**found, "sum_p2": square, "entropy": found["entropy"] * share}


def sinks_dropped(spec: AttentionSpec, given: dict[str, Any]) -> Call:
    """Sinks are accepted and ignored."""
    given.pop("sinks", None)
    return respec(spec, sinks=False), given


def sink_of_kv_head(right: Plain, ops: Operands, b: int) -> Entry:
    """The heads of a group share the sink of their kv head."""
    if ops.sinks is not None:
        ops = dataclasses.replace(ops, sinks=ops.sinks[ops.kv_head])
    return right.entry(ops, b)


def sink_scaled(right: Plain, ops: Operands, b: int) -> Entry:
    """The sink is scaled."""
    if ops.sinks is not None:
        ops = dataclasses.replace(ops, sinks=ops.sinks * ops.scale)
    return right.entry(ops, b)


def sink_capped(right: Plain, ops: Operands, b: int) -> Entry:
    """The sink is capped."""
    cap = ops.spec.softcap
    if ops.sinks is not None and cap is not None:
        ops = dataclasses.replace(ops, sinks=cap * np.tanh(ops.sinks / cap))
    return right.entry(ops, b)


def sink_in_half(right: Plain, ops: Operands, b: int) -> Entry:
    """Sinks are rounded to float16."""
    if ops.sinks is not None:
        ops = dataclasses.replace(ops, sinks=ops.sinks.astype(np.float16).astype(np.float64))
    return right.entry(ops, b)


def sink_has_a_value(found: Entry, ops: Operands) -> Entry:
    """The sink has a value of ones."""
    if ops.sinks is None:
        return found
    with np.errstate(all="ignore"):
        share = 1.0 / (1.0 + np.exp(found["lse"] - ops.sinks[:, None]))
    share = np.where(np.isneginf(found["lse"]), 0.0, share)
    return {**found, "out": found["out"] + share[..., None]}


def sink_ignored_when_infinite(right: Plain, ops: Operands, b: int) -> Entry:
    """A sink of NaN or infinity is left out."""
    if ops.sinks is not None:
        finite = np.where(np.isfinite(ops.sinks), ops.sinks, -np.inf)
        ops = dataclasses.replace(ops, sinks=finite)
    return right.entry(ops, b)


def sink_makes_empty_rows_nan(found: Entry, ops: Operands) -> Entry:
    """An empty row with a sink that is NaN is NaN."""
    if ops.sinks is None:
        return found
    lost = np.isneginf(found["lse"]) & ~np.isfinite(ops.sinks[:, None])
    return {**found, "out": np.where(lost[..., None], np.nan, found["out"])}


def empty_row_policy_ignored(spec: AttentionSpec, given: dict[str, Any]) -> Call:
    """Empty rows are zero where NaN was asked for."""
    return respec(spec, empty_row="zero"), given


def empty_row_is_nan(spec: AttentionSpec, given: dict[str, Any]) -> Call:
    """Empty rows are 0/0."""
    return respec(spec, empty_row="nan"), given


def empty_row_is_the_mean(right: Plain, ops: Operands, b: int) -> Entry:
    """An empty row gives the mean of all values."""
    found = right.entry(ops, b)
    if not ops.v.shape[2]:
        return found
    v = np.nan_to_num(ops.v[b, ops.kv_head])
    mean = v.mean(axis=1)[:, None]
    return {**found, "out": np.where(np.isneginf(found["lse"])[..., None], mean, found["out"])}


def empty_row_by_the_mask_alone(right: Plain, ops: Operands, b: int) -> Entry:
    """A row whose logits are all -inf is 0/0: only the mask makes a row empty."""
    found = right.entry(ops, b)
    x, _ = right.logits(ops, b)
    lost = (x == -np.inf).all(axis=-1) & (x.shape[-1] > 0)
    return {**found, "out": np.where(lost[..., None], np.nan, found["out"])}


def empty_row_statistics_nan(found: Entry, _ops: Operands) -> Entry:
    """The entropy of an empty row is 0 * -inf."""
    empty = np.isneginf(found["lse"])
    return {**found, "entropy": np.where(empty, np.nan, found["entropy"])}


def minus_infinity_is_a_key(right: Plain, ops: Operands, b: int) -> Logits:
    """A bias of -inf is clamped to the lowest finite number."""
    x, attended = right.logits(ops, b)
    if ops.bias is None:
        return x, attended
    lowest = np.finfo(accum_dtype(ops.spec)).min
    lost = np.isneginf(x)
    return np.where(lost, lowest, x), attended | (lost & ~np.isnan(ops.bias[b]))


MUTANTS: tuple[Mutant, ...] = (
    mutant(Plain, "finish", lse_base_2, "statistics.lse_is_natural.float32"),
    mutant(Plain, "finish", lse_of_empty_rows_finite, "statistics.lse_of_empty_rows.float32"),
    mutant(
        Plain, "finish", lse_of_empty_rows_plus_infinity, "statistics.lse_of_empty_rows.float32"
    ),
    mutant(Plain, "finish", lse_of_empty_rows_zero, "statistics.lse_of_empty_rows.float32"),
    mutant(Plain, "finish", lse_without_maximum, "statistics.lse_keeps_the_maximum.float32"),
    mutant(
        Plain,
        "finish",
        lse_with_sink,
        "sinks.share_of_a_quarter.float32 statistics.without_the_sink.float32",
    ),
    mutant(Plain, "attention", lse_by_heads_last, "strides.layout_bshd.float32"),
    mutant(Plain, "attention", lse_with_a_last_axis, "statistics.outputs_lse.float32"),
    mutant(Plain, "entry", entropy_by_difference, "precision.logits_of_1e4.float32"),
    mutant(Plain, "finish", entropy_in_bits, "statistics.mild.float32"),
    mutant(Plain, "finish", entropy_negative, "statistics.outputs_entropy.float32"),
    mutant(Plain, "finish", sum_p2_of_unnormalised, "statistics.mild.float32"),
    mutant(Plain, "finish", max_logit_of_products, "statistics.outputs_max_logit.float32"),
    mutant(Plain, "entry", max_logit_of_all_keys, "poison.masked_keys_1e30.float32"),
    mutant(Plain, "finish", max_logit_at_least_zero, "precision.lse_near_minus_1000.float32"),
    mutant(Plain, "entry", statistics_with_the_sink, "statistics.without_the_sink.float32"),
    mutant(Plain, "change", sinks_dropped, "sinks.share_of_a_quarter.float32"),
    mutant(Plain, "entry", sink_of_kv_head, "sinks.one_for_each_query_head.float32"),
    mutant(Plain, "entry", sink_scaled, "sinks.not_scaled.float32"),
    mutant(Plain, "entry", sink_capped, "sinks.not_capped.float32"),
    mutant(Plain, "entry", sink_in_half, "sinks.of_float32.float32"),
    mutant(Plain, "finish", sink_has_a_value, "sinks.share_of_a_quarter.float32"),
    mutant(Plain, "entry", sink_ignored_when_infinite, "sinks.nan.float32 sinks.plus_inf.float32"),
    mutant(Plain, "finish", sink_makes_empty_rows_nan, "sinks.nan_and_an_empty_row.float32"),
    mutant(Plain, "change", empty_row_policy_ignored, "empty.nan_policy.float32"),
    mutant(Plain, "change", empty_row_is_nan, "empty.last_row.float32 empty.no_keys_zero.float32"),
    mutant(
        Plain,
        "entry",
        empty_row_is_the_mean,
        "empty.not_the_mean_of_v.float32",
        "microsoft/onnxruntime!28958",
    ),
    mutant(
        Plain,
        "entry",
        empty_row_by_the_mask_alone,
        "empty.by_bias.float32",
        "pytorch/pytorch#41508",
    ),
    mutant(Plain, "finish", empty_row_statistics_nan, "empty.nan_policy.float32"),
    mutant(Plain, "logits", minus_infinity_is_a_key, "empty.by_bias.float32"),
)
