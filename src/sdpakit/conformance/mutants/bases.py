"""What mutants are made from: right programs in steps, one of which a mutant replaces."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from sdpakit.conformance.inputs import Array
from sdpakit.conformance.target import BadCalls, BaseTarget
from sdpakit.conformance.targets.compiled import Compiled
from sdpakit.conformance.targets.naive import Naive
from sdpakit.masks import And, Mask, Not, Or
from sdpakit.reference.expressions import Scope
from sdpakit.reference.operands import Operands

if TYPE_CHECKING:
    from sdpakit.spec import AttentionSpec

Call: TypeAlias = "tuple[AttentionSpec, dict[str, Any]]"
Entry: TypeAlias = dict[str, Array]
Logits: TypeAlias = tuple[Array, Array]


class Plain(Naive):
    """Whole rows in NumPy, with three more steps that change nothing."""

    alone: ClassVar[tuple[str, ...]] = ("change", "rewrite", "finish")

    def attention(
        self, spec: AttentionSpec, q: Any, k: Any, v: Any, **operands: Any
    ) -> dict[str, Array]:
        """Return the outputs of one call; see `Naive.attention`."""
        spec, given = self.change(spec, {"q": q, "k": k, "v": v, **operands})
        return super().attention(spec, **given)

    def change(self, spec: AttentionSpec, given: dict[str, Any]) -> Call:
        """Return the spec and the operands, q, k and v included, that are computed."""
        return spec, given

    def rewrite(self, mask: Mask) -> Mask:
        """Return what stands for a mask or a part of it."""
        return mask

    def finish(self, found: Entry, ops: Operands) -> Entry:
        """Return what becomes of the outputs of a batch entry."""
        return found

    def entry(self, ops: Operands, b: int) -> Entry:
        """Return the outputs of batch entry b."""
        return self.finish(super().entry(ops, b), ops)

    def visible(self, ops: Operands, scope: Scope) -> Array:
        """Return which pairs the rewritten mask and the lengths allow."""
        if ops.spec.mask is not None:
            spec = respec(ops.spec, mask=self._walk(ops.spec.mask))
            ops = dataclasses.replace(ops, spec=spec)
        return super().visible(ops, scope)

    def _walk(self, mask: Mask) -> Mask:
        match mask:
            case And():
                mask = And(self._walk(mask.a), self._walk(mask.b))
            case Or():
                mask = Or(self._walk(mask.a), self._walk(mask.b))
            case Not():
                mask = Not(self._walk(mask.a))
        return self.rewrite(mask)


class Wrapped(BaseTarget):
    """Hands every call to the interpreter of sdpakit, which refuses bad input."""

    alone: ClassVar[tuple[str, ...]] = ("call",)
    bad_calls: BadCalls = "exact"
    takes_out = True
    takes_threads = True

    def prepare(self, spec: AttentionSpec) -> Callable[..., Any]:
        """Return a callable for the spec; see `Target.prepare`."""
        kernel = _kernel(spec)

        def call(q: Any, k: Any, v: Any, **given: Any) -> Any:
            return self.call(kernel, spec, {"q": q, "k": k, "v": v, **given})

        return call

    def call(self, kernel: Callable[..., Any], spec: AttentionSpec, given: dict[str, Any]) -> Any:
        """Return the result of one call, whose operands are `given`."""
        return kernel(**given)


@functools.lru_cache(maxsize=16)
def _kernel(spec: AttentionSpec) -> Callable[..., Any]:
    """Return what a spec compiles to; the mutants of one case follow each other."""
    return Compiled("interp").prepare(spec)


def respec(spec: AttentionSpec, **fields: Any) -> AttentionSpec:
    """Return a spec with other fields, past its own checks.

    Parameters
    ----------
    spec : AttentionSpec
        Any.
    **fields
        Values to put in place of its own.

    Returns
    -------
    AttentionSpec
        Not checked.
    """
    made = object.__new__(type(spec))
    for field in dataclasses.fields(spec):
        value = fields.get(field.name, getattr(spec, field.name))
        object.__setattr__(made, field.name, value)
    return made
