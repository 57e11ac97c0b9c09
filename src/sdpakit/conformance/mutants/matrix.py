"""Which mutant fails which core case or core relation: the kill matrix.

Mutants of the forward meet all core cases and core relations but those of gradients, which are for
the mutants of the backward: a backward of its own would say nothing of a forward. Most give the
bits of the right program that they were made from in most cases; where a mutant that keeps no state
does so, and leaves its operands alone, its verdict is that of the right program, and the judge is
not asked again. Nor is it where the answer to one call is wrong.
"""

from __future__ import annotations

import functools
import multiprocessing
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from sdpakit.conformance.cases import cases
from sdpakit.conformance.compare import Comparison
from sdpakit.conformance.gradients.judge import compared as compared_gradients
from sdpakit.conformance.judge import check, compared
from sdpakit.conformance.model import Case, Outcome, Verdict
from sdpakit.conformance.mutants.model import Mutant
from sdpakit.conformance.relations import check_relation, relations
from sdpakit.conformance.target import BaseTarget

Kills: TypeAlias = dict[str, list[str]]
Right: TypeAlias = type[BaseTarget]

KILLED = ("fail", "error")
_NO_FORWARD = BaseTarget.prepare  # refuses every spec, and a refusal is no kill


@dataclass(frozen=True, slots=True)
class Check:
    """One core case or core relation.

    Attributes
    ----------
    id : str
        Of the case, or of the relation with its dtype.
    judge : callable
        From a target to its outcome.
    case : Case or None
        None for a relation.
    """

    id: str
    judge: Callable[[BaseTarget], Outcome]
    case: Case | None = None


def checks() -> list[Check]:
    """Return what judges mutants: every core case and every core relation.

    Returns
    -------
    list of Check
        Cases first.
    """
    found = [Check(case.id, functools.partial(check, case=case), case) for case in cases("core")]
    for relation, dtype in relations("core"):
        judge = functools.partial(check_relation, relation=relation, dtype=dtype)
        found.append(Check(f"{relation.id}.{dtype}", judge))
    return found


def kills(mutants: Iterable[Mutant], asked: Iterable[Check], *, short: bool = True) -> Kills:
    """Return the ids of all checks that each mutant fails and its right program passes.

    Parameters
    ----------
    mutants : iterable of Mutant
        Who is judged.
    asked : iterable of Check
        Of `checks`.
    short : bool
        Whether bits of the right program are judged by its verdict; the result is the same.

    Returns
    -------
    dict of str to list of str
        By name of the mutant, in the order of `asked`. Every target is made anew for every check,
        so that the order of checks has no say.
    """
    judged = list(mutants)
    found: Kills = {mutant.name: [] for mutant in judged}
    for one in asked:
        for name in _killed(judged, one, short=short):
            found[name].append(one.id)
    return found


def matrix(processes: int = 2) -> Kills:
    """Return the kill matrix: each of `MUTANTS` on all of `checks` that are for it.

    Parameters
    ----------
    processes : int
        How many to use; the result is the same.

    Returns
    -------
    dict of str to list of str
        By name of the mutant, in the order of `checks`.
    """
    places = range(len(checks()))
    # Every so many, for neighbours take about the same time. Fork would copy threads of a target.
    shares = [places[first::processes] for first in range(processes)]
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        parts = list(pool.map(_share, shares))
    order = {one.id: place for place, one in enumerate(checks())}
    return {
        name: sorted((id_ for part in parts for id_ in part[name]), key=order.__getitem__)
        for name in parts[0]
    }


def _share(places: Sequence[int]) -> Kills:
    """Return the part of the matrix that some checks make up."""
    from sdpakit.conformance.mutants import MUTANTS

    asked = checks()
    return kills(MUTANTS.values(), [asked[place] for place in places])


def _killed(mutants: list[Mutant], one: Check, *, short: bool) -> Iterator[str]:
    # The mutants of one case follow each other, so that they share what the reference says.
    bench = _Bench(one.case) if short and one.case and _is_plain_call(one.case) else None
    passed: dict[Right, bool] = {}
    for mutant in mutants:
        right = mutant.right
        if _is_of_gradients(one) != (right.prepare is _NO_FORWARD):
            continue
        if right not in passed:
            passed[right] = one.judge(right()).verdict == "ok"
        if not passed[right]:
            continue
        known = bench.verdict(mutant) if bench and mutant.keeps_no_state else None
        if (known or one.judge(mutant.factory()).verdict) in KILLED:
            yield mutant.name


def _is_of_gradients(one: Check) -> bool:
    return one.case is not None and one.case.gradients


def _is_plain_call(case: Case) -> bool:
    return not (case.refuses or case.heavy)


class _Bench:
    """Calls mutants on one case without the judge."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._spec = case.attention_spec()
        self._operands = self._made()
        self._before = _bytes(self._operands)
        self._right: dict[Right, dict[str, Any]] = {}

    def verdict(self, mutant: Mutant) -> Verdict | None:
        """Return what one call decides: the right bits are ok, and a wrong answer fails.

        None where the judge must look closer: bits that differ within the bound, operands that were
        written to, an exception.
        """
        if mutant.right not in self._right:
            self._right[mutant.right] = self._called(mutant.right())
        target = mutant.factory()
        try:
            found = self._called(target)
        except Exception:  # noqa: BLE001 - the judge says what it is worth
            found = {}
        if _bytes(self._operands) != self._before:
            self._operands = self._made()
            return None
        if not found:
            return None
        if _bytes(found) == _bytes(self._right[mutant.right]):
            return "ok"
        return "fail" if any(part.message for part in self._compared(target, found)) else None

    def _compared(self, target: BaseTarget, found: Mapping[str, Any]) -> list[Comparison]:
        if self._case.gradients:
            return compared_gradients(target, self._case, found, self._operands)
        return compared(target, self._case, found, self._spec)

    def _made(self) -> dict[str, Any]:
        operands = self._case.operands()
        if not self._case.gradients:
            operands.pop("dout", None)
        return operands

    def _called(self, target: BaseTarget) -> dict[str, Any]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            prepare = target.prepare_gradients if self._case.gradients else target.prepare
            return dict(prepare(self._spec)(**self._operands))


def _bytes(arrays: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    flat = {**arrays, **arrays.get("params", {})}
    return [
        (name, x.shape, x.dtype, x.tobytes())
        for name, x in flat.items()
        if isinstance(x, np.ndarray)
    ]
