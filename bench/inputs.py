"""Seeded arrays of a workload."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from bench.workloads import DOCUMENT_LENGTH, Workload

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Inputs:
    """Operands in the layout bhsd.

    Attributes
    ----------
    q : Array
        (batch, q_heads, q_len, head_dim).
    k, v : Array
        (batch, kv_heads, kv_len, head_dim).
    mask : Array or None
        Booleans (1, 1, q_len, kv_len), True = may attend; only of workloads whose mask is an array.
    bias : Array or None
        float32, (1, 1 or q_heads, q_len, kv_len).
    dout : Array or None
        Gradient with respect to out, in the shape of q; only of the backward pass.
    """

    q: Array
    k: Array
    v: Array
    mask: Array | None
    bias: Array | None
    dout: Array | None = None


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return the NumPy dtype of a storage name; bfloat16 is that of ml_dtypes."""
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def make(workload: Workload) -> Inputs:
    """Return the arrays of a workload: standard normal, the same in every run."""
    rng = np.random.default_rng(zlib.crc32(workload.name.encode()))
    dtype = numpy_dtype(workload.dtype)
    w = workload

    def normal(*shape: int) -> Array:
        return rng.standard_normal(shape, dtype=np.float32).astype(dtype)

    q = normal(w.batch, w.q_heads, w.q_len, w.head_dim)
    k = normal(w.batch, w.kv_heads, w.kv_len, w.head_dim)
    v = normal(w.batch, w.kv_heads, w.kv_len, w.head_dim)
    mask, bias = _mask(w, rng), _bias(w, rng)
    return Inputs(q, k, v, mask, bias, normal(*q.shape) if w.backward else None)


def visible(workload: Workload, rows: Array) -> Array:
    """Return which keys the given rows may attend where the mask is a rule and not an array.

    Parameters
    ----------
    workload : Workload
        Its lengths are equal wherever its mask depends on positions.
    rows : Array
        Row indices, shape (r,).

    Returns
    -------
    Array
        Booleans (r, kv_len).
    """
    i, j = rows[:, None], np.arange(workload.kv_len)[None, :]
    causal: Array = j <= i
    match workload.mask:
        case "causal" | "causal_predicate":
            return causal
        case "window":
            causal &= j >= i - workload.window
            return causal
        case "documents":
            causal &= j // DOCUMENT_LENGTH == i // DOCUMENT_LENGTH
            return causal
        case _:
            return np.ones((len(rows), workload.kv_len), np.bool_)


def _mask(workload: Workload, rng: np.random.Generator) -> Array | None:
    rows = np.arange(workload.q_len)
    if workload.mask == "documents":
        return visible(workload, rows)[None, None]
    if workload.mask == "random":
        mask = rng.random((1, 1, workload.q_len, workload.kv_len), dtype=np.float32) < 0.5
        mask[..., rows, rows] = True  # no empty rows: peers differ in what they make of one
        return mask
    return None


def _bias(workload: Workload, rng: np.random.Generator) -> Array | None:
    if workload.bias == "none":
        return None
    heads = workload.q_heads if workload.bias == "per_head" else 1
    return rng.standard_normal((1, heads, workload.q_len, workload.kv_len), dtype=np.float32)
