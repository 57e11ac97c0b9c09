"""Mutants that compute or round in less than they should."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from sdpakit.conformance.inputs import Array, np_dtype
from sdpakit.conformance.mutants.bases import Call, Logits, Plain, respec
from sdpakit.conformance.mutants.model import Mutant, mutant
from sdpakit.reference.operands import Operands

if TYPE_CHECKING:
    from sdpakit.spec import AttentionSpec

Outputs = dict[str, Array]


def _tf32(x: Array) -> Array:
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32).astype(x.dtype)


def _half(x: Array) -> Array:
    return x.astype(np.float16).astype(x.dtype)


def products_in_tf32(right: Plain, q: Array, k: Array) -> Array:
    """Products of float32 are taken with ten bits of mantissa."""
    return right.products(_tf32(q), _tf32(k))


def products_stored_in_half(right: Plain, q: Array, k: Array) -> Array:
    """The raw product is stored as float16."""
    return _half(right.products(q, k))


def products_summed_in_half(_right: Plain, q: Array, k: Array) -> Array:
    """The product is summed up in float16."""
    total = np.zeros((*q.shape[:-1], k.shape[-2]), np.float16)
    for d in range(q.shape[-1]):
        total = (total + (q[..., d, None] * k[..., None, :, d])).astype(np.float16)
    return total.astype(q.dtype)


def products_of_doubles_in_single(right: Plain, q: Array, k: Array) -> Array:
    """Products of float64 are taken in float32."""
    return right.products(q.astype(np.float32), k.astype(np.float32)).astype(q.dtype)


def products_of_64_components(right: Plain, q: Array, k: Array) -> Array:
    """Components beyond the 64th are left out."""
    return right.products(q[..., :64], k[..., :64])


def products_without_a_remainder(right: Plain, q: Array, k: Array) -> Array:
    """Components behind the last whole vector of 4 are left out."""
    whole = max(q.shape[-1] // 4 * 4, 1)
    return right.products(q[..., :whole], k[..., :whole])


def products_without_subnormals(right: Plain, q: Array, k: Array) -> Array:
    """Subnormal halves are flushed to zero on the way in."""
    return right.products(np.where(np.abs(q) < 2.0**-14, 0, q).astype(q.dtype), k)


def accumulator_in_half(right: Plain, e: Array, v: Array, attended: Array) -> Array:
    """The accumulator of the values is float16."""
    total = np.zeros((*e.shape[:-1], v.shape[-1]), np.float16)
    for j in range(0, e.shape[-1], 16):
        part = right.mix(e[..., j : j + 16], v[:, j : j + 16], attended[..., j : j + 16])
        total = (total + part.astype(np.float16)).astype(np.float16)
    return total.astype(e.dtype)


def row_sum_in_half(_right: Plain, e: Array) -> Array:
    """The row sum is float16, and stops at 2048."""
    total = np.zeros(e.shape[:-1], np.float16)
    for j in range(e.shape[-1]):
        total = (total + e[..., j].astype(np.float16)).astype(np.float16)
    return total.astype(e.dtype)


def weights_in_half(right: Plain, e: Array, v: Array, attended: Array) -> Array:
    """Weights are rounded to float16 for the product with v, and nobody says so."""
    return right.mix(_half(e), v, attended)


def weights_below_1e_9_dropped(right: Plain, e: Array, v: Array, attended: Array) -> Array:
    """Weights of less than 1e-9 count as 0."""
    return right.mix(np.where(e < 1e-9, 0, e).astype(e.dtype), v, attended)


def logits_in_half(right: Plain, ops: Operands, b: int) -> Logits:
    """Logits are stored as float16."""
    x, attended = right.logits(ops, b)
    return _half(x), attended


def logits_in_single(right: Plain, ops: Operands, b: int) -> Logits:
    """Logits of float64 operands are stored as float32."""
    x, attended = right.logits(ops, b)
    return x.astype(np.float32).astype(x.dtype), attended


def logits_in_units_of_half(right: Plain, ops: Operands, b: int) -> Logits:
    """Scale * log2(e), taken into the products, is rounded to float16."""
    factor = float(np.float16(np.log2(np.e))) / np.log2(np.e)
    return right.logits(dataclasses.replace(ops, scale=ops.scale * factor), b)


def logits_clipped(right: Plain, ops: Operands, b: int) -> Logits:
    """Logits are kept within 6e4 for the sake of float16."""
    x, attended = right.logits(ops, b)
    return np.clip(x, -6e4, 6e4), attended


def _rounded(found: Outputs, spec: AttentionSpec, how: str) -> Outputs:
    wanted = np_dtype(spec.out_dtype)
    with np.errstate(all="ignore"):
        return {**found, "out": found["out"].astype(np_dtype(how)).astype(wanted)}


def out_in_dtype_of_q(
    right: Plain, spec: AttentionSpec, q: Any, k: Any, v: Any, **operands: Any
) -> Outputs:
    """The result has the dtype of q, whatever was asked for."""
    found = right.attention(spec, q, k, v, **operands)
    return {**found, "out": found["out"].astype(np_dtype(spec.dtype))}


def out_rounded_to_q_first(
    right: Plain, spec: AttentionSpec, q: Any, k: Any, v: Any, **operands: Any
) -> Outputs:
    """The result is rounded to the dtype of q, and then to the one asked for."""
    return _rounded(right.attention(spec, q, k, v, **operands), spec, spec.dtype)


def out_truncated(
    right: Plain, spec: AttentionSpec, q: Any, k: Any, v: Any, **operands: Any
) -> Outputs:
    """The result is cut to bfloat16, not rounded."""
    if spec.out_dtype != "bfloat16":
        return right.attention(spec, q, k, v, **operands)
    wide = respec(spec, out_dtype="float32")
    found = right.attention(wide, q, k, v, **operands)
    bits = found["out"].astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
    return {**found, "out": bits.view(np.float32).astype(np_dtype("bfloat16"))}


def out_flushed(
    right: Plain, spec: AttentionSpec, q: Any, k: Any, v: Any, **operands: Any
) -> Outputs:
    """Subnormal results are flushed to zero."""
    found = right.attention(spec, q, k, v, **operands)
    if spec.out_dtype != "float16":
        return found
    out = found["out"]
    return {**found, "out": np.where(np.abs(out) < np.float16(2.0**-14), np.float16(0), out)}


def out_clamped(
    right: Plain, spec: AttentionSpec, q: Any, k: Any, v: Any, **operands: Any
) -> Outputs:
    """Results beyond float16 are clamped to its largest number."""
    found = right.attention(spec, q, k, v, **operands)
    if spec.out_dtype != "float16":
        return found
    return {**found, "out": np.clip(found["out"], np.float16(-65504), np.float16(65504))}


def out_divided_in_half(
    right: Plain, spec: AttentionSpec, q: Any, k: Any, v: Any, **operands: Any
) -> Outputs:
    """The result passes through float16."""
    return _rounded(right.attention(spec, q, k, v, **operands), spec, "float16")


def lse_in_out_dtype(
    right: Plain, spec: AttentionSpec, q: Any, k: Any, v: Any, **operands: Any
) -> Outputs:
    """Lse and the statistics are rounded to the dtype of q."""
    found = right.attention(spec, q, k, v, **operands)
    narrow = np_dtype(spec.dtype)
    return {name: x if name == "out" else x.astype(narrow) for name, x in found.items()}


def bfloat16_read_as_float16(spec: AttentionSpec, given: dict[str, Any]) -> Call:
    """Bfloat16 operands pass through float16, which holds less than 65504."""
    if spec.dtype == "bfloat16":
        for name in "qkv":
            with np.errstate(all="ignore"):
                given[name] = given[name].astype(np.float16).astype(given[name].dtype)
    return spec, given


MUTANTS: tuple[Mutant, ...] = (
    mutant(
        Plain,
        "products",
        products_in_tf32,
        "precision.unit.float32 precision.saturated.float32",
        "facebookresearch/xformers#677",
    ),
    mutant(
        Plain,
        "products",
        products_stored_in_half,
        "precision.products_beyond_half.float16",
        "pytorch/pytorch#119131",
    ),
    mutant(Plain, "products", products_summed_in_half, "precision.unit.float32"),
    mutant(Plain, "products", products_of_doubles_in_single, "precision.doubles.float64"),
    mutant(
        Plain,
        "products",
        products_of_64_components,
        "widths.upper_half_only.float32 widths.80_and_80.float32",
    ),
    mutant(
        Plain,
        "products",
        products_without_a_remainder,
        "widths.5_and_3.float32 widths.15_and_17.float32",
    ),
    mutant(Plain, "products", products_without_subnormals, "precision.subnormal_operands.float16"),
    mutant(Plain, "mix", accumulator_in_half, "precision.unit.float32 precision.wide.float32"),
    mutant(
        Plain,
        "row_sum",
        row_sum_in_half,
        "precision.unit.float32 precision.half_row_sum.float16",
        "ggml-org/llama.cpp!24389",
    ),
    mutant(Plain, "mix", weights_in_half, "precision.unit.float32 precision.two_keys.float32"),
    mutant(
        Plain,
        "mix",
        weights_below_1e_9_dropped,
        "precision.tiny_weights_times_large_values.float32",
    ),
    mutant(Plain, "logits", logits_in_half, "precision.unit.float32"),
    mutant(Plain, "logits", logits_in_single, "precision.doubles.float64"),
    mutant(Plain, "logits", logits_in_units_of_half, "precision.unit.float32"),
    mutant(
        Plain,
        "logits",
        logits_clipped,
        "precision.logits_of_1e6.float32 precision.logits_beyond_half.float32",
    ),
    mutant(Plain, "attention", out_in_dtype_of_q, "precision.out_dtype.float16"),
    mutant(Plain, "attention", out_rounded_to_q_first, "precision.out_dtype.float16"),
    mutant(Plain, "attention", out_truncated, "precision.out_dtype_narrow.float32"),
    mutant(Plain, "attention", out_flushed, "precision.subnormal_results.float16"),
    mutant(Plain, "attention", out_clamped, "precision.out_dtype_overflows.float32"),
    mutant(Plain, "attention", out_divided_in_half, "precision.unit.float32"),
    mutant(Plain, "attention", lse_in_out_dtype, "precision.half_row_sum.float16"),
    mutant(Plain, "change", bfloat16_read_as_float16, "precision.range_of_bfloat16.bfloat16"),
)
