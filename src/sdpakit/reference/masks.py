"""Which keys a row may attend, from the meaning of each mask (MASK-1 to MASK-4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sdpakit.errors import ArgumentError, format_error
from sdpakit.expr.nodes import Index, Load
from sdpakit.masks import (
    And,
    Causal,
    Dense,
    Dilated,
    Document,
    Mask,
    Not,
    Or,
    Predicate,
    Prefix,
    Window,
)
from sdpakit.reference.expressions import Scope, evaluate
from sdpakit.reference.operands import Array, checked_integer


def offset(align: str | None, scope: Scope) -> Any:
    """Return what is added to a row index to give its position p (MASK-2).

    Parameters
    ----------
    align : {"top_left", "bottom_right", "offset"} or None
        None stands for equal lengths, where the corners agree.
    scope : Scope
        Lengths and offset of the batch entry.

    Returns
    -------
    int
        The offset of the batch entry.

    Raises
    ------
    ArgumentError
        If the alignment is "offset" and the call gave none.
    """
    if align is None or align == "top_left":
        return 0
    if align == "bottom_right":
        return scope.indices["kv_len"] - scope.indices["q_len"]
    if scope.indices["q_offset"] is None:
        raise ArgumentError(
            format_error(
                "q_offset",
                got="nothing",
                allowed="one integer, or one a batch entry",
                fix="pass q_offset=",
            )
        )
    return scope.indices["q_offset"]


def visible(mask: Mask, scope: Scope, dense: Array | None) -> Any:
    """Return True where a row may attend a key.

    Parameters
    ----------
    mask : Mask
        Mask of the spec.
    scope : Scope
        Indices and tables of one batch entry.
    dense : array of bool or None
        The array of `Dense()` for this batch entry, (Hq, Lq, Lk).

    Returns
    -------
    array of bool
        Broadcasts to (Hq, Lq, Lk).

    Raises
    ------
    ArgumentError
        If something that the mask reads was not given.
    """
    match mask:
        case And():
            return visible(mask.a, scope, dense) & visible(mask.b, scope, dense)
        case Or():
            return visible(mask.a, scope, dense) | visible(mask.b, scope, dense)
        case Not():
            return ~visible(mask.a, scope, dense)
        case Dense():
            return _dense(dense)
    return _LEAVES[type(mask)](mask, scope)


def _causal(mask: Causal, scope: Scope) -> Any:
    return scope.indices["k"] <= scope.indices["q"] + offset(mask.align, scope)


def _window(mask: Window, scope: Scope) -> Any:
    if mask.left is None and mask.right is None:
        return True  # no side asks where the row stands, so that no offset need be given
    p, j = scope.indices["q"] + offset(mask.align, scope), scope.indices["k"]
    inside = np.ones(np.broadcast_shapes(np.shape(p), np.shape(j)), dtype=bool)
    if mask.left is not None:
        inside &= j >= p - checked_integer("Window: left", mask.left)
    if mask.right is not None:
        inside &= j <= p + checked_integer("Window: right", mask.right)
    return inside


def _prefix(mask: Prefix, scope: Scope) -> Any:
    if not isinstance(mask.length, str):
        return scope.indices["k"] < checked_integer("Prefix: length", mask.length)
    lengths = _element(mask.length, mask.dtype, ("b",), scope)
    if (lengths < 0).any():
        raise ArgumentError(
            format_error(
                f"params[{mask.length!r}]",
                got=f"a prefix of length {lengths.min()}",
                allowed="lengths >= 0",
                fix="give the number of keys of each batch entry, 0 for none",
            )
        )
    return scope.indices["k"] < lengths


def _dilated(mask: Dilated, scope: Scope) -> Any:
    p = scope.indices["q"] + offset(mask.align, scope)
    return (p - scope.indices["k"]) % checked_integer("Dilated: step", mask.step) == 0


def _predicate(mask: Predicate, scope: Scope) -> Any:
    return np.asarray(evaluate(mask.condition, scope)[mask.condition], dtype=bool)


def _documents(mask: Document, scope: Scope) -> Any:
    """Compare the id of the row with the id of the key; the order of ids has no meaning."""
    row = _element(mask.ids, mask.dtype, ("b", "q"), scope)
    key = _element(mask.kv_ids or mask.ids, mask.dtype, ("b", "k"), scope)
    return row == key


def _element(table: str, dtype: str, indices: tuple[str, ...], scope: Scope) -> Any:
    node = Load(table, dtype, tuple(Index(name) for name in indices))
    return evaluate(node, scope)[node]


def _dense(dense: Array | None) -> Array:
    if dense is None:
        raise ArgumentError(
            format_error(
                "mask", got="nothing", allowed="a boolean array for Dense()", fix="pass mask="
            )
        )
    return dense


_LEAVES: dict[type[Mask], Callable[[Any, Scope], Any]] = {
    Causal: _causal,
    Window: _window,
    Prefix: _prefix,
    Dilated: _dilated,
    Document: _documents,
    Predicate: _predicate,
}
