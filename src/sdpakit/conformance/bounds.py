r"""Bounds of the error of a right program, derived from the inputs (NUM-6).

Inputs are exact as stored. For row i over its attended keys J (n = |J|, one more with a sink), let
x be the logits, p the weights, m = max x, all from the reference, u the unit roundoff of
accum_dtype, g(k) = k u / (1 - k u), and exp, tanh, weights the errors of the target's `Profile`.

Logits. A product of D terms, scaled, is off by at most |scale| g(D + 2) sum |q_d k_jd| (Higham,
Accuracy and Stability of Numerical Algorithms, section 3.1), or, if roundings are independent, by a
few times |scale| u sqrt(D) max(|<q, k_j>|, sqrt(sum (q_d k_jd)^2)). A cap has slope at most
1 - tanh^2 at the end of the interval that is nearer to 0, and adds the errors of a division, of
tanh and of a product: relative ones, and below the normal range half a subnormal each, of which the
product makes the first two c times as large. The bias adds one rounding. An expression of the user
carries errors forward operation by operation (`propagate`). Last comes a relative error for
whatever change of base the program makes, 4 u |x| or 2 u |x|. The sum is e_j.

Weights. exp turns e_j into a relative error expm1(e_j); its argument x - m is rounded, 2 u |x - m|,
and so is its result: r_j. Both together are rho_j = expm1(e_j) + r_j + weights. An error of m
itself cancels between numerator and denominator, and lse moves by at most max e.

Let q_j be the weights that a program has before it divides by their sum s, in a unit in which the
right ones are p_j: |q_j - p_j| <= p_j rho_j. Then, whatever the size of the errors,

      out' - out = sum (q - p) (v - out) / s,    s >= low := 1 - sum p (1 - exp(-e) + r) - g(n)

so that bounds of first order hold for any e once they are divided by low, which is 1 but where e
is large. (In sharp bounds low is 1, and nothing of second order is in them: they are for random
inputs, whose e is small.)

    hard (any order of summation)
      |out - ref| <= (sum p |v| (rho + g(n)) + |ref| (sum p rho + g(n))) / low + u_out |ref| + tiny
      |lse - ref| <= max e + sum p r + g(n) + 2 u (|lse| + |m|) + 4 u |lse - m| + 2 u
    sharp (independent roundings add in quadrature; lam = 4)
      acc = u sqrt(n) max(|ref|, sqrt(sum (p v)^2)),  den = sqrt(sum (p rho)^2) + u sqrt(n)
      |out - ref| <= lam (sqrt(sum (p v rho)^2) + acc + |ref| den) + u_out |ref| + tiny
      |lse - ref| <= lam den + 2 u (|lse| + |m|) + 2 u

Largest logit. max of perturbed logits lies between the perturbed largest and max (x + e).

Entropy. With t = x - m, T = sum p t: H = log l - T, l = sum exp t. Let a logit be off by eps_j,
|eps| <= e, and its weight, beyond that, by the factor 1 + r_j. The errors of the logits alone lead
from p to p' = q / s, q = p exp(eps). As sum p (t - T) = 0, exactly

      H(p') - H(p) = - sum (q - p) (t - T) / s - KL(p' || p)
      KL(p' || p) <= KL(p' || p) + KL(p || p') = sum (p' - p) eps

With E = expm1(e) >= |q - p| / p, the two are at most sum p E |t - T| / low, which is of first
order, and (sum p E e + sum p E sum p e) / low, of second. To first order in r, the factors move
log l' by sum p' r and T' by sum p' r (t' - T'), where t' - T' differs from t - T by no more than
e + (sum p E |t - T| + sum q e) / low =: e + d. Together

      |dH| <= (sum p E (|t - T| + e) + sum p E sum p e) / low
              + sum p (1 + E) r (|1 - t + T| + e + d) / low

The two sums add g(n) (1 + sum p |t|), and logarithm, quotient and difference
4 u (|log l| + |T| + 1).

Sum of p^2. With S = sum e^2 / l^2 and p' = q / s, where |q - p| <= p rho now, exactly

      S' - S = 2 sum (q - p) (p - S) / s + sum (p' - p)^2,    |p' - p| <= p (rho + sum p rho) / low

The sums add 3 g(n) S' and the two divisions 4 u S'.

The sharp forms of the last three put every sum over keys in quadrature, times lam.

Weights are kept relative to the maximum of their row, and those below the normal range may be
flushed. A program may round that maximum up to a power of two, so that to rescale what it has
summed is exact (`Profile.flushed` is then that power): what is lost is a weight of up to
tiny = flushed times the smallest normal number. `out` loses tiny sum |v| to it, H tiny sum |t|. In
the other outputs, all relative to sums of at least 1 / n, the loss is far below u.

Where logits are so large that e is not small, all this says little, and what is known without it
counts: `out` is a mean of the attended values (and of 0, with a sink), 0 <= H <= L = log |J|, and
1 / |J| <= S <= 1, each but for the rounding of the sums. For H that has log l <= L, |T| <= L
(H = log l + |T|, neither below 0) and sum p t^2 <= (1 + L)^2 in it, and |J| for n: the weights lose
sum p r (1 + |t - T|) <= (exp + 4) u (1 + L)^2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sdpakit.conformance.inputs import Array
from sdpakit.conformance.model import BoundKind, Profile
from sdpakit.conformance.propagate import propagate
from sdpakit.conformance.smallest import SMALLEST, SMALLEST_NORMAL
from sdpakit.dtypes import DTYPES
from sdpakit.logits import Alibi
from sdpakit.reference import Detail
from sdpakit.reference.expressions import evaluate
from sdpakit.reference.forward import scope_of
from sdpakit.reference.operands import accum_dtype

LOOSE = 0.1  # relative error of a row from which on the hull of the values is looked at
LAM = 4.0  # quadrature gives a standard deviation; a bound for thousands of elements needs four


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Quantities of the head of this file; (B, Hq, Lq, Lk) per key, (B, Hq, Lq) per row."""

    kind: BoundKind
    u: float
    exp: float  # error of exp
    tiny_weight: float
    e: Array  # error of a logit
    r: Array  # further relative error of its weight without the sink
    p: Array  # weight in out
    kept: Array  # its error, p rho
    low: Array  # least sum of such weights
    own: Array  # weight without the sink
    own_moved: Array  # what its logit is to blame for, p expm1(e)
    own_kept: Array  # its error
    own_low: Array  # least sum of weights without the sink
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
    lse, top, sink = found.lse, found.max_logit, np.zeros(found.lse.shape)
    if sinks is not None:
        lse, top = np.logaddexp(lse, sinks[:, None]), np.maximum(top, sinks[:, None])
        sink = _sink_error(found, top, profile, u)
    r, joint = (
        np.where(attended, profile.exp * u + steps(kind) * u * np.abs(x - largest[..., None]), 0.0)
        for largest in (found.max_logit, top)
    )
    own = np.where(attended, np.exp(x - found.lse[..., None]), 0.0)
    own_moved = _moved(own, x - found.lse[..., None], e, kind)
    rounded = _rounded(found, joint, profile)
    n = attended.sum(axis=-1) + (sinks is not None)
    return Rows(
        kind=kind,
        u=u,
        exp=profile.exp,
        tiny_weight=profile.flushed * SMALLEST_NORMAL[accum],
        e=e,
        r=r,
        p=found.weights,
        kept=_moved(found.weights, x - lse[..., None], e, kind) + rounded,
        low=_least(kind, u, n, (_sunk(found.weights, e) + rounded).sum(axis=-1) + sink),
        own=own,
        own_moved=own_moved,
        own_kept=own_moved + own * r,
        own_low=_least(kind, u, n, (_sunk(own, e) + own * r).sum(axis=-1)),
        sink=sink,
        n=n,
        log_l=found.lse - found.max_logit,
    )


def _sink_error(found: Detail, top: Array, profile: Profile, u: float) -> Array:
    """Return the weight of the sink times its relative error."""
    sink = np.asarray(found.operands.sinks)[:, None]
    share = np.where(np.isneginf(sink), 0.0, 1.0 - found.weights.sum(axis=-1))
    argument = np.where(share > 0, np.abs(sink - top), 0.0)
    return np.asarray(share * (profile.exp * u + 2 * u * argument))


def _rounded(found: Detail, joint: Array, profile: Profile) -> Array:
    """Return the error of weights that are rounded, to the dtype of q if the profile says so."""
    error = found.weights * (joint + profile.weights)
    if not profile.weights:
        return np.asarray(error)
    # Below the normal range of that dtype, rounding is off by half a subnormal.
    return np.asarray(error + 0.5 * SMALLEST[found.operands.spec.dtype] * found.attended)


def _moved(p: Array, log_p: Array, e: Array, kind: BoundKind) -> Array:
    """Return p expm1(e), or p e to first order; a p that underflows may be large with exp(e)."""
    if kind == "sharp":
        return p * e
    return np.where(e < 1.0, p * np.expm1(e), np.exp(log_p + e) - p)


def _sunk(p: Array, e: Array) -> Array:
    """Return what a weight may lose where its logit is too low by e."""
    return np.asarray(-p * np.expm1(-e))


def _least(kind: BoundKind, u: float, n: Array, lost: Array) -> Array:
    """Return the least sum of the weights of a row, of which they may lose `lost`; 1 if sharp."""
    if kind == "sharp":
        return np.ones(lost.shape)
    return np.maximum(1.0 - lost - n * u / (1.0 - n * u), 0.0)


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
        # Quotient, tanh and product may be below the normal range; the last enlarges the others.
        e = e + np.where(
            e == 0.0, 0.0, SMALLEST[accum] * (cap + 1.0)
        )  # 0 without an error is exact
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
        changed[b] = propagate(logits, values, e[b], profile, accum)
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
        numerator = (rows.kept + (rows.p + rows.kept) * rows.g(rows.n)[..., None]) @ size
    else:
        squares = size * size
        spread = np.maximum(ref, np.sqrt((rows.p * rows.p) @ squares))
        sums = rows.u * np.sqrt(rows.n)[..., None] * spread
        numerator = LAM * (np.sqrt((rows.kept * rows.kept) @ squares) + sums)
    of_sums = (numerator + ref * denominator(rows)[..., None]) / rows.low[..., None]
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
    size = np.abs((rows.own * t).sum(axis=-1))
    largest = np.log(found.attended.sum(axis=-1))
    near = _entropy_moved(rows, t + size[..., None]) + sum_error(rows) * (1.0 + size)
    near = near + 4.0 * rows.u * (np.abs(rows.log_l) + size + 1.0)
    far = np.maximum(found.entropy, largest - found.entropy) + sum_error(rows) * (1.0 + largest)
    far = far + rows.u * ((rows.exp + 4.0) * (1.0 + largest) ** 2 + 4.0 * (2.0 * largest + 1.0))
    return np.asarray(np.fmin(near, far) + rows.tiny_weight * np.abs(t).sum(axis=-1))


def _entropy_moved(rows: Rows, centred: Array) -> Array:
    """Return what errors of logits and weights do to the entropy; `centred` is t - T."""
    own, moved, e, low = rows.own, rows.own_moved, rows.e, rows.own_low
    first = key_sum(rows, moved * centred)
    if rows.kind == "sharp":
        return first + key_sum(rows, own * rows.r * (1.0 - centred))
    of_e = (own * e).sum(axis=-1)
    second = (moved * e).sum(axis=-1) + moved.sum(axis=-1) * of_e
    drift = e + ((first + of_e + (moved * e).sum(axis=-1)) / low)[..., None]
    of_weights = key_sum(rows, (own + moved) * rows.r * (np.abs(1.0 - centred) + drift))
    return np.asarray((first + second + of_weights) / low)


def _sum_p2(found: Detail, rows: Rows) -> Array:
    total, count = found.sum_p2, found.attended.sum(axis=-1)
    own, kept, low = rows.own, rows.own_kept, rows.own_low
    off = 2.0 * key_sum(rows, kept * (own - total[..., None])) / low
    if rows.kind == "hard":
        off = off + ((kept + own * kept.sum(axis=-1)[..., None]) ** 2).sum(axis=-1) / (low * low)
    off = np.fmin(off, np.maximum(total - 1.0 / count, 1.0 - total))
    return np.asarray(off + (3.0 * sum_error(rows) + 4.0 * rows.u) * (total + off))
