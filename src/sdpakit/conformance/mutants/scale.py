"""Mutants of the logits: scale, cap, bias, and which key head a query head reads."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from sdpakit.conformance.inputs import np_dtype
from sdpakit.conformance.mutants.bases import Call, Entry, Logits, Plain, respec
from sdpakit.conformance.mutants.model import Mutant, mutant
from sdpakit.reference.operands import Operands, accum_dtype

if TYPE_CHECKING:
    from sdpakit.spec import AttentionSpec


def scale_ignored(spec: AttentionSpec, given: dict[str, Any]) -> Call:
    """A scale is accepted and ignored."""
    return respec(spec, scale=None), given


def scale_none(spec: AttentionSpec, given: dict[str, Any]) -> Call:
    """Logits are not scaled where no scale is given."""
    return respec(spec, scale=1.0 if spec.scale is None else spec.scale), given


def scale_twice(spec: AttentionSpec, given: dict[str, Any]) -> Call:
    """The default scale is applied on top of the one that is given."""
    if spec.scale is not None:
        spec = respec(spec, scale=spec.scale * spec.head_dim**-0.5)
    return spec, given


def scale_zero_is_default(spec: AttentionSpec, given: dict[str, Any]) -> Call:
    """A scale of 0 means the default."""
    return respec(spec, scale=spec.scale or None), given


def scale_absolute(spec: AttentionSpec, given: dict[str, Any]) -> Call:
    """The sign of the scale is lost."""
    return respec(spec, scale=abs(spec.resolved_scale)), given


def scale_of_the_model(spec: AttentionSpec, given: dict[str, Any]) -> Call:
    """The default scale is that of all heads together."""
    if spec.scale is None:
        spec = respec(spec, scale=(spec.q_heads * spec.head_dim) ** -0.5)
    return spec, given


def scale_of_v(spec: AttentionSpec, given: dict[str, Any]) -> Call:
    """The default scale is that of the width of v."""
    if spec.scale is None and spec.v_head_dim:
        spec = respec(spec, scale=spec.v_head_dim**-0.5)
    return spec, given


def scale_of_padded_width(spec: AttentionSpec, given: dict[str, Any]) -> Call:
    """The default scale is that of the width padded to a multiple of 8."""
    if spec.scale is None:
        spec = respec(spec, scale=(-(-spec.head_dim // 8) * 8) ** -0.5)
    return spec, given


def scaled_query_stored(spec: AttentionSpec, given: dict[str, Any]) -> Call:
    """Q times the scale is rounded to the dtype of q."""
    q = given["q"]
    with np.errstate(all="ignore"):
        given["q"] = (q.astype(np.float64) * spec.resolved_scale).astype(q.dtype)
    return respec(spec, scale=1.0), given


def cap_dropped(spec: AttentionSpec, given: dict[str, Any]) -> Call:
    """A cap is accepted and ignored."""
    return respec(spec, softcap=None), given


def cap_after_bias(right: Plain, ops: Operands, b: int) -> Logits:
    """The bias is capped with the logit."""
    if ops.bias is None or ops.spec.softcap is None:
        return right.logits(ops, b)
    cap = ops.spec.softcap
    plain = dataclasses.replace(ops, spec=respec(ops.spec, softcap=None))
    x, attended = right.logits(plain, b)
    return cap * np.tanh(x / cap), attended


def cap_before_scale(right: Plain, ops: Operands, b: int) -> Logits:
    """The product is capped, and then scaled."""
    if ops.spec.softcap is None or ops.spec.logits is not None or not ops.scale:
        return right.logits(ops, b)
    spec = respec(ops.spec, softcap=ops.spec.softcap * abs(ops.scale))
    return right.logits(dataclasses.replace(ops, spec=spec), b)


def cap_clips(right: Plain, ops: Operands, b: int) -> Logits:
    """The cap clips instead of bending."""
    if ops.spec.softcap is None or ops.bias is not None or ops.spec.logits is not None:
        return right.logits(ops, b)
    plain = dataclasses.replace(ops, spec=respec(ops.spec, softcap=None))
    x, attended = right.logits(plain, b)
    return np.clip(x, -ops.spec.softcap, ops.spec.softcap), attended


def cap_after_mask(right: Plain, ops: Operands, b: int) -> Logits:
    """The cap is applied after the mask, so that -inf becomes -cap."""
    x, attended = right.logits(ops, b)
    cap = ops.spec.softcap
    if cap is None or ops.bias is not None or ops.spec.logits is not None:
        return x, attended
    return np.where(attended, x, -cap), np.ones_like(attended)


def bias_dropped(spec: AttentionSpec, given: dict[str, Any]) -> Call:
    """A bias is accepted and ignored."""
    given.pop("bias", None)
    return respec(spec, bias=None), given


def bias_dropped_with_mask(spec: AttentionSpec, given: dict[str, Any]) -> Call:
    """A bias is ignored where there is a mask."""
    if spec.mask is not None:
        given.pop("bias", None)
        spec = respec(spec, bias=None)
    return spec, given


def bias_of_zero_and_one_is_mask(right: Plain, ops: Operands, b: int) -> Logits:
    """A bias of zeros and ones is taken for a mask."""
    x, attended = right.logits(ops, b)
    if ops.bias is None or not np.isin(ops.bias, (0, 1)).all():
        return x, attended
    return x - ops.bias[b], attended & (ops.bias[b] != 0)


def bias_in_dtype_of_q(spec: AttentionSpec, given: dict[str, Any]) -> Call:
    """The bias is rounded to the dtype of q."""
    if "bias" in given:
        with np.errstate(over="ignore"):
            given["bias"] = given["bias"].astype(np_dtype(spec.dtype))
    return spec, given


def bias_in_half(spec: AttentionSpec, given: dict[str, Any]) -> Call:
    """The bias is rounded to float16 on its way."""
    if "bias" in given:
        with np.errstate(over="ignore"):
            given["bias"] = given["bias"].astype(np.float16)
    return spec, given


def bias_scaled(right: Plain, ops: Operands, b: int) -> Logits:
    """The bias is scaled with the product."""
    if ops.bias is None:
        return right.logits(ops, b)
    return right.logits(dataclasses.replace(ops, bias=ops.bias * ops.scale), b)


def bias_of_the_first(right: Plain, ops: Operands, b: int) -> Logits:
    """The bias of batch entry 0 and head 0 is used for all."""
    if ops.bias is not None:
        bias = np.broadcast_to(ops.bias[:1, :1], ops.bias.shape)
        ops = dataclasses.replace(ops, bias=bias)
    return right.logits(ops, b)


def bias_transposed(right: Plain, ops: Operands, b: int) -> Logits:
    """A bias whose memory is not in order is read as if it were."""
    if ops.bias is not None and ops.bias.shape[2] == ops.bias.shape[3]:
        ops = dataclasses.replace(ops, bias=ops.bias.swapaxes(2, 3))
    return right.logits(ops, b)


def user_logits_before_bias(right: Plain, ops: Operands, b: int) -> Logits:
    """The user's change of the logit does not see the bias."""
    if ops.bias is None or ops.spec.logits is None:
        return right.logits(ops, b)
    x, attended = right.logits(dataclasses.replace(ops, bias=None), b)
    return x + ops.bias[b].astype(accum_dtype(ops.spec)), attended


def heads_tiled(right: Plain, ops: Operands, b: int) -> Entry:
    """Query head h reads kv head h % kv_heads."""
    order = np.arange(ops.q.shape[1]) % max(ops.k.shape[1], 1)
    k, v = (x[:, order] for x in (ops.k, ops.v))
    return right.entry(dataclasses.replace(ops, k=k, v=v), b)


def heads_of_the_first(right: Plain, ops: Operands, b: int) -> Entry:
    """Every query head reads kv head 0."""
    order = np.zeros(ops.q.shape[1], np.int64)
    k, v = (x[:, order] for x in (ops.k, ops.v))
    return right.entry(dataclasses.replace(ops, k=k, v=v), b)


def values_not_grouped(right: Plain, ops: Operands, b: int) -> Entry:
    """Keys are repeated for a group of heads, values are tiled."""
    order = np.arange(ops.q.shape[1]) % max(ops.k.shape[1], 1)
    k, v = ops.k[:, ops.kv_head], ops.v[:, order]
    return right.entry(dataclasses.replace(ops, k=k, v=v), b)


MUTANTS: tuple[Mutant, ...] = (
    mutant(
        Plain,
        "change",
        scale_ignored,
        "scale.half.float32 scale.two.float32",
        "tenstorrent/tt-metal#33304",
    ),
    mutant(Plain, "change", scale_none, "scale.default_of_width_5.float32"),
    mutant(
        Plain, "change", scale_twice, "scale.folded_into_q.float32 relations.folded_scale.float32"
    ),
    mutant(
        Plain,
        "change",
        scale_zero_is_default,
        "scale.zero.float32",
        "SKaiNET-developers/SKaiNET#860",
    ),
    mutant(
        Plain,
        "change",
        scale_absolute,
        "scale.minus_one.float32 scale.minus_one_by_hand.float32",
        "pytorch/pytorch!105202",
    ),
    mutant(
        Plain,
        "change",
        scale_of_the_model,
        "scale.default_of_width_1.float32",
        "FrancescoSaverioZuppichini/ViT#1",
    ),
    mutant(Plain, "change", scale_of_v, "scale.default_is_not_of_v.float32"),
    mutant(
        Plain,
        "change",
        scale_of_padded_width,
        "scale.default_of_width_5.float32",
        "intel/ipex-llm!12619",
    ),
    mutant(Plain, "change", scaled_query_stored, "precision.out_dtype.float16"),
    mutant(Plain, "change", cap_dropped, "softcap.applied.float32"),
    mutant(Plain, "logits", cap_after_bias, "softcap.then_bias.float32"),
    mutant(Plain, "logits", cap_before_scale, "softcap.applied.float32"),
    mutant(Plain, "logits", cap_clips, "softcap.applied.float32"),
    mutant(
        Plain,
        "logits",
        cap_after_mask,
        "poison.capped_logits_do_not_leak.float32",
        "onnx/onnx#7865",
    ),
    mutant(Plain, "change", bias_dropped, "bias.and_mask.float32 bias.zeros_and_ones.float32"),
    mutant(Plain, "change", bias_dropped_with_mask, "bias.and_mask.float32"),
    mutant(Plain, "logits", bias_of_zero_and_one_is_mask, "bias.zeros_and_ones.float32"),
    mutant(Plain, "change", bias_in_dtype_of_q, "bias.finer_than_half_operands.float16"),
    mutant(Plain, "change", bias_in_half, "bias.of_float32.float32"),
    mutant(Plain, "logits", bias_scaled, "bias.not_scaled.float64 bias.of_float32.float32"),
    mutant(Plain, "logits", bias_of_the_first, "bias.broadcast_heads.float32"),
    mutant(Plain, "logits", bias_transposed, "bias.in_skipped_tiles.float32"),
    mutant(Plain, "logits", user_logits_before_bias, "expressions.logits_and_bias_and_cap.float32"),
    mutant(Plain, "entry", heads_tiled, "heads.repeat_not_tile.float32 heads.8_on_2.float32"),
    mutant(Plain, "entry", heads_of_the_first, "heads.8_on_2.float32"),
    mutant(Plain, "entry", values_not_grouped, "heads.8_on_2.float32"),
)
