"""Forward attention: all rows of a batch entry at once, keys one after another."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sdpakit.expr.nodes import Index, Load
from sdpakit.logits import Alibi
from sdpakit.reference.expressions import Scope, evaluate
from sdpakit.reference.masks import offset, visible
from sdpakit.reference.operands import Array, Operands, accum_dtype


@dataclass(frozen=True, slots=True, eq=False)
class Detail:
    """What the reference knows about a call.

    Attributes
    ----------
    operands : Operands
        The call.
    attended : (B, Hq, Lq, Lk) bool
        Keys that take part: visible, and with a logit above -inf (MASK-6).
    dot, capped, biased, logits : (B, Hq, Lq, Lk)
        <q, k>; scaled and capped; with the bias; final. Of all pairs: what absent pairs hold,
        NaN included, is in here.
    weights : (B, Hq, Lq, Lk)
        Share of each key in `out`, the sink in the denominator; exactly 0 where absent.
    out : (B, Hq, Lq, Dv)
        Result.
    lse, max_logit, entropy, sum_p2 : (B, Hq, Lq)
        Row statistics over the attended keys, without the sink (SINK-2, STAT-1).
    """

    operands: Operands
    attended: Array
    dot: Array
    capped: Array
    biased: Array
    logits: Array
    weights: Array
    out: Array
    lse: Array
    max_logit: Array
    entropy: Array
    sum_p2: Array


def scope_of(ops: Operands, b: int, logit: Array | None = None) -> Scope:
    """Return what the leaves of expressions stand for in batch entry b."""
    return Scope(ops.indices(b), ops.params, accum_dtype(ops.spec), logit)


def forward(ops: Operands) -> Detail:
    """Compute one call.

    Parameters
    ----------
    ops : Operands
        The call.

    Returns
    -------
    Detail
        Results and what led to them.
    """
    pairs, rows = ops.full_shape, ops.full_shape[:3]
    found = Detail(
        operands=ops,
        attended=np.zeros(pairs, dtype=bool),
        dot=np.zeros(pairs),
        capped=np.zeros(pairs),
        biased=np.zeros(pairs),
        logits=np.zeros(pairs),
        weights=np.zeros(pairs),
        out=np.zeros((*rows, ops.v.shape[3])),
        lse=np.zeros(rows),
        max_logit=np.zeros(rows),
        entropy=np.zeros(rows),
        sum_p2=np.zeros(rows),
    )
    with np.errstate(all="ignore"):
        for b in range(pairs[0]):
            _fill_logits(found, b)
            _fill_statistics(found, b)
            _fill_out(found, b)
    return found


def _fill_logits(found: Detail, b: int) -> None:
    """Compute logits in the normative order: scale, cap, bias, the user's change, mask."""
    ops = found.operands
    found.dot[b] = ops.q[b] @ ops.k[b, ops.kv_head].swapaxes(-1, -2)
    x = ops.scale * found.dot[b]  # SCALE-1
    if ops.spec.softcap is not None:  # CAP-1
        x = ops.spec.softcap * np.tanh(x / ops.spec.softcap)
    found.capped[b] = x
    if ops.bias is not None:  # MOD-1
        x = x + ops.bias[b]
    found.biased[b] = x
    found.logits[b] = _user_logits(ops, b, x)
    # MASK-6: a logit of -inf is an absent key; a NaN is not.
    found.attended[b] = _visible(ops, b) & (found.logits[b] != -np.inf)


def _user_logits(ops: Operands, b: int, x: Array) -> Array:
    logits = ops.spec.logits
    if logits is None:
        return x
    scope = scope_of(ops, b, x)
    if isinstance(logits, Alibi):
        node = Load(logits.slopes, logits.dtype, (Index("h"),))
        slopes = evaluate(node, scope)[node]
        p = scope.indices["q"] + offset(logits.align, scope)
        return np.asarray(x + slopes * (scope.indices["k"] - p))
    return np.broadcast_to(evaluate(logits, scope)[logits], x.shape)


def _visible(ops: Operands, b: int) -> Array:
    scope = scope_of(ops, b)
    i, j = scope.indices["q"], scope.indices["k"]
    seen = (i < ops.q_len[b]) & (j < ops.kv_len[b])  # MASK-4
    if ops.spec.mask is not None:
        seen = seen & visible(ops.spec.mask, scope, None if ops.mask is None else ops.mask[b])
    return np.broadcast_to(seen, ops.full_shape[1:])


def _fill_statistics(found: Detail, b: int) -> None:
    """Softmax over the attended keys of every row, and the share of each key in `out`."""
    attended, sinks = found.attended[b], found.operands.sinks
    x = np.where(attended, found.logits[b], -np.inf)
    m = x.max(axis=-1, initial=-np.inf)
    lost = np.isnan(m) | (m == np.inf)  # NUM-4
    m = np.where(lost, np.nan, m)
    empty = m == -np.inf
    shift = np.where(empty, 0.0, m)[..., None]  # NUM-2
    e = np.exp(x - shift)
    total = e.sum(axis=-1)
    some = np.where(empty, 1.0, total)[..., None]
    p = e / some
    found.max_logit[b] = m
    found.lse[b] = np.where(empty, -np.inf, m + np.log(some[..., 0]))
    # lse - sum p x with m taken out of both. An absent key has p = 0 and x = -inf; a key far below
    # the maximum has p = 0 too, and a difference that may overflow.
    spread = np.where(attended & (p != 0), p * (x - shift), 0.0).sum(axis=-1)
    found.entropy[b] = np.where(empty, 0.0, np.log(some[..., 0]) - spread)
    found.sum_p2[b] = (p * p).sum(axis=-1)
    if sinks is not None:  # SINK-1
        sink = sinks[:, None, None]
        shift = np.maximum(shift, sink)
        e = np.exp(x - shift)
        p = e / (e.sum(axis=-1, keepdims=True) + np.exp(sink - shift))
    found.weights[b] = np.where(attended, p, 0.0)


def _fill_out(found: Detail, b: int) -> None:
    """Add up the values, key by key; an absent key is picked out, never multiplied (MASK-3)."""
    ops = found.operands
    values = ops.v[b, ops.kv_head]
    for j in range(ops.full_shape[3]):
        share = found.weights[b, :, :, j, None] * values[:, None, j]
        found.out[b] += np.where(found.attended[b, :, :, j, None], share, 0.0)
    if ops.spec.empty_row == "nan":  # EMPTY-1
        found.out[b][~found.attended[b].any(axis=-1)] = np.nan
