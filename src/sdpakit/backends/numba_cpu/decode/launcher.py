"""Call -> descriptor of the decode driver, states of the chunks, threads and scratch."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sdpakit.backends.numba_cpu import abi, context
from sdpakit.backends.numba_cpu.context import ContextLayout, Ints, address, float_bits
from sdpakit.backends.numba_cpu.costs.expectation import expect_decode
from sdpakit.backends.numba_cpu.decode import driver
from sdpakit.backends.numba_cpu.decode.layout import MANY, TILE_KEYS, DecodeLayout
from sdpakit.backends.numba_cpu.forks import LLVM_LOCK
from sdpakit.backends.numba_cpu.prepared import Prepared

if TYPE_CHECKING:
    from sdpakit.backends.base import Call
    from sdpakit.backends.numba_cpu.codegen import KernelModule
    from sdpakit.backends.numba_cpu.lower import Plan

KEPT_DEALS = 64  # shapes whose descriptor is remembered
SERIAL_BYTES = 1024 * 1024  # of keys and values: about 0.1 ms, ten times what waking a thread costs

_FUNCTIONS = {
    "pack_row": driver.PACK_ROW,
    "copy_rows": driver.COPY_ROWS,
    "products_1": driver.PRODUCTS_ONE,
    f"products_{MANY}": driver.PRODUCTS_MANY,
    "soften": driver.SOFTEN,
    "means_1": driver.MEANS_ONE,
    f"means_{MANY}": driver.MEANS_MANY,
    "means_present": driver.MEANS_PRESENT,
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


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a call."""

    batch: int
    kv_heads: int
    group: int
    q_len: int
    kv_len: int

    @classmethod
    def of(cls, call: Call) -> Shape:
        """Return the sizes of a call."""
        batch, q_heads, q_len, _ = call.q.shape
        kv_heads, kv_len = call.k.shape[1:3]
        return cls(batch, kv_heads, q_heads // kv_heads, q_len, kv_len)

    @property
    def rows(self) -> int:
        """Rows that read one kv head."""
        return self.group * self.q_len


@dataclass(frozen=True, slots=True)
class Deal:
    """How calls of one shape are dealt out.

    Attributes
    ----------
    threads : int
        Threads that take part.
    heads, chunks, chunk_keys : int
        kv heads of all batch entries, chunks of each, keys of a chunk.
    scratch_bytes, state_bytes : int
        Scratch of each thread; states of all items.
    template : (driver.FIELDS,) int64
        Descriptor without what differs between two such calls.
    """

    threads: int
    heads: int
    chunks: int
    chunk_keys: int
    scratch_bytes: int
    state_bytes: int
    template: Ints

    @property
    def items(self) -> int:
        """Work items."""
        return self.heads * self.chunks


class DecodeCode:
    """The decode kernel of one compiled module.

    Parameters
    ----------
    plan : Plan
        What the module was made for.
    module : KernelModule
        Its code.
    layout : ContextLayout
        Where the run-time values of a call go.
    reads_head : bool
        Whether logit or mask differ between heads.
    """

    def __init__(
        self, plan: Plan, module: KernelModule, layout: ContextLayout, *, reads_head: bool
    ) -> None:
        self.deal = functools.lru_cache(maxsize=KEPT_DEALS)(self._deal)
        self.plan, self.context = plan, layout
        self.layout = DecodeLayout(plan.layout)
        with LLVM_LOCK:
            self._worker = driver.worker()
        self._template = self._fields(module, reads_head=reads_head)

    def _fields(self, module: KernelModule, *, reads_head: bool) -> Ints:
        layout, program = self.layout, self.plan.program
        d = np.zeros(driver.FIELDS, np.int64)
        for name, field in _FUNCTIONS.items():
            d[field] = module.address(name)
        if self.plan.has_mask:
            d[driver.KEY_RANGES] = module.address("key_ranges")
            d[driver.TILE_CLASS] = module.address("tile_class")
        if program.sink is not None:
            d[driver.SINK] = module.address("sink")
        panel, at = layout.panel, {name: n for n, name in enumerate(layout.stat_rows)}
        for field, value in (
            (driver.TILE_KEYS, TILE_KEYS),
            (driver.KEY_STEP, layout.lanes),
            (driver.MANY, MANY),
            (driver.ELEMENT_BYTES, layout.esz),
            (driver.ASKS_HEADS, int(reads_head)),
            (driver.Q_FACTOR, float_bits(1.0)),
            (driver.MAX_FACTOR, float_bits(driver.M_UNIT / driver.LOG2_E)),
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
        layout = self.layout
        row_bytes = layout.k_row_bytes + layout.v_row_bytes
        if shape.batch * shape.kv_heads * shape.kv_len * row_bytes < SERIAL_BYTES:
            threads = 1
        chunk_keys = layout.chunk_keys(shape.kv_len)
        chunks = -(-shape.kv_len // chunk_keys)
        heads = shape.batch * shape.kv_heads
        state_rows = shape.rows if shape.rows == 1 else -(-shape.rows // MANY) * MANY
        places, scratch_bytes = _scratch(layout, state_rows)
        d = self._template.copy()
        for field, value in (
            (driver.ITEMS, heads * chunks),
            (driver.KV_HEADS, shape.kv_heads),
            (driver.GROUP, shape.group),
            (driver.CHUNKS, chunks),
            (driver.CHUNK_KEYS, chunk_keys),
            (driver.STATE_ROWS, state_rows),
            (driver.STATES_AT, scratch_bytes),
            (driver.HEADS, heads),
            *places.items(),
        ):
            d[field] = value
        states = heads * chunks * state_rows * layout.state_bytes
        threads = min(threads, heads * chunks)
        return Deal(threads, heads, chunks, chunk_keys, scratch_bytes, states, d)

    def prepare(self, call: Call, scale: tuple[float, float] | None) -> Prepared:
        """Return a call ready to run.

        Parameters
        ----------
        call : Call
            One that `choice.decodes`.
        scale : (c, factor of q) or None
            Where logits are plain, else None.
        """
        deal = self.deal(Shape.of(call), call.threads)
        slots = context.size(self.context, len(call.q_len))
        d = np.zeros(driver.FIELDS + slots + deal.heads + deal.items, np.int64)
        d[: driver.FIELDS] = deal.template
        where = address(d)
        for name, array in (("q", call.q), ("k", call.k), ("v", call.v), *call.outputs.items()):
            field = _ARRAYS[name]
            d[field : field + 1 + array.ndim] = (address(array), *array.strides)
        c = 1.0
        if scale is not None:
            c, factor = scale
            d[driver.Q_FACTOR] = float_bits(factor)
            d[driver.MAX_FACTOR] = float_bits(c / driver.LOG2_E)
        at = where + 8 * driver.FIELDS
        values = d[driver.FIELDS : driver.FIELDS + slots]
        context.fill(values, at, self.context, call, c)
        d[driver.CONTEXT], d[driver.FINISHED] = at, at + 8 * slots
        d[driver.SEEN] = at + 8 * (slots + deal.heads)
        d[driver.Q_LEN], d[driver.KV_LEN] = values[context.SLOT_Q_LEN], values[context.SLOT_KV_LEN]
        return Prepared(
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

    def explain(self, call: Call, text: str) -> Mapping[str, Any]:
        """Return facts about the way of a call; `text` is the LLVM IR of the kernel."""
        shape = Shape.of(call)
        deal = self.deal(shape, call.threads)
        most = min(MANY, shape.rows)
        return {
            "path": "decode",
            "register_tile": f"{self.layout.accumulators // most} keys x {most} rows",
            "block_q": shape.q_len,
            "block_kv": TILE_KEYS,
            "chunks": deal.chunks,
            "threads": deal.threads,
            "items": deal.items,
            "item": f"{deal.chunk_keys} keys x {shape.rows} rows",
            "scratch_bytes_per_thread": deal.scratch_bytes,
            "expected": expect_decode(self.plan, text, call, deal.items, shape.rows).facts(),
        }


def _scratch(layout: DecodeLayout, rows: int) -> tuple[dict[int, int], int]:
    """Return what lies where in the scratch of a thread, by field, and its size."""
    parts = {
        driver.Q_AT: rows * layout.q_row_bytes,
        driver.P_AT: MANY * layout.p_row_bytes,
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
