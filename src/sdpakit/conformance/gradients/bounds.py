r"""Bounds of the error of the gradients of a right program, derived from the inputs (GRAD-3).

The letters are those of `sdpakit.conformance.bounds`: u, g(k), e_j, rho_j, lam; inputs are exact as
stored. A right program works in accum_dtype and rounds each gradient once, to the dtype of its
operand. For row i, over its attended keys J (n = |J|, one more with a sink),

      p_j = exp(x_j - lse)     dP_j = <dout, v_j>     delta = sum_j p_j dP_j = <dout, out>
      dS_j = p_j (dP_j - delta)                       the gradient of the final logit

Weights. A weight that is recomputed from lse (NUM-3), or kept from the forward, is off by
p_j rho_j (1 + R) for itself and by p_j R with its whole row, where R has the error of the
denominator and of a stored lse (1 / s <= exp(sum p rho) by Jensen, s as in the forward bounds; rho
stands for rho (1 + R) from here on in hard bounds; R is small in sharp ones):

      R = sum p rho + g(n) + 2 u (|lse| + |m| + 1) + 4 u |lse - m|               hard
      R = lam (sqrt(sum (p rho)^2) + u sqrt(n)) + 2 u (|lse| + |m| + 1)          sharp

Products with dout. dP_j is off by

      eta_j = g(Dv) sum_c |dout_c v_jc|                                          hard
      eta_j = u sqrt(Dv) max(|dP_j|, sqrt(sum_c (dout_c v_jc)^2))                sharp

Delta. Both ways to compute it must do. Errors of the weights come in alike,
W = sum p rho |dP| + R |delta| (in quadrature times lam if sharp), and the sums differ:

      sum_j p_j dP_j:   g(n) sum p |dP| + sum p eta
      <dout, out>:      g(n) sum_j p_j sum_c |dout_c v_jc| + g(Dv) sum_c |dout_c out_c|

Delta is off by W and the larger of the two, by tiny sum_j sum_c |dout_c v_jc|, the weights that are
flushed, and by `Profile.delta` times sum |dout_c out_c|: a program that takes `out` as it was
stored in a half precision has to say so.

Gradient of a logit. dP - delta cancels in a saturated row; eta and Delta are absolute, so that

      |dS'_j - dS_j| <= O_j + C_j Delta + |dS_j| R
      O_j = p_j rho_j |dP_j - delta| + p_j (1 + rho_j) eta_j + 2 u |dS_j|,    C_j = p_j (1 + rho_j)

O is the pair's own; Delta and R are one number for the whole row, with one sign. In a sum over the
keys of a row they meet as |sum_j a_j C_j| Delta + |sum_j a_j dS_j| R, which is why dq and a bias
that is broadcast along the keys, whose gradient is a sum of dS that vanishes, have sharp bounds.

On the way to q and k a derivative s that is off by t takes (D, O, C) to
(D s, O |s| + (|D| + O) t + u |D s|, C s): for the user's change of the logits, operation by
operation (`slopes`), then for the cap, s = 1 - tanh^2, t = min(2 s' e / c, s') + (2 tanh + 4) u
with s' the slope at the end of the interval that is nearer to 0, and then for the scale.

Sums. A gradient is sum a D over pairs: a = k for dq, q for dk (rows of the whole group), dout for
dv (where D = p, O = p rho, C = 0), 1 for dbias over its broadcast axes, 1 for the pairs that read
an element of a table. With N terms

      hard    sum |a| (O + |C| Delta + |D| R) + g(N) sum |a D|
      sharp   lam sqrt(sum (a O)^2) + sqrt(sum over rows of (|sum_j a C| Delta + |sum_j a D| R)^2)
              + lam u sqrt(N) max(|sum a D|, sqrt(sum (a D)^2))

where sqrt(sum over rows) is a plain sum for dq. Each weight may be flushed that is below tiny, that
of the forward bounds, each term that is below the normal range, and last comes u_out |ref| and the
smallest subnormal number. A sink of weight s has -sum_i s_i delta_i, off by
s (Delta + |delta| ((exp + 2) u + 2 u |sink - lse| + R)) for each row.

Rows whose logits are so large that rho and R are not small. Their weights are known only to lie in
[0, 1]: a program that recomputes the bits of a logit has exp(x - lse) <= 1, however much of
log n a large lse swallows. So p_j is off by at most max(p_j, 1 - p_j) =: pi_j, and delta, a mean
of the dP (and 0, with a sink) or a sum of such weights, by at most
max(max_j |dP_j - delta|, |delta|, sum pi |dP|).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sdpakit.conformance.bounds import (
    LAM,
    LOOSE,
    Rows,
    biased_error,
    denominator,
    product_error,
    rows_of,
)
from sdpakit.conformance.gradients.graded import (
    Graded,
    RowErrors,
    over_axes,
    over_keys,
    over_rows,
)
from sdpakit.conformance.gradients.tables import through_change
from sdpakit.conformance.inputs import Array
from sdpakit.conformance.model import BoundKind, Profile
from sdpakit.conformance.smallest import SMALLEST, SMALLEST_NORMAL
from sdpakit.dtypes import DTYPES
from sdpakit.reference import Detail
from sdpakit.reference.gradients import gradients
from sdpakit.reference.operands import accum_dtype


@dataclass(frozen=True, slots=True, eq=False)
class _Backward:
    """Quantities of the head of this file; exact ones, then errors."""

    found: Detail
    kind: BoundKind
    profile: Profile
    accum: str
    u: float
    dout: Array  # finite
    p: Array
    dp: Array
    delta: Array
    kept: Array  # p rho
    eta: Array
    tiny: float  # what a weight below the normal range may be off by
    rows: RowErrors


def gradient_bounds(
    found: Detail,
    dout: Any,
    dtypes: Mapping[str, str],
    kind: BoundKind,
    profile: Profile | None = None,
    *,
    exact: Mapping[str, Array] | None = None,
) -> dict[str, Array]:
    """Return the largest error that each element of each gradient may have.

    Parameters
    ----------
    found : Detail
        What the reference knows about the call.
    dout : array
        Gradient with respect to `out`, in the layout of the spec.
    dtypes : mapping of str to str
        Dtype of each gradient that is asked for, by "dq", "dk", "dv", "dbias", "dsinks",
        "dparams.NAME". The arithmetic is judged as that of accum_dtype.
    kind : {"sharp", "hard"}
        Sharp for random inputs, hard for chosen ones.
    profile : Profile, optional
        Numerics of the target.
    exact : mapping of str to array, optional
        The gradients, if they are known already.

    Returns
    -------
    dict of str to array
        By the names of `dtypes`, in the layout of the spec. NaN where the reference is not finite:
        whether an infinity meets a 0 or a number that rounds to it is not for a gradient to know,
        so that NaN is as right there as an infinity.
    """
    exact = gradients(found, dout) if exact is None else exact
    with np.errstate(all="ignore"):
        back = _backward(found, dout, kind, (profile or Profile()).of(found.operands.spec.dtype))
        errors = _errors(back)
        bound = {}
        for name, dtype in dtypes.items():
            error = errors[name]
            if name in ("dq", "dk", "dv"):
                error = found.operands.to_layout(error)
            size = np.abs(exact[name]) + error  # of what is rounded
            last = DTYPES[dtype].unit_roundoff * size + SMALLEST[dtype]
            bounded = np.where(error == 0.0, 0.0, error + last)
            bound[name] = np.where(np.isfinite(exact[name]), bounded, np.nan)
    return bound


def _backward(found: Detail, dout: Any, kind: BoundKind, profile: Profile) -> _Backward:
    ops = found.operands
    accum = accum_dtype(ops.spec).name
    rows = rows_of(found, kind, profile, accum)
    upstream = np.nan_to_num(ops.to_layout(np.asarray(dout)).astype(np.float64), posinf=0, neginf=0)
    values = np.nan_to_num(ops.v, posinf=0.0, neginf=0.0)[:, ops.kv_head].swapaxes(-1, -2)
    dp = np.where(found.attended, upstream @ values, 0.0)
    size = np.abs(upstream) @ np.abs(values)
    width = ops.v.shape[3]
    eta = _product_error(rows, width, dp, size, (upstream**2) @ (values**2))
    eta = np.where(found.attended, eta + SMALLEST[accum] * width, 0.0)
    delta = (found.weights * dp).sum(axis=-1)
    ratio = _ratio(found, rows)
    if kind == "hard":
        both = np.where(rows.kept == 0.0, 0.0, rows.kept * (1.0 + ratio[..., None]))
        rows = dataclasses.replace(rows, kept=both)
    of_delta = _delta_error(found, rows, upstream, dp, size, eta)
    stored = upstream * np.nan_to_num(found.out, posinf=0.0, neginf=0.0)
    of_delta = of_delta + ratio * np.abs(delta) + profile.delta * np.abs(stored).sum(axis=-1)
    kept, ratio, of_delta = _wide(found, rows, ratio, of_delta, dp, delta)
    of_delta = of_delta + rows.tiny_weight * np.where(found.attended, size, 0.0).sum(axis=-1)
    # Rows that are NaN are so in every gradient that they reach, and reach no absent pair.
    lost = np.isnan(rows.p).any(axis=-1)
    shared = RowErrors(
        kind=kind,
        u=rows.u,
        tiny=SMALLEST_NORMAL[accum],
        delta=np.where(lost, 0.0, of_delta),
        ratio=np.where(lost, 0.0, ratio),
    )
    return _Backward(
        found=found,
        kind=kind,
        profile=profile,
        accum=accum,
        u=rows.u,
        dout=upstream,
        p=rows.p,
        dp=dp,
        delta=delta,
        kept=kept,
        eta=eta,
        tiny=rows.tiny_weight,
        rows=shared,
    )


def _product_error(rows: Rows, width: int, product: Array, size: Array, squares: Array) -> Array:
    if rows.kind == "hard":
        return np.asarray(rows.g(width) * size)
    return np.asarray(rows.u * np.sqrt(width) * np.maximum(np.abs(product), np.sqrt(squares)))


def _ratio(found: Detail, rows: Rows) -> Array:
    """Return R, the relative error that all weights of a row share."""
    joint = found.lse
    if found.operands.sinks is not None:
        joint = np.logaddexp(joint, found.operands.sinks[:, None])
    stored = 2.0 * rows.u * (np.abs(joint) + np.abs(found.max_logit) + 1.0)
    ratio = denominator(rows) + stored
    if rows.kind == "hard":
        ratio = np.expm1(ratio + 4.0 * rows.u * np.abs(joint - found.max_logit))
    return np.where(found.attended.any(axis=-1), ratio, 0.0)


def _delta_error(
    found: Detail, rows: Rows, dout: Array, dp: Array, size: Array, eta: Array
) -> Array:
    """Return the error of delta, R |delta| apart, whichever way it is computed."""
    n, p, u = rows.n, rows.p, rows.u
    values = np.nan_to_num(found.operands.v, posinf=0.0, neginf=0.0)[:, found.operands.kv_head]
    width = values.shape[-1]
    products = dout * np.nan_to_num(found.out, posinf=0.0, neginf=0.0)
    if rows.kind == "hard":
        of_weights = (rows.kept * np.abs(dp)).sum(axis=-1)
        by_weights = rows.g(n) * (p * np.abs(dp)).sum(axis=-1) + (p * eta).sum(axis=-1)
        by_out = rows.g(n + 2) * (p * size).sum(axis=-1)
        by_out = by_out + rows.g(width) * np.abs(products).sum(axis=-1)
        return np.asarray(of_weights + np.maximum(by_weights, by_out))
    total = np.abs((p * dp).sum(axis=-1))
    of_weights = np.sqrt(((rows.kept * dp) ** 2).sum(axis=-1))
    largest = np.maximum(total, np.sqrt(((p * dp) ** 2).sum(axis=-1)))
    by_weights = u * np.sqrt(n) * largest + np.sqrt(((p * eta) ** 2).sum(axis=-1))
    squares = np.maximum(products**2, dout**2 * ((p * p) @ (values * values)))
    by_out = u * np.sqrt(n * squares.sum(axis=-1))
    largest = np.maximum(total, np.sqrt((products**2).sum(axis=-1)))
    by_out = by_out + u * np.sqrt(width) * largest
    return np.asarray(LAM * (of_weights + np.maximum(by_weights, by_out)))


def _wide(
    found: Detail, rows: Rows, ratio: Array, of_delta: Array, dp: Array, delta: Array
) -> tuple[Array, Array, Array]:
    """Replace errors of rows whose weights are known only to lie in [0, 1]."""
    wide = rows.kept.sum(axis=-1) + ratio > LOOSE
    most = np.where(found.attended, np.maximum(rows.p, 1.0 - rows.p), 0.0)
    off = np.fmin(rows.kept + rows.p * ratio[..., None], most + rows.g(rows.n + 8)[..., None])
    far = np.where(found.attended, np.abs(dp - delta[..., None]), 0.0).max(axis=-1, initial=0.0)
    hull = np.maximum(np.maximum(far, np.abs(delta)), (off * np.abs(dp)).sum(axis=-1))
    hull = hull * (1.0 + rows.g(rows.n + dp.shape[-1] + 8))
    return (
        np.where(wide[..., None], off, rows.kept),
        np.where(wide, 0.0, ratio),
        np.where(wide, np.fmin(of_delta, hull), of_delta),
    )


def _errors(back: _Backward) -> dict[str, Array]:
    """Return the error of every gradient before its last rounding, in the order b, h, l, width."""
    found, rows = back.found, back.rows
    ops, attended = found.operands, found.attended
    dlogits = _dlogits(back)
    off = biased_error(found, back.kind, back.profile, back.accum)
    dbiased, errors = through_change(found, dlogits, rows, off, back.profile, back.accum)
    ddot = _through_cap(back, dbiased)
    kv_heads = ops.k.shape[1]
    q, k = (np.nan_to_num(x, posinf=0.0, neginf=0.0) for x in (ops.q, ops.k))
    by_head = attended.sum(axis=2)
    grouped = (len(by_head), kv_heads, ops.spec.group, by_head.shape[2])
    count = by_head.reshape(grouped).sum(axis=2)
    weights = Graded(
        back.p,
        back.kept,
        np.zeros_like(back.p),
        np.where(attended, back.tiny, 0.0),
    )
    errors["dq"] = over_keys(rows, ddot, k[:, ops.kv_head], attended.sum(axis=-1))
    errors["dk"] = over_rows(rows, ddot, q, count, kv_heads)
    errors["dv"] = over_rows(rows, weights, back.dout, count, kv_heads)
    if ops.bias is not None:
        errors["dbias"] = over_axes(rows, dbiased, attended, ops.bias_shape)
    if ops.sinks is not None:
        errors["dsinks"] = _sinks(back)
    return errors


def _dlogits(back: _Backward) -> Graded:
    attended = back.found.attended
    centred = back.dp - back.delta[..., None]
    value, size = back.p * centred, np.abs(centred)
    weight = back.p + back.kept
    own = back.kept * size + weight * back.eta
    own = own + (2.0 * back.u + back.profile.dlogits) * np.abs(value)
    if back.profile.dlogits:
        # Below the normal range of the dtype of q, rounding to it is off by half a subnormal.
        own = own + 0.5 * SMALLEST[back.found.operands.spec.dtype]
    floor = back.tiny * (size + back.rows.delta[..., None] + 1.0)
    common = weight if back.kind == "hard" else back.p
    wide = back.rows.ratio == 0.0
    common = np.where(wide[..., None], weight, common)
    return Graded(*(np.where(attended, part, 0.0) for part in (value, own, common, floor)))


def _through_cap(back: _Backward, dbiased: Graded) -> Graded:
    found, cap = back.found, back.found.operands.spec.softcap
    scale, u = back.found.operands.scale, back.u
    graded = dbiased
    if cap is not None:
        e = product_error(found, back.kind, back.accum)
        tanh = found.capped / cap
        scaled = np.abs(scale * found.dot)
        e = e + 2 * u * scaled
        near = 1.0 - np.tanh(np.maximum(scaled - e, 0.0) / cap) ** 2
        moved = np.where(np.isinf(scaled), 0.0, np.fmin(near * 2.0 * e / cap, near))
        off = moved + (2.0 * back.profile.tanh + 4.0) * u
        graded = graded.times(1.0 - tanh * tanh, off, u)
    return graded.times(scale, abs(scale) * u, u)


def _sinks(back: _Backward) -> Array:
    """Return the error of -sum s delta over the rows of each head."""
    found, u = back.found, back.u
    lse, sink = found.lse, np.asarray(found.operands.sinks)[:, None]
    argument = np.where(np.isneginf(sink), 0.0, sink - np.logaddexp(lse, sink))
    share = np.where(np.isneginf(sink), 0.0, np.exp(argument))
    live = found.attended.any(axis=-1)
    relative = (back.profile.exp + 2.0) * u + 2.0 * u * np.abs(argument) + back.rows.ratio
    relative = np.fmin(relative, np.maximum(1.0, 1.0 / share))
    own = share * (1.0 + relative) * back.rows.delta + share * relative * np.abs(back.delta)
    own = own + back.tiny * (np.abs(back.delta) + back.rows.delta + 1.0)
    own, value = (np.where(live, x, 0.0) for x in (own, share * back.delta))
    count = live.sum(axis=(0, 2))
    if back.kind == "hard":
        sums = back.rows.rounded(count, np.abs(value).sum(axis=(0, 2)))
        return np.asarray(own.sum(axis=(0, 2)) + sums)
    largest = np.maximum(np.abs(value.sum(axis=(0, 2))), np.sqrt((value**2).sum(axis=(0, 2))))
    return np.asarray(np.sqrt((own**2).sum(axis=(0, 2))) + back.rows.rounded(count, largest))
