"""Which mutant fails which core case or core relation: the kill matrix."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeAlias

from sdpakit.conformance.cases import cases
from sdpakit.conformance.judge import check
from sdpakit.conformance.model import Outcome
from sdpakit.conformance.mutants.model import Mutant
from sdpakit.conformance.relations import check_relation, relations
from sdpakit.conformance.target import BaseTarget

Check: TypeAlias = Callable[[BaseTarget], Outcome]
Kills: TypeAlias = dict[str, list[str]]

KILLED = ("fail", "error")


def checks() -> dict[str, Check]:
    """Return what judges mutants, by id: every core case and every core relation.

    Returns
    -------
    dict of str to callable
        From a target to its outcome.
    """
    found: dict[str, Check] = {}
    for case in cases("core"):
        found[case.id] = lambda target, case=case: check(target, case)
    for relation, dtype in relations("core"):
        found[f"{relation.id}.{dtype}"] = lambda target, relation=relation, dtype=dtype: (
            check_relation(target, relation, dtype)
        )
    return found


def kills(mutants: Iterable[Mutant], judges: Mapping[str, Check]) -> Kills:
    """Return the ids of all checks that each mutant fails and its right program passes.

    Parameters
    ----------
    mutants : iterable of Mutant
        Who is judged.
    judges : mapping of str to callable
        Of `checks`.

    Returns
    -------
    dict of str to list of str
        By name of the mutant, in the order of `judges`. Every target is made anew for every check,
        so that the order of checks has no say.
    """
    found: Kills = {mutant.name: [] for mutant in mutants}
    for name, id_ in _killed(list(mutants), judges):
        found[name].append(id_)
    return found


def _killed(mutants: list[Mutant], judges: Mapping[str, Check]) -> Iterator[tuple[str, str]]:
    # The mutants of one case follow each other, so that they share what the reference says.
    for id_, judge in judges.items():
        passed: dict[object, bool] = {}
        for mutant in mutants:
            if mutant.right not in passed:
                passed[mutant.right] = judge(mutant.right()).verdict == "ok"
            if passed[mutant.right] and judge(mutant.factory()).verdict in KILLED:
                yield mutant.name, id_
