"""Deliberately wrong targets: `Naive` with one step replaced, as public reports describe them."""

import dataclasses

import numpy as np

from sdpakit.conformance.inputs import np_dtype
from sdpakit.conformance.targets.naive import Naive
from sdpakit.masks import And, Causal, Dense, Dilated, Document, Mask, Not, Or, Prefix, Window
from sdpakit.reference.masks import visible
from sdpakit.reference.operands import accum_dtype, prepare


def tf32(x):
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)


class Tf32Products(Naive):
    def products(self, q, k):
        return super().products(tf32(q), tf32(k))


class HalfProducts(Naive):
    def products(self, q, k):
        return super().products(q, k).astype(np.float16).astype(q.dtype)


class SingleForDouble(Naive):
    def products(self, q, k):
        return super().products(q.astype(np.float32), k.astype(np.float32)).astype(q.dtype)


class HalfAccumulator(Naive):
    def mix(self, e, v, attended):
        total = np.zeros((*e.shape[:-1], v.shape[-1]), np.float16)
        for j in range(0, e.shape[-1], 16):
            part = super().mix(e[..., j : j + 16], v[:, j : j + 16], attended[..., j : j + 16])
            total = (total + part.astype(np.float16)).astype(np.float16)
        return total.astype(e.dtype)


class HalfRowSum(Naive):
    def row_sum(self, e):
        total = np.zeros(e.shape[:-1], np.float16)
        for j in range(e.shape[-1]):
            total = (total + e[..., j].astype(np.float16)).astype(np.float16)
        return total.astype(e.dtype)


class HalfWeights(Naive):
    def mix(self, e, v, attended):
        return super().mix(e.astype(np.float16).astype(e.dtype), v, attended)


class SequentialHalfSumOfProducts(Naive):
    def products(self, q, k):
        total = np.zeros((*q.shape[:-1], k.shape[-2]), np.float16)
        for d in range(q.shape[-1]):
            total = (total + (q[..., d, None] * k[..., None, :, d])).astype(np.float16)
        return total.astype(q.dtype)


PRECISION = {
    Tf32Products: ("precision.unit.float32", "precision.saturated.float32"),
    HalfAccumulator: ("precision.unit.float32", "precision.wide.float32"),
    HalfRowSum: ("precision.unit.float32", "precision.half_row_sum.float16"),
    HalfWeights: ("precision.unit.float32", "precision.two_keys.float32"),
    HalfProducts: ("precision.products_beyond_half.float16",),
    SequentialHalfSumOfProducts: ("precision.unit.float32",),
    SingleForDouble: ("precision.unit.float64",),
}


class Rewritten(Naive):
    """Reads another mask than the spec has."""

    def rewrite(self, mask):
        raise NotImplementedError

    def visible(self, ops, scope):
        if ops.spec.mask is None:
            return super().visible(ops, scope)
        b = int(scope.indices["b"])
        dense = None if ops.mask is None else ops.mask[b]
        seen = (scope.indices["q"] < ops.q_len[b]) & (scope.indices["k"] < ops.kv_len[b])
        seen = seen & visible(self.walk(ops.spec.mask), scope, dense)
        return np.broadcast_to(seen, ops.full_shape[1:])

    def walk(self, mask: Mask) -> Mask:
        match mask:
            case And():
                mask = And(self.walk(mask.a), self.walk(mask.b))
            case Or():
                mask = Or(self.walk(mask.a), self.walk(mask.b))
            case Not():
                mask = Not(self.walk(mask.a))
        return self.rewrite(mask)


def aligned(mask, align):
    return dataclasses.replace(mask, align=align) if hasattr(mask, "align") else mask


class TopLeftForBottomRight(Rewritten):
    def rewrite(self, mask):
        return aligned(mask, "top_left")


class BottomRightForTopLeft(Rewritten):
    def rewrite(self, mask):
        return aligned(mask, "bottom_right")


class WindowShort(Rewritten):
    def rewrite(self, mask):
        if isinstance(mask, Window) and mask.left:
            return dataclasses.replace(mask, left=mask.left - 1)
        return mask


class WindowLong(Rewritten):
    def rewrite(self, mask):
        if isinstance(mask, Window) and mask.left is not None:
            return dataclasses.replace(mask, left=mask.left + 1)
        return mask


class WindowNoneIsZero(Rewritten):
    def rewrite(self, mask):
        if isinstance(mask, Window):
            return dataclasses.replace(mask, left=mask.left or 0, right=mask.right or 0)
        return mask


class CausalStrict(Rewritten):
    def rewrite(self, mask):
        if isinstance(mask, Causal):
            return mask & ~Window(0, 0, mask.align)
        return mask


class DenseInverted(Rewritten):
    def rewrite(self, mask):
        return Not(mask) if isinstance(mask, Dense) else mask


class AndDropsSecond(Rewritten):
    def rewrite(self, mask):
        return mask.a if isinstance(mask, And) else mask


class AndDropsFirst(Rewritten):
    def rewrite(self, mask):
        return mask.b if isinstance(mask, And) else mask


class OrIsAnd(Rewritten):
    def rewrite(self, mask):
        return And(mask.a, mask.b) if isinstance(mask, Or) else mask


class NotDropped(Rewritten):
    def rewrite(self, mask):
        return mask.a if isinstance(mask, Not) else mask


class PrefixInclusive(Rewritten):
    def rewrite(self, mask):
        if isinstance(mask, Prefix) and isinstance(mask.length, int):
            return dataclasses.replace(mask, length=mask.length + 1)
        return mask


class DilatedIgnored(Rewritten):
    def rewrite(self, mask):
        return dataclasses.replace(mask, step=1) if isinstance(mask, Dilated) else mask


class DocumentsSearched(Naive):
    """Looks for the borders of a document as if ids were sorted."""

    def visible(self, ops, scope):
        seen, mask = super().visible(ops, scope), ops.spec.mask
        if not isinstance(mask, Document):
            return seen
        b, j = int(scope.indices["b"]), scope.indices["k"]
        rows, keys = (np.asarray(ops.params[name]) for name in (mask.ids, mask.kv_ids or mask.ids))
        rows, keys = (x[b if len(x) > 1 else 0] for x in (rows, keys))
        first, last = (np.searchsorted(keys, rows, side) for side in ("left", "right"))
        inside = (first[:, None] <= j) & (j < last[:, None])
        return np.broadcast_to(inside, ops.full_shape[1:])


class Changed(Naive):
    """Computes another call than it is given."""

    def attention(self, spec, q, k, v, **operands):
        spec, operands, arrays = self.change(spec, dict(operands), {"q": q, "k": k, "v": v})
        return super().attention(spec, **arrays, **operands)

    def change(self, spec, operands, arrays):
        raise NotImplementedError


def respec(spec, **fields):
    """Return a spec with other fields, past its own checks."""
    made = object.__new__(type(spec))
    for field in dataclasses.fields(spec):
        value = fields.get(field.name, getattr(spec, field.name))
        object.__setattr__(made, field.name, value)
    return made


class ScaleIgnored(Changed):
    def change(self, spec, operands, arrays):
        return respec(spec, scale=None), operands, arrays


class ScaleZeroIsDefault(Changed):
    def change(self, spec, operands, arrays):
        return respec(spec, scale=spec.scale or None), operands, arrays


class ScaleAbsolute(Changed):
    def change(self, spec, operands, arrays):
        return respec(spec, scale=abs(spec.resolved_scale)), operands, arrays


class ScaleOfV(Changed):
    def change(self, spec, operands, arrays):
        if spec.scale is None:
            spec = respec(spec, scale=spec.v_head_dim**-0.5)
        return spec, operands, arrays


class ScaleOfPaddedWidth(Changed):
    def change(self, spec, operands, arrays):
        if spec.scale is None:
            spec = respec(spec, scale=(-(-spec.head_dim // 8) * 8) ** -0.5)
        return spec, operands, arrays


class CapDropped(Changed):
    def change(self, spec, operands, arrays):
        return respec(spec, softcap=None), operands, arrays


class SinksDropped(Changed):
    def change(self, spec, operands, arrays):
        operands.pop("sinks", None)
        return respec(spec, sinks=False), operands, arrays


class KeyLengthsIgnored(Changed):
    def change(self, spec, operands, arrays):
        operands.pop("kv_lens", None)
        return respec(spec, kv_lens=False), operands, arrays


class RowLengthsIgnored(Changed):
    def change(self, spec, operands, arrays):
        operands.pop("q_lens", None)
        return respec(spec, q_lens=False), operands, arrays


class BiasDropped(Changed):
    def change(self, spec, operands, arrays):
        operands.pop("bias", None)
        return respec(spec, bias=None), operands, arrays


class BiasInDtypeOfQ(Changed):
    def change(self, spec, operands, arrays):
        if "bias" in operands:
            with np.errstate(over="ignore"):
                operands["bias"] = operands["bias"].astype(np_dtype(spec.dtype))
        return spec, operands, arrays


class MemoryOrder(Changed):
    def change(self, spec, operands, arrays):
        flat = {name: np.ravel(x, "K").reshape(x.shape) for name, x in arrays.items()}
        return spec, operands, flat


class OffsetOfTheFirstEntry(Changed):
    def change(self, spec, operands, arrays):
        if operands.get("q_offset") is not None:
            operands["q_offset"] = int(np.ravel(operands["q_offset"])[0])
        return spec, operands, arrays


class EmptyRowPolicyIgnored(Changed):
    def change(self, spec, operands, arrays):
        return respec(spec, empty_row="zero"), operands, arrays


class EmptyRowIsNan(Changed):
    def change(self, spec, operands, arrays):
        return respec(spec, empty_row="nan"), operands, arrays


class HeadsTiled(Naive):
    def entry(self, ops, b):
        kv_heads = ops.k.shape[1]
        order = np.arange(ops.q.shape[1]) % max(kv_heads, 1)
        k, v = (x[:, order] for x in (ops.k, ops.v))
        return super().entry(dataclasses.replace(ops, k=k, v=v), b)


class First64Components(Naive):
    def products(self, q, k):
        return super().products(q[..., :64], k[..., :64])


class LastKeyLost(Naive):
    def visible(self, ops, scope):
        seen = super().visible(ops, scope).copy()
        if seen.shape[-1] % 16 == 1 and seen.shape[-1] > 1:
            seen[..., -1] = False
        return seen


class PaddedKeys(Naive):
    """Pads the keys to whole tiles of 32 with zeros and forgets to mask them."""

    def attention(self, spec, q, k, v, **operands):
        axis = 1 if spec.layout == "bshd" else 2
        more = -k.shape[axis] % 32
        plain = spec.mask is None and not (spec.bias or spec.kv_lens or spec.logits)
        if more and plain and k.shape[axis]:
            width = [(0, more if a == axis else 0) for a in range(4)]
            k, v = (np.pad(x, width) for x in (k, v))
        return super().attention(spec, q, k, v, **operands)


class CapAfterBias(Naive):
    def logits(self, ops, b):
        if ops.bias is None or ops.spec.softcap is None:
            return super().logits(ops, b)
        cap = ops.spec.softcap
        plain = dataclasses.replace(ops, spec=respec(ops.spec, softcap=None))
        x, attended = super().logits(plain, b)
        return cap * np.tanh(x / cap), attended


class BiasScaled(Naive):
    def logits(self, ops, b):
        if ops.bias is None:
            return super().logits(ops, b)
        return super().logits(dataclasses.replace(ops, bias=ops.bias * ops.scale), b)


class MinusInfinityIsAKey(Naive):
    """Counts keys by the mask alone, so that a row of -inf is 0/0."""

    def entry(self, ops, b):
        found = super().entry(ops, b)
        x, _ = self.logits(ops, b)
        lost = (x == -np.inf).all(axis=-1) & (x.shape[-1] > 0)
        found["out"] = np.where(lost[..., None], np.nan, found["out"])
        return found


class FiniteMask(Naive):
    """Adds -10000 where the mask is False."""

    def logits(self, ops, b):
        x, attended = super().logits(ops, b)
        seen = attended | (x == -np.inf)
        return np.where(seen, x, x - 1e4), np.ones_like(attended)


class MultiplyingMask(Naive):
    def mix(self, e, v, attended):
        return e @ v


class NoMaximum(Naive):
    def entry(self, ops, b):
        found = super().entry(ops, b)
        x, attended = self.logits(ops, b)
        e = np.exp(np.where(attended, x, -np.inf).astype(accum_dtype(ops.spec)))
        total = e.sum(axis=-1)
        some = np.where(total == 0, 1, total)
        found["out"] = self.mix(e, ops.v[b, ops.kv_head], attended) / some[..., None]
        found["lse"] = np.log(total)
        return found


class MaximumOfZero(Naive):
    """Starts the running maximum at 0."""

    def entry(self, ops, b):
        found = super().entry(ops, b)
        low = found["max_logit"] < -104.0  # exp underflows
        found["out"] = np.where(low[..., None], 0.0, found["out"])
        found["lse"] = np.where(low, -np.inf, found["lse"])
        return found


class NanSwallowed(Naive):
    def entry(self, ops, b):
        found = super().entry(ops, b)
        found["out"] = np.where(np.isnan(found["lse"])[..., None], 0.0, found["out"])
        return found


class InfinityWins(Naive):
    """Gives a logit of +inf all the weight."""

    def logits(self, ops, b):
        x, attended = super().logits(ops, b)
        return np.where(x == np.inf, 3e38, x), attended


class LseBase2(Naive):
    def entry(self, ops, b):
        found = super().entry(ops, b)
        return {**found, "lse": found["lse"] / np.log(2.0)}


class LseOfEmptyRowsFinite(Naive):
    def entry(self, ops, b):
        found = super().entry(ops, b)
        return {**found, "lse": np.where(np.isneginf(found["lse"]), -1e30, found["lse"])}


class LseWithoutMaximum(Naive):
    def entry(self, ops, b):
        found = super().entry(ops, b)
        lost = np.where(np.isneginf(found["max_logit"]), 0.0, found["max_logit"])
        return {**found, "lse": found["lse"] - lost}


class LseWithSink(Naive):
    def entry(self, ops, b):
        found = super().entry(ops, b)
        if ops.sinks is not None:
            found["lse"] = np.logaddexp(found["lse"], ops.sinks[:, None])
        return found


class EntropyByDifference(Naive):
    def entry(self, ops, b):
        found = super().entry(ops, b)
        x, attended = self.logits(ops, b)
        accum = accum_dtype(ops.spec)
        lse = found["lse"].astype(accum)[..., None]
        p = np.where(attended, np.exp(x.astype(accum) - lse), 0).astype(accum)
        mean = np.where(attended, p * x.astype(accum), 0).sum(axis=-1, dtype=accum)
        return {**found, "entropy": np.where(np.isneginf(lse[..., 0]), 0, lse[..., 0] - mean)}


class SumOfP2OfUnnormalised(Naive):
    def entry(self, ops, b):
        found = super().entry(ops, b)
        total = np.exp(found["lse"] - found["max_logit"])
        return {**found, "sum_p2": np.where(np.isneginf(found["lse"]), 0, found["sum_p2"] * total)}


class SinkOfKvHead(Naive):
    def entry(self, ops, b):
        if ops.sinks is not None:
            ops = dataclasses.replace(ops, sinks=ops.sinks[ops.kv_head])
        return super().entry(ops, b)


class SinkScaled(Naive):
    def entry(self, ops, b):
        if ops.sinks is not None:
            ops = dataclasses.replace(ops, sinks=ops.sinks * ops.scale)
        return super().entry(ops, b)


class SinkCapped(Naive):
    def entry(self, ops, b):
        cap = ops.spec.softcap
        if ops.sinks is not None and cap is not None:
            ops = dataclasses.replace(ops, sinks=cap * np.tanh(ops.sinks / cap))
        return super().entry(ops, b)


class MaskOfHeadForEntry(Naive):
    def entry(self, ops, b):
        if ops.mask is not None and ops.mask.shape[0] == ops.mask.shape[1]:
            ops = dataclasses.replace(ops, mask=ops.mask.swapaxes(0, 1))
        return super().entry(ops, b)


class WritesItsInput(Naive):
    def attention(self, spec, q, k, v, **operands):
        found = super().attention(spec, q, k, v, **operands)
        if q.flags.writeable:
            q *= q.dtype.type(0.5)
        return found


class KeepsDtypeOfQ(Naive):
    def attention(self, spec, q, k, v, **operands):
        found = super().attention(spec, q, k, v, **operands)
        return {**found, "out": found["out"].astype(np_dtype(spec.dtype))}


class LayoutOfOutKept(Naive):
    def attention(self, spec, q, k, v, **operands):
        found = super().attention(spec, q, k, v, **operands)
        if spec.layout == "bshd":
            found["out"] = np.ascontiguousarray(found["out"].swapaxes(1, 2))
        return found


class ComputesOnAnything(Naive):
    """Never refuses."""

    bad_calls = "exact"

    def attention(self, spec, q, k, v, **operands):
        try:
            prepare(spec, q, k, v, operands)
        except (ValueError, TypeError):
            return {"out": np.zeros((1,))}
        return super().attention(spec, q, k, v, **operands)


MEANING = {
    TopLeftForBottomRight: ("masks.causal_bottom_right_decode.float32",),
    BottomRightForTopLeft: ("masks.causal_top_left_decode.float32",),
    WindowShort: ("windows.left_and_own.float32",),
    WindowLong: ("windows.left_and_own.float32", "windows.diagonal.float32"),
    WindowNoneIsZero: ("windows.left_open.float32", "windows.right_open.float32"),
    CausalStrict: ("masks.causal_top_left_rectangle.float32",),
    DenseInverted: ("masks.true_attends.float32",),
    AndDropsSecond: ("masks.causal_and_dense.float32", "windows.and_dense.float32"),
    AndDropsFirst: ("masks.causal_and_dense.float32", "masks.key_mask_and_causal.float32"),
    OrIsAnd: ("masks.prefix_or_causal.float32", "masks.or_of_far_windows.float32"),
    NotDropped: ("masks.not_causal.float32", "masks.not_of_and_or.float32"),
    PrefixInclusive: ("masks.prefix_number.float32",),
    DilatedIgnored: ("masks.dilated_top_left.float32", "masks.dilated_causal_window.float32"),
    DocumentsSearched: ("masks.documents_unsorted.float32",),
    ScaleIgnored: ("scale.half.float32", "scale.two.float32"),
    ScaleZeroIsDefault: ("scale.zero.float32",),
    ScaleAbsolute: ("scale.minus_one.float32", "scale.minus_one_by_hand.float32"),
    ScaleOfV: ("scale.default_is_not_of_v.float32",),
    ScaleOfPaddedWidth: ("scale.default_of_width_5.float32",),
    CapDropped: ("softcap.applied.float32",),
    CapAfterBias: ("softcap.then_bias.float32",),
    BiasScaled: ("bias.not_scaled.float64", "bias.of_float32.float32"),
    BiasDropped: ("bias.and_mask.float32", "bias.zeros_and_ones.float32"),
    BiasInDtypeOfQ: ("bias.minus_1e9_everywhere.float16", "bias.of_float32.float16"),
    SinksDropped: ("sinks.share_of_a_quarter.float32",),
    SinkOfKvHead: ("sinks.one_for_each_query_head.float32",),
    SinkScaled: ("sinks.not_scaled.float32",),
    SinkCapped: ("sinks.not_capped.float32",),
    LseWithSink: ("sinks.share_of_a_quarter.float32", "statistics.without_the_sink.float32"),
    KeyLengthsIgnored: ("masks.kv_lens.float32", "poison.past_lengths_nan.float32"),
    RowLengthsIgnored: ("masks.both_lens.float32",),
    OffsetOfTheFirstEntry: ("masks.causal_offset_per_entry.float32",),
    MaskOfHeadForEntry: ("masks.dense_batch_equals_heads.float32",),
    MemoryOrder: ("strides.bshd.float32", "strides.fortran.float32"),
    LayoutOfOutKept: ("strides.layout_bshd.float32",),
    HeadsTiled: ("heads.repeat_not_tile.float32", "heads.8_on_2.float32"),
    First64Components: ("widths.upper_half_only.float32", "widths.80_and_80.float32"),
    LastKeyLost: ("lengths.17_by_17.float32", "lengths.129_by_129.float32"),
    PaddedKeys: ("precision.equal_logits_of_minus_128.float32", "lengths.33_keys.float32"),
    MinusInfinityIsAKey: ("empty.by_bias.float32",),
    FiniteMask: ("empty.not_the_mean_of_v.float32", "bias.below_a_sentinel.float32"),
    MultiplyingMask: ("poison.masked_keys_nan.float32", "poison.rows_apart_causal.float32"),
    NoMaximum: ("precision.large_and_close.float32", "precision.lse_near_plus_1000.float32"),
    MaximumOfZero: ("empty.trailing_keys_and_low_logits.float32",),
    NanSwallowed: ("specials.nan_query.float32",),
    InfinityWins: ("specials.infinite_logit.float32",),
    EmptyRowPolicyIgnored: ("empty.nan_policy.float32",),
    EmptyRowIsNan: ("empty.last_row.float32", "empty.no_keys_zero.float32"),
    LseBase2: ("statistics.lse_is_natural.float32",),
    LseOfEmptyRowsFinite: ("statistics.lse_of_empty_rows.float32",),
    LseWithoutMaximum: ("statistics.lse_keeps_the_maximum.float32",),
    EntropyByDifference: ("precision.logits_of_1e4.float32",),
    SumOfP2OfUnnormalised: ("statistics.mild.float32",),
    WritesItsInput: ("masks.causal_random.float32",),
    KeepsDtypeOfQ: ("precision.out_dtype.float16",),
    ComputesOnAnything: ("refusals.width_of_k.float32", "refusals.lens_too_long.float32"),
}
