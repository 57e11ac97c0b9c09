"""The reference as a target."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from sdpakit import reference
from sdpakit.conformance.inputs import Array
from sdpakit.conformance.judge import output_dtype
from sdpakit.conformance.target import BaseTarget

if TYPE_CHECKING:
    from sdpakit.spec import AttentionSpec


class Reference(BaseTarget):
    """The oracle as a target: it must pass its own judgement."""

    name = "reference"

    def prepare(self, spec: AttentionSpec) -> Callable[..., dict[str, Array]]:
        """Return a callable for the spec; see `Target.prepare`."""
        return functools.partial(self._attention, spec)

    def _attention(
        self, spec: AttentionSpec, q: Any, k: Any, v: Any, **operands: Any
    ) -> dict[str, Array]:
        found = reference.attention(spec, q, k, v, **operands)
        with np.errstate(over="ignore"):
            return {name: x.astype(output_dtype(spec, name)) for name, x in found.items()}
