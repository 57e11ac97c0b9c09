"""What must hold between two calls, with no oracle: metamorphic relations."""

from __future__ import annotations

from sdpakit.conformance.model import LEVELS, Level
from sdpakit.conformance.relations.bench import Bench, Relation, check_relation
from sdpakit.conformance.relations.calls import CALLS
from sdpakit.conformance.relations.values import VALUES

__all__ = ["Bench", "Relation", "check_relation", "relations"]


def relations(level: Level = "full") -> list[tuple[Relation, str]]:
    """Return the relations of a level, each with a dtype to run it in.

    Parameters
    ----------
    level : {"core", "full", "stress"}
        Each includes the one before.

    Returns
    -------
    list of (Relation, str)
        A relation is there once for each of its dtypes.
    """
    return [
        (relation, dtype)
        for relation in (*VALUES, *CALLS)
        for dtype in relation.dtypes
        if LEVELS.index(_level(relation, dtype)) <= LEVELS.index(level)
    ]


def _level(relation: Relation, dtype: str) -> Level:
    """Return from which level on a relation runs in a dtype: core only in its first."""
    if relation.level == "core" and dtype != relation.dtypes[0]:
        return "full"
    return relation.level
