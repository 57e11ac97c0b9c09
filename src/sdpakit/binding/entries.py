"""Where the batch entries of a call lie: padded, one behind the other (RAGGED-1), or in pages.

How long an entry is comes with it, so lengths are bound here too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from sdpakit.arrays import import_array
from sdpakit.binding.lengths import INTEGERS, PerEntry, bind_lengths, check_equal
from sdpakit.binding.operands import Dims, is_given
from sdpakit.errors import ArgumentError, format_error

if TYPE_CHECKING:
    from sdpakit.binding.call import Arguments
    from sdpakit.spec import AttentionSpec

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Entries:
    """The batch entries of a call.

    Attributes
    ----------
    dims : Dims
        Sizes; rows and keys are those of the longest entry where there is no padding.
    q_len, kv_len : PerEntry
        True lengths.
    q_start, kv_start, pages : (B,), (B,), (B, n) int64 or None
        As in `backends.base.Call`.
    """

    dims: Dims
    q_len: PerEntry
    kv_len: PerEntry
    q_start: Array | None = None
    kv_start: Array | None = None
    pages: Array | None = None


def bind_entries(spec: AttentionSpec, q: Array, k: Array, arguments: Arguments) -> Entries:
    """Return where the entries of a call lie and how long they are.

    Parameters
    ----------
    spec : AttentionSpec
        What the kernel computes.
    q, k : ndarray
        Checked views with the axes of a `Call`.
    arguments : Arguments
        What came.

    Returns
    -------
    Entries
        Checked.

    Raises
    ------
    ArgumentTypeError, ArgumentError
        If lengths, offsets or a block table are missing, not asked for, no integers of their shape,
        out of range, or unequal against the promise.
    """
    thd = spec.layout == "thd"
    offsets = "layout='thd'" + (" without paged=True" if thd and spec.paged else "")
    is_given("cu_q_lens", arguments.cu_q_lens, wanted=thd, spec_says="layout='thd'")
    is_given("cu_kv_lens", arguments.cu_kv_lens, wanted=thd and not spec.paged, spec_says=offsets)
    is_given("block_table", arguments.block_table, wanted=spec.paged, spec_says="paged=True")
    q_start: Array | None = None
    q_len: PerEntry | None = None
    if thd:
        q_start, q_len = _offsets("cu_q_lens", arguments.cu_q_lens, q.shape[2], None)
    batch = q.shape[0] if q_start is None else len(q_start)
    table = _table(arguments.block_table, batch, k) if spec.paged else None
    kv_start: Array | None = None
    kv_len: PerEntry | None = None
    kv_rows = k.shape[2] * (1 if table is None else table.shape[1])
    if thd and not spec.paged:
        kv_start, kv_len = _offsets("cu_kv_lens", arguments.cu_kv_lens, k.shape[2], batch)
    padded = Dims(batch, q.shape[1], q.shape[2], kv_rows)
    given_q, given_kv = bind_lengths(spec, padded, arguments.q_lens, arguments.kv_lens)
    q_len, kv_len = q_len or given_q, kv_len or given_kv
    longest = Dims(
        batch,
        q.shape[1],
        q_len.most if thd else q.shape[2],
        kv_len.most if spec.packed else kv_rows,
    )
    if spec.equal_lens:
        check_equal(longest, q_len, kv_len)
    pages = None if table is None else _pages(table, kv_len, k.shape)
    return Entries(longest, q_len, kv_len, q_start, kv_start, pages)


def _offsets(where: str, value: object, tokens: int, batch: int | None) -> tuple[Array, PerEntry]:
    """Return where each entry starts, and its length (RAGGED-1); no `batch` yet: any number."""
    view = import_array(where, value, INTEGERS).view
    if view.ndim != 1 or len(view) == 0 or batch not in (None, len(view) - 1):
        count = "batch + 1" if batch is None else f"batch + 1 = {batch + 1}"
        _refuse_offsets(where, f"shape {view.shape}", f"shape ({count},)")
    if int(view[0]) != 0:
        _refuse_offsets(where, f"{where}[0] = {view[0]}", "offsets that begin at 0")
    if int(view.min()) < 0 or int(view.max()) > tokens:
        at = int(np.flatnonzero((view < 0) | (view > tokens))[0])
        allowed = f"offsets from 0 to {tokens}, the number of tokens in the array"
        _refuse_offsets(where, f"{where}[{at}] = {view[at]}", allowed)
    ends = view.astype(np.int64)
    lengths = np.diff(ends)
    if lengths.min(initial=0) < 0:
        at = int(np.flatnonzero(lengths < 0)[0]) + 1
        got = f"{where}[{at}] = {ends[at]} behind {ends[at - 1]}"
        _refuse_offsets(where, got, "offsets that do not descend")
    return np.ascontiguousarray(ends[:-1]), PerEntry.of(lengths)


def _refuse_offsets(where: str, got: str, allowed: str) -> NoReturn:
    raise ArgumentError(
        format_error(
            where,
            got=got,
            allowed=f"{allowed} (RAGGED-1)",
            fix="entry b owns the tokens from offset b to offset b + 1: give the sums of the "
            "lengths, 0 first, as numpy.concatenate([[0], numpy.cumsum(lengths)])",
        )
    )


def _table(value: object, batch: int, k: Array) -> Array:
    view = import_array("block_table", value, INTEGERS).view
    if view.ndim != 2 or len(view) != batch:
        raise ArgumentError(
            format_error(
                "block_table",
                got=f"shape {view.shape}",
                allowed=f"shape (batch, max_pages) with batch = {batch} (PAGED-1)",
                fix="give for each batch entry the numbers of its pages, in order",
            )
        )
    if k.shape[2] == 0:
        raise ArgumentError(
            format_error(
                "k",
                got="pages of 0 keys",
                allowed="a page_size of at least 1 (PAGED-1)",
                fix="k is (num_pages, page_size, kv_heads, head_dim): check the order of its axes",
            )
        )
    return view


def _pages(table: Array, kv_len: PerEntry, shape: tuple[int, ...]) -> Array:
    """Return the part of a block table that is read, every entry that is needed in range."""
    count, _, size, _ = shape
    needed = -(-kv_len.values // size)
    used = table[:, : int(needed.max(initial=0))]
    read = np.arange(used.shape[1]) < needed[:, None]
    wrong = read & ((used < 0) | (used >= count))
    if wrong.any():
        b, page = (int(x) for x in np.argwhere(wrong)[0])
        raise ArgumentError(
            format_error(
                "block_table",
                got=f"block_table[{b}, {page}] = {used[b, page]}, which holds keys of entry {b}",
                allowed=f"numbers of pages from 0 to {count - 1} for the first "
                f"{needed[b]} pages: kv_lens[{b}] = {kv_len.values[b]} (PAGED-1)",
                fix="give the page of every key below the length; entries behind are not read",
            )
        )
    return np.ascontiguousarray(np.where(read, used, 0), dtype=np.int64)
