"""Per-entry integers of a call: true lengths (MASK-4) and the position of row 0 (MASK-2)."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from numbers import Number
from typing import TYPE_CHECKING, Any, SupportsIndex, cast

import numpy as np

from sdpakit.arrays import import_array
from sdpakit.binding.operands import Dims, is_given
from sdpakit.dtypes import DTYPES
from sdpakit.errors import ArgumentError, ArgumentTypeError, format_error

if TYPE_CHECKING:
    from sdpakit.binding.signature import Signature
    from sdpakit.spec import AttentionSpec

Array = np.ndarray[Any, Any]

INTEGERS: tuple[str, ...] = tuple(name for name, dtype in DTYPES.items() if dtype.kind == "int")
_INT64 = np.iinfo(np.int64)


@dataclass(frozen=True, slots=True)
class PerEntry:
    """One integer for each batch entry: int64 values (B,) and their bounds, (0, 0) if B = 0."""

    values: Array
    least: int
    most: int

    @classmethod
    def same(cls, batch: int, value: int) -> PerEntry:
        """Return `value` for every batch entry."""
        return cls(np.full(batch, value, np.int64), value, value)

    @classmethod
    def of(cls, view: Array) -> PerEntry:
        """Return the integers of an array of any integer dtype; the caller checks the bounds."""
        if view.size == 0:
            return cls(np.zeros(0, np.int64), 0, 0)
        return cls(view.astype(np.int64), int(view.min()), int(view.max()))


def bind_lengths(
    spec: AttentionSpec, dims: Dims, q_lens: object, kv_lens: object
) -> tuple[PerEntry, PerEntry]:
    """Return q_len and kv_len of padded entries, whose arrays have these sizes.

    Raises
    ------
    ArgumentTypeError, ArgumentError
        If lengths are missing, not asked for, no integers of shape (B,), or out of range.
    """
    if is_given("q_lens", q_lens, wanted=spec.q_lens, spec_says="q_lens=True"):
        q_len = _lengths("q_lens", q_lens, dims.batch, dims.q_rows)
    else:
        q_len = PerEntry.same(dims.batch, dims.q_rows)
    if is_given("kv_lens", kv_lens, wanted=spec.kv_lens, spec_says="kv_lens=True"):
        kv_len = _lengths("kv_lens", kv_lens, dims.batch, dims.kv_rows)
    else:
        kv_len = PerEntry.same(dims.batch, dims.kv_rows)
    return q_len, kv_len


def bind_offset(signature: Signature, batch: int, q_offset: object) -> PerEntry:
    """Return the position of row 0 of each batch entry.

    Raises
    ------
    ArgumentTypeError, ArgumentError
        If it is missing, not asked for, or neither an integer nor (B,) integers.
    """
    says = "an alignment 'offset', or an expression of q_offset"
    if not is_given("q_offset", q_offset, wanted=signature.takes_offset, spec_says=says):
        return PerEntry.same(batch, 0)
    if is_single(q_offset):
        return PerEntry.same(batch, integer("q_offset", q_offset))
    found = PerEntry.of(_per_entry("q_offset", q_offset, batch))
    if found.most > _INT64.max:
        _refuse_integer("q_offset", found.most)
    return found


def is_single(value: object) -> bool:
    """Return whether a value is one number, 0-d arrays included, and no array of numbers."""
    return isinstance(value, Number) or (
        hasattr(value, "__index__") and getattr(value, "shape", ()) == ()
    )


def integer(where: str, value: object) -> int:
    """Return a Python integer that int64 holds; bool is none.

    Raises
    ------
    ArgumentTypeError, ArgumentError
        If the value is no integer, or larger than int64.
    """
    if isinstance(value, bool | np.bool_) or not hasattr(value, "__index__"):
        raise ArgumentTypeError(
            format_error(
                where,
                got=f"{value!r} ({type(value).__name__})",
                allowed="an integer",
                fix="pass int(value) if that is what you mean",
            )
        )
    try:
        found = operator.index(cast(SupportsIndex, value))
    except TypeError as error:  # an array or tensor that has __index__ and is no integer
        raise ArgumentTypeError(
            format_error(where, got=repr(value), allowed="an integer", fix="pass an int")
        ) from error
    if not _INT64.min <= found <= _INT64.max:
        _refuse_integer(where, found)
    return found


def _per_entry(where: str, value: object, batch: int) -> Array:
    view = import_array(where, value, INTEGERS).view
    if view.shape != (batch,):
        raise ArgumentError(
            format_error(
                where,
                got=f"shape {view.shape}",
                allowed=f"shape (batch,) = ({batch},)",
                fix="give one integer for each batch entry",
            )
        )
    return view


def _lengths(where: str, value: object, batch: int, longest: int) -> PerEntry:
    view = _per_entry(where, value, batch)
    found = PerEntry.of(view)
    if found.least < 0 or found.most > longest:
        entry = int(np.flatnonzero((view < 0) | (view > longest))[0])
        raise ArgumentError(
            format_error(
                where,
                got=f"{where}[{entry}] = {view[entry]}",
                allowed=f"0 to {longest}, the length of the array or of the pages of an entry "
                "(MASK-4)",
                fix="give true lengths, not offsets or padded ones",
            )
        )
    return found


def check_equal(dims: Dims, q_len: PerEntry, kv_len: PerEntry) -> None:
    """Raise `ArgumentError` if some entry has not as many rows as keys, as was promised."""
    unequal = np.flatnonzero(q_len.values != kv_len.values)
    if dims.q_rows == dims.kv_rows and not unequal.size:
        return
    got = f"q_len = {dims.q_rows}, kv_len = {dims.kv_rows}"
    if dims.q_rows == dims.kv_rows:
        entry = int(unequal[0])
        got = f"q_lens[{entry}] = {q_len.values[entry]}, kv_lens[{entry}] = {kv_len.values[entry]}"
    raise ArgumentError(
        format_error(
            "q, k",
            got=got,
            allowed="as many rows as keys in every batch entry, as equal_lens=True promises",
            fix="compile a spec without equal_lens that names the alignment of its masks",
        )
    )


def _refuse_integer(where: str, value: int) -> None:
    raise ArgumentError(
        format_error(
            where, got=value, allowed="integers that int64 holds", fix="use smaller numbers"
        )
    )
