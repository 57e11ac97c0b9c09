"""How cases are written down: one call of `make` a case, one case for each dtype."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sdpakit.conformance.model import BoundKind, Case, Level, Recipe, Shape

F16, BF16, F32, F64 = "float16", "bfloat16", "float32", "float64"
FOUR: tuple[str, ...] = (F32, F16, BF16, F64)
HALVES: tuple[str, ...] = (F16, BF16)
LSE: tuple[str, ...] = ("out", "lse")
ALL: tuple[str, ...] = ("out", "lse", "max_logit", "entropy", "sum_p2")


def make(  # noqa: PLR0913 - the fields of a case
    name: str,
    rules: str,
    catches: str,
    *,
    shape: Shape | None = None,
    spec: Mapping[str, Any] | None = None,
    recipe: Recipe | None = None,
    dtypes: tuple[str, ...] = (F32,),
    outputs: tuple[str, ...] = LSE,
    bound: BoundKind = "sharp",
    level: Level = "core",
    **fields: Any,
) -> list[Case]:
    """Return one case for each dtype.

    Parameters
    ----------
    name : str
        "family.name".
    rules : str
        Rule ids, separated by blanks.
    catches : str
        The wrong program that fails here.
    shape, spec, recipe, outputs, bound
        See `Case`; `spec` without dtype and outputs.
    dtypes : tuple of str
        The first gives a case of `level`, the others cases of level "full" at least.
    level : {"core", "full", "stress"}
        Level of the first.
    **fields
        Further fields of `Case`.

    Returns
    -------
    list of Case
        Ids are "family.name.dtype".
    """
    return [
        Case(
            id=f"{name}.{dtype}",
            rules=tuple(rules.split()),
            catches=catches,
            shape=shape or Shape(),
            spec={"outputs": outputs, **(spec or {}), "dtype": dtype},
            recipe=recipe,
            bound=bound,
            level="full" if position and level == "core" else level,
            **fields,
        )
        for position, dtype in enumerate(dtypes)
    ]


def gh(thread: str) -> str:
    """Return the address of "owner/repo#12" (an issue) or "owner/repo!12" (a pull request)."""
    mark, kind = ("#", "issues") if "#" in thread else ("!", "pull")
    repository, number = thread.split(mark)
    return f"https://github.com/{repository}/{kind}/{number}"
