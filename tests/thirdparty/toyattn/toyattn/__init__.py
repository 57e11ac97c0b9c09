"""Attention as a package of somebody else has it; it knows nothing of sdpakit."""

import numpy as np


def attention(q, k, v, *, scale=None, mask=None):
    group = q.shape[1] // k.shape[1]
    wide = np.float64 if q.dtype == np.float64 else np.float32
    q, k, v, dtype = q.astype(wide), k.astype(wide), v.astype(wide), q.dtype
    k, v = (np.repeat(x, group, axis=1) for x in (k, v))
    x = q @ k.swapaxes(-1, -2) * wide(1 / np.sqrt(q.shape[-1]) if scale is None else scale)
    if mask is not None:
        x = np.where(mask, x, -np.inf)
    top = x.max(axis=-1, keepdims=True, initial=-np.inf)
    e = np.exp(x - np.where(np.isfinite(top), top, 0))
    total = e.sum(axis=-1, keepdims=True)
    return (e @ v / np.where(total == 0, 1, total)).astype(dtype)


def without_scale(q, k, v, *, scale=None):
    """Forget the scale."""
    return attention(q, k, v, scale=1.0)
