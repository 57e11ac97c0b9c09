"""What expressions leave to run time: numbers that a spec holds, arrays and numbers of a call."""

from __future__ import annotations

from collections import Counter

from sdpakit.errors import SpecError, format_error
from sdpakit.expr.alignment import NAME_ONE, position
from sdpakit.expr.names import LOGIT, POSITION
from sdpakit.expr.nodes import Expr, Index, Load, Scalar, Type, postorder
from sdpakit.expr.operands import Table
from sdpakit.expr.rewrite import substitute

# The array `mask=` of a call.
DENSE = Load("mask", "bool", (Index("b"), Index("h"), Index("q"), Index("k")))


class Scope:
    """Collects what one spec's mask and logits leave to run time, while they are built.

    Parameters
    ----------
    equal_lens : bool
        Whether the spec promises equal lengths, so that an alignment may be left open.

    Attributes
    ----------
    values : dict of str to int
        Values of the run-time numbers that the spec holds, by name.
    """

    def __init__(self, *, equal_lens: bool = False) -> None:
        self.equal_lens = equal_lens
        self.values: dict[str, int] = {}
        self._counts: Counter[str] = Counter()

    def label(self, kind: str) -> str:
        """Return the next name of a kind of mask: "window0", "window1", ... in order of building.

        Parameters
        ----------
        kind : str
            For example "window".

        Returns
        -------
        str
            Unique in this scope.
        """
        name = f"{kind}{self._counts[kind]}"
        self._counts[kind] += 1
        return name

    def hoist(self, name: str, value: int) -> Scalar:
        """Return a run-time int that has `value` at every call.

        Parameters
        ----------
        name : str
            Made from a `label`.
        value : int
            Kept in `values`.

        Returns
        -------
        Scalar
            The node.
        """
        self.values[name] = value
        return Scalar(name, "int")

    def resolve(self, where: str, node: Expr) -> Expr:
        """Return the expression with an alignment that was left open replaced by the row index.

        Parameters
        ----------
        where : str
            What to name in the message.
        node : Expr
            Any expression.

        Returns
        -------
        Expr
            Without `POSITION`.

        Raises
        ------
        SpecError
            If an alignment is open and lengths may differ (MASK-2).
        """
        if POSITION not in set(postorder(node)):
            return node
        if not self.equal_lens:
            raise SpecError(
                format_error(
                    f"{where}: align",
                    got="none, though q_len and kv_len may differ",
                    allowed=NAME_ONE,
                    fix='name one, such as align="bottom_right" for decoding with a cache; or '
                    "promise equal_lens=True in the spec",
                )
            )
        return substitute(node, {POSITION: position("top_left")})

    def position(self, where: str, align: str | None) -> Expr:
        """Return the position of the row under an alignment.

        Parameters
        ----------
        where : str
            What to name in the message.
        align : str or None
            One of `sdpakit.expr.alignment.ALIGNMENTS`, or None where it is left open.

        Returns
        -------
        Expr
            Int.
        """
        return self.resolve(where, position(align))


def tables_of(*roots: Expr) -> tuple[Table, ...]:
    """Return the arrays of `params` that expressions read, by name.

    Parameters
    ----------
    *roots : Expr
        Built masks and logits.

    Returns
    -------
    tuple of Table
        Sorted by name, without the array of `Dense`.

    Raises
    ------
    SpecError
        If one name is used with two dtypes or two numbers of axes.
    """
    found: dict[str, Table] = {}
    for node in (part for root in roots for part in postorder(root)):
        if isinstance(node, Load) and node is not DENSE:
            table = Table(node.table, node.dtype, len(node.indices))
            _agree(node.table, found.setdefault(node.table, table), table)
    return tuple(found[name] for name in sorted(found))


def scalars_of(*roots: Expr) -> tuple[tuple[str, Type], ...]:
    """Return name and type of the run-time numbers of expressions, by name.

    Parameters
    ----------
    *roots : Expr
        Built masks and logits.

    Returns
    -------
    tuple of (str, str)
        Sorted by name, without the placeholders.

    Raises
    ------
    SpecError
        If one name is used with two types.
    """
    found: dict[str, Type] = {}
    for node in (part for root in roots for part in postorder(root)):
        if isinstance(node, Scalar) and node not in (LOGIT, POSITION):
            _agree(node.name, found.setdefault(node.name, node.kind), node.kind)
    return tuple(sorted(found.items()))


def _agree(name: str, first: object, second: object) -> None:
    if first != second:
        raise SpecError(
            format_error(
                f"run-time operand {name!r}",
                got=f"{first} and {second}",
                allowed="one meaning for one name within a spec",
                fix="choose another name for one of them",
            )
        )
