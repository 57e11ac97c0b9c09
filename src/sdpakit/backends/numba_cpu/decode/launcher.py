"""Call -> descriptor of the decode driver, states of the chunks, threads and scratch."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sdpakit.backends.numba_cpu import abi, context, workers
from sdpakit.backends.numba_cpu.codegen import compile_kernel
from sdpakit.backends.numba_cpu.context import Array, ContextLayout, Ints, address, float_bits
from sdpakit.backends.numba_cpu.costs.expectation import expect_decode
from sdpakit.backends.numba_cpu.decode import driver
from sdpakit.backends.numba_cpu.decode.layout import MANY, TILE_KEYS, DecodeLayout
from sdpakit.backends.numba_cpu.entries import EntryFields, fill_entries
from sdpakit.backends.numba_cpu.forks import LLVM_LOCK, computed_once
from sdpakit.backends.numba_cpu.lower import DECODE, DECODE_PAGES, PREFILL
from sdpakit.backends.numba_cpu.prepared import Prepared
from sdpakit.backends.numba_cpu.workers import Worker

if TYPE_CHECKING:
    from sdpakit.backends.base import Call
    from sdpakit.backends.numba_cpu.codegen import KernelModule
    from sdpakit.backends.numba_cpu.lower import Plan

KEPT_DEALS = 64  # shapes whose descriptor is remembered
SERIAL_BYTES = 1024 * 1024  # of keys and values: about 0.1 ms, ten times what waking a thread costs

_READERS = {
    "copy_rows": driver.COPY_ROWS,
    "products_1": driver.PRODUCTS_ONE,
    f"products_{MANY}": driver.PRODUCTS_MANY,
    "means_1": driver.MEANS_ONE,
    f"means_{MANY}": driver.MEANS_MANY,
    "means_present": driver.MEANS_PRESENT,
}
_FUNCTIONS = {
    "pack_row": driver.PACK_ROW,
    "soften": driver.SOFTEN,
    "begin_row": driver.BEGIN_ROW,
    "merge_row": driver.MERGE_ROW,
    "finish_row": driver.FINISH_ROW,
    "put_row": driver.PUT_ROW,
}
_ARRAYS = {
    "q": driver.Q,
    "k": driver.K,
    "v": driver.V,
    "out": driver.OUT,
    "lse": driver.LSE,
    "max_logit": driver.MAX_LOGIT,
    "entropy": driver.ENTROPY,
    "sum_p2": driver.SUM_P2,
    "m": driver.ROW_M,  # these two are asked for by the backward pass alone
    "l": driver.ROW_L,
}
# Places in a descriptor that hold addresses within it.
_POINTERS = [
    driver.CONTEXT,
    driver.Q_LEN,
    driver.KV_LEN,
    driver.FINISHED,
    driver.SEEN,
    *(driver.FIELDS + slot for slot in context.BATCH_SLOTS.values()),
]


_ENTRIES = EntryFields(
    driver.Q_START,
    driver.KV_START,
    driver.PAGES,
    tuple(_ARRAYS[name] for name in _ARRAYS if name not in "kv"),
    (driver.K, driver.V),
)


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a call; rows and keys of all entries, of the longest in a packed call."""

    batch: int
    kv_heads: int
    group: int
    q_len: int
    kv_len: int

    @classmethod
    def of(cls, call: Call, here: Array) -> Shape:
        """Return the sizes of the entries of a call that are `here`."""
        q_heads, q_len = call.q.shape[1:3]
        kv_heads, kv_len = call.k.shape[1:3]
        if call.packed:
            q_len, kv_len = int(call.q_len[here].max()), int(call.kv_len[here].max())
        return cls(call.batch, kv_heads, q_heads // kv_heads, q_len, kv_len)

    @property
    def rows(self) -> int:
        """Rows that read one kv head."""
        return self.group * self.q_len


@dataclass(frozen=True, slots=True)
class Deal:
    """How a call is dealt out.

    Attributes
    ----------
    threads, items : int
        Threads that take part, and what they share: chunks of the kv heads of all batch entries.
    heads : int
        kv heads of all batch entries.
    scratch_bytes, state_bytes : int
        Scratch of each thread; states of all items.
    template : (driver.FIELDS,) int64
        Descriptor without what differs between two calls of a shape.
    entries : (B, 3) int64
        Number of the first slot, chunks, and keys of a chunk of each batch entry, of none where
        they are all alike. A slot is a chunk of all kv heads.
    slots : (slots,) int64
        The batch entry of each.
    """

    threads: int
    items: int
    heads: int
    scratch_bytes: int
    state_bytes: int
    template: Ints
    entries: Ints
    slots: Ints


class DecodeCode:
    """The decode kernel of a spec; compiled, as its driver is, when a call first needs it.

    Parameters
    ----------
    plan : Plan
        What the code is made for.
    kernel : callable
        Returns the code of a kernel by its place in the stages, and keeps it. That of the prefill
        kernel has the key ranges and the sink that both ask.
    layout : ContextLayout
        Where the run-time values of a call go.
    reads_head : bool
        Whether logit or mask differ between heads.
    """

    def __init__(
        self,
        plan: Plan,
        kernel: Callable[[int], KernelModule],
        layout: ContextLayout,
        *,
        reads_head: bool,
    ) -> None:
        self.deal = functools.lru_cache(maxsize=KEPT_DEALS)(self._deal)
        self.plan, self.context = plan, layout
        self.layout = DecodeLayout(plan.layout)
        self._kernel, self._reads_head = kernel, reads_head
        self._kept_driver: KernelModule | None = None

    @computed_once
    def _worker(self) -> Worker:
        with LLVM_LOCK:
            return workers.worker()

    def _driver(self) -> KernelModule:
        """Return the code of the driver: the same for all threads, as `Code.kernel` does."""
        with LLVM_LOCK:
            if self._kept_driver is None:
                self._kept_driver = compile_kernel(driver.WALK, self.layout.panel.isa)
            return self._kept_driver

    @computed_once
    def _readers_of_pages(self) -> Mapping[int, int]:
        """Fields of the descriptor that differ where keys lie in pages."""
        code = self._kernel(DECODE_PAGES)
        readers = {field: code.address(f"{name}_paged") for name, field in _READERS.items()}
        return readers | {driver.FILL_ROWS: code.address("fill_rows_paged")}

    @computed_once
    def _template(self) -> Ints:
        """Descriptor without what differs between two calls."""
        layout, program = self.layout, self.plan.program
        decode, prefill = self._kernel(DECODE), self._kernel(PREFILL)
        d = np.zeros(driver.FIELDS, np.int64)
        for field, name in ((workers.RUN_ITEM, "run_item"), (workers.REBIND, "rebind")):
            d[field] = self._driver().address(name)
        for name, field in (_READERS | _FUNCTIONS).items():
            d[field] = decode.address(name)
        if self.plan.has_mask:
            d[driver.KEY_RANGES] = prefill.address("key_ranges")
            d[driver.TILE_CLASS] = prefill.address("tile_class")
        if program.sink is not None:
            d[driver.SINK] = prefill.address("sink")
        panel, at = layout.panel, {name: n for n, name in enumerate(layout.stat_rows)}
        for field, value in (
            (driver.TILE_KEYS, TILE_KEYS),
            (driver.KEY_STEP, layout.lanes),
            (driver.MANY, MANY),
            (driver.ROWS_AHEAD, layout.rows_ahead),
            (driver.ELEMENT_BYTES, layout.esz),
            (driver.ASKS_HEADS, int(self._reads_head)),
            (driver.Q_FACTOR, float_bits(1.0)),
            (driver.MAX_FACTOR, float_bits(abi.M_UNIT / abi.LOG2_E)),
            (driver.EMPTY_FACTOR, float_bits(math.nan if program.empty_row == "nan" else 0.0)),
            (driver.ITEM_BYTES, panel.itemsize),
            (driver.K_WIDTH, panel.head_dim),
            (driver.V_WIDTH, panel.v_head_dim),
            (driver.Q_ROW_BYTES, layout.q_row_bytes),
            (driver.P_ROW_BYTES, layout.p_row_bytes),
            (driver.STATE_BYTES, layout.state_bytes),
            (driver.L_AT, at["l"] * layout.vector_bytes),
            (driver.TMAX_AT, at["tmax"] * layout.vector_bytes),
            (driver.E1_AT, at["e1"] * layout.vector_bytes),
            (driver.P2_AT, at["p2"] * layout.vector_bytes),
        ):
            d[field] = value
        return d

    def _deal(self, shape: Shape, threads: int) -> Deal:
        """Deal out padded calls, whose entries are all alike."""
        chunk_keys = int(self.layout.chunk_keys(shape.kv_len))
        chunks = -(-shape.kv_len // chunk_keys)
        keys, slots = shape.batch * shape.kv_len, shape.batch * chunks
        deal = self._of_slots(shape, threads, keys, np.empty((0, 3), np.int64), slots)
        deal.template[driver.CHUNKS], deal.template[driver.CHUNK_KEYS] = chunks, chunk_keys
        return deal

    def _deal_packed(self, call: Call, here: Array) -> Deal:
        """Deal out a packed call.

        An entry is cut by its own length alone, so that its bits do not depend on the others.
        """
        kv_len = np.where(here, call.kv_len, 0)
        chunk_keys = self.layout.chunk_keys(kv_len)
        chunks = -(-kv_len // chunk_keys)
        entries = np.stack((np.cumsum(chunks) - chunks, chunks, chunk_keys), axis=1)
        keys, slots = int(kv_len.sum()), int(chunks.sum())
        return self._of_slots(Shape.of(call, here), call.threads, keys, entries, slots)

    def _of_slots(self, shape: Shape, threads: int, keys: int, entries: Ints, slots: int) -> Deal:
        """Return the deal of so many keys and slots, of all entries together."""
        layout = self.layout
        if shape.kv_heads * keys * (layout.k_row_bytes + layout.v_row_bytes) < SERIAL_BYTES:
            threads = 1
        heads, items = shape.batch * shape.kv_heads, slots * shape.kv_heads
        state_rows = shape.rows if shape.rows == 1 else -(-shape.rows // MANY) * MANY
        places, scratch_bytes = _scratch(layout, state_rows)
        d = self._template.copy()
        for field, value in (
            (workers.ITEMS, items),
            (driver.KV_HEADS, shape.kv_heads),
            (driver.GROUP, shape.group),
            (driver.STATE_ROWS, state_rows),
            (driver.STATES_AT, scratch_bytes),
            (driver.HEADS, heads),
            *places.items(),
        ):
            d[field] = value
        states = items * state_rows * layout.state_bytes
        of_slots = np.repeat(np.arange(len(entries)), entries[:, 1])
        return Deal(min(threads, items), items, heads, scratch_bytes, states, d, entries, of_slots)

    def _deal_of(self, call: Call, here: Array) -> Deal:
        """Return the deal of a call; those of padded ones are remembered."""
        if call.packed:
            return self._deal_packed(call, here)
        return self.deal(Shape.of(call, here), call.threads)

    def prepare(self, call: Call, here: Array, scale: tuple[float, float] | None) -> Prepared:
        """Return a call ready to run.

        Parameters
        ----------
        call : Call
            With rows and keys.
        here : (B,) bool
            The entries to do: those that `choice.decoded` names.
        scale : (c, factor of q) or None
            Where logits are plain, else None.
        """
        deal = self._deal_of(call, here)
        slots = context.size(self.context, len(call.q_len))
        sizes = (driver.FIELDS, slots, deal.heads, deal.items, deal.entries.size, len(deal.slots))
        _, values_at, finished_at, seen_at, entries_at, slots_at, end = np.cumsum((0, *sizes))
        d = np.zeros(end, np.int64)
        d[: driver.FIELDS] = deal.template
        where = address(d)
        for name, array in (("q", call.q), ("k", call.k), ("v", call.v), *call.outputs.items()):
            field = _ARRAYS[name]
            d[field : field + 1 + array.ndim] = (address(array), *array.strides)
        c = 1.0
        if scale is not None:
            c, factor = scale
            d[driver.Q_FACTOR] = float_bits(factor)
            d[driver.MAX_FACTOR] = float_bits(c / abi.LOG2_E)
        values = d[values_at:finished_at]
        context.fill(values, where + 8 * int(values_at), self.context, call, c)
        if call.packed:
            fill_entries(d, call, _ENTRIES)
            d[entries_at:slots_at], d[slots_at:] = deal.entries.ravel(), deal.slots
            d[driver.ENTRIES], d[driver.SLOTS] = where + 8 * entries_at, where + 8 * slots_at
        if call.pages is not None:
            for field, function in self._readers_of_pages.items():
                d[field] = function
        d[driver.CONTEXT], d[driver.FINISHED] = where + 8 * values_at, where + 8 * finished_at
        d[driver.SEEN] = where + 8 * seen_at
        d[driver.Q_LEN], d[driver.KV_LEN] = values[context.SLOT_Q_LEN], values[context.SLOT_KV_LEN]
        return Prepared(
            self,
            self._worker,
            d,
            where,
            _POINTERS,
            deal.threads,
            deal.items,
            deal.scratch_bytes,
            deal.state_bytes,
            driver.STATES,
        )

    def explain(self, call: Call, here: Array, text: str) -> Mapping[str, Any]:
        """Return facts about the way of the entries that are `here`.

        `text` is LLVM IR of the kernel, without the readers of pages (see `costs.decode`).
        """
        shape, deal = Shape.of(call, here), self._deal_of(call, here)
        most = min(MANY, shape.rows)
        chunk_keys = int(self.layout.chunk_keys(shape.kv_len))
        longest = " at most" if call.packed else ""
        facts = {
            "path": "decode",
            "register_tile": f"{self.layout.accumulators // most} keys x {most} rows",
            "block_q": shape.q_len,
            "block_kv": TILE_KEYS,
            "chunks": -(-shape.kv_len // chunk_keys),
            "threads": deal.threads,
            "items": deal.items,
            "item": f"{chunk_keys} keys x {shape.rows} rows{longest}",
            "scratch_bytes_per_thread": deal.scratch_bytes,
        }
        if not here.all():  # what the other kernel does is not foreseen beside it
            return facts
        expected = expect_decode(self.plan, text, call, deal.items, shape.rows)
        return facts | {"expected": expected.facts()}


def _scratch(layout: DecodeLayout, rows: int) -> tuple[dict[int, int], int]:
    """Return what lies where in the scratch of a thread, by field, and its size."""
    parts = {
        driver.Q_AT: rows * layout.q_row_bytes,
        driver.P_AT: MANY * layout.p_row_bytes,
        driver.K_ROWS_AT: layout.table_bytes,
        driver.V_ROWS_AT: layout.table_bytes,
        driver.K_AT: TILE_KEYS * layout.k_row_bytes,
        driver.V_AT: TILE_KEYS * layout.v_row_bytes,
        driver.RANGES_AT: abi.RANGE_BYTES,
    }
    found: dict[int, int] = {}
    end = 0
    for field, size in parts.items():
        found[field] = end
        end += -(-size // 64) * 64
    return found, end
