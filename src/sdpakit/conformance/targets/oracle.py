"""The reference as a target."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from sdpakit import reference
from sdpakit.conformance.gradients.wanted import gradient_operands
from sdpakit.conformance.inputs import Array
from sdpakit.conformance.judge import output_dtype
from sdpakit.conformance.target import BadCalls, BaseTarget, refusal

if TYPE_CHECKING:
    from sdpakit.spec import AttentionSpec


class Reference(BaseTarget):
    """The oracle as a target: it must pass its own judgement."""

    name = "reference"
    bad_calls: BadCalls = "unchecked"

    def prepare(self, spec: AttentionSpec) -> Callable[..., dict[str, Array]]:
        """Return a callable for the spec; see `Target.prepare`."""
        if spec.batch_invariant:
            raise refusal(self.name, "the bits of its products depend on the number of rows")
        return functools.partial(self._attention, spec)

    def prepare_gradients(self, spec: AttentionSpec) -> Callable[..., dict[str, Array]]:
        """Return a callable for the spec; see `Target.prepare_gradients`."""
        return functools.partial(self._gradients, spec)

    def _gradients(
        self, spec: AttentionSpec, q: Any, k: Any, v: Any, **operands: Any
    ) -> dict[str, Array]:
        found = reference.attention(spec, q, k, v, **operands)
        wanted = gradient_operands(spec, {"q": q, "k": k, "v": v, **operands})
        with np.errstate(over="ignore"):
            return {name: found[name].astype(like.dtype) for name, like in wanted.items()}

    def _attention(
        self, spec: AttentionSpec, q: Any, k: Any, v: Any, **operands: Any
    ) -> dict[str, Array]:
        found = reference.attention(spec, q, k, v, **operands)
        with np.errstate(over="ignore"):
            return {name: x.astype(output_dtype(spec, name)) for name, x in found.items()}
