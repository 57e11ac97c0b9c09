"""The attention program: what is computed, small enough to read on one page.

    for every (b, h, q):
        x_k = logit(b, h, q, k)   over the keys k with mask(b, h, q, k) and x_k != -inf
        out, lse, ... = softmax statistics of x (sink in the denominator) and its mean of v

`logit` and `mask` are expressions of the scalar language (`sdpakit.expr.nodes`), where `Dot()` is
<q_i, k_j>. Nothing that may differ between two calls is part of a program: lengths, batch,
strides, scale, cap, window sizes and tables are run-time values, so one program serves them all,
and its text is the key of compiled code.
"""

from __future__ import annotations

from dataclasses import dataclass

from sdpakit.expr.nodes import Expr, Load, Scalar, Type, postorder


@dataclass(frozen=True, slots=True)
class ReadTable:
    """A run-time array that expressions read, with one axis for each index of its loads."""

    name: str
    dtype: str
    ndim: int


@dataclass(frozen=True, slots=True)
class Schedule:
    """How a backend walks a program, decided by the passes.

    Attributes
    ----------
    needs_mask : bool
        False where the mask is the literal True: every tile is FULL.
    plain_logits : bool
        True where the logit is `scale * Dot()` and nothing else, so that the scale can be folded
        in the exponent.
    """

    needs_mask: bool
    plain_logits: bool


@dataclass(frozen=True, slots=True)
class Program:
    """One attention computation over operands q, k, v and tables (see the head of the file).

    Attributes
    ----------
    head_dim, v_head_dim : int
        Widths D of q and k, Dv of v and out.
    dtype, accum_dtype, out_dtype : str
        Storage of q, k, v; of logits and sums (NUM-1); of out (NUM-5).
    logit : Expr
        Float expression with `Dot()`.
    mask : Expr
        Bool expression; True = may attend.
    sink : Expr or None
        Float expression over h: the extra logit of SINK-1.
    outputs : tuple of str
        Out of "out", "lse", "max_logit", "entropy", "sum_p2".
    empty_row : str
        "zero" or "nan" (EMPTY-1).
    schedule : Schedule or None
        None before the passes have run.
    """

    head_dim: int
    v_head_dim: int
    dtype: str
    accum_dtype: str
    out_dtype: str
    logit: Expr
    mask: Expr
    sink: Expr | None
    outputs: tuple[str, ...]
    empty_row: str
    schedule: Schedule | None = None

    def roots(self) -> tuple[Expr, ...]:
        """Return the expressions of the program."""
        return (self.logit, self.mask) if self.sink is None else (self.logit, self.mask, self.sink)

    def tables(self) -> tuple[ReadTable, ...]:
        """Return the tables that the program reads, by name."""
        found = {
            node.table: ReadTable(node.table, node.dtype, len(node.indices))
            for root in self.roots()
            for node in postorder(root)
            if isinstance(node, Load)
        }
        return tuple(found[name] for name in sorted(found))

    def scalars(self) -> tuple[tuple[str, Type], ...]:
        """Return names and types of the run-time scalars of the program, by name."""
        found = {
            node.name: node.kind
            for root in self.roots()
            for node in postorder(root)
            if isinstance(node, Scalar)
        }
        return tuple(sorted(found.items()))
