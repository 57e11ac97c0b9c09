"""Cases and relations by id: which there are, and which a user asked for."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from difflib import get_close_matches
from typing import TypeAlias

from sdpakit.conformance.cases import FAMILIES, cases
from sdpakit.conformance.model import LEVELS, Case, Level
from sdpakit.conformance.relations import Relation, relations
from sdpakit.errors import ArgumentError, did_you_mean, format_error

Check: TypeAlias = "Case | tuple[Relation, str]"
RELATIONS = "relations"


def families() -> tuple[str, ...]:
    """Return the names of all families, that of the relations last.

    Returns
    -------
    tuple of str
        As ids begin.
    """
    return (*FAMILIES, RELATIONS)


def as_level(name: str) -> Level:
    """Return a level by its name.

    Parameters
    ----------
    name : str
        What the user wrote.

    Returns
    -------
    {"core", "full", "stress"}
        The same text.

    Raises
    ------
    ArgumentError
        If there is no such level.
    """
    for level in LEVELS:
        if level == name:
            return level
    allowed = ", ".join(LEVELS)
    fix = did_you_mean(name, LEVELS, "take core, which runs in seconds")
    raise ArgumentError(format_error("level", got=repr(name), allowed=allowed, fix=fix))


def find(name: str) -> Check:
    """Return a case or relation of any level by its id.

    Parameters
    ----------
    name : str
        "family.name.dtype".

    Returns
    -------
    Case, or (Relation, str)
        What to judge; a relation comes with its dtype.

    Raises
    ------
    ArgumentError
        If there is no such id.
    """
    known = _all()
    if name not in known:
        near = get_close_matches(name, known, n=3)
        fix = "see `sdpakit conformance --list`"
        if near:
            fix = f"did you mean {' or '.join(near)}?"
        raise ArgumentError(
            format_error("case", got=repr(name), allowed="an id of family.name.dtype", fix=fix)
        )
    return known[name]


def select(
    level: Level, *, family: str | None = None, ids: Sequence[str] = (), with_relations: bool = True
) -> list[str]:
    """Return the ids that a user asked for.

    Parameters
    ----------
    level : {"core", "full", "stress"}
        Which cases and relations there are; of no meaning for `ids`.
    family : str, optional
        Only those of this family; "relations" is one.
    ids : sequence of str, optional
        Only these, of whatever level.
    with_relations : bool
        Whether the relations of the level are among them.

    Returns
    -------
    list of str
        Cases in their order, then relations.

    Raises
    ------
    ArgumentError
        If there is no such family or id, or nothing is left.
    """
    if family is not None and family not in families():
        fix = did_you_mean(family, families(), "take one of these")
        raise ArgumentError(
            format_error("family", got=repr(family), allowed=", ".join(families()), fix=fix)
        )
    for name in ids:
        find(name)
    found = list(dict.fromkeys(ids)) or _of_level(level, with_relations=with_relations)
    chosen = [name for name in found if family is None or name.split(".")[0] == family]
    if not chosen:
        raise ArgumentError(
            format_error(
                "cases",
                got=f"family {family!r} at level {level!r}, {len(ids)} ids: none is in all of them",
                allowed="at least one case",
                fix="ask for --level full, or leave one of them out",
            )
        )
    return chosen


def _of_level(level: Level, *, with_relations: bool) -> list[str]:
    found = [case.id for case in cases(level)]
    if with_relations:
        found += [check_id(pair) for pair in relations(level)]
    return found


def check_id(wanted: Check) -> str:
    """Return the id by which outcomes and ledgers name a case or relation.

    Parameters
    ----------
    wanted : Case, or (Relation, str)
        A relation comes with its dtype.

    Returns
    -------
    str
        "family.name.dtype".
    """
    if isinstance(wanted, Case):
        return wanted.id
    relation, dtype = wanted
    return f"{relation.id}.{dtype}"


@functools.cache
def _all() -> dict[str, Check]:
    found: dict[str, Check] = {case.id: case for case in cases("stress")}
    found.update((check_id(pair), pair) for pair in relations("stress"))
    return found
