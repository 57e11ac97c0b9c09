"""Gradients of the tables of a user's expression: errors of sums over the pairs that read them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sdpakit.conformance.bounds import LAM
from sdpakit.conformance.gradients.graded import Graded, RowErrors
from sdpakit.conformance.gradients.slopes import backpropagate
from sdpakit.conformance.gradients.wanted import change_of, float_tables
from sdpakit.conformance.inputs import Array
from sdpakit.conformance.model import Profile
from sdpakit.conformance.propagate import node_errors
from sdpakit.expr.names import LOGIT
from sdpakit.expr.nodes import Expr, Load
from sdpakit.reference import Detail
from sdpakit.reference.expressions import evaluate, table_indices
from sdpakit.reference.forward import scope_of


@dataclass(slots=True, eq=False)
class _Sums:
    """Sums over the pairs that read each element of one table, in the shape of the table."""

    shape: tuple[int, ...]
    parts: dict[str, Array] = field(default_factory=dict)

    def add(self, name: str, place: Array, terms: Array) -> None:
        """Add terms, one a pair, to the elements at `place`."""
        size = int(np.prod(self.shape, dtype=np.int64))
        part = np.bincount(place.ravel(), terms.ravel(), size).reshape(self.shape)
        self.parts[name] = self.parts[name] + part if name in self.parts else part

    def error(self, rows: RowErrors) -> Array:
        """Return the error of the gradient."""
        if not self.parts:
            return np.zeros(self.shape)
        of = self.parts
        if rows.kind == "hard":
            sums = rows.rounded(of["count"], of["size"])
            return np.asarray(of["own"] + of["pairs"] + sums + of["floor"])
        largest = np.maximum(np.abs(of["value"]), np.sqrt(of["squares"]))
        shared = np.sqrt(of["row_squares"])
        sums = rows.rounded(of["count"], largest)
        return np.asarray(LAM * np.sqrt(of["own_squares"]) + shared + sums + of["floor"])


def through_change(
    found: Detail,
    dlogits: Graded,
    rows: RowErrors,
    biased_error: Array,
    profile: Profile,
    accum: str,
) -> tuple[Graded, dict[str, Array]]:
    """Take gradients of the logits through the user's change of them.

    Parameters
    ----------
    found : Detail
        The call.
    dlogits : Graded
        Of all pairs, (B, Hq, Lq, Lk).
    rows : RowErrors
        What the pairs of a row share.
    biased_error : array
        How far the input of the change may be off.
    profile : Profile
        Numerics of the target.
    accum : str
        The dtype that operations round to.

    Returns
    -------
    tuple of Graded and dict
        The gradient of the input, and the error of the gradient of each table by "dparams.NAME".
    """
    ops, root = found.operands, change_of(found.operands.spec)
    if root is None:
        return dlogits, {}
    tables = {name: _Sums(np.shape(ops.params[name])) for name in float_tables(ops.spec)}
    before = []
    for b in range(ops.full_shape[0]):
        values = evaluate(root, scope_of(ops, b, found.biased[b]))
        errors = node_errors(root, values, biased_error[b], profile, accum)
        gradients = backpropagate(root, values, errors, _entry(dlogits, b), rows.u)
        nothing = Graded(*(np.zeros(dlogits.value.shape[1:]) for _ in range(4)))
        before.append(gradients.get(LOGIT, nothing))
        _add_tables(found, b, tables, rows, values, gradients)
    names = ("value", "own", "common", "floor")
    stacked = {
        name: np.stack([getattr(part, name) for part in before])
        if before
        else np.zeros(ops.full_shape)
        for name in names
    }
    return Graded(**stacked), {f"dparams.{n}": sums.error(rows) for n, sums in tables.items()}


def _entry(graded: Graded, b: int) -> Graded:
    return Graded(graded.value[b], graded.own[b], graded.common[b], graded.floor[b])


def _add_tables(
    found: Detail,
    b: int,
    tables: dict[str, _Sums],
    rows: RowErrors,
    values: dict[Expr, Any],
    gradients: dict[Expr, Graded],
) -> None:
    """Add what the pairs of one batch entry give to the sums of each table."""
    of_rows: dict[str, list[Array]] = {}
    pair_shape = found.attended.shape[1:]
    row = np.arange(pair_shape[0] * pair_shape[1]).reshape(*pair_shape[:2], 1)
    for node, graded in gradients.items():
        if not isinstance(node, Load) or not graded.value.size:
            continue
        sums = tables[node.table]
        picked = table_indices(node, sums.shape, values)
        place = np.ravel_multi_index(
            tuple(np.broadcast_to(at, pair_shape) for at in picked), sums.shape
        )
        delta, ratio = rows.delta[b, ..., None], rows.ratio[b, ..., None]
        shared = np.abs(graded.common) * delta + np.abs(graded.value) * ratio
        for name, terms in (
            ("own", graded.own),
            ("own_squares", graded.own**2),
            ("pairs", shared),
            ("value", graded.value),
            ("size", np.abs(graded.value)),
            ("squares", graded.value**2),
            ("floor", graded.floor),
            ("count", found.attended[b].astype(float)),
        ):
            sums.add(name, place, terms)
        size = int(np.prod(sums.shape, dtype=np.int64))
        both = [
            np.bincount((row * size + place).ravel(), part.ravel(), row.size * size)
            for part in (graded.common, graded.value)
        ]
        known = of_rows.get(node.table)
        of_rows[node.table] = (
            both if known is None else [a + c for a, c in zip(known, both, strict=True)]
        )
    for table, (common, value) in of_rows.items():
        sums = tables[table]
        by_row = (row.size, *sums.shape)
        wide = (row.size,) + (1,) * len(sums.shape)
        of_delta = np.abs(common).reshape(by_row) * rows.delta[b].reshape(wide)
        of_ratio = np.abs(value).reshape(by_row) * rows.ratio[b].reshape(wide)
        squares = ((of_delta + of_ratio) ** 2).sum(axis=0)
        sums.parts["row_squares"] = sums.parts.get("row_squares", 0.0) + squares
