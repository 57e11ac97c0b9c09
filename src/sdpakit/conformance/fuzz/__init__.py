"""The fuzzer: random valid specs and hostile values, shrunk to a case that can be pasted.

Needs hypothesis, but for `Hostile` and `Operands`, which pasted cases use.
"""

from __future__ import annotations

from sdpakit.conformance.fuzz.recipe import Hostile, Operands

__all__ = ["Hostile", "Operands"]
