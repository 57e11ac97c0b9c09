"""The check behind every number of the demo: each output against float64, within its bound."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sdpakit import reference
from sdpakit.conformance import bounds, compare
from sdpakit.output import AttentionOutput

if TYPE_CHECKING:
    from sdpakit.reference import Detail
    from sdpakit.spec import AttentionSpec

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Check:
    """One output of one call, beside the float64 reference.

    Attributes
    ----------
    call : str
        Name of the call, for people.
    output : str
        Name of the output.
    share : float
        The worst error as a share of the bound there.
    message : str
        What is wrong and where, "" if nothing is.
    """

    call: str
    output: str
    share: float
    message: str

    @property
    def ok(self) -> bool:
        """Whether every element lies inside its bound."""
        return self.share <= 1.0

    def __str__(self) -> str:
        return f"{self.call} {self.output}: {self.message or f'{self.share:.0%} of the bound'}"


def check_call(
    call: str,
    spec: AttentionSpec,
    results: Array | AttentionOutput,
    arrays: tuple[Any, ...],
    keywords: Mapping[str, Any],
) -> tuple[list[Check], Detail]:
    """Compare what a kernel returned with the reference.

    Parameters
    ----------
    call : str
        Name of the call, for people.
    spec : AttentionSpec
        In layout "bhsd".
    results : ndarray or AttentionOutput
        What the kernel returned.
    arrays : tuple of array
        q, k, v.
    keywords : mapping
        The further operands of the call.

    Returns
    -------
    list of Check, Detail
        One check for each output, and everything the reference knows about the call.
    """
    truth = reference.detail(spec, *arrays, **keywords)
    # The sharp bound: what independent roundings can add up to, far below the worst case.
    allowed = bounds(truth, "sharp")
    named = results._asdict() if isinstance(results, AttentionOutput) else {"out": results}
    checks = []
    for name, got in named.items():
        dtype = spec.out_dtype if name == "out" else spec.accum_dtype  # NUM-5
        found = compare(name, got, getattr(truth, name), allowed[name], dtype)
        checks.append(Check(call, name, found.share, found.message))
    return checks, truth
