"""Attention as anyone would write it in NumPy, in accum_dtype: whole rows, no tiles.

It shows that the bounds can be met, and, with one step replaced, that they are not met by less.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from sdpakit.conformance.gradients.naive import Backward
from sdpakit.conformance.inputs import Array, np_dtype
from sdpakit.conformance.target import BadCalls, BaseTarget, refusal
from sdpakit.logits import Alibi
from sdpakit.reference.expressions import Scope, evaluate, param
from sdpakit.reference.masks import offset, visible
from sdpakit.reference.operands import Operands, accum_dtype, prepare

if TYPE_CHECKING:
    from sdpakit.spec import AttentionSpec


class Naive(BaseTarget):
    """A target in steps, each of which a faulty one may replace.

    Its name is "naive", its profile the default one; it takes no `out=`.
    """

    name = "naive"
    bad_calls: BadCalls = "unchecked"

    def prepare(self, spec: AttentionSpec) -> Callable[..., dict[str, Array]]:
        """Return a callable for the spec; see `Target.prepare`."""
        if spec.batch_invariant:
            raise refusal(self.name, "the bits of its products depend on the number of rows")
        return functools.partial(self.attention, spec)

    def prepare_gradients(self, spec: AttentionSpec) -> Callable[..., dict[str, Array]]:
        """Return a callable for the spec; see `Target.prepare_gradients`."""
        return functools.partial(Backward(self).gradients, spec)

    def attention(
        self, spec: AttentionSpec, q: Any, k: Any, v: Any, **operands: Any
    ) -> dict[str, Array]:
        """Return all outputs of one call, in their dtypes and in the layout of the spec.

        Parameters
        ----------
        spec, q, k, v, **operands
            As for `sdpakit.reference.attention`.

        Returns
        -------
        dict of str to array
            By output name.
        """
        ops = prepare(spec, q, k, v, operands)
        rows, accum = ops.full_shape[:3], accum_dtype(spec)
        found = {name: np.empty(rows, accum) for name in ("lse", "max_logit", "entropy", "sum_p2")}
        found["out"] = np.empty((*rows, ops.v.shape[3]), accum)
        with np.errstate(all="ignore"):
            for b in range(rows[0]):
                for name, value in self.entry(ops, b).items():
                    found[name][b] = value
            found = {n: ops.to_layout(x, ops.empty_row(n)).astype(accum) for n, x in found.items()}
            found["out"] = found["out"].astype(np_dtype(spec.out_dtype))
        return found

    def entry(self, ops: Operands, b: int) -> dict[str, Array]:
        """Return the outputs of batch entry b."""
        accum = accum_dtype(ops.spec)
        x, attended = self.logits(ops, b)
        x = np.where(attended, x, -np.inf).astype(accum)
        m = x.max(axis=-1, initial=-np.inf)
        empty = m == -np.inf
        sinks = None if ops.sinks is None else ops.sinks[:, None].astype(accum)
        top = np.where(empty, 0.0, m).astype(accum)
        e = np.exp(x - top[..., None])
        total = self.row_sum(e)
        some = np.where(empty, 1.0, total).astype(accum)
        p = e / some[..., None]
        t = np.where(attended, x - top[..., None], 0.0)
        denominator = some
        if sinks is not None:
            joint = np.maximum(top, sinks)
            e = np.exp(x - joint[..., None])
            denominator = self.row_sum(e) + np.exp(sinks - joint)
        out = self.mix(e, ops.v[b, ops.kv_head].astype(accum), attended) / denominator[..., None]
        nothing = np.nan if ops.spec.empty_row == "nan" else 0.0
        poisoned = np.isnan(total) & ~empty
        return {
            "out": np.where(empty[..., None], nothing, out),
            "lse": np.where(empty, -np.inf, m + np.log(some)),
            "max_logit": np.where(poisoned, np.nan, m),
            "entropy": np.where(empty, 0.0, np.log(some) - (p * t).sum(axis=-1)),
            "sum_p2": (p * p).sum(axis=-1),
        }

    def logits(self, ops: Operands, b: int) -> tuple[Array, Array]:
        """Return the logits of batch entry b, and which pairs take part."""
        accum = accum_dtype(ops.spec)
        q, k = ops.q[b].astype(accum), ops.k[b, ops.kv_head].astype(accum)
        x = self.products(q, k) * accum.type(ops.scale)
        cap = ops.spec.softcap
        if cap is not None:
            x = accum.type(cap) * np.tanh(x / accum.type(cap))
        if ops.bias is not None:
            x = x + ops.bias[b].astype(accum)
        scope = Scope(ops.indices(b), ops.params, accum, x, real=accum)
        x = self.user_logits(ops, scope, x)
        return x, self.visible(ops, scope) & (x != -np.inf)

    def products(self, q: Array, k: Array) -> Array:
        """Return <q, k> for all pairs."""
        return np.asarray(q @ k.swapaxes(-1, -2))

    def user_logits(self, ops: Operands, scope: Scope, x: Array) -> Array:
        """Apply the user's change of the logits."""
        logits = ops.spec.logits
        if logits is None:
            return x
        if isinstance(logits, Alibi):
            slopes = np.asarray(param(scope, logits.slopes)).astype(scope.accum)[:, None, None]
            p = scope.indices["q"] + offset(logits.align, scope)
            return np.asarray(x + slopes * (scope.indices["k"] - p).astype(scope.accum))
        return np.broadcast_to(evaluate(logits, scope)[logits], x.shape)

    def visible(self, ops: Operands, scope: Scope) -> Array:
        """Return which pairs the mask and the lengths allow."""
        b = int(scope.indices["b"])
        i, j = scope.indices["q"], scope.indices["k"]
        seen = (i < ops.q_len[b]) & (j < ops.kv_len[b])
        if ops.spec.mask is not None:
            dense = None if ops.mask is None else ops.mask[b]
            seen = seen & visible(ops.spec.mask, scope, dense)
        return np.broadcast_to(seen, ops.full_shape[1:])

    def row_sum(self, e: Array) -> Array:
        """Return the sum of the exponentials of each row."""
        return np.asarray(e.sum(axis=-1, dtype=e.dtype))

    def mix(self, e: Array, v: Array, attended: Array) -> Array:
        """Return sum_j e_j v_j, absent keys picked out (MASK-3)."""
        finite = np.isfinite(v)
        total = e @ np.where(finite, v, 0).astype(v.dtype)
        for j in np.flatnonzero(~finite.all(axis=(0, 2))):
            strange = attended[:, :, j, None] & ~finite[:, None, j]
            total = np.where(strange, total + e[:, :, j, None] * v[:, None, j], total)
        return np.asarray(total)
