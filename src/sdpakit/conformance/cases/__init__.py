"""All cases, family by family; plain lists, made when asked for."""

from __future__ import annotations

import functools
from importlib import import_module

from sdpakit.conformance.model import LEVELS, Case, Level

FAMILIES: tuple[str, ...] = (
    "masks",
    "windows",
    "empty",
    "poison",
    "specials",
    "precision",
    "real",
    "scale",
    "softcap",
    "bias",
    "heads",
    "strides",
    "lengths",
    "widths",
    "statistics",
    "sinks",
    "expressions",
    "refusals",
    "ragged",
    "paged",
    "huge",
    "fuzzed",
    "gradients",
    "stress",
)


def cases(level: Level = "full", family: str | None = None) -> list[Case]:
    """Return the cases of a level, or of one family of it.

    Parameters
    ----------
    level : {"core", "full", "stress"}
        Each includes the one before.
    family : str, optional
        One of `FAMILIES`.

    Returns
    -------
    list of Case
        The same objects at every call.

    Raises
    ------
    KeyError
        If there is no such family.
    """
    found = _by_family()
    chosen = (
        [case for group in found.values() for case in group] if family is None else found[family]
    )
    return [case for case in chosen if LEVELS.index(case.level) <= LEVELS.index(level)]


@functools.cache
def _by_family() -> dict[str, list[Case]]:
    found: dict[str, list[Case]] = {}
    for name in FAMILIES:
        module = import_module(f"sdpakit.conformance.cases.{name}")
        found[name] = list(module.cases())
    return found
