"""NumPy dtypes of the storage dtypes, bfloat16 from `ml_dtypes` included."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from sdpakit.dtypes import DTYPES

_NUMPY: dict[str, np.dtype[Any]] = {
    name: np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name) for name in DTYPES
}
# Keyed by the dtype object: a dtype of foreign byte order is another key, and so not found.
_NAMES: dict[np.dtype[Any], str] = {dtype: name for name, dtype in _NUMPY.items()}


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return the NumPy dtype of a key of `sdpakit.dtypes.DTYPES`."""
    return _NUMPY[name]


def storage_name(dtype: np.dtype[Any]) -> str | None:
    """Return the key of `sdpakit.dtypes.DTYPES` of a NumPy dtype, None where it is none."""
    return _NAMES.get(dtype)
