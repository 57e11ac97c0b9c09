"""Numbers that generated code and its callers agree on."""

from __future__ import annotations

# Bits of the argument `flags` of a panel step; the rest, shifted by FLAG_FIRST_SHIFT, is the first
# row of the tile.
FLAG_PARTIAL = 1
FLAG_NONFINITE_V = 2
FLAG_FIRST_SHIFT = 8
