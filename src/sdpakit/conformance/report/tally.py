"""How often each verdict came, by family and target, and which verdicts a run fails on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from sdpakit.conformance.model import Outcome, Run
from sdpakit.conformance.rules import RULES

Shown = Literal["fail", "error", "hang", "crash", "expected", "refused", "ok"]
SHOWN: tuple[Shown, ...] = ("fail", "error", "hang", "crash", "expected", "refused", "ok")
WRONG: tuple[Shown, ...] = ("fail", "error", "hang", "crash")


@dataclass(slots=True)
class Tally:
    """Verdicts of some outcomes.

    Attributes
    ----------
    counts : Counter of str
        How often each came, by the names in `SHOWN`.
    share : float
        Largest error as a share of its bound; known failures (`expected`) do not count.
    """

    counts: Counter[Shown] = field(default_factory=Counter)
    share: float = 0.0

    @property
    def total(self) -> int:
        """Number of outcomes."""
        return self.counts.total()

    @property
    def wrong(self) -> int:
        """Number of outcomes that a run fails on."""
        return sum(self.counts[name] for name in WRONG)

    def add(self, verdict: Shown, share: float) -> None:
        """Count one outcome."""
        self.counts[verdict] += 1
        if verdict != "expected":
            self.share = max(self.share, share)


def shown(run: Run, outcome: Outcome) -> Shown:
    """Return the verdict as reports show it.

    Parameters
    ----------
    run : Run
        Of the outcome.
    outcome : Outcome
        What to look at.

    Returns
    -------
    str
        "expected" for a failure that the ledger names, else the verdict.
    """
    known = (outcome.target, outcome.case) in run.expected
    return "expected" if known and outcome.verdict in WRONG else outcome.verdict


def is_wrong(run: Run) -> bool:
    """Return whether a run fails: something is wrong that no ledger names, or the ledger is stale.

    Parameters
    ----------
    run : Run
        What to look at.

    Returns
    -------
    bool
        False too where everything was refused.
    """
    return bool(run.stale) or any(shown(run, outcome) in WRONG for outcome in run.outcomes)


def matrix(run: Run) -> dict[str, dict[str, Tally]]:
    """Return the tallies of a run by family and target.

    Parameters
    ----------
    run : Run
        What to count.

    Returns
    -------
    dict of str to (dict of str to Tally)
        Families in the order of the cases, unknown ones last; targets in the order of the run. Only
        what was run is there.
    """
    found: dict[str, dict[str, Tally]] = {}
    for outcome in run.outcomes:
        row = found.setdefault(outcome.case.split(".")[0], {})
        tally = row.setdefault(outcome.target, Tally())
        tally.add(shown(run, outcome), outcome.share)
    return {family: found[family] for family in _in_order(found)}


def by_target(run: Run) -> dict[str, Tally]:
    """Return the tally of each target over all families.

    Parameters
    ----------
    run : Run
        What to count.

    Returns
    -------
    dict of str to Tally
        Also for targets without an outcome.
    """
    found = {name: Tally() for name in target_names(run)}
    for outcome in run.outcomes:
        found[outcome.target].add(shown(run, outcome), outcome.share)
    return found


def by_rule(run: Run, target: str) -> dict[str, int]:
    """Return how many cases of each rule a target got wrong.

    Parameters
    ----------
    run : Run
        What to count.
    target : str
        Its name.

    Returns
    -------
    dict of str to int
        By id of the rule, most first, then in the order of docs/semantics.md; known failures do not
        count. A case counts for each rule that it shows, one that this version does not know for
        "no known rule".
    """
    from sdpakit.conformance.report.facts import about

    counts: Counter[str] = Counter()
    for outcome in run.outcomes:
        if outcome.target == target and shown(run, outcome) in WRONG:
            counts.update(about(outcome.case).rules or ("no known rule",))
    order = {rule: place for place, rule in enumerate(RULES)}
    most_first = sorted(counts, key=lambda rule: (-counts[rule], order.get(rule, len(order))))
    return {rule: counts[rule] for rule in most_first}


def target_names(run: Run) -> list[str]:
    """Return the names of all targets, those of outcomes that the run does not describe last."""
    names = [info.name for info in run.targets]
    return list(dict.fromkeys([*names, *(outcome.target for outcome in run.outcomes)]))


def _in_order(families: Iterable[str]) -> list[str]:
    from sdpakit.conformance.cases import FAMILIES

    known = {name: place for place, name in enumerate((*FAMILIES, "relations"))}
    return sorted(families, key=lambda name: (known.get(name, len(known)), name))
