"""How gradient cases are written down."""

from __future__ import annotations

from typing import Any

from sdpakit.conformance.cases.make import F32, F64, gh, make
from sdpakit.conformance.model import Case


def gradient(name: str, rules: str, catches: str, source: str = "", **fields: Any) -> list[Case]:
    """Return one gradient case for each dtype, float32 and float64 unless more is said.

    Parameters
    ----------
    name : str
        Without the family.
    rules : str
        Rule ids, separated by blanks.
    catches : str
        The wrong program that fails here.
    source : str
        "owner/repo#12", "owner/repo!12" or "".
    **fields
        As for `make`.

    Returns
    -------
    list of Case
        Ids are "gradients.NAME.DTYPE"; the first is core, the others full.
    """
    fields.setdefault("dtypes", (F32, F64))
    fields.setdefault("outputs", ("out",))
    address = gh(source) if source else ""
    return make(f"gradients.{name}", rules, catches, gradients=True, source=address, **fields)
