"""Gradients as anyone would write them in NumPy, in accum_dtype: whole rows, no tiles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sdpakit.conformance.gradients.wanted import change_of, float_tables, gradient_operands
from sdpakit.conformance.inputs import Array
from sdpakit.expr.names import LOGIT
from sdpakit.expr.nodes import Load
from sdpakit.reference.expressions import Scope, backpropagate, evaluate, table_indices
from sdpakit.reference.operands import Operands, accum_dtype, prepare

if TYPE_CHECKING:
    from sdpakit.conformance.targets.naive import Naive
    from sdpakit.spec import AttentionSpec

MOVED: tuple[str, ...] = ("dq", "dk", "dv")  # gradients in the layout of the spec


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """What the backward of one batch entry starts from; all arrays in accum_dtype.

    Attributes
    ----------
    ops : Operands
        The call.
    b : int
        Batch entry.
    q, k, v, dout : (Hq, L, width)
        k and v once for each query head.
    x, attended : (Hq, Lq, Lk)
        Logits, and pairs that take part.
    capped, biased : (Hq, Lq, Lk)
        Logits on the way.
    """

    ops: Operands
    b: int
    q: Array
    k: Array
    v: Array
    dout: Array
    x: Array
    attended: Array
    capped: Array
    biased: Array

    @property
    def accum(self) -> np.dtype[Any]:
        """accum_dtype of the spec."""
        return accum_dtype(self.ops.spec)


class Backward:
    """The backward pass in steps, each of which a faulty one may replace.

    Parameters
    ----------
    forward : Naive
        Gives logits and masks; its faults are inherited.
    """

    def __init__(self, forward: Naive) -> None:
        self.forward = forward

    def gradients(
        self, spec: AttentionSpec, q: Any, k: Any, v: Any, **operands: Any
    ) -> dict[str, Array]:
        """Return all gradients of one call.

        Parameters
        ----------
        spec, q, k, v, **operands
            As for `sdpakit.reference.attention`, `dout` included.

        Returns
        -------
        dict of str to array
            Each in the shape, layout and dtype of its operand (GRAD-3).
        """
        dout = np.asarray(operands.pop("dout"))
        ops = prepare(spec, q, k, v, operands)
        with np.errstate(all="ignore"):
            found = self.sums(ops, self.upstream(ops, dout))
            return self.stored(ops, found, {"q": q, "k": k, "v": v, **operands})

    def upstream(self, ops: Operands, dout: Array) -> Array:
        """Return dout as (B, Hq, Lq, Dv) in accum_dtype, whatever its strides."""
        return np.asarray(ops.to_layout(dout)).astype(accum_dtype(ops.spec))

    def sums(self, ops: Operands, dout: Array) -> dict[str, Array]:
        """Return the gradients in accum_dtype and in the axis order b, h, length, width."""
        accum = accum_dtype(ops.spec)
        found = {f"d{name}": np.zeros(getattr(ops, name).shape, accum) for name in "qkv"}
        dbiased = np.zeros(ops.full_shape, accum)
        if ops.sinks is not None:
            found["dsinks"] = np.zeros(ops.full_shape[1], accum)
        for table in float_tables(ops.spec):
            found[f"dparams.{table}"] = np.zeros(np.shape(ops.params[table]), accum)
        for b in range(ops.full_shape[0]):
            entry = self.entry(ops, b, dout[b])
            p, lse = self.weights(entry)
            dp = np.where(entry.attended, self.value_products(entry), 0).astype(accum)
            delta = self.delta(entry, p, dp)
            dlogits = self.dlogits(entry, p, dp, delta)
            dbiased[b], tables = self.through_change(entry, dlogits)
            for name, part in tables.items():
                found[name] = found[name] + part
            ddot = self.through_cap(entry, dbiased[b])
            found["dq"][b] = self.query_sum(entry, ddot)
            found["dk"][b] = self.group_sum(ops, self.key_sum(entry, ddot))
            found["dv"][b] = self.group_sum(ops, self.value_sum(entry, p))
            if ops.sinks is not None:
                found["dsinks"] -= self.sink_sum(entry, lse, delta)
        if ops.bias is not None:
            found["dbias"] = self.reduced(dbiased, ops.bias_shape)
        return found

    def entry(self, ops: Operands, b: int, dout: Array) -> Entry:
        """Return logits and operands of batch entry b."""
        accum = accum_dtype(ops.spec)
        q, k, v = ops.q[b].astype(accum), ops.k[b, ops.kv_head], ops.v[b, ops.kv_head]
        k, v = k.astype(accum), v.astype(accum)
        x, attended = self.forward.logits(ops, b)
        capped = self.forward.products(q, k) * accum.type(ops.scale)
        cap = ops.spec.softcap
        if cap is not None:
            capped = accum.type(cap) * np.tanh(capped / accum.type(cap))
        biased = capped if ops.bias is None else capped + ops.bias[b].astype(accum)
        x = np.where(attended, x, -np.inf).astype(accum)
        return Entry(ops, b, q, k, v, dout, x, attended, capped, biased)

    def weights(self, entry: Entry) -> tuple[Array, Array]:
        """Return the weights as exp(x - lse), and that lse, the sink in it (NUM-3)."""
        m = entry.x.max(axis=-1, initial=-np.inf)
        empty = m == -np.inf
        top = np.where(empty, 0, m).astype(entry.accum)
        if entry.ops.sinks is not None:
            top = np.maximum(top, entry.ops.sinks[:, None].astype(entry.accum))
        total = np.exp(entry.x - top[..., None]).sum(axis=-1)
        if entry.ops.sinks is not None:
            total = total + np.exp(entry.ops.sinks[:, None].astype(entry.accum) - top)
        lse = np.where(empty, 0, top + np.log(np.where(empty, 1, total))).astype(entry.accum)
        return self.exponentials(entry, lse), lse

    def exponentials(self, entry: Entry, lse: Array) -> Array:
        """Return exp(x - lse), 0 where a pair is absent."""
        return np.where(entry.attended, np.exp(entry.x - lse[..., None]), 0).astype(entry.accum)

    def value_products(self, entry: Entry) -> Array:
        """Return <dout_i, v_j> for all pairs."""
        return np.asarray(entry.dout @ entry.v.swapaxes(-1, -2))

    def delta(self, entry: Entry, p: Array, dp: Array) -> Array:
        """Return sum_j p_j dP_j of each row."""
        return np.asarray((p * dp).sum(axis=-1))

    def dlogits(self, entry: Entry, p: Array, dp: Array, delta: Array) -> Array:
        """Return the gradient of the final logits, exactly 0 where a pair is absent."""
        return np.where(entry.attended, p * (dp - delta[..., None]), 0).astype(entry.accum)

    def through_change(self, entry: Entry, dlogits: Array) -> tuple[Array, dict[str, Array]]:
        """Take gradients through the user's change of the logits, to its input and its tables."""
        ops, root = entry.ops, change_of(entry.ops.spec)
        if root is None:
            return dlogits, {}
        scope = Scope(ops.indices(entry.b), ops.params, entry.accum, entry.biased, entry.accum)
        values = evaluate(root, scope)
        before = np.zeros_like(dlogits)
        tables: dict[str, Array] = {}
        for node, gradient in backpropagate(root, values, dlogits).items():
            if node is LOGIT:
                before = before + gradient.astype(entry.accum)
            elif isinstance(node, Load):
                part = self.table_sum(entry, node, values, gradient)
                name = f"dparams.{node.table}"
                tables[name] = tables[name] + part if name in tables else part
        return before, tables

    def table_sum(
        self, entry: Entry, node: Load, values: Mapping[Any, Any], gradient: Array
    ) -> Array:
        """Add up the gradient of a table over the pairs that read each element."""
        shape = np.shape(entry.ops.params[node.table])
        total = np.zeros(shape, entry.accum)
        places = (np.broadcast_to(at, gradient.shape) for at in table_indices(node, shape, values))
        np.add.at(total, tuple(places), gradient.astype(entry.accum))
        return total

    def through_cap(self, entry: Entry, dbiased: Array) -> Array:
        """Take gradients through cap and scale to the product <q, k>."""
        slope = self.cap_slope(entry) * entry.accum.type(entry.ops.scale)
        return np.where(entry.attended, dbiased * slope, 0).astype(entry.accum)

    def cap_slope(self, entry: Entry) -> Any:
        """Return 1 - tanh^2, or 1 without a cap."""
        cap = entry.ops.spec.softcap
        one = entry.accum.type(1)
        return one if cap is None else one - (entry.capped / entry.accum.type(cap)) ** 2

    def query_sum(self, entry: Entry, ddot: Array) -> Array:
        """Return dq of each query head."""
        return self.forward.mix(ddot, entry.k, entry.attended)

    def key_sum(self, entry: Entry, ddot: Array) -> Array:
        """Return dk of each query head, to be added up over its group."""
        return self.over_rows(entry, ddot, entry.q)

    def value_sum(self, entry: Entry, p: Array) -> Array:
        """Return dv of each query head, to be added up over its group."""
        return self.over_rows(entry, p, entry.dout)

    def over_rows(self, entry: Entry, factor: Array, rows: Array) -> Array:
        """Return sum_i factor_ij rows_i, rows that do not see the key picked out (MASK-3)."""
        return self.forward.mix(factor.swapaxes(-1, -2), rows, entry.attended.swapaxes(-1, -2))

    def group_sum(self, ops: Operands, by_head: Array) -> Array:
        """Add up over the query heads that share a kv head (GRAD-1)."""
        heads = ops.k.shape[1]
        group = by_head.shape[0] // max(heads, 1)
        return np.asarray(by_head.reshape(heads, group, *by_head.shape[1:]).sum(axis=1))

    def sink_sum(self, entry: Entry, lse: Array, delta: Array) -> Array:
        """Return the sum over rows of the weight of each sink times delta."""
        sinks = np.asarray(entry.ops.sinks).astype(entry.accum)[:, None]
        empty = ~entry.attended.any(axis=-1)
        parts = np.where(empty, 0, np.exp(sinks - lse) * delta)
        return np.asarray(parts.sum(axis=-1, dtype=entry.accum))

    def reduced(self, gradient: Array, shape: tuple[int, ...]) -> Array:
        """Sum over the axes along which an operand of this shape was broadcast."""
        total = gradient.sum(axis=tuple(range(gradient.ndim - len(shape))))
        spread = tuple(a for a, size in enumerate(shape) if size == 1 and total.shape[a] != 1)
        return np.asarray(total.sum(axis=spread, keepdims=True))

    def stored(
        self, ops: Operands, found: Mapping[str, Array], given: Mapping[str, Any]
    ) -> dict[str, Array]:
        """Round each gradient once, to the dtype of its operand, in the layout of the spec."""
        return {
            name: (ops.to_layout(found[name]) if name in MOVED else found[name]).astype(like.dtype)
            for name, like in gradient_operands(ops.spec, given).items()
        }
