"""Where the batch entries of a packed call lie, as fields of a descriptor (RAGGED-1, PAGED-1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sdpakit.backends.numba_cpu.context import Ints, address

if TYPE_CHECKING:
    from sdpakit.backends.base import Call


@dataclass(frozen=True, slots=True)
class EntryFields:
    """Fields of a driver.

    Attributes
    ----------
    q_start, kv_start, pages : int
        Addresses; behind `pages` come the number of pages of an entry and the size of a page.
    rows : tuple of int
        Addresses of the arrays that have rows of queries, q among them; their strides follow.
    keys : tuple of int
        Those of k and v.
    """

    q_start: int
    kv_start: int
    pages: int
    rows: tuple[int, ...]
    keys: tuple[int, ...]


def fill_entries(d: Ints, call: Call, fields: EntryFields) -> None:
    """Say where the entries of a call lie, whose arrays are in the descriptor already.

    Parameters
    ----------
    d : ndarray of int64
        The descriptor.
    call : Call
        A packed one, which outlives it.
    fields : EntryFields
        Of its driver.
    """
    for field, starts in ((fields.q_start, call.q_start), (fields.kv_start, call.kv_start)):
        if starts is not None:
            d[field] = address(starts)
    if call.q_start is not None:
        for field in fields.rows:
            d[field + 1] = 0  # one batch entry in the arrays, however many in the call
    if call.kv_start is not None:
        for field in fields.keys:
            d[field + 1] = 0
    if call.pages is not None:
        at = fields.pages
        d[at : at + 3] = address(call.pages), call.pages.shape[1], call.k.shape[2]
