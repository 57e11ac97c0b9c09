"""The judge: cases, derived error bounds and NaN-strict comparison, for any implementation.

`check(target, case)` judges one target on one case without a test framework; `cases()` lists the
cases and `relations()` the checks that need no oracle. Every name below is imported on first use,
so that the plugin of pytest, which loads in every run of pytest, costs next to nothing.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sdpakit.conformance.bounds import bounds
    from sdpakit.conformance.cases import cases
    from sdpakit.conformance.compare import compare
    from sdpakit.conformance.judge import check, concerns
    from sdpakit.conformance.ledger import Ledger
    from sdpakit.conformance.model import Case, Outcome, Profile, Run, Shape, TargetInfo, Worst
    from sdpakit.conformance.pytest_plugin import parametrize as parametrize
    from sdpakit.conformance.relations import Relation, check_relation, relations
    from sdpakit.conformance.rules import RULES, Rule, rules
    from sdpakit.conformance.runner import collect, run
    from sdpakit.conformance.target import BaseTarget, Target, adopt, refusal
    from sdpakit.conformance.targets import builtin_targets
    from sdpakit.conformance.targets.function import FunctionTarget
    from sdpakit.conformance.targets.resolve import names, resolve

_HOME: dict[str, str] = {
    name: module
    for module, names in {
        "bounds": "bounds",
        "cases": "cases",
        "compare": "compare",
        "judge": "check concerns",
        "ledger": "Ledger",
        "model": "Case Outcome Profile Run Shape TargetInfo Worst",
        "pytest_plugin": "parametrize",
        "relations": "Relation check_relation relations",
        "rules": "RULES Rule rules",
        "runner": "collect run",
        "target": "BaseTarget Target adopt refusal",
        "targets": "builtin_targets",
        "targets.function": "FunctionTarget",
        "targets.resolve": "names resolve",
    }.items()
    for name in names.split()
}


class _Package(ModuleType):
    """The package, in which a function wins over the module of the same name that holds it."""

    def __setattr__(self, name: str, value: Any) -> None:
        # The import system binds every module it loads to its package: `cases` would be a module
        # or a function, depending on what was imported before.
        if not (name in _HOME and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'sdpakit.conformance' has no attribute {name!r}")
    value = getattr(import_module(f"sdpakit.conformance.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = [
    "RULES",
    "BaseTarget",
    "Case",
    "FunctionTarget",
    "Ledger",
    "Outcome",
    "Profile",
    "Relation",
    "Rule",
    "Run",
    "Shape",
    "Target",
    "TargetInfo",
    "Worst",
    "adopt",
    "bounds",
    "builtin_targets",
    "cases",
    "check",
    "check_relation",
    "collect",
    "compare",
    "concerns",
    "names",
    "refusal",
    "relations",
    "resolve",
    "rules",
    "run",
]
