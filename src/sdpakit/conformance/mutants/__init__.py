"""Deliberately wrong programs, each of which named core cases notice: the judge of the judge.

`python -m sdpakit.conformance.mutants` judges them all on all core cases (see `matrix`).
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType

from sdpakit.conformance.mutants.model import Mutant, mutant
from sdpakit.errors import InternalError

__all__ = ["MUTANTS", "THEMES", "Mutant", "mutant"]

THEMES: tuple[str, ...] = (
    "softmax",
    "precision",
    "statistics",
    "specials",
    "expressions",
    "memory",
    "refusals",
    "packed",
    "masks",
    "scale",
    "backward",
    "backward_precision",
)


def _all() -> Mapping[str, Mutant]:
    themes = (import_module(f"{__name__}.{theme}") for theme in THEMES)
    found: dict[str, Mutant] = {}
    for made in (one for theme in themes for one in theme.MUTANTS):
        if made.name in found:
            raise InternalError(f"two mutants are called {made.name}")
        found[made.name] = made
    return MappingProxyType(found)


MUTANTS: Mapping[str, Mutant] = _all()
