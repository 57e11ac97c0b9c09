"""Operands of a random case as data, so that a failing case can be printed and pasted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sdpakit.conformance.inputs import guarded, with_strides

if TYPE_CHECKING:
    from sdpakit.conformance.inputs import Array, Draw


@dataclass(frozen=True, slots=True)
class Hostile:
    """Values that hurt, put at random places of one operand.

    Attributes
    ----------
    operand : str
        "q", "k", "v", "bias", "sinks" or "dout".
    value : float
        What is written; a dtype that cannot hold it makes it an infinity.
    count : int
        How many elements, or rows of the last axis.
    whole_rows : bool
        Whether rows are filled, not elements.
    """

    operand: str
    value: float
    count: int = 1
    whole_rows: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Operands:
    """A recipe: which operands a call has, and what is in them.

    Attributes
    ----------
    spread : float
        Standard deviation of q and k.
    spread_v : float
        That of v.
    bias : str or None
        Its dtype, None for none.
    ones : tuple of bool
        Axes (B, Hq, Lq, Lk) along which bias and mask have size 1.
    dense, sinks, q_lens, kv_lens, q_offset : bool
        Whether the call has them; lengths from 0 to the full ones, offsets from -50 to 150.
    thd : bool
        Whether entries lie end to end, as long as random lengths say, with a token of NaN behind
        the last one (RAGGED-1, RAGGED-2).
    page_size : int
        Keys of a page, in an order of its own, NaN in all other places (PAGED-1); 0: no pages.
    tables : tuple of str
        Which tables of `TABLES` the spec reads.
    order : str
        Strides of q, k and v, a name that `with_strides` knows; "" for C order.
    hostile : tuple of Hostile
        Written last.
    """

    spread: float = 1.0
    spread_v: float = 1.0
    bias: str | None = None
    ones: tuple[bool, bool, bool, bool] = (False, False, False, False)
    dense: bool = False
    sinks: bool = False
    q_lens: bool = False
    kv_lens: bool = False
    q_offset: bool = False
    thd: bool = False
    page_size: int = 0
    tables: tuple[str, ...] = ()
    order: str = ""
    hostile: tuple[Hostile, ...] = ()

    def __call__(self, draw: Draw) -> dict[str, Any]:
        """Return the operands; see `Case.recipe`."""
        shape = draw.shape
        dims = [1 if one else n for one, n in zip(self.ones, shape.pairs, strict=True)]
        found: dict[str, Any] = {
            "q": draw.q(self.spread),
            "k": draw.k(self.spread),
            "v": draw.v(self.spread_v),
        }
        if self.bias is not None:
            found["bias"] = draw.normal(*dims, dtype=self.bias)
        if self.sinks:
            found["sinks"] = draw.normal(shape.q_heads, dtype="float32")
        if self.dense:
            found["mask"] = draw.bools(*dims)
        for name, given, length in (
            ("q_lens", self.q_lens or self.thd, shape.q_len),
            ("kv_lens", self.kv_lens or self.thd or self.page_size > 0, shape.kv_len),
        ):
            if given:
                found[name] = draw.ints(0, length + 1, shape.batch)
        if self.q_offset:
            found["q_offset"] = draw.ints(-50, 150, shape.batch)
        if self.tables:
            made = _tables(draw)
            found["params"] = {name: made[name] for name in self.tables}
        return self._finished(draw, found)

    def _finished(self, draw: Draw, found: dict[str, Any]) -> dict[str, Any]:
        for hostile in self.hostile:
            if hostile.operand == "dout":
                found.setdefault("dout", draw.dout())
            if hostile.operand in found:
                found[hostile.operand] = _planted(found[hostile.operand], hostile, draw)
        if self.page_size:
            found |= _in_pages(draw, self.page_size, found)
        if self.thd:
            found = _end_to_end(found)
        if self.order:
            for name in "qkv":
                found[name] = with_strides(found[name], order=self.order)
        return found


def _planted(array: Array, hostile: Hostile, draw: Draw) -> Array:
    """Return a guarded copy that holds the hostile values."""
    changed = np.array(array)
    if not changed.size:
        return array
    rows = changed.reshape(-1, changed.shape[-1]) if hostile.whole_rows else changed.reshape(-1)
    places = draw.rng.integers(0, len(rows), hostile.count)
    with np.errstate(over="ignore"):
        rows[places] = np.asarray(hostile.value).astype(changed.dtype)
    return guarded(changed)


def _end_to_end(found: dict[str, Any]) -> dict[str, Any]:
    """Return operands of the layout thd: q, and k and v that are not in pages, by their lengths."""
    parts = {"q": found.pop("q_lens")}
    if "block_table" not in found:
        parts |= dict.fromkeys("kv", found.pop("kv_lens"))
    for name, lengths in parts.items():
        x = found[name]
        past = np.full((x.shape[1], 1, x.shape[3]), np.nan, x.dtype)
        entries = [x[b, :, :length] for b, length in enumerate(lengths)]
        found[name] = guarded(np.concatenate([*entries, past], axis=1)[None])
        ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        found["cu_q_lens" if name == "q" else "cu_kv_lens"] = guarded(ends)
    return found


def _in_pages(draw: Draw, size: int, found: Mapping[str, Any]) -> dict[str, Any]:
    """Return k and v in pages, and a block table with nonsense where nobody may look."""
    lengths = found["kv_lens"]
    counts = -(-lengths // size)
    order = draw.rng.permutation(int(counts.sum()) + 1)
    starts = np.cumsum(counts) - counts
    table = np.full((len(lengths), int(counts.max(initial=0)) + 1), -1, np.int32)
    pages = {
        name: np.full((len(order), size, *found[name].shape[1::2]), np.nan, found[name].dtype)
        for name in "kv"
    }
    for b, length in enumerate(lengths):
        table[b, : counts[b]] = order[starts[b] : starts[b] + counts[b]]
        j = np.arange(length)
        for name, x in pages.items():
            x[table[b, j // size], j % size] = found[name][b, :, :length].swapaxes(0, 1)
    return {**{name: guarded(x) for name, x in pages.items()}, "block_table": guarded(table)}


def _tables(draw: Draw) -> Mapping[str, Array]:
    """Return every table that a random spec may read; see `strategies`."""
    shape = draw.shape
    return {
        "slopes": draw.normal(shape.q_heads, dtype="float32"),
        "prefix": draw.ints(0, 60, shape.batch, dtype="int64"),
        "rows": np.sort(draw.ints(0, 4, shape.batch, shape.q_len), axis=1),
        "keys": draw.ints(0, 4, shape.batch, shape.kv_len),
    }
