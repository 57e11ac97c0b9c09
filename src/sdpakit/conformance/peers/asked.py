"""What a spec asks, taken apart into the words that peers have, and the arrays for the rest."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sdpakit.conformance.inputs import Array
from sdpakit.expr.nodes import Expr, Index, postorder
from sdpakit.expr.scope import Scope
from sdpakit.logits import Alibi
from sdpakit.masks import And, Causal, Dense, Mask, Not, Or, Window
from sdpakit.reference.expressions import param
from sdpakit.reference.forward import scope_of
from sdpakit.reference.masks import offset, visible
from sdpakit.reference.operands import Operands, accum_dtype, prepare

if TYPE_CHECKING:
    from sdpakit.spec import AttentionSpec

# Parts of a mask. An align of None needs equal lengths, where every corner is the same.
CAUSAL, WINDOW, DENSE, Q_LENS, KV_LENS, OTHER = (
    "causal",
    "window",
    "the boolean array",
    "q_lens",
    "kv_lens",
    "another mask",
)


@dataclass(frozen=True, slots=True)
class Asked:
    """The mask of a spec as a conjunction.

    Attributes
    ----------
    causal, window : Causal, Window or None
        The first of each.
    dense : bool
        Whether a boolean array is one of the parts.
    others : tuple of Mask
        All further parts.
    parts : frozenset of str
        Which of `CAUSAL`, `WINDOW`, `DENSE`, `Q_LENS`, `KV_LENS`, `OTHER` there are.
    """

    causal: Causal | None
    window: Window | None
    dense: bool
    others: tuple[Mask, ...]
    parts: frozenset[str]

    def causal_is(self, corner: str) -> bool:
        """Return whether there is a causal part with this alignment, or one that any has."""
        return self.causal is not None and self.causal.align in (corner, None)

    def window_is(self, corner: str) -> bool:
        """Return whether there is a window with this alignment, or one that any has."""
        return self.window is not None and self.window.align in (corner, None)


def asked(spec: AttentionSpec) -> Asked:
    """Return the mask of a spec, taken apart at its `&`.

    Parameters
    ----------
    spec : AttentionSpec
        Any spec.

    Returns
    -------
    Asked
        Lengths included.
    """
    pieces = list(_pieces(spec.mask))
    causal = next((m for m in pieces if isinstance(m, Causal)), None)
    window = next((m for m in pieces if isinstance(m, Window)), None)
    dense = any(isinstance(m, Dense) for m in pieces)
    others = tuple(
        m for m in pieces if m is not causal and m is not window and not isinstance(m, Dense)
    )
    there = {
        CAUSAL: causal is not None,
        WINDOW: window is not None,
        DENSE: dense,
        Q_LENS: spec.q_lens,
        KV_LENS: spec.kv_lens,
        OTHER: bool(others),
    }
    return Asked(causal, window, dense, others, frozenset(n for n, has in there.items() if has))


def _pieces(mask: Mask | None) -> list[Mask]:
    match mask:
        case None:
            return []
        case And(a, b):
            return [*_pieces(a), *_pieces(b)]
        case _:
            return [mask]


def takes_array(mask: Mask | None) -> bool:
    """Return whether a boolean array belongs to every call, wherever in the mask it is named."""
    match mask:
        case And(a, b) | Or(a, b):
            return takes_array(a) or takes_array(b)
        case Not(a):
            return takes_array(a)
        case _:
            return isinstance(mask, Dense)


def roots(spec: AttentionSpec) -> tuple[Expr, ...]:
    """Return mask and logits of a spec as expressions, those that it has."""
    scope = Scope(equal_lens=spec.equal_lens)
    found: list[Expr] = [] if spec.mask is None else [spec.mask.build(scope)]
    if spec.logits is not None:
        logits = spec.logits
        found.append(logits.build(scope) if isinstance(logits, Alibi) else logits)
    return tuple(found)


def takes_offset(spec: AttentionSpec) -> bool:
    """Return whether q_offset belongs to every call."""
    return any(Index("q_offset") in set(postorder(root)) for root in roots(spec))


@dataclass(frozen=True, eq=False)
class Call:
    """One call of a peer.

    Attributes
    ----------
    spec : AttentionSpec
        What to compute.
    q, k, v : array
        In the layout of the spec.
    given : mapping of str to array
        The further operands, as they came.
    made : frozenset of str
        Parts of the mask that become a boolean array here.
    """

    spec: AttentionSpec
    q: Any
    k: Any
    v: Any
    given: Mapping[str, Any]
    made: frozenset[str] = frozenset()

    @functools.cached_property
    def operands(self) -> Operands:
        """The call as the reference reads it; raises what the reference raises for a bad one."""
        return prepare(self.spec, self.q, self.k, self.v, self.given)

    @property
    def mask(self) -> Any:
        """The boolean array for the peer: the caller's as it is, one made here, or None."""
        if not self.made:
            return self.given.get("mask")
        ops = self.operands
        mask = np.empty(ops.full_shape, bool)
        for b in range(mask.shape[0]):
            mask[b] = self._visible(ops, b)
        return mask

    def _visible(self, ops: Operands, b: int) -> Array:
        found = asked(self.spec)
        scope = scope_of(ops, b)
        dense = None if ops.mask is None else ops.mask[b]
        seen = np.ones(ops.full_shape[1:], bool)
        if Q_LENS in self.made:
            seen &= scope.indices["q"] < ops.q_len[b]
        if KV_LENS in self.made:
            seen &= scope.indices["k"] < ops.kv_len[b]
        named = {
            CAUSAL: found.causal,
            WINDOW: found.window,
            DENSE: Dense() if found.dense else None,
        }
        pieces = [m for part, m in named.items() if part in self.made and m is not None]
        for mask in (*pieces, *(found.others if OTHER in self.made else ())):
            seen &= visible(mask, scope, dense)
        return seen

    @property
    def bias(self) -> Any:
        """The additive array for the peer: the caller's as it is, the one of Alibi, or None."""
        if not isinstance(self.spec.logits, Alibi):
            return self.given.get("bias")
        ops, alibi = self.operands, self.spec.logits
        accum = accum_dtype(self.spec)
        found = np.empty(ops.full_shape, accum)
        for b in range(found.shape[0]):
            scope = scope_of(ops, b)
            slopes = np.asarray(param(scope, alibi.slopes)).astype(accum)[:, None, None]
            p = scope.indices["q"] + offset(alibi.align, scope)
            found[b] = slopes * (scope.indices["k"] - p).astype(accum)
        return found

    def heads_first(self, array: Any) -> Any:
        """Return q, k, v or an output between (B, H, L, width) and the layout of the spec."""
        return array.swapaxes(1, 2) if self.spec.layout == "bshd" else array

    def lengths_first(self, array: Any) -> Any:
        """Return q, k, v or an output between (B, L, H, width) and the layout of the spec."""
        return array if self.spec.layout == "bshd" else array.swapaxes(1, 2)
