"""Gradients of `sum(dout * out)`, written out from the definition (GRAD-1, GRAD-2)."""

from __future__ import annotations

from typing import Any

import numpy as np

from sdpakit.errors import ArgumentError, format_error
from sdpakit.expr.names import LOGIT
from sdpakit.expr.nodes import Expr, Load, postorder
from sdpakit.logits import Alibi
from sdpakit.reference.expressions import backpropagate, evaluate, table_indices
from sdpakit.reference.forward import Detail, scope_of
from sdpakit.reference.masks import offset
from sdpakit.reference.operands import Array


def gradients(found: Detail, dout: Any) -> dict[str, Array]:
    """Return the gradients of a call.

    Parameters
    ----------
    found : Detail
        The call and its forward results.
    dout : array_like
        Gradient with respect to `out`, in its shape and layout, with any strides (GRAD-3).

    Returns
    -------
    dict of str to numpy.ndarray
        "dq", "dk", "dv" in the layout of the spec; "dbias", "dsinks" and "dparams.NAME" where
        there is such an operand.

    Raises
    ------
    ArgumentError
        If `dout` has not the shape of `out`.
    """
    ops = found.operands
    if ops.spec.packed:
        raise ArgumentError(
            format_error(
                "dout",
                got="a gradient of a call with layout 'thd' or paged=True",
                allowed="gradients of padded batches",
                fix="pad the entries and give q_lens= and kv_lens= (MASK-4)",
            )
        )
    upstream = np.asarray(dout).astype(np.float64)
    if upstream.shape != ops.to_layout(found.out).shape:
        raise ArgumentError(
            format_error(
                "dout", got=f"shape {upstream.shape}", allowed="the shape of out", fix="reshape it"
            )
        )
    upstream = ops.to_layout(upstream)  # the swap of two axes is its own inverse
    with np.errstate(all="ignore"):
        dlogits, dv, dsinks = _softmax_gradients(found, upstream)
        dbiased, tables = _user_gradients(found, dlogits)
        dq, dk = _product_gradients(found, dbiased)
        reduced = None if ops.bias is None else _reduce(dbiased, ops.bias_shape)
    results = {"dq": ops.to_layout(dq), "dk": ops.to_layout(dk), "dv": ops.to_layout(dv), **tables}
    if reduced is not None:
        results["dbias"] = reduced
    if dsinks is not None:
        results["dsinks"] = dsinks
    return results


def _softmax_gradients(found: Detail, upstream: Array) -> tuple[Array, Array, Array | None]:
    """Return the gradients of the logits, of v and of the sinks."""
    ops = found.operands
    dp = np.zeros(ops.full_shape)
    dv = np.zeros(ops.v.shape)
    for b in range(ops.full_shape[0]):
        values = ops.v[b, ops.kv_head]
        for j in range(ops.full_shape[3]):
            seen = found.attended[b, :, :, j]
            dp[b, :, :, j] = np.where(seen, (upstream[b] * values[:, None, j]).sum(axis=-1), 0.0)
            share = found.weights[b, :, :, j, None] * upstream[b]
            share = np.where(seen[..., None], share, 0.0)
            np.add.at(dv[b, :, j], ops.kv_head, share.sum(axis=1))  # GRAD-1: sum over the group
    delta = (found.weights * dp).sum(axis=-1)
    dlogits = np.where(found.attended, found.weights * (dp - delta[..., None]), 0.0)
    if ops.sinks is None:
        return dlogits, dv, None
    sink = ops.sinks[None, :, None]
    sink_weight = np.exp(sink - np.logaddexp(found.lse, sink))
    # EMPTY-1: an empty row has no gradient, whatever the sink; -inf - (-inf) would be NaN.
    parts = np.where(found.attended.any(axis=-1), sink_weight * delta, 0.0)
    return dlogits, dv, -parts.sum(axis=(0, 2))


def _user_gradients(found: Detail, dlogits: Array) -> tuple[Array, dict[str, Array]]:
    """Take gradients through the user's change of the logits, to its tables and its input."""
    ops = found.operands
    logits = ops.spec.logits
    if isinstance(logits, Alibi):  # its slope with respect to the logit is 1
        return dlogits, {f"dparams.{logits.slopes}": _alibi_gradient(found, logits, dlogits)}
    if not isinstance(logits, Expr):
        return dlogits, {}
    before = np.zeros_like(dlogits)
    # A table that no gradient reaches, in a condition or under floor, has one of zeros.
    tables = {
        f"dparams.{node.table}": np.zeros(np.shape(ops.params[node.table]))
        for node in postorder(logits)
        if isinstance(node, Load) and node.type == "float"
    }
    for b in range(ops.full_shape[0]):
        values = evaluate(logits, scope_of(ops, b, found.biased[b]))
        for node, gradient in backpropagate(logits, values, dlogits[b]).items():
            if node is LOGIT:
                before[b] += gradient
            elif isinstance(node, Load):
                total = tables[f"dparams.{node.table}"]
                picked = table_indices(node, total.shape, values)
                np.add.at(
                    total, tuple(np.broadcast_to(at, gradient.shape) for at in picked), gradient
                )
    return before, tables


def _alibi_gradient(found: Detail, alibi: Alibi, dlogits: Array) -> Array:
    """Sum the gradients of slopes[h] * (j - p) over the pairs of each head (GRAD-2)."""
    ops = found.operands
    total = np.zeros(ops.full_shape[1])
    for b in range(ops.full_shape[0]):
        scope = scope_of(ops, b)
        p = scope.indices["q"] + offset(alibi.align, scope)
        total += (dlogits[b] * (scope.indices["k"] - p)).sum(axis=(1, 2))
    return _reduce(total, np.shape(ops.params[alibi.slopes]))


def _product_gradients(found: Detail, dbiased: Array) -> tuple[Array, Array]:
    """Take gradients through cap and scale to q and k."""
    ops = found.operands
    cap = ops.spec.softcap
    slope = 1.0 if cap is None else 1.0 - (found.capped / cap) ** 2
    # MASK-3: absent pairs may hold NaN in slope, q or k; their gradient is exactly 0.
    ddot = np.where(found.attended, dbiased * slope * ops.scale, 0.0)
    dq, dk = np.zeros(ops.q.shape), np.zeros(ops.k.shape)
    for b in range(ops.full_shape[0]):
        keys = ops.k[b, ops.kv_head]
        for j in range(ops.full_shape[3]):
            seen, part = found.attended[b, :, :, j, None], ddot[b, :, :, j, None]
            dq[b] += np.where(seen, part * keys[:, None, j], 0.0)
            share = np.where(seen, part * ops.q[b], 0.0)
            np.add.at(dk[b, :, j], ops.kv_head, share.sum(axis=1))
    return dq, dk


def _reduce(gradient: Array, shape: tuple[int, ...]) -> Array:
    """Sum over the axes along which an operand of this shape was broadcast."""
    total = gradient.sum(axis=tuple(range(gradient.ndim - len(shape))))
    spread = tuple(axis for axis, size in enumerate(shape) if size == 1 and total.shape[axis] != 1)
    return np.asarray(total.sum(axis=spread, keepdims=True))
