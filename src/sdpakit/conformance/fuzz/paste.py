"""A random case as Python source: paste it, and it is the same case."""

from __future__ import annotations

import dataclasses

from sdpakit.conformance.model import Case

_HEAD = """\
from math import inf, nan

from sdpakit import *
from sdpakit.conformance import Case, Shape, check, resolve
from sdpakit.conformance.fuzz import Hostile, Operands
"""


def paste(case: Case, targets: tuple[str, ...] = ()) -> str:
    """Return source that makes a case and judges targets on it.

    Parameters
    ----------
    case : Case
        Its recipe is None or an `Operands`.
    targets : tuple of str
        Names to judge.

    Returns
    -------
    str
        A complete program; defaults are left out.
    """
    lines = [_HEAD, "case = Case("]
    for field in dataclasses.fields(case):
        value = getattr(case, field.name)
        if field.name == "spec":
            lines.append("    spec={")
            lines += [f"        {name!r}: {given!r}," for name, given in case.spec.items()]
            lines.append("    },")
        elif field.name == "recipe" and dataclasses.is_dataclass(value):
            lines.append(f"    recipe={_call(value)},")
        elif value != field.default:
            lines.append(f"    {field.name}={value!r},")
    lines.append(")")
    lines += [f"print(check(resolve({name!r}), case))" for name in targets]
    return "\n".join(lines) + "\n"


def _call(value: object) -> str:
    """Return a dataclass as the call that makes it, without what is default."""
    assert dataclasses.is_dataclass(value)
    given = [
        f"{field.name}={getattr(value, field.name)!r}"
        for field in dataclasses.fields(value)
        if getattr(value, field.name) != field.default
    ]
    return f"{type(value).__name__}({', '.join(given)})"
