"""Run-time numbers and arrays of a user's expression: their values come with the call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from sdpakit.calling import checked_init
from sdpakit.dtypes import DTYPES, dtype_name
from sdpakit.errors import SpecError, format_error
from sdpakit.expr.names import check_name
from sdpakit.expr.nodes import Expr, Load, Type
from sdpakit.expr.nodes import Scalar as ScalarNode
from sdpakit.expr.values import Value, lift
from sdpakit.plain_numbers import plain_number, whole_number


@checked_init
class Scalar(Value):
    """A run-time number, the same for every pair, given at the call in `params`.

    Parameters
    ----------
    name : str
        Key in `params`.
    kind : {"float", "int"}
        Type of the number.

    Raises
    ------
    SpecError
        If the name is taken or the kind is neither.
    """

    __slots__ = ()

    def __init__(self, name: str, kind: str = "float") -> None:
        if kind not in ("float", "int"):
            raise SpecError(
                format_error(
                    f"Scalar({name!r})",
                    got=f"kind {kind!r}",
                    allowed='"float" | "int"',
                    fix="name one of these; a flag is an int that you compare with 0",
                )
            )
        super().__init__(ScalarNode(check_name("Scalar", name), cast(Type, kind)))


@checked_init
@dataclass(frozen=True, slots=True)
class Table:
    """A run-time array that expressions read, given at the call in `params`.

    `Table("slopes", "float32", 1)[i.h]` is its element. An axis of size 1 broadcasts where its
    index is one of i.b, i.h, i.q, i.k. An index that leaves the array is refused at the call.

    Parameters
    ----------
    name : str
        Key in `params`.
    dtype : str
        Dtype of the array: a bool, integer or floating dtype by name or as an object.
    ndim : int
        Number of axes, at least 1.

    Raises
    ------
    SpecError
        If the name is taken, the dtype unknown or ndim < 1.
    """

    name: str
    dtype: str
    ndim: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", check_name("Table", self.name))
        object.__setattr__(self, "dtype", table_dtype(f"Table({self.name!r}): dtype", self.dtype))
        ndim = whole_number(
            f"Table({self.name!r}): ndim", self.ndim, least=1, fix="use Scalar for a single number"
        )
        object.__setattr__(self, "ndim", ndim)

    def __getitem__(self, indices: object) -> Value:
        """Return the element at integer indices, one for each axis."""
        given = indices if isinstance(indices, tuple) else (indices,)
        where_ = f"Table({self.name!r})[...]"
        if len(given) != self.ndim:
            raise SpecError(
                format_error(
                    where_,
                    got=f"{len(given)} indices",
                    allowed=f"{self.ndim}, one for each axis",
                    fix=f"index every axis, or declare ndim={len(given)}",
                )
            )
        nodes = tuple(self._index(where_, item) for item in given)
        return Value(Load(self.name, self.dtype, nodes))

    def _index(self, where_: str, item: object) -> Expr:
        whole = isinstance(item, Value | Expr) or plain_number(item) is not None
        node = lift(item) if whole else None
        if node is None or node.type != "int":
            raise SpecError(
                format_error(
                    where_,
                    got=f"the index {item!r}" if node is None else f"an index of type {node.type}",
                    allowed="integer values: i.b, i.h, i.q, i.k, whole numbers, arithmetic on them",
                    fix="give one integer for each axis; a slice means nothing for one pair",
                )
            )
        return node


def table_dtype(where_: str, value: object) -> str:
    """Return the canonical name of the dtype of a table, or raise `SpecError`.

    Parameters
    ----------
    where_ : str
        Field to name in the message.
    value : object
        See `sdpakit.dtypes.dtype_name`.

    Returns
    -------
    str
        A key of `DTYPES`.
    """
    name = dtype_name(value)
    if name not in DTYPES:
        raise SpecError(
            format_error(
                where_,
                got=repr(value),
                allowed=" | ".join(DTYPES),
                fix="name the dtype that the array will have",
            )
        )
    return name
