"""What ties rules, cases and mutants together, and what would be lost without one of them.

Tests hold the kit to `complaints`; the functions take what they look at, so that tests can plant a
rule without a case, a case of an unknown rule, or a mutant that nobody notices.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sdpakit.conformance.cases import cases
from sdpakit.conformance.mutants import MUTANTS
from sdpakit.conformance.relations import relations
from sdpakit.conformance.rules import RULES


@dataclass(frozen=True, slots=True)
class Traced:
    """A core case, or a core relation in its first dtype.

    Attributes
    ----------
    id : str
        Of the case, or of the relation with its dtype.
    rules : tuple of str
        Rules that it shows.
    """

    id: str
    rules: tuple[str, ...]


def traced() -> list[Traced]:
    """Return every core case and core relation.

    Returns
    -------
    list of Traced
        In the order of the kill matrix.
    """
    of_cases = [Traced(case.id, case.rules) for case in cases("core")]
    of_relations = [Traced(f"{one.id}.{dtype}", one.rules) for one, dtype in relations("core")]
    return of_cases + of_relations


def complaints(
    shown: Sequence[Traced],
    kills: Mapping[str, Iterable[str]],
    *,
    rules: Mapping[str, str] = RULES,
    named: Mapping[str, Iterable[str]] | None = None,
) -> list[str]:
    """Say what is not tied up.

    Parameters
    ----------
    shown : sequence of Traced
        Core cases and relations.
    kills : mapping of str to iterable of str
        Ids that notice each mutant: the kill matrix.
    rules : mapping of str to str
        Status of each rule; "later" needs no case.
    named : mapping of str to iterable of str, optional
        Ids that each mutant names as its killers; default those of `MUTANTS`.

    Returns
    -------
    list of str
        A rule without a core case, an unknown rule, a mutant that no case notices, and a mutant
        that names what does not notice it.
    """
    if named is None:
        named = {name: mutant.killed_by for name, mutant in MUTANTS.items()}
    known = {one.id for one in shown}
    covered = {rule for one in shown for rule in one.rules}
    noticed = {name: known.intersection(ids) for name, ids in kills.items()}
    return [
        *(
            f"rule {rule} has no core case"
            for rule, status in rules.items()
            if status != "later" and rule not in covered
        ),
        *(
            f"{one.id} names {rule}, which is no rule"
            for one in shown
            for rule in one.rules
            if rule not in rules
        ),
        *(f"{one.id} names no rule" for one in shown if not one.rules),
        *(f"no core case notices the mutant {name}" for name, ids in noticed.items() if not ids),
        *(
            f"the mutant {name} names {id_}, which does not notice it"
            for name, ids in named.items()
            for id_ in ids
            if id_ not in noticed.get(name, ())
        ),
    ]


def lost_without(
    id_: str,
    shown: Sequence[Traced],
    kills: Mapping[str, Iterable[str]],
    rules: Mapping[str, str] = RULES,
) -> list[str]:
    """Say what only one case or relation does.

    Parameters
    ----------
    id_ : str
        Its id.
    shown, kills, rules
        As for `complaints`.

    Returns
    -------
    list of str
        Rules that nothing else shows, and mutants that nothing else notices.
    """
    own = {rule for one in shown if one.id == id_ for rule in one.rules}
    others = {rule for one in shown if one.id != id_ for rule in one.rules}
    asked = [rule for rule in sorted(own - others) if rules.get(rule, "later") != "later"]
    known = {one.id for one in shown}
    return asked + [name for name, ids in kills.items() if known.intersection(ids) == {id_}]
