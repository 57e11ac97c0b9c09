"""The rules of docs/semantics.md by id, for cases to name; a test holds the two together."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Literal

Status = Literal["forward", "gradient", "later"]

# forward: judged on every target. gradient: judged on the reference. later: defined, not offered.
RULES: dict[str, Status] = {
    "SHAPE-1": "forward",
    "SHAPE-2": "forward",
    "SHAPE-3": "forward",
    "SHAPE-4": "forward",
    "SHAPE-5": "forward",
    "SHAPE-6": "forward",
    "RAGGED-1": "forward",
    "RAGGED-2": "forward",
    "PAGED-1": "forward",
    "PAGED-2": "forward",
    "SCALE-1": "forward",
    "SCALE-2": "forward",
    "CAP-1": "forward",
    "MOD-1": "forward",
    "MASK-1": "forward",
    "MASK-2": "forward",
    "MASK-3": "forward",
    "MASK-4": "forward",
    "MASK-5": "forward",
    "MASK-6": "forward",
    "MASK-7": "forward",
    "SINK-1": "forward",
    "SINK-2": "forward",
    "EXPR-1": "forward",
    "SOFT-1": "forward",
    "EMPTY-1": "forward",
    "NUM-1": "forward",
    "NUM-2": "forward",
    "NUM-3": "gradient",
    "NUM-4": "forward",
    "NUM-5": "forward",
    "NUM-6": "forward",
    "MERGE-1": "forward",
    "DET-1": "forward",
    "DET-2": "forward",
    "DROP-1": "later",
    "GRAD-1": "gradient",
    "GRAD-2": "gradient",
    "GRAD-3": "gradient",
    "STAT-1": "forward",
    "FOLD-1": "forward",
    "OUT-1": "forward",
    "ERR-1": "forward",
    "ENV-1": "forward",
}


def rule_text(rule: str) -> str:
    """Return what docs/semantics.md says of a rule.

    Parameters
    ----------
    rule : str
        Its id.

    Returns
    -------
    str
        On one line, without the id; "" if there is no such rule.
    """
    return _texts().get(rule, "")


@functools.cache
def _texts() -> dict[str, str]:
    packed = resources.files(__package__).joinpath("semantics.md")
    # The wheel has the page beside this file, a checkout has it once, among the documents.
    checkout = Path(__file__).parents[3] / "docs" / "semantics.md"
    page = (packed if packed.is_file() else checkout).read_text(encoding="utf-8")
    # A rule ends where a line begins that is not indented: the next item, or no item at all.
    found = re.findall(r"^(?:-|\d+\.) \*\*([A-Z]+-\d+)\*\* (.*(?:\n +\S.*)*)", page, re.M)
    return {rule: " ".join(text.split()) for rule, text in found}


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule and what shows it.

    Attributes
    ----------
    id : str
        "MASK-3".
    status : {"forward", "gradient", "later"}
        Whether it is judged on what a target computes, on its gradients, or not yet.
    text : str
        What docs/semantics.md says, on one line.
    cases : tuple of str
        Ids of the cases that show it, of any level, and of the relations.
    """

    id: str
    status: Status
    text: str
    cases: tuple[str, ...]


def rules() -> dict[str, Rule]:
    """Return the rules by id, each with the cases that show it.

    Returns
    -------
    dict of str to Rule
        In the order of the page.
    """
    from sdpakit.conformance.cases import cases
    from sdpakit.conformance.relations import relations

    shown = {case.id: case.rules for case in cases("stress")}
    shown.update({relation.id: relation.rules for relation, _ in relations("stress")})
    return {
        name: Rule(
            name,
            status,
            rule_text(name),
            tuple(id_ for id_, named in shown.items() if name in named),
        )
        for name, status in RULES.items()
    }
