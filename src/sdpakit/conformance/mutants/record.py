"""The kill matrix as a file that a person can read and a diff can show."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from sdpakit.conformance.mutants.idle import reason_of
from sdpakit.conformance.mutants.matrix import Kills, checks

EVERY = "*"  # all ids of a family, but for those that follow with a "-" before them


def to_text(found: Kills) -> str:
    """Return a kill matrix as JSON, a line for each mutant and family.

    Parameters
    ----------
    found : dict of str to list of str
        What `kills` returned.

    Returns
    -------
    str
        Two tables: "kills" has for each mutant and family the ids that notice it, without the name
        of the family, or "*" for all of them but those with a "-"; "idle" has the ids that notice
        no mutant, and why they are there all the same.
    """
    families = _by_family(check.id for check in checks())
    lines = ['{"kills": {']
    for name in sorted(found):
        parts = [
            f"  {json.dumps(family)}: {json.dumps(_shortest(ids, families[family]))}"
            for family, ids in _by_family(found[name]).items()
        ]
        lines += [f" {json.dumps(name)}: {{", ",\n".join(parts), " },"]
    lines[-1] = " }"
    lines += ["},", '"idle": {']
    lines.append(
        ",\n".join(f" {json.dumps(id_)}: {json.dumps(why)}" for id_, why in idle(found).items())
    )
    return "\n".join([*lines, "}}", ""])


def from_text(text: str) -> Kills:
    """Return the kill matrix that a file holds.

    Parameters
    ----------
    text : str
        Of `to_text`.

    Returns
    -------
    dict of str to list of str
        As `kills` returns it.
    """
    read: Mapping[str, Any] = json.loads(text)
    families = _by_family(check.id for check in checks())
    return {
        name: [
            f"{family}.{id_}"
            for family, ids in of_families.items()
            for id_ in _in_full(ids, families[family])
        ]
        for name, of_families in read["kills"].items()
    }


def idle(found: Kills) -> dict[str, str]:
    """Return the ids that notice no mutant, each with the reason why it is there, "" for none.

    Parameters
    ----------
    found : dict of str to list of str
        What `kills` returned.

    Returns
    -------
    dict of str to str
        In the order of `checks`.
    """
    busy = {id_ for ids in found.values() for id_ in ids}
    return {one.id: reason_of(one.id) for one in checks() if one.id not in busy}


def summary(found: Kills) -> str:
    """Return the matrix in a few lines for a terminal.

    Parameters
    ----------
    found : dict of str to list of str
        What `kills` returned.

    Returns
    -------
    str
        A line for each mutant, and what notices none.
    """
    lines = [
        f"{name:40} {len(ids):4}  {' '.join(ids[:3])}{' ...' if len(ids) > 3 else ''}"
        for name, ids in sorted(found.items())
    ]
    lives = [name for name, ids in sorted(found.items()) if not ids]
    lines += [f"{len(found)} mutants; noticed by nothing: {', '.join(lives) or 'none'}"]
    lines += [f"notices none: {id_} ({why or 'no reason'})" for id_, why in idle(found).items()]
    return "\n".join([*lines, ""])


def _shortest(ids: list[str], family: list[str]) -> list[str]:
    others = [f"-{id_}" for id_ in family if id_ not in ids]
    return [EVERY, *others] if len(others) < len(ids) else ids


def _in_full(ids: list[str], family: list[str]) -> list[str]:
    if ids[:1] != [EVERY]:
        return ids
    return [id_ for id_ in family if f"-{id_}" not in ids]


def _by_family(ids: Iterable[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for id_ in ids:
        family, rest = id_.split(".", 1)
        found.setdefault(family, []).append(rest)
    return found
