"""The check of the backward pass before the clock: dq, dk and dv in float64, and their bounds.

Written from the definition with NumPy alone, as the check of the forward pass (`oracle.py`), and in
its manner: errors of independent elements add in quadrature; what is common to a row, the errors of
its denominator and of the sum of dout * out, is carried through the sums over its keys as it is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bench.inputs import Array, Inputs
from bench.oracle import LAMBDA, ROUNDOFF, SMALLEST_NORMAL, Expected, Terms, terms_of
from bench.workloads import Workload


def expect(workload: Workload, inputs: Inputs) -> Expected:
    """Compute all gradients of the first and the last head.

    Parameters
    ----------
    workload : Workload
        One batch entry in float32, with as many kv heads as query heads and as many keys as rows.
    inputs : Inputs
        Its arrays.

    Returns
    -------
    Expected
        Of an answer of shape (3, heads, length, head_dim): dq, dk and dv.
    """
    heads = sorted({0, workload.q_heads - 1})
    rows = np.arange(workload.q_len)
    parts = [_one_head(workload, inputs, head, rows) for head in heads]
    out, bound = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    which = np.tile(np.repeat(np.arange(3), len(rows)), len(heads))
    head = np.repeat(heads, 3 * len(rows))
    return Expected(which, head, np.tile(rows, 3 * len(heads)), out, bound, bound)


def _one_head(workload: Workload, inputs: Inputs, head: int, rows: Array) -> tuple[Array, Array]:
    """Return dq, dk and dv of one head, one below the other, and the allowed errors."""
    assert inputs.dout is not None, "a workload with a backward pass has it"
    terms = terms_of(workload, inputs, 0, head, rows)
    q, k, dout = (a[0, head].astype(np.float64) for a in (inputs.q, inputs.k, inputs.dout))
    dp = dout @ terms.v.T
    delta = (dout * terms.out).sum(axis=-1, keepdims=True)
    ds = terms.p * (dp - delta)
    scale, u = terms.scale, ROUNDOFF["float32"]
    found = np.concatenate((scale * ds @ k, scale * ds.T @ q, terms.p.T @ dout))
    bound = _Errors(terms, q, k, dout, dp, delta, ds).bounds(u)
    return found, LAMBDA * bound + 2 * u * np.abs(found) + SMALLEST_NORMAL["float32"]


@dataclass(frozen=True, slots=True)
class _Errors:
    """What the errors of one head are made of."""

    terms: Terms
    q: Array
    k: Array
    dout: Array
    dp: Array
    delta: Array
    ds: Array

    def bounds(self, u: float) -> Array:
        """Return one standard deviation of dq, dk and dv, at a unit roundoff."""
        p, scale, mask = self.terms.p, self.terms.scale, self.terms.mask
        rho, denominator = self.terms.weight_error(u, 0.0)
        p_error2 = p**2 * (rho**2 + denominator**2)
        delta_error = self._delta_error(u)
        ds_error2 = self._ds_error2(u, rho, denominator, delta_error)
        k2, q2, dout2 = self.k**2, self.q**2, self.dout**2
        of_row = denominator * np.abs(self.ds @ self.k) + delta_error * np.abs(p @ self.k)
        dq = scale * (np.sqrt(ds_error2 @ k2) + of_row)
        dq += scale * _sums(u, mask, self.ds, self.k)
        dk = scale * (np.sqrt(ds_error2.T @ q2) + _sums(u, mask.T, self.ds.T, self.q))
        dv = np.sqrt(p_error2.T @ dout2) + _sums(u, mask.T, p.T, self.dout)
        return np.concatenate((dq, dk, dv))

    def _delta_error(self, u: float) -> Array:
        """Return the error of the sums of dout * out, from those of out and of the sum."""
        out_error = self.terms.bound(u, 0.0) / LAMBDA
        terms2 = (self.dout * self.terms.out) ** 2
        width = self.dout.shape[1]
        of_sum = u**2 * width * np.maximum(self.delta**2, terms2.sum(axis=-1, keepdims=True))
        error: Array = np.sqrt((self.dout**2 * out_error**2).sum(axis=-1, keepdims=True) + of_sum)
        return error

    def _ds_error2(self, u: float, rho: Array, denominator: Array, delta_error: Array) -> Array:
        """Return the squared errors of the gradients of the logits."""
        width = self.dout.shape[1]
        norm2 = self.dout**2 @ (self.terms.v**2).T
        dp_error2 = u**2 * width * np.maximum(self.dp**2, norm2)
        relative2 = rho**2 + denominator**2 + (2 * u) ** 2
        error2: Array = relative2 * self.ds**2 + self.terms.p**2 * (dp_error2 + delta_error**2)
        return error2


def _sums(u: float, mask: Array, a: Array, b: Array) -> Array:
    """Return the errors of the sums in a @ b, where mask says which terms there are."""
    count = mask.sum(axis=-1, keepdims=True)
    error: Array = u * np.sqrt(count) * np.maximum(np.abs(a @ b), np.sqrt(a**2 @ b**2))
    return error
