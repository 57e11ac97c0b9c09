"""The oracle: attention in float64, written from `docs/semantics.md` alone, slow and clear.

Nothing here knows the compiler: masks are judged from their meaning, expressions by an evaluator
of its own, and no module of the IR, the passes, the backends or the kernel is imported. What
differs from this is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sdpakit.calling import checked_call
from sdpakit.reference.forward import Detail, forward
from sdpakit.reference.gradients import gradients
from sdpakit.reference.operands import Array, prepare

if TYPE_CHECKING:
    from sdpakit.spec import AttentionSpec

__all__ = ["Detail", "attention", "detail"]


@checked_call
def attention(  # noqa: PLR0913 - the operands of attention, keyword-only, as in every other entry
    spec: AttentionSpec,
    q: Any,
    k: Any,
    v: Any,
    *,
    bias: Any = None,
    mask: Any = None,
    sinks: Any = None,
    q_lens: Any = None,
    kv_lens: Any = None,
    q_offset: Any = None,
    cu_q_lens: Any = None,
    cu_kv_lens: Any = None,
    block_table: Any = None,
    params: Mapping[str, Any] | None = None,
    dout: Any = None,
) -> dict[str, Array]:
    """Compute attention, and its gradients if `dout` is given, in float64.

    Parameters
    ----------
    spec : AttentionSpec
        What to compute.
    q, k, v : array_like
        Operands of SHAPE-1 in the layout and dtype of the spec, with any strides.
    bias : array_like, optional
        Added to the capped logits (MOD-1); broadcasts to (B, Hq, Lq, Lk).
    mask : array_like of bool, optional
        The array of `Dense()`; broadcasts to (B, Hq, Lq, Lk); True = may attend.
    sinks : array_like, optional
        (Hq,) logits that join the denominator (SINK-1).
    q_lens, kv_lens : array_like of int, optional
        (B,) true lengths (MASK-4).
    q_offset : int or array_like of int, optional
        Position of row 0, one number or one a batch entry (MASK-2, alignment "offset").
    cu_q_lens, cu_kv_lens : array_like of int, optional
        (B + 1,) offsets of the entries in layout "thd" (RAGGED-1).
    block_table : array_like of int, optional
        (B, max_pages) pages of each entry of a paged spec (PAGED-1).
    params : mapping, optional
        Numbers and arrays that masks and logit expressions read, by name.
    dout : array_like, optional
        Gradient with respect to `out`, in its shape.

    Returns
    -------
    dict of str to numpy.ndarray
        "out" in the layout of the spec; "lse", "max_logit", "entropy" and "sum_p2" as
        (B, Hq, Lq), in layout "thd" (Tq, Hq), all of them whatever `spec.outputs` says. With
        `dout` also "dq", "dk", "dv" in the layout of the spec, "dbias" in the shape of `bias` and
        "dsinks" as (Hq,) where these were given, and "dparams.NAME" for each float table that the
        logit expression reads.

    Raises
    ------
    ArgumentError
        If shapes, head counts or lengths do not fit the spec.
    """
    found = detail(
        spec,
        q,
        k,
        v,
        bias=bias,
        mask=mask,
        sinks=sinks,
        q_lens=q_lens,
        kv_lens=kv_lens,
        q_offset=q_offset,
        cu_q_lens=cu_q_lens,
        cu_kv_lens=cu_kv_lens,
        block_table=block_table,
        params=params,
    )
    ops = found.operands
    results = {
        name: ops.to_layout(getattr(found, name), ops.empty_row(name))
        for name in ("out", "lse", "max_logit", "entropy", "sum_p2")
    }
    if dout is not None:
        results.update(gradients(found, dout))
    return results


@checked_call
def detail(spec: AttentionSpec, q: Any, k: Any, v: Any, **operands: Any) -> Detail:
    """Return everything the reference knows about a call: attended pairs, logits, weights, results.

    Parameters
    ----------
    spec, q, k, v : AttentionSpec and array_like
        As for `attention`.
    **operands : array_like
        The further operands of `attention`, by name.

    Returns
    -------
    Detail
        Arrays in the axis order b, h, row, key whatever the layout of the spec, padded to the
        longest entry.

    Raises
    ------
    ArgumentError
        If shapes, head counts or lengths do not fit the spec.
    """
    return forward(prepare(spec, q, k, v, operands))
