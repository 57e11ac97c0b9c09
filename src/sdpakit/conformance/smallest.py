"""The smallest numbers of the dtypes: what bounds say of results near zero is in these."""

from __future__ import annotations

SMALLEST = {
    "float16": 2.0**-24,
    "bfloat16": 2.0**-133,
    "float32": 2.0**-149,
    "float64": 2.0**-1074,
}
"""Smallest subnormal number of a storage dtype."""

SMALLEST_NORMAL = {"float32": 2.0**-126, "float64": 2.0**-1022}
"""Smallest normal number of an accum_dtype."""
