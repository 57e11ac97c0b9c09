"""Backward call -> descriptor of the driver, sums in memory, threads and scratch."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from sdpakit.arrays.storage import numpy_dtype
from sdpakit.backends.numba_cpu import context, pool, schedule, workers
from sdpakit.backends.numba_cpu.backward import driver
from sdpakit.backends.numba_cpu.backward.lower import BackwardPlan, lower_backward
from sdpakit.backends.numba_cpu.backward.packers import Stored, packer_symbols
from sdpakit.backends.numba_cpu.backward.rows import Rows, prepare_rows
from sdpakit.backends.numba_cpu.backward.tables import fill_sums, owned
from sdpakit.backends.numba_cpu.codegen import compile_kernel
from sdpakit.backends.numba_cpu.context import ContextLayout, Ints, address, float_bits
from sdpakit.backends.numba_cpu.forks import LLVM_LOCK
from sdpakit.backends.numba_cpu.launcher import CpuLauncher, code_of_width, split_scale
from sdpakit.backends.numba_cpu.lower import Stages

if TYPE_CHECKING:
    from sdpakit.backends.base import Artifact, BackwardCall, Call

Array = np.ndarray[Any, Any]

# Sums of dK and dV in at most so much memory are kept for later calls: new pages cost more than
# what is written to them.
KEPT_BYTES = 32 * 1024 * 1024

_FUNCTIONS = {
    "step": driver.STEP,
    "outer": driver.OUTER,
    "rows_k": driver.ROWS_K,
    "rows_v": driver.ROWS_V,
    "columns_k": driver.COLUMNS_K,
    "lanes_q": driver.LANES_Q,
    "lanes_do": driver.LANES_DO,
    "lanes_out": driver.LANES_OUT,
    "factors_q": driver.FACTORS_Q,
    "factors_do": driver.FACTORS_DO,
    "delta": driver.DELTA,
    "sums_k": driver.SUMS_K,
    "sums_v": driver.SUMS_V,
    "unpack_o": driver.UNPACK,
    "clear": driver.CLEAR,
}


def _yield_address() -> int:
    """Return the address of a function that offers the core to other threads, 0 if unknown."""
    if os.name != "posix":
        return 0
    found = getattr(ctypes.CDLL(None), "sched_yield", None)
    return 0 if found is None else ctypes.cast(found, ctypes.c_void_p).value or 0


class _Code:
    """One compiled module and what of the descriptor follows from it."""

    def __init__(self, artifact: Artifact) -> None:
        self.plan: BackwardPlan = artifact.meta["plan"]
        self.layout = self.plan.layout
        self.module = cast(Stages, artifact.stages).compiled()
        self.driver = compile_kernel(driver.WALK, self.plan.plan.layout.isa)
        self.context = ContextLayout.of(self.plan.plan.program)
        self.sums_slots = max(
            (t.slot + 1 + len(t.load.indices) for t in self.plan.tables), default=0
        )
        self.template = self._template()
        self.tables_step = self.module.address("tables") if self.plan.tables else 0

    def _template(self) -> Ints:
        layout, keys = self.layout, self.layout.keys
        d = np.zeros(driver.FIELDS, np.int64)
        d[workers.RUN_ITEM] = self.driver.address("run_item")
        symbols = packer_symbols(self.layout, Stored.of(self.plan.plan.program))
        for name, field in _FUNCTIONS.items():
            d[field] = self.module.address(symbols.get(name, name))
        if self.plan.plan.has_mask:
            d[driver.KEY_RANGES] = self.module.address("key_ranges")
            d[driver.TILE_CLASS] = self.module.address("tile_class")
        parts, scratch = layout.panel_parts, layout.scratch
        for field, value in (
            (driver.PANELS, layout.panels),
            (driver.RUN_PANELS, layout.run_panels),
            (driver.WIDTH, keys.width),
            (driver.ROW_STEP, keys.rows),
            (driver.BLOCK_KV, keys.block_kv),
            (driver.ELEMENT_BYTES, keys.esz),
            (driver.ROW_BYTES, keys.row_bytes),
            (driver.DK_ROW, layout.sum_row_bytes(keys.head_dim)),
            (driver.DK_BLOCKS, layout.blocks(keys.head_dim)),
            (driver.DV_ROW, layout.sum_row_bytes(keys.v_head_dim)),
            (driver.DV_BLOCKS, layout.blocks(keys.v_head_dim)),
            (driver.TILE_AT, scratch["tile"]),
            (driver.STAGED_AT, scratch["staged"]),
            (driver.LANES_AT, scratch["lanes"]),
            (driver.FACTORS_AT, scratch["factors"]),
            (driver.PANELS_AT, scratch["panels"]),
            (driver.PAIRS_AT, scratch["pairs"]),
            (driver.RECORDS_AT, scratch["ranges"]),
            (driver.PANEL_BYTES, layout.panel_bytes),
            (driver.PAIRS_BYTES, layout.pairs_bytes),
            (driver.SLOPES_AT, keys.tile_bytes),
            (driver.V_ROWS_AT, layout.v_rows_at),
            (driver.K_COLUMNS_AT, layout.k_columns_at),
            (driver.DOT_AT, parts["dot"]),
            (driver.DQT_AT, parts["dqt"]),
            (driver.DQT_BYTES, keys.qt_bytes),
            (driver.Q_ROWS_AT, parts["q_rows"]),
            (driver.DO_ROWS_AT, parts["do_rows"]),
            (driver.BASE_AT, parts["base"]),
            (driver.DELTA_AT, parts["delta"]),
            (driver.YIELD, _yield_address()),
        ):
            d[field] = value
        return d


class CpuBackward:
    """Runs the gradients of one spec (`sdpakit.backends.base.BackwardLauncher`).

    Parameters
    ----------
    artifact : Artifact
        Of `lower_backward`.
    """

    def __init__(self, artifact: Artifact) -> None:
        self._artifact = artifact
        with LLVM_LOCK:
            self._worker = workers.worker()
        self._forward = CpuLauncher(artifact.meta["forward"])
        self._codes = {artifact.meta["plan"].plan.int_bits: _Code(artifact)}

    def forward(self, call: Call) -> Mapping[str, Array]:
        """Run the forward pass; return out in accum_dtype, and m and l of each row."""
        shape, dtype = call.q.shape[:3], numpy_dtype(self._artifact.program.accum_dtype)
        saved = {
            "out": np.empty((*shape, call.v.shape[3]), dtype),
            "m": np.empty(shape, dtype),
            "l": np.empty(shape, dtype),
        }
        self._forward(replace(call, outputs=saved))
        return saved

    def __call__(self, call: BackwardCall) -> None:
        """Fill the gradients of a call."""
        code = self._code(call.call.int_bits)
        sinks = call.call.tables.get("sinks") if "dsinks" in call.gradients else None
        rows = prepare_rows(call.saved["m"], call.saved["l"], sinks)
        _Run(code, self._worker, call, rows).all()
        if rows.sink_weights is not None:
            _sum_sinks(call, rows.sink_weights)

    def _code(self, int_bits: int) -> _Code:
        program, options = self._artifact.program, self._artifact.meta["options"]
        return code_of_width(
            self._codes, int_bits, lambda: _Code(lower_backward(program, options, int_bits))
        )


class _Run:
    """One call: its descriptor, and the arrays that it points to.

    Parameters
    ----------
    code : _Code
        What runs.
    worker : callable
        See `workers.worker`.
    call : BackwardCall
        The operands.
    rows : Rows
        Numbers of the rows.
    """

    def __init__(self, code: _Code, worker: Any, call: BackwardCall, rows: Rows) -> None:
        self.code, self.worker, self.call, self.rows = code, worker, call, rows
        self.shape = (*call.call.q.shape[:3], *call.call.k.shape[1:3])
        self.values = np.empty(context.size(code.context, len(call.call.q_len)), np.int64)
        self.slots = np.zeros(max(code.sums_slots, 1), np.int64)

    def all(self) -> None:
        """Run the pass over dq, dk and dv, and the one over tables if there are any."""
        d = self._descriptor()
        threads = self._threads()
        size = self._size_sums(d)
        memory = pool.take_scratch(size, 1)[0] if size <= KEPT_BYTES else pool.Buffer(size)
        progress = self._place_sums(d, memory)
        self._work(d, threads)
        del progress
        if size <= KEPT_BYTES:
            pool.give_scratch([memory])
        if self.code.plan.tables:
            # A helper that wakes late must find no items in the descriptor of the first pass.
            self._run_tables(d.copy(), threads)

    def _descriptor(self) -> Ints:
        code, call = self.code, self.call.call
        batch, q_heads, q_len, kv_heads, _ = self.shape
        d = code.template.copy()
        group, width = q_heads // kv_heads, code.layout.keys.width
        row_panels = -(-q_len // width)
        d[driver.BATCH], d[driver.Q_HEADS], d[driver.KV_HEADS] = batch, q_heads, kv_heads
        d[driver.GROUP], d[driver.ROW_PANELS] = group, row_panels
        d[driver.SEQUENCE] = -(-group * row_panels // code.layout.panels)
        d[workers.ITEMS] = batch * kv_heads * d[driver.SEQUENCE]
        self._fill_arrays(d)
        scale, c, factor = float(call.scalars["scale"]), 1.0, 1.0
        if code.plan.plan.is_fast:
            c, factor = split_scale(scale)
            d[driver.DOT_FACTOR] = float_bits(scale)
        else:
            d[driver.DOT_FACTOR] = float_bits(1.0)
        d[driver.Q_FACTOR] = float_bits(factor)
        where = address(self.values)
        context.fill(self.values, where, code.context, call, c)
        d[driver.CONTEXT], d[driver.SUMS] = where, address(self.slots)
        d[driver.Q_LEN] = self.values[context.SLOT_Q_LEN]
        d[driver.KV_LEN] = self.values[context.SLOT_KV_LEN]
        return d

    def _fill_arrays(self, d: Ints) -> None:
        call, found = self.call, self.call.gradients
        for field, array in (
            (driver.Q, call.call.q),
            (driver.K, call.call.k),
            (driver.V, call.call.v),
            (driver.DO, call.dout),
            (driver.OUT, call.saved["out"]),
            (driver.DQ, found["dq"]),
            (driver.DK, found["dk"]),
            (driver.DV, found["dv"]),
            (driver.BASE, self.rows.base),
            (driver.INVERSE, self.rows.inverse),
        ):
            d[field : field + 1 + array.ndim] = (address(array), *array.strides)

    def _size_sums(self, d: Ints) -> int:
        """Say how many keys have sums; return the bytes of those of dK and dV."""
        batch, _, _, kv_heads, kv_len = self.shape
        block = int(d[driver.BLOCK_KV])
        d[driver.TILES] = -(-kv_len // block)
        d[driver.SUM_ROWS] = d[driver.TILES] * block
        row_bytes = int(d[driver.DK_ROW] + d[driver.DV_ROW])
        return batch * kv_heads * int(d[driver.SUM_ROWS]) * row_bytes

    def _place_sums(self, d: Ints, memory: pool.Buffer) -> Ints:
        """Give the sums their memory; return the record of who has added to them."""
        heads = self.shape[0] * self.shape[3]
        of_k = heads * int(d[driver.SUM_ROWS] * d[driver.DK_ROW])
        d[driver.DK_SUMS], d[driver.DV_SUMS] = memory.address, memory.address + of_k
        progress = np.zeros(heads * int(d[driver.TILES]), np.int64)
        d[driver.PROGRESS] = address(progress)
        return progress

    def _threads(self) -> int:
        batch, q_heads, q_len, _, kv_len = self.shape
        keys = self.code.layout.keys
        flops = 5 * batch * q_heads * q_len * kv_len * (keys.head_dim + keys.v_head_dim)
        return 1 if flops < schedule.SERIAL_FLOPS else self.call.call.threads

    def _run_tables(self, d: Ints, threads: int) -> None:
        """Sum the gradients of tables in accum_dtype, and round them."""
        tables = self.code.plan.tables
        names = dict.fromkeys(table.load.table for table in tables)
        targets = {
            name: self.call.gradients["dbias" if name == "bias" else f"dparams.{name}"]
            for name in names
        }
        dtype = numpy_dtype(self.code.plan.plan.program.accum_dtype)
        sums = {
            name: x if x.dtype == dtype else np.zeros(x.shape, dtype) for name, x in targets.items()
        }
        fill_sums(self.slots, tables, sums)
        d[workers.NEXT_ITEM] = d[workers.DONE_ITEMS] = 0
        d[driver.IS_TABLES], d[driver.STEP] = 1, self.code.tables_step
        own_b, own_h, own_q = owned(tables, sums)
        d[driver.OWN_B], d[driver.OWN_H], d[driver.OWN_Q] = own_b, own_h, own_q
        blocks = -(-int(d[driver.ROW_PANELS]) // self.code.layout.panels)
        counts = ((own_b, self.shape[0]), (own_h, self.shape[1]), (own_q, blocks))
        d[workers.ITEMS] = np.prod([count for own, count in counts if own], dtype=np.int64)
        self._work(d, threads)
        with np.errstate(over="ignore"):
            for name, target in targets.items():
                if sums[name] is not target:
                    target[...] = sums[name]

    def _work(self, d: Ints, threads: int) -> None:
        """Work on the items of the descriptor until all are done."""
        items, where = int(d[workers.ITEMS]), address(d)
        threads = min(threads, items)
        buffers = pool.take_scratch(self.code.layout.scratch["end"], threads)
        try:
            if threads == 1:
                self.worker(where, buffers[0].address, 0, 0, 0, 0)
                return
            # A helper that wakes late still reads `d`, which lives as long as the second function.
            pool.run(
                lambda slot: self.worker(where, buffers[slot].address, 0, 0, 0, 0),
                lambda: bool(d[workers.DONE_ITEMS] == items),
                threads,
            )
        finally:
            pool.give_scratch(buffers)


def _sum_sinks(call: BackwardCall, weights: Array) -> None:
    """Add up -weight * delta of the sink of each head over its rows (GRAD-2)."""
    with np.errstate(all="ignore"):
        products = call.dout.astype(np.float64) * call.saved["out"]
        delta = products.sum(axis=3)
        empty = call.saved["l"] == 0
        parts = np.where(empty, 0.0, weights * delta)
        call.gradients["dsinks"][...] = -parts.sum(axis=(0, 2))
