"""Call -> descriptor of the driver, context of the generated code, threads and scratch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from sdpakit.backends.numba_cpu import driver, pool, schedule
from sdpakit.backends.numba_cpu.codegen import compile_ir
from sdpakit.backends.numba_cpu.context import (
    SLOT_KV_LEN,
    SLOT_Q_LEN,
    ContextLayout,
    Ints,
    address,
    fill,
    float_bits,
)
from sdpakit.backends.numba_cpu.lower import Plan, lower

if TYPE_CHECKING:
    from sdpakit.backends.base import Artifact, Call

LOG2_E = 1.0 / math.log(2.0)
# A scale within 2**+-SCALE_EXPONENT leaves c = scale * log2(e) a normal number of every element;
# of any other one a power of two goes into q, which is exact unless q leaves the range of floats.
SCALE_EXPONENT = 100
STATISTICS = {
    "lse": driver.LSE,
    "max_logit": driver.MAX_LOGIT,
    "entropy": driver.ENTROPY,
    "sum_p2": driver.SUM_P2,
}
OPTIONAL = ("key_ranges", "tile_class", "sink")


def split_scale(scale: float) -> tuple[float, float]:
    """Return (c, factor of q) with c > 0 and c * factor = scale * log2(e).

    SCALE-2: any finite scale. Its sign goes into q, so that the largest product is the largest
    logit; a scale of 0 makes q zero, so that NaN and infinity in q and k still give NaN.
    """
    if scale == 0.0:
        return 1.0, 0.0
    exponent = math.frexp(scale)[1]
    excess = exponent - max(-SCALE_EXPONENT, min(SCALE_EXPONENT, exponent))
    factor = math.copysign(math.ldexp(1.0, excess), scale)
    return scale / factor * LOG2_E, factor


class Code:
    """One compiled module: what the descriptor says of it in every call."""

    def __init__(self, artifact: Artifact) -> None:
        self.plan: Plan = artifact.meta["plan"]
        self.module = compile_ir(cast(str, artifact.stages["llvm"]), self.plan.layout.isa)
        self.context = ContextLayout.of(self.plan.program)
        self.template = self._template()

    def _template(self) -> Ints:
        layout, program = self.plan.layout, self.plan.program
        d = np.zeros(driver.FIELDS, np.int64)
        d[driver.WIDTH] = layout.width
        d[driver.ROW_STEP] = layout.rows
        d[driver.BLOCK_KV] = layout.block_kv
        d[driver.ELEMENT_BYTES] = layout.esz
        d[driver.M_UNIT] = 1 if self.plan.is_fast else 4
        d[driver.Q_FACTOR] = float_bits(1.0)
        d[driver.MAX_FACTOR] = float_bits(4.0 / LOG2_E)
        d[driver.EMPTY_FACTOR] = float_bits(math.nan if program.empty_row == "nan" else 0.0)
        for field, name in (
            (driver.BEGIN, "begin"),
            (driver.STEP, "step"),
            (driver.PACK_Q, "pack_q"),
            (driver.PACK_K, "pack_k"),
            (driver.PACK_V, "pack_v"),
            (driver.UNPACK_O, "unpack_o"),
        ):
            d[field] = self.module.address(name)
        if self.plan.has_mask:
            d[driver.KEY_RANGES] = self.module.address("key_ranges")
            d[driver.TILE_CLASS] = self.module.address("tile_class")
        if program.sink is not None:
            d[driver.SINK] = self.module.address("sink")
        d[driver.PANEL_BYTES] = schedule.panel_bytes(layout)
        d[driver.O_AT] = layout.qt_bytes
        statistics = layout.qt_bytes + layout.ot_bytes
        for field, name in (
            (driver.M_AT, "m"),
            (driver.L_AT, "l"),
            (driver.TMAX_AT, "tmax"),
            (driver.E1_AT, "e1"),
            (driver.P2_AT, "p2"),
        ):
            if name in layout.stat_rows:
                d[field] = statistics + layout.stat_rows.index(name) * layout.row_bytes
        return d


class CpuLauncher:
    """Runs calls of one spec (`sdpakit.backends.base.Launcher`)."""

    def __init__(self, artifact: Artifact) -> None:
        self._artifact = artifact
        self._worker = driver.worker()
        self._codes = {artifact.meta["plan"].int_bits: Code(artifact)}

    def __call__(self, call: Call) -> None:
        """Compute `call`."""
        shape = _shape(call)
        if shape.batch * shape.kv_heads * shape.group * shape.q_len == 0:
            return
        _fill_padding(call, self._artifact.program.empty_row)
        code = self._code(call.int_bits)
        threads, parts, scratch = self._deal(code, shape, call.threads)
        d = _descriptor(code, call, shape, parts, scratch)
        c = _fill_scale(d, float(call.scalars["scale"])) if code.plan.is_fast else 1.0
        context, kept = fill(code.context, call, c)
        d[driver.CONTEXT] = address(context)
        d[driver.Q_LEN], d[driver.KV_LEN] = context[SLOT_Q_LEN], context[SLOT_KV_LEN]
        self._run(d, parts.items, scratch.size, threads)
        del kept

    def explain(self, call: Call | None) -> Mapping[str, Any]:
        """Return facts about the code and, for a call, about its items, scratch and threads."""
        code = next(iter(self._codes.values()))
        layout = code.plan.layout
        facts: dict[str, Any] = {
            "isa": layout.isa.name,
            "register_tile": f"{layout.rows} keys x {layout.vectors} vectors of {layout.lanes}",
            "block_q": layout.width,
            "block_kv": layout.block_kv,
            "arithmetic": "scaled dot" if code.plan.is_fast else "logit expression",
            "from_disk_cache": code.module.from_cache,
        }
        if call is not None:
            threads, parts, scratch = self._deal(code, _shape(call), call.threads)
            facts |= {
                "threads": threads,
                "items": parts.items,
                "item": f"{parts.chunk_rows} rows x {parts.chunk_heads} heads",
                "scratch_bytes_per_thread": scratch.size,
                "int_bits": call.int_bits,
            }
        return facts

    def _code(self, int_bits: int) -> Code:
        """Return code for this width; the wider one is compiled when a call first needs it."""
        widest = max(self._codes)
        if int_bits > widest:
            options = self._artifact.meta["options"]
            self._codes[int_bits] = Code(lower(self._artifact.program, options, int_bits))
        return self._codes.get(int_bits, self._codes[max(self._codes)])

    def _deal(
        self, code: Code, shape: schedule.Shape, threads: int
    ) -> tuple[int, schedule.Partition, schedule.ScratchPlan]:
        layout = code.plan.layout
        threads = schedule.useful_threads(layout, shape, threads)
        parts = schedule.partition(layout, shape, threads)
        scratch = schedule.ScratchPlan.of(layout, parts.panels)
        return min(threads, parts.items), parts, scratch

    def _run(self, d: Ints, items: int, scratch_bytes: int, threads: int) -> None:
        """Work on the items of a descriptor until all are done."""
        where = address(d)
        with pool.scratch(scratch_bytes, threads) as buffers:
            if threads == 1:
                self._worker(where, buffers[0])
                return
            pool.run(
                lambda slot: self._worker(where, buffers[slot]),
                lambda: bool(d[driver.DONE_ITEMS] == items),
                threads,
            )


def _shape(call: Call) -> schedule.Shape:
    batch, q_heads, q_len, _ = call.q.shape
    kv_heads, kv_len = call.k.shape[1:3]
    return schedule.Shape(batch, kv_heads, q_heads // max(kv_heads, 1), q_len, kv_len)


def _fill_padding(call: Call, empty_row: str) -> None:
    """Write the rows past q_len, which are empty (MASK-4, EMPTY-1)."""
    values = {"out": math.nan if empty_row == "nan" else 0.0, "entropy": 0.0, "sum_p2": 0.0}
    for b in np.flatnonzero(call.q_len < call.q.shape[2]):
        for name, array in call.outputs.items():
            array[b, :, call.q_len[b] :] = values.get(name, -math.inf)


def _descriptor(
    code: Code,
    call: Call,
    shape: schedule.Shape,
    parts: schedule.Partition,
    scratch: schedule.ScratchPlan,
) -> Ints:
    """Return the descriptor of a call, without its context."""
    d = code.template.copy()
    d[driver.ITEMS] = parts.items
    d[driver.BATCH], d[driver.KV_HEADS], d[driver.GROUP] = shape.batch, shape.kv_heads, shape.group
    d[driver.ROW_CHUNKS], d[driver.CHUNK_ROWS] = parts.row_chunks, parts.chunk_rows
    d[driver.HEAD_CHUNKS], d[driver.CHUNK_HEADS] = parts.head_chunks, parts.chunk_heads
    for field, array in ((driver.Q, call.q), (driver.K, call.k), (driver.V, call.v)):
        d[field : field + 5] = (address(array), *array.strides)
    out = call.outputs.get("out")
    if out is not None and out.size > 0:
        d[driver.OUT : driver.OUT + 5] = (address(out), *out.strides)
    for name, field in STATISTICS.items():
        if name in call.outputs:
            rows = call.outputs[name]
            d[field : field + 4] = (address(rows), *rows.strides)
    d[driver.K_TILE_AT : driver.PANELS_AT + 1] = (
        scratch.k_tile,
        scratch.v_tile,
        scratch.p,
        scratch.staging,
        scratch.factors,
        scratch.ranges,
        scratch.panels,
    )
    return d


def _fill_scale(d: Ints, scale: float) -> float:
    """Tell the driver the scale of plain logits; return c for the context."""
    c, factor = split_scale(scale)
    d[driver.Q_FACTOR] = float_bits(factor)
    d[driver.MAX_FACTOR] = float_bits(c / LOG2_E)
    return c
