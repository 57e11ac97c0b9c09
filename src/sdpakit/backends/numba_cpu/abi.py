"""Numbers that generated code, the driver and whoever prepares its memory agree on."""

from __future__ import annotations

import math

OBJECT_HEAD = object.__basicsize__  # bytes that every object of this build of Python starts with

# Bits of the argument `flags` of a panel step; the rest, shifted by FLAG_FIRST_SHIFT, is the first
# row of the tile.
FLAG_PARTIAL = 1
FLAG_NONFINITE_V = 2
FLAG_NONFINITE_ROWS = 2  # in the backward pass: some element of q or dO is not finite
FLAG_NONFINITE_KEYS = 4  # likewise, of K or V
FLAG_FIRST_SHIFT = 8

# Running maxima, and the logits of GENERAL, are kept in a unit of so many log2 units: a power of
# two, so that nothing is rounded, and large enough that no finite logit overflows (MASK-5).
M_UNIT = 4
LN2 = math.log(2.0)
LOG2_E = 1.0 / LN2

RANGE_BYTES = 32  # maybe_lo, maybe_hi, must_lo, must_hi of a panel, int64 each
