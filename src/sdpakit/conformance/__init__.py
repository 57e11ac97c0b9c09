"""The judge: cases, derived error bounds and NaN-strict comparison, for any implementation.

`check(target, case)` judges one target on one case without a test framework; `cases()` lists the
cases and `relations()` the checks that need no oracle.
"""

from __future__ import annotations

from sdpakit.conformance.bounds import bounds
from sdpakit.conformance.cases import cases
from sdpakit.conformance.compare import compare
from sdpakit.conformance.judge import check
from sdpakit.conformance.model import Case, Outcome, Profile, Run, Shape, TargetInfo, Worst
from sdpakit.conformance.relations import Relation, check_relation, relations
from sdpakit.conformance.rules import RULES
from sdpakit.conformance.target import BaseTarget, Target
from sdpakit.conformance.targets import builtin_targets

__all__ = [
    "RULES",
    "BaseTarget",
    "Case",
    "Outcome",
    "Profile",
    "Relation",
    "Run",
    "Shape",
    "Target",
    "TargetInfo",
    "Worst",
    "bounds",
    "builtin_targets",
    "cases",
    "check",
    "check_relation",
    "compare",
    "relations",
]
