"""Where rows stand among the keys: the alignments, and the position that each gives (MASK-2)."""

from __future__ import annotations

from sdpakit.errors import SpecError, format_error
from sdpakit.expr.names import POSITION
from sdpakit.expr.nodes import Binary, Expr, Index

ALIGNMENTS: tuple[str, ...] = ("top_left", "bottom_right", "offset")

_CHOICES = " | ".join(map(repr, ALIGNMENTS))
# What is allowed where an alignment was left open and must be named.
NAME_ONE = f"""{_CHOICES}
           top_left      bottom_right     two queries, five keys, # = may attend
           # . . . .     # # # # .        (causal; "offset" takes q_offset= at the call:
           # # . . .     # # # # #         0 is top_left, kv_len - q_len is bottom_right)"""


def check_align(where: str, align: object) -> str | None:
    """Return the alignment, or refuse what is none.

    Parameters
    ----------
    where : str
        What to name in the message.
    align : object
        What came.

    Returns
    -------
    str or None
        One of `ALIGNMENTS`, or None for an alignment left open.
    """
    if align is None or (isinstance(align, str) and align in ALIGNMENTS):
        return align
    raise SpecError(
        format_error(
            f"{where}: align",
            got=repr(align),
            allowed=_CHOICES,
            fix="name one of these",
        )
    )


def position(align: str | None) -> Expr:
    """Return the position of the row under an alignment (MASK-2).

    Parameters
    ----------
    align : str or None
        One of `ALIGNMENTS`; None gives a placeholder that `sdpakit.expr.scope.Scope` resolves.

    Returns
    -------
    Expr
        Int.
    """
    row = Index("q")
    match align:
        case "top_left":
            return row
        case "bottom_right":
            return Binary("add", row, Binary("sub", Index("kv_len"), Index("q_len")))
        case "offset":
            return Binary("add", row, Index("q_offset"))
        case _:
            return POSITION
