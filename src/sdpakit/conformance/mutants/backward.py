"""Mutants of the backward: what the forward has right and the gradients have not.

Those that compute or round in less than they should are in `backward_precision`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from sdpakit.conformance.gradients.naive import Backward, Entry
from sdpakit.conformance.inputs import Array, np_dtype
from sdpakit.conformance.mutants.bases import respec
from sdpakit.conformance.mutants.model import Mutant, mutant
from sdpakit.conformance.target import BaseTarget
from sdpakit.conformance.targets.naive import Naive
from sdpakit.masks import Causal, Mask, Window
from sdpakit.reference.operands import Operands

if TYPE_CHECKING:
    from sdpakit.spec import AttentionSpec

Weights = tuple[Array, Array]
Change = tuple[Array, dict[str, Array]]
Gradients = dict[str, Array]


class Right(Backward, BaseTarget):
    """The plain backward as a target that has gradients and nothing else."""

    def __init__(self) -> None:
        super().__init__(Naive())

    def prepare_gradients(self, spec: AttentionSpec) -> Callable[..., Gradients]:
        """Return a callable for the spec; see `Target.prepare_gradients`."""
        return functools.partial(self.gradients, spec)


def half(x: Array) -> Array:
    """Return values as float16 holds them."""
    return x.astype(np.float16).astype(x.dtype)


def with_fields(entry: Entry, **fields: Any) -> Entry:
    """Return an entry with other fields."""
    return dataclasses.replace(entry, **fields)


# --------------------------------------------------------------------------------------- softmax


def weights_by_exp_of_minus_lse(_right: Right, entry: Entry, lse: Array) -> Array:
    """Weights are exp(x) * exp(-lse)."""
    p = np.exp(entry.x) * np.exp(-lse)[..., None]
    return np.asarray(np.where(entry.attended, p, 0).astype(entry.accum))


def weights_of_masked_pairs(_right: Right, entry: Entry, lse: Array) -> Array:
    """exp(0 - lse) is the weight of a masked pair."""
    logits = np.where(entry.attended, entry.x, 0)
    return np.asarray(np.exp(logits - lse[..., None]).astype(entry.accum))


def weights_of_empty_rows_by_their_lse(right: Right, entry: Entry, lse: Array) -> Array:
    """-inf is subtracted from -inf in an empty row."""
    empty = ~entry.attended.any(axis=-1, keepdims=True)
    return np.where(empty, np.nan, right.exponentials(entry, lse)).astype(entry.accum)


def weights_shifted_by_the_head(right: Right, entry: Entry) -> Weights:
    """All rows of a head are shifted by one maximum."""
    top = entry.x.max(initial=-np.inf)
    top = entry.accum.type(top if np.isfinite(top) else 0)
    total = np.exp(entry.x - top).sum(axis=-1)
    lse = (top + np.log(total)).astype(entry.accum)
    return right.exponentials(entry, lse), lse


def weights_without_the_sink(right: Right, entry: Entry) -> Weights:
    """The lse of the backward leaves the sink out."""
    return right.weights(with_fields(entry, ops=dataclasses.replace(entry.ops, sinks=None)))


def sink_scaled_in_the_backward(right: Right, entry: Entry) -> Weights:
    """The lse of the backward has the sink times the scale."""
    ops = entry.ops
    if ops.sinks is not None:
        ops = dataclasses.replace(ops, sinks=ops.sinks * ops.scale)
    return right.weights(with_fields(entry, ops=ops))


def sink_of_the_kv_head_in_the_backward(right: Right, entry: Entry) -> Weights:
    """The lse of the backward has the sink of the kv head."""
    ops = entry.ops
    if ops.sinks is not None:
        ops = dataclasses.replace(ops, sinks=ops.sinks[ops.kv_head])
    return right.weights(with_fields(entry, ops=ops))


def delta_left_out(_right: Right, _entry: Entry, p: Array, _dp: Array) -> Array:
    """The gradient of a logit is p dP."""
    return np.zeros(p.shape[:-1], p.dtype)


def delta_of_all_channels_as_a_mean(right: Right, entry: Entry, p: Array, dp: Array) -> Array:
    """Delta is the mean of dP, not its mean by weight."""
    count = np.maximum(entry.attended.sum(axis=-1), 1)
    return np.asarray((dp.sum(axis=-1) / count).astype(entry.accum))


def delta_with_the_sink_taken_out(right: Right, entry: Entry, p: Array, dp: Array) -> Array:
    """Delta is divided by the weight that the sink leaves."""
    total = p.sum(axis=-1)
    return np.asarray(right.delta(entry, p, dp) / np.where(total > 0, total, 1))


def delta_of_masked_pairs(right: Right, entry: Entry, p: Array, _dp: Array) -> Array:
    """Delta adds up zero weights times whatever masked values give."""
    return np.asarray((p * right.value_products(entry)).sum(axis=-1))


def nan_gradients_swallowed(right: Right, entry: Entry, p: Array, dp: Array, delta: Array) -> Array:
    """A gradient of NaN counts as 0."""
    return np.nan_to_num(right.dlogits(entry, p, dp, delta), posinf=0.0, neginf=0.0)


def nan_of_a_row_for_its_head(
    right: Right, entry: Entry, p: Array, dp: Array, delta: Array
) -> Array:
    """A NaN in one row makes the gradients of its head NaN."""
    found = right.dlogits(entry, p, dp, delta)
    lost = np.isnan(found).any(axis=(-1, -2), keepdims=True)
    return np.where(lost & entry.attended, np.nan, found).astype(entry.accum)


def nan_value_reaches_dv(right: Right, entry: Entry, p: Array) -> Array:
    """A NaN in v makes dv of its key NaN."""
    found = right.value_sum(entry, p)
    seen = np.asarray(entry.attended.any(axis=1))[..., None]
    return np.where(seen & ~np.isfinite(entry.v), np.nan, found).astype(entry.accum)


# ------------------------------------------------------------------------------- scale, cap, heads


def scale_left_out(right: Right, entry: Entry, dbiased: Array) -> Array:
    """Gradients of q and k lack the scale."""
    ops = dataclasses.replace(entry.ops, scale=1.0)
    return right.through_cap(with_fields(entry, ops=ops), dbiased)


def scale_taken_twice(right: Right, entry: Entry, dbiased: Array) -> Array:
    """Gradients of q and k have the scale twice."""
    ops = dataclasses.replace(entry.ops, scale=entry.ops.scale**2)
    return right.through_cap(with_fields(entry, ops=ops), dbiased)


def scale_of_the_default(right: Right, entry: Entry, dbiased: Array) -> Array:
    """Gradients of q and k have the scale 1/sqrt(D), whatever the spec says."""
    ops = dataclasses.replace(entry.ops, scale=entry.ops.spec.head_dim**-0.5)
    return right.through_cap(with_fields(entry, ops=ops), dbiased)


def cap_slope_left_out(_right: Right, entry: Entry) -> Any:
    """The gradient goes through the cap as it is."""
    return entry.accum.type(1)


def cap_slope_of_the_biased_logit(right: Right, entry: Entry) -> Any:
    """The slope of the cap is taken at the logit that has the bias in it."""
    return right.cap_slope(with_fields(entry, capped=entry.biased))


def group_of_the_last_head(_right: Right, ops: Operands, by_head: Array) -> Array:
    """Gradients of k and v are those of the last head of the group."""
    return by_head[ops.spec.group - 1 :: ops.spec.group]


def group_averaged(right: Right, ops: Operands, by_head: Array) -> Array:
    """Gradients of k and v are the mean over the group."""
    return np.asarray(right.group_sum(ops, by_head) / by_head.dtype.type(ops.spec.group))


def group_by_its_remainder(right: Right, ops: Operands, by_head: Array) -> Array:
    """Head h adds to kv head h % Hkv."""
    group = ops.spec.group
    order = np.arange(len(by_head)).reshape(group, -1).T.ravel()
    return right.group_sum(ops, by_head[order])


def dp_of_the_width_of_q(right: Right, entry: Entry) -> Array:
    """Channels of v beyond D are left out of dP."""
    width = entry.q.shape[-1]
    return right.value_products(
        with_fields(entry, dout=entry.dout[..., :width], v=entry.v[..., :width])
    )


def dv_of_the_width_of_q(right: Right, entry: Entry, p: Array) -> Array:
    """Channels of dv beyond D stay 0."""
    found = right.value_sum(entry, p).copy()
    found[..., entry.q.shape[-1] :] = 0
    return found


def dq_of_64_components(right: Right, entry: Entry, ddot: Array) -> Array:
    """Components of dq beyond the 64th stay 0."""
    found = right.query_sum(entry, ddot).copy()
    found[..., 64:] = 0
    return found


# -------------------------------------------------------------------------------- masks, lengths


def _under(right: Right, ops: Operands, b: int, dout: Array, mask: Mask | None) -> Entry:
    """Return the right logits under another mask."""
    other = dataclasses.replace(ops, spec=respec(ops.spec, mask=mask))
    return right.entry(other, b, dout)


def corner_of_the_top_left(right: Right, ops: Operands, b: int, dout: Array) -> Entry:
    """The backward is aligned to the top left corner."""
    mask = ops.spec.mask
    if isinstance(mask, Causal | Window) and mask.align == "bottom_right":
        return _under(right, ops, b, dout, dataclasses.replace(mask, align="top_left"))
    return right.entry(ops, b, dout)


def causal_in_the_backward_alone(right: Right, ops: Operands, b: int, dout: Array) -> Entry:
    """The backward is always causal."""
    mask = ops.spec.mask
    causal = Causal("top_left")
    return _under(right, ops, b, dout, causal if mask is None else mask & causal)


def causal_without_the_diagonal(right: Right, ops: Operands, b: int, dout: Array) -> Entry:
    """The backward begins one row below the diagonal."""
    mask = ops.spec.mask
    if isinstance(mask, Causal):
        mask = mask & ~Window(0, 0, mask.align)
    return _under(right, ops, b, dout, mask)


def window_left_out(right: Right, ops: Operands, b: int, dout: Array) -> Entry:
    """The backward has no window."""
    mask = ops.spec.mask
    return _under(right, ops, b, dout, None if isinstance(mask, Window) else mask)


def window_one_short(right: Right, ops: Operands, b: int, dout: Array) -> Entry:
    """The window of the backward is one key shorter on the left."""
    mask = ops.spec.mask
    if isinstance(mask, Window) and mask.left:
        mask = dataclasses.replace(mask, left=mask.left - 1)
    return _under(right, ops, b, dout, mask)


def mask_transposed(right: Right, ops: Operands, b: int, dout: Array) -> Entry:
    """The dense mask is read with rows and keys swapped."""
    if ops.mask is not None and ops.mask.shape[2] == ops.mask.shape[3]:
        ops = dataclasses.replace(ops, mask=ops.mask.swapaxes(2, 3))
    return right.entry(ops, b, dout)


def key_lengths_ignored_backwards(right: Right, ops: Operands, b: int, dout: Array) -> Entry:
    """Keys past the length take part in the backward."""
    full = np.full_like(ops.kv_len, ops.full_shape[3])
    return right.entry(dataclasses.replace(ops, kv_len=full), b, dout)


def row_lengths_ignored_backwards(right: Right, ops: Operands, b: int, dout: Array) -> Entry:
    """Rows past the length add to dk and dv."""
    full = np.full_like(ops.q_len, ops.full_shape[2])
    return right.entry(dataclasses.replace(ops, q_len=full), b, dout)


def offset_of_the_first_entry_in_the_backward(
    right: Right, ops: Operands, b: int, dout: Array
) -> Entry:
    """The offset of the first batch entry holds for all."""
    if ops.q_offset is not None:
        ops = dataclasses.replace(ops, q_offset=np.full_like(ops.q_offset, ops.q_offset[0]))
    return right.entry(ops, b, dout)


def keys_of_the_first_entry(right: Right, ops: Operands, b: int, dout: Array) -> Entry:
    """The gradient of q of every batch entry has the keys of the first."""
    return with_fields(right.entry(ops, b, dout), k=right.entry(ops, 0, dout).k)


def rows_multiplied_by_zero(_right: Right, _entry: Entry, factor: Array, rows: Array) -> Array:
    """Rows that do not see a key are multiplied by 0, NaN included."""
    return np.asarray(factor.swapaxes(-1, -2) @ rows)


def keys_multiplied_by_zero(_right: Right, entry: Entry, ddot: Array) -> Array:
    """Keys that a row does not see are multiplied by 0, NaN included."""
    return np.asarray(ddot @ entry.k)


def last_row_lost(right: Right, entry: Entry, ddot: Array) -> Array:
    """The gradient of k lacks the last row where a tile of 16 has one row."""
    if ddot.shape[1] % 16 == 1 and ddot.shape[1] > 1:
        ddot = np.concatenate([ddot[:, :-1], np.zeros_like(ddot[:, -1:])], axis=1)
    return right.key_sum(entry, ddot)


# ------------------------------------------------------------------------- bias, sinks and tables


def dbias_not_reduced(_right: Right, gradient: Array, _shape: tuple[int, ...]) -> Array:
    """The gradient of the bias has the shape of the logits."""
    return gradient


def dbias_averaged(right: Right, gradient: Array, shape: tuple[int, ...]) -> Array:
    """The gradient of the bias is the mean over broadcast axes."""
    size = max(int(np.prod(shape)), 1)
    share = gradient.dtype.type(size / max(gradient.size, 1))
    return np.asarray(right.reduced(gradient, shape) * share)


def dbias_of_the_first_entry(right: Right, gradient: Array, shape: tuple[int, ...]) -> Array:
    """The gradient of the bias is not added up over the batch."""
    alone = len(shape) < 4 or shape[0] == 1
    return right.reduced(gradient[:1] if alone else gradient, shape)


def dbias_summed_in_half(right: Right, gradient: Array, shape: tuple[int, ...]) -> Array:
    """The gradient of the bias is added up from values rounded to float16."""
    return right.reduced(half(gradient), shape)


def dsinks_zero(_right: Right, entry: Entry, _lse: Array, _delta: Array) -> Array:
    """Sinks get no gradient."""
    return np.zeros(entry.q.shape[0], entry.accum)


def dsinks_of_the_other_sign(right: Right, entry: Entry, lse: Array, delta: Array) -> Array:
    """The gradient of the sinks has the other sign."""
    return -right.sink_sum(entry, lse, delta)


def dsinks_by_exp_of_minus_lse(_right: Right, entry: Entry, lse: Array, delta: Array) -> Array:
    """The weight of a sink is exp(sink) * exp(-lse)."""
    sinks = np.asarray(entry.ops.sinks).astype(entry.accum)[:, None]
    parts = np.exp(sinks) * np.exp(-lse) * delta
    return np.asarray(parts.sum(axis=-1, dtype=entry.accum))


def table_gradients_overwritten(
    _right: Right, entry: Entry, node: Any, values: Mapping[Any, Any], gradient: Array
) -> Array:
    """Of pairs that read the same element, the last one counts."""
    from sdpakit.reference.expressions import table_indices

    total = np.zeros(np.shape(entry.ops.params[node.table]), entry.accum)
    places = table_indices(node, total.shape, values)
    total[tuple(np.broadcast_to(at, gradient.shape) for at in places)] = gradient
    return total


def tables_without_gradient(right: Right, entry: Entry, dlogits: Array) -> Change:
    """Tables get no gradient."""
    before, tables = right.through_change(entry, dlogits)
    return before, {name: np.zeros_like(x) for name, x in tables.items()}


def slope_of_the_change_left_out(right: Right, entry: Entry, dlogits: Array) -> Change:
    """The gradient goes through the user's change of the logits as it is."""
    return dlogits, right.through_change(entry, dlogits)[1]


# -------------------------------------------------------------------------------- memory and dtypes


def dout_in_the_order_of_memory(right: Right, ops: Operands, dout: Array) -> Array:
    """The strides of dout are ignored."""
    return right.upstream(ops, np.ravel(dout, "K").reshape(dout.shape))


def dout_read_as_bhsd(_right: Right, ops: Operands, dout: Array) -> Array:
    """The array dout is read in the layout bhsd, whatever the spec says."""
    shape = (*ops.full_shape[:3], ops.v.shape[3])
    return np.ascontiguousarray(dout).reshape(shape).astype(ops.spec.accum_dtype)


def dout_halved(right: Right, ops: Operands, dout: Array) -> Array:
    """The array dout is used as scratch memory."""
    upstream = right.upstream(ops, dout)
    if dout.flags.writeable:
        dout *= dout.dtype.type(0.5)
    return upstream


def gradients_in_the_dtype_of_q(
    right: Right, ops: Operands, found: Gradients, given: Mapping[str, Any]
) -> Gradients:
    """Every gradient has the dtype of q."""
    dtype = np_dtype(ops.spec.dtype)
    return {name: x.astype(dtype) for name, x in right.stored(ops, found, given).items()}


def gradients_in_bhsd(
    right: Right, ops: Operands, found: Gradients, given: Mapping[str, Any]
) -> Gradients:
    """Gradients come in the layout bhsd, whatever the spec says."""
    stored = right.stored(ops, found, given)
    return {
        name: ops.to_layout(x) if name in ("dq", "dk", "dv") else x for name, x in stored.items()
    }


def dsinks_missing(
    right: Right, ops: Operands, found: Gradients, given: Mapping[str, Any]
) -> Gradients:
    """Only dq, dk and dv come back."""
    stored = right.stored(ops, found, given)
    return {name: stored[name] for name in ("dq", "dk", "dv")}


def killed(step: str, by: Callable[..., Any], names: str, source: str = "") -> Mutant:
    """Return a mutant that core cases of gradients kill.

    Parameters
    ----------
    step, by, source
        As for `mutant`.
    names : str
        Cases without their family, separated by blanks; float32 unless a dtype is named.

    Returns
    -------
    Mutant
        Of `Right`.
    """
    ids = (name if "." in name else f"{name}.float32" for name in names.split())
    return mutant(Right, step, by, " ".join(f"gradients.{id_}" for id_ in ids), source)


MUTANTS: tuple[Mutant, ...] = (
    killed(
        "exponentials",
        weights_by_exp_of_minus_lse,
        "of_lse_near_minus_1000 of_lse_near_plus_1000",
        "pytorch/pytorch#196678",
    ),
    killed("exponentials", weights_of_masked_pairs, "bottom_right"),
    killed(
        "exponentials",
        weights_of_empty_rows_by_their_lse,
        "of_an_empty_row of_empty_rows_by_bias",
        "pytorch/pytorch!196170",
    ),
    killed("weights", weights_shifted_by_the_head, "of_rows_apart_by_1000"),
    killed("weights", weights_without_the_sink, "of_sinks", "NVIDIA/cudnn-frontend!421"),
    killed("weights", sink_scaled_in_the_backward, "of_sinks"),
    killed("weights", sink_of_the_kv_head_in_the_backward, "of_sinks_of_each_query_head"),
    killed("delta", delta_left_out, "not_causal of_two_equal_keys"),
    killed("delta", delta_of_all_channels_as_a_mean, "not_causal"),
    killed("delta", delta_with_the_sink_taken_out, "of_sinks"),
    killed("delta", delta_of_masked_pairs, "of_poisoned_masked_keys", "tile-ai/tilelang!2461"),
    killed("dlogits", nan_gradients_swallowed, "of_a_nan_query"),
    killed("dlogits", nan_of_a_row_for_its_head, "of_a_nan_query"),
    killed("value_sum", nan_value_reaches_dv, "of_a_nan_value"),
    killed("through_cap", scale_left_out, "of_scale_two of_two_equal_keys"),
    killed("through_cap", scale_taken_twice, "of_scale_two of_two_equal_keys"),
    killed("through_cap", scale_of_the_default, "of_scale_two of_scale_negative"),
    killed("cap_slope", cap_slope_left_out, "of_a_cap", "openxla/tokamax!1121"),
    killed("cap_slope", cap_slope_of_the_biased_logit, "of_a_cap_then_bias"),
    killed("group_sum", group_of_the_last_head, "of_a_group", "marin-community/levanter!449"),
    killed("group_sum", group_averaged, "of_a_group"),
    killed(
        "group_sum",
        group_by_its_remainder,
        "of_groups_of_three",
        "XunhaoLai/native-sparse-attention-triton#27",
    ),
    killed(
        "value_products",
        dp_of_the_width_of_q,
        "of_wide_values",
        "XunhaoLai/native-sparse-attention-triton#27",
    ),
    killed("value_sum", dv_of_the_width_of_q, "of_wide_values"),
    killed("query_sum", dq_of_64_components, "of_widths_80_and_96"),
    killed("entry", corner_of_the_top_left, "bottom_right", "Dao-AILab/flash-attention#20"),
    killed("entry", causal_in_the_backward_alone, "not_causal", "triton-lang/triton#4541"),
    killed("entry", causal_without_the_diagonal, "causal_top_left_square"),
    killed("entry", window_left_out, "window_left", "meta-pytorch/MSLK!263"),
    killed("entry", window_one_short, "window_left"),
    killed("entry", mask_transposed, "mask_dense"),
    killed("entry", key_lengths_ignored_backwards, "of_kv_lens"),
    killed("entry", row_lengths_ignored_backwards, "of_q_lens"),
    killed("entry", offset_of_the_first_entry_in_the_backward, "causal_offset_per_entry"),
    killed("entry", keys_of_the_first_entry, "of_two_entries"),
    killed("over_rows", rows_multiplied_by_zero, "of_poison_in_empty_rows"),
    killed("query_sum", keys_multiplied_by_zero, "of_poisoned_masked_keys"),
    killed("key_sum", last_row_lost, "of_17_by_33"),
    killed("reduced", dbias_not_reduced, "of_a_bias_of_keys"),
    killed("reduced", dbias_averaged, "of_a_bias_of_keys"),
    killed("reduced", dbias_of_the_first_entry, "of_a_bias_of_pairs"),
    killed("reduced", dbias_summed_in_half, "of_a_bias_of_pairs"),
    killed("sink_sum", dsinks_zero, "of_sinks", "ISEEKYAN/Megatron-LM!205"),
    killed("sink_sum", dsinks_of_the_other_sign, "of_sinks"),
    killed("sink_sum", dsinks_by_exp_of_minus_lse, "of_sinks_dominant"),
    killed("table_sum", table_gradients_overwritten, "of_relative_positions"),
    killed("through_change", tables_without_gradient, "of_relative_positions"),
    killed("through_change", slope_of_the_change_left_out, "of_an_expression through_tanh"),
    killed(
        "upstream",
        dout_in_the_order_of_memory,
        "dout_in_another_layout dout_fortran",
        "ROCm/aotriton#236",
    ),
    killed("upstream", dout_read_as_bhsd, "layout_bshd"),
    killed("upstream", dout_halved, "not_causal"),
    killed("stored", gradients_in_the_dtype_of_q, "of_a_bias_of_float64"),
    killed("stored", gradients_in_bhsd, "layout_bshd"),
    killed("stored", dsinks_missing, "of_sinks"),
)
