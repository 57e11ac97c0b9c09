"""params=: the numbers and tables that masks and logit expressions read, by name."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, SupportsFloat, cast

import numpy as np

from sdpakit.arrays import import_array
from sdpakit.binding.lengths import integer
from sdpakit.binding.operands import check_representable
from sdpakit.dtypes import DTYPES
from sdpakit.errors import ArgumentError, ArgumentTypeError, did_you_mean, format_error

if TYPE_CHECKING:
    from sdpakit.binding.signature import Signature
    from sdpakit.expr.nodes import Type
    from sdpakit.ir.program import ReadTable

Array = np.ndarray[Any, Any]


def bind_params(
    signature: Signature, params: object
) -> tuple[dict[str, int | float], dict[str, Array]]:
    """Return all run-time scalars, those of the spec included, and the tables of params.

    Raises
    ------
    ArgumentTypeError, ArgumentError
        If names are missing or unknown, or a value has another kind, dtype or rank.
    """
    given = _as_mapping(params)
    _check_names(signature, given)
    accum = signature.spec.accum_dtype
    scalars: dict[str, int | float] = dict(signature.constants)
    for name, kind in signature.scalars.items():
        scalars[name] = _bind_scalar(_where(name), kind, given[name], accum)
    tables = {
        name: _bind_table(_where(name), table, given[name], accum)
        for name, table in signature.tables.items()
    }
    for name in signature.prefixes:
        _check_prefixes(_where(name), tables[name])
    return scalars, tables


def _as_mapping(params: object) -> Mapping[str, object]:
    if params is None:
        return {}
    if not isinstance(params, Mapping):
        raise ArgumentTypeError(
            format_error(
                "params",
                got=type(params).__name__,
                allowed="a mapping from names to numbers and arrays",
                fix="pass params={'name': value}",
            )
        )
    return params


def _check_names(signature: Signature, given: Mapping[str, object]) -> None:
    wanted = {**signature.scalars, **signature.tables}
    missing = [name for name in wanted if name not in given]
    unknown = [name for name in given if name not in wanted]
    if not missing and not unknown:
        return
    allowed = (
        ", ".join(_describe(signature, name) for name in wanted) or "no names: the spec reads none"
    )
    if unknown:
        got, fix = (
            f"the unknown name {unknown[0]!r}",
            _remedy(signature, unknown[0], missing or wanted),
        )
    else:
        got, fix = f"no {missing[0]!r}", f"pass params={{{missing[0]!r}: ...}}"
    raise ArgumentError(format_error("params", got=got, allowed=allowed, fix=fix))


def _describe(signature: Signature, name: str) -> str:
    if name in signature.scalars:
        return f"{name!r} (a number, {signature.scalars[name]})"
    table = signature.tables[name]
    return f"{name!r} (an array of {table.dtype} with {table.ndim} axes)"


def _remedy(signature: Signature, name: str, candidates: Iterable[str]) -> str:
    if name in signature.constants:
        where = "in the spec, or as an argument of attention"
        return f"set {name} {where}: other values share the compiled code"
    return did_you_mean(name, candidates, f"leave {name!r} away")


def _bind_scalar(where: str, kind: Type, value: object, accum_dtype: str) -> int | float:
    if kind == "int":
        return integer(where, value)
    return _real(where, value, accum_dtype)


def _real(where: str, value: object, accum_dtype: str) -> float:
    allowed = f"a real number that {accum_dtype} holds, or an infinity"
    is_number = hasattr(value, "__float__") and getattr(value, "shape", ()) == ()
    if not is_number or isinstance(value, bool | np.bool_ | np.complexfloating):
        raise ArgumentTypeError(
            format_error(
                where,
                got=f"{value!r} ({type(value).__name__})",
                allowed=allowed,
                fix="pass one number; an array is a Table of the expression, not a Scalar",
            )
        )
    try:
        found = float(cast(SupportsFloat, value))
    except OverflowError as error:  # a Python integer or fraction beyond float64
        raise ArgumentError(
            format_error(
                where,
                got=f"{type(value).__name__} larger than float64 holds",
                allowed=allowed,
                fix="pass a number in that range",
            )
        ) from error
    too_large = math.isfinite(found) and abs(found) > DTYPES[accum_dtype].max
    if math.isnan(found) or too_large:
        raise ArgumentError(
            format_error(where, got=found, allowed=allowed, fix="pass a number in that range")
        )
    return found


def _bind_table(where: str, table: ReadTable, value: object, accum_dtype: str) -> Array:
    view = import_array(where, value, (table.dtype,)).view
    if view.ndim != table.ndim:
        raise ArgumentError(
            format_error(
                where,
                got=f"shape {view.shape}",
                allowed=f"{table.ndim} axes, one for each index that the expression reads it with",
                fix="add axes of size 1 where it does not vary"
                if view.ndim < table.ndim
                else "drop axes",
            )
        )
    check_representable(where, view, accum_dtype)
    return view


def _check_prefixes(where: str, view: Array) -> None:
    """Refuse what `Prefix(number)` refuses: a negative length is a mistake, not an empty prefix."""
    if view.size and (least := int(view.min())) < 0:
        raise ArgumentError(
            format_error(
                where,
                got=f"a prefix of length {least}",
                allowed="lengths >= 0",
                fix="give the number of keys of each batch entry, 0 for none",
            )
        )


def _where(name: str) -> str:
    return f"params[{name!r}]"
