"""Mutants of the backward that compute or round in less than they should."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sdpakit.conformance.gradients.naive import Entry
from sdpakit.conformance.inputs import Array, np_dtype
from sdpakit.conformance.mutants.backward import Right, half, killed, with_fields
from sdpakit.conformance.mutants.model import Mutant
from sdpakit.reference.operands import Operands


def _tf32(x: Array) -> Array:
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32).astype(x.dtype)


def _in_half(terms: Callable[[slice], Array], length: int) -> Array:
    """Add up blocks of 16 in float16."""
    blocks = [terms(slice(at, at + 16)) for at in range(0, length, 16)]
    total = np.zeros(blocks[0].shape, np.float16)
    for block in blocks:
        total = (total + block.astype(np.float16)).astype(np.float16)
    return total.astype(blocks[0].dtype)


def dp_in_tf32(right: Right, entry: Entry) -> Array:
    """Products of dout and v are taken with ten bits of mantissa."""
    return right.value_products(with_fields(entry, dout=_tf32(entry.dout), v=_tf32(entry.v)))


def dp_stored_in_half(right: Right, entry: Entry) -> Array:
    """Products of dout and v are stored as float16."""
    return half(right.value_products(entry))


def dp_of_doubles_in_single(right: Right, entry: Entry) -> Array:
    """Products of dout and v in float64 are taken in float32."""
    dout, v = entry.dout.astype(np.float32), entry.v.astype(np.float32)
    return right.value_products(with_fields(entry, dout=dout, v=v)).astype(entry.accum)


def dq_in_tf32(right: Right, entry: Entry, ddot: Array) -> Array:
    """The gradient of q is a product with ten bits of mantissa."""
    return right.query_sum(with_fields(entry, k=_tf32(entry.k)), _tf32(ddot))


def dk_in_tf32(right: Right, entry: Entry, ddot: Array) -> Array:
    """The gradient of k is a product with ten bits of mantissa."""
    return right.key_sum(with_fields(entry, q=_tf32(entry.q)), _tf32(ddot))


def dq_summed_in_half(right: Right, entry: Entry, ddot: Array) -> Array:
    """The accumulator of dq is float16."""

    def terms(at: slice) -> Array:
        part = with_fields(entry, k=entry.k[:, at], attended=entry.attended[..., at])
        return right.query_sum(part, ddot[..., at])

    return _in_half(terms, ddot.shape[-1]) if ddot.shape[-1] else right.query_sum(entry, ddot)


def _rows_in_half(right: Right, entry: Entry, factor: Array, rows: Array) -> Array:
    def terms(at: slice) -> Array:
        part = with_fields(entry, attended=entry.attended[:, at])
        return right.over_rows(part, factor[:, at], rows[:, at])

    length = factor.shape[1]
    return _in_half(terms, length) if length else right.over_rows(entry, factor, rows)


def dk_summed_in_half(right: Right, entry: Entry, ddot: Array) -> Array:
    """The accumulator of dk is float16."""
    return _rows_in_half(right, entry, ddot, entry.q)


def dv_summed_in_half(right: Right, entry: Entry, p: Array) -> Array:
    """The accumulator of dv is float16."""
    return _rows_in_half(right, entry, p, entry.dout)


def weights_in_half_for_dv(right: Right, entry: Entry, p: Array) -> Array:
    """Weights are rounded to float16 for the product with dout, and nobody says so."""
    return right.value_sum(entry, half(p))


def weights_in_bfloat16_for_dv(right: Right, entry: Entry, p: Array) -> Array:
    """Weights are rounded to bfloat16 for the product with dout, and nobody says so."""
    return right.value_sum(entry, p.astype(np_dtype("bfloat16")).astype(p.dtype))


def delta_in_half(right: Right, entry: Entry, p: Array, dp: Array) -> Array:
    """Delta is stored as float16."""
    return half(right.delta(entry, p, dp))


def delta_of_a_rounded_out(right: Right, entry: Entry, p: Array, dp: Array) -> Array:
    """Delta is the product of dout with an out that was stored as float16, and nobody says so."""
    out = half(right.forward.mix(p, entry.v, entry.attended))
    empty = ~entry.attended.any(axis=-1, keepdims=True)
    return np.asarray(np.where(empty, 0, entry.dout * out).sum(axis=-1))


def dlogits_in_half(right: Right, entry: Entry, dbiased: Array) -> Array:
    """Gradients of logits are rounded to float16 for the products with q and k."""
    return half(right.through_cap(entry, dbiased))


def group_rounded_one_by_one(right: Right, ops: Operands, by_head: Array) -> Array:
    """Gradients of k and v of each head are rounded to the dtype of k before they are added up."""
    dtype = np_dtype(ops.spec.dtype)
    return right.group_sum(ops, by_head.astype(dtype).astype(by_head.dtype))


def tables_summed_in_half(
    right: Right, entry: Entry, node: Any, values: Mapping[Any, Any], gradient: Array
) -> Array:
    """The gradient of a table is rounded to float16 before it is stored."""
    return half(right.table_sum(entry, node, values, gradient))


MUTANTS: tuple[Mutant, ...] = (
    killed("value_products", dp_in_tf32, "unit"),
    killed("value_products", dp_stored_in_half, "unit"),
    killed("value_products", dp_of_doubles_in_single, "dout_of_1e_minus_30.float64"),
    killed("query_sum", dq_in_tf32, "unit"),
    killed("key_sum", dk_in_tf32, "unit"),
    killed("query_sum", dq_summed_in_half, "long"),
    killed("key_sum", dk_summed_in_half, "tall"),
    killed("value_sum", dv_summed_in_half, "tall"),
    killed("value_sum", weights_in_half_for_dv, "unit"),
    killed("value_sum", weights_in_bfloat16_for_dv, "unit of_one_kv_head.float16"),
    killed("delta", delta_in_half, "of_values_far_from_zero"),
    killed("delta", delta_of_a_rounded_out, "of_values_far_from_zero of_a_stored_out.float16"),
    killed("through_cap", dlogits_in_half, "unit of_keys_far_from_zero"),
    killed("group_sum", group_rounded_one_by_one, "of_one_kv_head.float16"),
    killed("table_sum", tables_summed_in_half, "of_relative_positions"),
)
