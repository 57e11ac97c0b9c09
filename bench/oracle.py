"""The check before the clock: attention in float64 on some rows, and how far one may be from it.

Written from docs/semantics.md with NumPy alone; a test holds it against `sdpakit.reference`. The
bound is derived from the inputs (NUM-6): roundings of independent elements add in quadrature,
LAMBDA standard deviations are allowed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.inputs import Array, Inputs, visible
from bench.workloads import Workload

LAMBDA = 4.0
_EDGE_ROWS, _MIDDLE_ROWS = 8, 32
ROUNDOFF = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}
_ACCUMULATOR = {
    "float16": "float32",
    "bfloat16": "float32",
    "float32": "float32",
    "float64": "float64",
}
SMALLEST_NORMAL = {
    "float16": 2.0**-14,
    "bfloat16": 2.0**-126,
    "float32": 2.0**-126,
    "float64": 2.0**-1022,
}

# An exponential is computed to within this many units of roundoff.
EXP_UNITS = 4.0


@dataclass(frozen=True, slots=True)
class Check:
    """How far an answer is from the reference.

    Attributes
    ----------
    max_error : float
        Largest absolute error.
    share_of_bound : float
        Largest error as a share of what is allowed there; NaN where the answer holds a NaN.
    elements : int
        Elements that were compared.
    """

    max_error: float
    share_of_bound: float
    elements: int

    @property
    def passed(self) -> bool:
        """Whether every compared element is inside the bound; never with a NaN."""
        return self.share_of_bound <= 1.0


@dataclass(frozen=True, slots=True)
class Expected:
    """The float64 answer of some (batch, head, row) places and the two bounds around it.

    Attributes
    ----------
    batch, heads, rows : Array
        Index arrays that select the places: `out[batch, heads, rows]`.
    out : Array
        (places, head_dim) in float64, or wider for float64 workloads.
    strict : Array
        Bound of a program that computes in the accumulator of NUM-1.
    lenient : Array
        Bound of one that may round logits and weights to the storage dtype; peers are held to it.
    """

    batch: Array
    heads: Array
    rows: Array
    out: Array
    strict: Array
    lenient: Array

    def check(self, out: Array, *, strict: bool) -> Check:
        """Compare an answer of shape (batch, q_heads, q_len, head_dim)."""
        got = out[self.batch, self.heads, self.rows].astype(self.out.dtype)
        error = np.abs(got - self.out)
        share = np.max(error / (self.strict if strict else self.lenient))
        return Check(float(np.max(error)), float(share), error.size)


def expect(workload: Workload, inputs: Inputs) -> Expected:
    """Compute the answer at the first, a middle and the last head, and some rows of each.

    Parameters
    ----------
    workload : Workload
        What is computed.
    inputs : Inputs
        Its arrays.

    Returns
    -------
    Expected
        Answers and bounds.
    """
    rows = _rows(workload)
    heads = sorted(
        {0, workload.q_heads // 2 + 1, workload.q_heads - 1} & set(range(workload.q_heads))
    )
    places = [(b, h) for b in sorted({0, workload.batch - 1}) for h in heads]
    parts = [_one_head(workload, inputs, b, h, rows) for b, h in places]
    out, strict, lenient = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    batch, head = (np.repeat(index, len(rows)) for index in zip(*places, strict=True))
    return Expected(batch, head, np.tile(rows, len(places)), out, strict, lenient)


def _rows(workload: Workload) -> Array:
    length = workload.q_len
    if length <= 2 * _EDGE_ROWS + _MIDDLE_ROWS:
        return np.arange(length)
    middle = np.random.default_rng(0).choice(
        np.arange(_EDGE_ROWS, length - _EDGE_ROWS), _MIDDLE_ROWS, replace=False
    )
    return np.concatenate(
        [np.arange(_EDGE_ROWS), np.sort(middle), np.arange(length - _EDGE_ROWS, length)]
    )


def _one_head(
    workload: Workload, inputs: Inputs, batch: int, head: int, rows: Array
) -> tuple[Array, Array, Array]:
    """Return out and both bounds of some rows of one head."""
    terms = terms_of(workload, inputs, batch, head, rows)
    storage = ROUNDOFF[workload.dtype]
    accumulator = ROUNDOFF[_ACCUMULATOR[workload.dtype]]
    final = storage * np.abs(terms.out) + SMALLEST_NORMAL[workload.dtype]
    strict = terms.bound(accumulator, 0.0) + final
    lenient = terms.bound(accumulator, storage) + final
    return terms.out, strict, lenient


def terms_of(workload: Workload, inputs: Inputs, batch: int, head: int, rows: Array) -> Terms:
    """Return weights and out of some rows of one head, and what their bounds are made of."""
    kv_head = head // (workload.q_heads // workload.kv_heads)
    # A float64 answer needs a judge that is finer than itself.
    wide = np.longdouble if workload.dtype == "float64" else np.float64
    q = inputs.q[batch, head, rows].astype(wide)
    k, v = (x[batch, kv_head, : workload.keys(batch)].astype(wide) for x in (inputs.k, inputs.v))
    scale = workload.head_dim**-0.5
    dot = q @ k.T
    x = scale * dot
    if inputs.bias is not None:
        x += inputs.bias[0, head % inputs.bias.shape[1], rows]
    mask = visible(workload, rows) if inputs.mask is None else inputs.mask[0, 0, rows]
    mask = mask[:, : len(k)]
    x = np.where(mask, x, -np.inf)
    m = x.max(axis=-1, keepdims=True)
    p = np.exp(x - m)
    p /= p.sum(axis=-1, keepdims=True)
    norm = np.sqrt(q**2 @ (k**2).T)
    return Terms(p, v, p @ v, np.where(mask, x, 0.0), m, mask, scale, dot, norm)


@dataclass(frozen=True, slots=True)
class Terms:
    """What the bound of one head is made of: arrays over (rows, keys), but for v and out."""

    p: Array
    v: Array
    out: Array
    x: Array
    m: Array
    mask: Array
    scale: float
    dot: Array
    dot_norm: Array

    def weight_error(self, u: float, u_stored: float) -> tuple[Array, Array]:
        """Return the relative error of weights before they are divided, and of what divides them.

        Parameters
        ----------
        u : float
            Unit roundoff of products, exponentials and sums.
        u_stored : float
            Unit roundoff of a logit and of a weight that are stored between the steps; 0 where they
            are not.
        """
        width, count = self.v.shape[1], self.mask.sum(axis=-1, keepdims=True)
        logit_error = (
            abs(self.scale) * u * np.sqrt(width) * np.maximum(np.abs(self.dot), self.dot_norm)
        )
        logit_error += (2 * u + u_stored) * np.abs(self.x)
        rho = (
            logit_error
            + EXP_UNITS * u
            + u_stored
            + u * np.where(self.mask, np.abs(self.x - self.m), 0.0)
        )
        sums = np.sqrt((self.p**2 * rho**2).sum(axis=-1, keepdims=True)) + u * np.sqrt(count)
        return rho, sums

    def bound(self, u: float, u_stored: float) -> Array:
        """Return the allowed error before the last rounding; parameters as of `weight_error`."""
        rho, denominator = self.weight_error(u, u_stored)
        count = self.mask.sum(axis=-1, keepdims=True)
        p2, v2 = self.p**2, self.v**2
        weights: Any = np.sqrt((p2 * rho**2) @ v2)
        sums = u * np.sqrt(count) * np.maximum(np.abs(self.out), np.sqrt(p2 @ v2))
        bound: Array = LAMBDA * (weights + sums + np.abs(self.out) * denominator)
        return bound
