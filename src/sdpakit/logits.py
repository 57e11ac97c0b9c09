"""Changes of the logit after cap and bias (MOD-1): `Alibi`, the one with a name, and functions."""

from __future__ import annotations

from dataclasses import dataclass

from sdpakit.calling import checked_init
from sdpakit.dtypes import float_dtype
from sdpakit.errors import SpecError, format_error, shown
from sdpakit.expr.alignment import check_align
from sdpakit.expr.names import LOGIT, check_table_name
from sdpakit.expr.nodes import Binary, Expr, Index, Load, Unary
from sdpakit.expr.scope import Scope
from sdpakit.expr.trace import changed_logit, trace_logits
from sdpakit.expr.values import Value


@checked_init
@dataclass(frozen=True, slots=True)
class Alibi:
    """A logit change, linear in the distance: x + slopes[h] * (k - p).

    Parameters
    ----------
    slopes : str
        Name of an array (q_heads,) in `params`.
    align : {"top_left", "bottom_right", "offset"} or None
        Position of row i: i, i + kv_len - q_len, or i + q_offset. None only with equal lengths.
    dtype : str
        Floating dtype of the array.
    """

    slopes: str = "slopes"
    align: str | None = None
    dtype: str = "float32"

    def __post_init__(self) -> None:
        check_align("Alibi", self.align)
        check_table_name("Alibi", "slopes", self.slopes)
        object.__setattr__(self, "dtype", float_dtype("Alibi: dtype", self.dtype))

    def build(self, scope: Scope) -> Expr:
        """Return the changed logit over the placeholder `LOGIT`.

        Parameters
        ----------
        scope : Scope
            Decides an alignment that was left open.

        Returns
        -------
        Expr
            Float.
        """
        distance = Binary("sub", Index("k"), scope.position("Alibi", self.align))
        slope = Load(self.slopes, self.dtype, (Index("h"),))
        return Binary("add", LOGIT, Binary("mul", slope, Unary("to_float", distance)))


def as_logits(value: object) -> Expr | Alibi:
    """Return a change of the logit for what a user gave as one.

    Parameters
    ----------
    value : object
        An Alibi, a function of the logit and the pair, or a number over the logit.

    Returns
    -------
    Expr or Alibi
        Equal for functions that say the same.

    Raises
    ------
    SpecError
        For conditions, masks, arrays and classes, each with its remedy.
    """
    if isinstance(value, Alibi):
        return value
    if isinstance(value, Value):
        return changed_logit(value.node)
    if isinstance(value, Expr):
        return changed_logit(value)
    if callable(value) and not isinstance(value, type):
        return trace_logits(value)
    raise SpecError(
        format_error(
            "logits",
            got=shown(value),
            allowed="None, a function such as lambda x, i: x + 0.1 * (i.k - i.q), Alibi(...)",
            fix='an additive array is bias="float32"; a condition or a mask is mask=',
        )
    )
