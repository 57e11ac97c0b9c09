"""What must hold between two calls, with no oracle: metamorphic relations."""

from __future__ import annotations

from sdpakit.conformance.model import Level
from sdpakit.conformance.relations.bench import Bench, Relation, check_relation
from sdpakit.conformance.relations.calls import CALLS
from sdpakit.conformance.relations.values import VALUES

__all__ = ["Bench", "Relation", "check_relation", "relations"]


def relations(level: Level = "full") -> list[tuple[Relation, str]]:
    """Return the relations of a level, each with a dtype to run it in.

    Parameters
    ----------
    level : {"core", "full", "stress"}
        "full" includes "core"; "stress" has no more than "full".

    Returns
    -------
    list of (Relation, str)
        A relation is there once for each of its dtypes.
    """
    return [
        (relation, dtype)
        for relation in (*VALUES, *CALLS)
        for dtype in relation.dtypes
        if level != "core" or (relation.level == "core" and dtype == relation.dtypes[0])
    ]
