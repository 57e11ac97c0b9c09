r"""Bounds of the error of a right program, derived from the inputs (NUM-6).

Inputs are exact as stored. For row i over its attended keys J (n = |J|, one more with a sink), let
x be the logits, p the weights, m = max x, all from the reference, u the unit roundoff of
accum_dtype, g(k) = k u / (1 - k u), and exp, tanh, weights the errors of the target's `Profile`.

Logits. A product of D terms, scaled, is off by at most |scale| g(D + 2) sum |q_d k_jd| (Higham,
Accuracy and Stability of Numerical Algorithms, section 3.1), or, if roundings are independent, by a
few times |scale| u sqrt(D) max(|<q, k_j>|, sqrt(sum (q_d k_jd)^2)). A cap has slope at most
1 - tanh^2 at the end of the interval that is nearer to 0, and adds the errors of a division, of
tanh and of a product. The bias adds one rounding. An expression of the user carries errors forward
operation by operation (`propagate`). Last comes a relative error for whatever change of base the
program makes, 4 u |x| or 2 u |x|. The sum is e_j.

Weights. exp turns e_j into a relative error expm1(e_j); its argument x - m is rounded, 2 u |x - m|,
and so is its result: r_j. Both together are rho_j = expm1(e_j) + r_j + weights. An error of m
itself cancels between numerator and denominator, and lse moves by at most max e.

    hard (any order of summation)
      |out - ref| <= sum p |v| (rho + g(n)) + |ref| (sum p rho + g(n)) + u_out |ref| + tiny
      |lse - ref| <= max e + sum p r + g(n) + 2 u (|lse| + |m|) + 4 u |lse - m| + 2 u
    sharp (independent roundings add in quadrature; lam = 4)
      acc = u sqrt(n) max(|ref|, sqrt(sum (p v)^2)),  den = sqrt(sum (p rho)^2) + u sqrt(n)
      |out - ref| <= lam (sqrt(sum (p v rho)^2) + acc + |ref| den) + u_out |ref| + tiny
      |lse - ref| <= lam den + 2 u (|lse| + |m|) + 2 u

Largest logit. max of perturbed logits lies between the perturbed largest and max (x + e).

Entropy. With t = x - m, T = sum p t: H = log l - T, l = sum exp t. Let a logit be off by eps_j and
its weight, beyond that, by the factor 1 + r_j. To first order d log l = sum p (eps + r) and
dT = sum p (eps + r) (t - T) + sum p eps, so

      dH = - sum p eps (t - T) + sum p r (1 - t + T)

where |eps| <= e and |r| <= r_j. The two sums add g(n) (1 + sum p |t|), and logarithm, quotient and
difference 4 u (|log l| + |T| + 1).

Sum of p^2. With S = sum e^2 / l^2: dS = 2 sum p r (p - S), where r = rho; the sums add 3 g(n) S and
the two divisions 4 u S.

The sharp forms of the last three put every sum over keys in quadrature, times lam.

Where logits are so large that e is not small, all this says little, and what is known without it
counts: `out` is a mean of the attended values (and of 0, with a sink), 0 <= H <= log n, and
1 / n <= S <= 1, each but for the rounding of the sums.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sdpakit.conformance.inputs import Array
from sdpakit.conformance.model import BoundKind, Profile
from sdpakit.conformance.propagate import propagate
from sdpakit.dtypes import DTYPES
from sdpakit.logits import Alibi
from sdpakit.reference import Detail
from sdpakit.reference.expressions import evaluate
from sdpakit.reference.forward import scope_of
from sdpakit.reference.operands import accum_dtype

# Smallest subnormal number of a dtype, and smallest normal one of an accum_dtype.
SMALLEST = {
    "float16": 2.0**-24,
    "bfloat16": 2.0**-133,
    "float32": 2.0**-149,
    "float64": 2.0**-1074,
}
SMALLEST_NORMAL = {"float32": 2.0**-126, "float64": 2.0**-1022}
LOOSE = 0.1  # relative error of a row from which on the hull of the values is looked at
LAM = 4.0  # quadrature gives a standard deviation; a bound for thousands of elements needs four


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Quantities of the head of this file; (B, Hq, Lq, Lk) per key, (B, Hq, Lq) per row."""

    kind: BoundKind
    u: float
    tiny_weight: float
    e: Array  # error of a logit
    r: Array  # further relative error of its weight without the sink
    p: Array  # weight in out
    kept: Array  # its error, p rho
    own: Array  # weight without the sink
    own_kept: Array  # its error
    sink: Array  # weight of the sink times its relative error
    n: Array
    log_l: Array

    def g(self, k: Any) -> Any:
        """Error of a sum of k terms in any order."""
        return k * self.u / (1.0 - k * self.u)


def bounds(
    found: Detail, kind: BoundKind, profile: Profile | None = None, *, precision: str | None = None
) -> dict[str, Array]:
    """Return the largest error that each element of each output may have.

    Parameters
    ----------
    found : Detail
        What the reference knows about the call.
    kind : {"sharp", "hard"}
        Sharp for random inputs, hard for chosen ones.
    profile : Profile, optional
        Numerics of the target.
    precision : str, optional
        Judge a target that computes and returns in this dtype, not in accum_dtype and out_dtype.

    Returns
    -------
    dict of str to array
        "out" (B, Hq, Lq, Dv), and "lse", "max_logit", "entropy", "sum_p2" (B, Hq, Lq), in the axis
        order of `Detail`. NaN or infinite where the reference is; NaN in "out" where an infinity
        and NaN are both right, because the weight of an infinite value may be 0 (NUM-4).
    """
    spec = found.operands.spec
    accum = precision or accum_dtype(spec).name
    out_dtype = precision or spec.out_dtype
    with np.errstate(all="ignore"):
        rows = rows_of(found, kind, (profile or Profile()).of(spec.dtype), accum)
        bound = {
            "out": _out(found, rows, out_dtype),
            "lse": _lse(found, rows),
            "max_logit": _max_logit(found, rows),
            "entropy": _entropy(found, rows),
            "sum_p2": _sum_p2(found, rows),
        }
    empty = ~found.attended.any(axis=-1)
    for array in bound.values():
        array[empty] = 0.0  # EMPTY-1 leaves nothing to round
    return bound


def rows_of(found: Detail, kind: BoundKind, profile: Profile, accum: str) -> Rows:
    """Return the quantities of the head of this file.

    Parameters
    ----------
    found, kind, profile
        As for `bounds`.
    accum : str
        Dtype of the computation.

    Returns
    -------
    Rows
        Of every pair and row; absent pairs have neither weight nor error.
    """
    u = DTYPES[accum].unit_roundoff
    attended, sinks = found.attended, found.operands.sinks
    e = np.where(attended, _logit_error(found, kind, profile, accum), 0.0)
    x = np.where(attended, found.logits, -np.inf)
    m = found.max_logit[..., None]
    own = np.where(attended, np.exp(x - found.lse[..., None]), 0.0)
    sink_error, top = np.zeros(found.lse.shape), m
    if sinks is not None:
        sink = sinks[:, None]
        top = np.maximum(m, sink[..., None])
        share = np.where(np.isneginf(sink), 0.0, 1.0 - found.weights.sum(axis=-1))
        argument = np.where(share > 0, np.abs(sink - top[..., 0]), 0.0)
        sink_error = share * (profile.exp * u + 2 * u * argument)
    r, joint = (
        np.where(attended, profile.exp * u + steps(kind) * u * np.abs(x - largest), 0.0)
        for largest in (m, top)
    )
    return Rows(
        kind=kind,
        u=u,
        tiny_weight=SMALLEST_NORMAL[accum],
        e=e,
        r=r,
        p=found.weights,
        kept=_moved(found.weights, e, kind) + _rounded(found, joint, profile),
        own=own,
        own_kept=_moved(own, e, kind) + own * r,
        sink=sink_error,
        n=attended.sum(axis=-1) + (sinks is not None),
        log_l=found.lse - found.max_logit,
    )


def _rounded(found: Detail, joint: Array, profile: Profile) -> Array:
    """Return the error of weights that are rounded, to the dtype of q if the profile says so."""
    error = found.weights * (joint + profile.weights)
    if not profile.weights:
        return np.asarray(error)
    # Below the normal range of that dtype, rounding is off by half a subnormal.
    return np.asarray(error + 0.5 * SMALLEST[found.operands.spec.dtype] * found.attended)


def _moved(p: Array, e: Array, kind: BoundKind) -> Array:
    """Return p expm1(e), or p e to first order, also where p underflows and exp(e) overflows."""
    if kind == "sharp":
        return p * e
    far = np.exp(np.log(p) + e) - p
    return np.where(p == 0.0, 0.0, np.where(e < 1.0, p * np.expm1(e), far))


def steps(kind: BoundKind) -> float:
    """Return the roundings of x - m: two in the worst case, one on average.

    Parameters
    ----------
    kind : {"sharp", "hard"}
        Of the bound.

    Returns
    -------
    float
        In unit roundoffs.
    """
    return 2.0 if kind == "hard" else 1.0


def _logit_error(found: Detail, kind: BoundKind, profile: Profile, accum: str) -> Array:
    """Return e of the head of this file for every pair; absent pairs hold anything."""
    u = DTYPES[accum].unit_roundoff
    e = _user_error(found, biased_error(found, kind, profile, accum), profile, accum)
    return np.asarray(e + 2.0 * steps(kind) * u * np.abs(found.logits))


def biased_error(found: Detail, kind: BoundKind, profile: Profile, accum: str) -> Array:
    """Return the error of the capped logit with its bias, before the user's change of it.

    Parameters
    ----------
    found, kind, profile, accum
        As for `rows_of`.

    Returns
    -------
    array
        (B, Hq, Lq, Lk); absent pairs hold anything.
    """
    ops = found.operands
    u = DTYPES[accum].unit_roundoff
    cap = ops.spec.softcap
    e = product_error(found, kind, accum)
    if cap is not None:
        scaled = np.abs(ops.scale * found.dot)
        near = np.maximum(scaled - e, 0.0)
        slope = 1.0 - np.tanh(near / cap) ** 2
        before = slope * (e + 2 * u * scaled)
        # An infinite product is capped to c itself, whatever its error.
        before = np.where(np.isinf(scaled), 0.0, before)
        e = before + (profile.tanh + 2.0) * u * np.abs(found.capped)
    if ops.bias is not None:
        rounds = (found.capped != 0.0) & (ops.bias != 0.0)  # x + 0 is exact
        e = e + np.where(rounds, u * np.abs(found.biased), 0.0)
    return np.asarray(e)


def product_error(found: Detail, kind: BoundKind, accum: str) -> Array:
    """Return the error of scale * <q, k> of every pair.

    Parameters
    ----------
    found, kind, accum
        As for `rows_of`.

    Returns
    -------
    array
        (B, Hq, Lq, Lk); absent pairs hold anything.
    """
    ops = found.operands
    u = DTYPES[accum].unit_roundoff
    subnormal = SMALLEST[accum]
    # Absent pairs may hold NaN; a NaN in a live one makes the row NaN, where no bound is asked.
    q, k = (np.nan_to_num(np.abs(x), posinf=0.0) for x in (ops.q, ops.k))
    k = k[:, ops.kv_head].swapaxes(-1, -2)
    size, scale, width = q @ k, abs(ops.scale), q.shape[-1]
    if kind == "hard":
        terms = width + 2
        e = scale * (terms * u / (1.0 - terms * u)) * size
    else:
        dot = np.abs(np.nan_to_num(found.dot, posinf=0.0, neginf=0.0))
        e = scale * u * np.sqrt(width) * np.maximum(dot, np.sqrt((q * q) @ (k * k)))
    # Products and a scale below the normal range are off by up to half the smallest subnormal.
    return np.asarray(e + subnormal * ((width + 1) * max(scale, 1.0) + size))


def _user_error(found: Detail, e: Array, profile: Profile, accum: str) -> Array:
    """Carry the error of a logit through the user's change of it."""
    ops = found.operands
    u = DTYPES[accum].unit_roundoff
    logits = ops.spec.logits
    if logits is None:
        return e
    if isinstance(logits, Alibi):
        added = np.abs(found.logits - found.biased)
        return np.asarray(e + 2 * u * added + u * np.abs(found.logits))
    changed = np.empty_like(found.logits)
    for b in range(changed.shape[0]):
        values = evaluate(logits, scope_of(ops, b, found.biased[b]))
        changed[b] = propagate(logits, values, e[b], profile, u)
    return changed


def key_sum(rows: Rows, terms: Array) -> Array:
    """Sum errors over the keys: all of them at worst, in quadrature if they are independent.

    Parameters
    ----------
    rows : Rows
        Says which kind of bound is asked for.
    terms : array
        Errors; the last axis is summed.

    Returns
    -------
    array
        Without the last axis.
    """
    if rows.kind == "hard":
        return np.asarray(np.abs(terms).sum(axis=-1))
    return np.asarray(LAM * np.sqrt((terms * terms).sum(axis=-1)))


def sum_error(rows: Rows) -> Array:
    """Return the relative error of adding up n terms of one sign.

    Parameters
    ----------
    rows : Rows
        Has n.

    Returns
    -------
    array
        (B, Hq, Lq).
    """
    if rows.kind == "hard":
        return np.asarray(rows.g(rows.n))
    return np.asarray(LAM * rows.u * np.sqrt(rows.n))


def denominator(rows: Rows) -> Array:
    """Return the relative error of the denominator of `out`.

    Parameters
    ----------
    rows : Rows
        Has the errors of the weights and of the sink.

    Returns
    -------
    array
        (B, Hq, Lq).
    """
    terms = np.concatenate([rows.kept, rows.sink[..., None]], axis=-1)
    return key_sum(rows, terms) + sum_error(rows)


def _out(found: Detail, rows: Rows, out_dtype: str) -> Array:
    ops = found.operands
    size = np.nan_to_num(np.abs(ops.v), posinf=0.0)[:, ops.kv_head]
    ref = np.abs(found.out)
    if rows.kind == "hard":
        numerator = (rows.kept + rows.p * rows.g(rows.n)[..., None]) @ size
    else:
        squares = size * size
        spread = np.maximum(ref, np.sqrt((rows.p * rows.p) @ squares))
        sums = rows.u * np.sqrt(rows.n)[..., None] * spread
        numerator = LAM * (np.sqrt((rows.kept * rows.kept) @ squares) + sums)
    of_sums = numerator + ref * denominator(rows)[..., None]
    if np.fmax.reduce(rows.kept.sum(axis=-1), axis=None, initial=0.0) > LOOSE:  # but for NaN rows
        of_sums = np.fmin(of_sums, _hull(found, rows, size))
    # Weights below the normal range may be flushed, products and results may be subnormal.
    tiny = rows.tiny_weight * (found.attended @ size) + SMALLEST[out_dtype]
    bound = of_sums + DTYPES[out_dtype].unit_roundoff * ref + tiny
    bound = np.where(np.isfinite(found.out), bound, np.inf)
    return np.where(_may_vanish(found, rows) @ np.isinf(ops.v)[:, ops.kv_head], np.nan, bound)


def _may_vanish(found: Detail, rows: Rows) -> Array:
    """Return which weights may be below the normal range: times an infinity, 0 gives NaN."""
    top = found.max_logit[..., None]
    if found.operands.sinks is not None:
        top = np.maximum(top, found.operands.sinks[:, None, None])
    off = rows.e + rows.e.max(axis=-1, initial=0.0)[..., None]
    return np.asarray(found.attended & (found.logits - top - off <= np.log(rows.tiny_weight)))


def _hull(found: Detail, rows: Rows, size: Array) -> Array:
    """Return how far a mean of the attended values can be from the right one."""
    ops = found.operands
    values = np.nan_to_num(ops.v, posinf=0.0, neginf=0.0)[:, ops.kv_head]
    far = np.abs(found.out) if ops.sinks is not None else np.zeros(found.out.shape)
    for j in range(values.shape[2]):
        distance = np.abs(values[:, :, None, j] - found.out)
        far = np.where(found.attended[..., j, None], np.fmax(far, distance), far)
    most = size.max(axis=2, initial=0.0)[:, :, None]
    return np.asarray(far + rows.g(rows.n + 4)[..., None] * most)


def _lse(found: Detail, rows: Rows) -> Array:
    last = 2.0 * rows.u * (np.abs(found.lse) + np.abs(found.max_logit) + 1.0)
    if rows.kind == "hard":
        last = last + rows.e.max(axis=-1, initial=0.0) + 4.0 * rows.u * np.abs(rows.log_l)
        return np.asarray(key_sum(rows, rows.own * rows.r) + sum_error(rows) + last)
    return np.asarray(key_sum(rows, rows.own_kept) + sum_error(rows) + last)


def _max_logit(found: Detail, rows: Rows) -> Array:
    e = rows.e if rows.kind == "hard" else LAM * rows.e
    x = np.where(found.attended, found.logits, -np.inf)
    m = found.max_logit[..., None]
    above = (x + e).max(axis=-1, initial=-np.inf) - found.max_logit
    below = np.where(x == m, e, np.inf).min(axis=-1, initial=np.inf)
    return np.asarray(np.maximum(above, below))


def _entropy(found: Detail, rows: Rows) -> Array:
    t = np.where(found.attended, found.logits - found.max_logit[..., None], 0.0)
    mean = (rows.own * t).sum(axis=-1)
    centred = t - mean[..., None]
    of_logits = key_sum(rows, rows.own * rows.e * centred)
    of_weights = key_sum(rows, rows.own * rows.r * (1.0 - centred))
    of_sums = sum_error(rows) * (1.0 + np.abs(mean))
    last = 4.0 * rows.u * (np.abs(rows.log_l) + np.abs(mean) + 1.0)
    flushed = rows.tiny_weight * np.abs(t).sum(axis=-1)
    most = np.maximum(found.entropy, np.log(rows.n) - found.entropy)
    return np.asarray(np.fmin(of_logits + of_weights, most) + of_sums + last + flushed)


def _sum_p2(found: Detail, rows: Rows) -> Array:
    total = found.sum_p2
    of_keys = 2.0 * key_sum(rows, rows.own_kept * (rows.own - total[..., None]))
    most = np.maximum(total - 1.0 / rows.n, 1.0 - total)
    return np.asarray(np.fmin(of_keys, most) + 3.0 * sum_error(rows) * total + 4.0 * rows.u * total)
