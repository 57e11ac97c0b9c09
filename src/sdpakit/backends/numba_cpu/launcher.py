"""Call -> descriptor of the driver, context of the generated code, threads and scratch."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from sdpakit.backends.numba_cpu import abi, context, driver, schedule, workers
from sdpakit.backends.numba_cpu.codegen import compile_kernel
from sdpakit.backends.numba_cpu.context import Array, ContextLayout, Ints, address, float_bits
from sdpakit.backends.numba_cpu.costs.expectation import expect_prefill
from sdpakit.backends.numba_cpu.costs.explained import machine_facts, tile_facts
from sdpakit.backends.numba_cpu.decode.choice import can_decode, decoded
from sdpakit.backends.numba_cpu.decode.launcher import DecodeCode
from sdpakit.backends.numba_cpu.entries import EntryFields, fill_entries
from sdpakit.backends.numba_cpu.forks import LLVM_LOCK, computed_once
from sdpakit.backends.numba_cpu.guard import Guard
from sdpakit.backends.numba_cpu.lower import DECODE, PREFILL, Plan, Stages, lower
from sdpakit.backends.numba_cpu.prepared import Prepared
from sdpakit.expr.nodes import Index, postorder

if TYPE_CHECKING:
    from sdpakit.backends.base import Artifact, Call
    from sdpakit.backends.numba_cpu.codegen import KernelModule

T = TypeVar("T")

# A scale within 2**+-SCALE_EXPONENT leaves c = scale * log2(e) a normal number of every element;
# of any other one a power of two goes into q, which is exact unless q leaves the range of floats.
SCALE_EXPONENT = 100
KEPT_DEALS = 64  # shapes whose partition is remembered
ROW_ARRAYS = {
    "q": driver.Q,
    "out": driver.OUT,
    "lse": driver.LSE,
    "max_logit": driver.MAX_LOGIT,
    "entropy": driver.ENTROPY,
    "sum_p2": driver.SUM_P2,
    "m": driver.ROW_M,  # these two are asked for by the backward pass alone
    "l": driver.ROW_L,
}
_ENTRIES = EntryFields(
    driver.Q_START, driver.KV_START, driver.PAGES, tuple(ROW_ARRAYS.values()), (driver.K, driver.V)
)


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
    return scale / factor * abi.LOG2_E, factor


@dataclass(frozen=True, slots=True)
class Deal:
    """How calls of one shape are dealt out.

    Attributes
    ----------
    threads : int
        Threads that take part.
    parts : Partition
        Items.
    scratch_bytes : int
        Scratch of each thread.
    template : (driver.FIELDS,) int64
        Descriptor without what differs between two such calls.
    """

    threads: int
    parts: schedule.Partition
    scratch_bytes: int
    template: Ints


class Code:
    """The kernels of one artifact, and the deals of the shapes that they were called with."""

    def __init__(self, artifact: Artifact) -> None:
        self.deal = functools.lru_cache(maxsize=KEPT_DEALS)(self._deal)
        self.plan: Plan = artifact.meta["plan"]
        self.stages = cast(Stages, artifact.stages)
        self._kernels: dict[int, KernelModule] = {}
        self.module = self.kernel(PREFILL)
        self.driver = compile_kernel(driver.WALK, self.plan.layout.isa)
        self.context = ContextLayout.of(self.plan.program)
        self.template = self._template()
        self.decode = None
        if can_decode(self.plan.layout):
            self.decode = DecodeCode(
                self.plan, self.kernel, self.context, reads_head=self.reads_head
            )

    def kernel(self, place: int) -> KernelModule:
        """Return the code of a kernel by its place in the stages."""
        # The same object for all threads that ask at once: each takes addresses of its code, and
        # one that `clear_loaded` has made others forget would be freed under them.
        with LLVM_LOCK:
            if place not in self._kernels:
                self._kernels[place] = self.stages.compiled(place)
            return self._kernels[place]

    def _template(self) -> Ints:
        layout, program = self.plan.layout, self.plan.program
        d = np.zeros(driver.FIELDS, np.int64)
        d[workers.RUN_ITEM] = self.driver.address("run_item")
        d[workers.REBIND] = self.driver.address("rebind")
        d[driver.WIDTH] = layout.width
        d[driver.ROW_STEP] = layout.rows
        d[driver.BLOCK_KV] = layout.block_kv
        d[driver.ELEMENT_BYTES] = layout.esz
        d[driver.Q_FACTOR] = float_bits(1.0)
        d[driver.MAX_FACTOR] = float_bits(abi.M_UNIT / abi.LOG2_E)
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

    @computed_once
    def reads_head(self) -> bool:
        """Whether logit or mask differ between the query heads of a group."""
        program = self.plan.program
        return any(
            node is Index("h") for root in (program.logit, program.mask) for node in postorder(root)
        )

    def decoded(self, call: Call) -> Array:
        """Return which batch entries go to the decode kernel."""
        return np.zeros(call.batch, np.bool_) if self.decode is None else decoded(call)

    def scale(self, call: Call) -> tuple[float, float] | None:
        """Return (c, factor of q) where logits are plain."""
        return split_scale(float(call.scalars["scale"])) if self.plan.is_fast else None

    def shape(self, call: Call, q_rows: Array) -> schedule.Shape:
        """Return what the driver shall take a call for, of whose entries it does `q_rows` rows.

        A single query row for several heads that read the same keys, as in decoding, would leave
        all lanes but one idle: where nothing tells the heads apart, they stand in as rows.
        """
        batch, q_len, kv_len = call.batch, call.q_rows, call.kv_rows
        kv_heads = call.k.shape[1]
        group = call.q.shape[1] // kv_heads
        rows = int(q_rows.sum()) if call.packed else 0
        pairs = int((q_rows * call.kv_len).sum()) if call.packed else 0
        if q_len == 1 and call.q_start is None and group > 1 and not self.reads_head:
            sums = rows * group, pairs * group
            return schedule.Shape(batch, kv_heads, 1, group, kv_len, group, *sums)
        return schedule.Shape(batch, kv_heads, group, q_len, kv_len, 1, rows, pairs)

    def _deal(self, shape: schedule.Shape, threads: int) -> Deal:
        layout = self.plan.layout
        threads = schedule.useful_threads(layout, shape, threads)
        parts = schedule.partition(layout, shape, threads)
        scratch = schedule.ScratchPlan.of(layout, parts.panels)
        d = self.template.copy()
        for field, value in (
            (workers.ITEMS, parts.items),
            (driver.BATCH, shape.batch),
            (driver.KV_HEADS, shape.kv_heads),
            (driver.GROUP, shape.group),
            (driver.HEADS_AS_ROWS, shape.heads_as_rows),
            (driver.ROW_CHUNKS, parts.row_chunks),
            (driver.CHUNK_ROWS, parts.chunk_rows),
            (driver.HEAD_CHUNKS, parts.head_chunks),
            (driver.CHUNK_HEADS, parts.chunk_heads),
            (driver.TILE_GROUP, scratch.tile_group),
            (driver.PAIR_BYTES, layout.k_tile_bytes + layout.v_tile_bytes),
            (driver.V_IN_PAIR, layout.k_tile_bytes),
            (driver.K_ROW_BYTES, layout.head_dim * layout.itemsize),
            (driver.V_ROW_BYTES, layout.v_head_dim * layout.itemsize),
            (driver.PAIRS_AT, scratch.pairs),
            (driver.PACKED_AT, scratch.packed),
            (driver.P_AT, scratch.p),
            (driver.STAGING_AT, scratch.staging),
            (driver.FACTORS_AT, scratch.factors),
            (driver.RANGES_AT, scratch.ranges),
            (driver.PANELS_AT, scratch.panels),
        ):
            d[field] = value
        return Deal(min(threads, parts.items), parts, scratch.size, d)


class CpuLauncher:
    """Runs calls of one spec (`sdpakit.backends.base.Launcher`)."""

    def __init__(self, artifact: Artifact) -> None:
        self._artifact = artifact
        with LLVM_LOCK:
            self._worker = workers.worker()
        self._codes = {artifact.meta["plan"].int_bits: Code(artifact)}

    def __call__(self, call: Call) -> None:
        """Compute `call`."""
        if math.prod(call.q.shape[:3]) == 0:
            return
        call = _one_row_each(call)
        _fill_padding(call, self._artifact.program.empty_row)
        for part in self._parts(self._code(call.int_bits), call):
            part.run()

    def repeat(self, call: Call, arrays: Sequence[Array]) -> Guard | None:
        """Return `call` for other arrays, if one thread is asked for, or enough in any case."""
        if call.tables:
            return None
        code = self._code(call.int_bits)
        if call.threads > 1 and self._parts(code, replace(call, threads=2))[0].threads > 1:
            return None
        (part,) = self._parts(code, replace(call, threads=1))  # padded entries go the same way
        return part.repeat(code.module.address("guard"), arrays)

    def _parts(self, code: Code, call: Call) -> list[Prepared]:
        """Return a call ready to run: the entries of each kernel that takes some."""
        here = code.decoded(call)
        parts, rows = [], np.where(here, 0, call.q_len)
        if rows.any():
            parts.append(self._prepare(code, call, rows))
        if code.decode is not None and here.any():
            parts.append(code.decode.prepare(call, here, code.scale(call)))
        return parts

    def _prepare(self, code: Code, call: Call, q_rows: Array) -> Prepared:
        """Return the part of the prefill kernel, which does so many rows of each entry."""
        shape = code.shape(call, q_rows)
        deal = code.deal(shape, call.threads)
        items, order = _items(call, q_rows, shape, deal)
        used = driver.FIELDS + context.size(code.context, len(call.q_len))
        d = np.empty(used + order.size, np.int64)
        d[: driver.FIELDS] = deal.template
        d[used:] = order.ravel()
        where = address(d)
        _fill_arrays(d, call, shape.heads_as_rows)
        if call.packed:
            fill_entries(d, call, _ENTRIES)
            d[driver.PAGES_MEET] = _pages_meet(call)
            d[driver.ORDER] = where + 8 * used
            d[workers.ITEMS] = items
        c = _fill_scale(d, code.scale(call))
        values, at = d[driver.FIELDS : used], where + 8 * driver.FIELDS
        context.fill(values, at, code.context, call, c)
        d[driver.CONTEXT] = at
        d[driver.Q_LEN], d[driver.KV_LEN] = values[context.SLOT_Q_LEN], values[context.SLOT_KV_LEN]
        pointers = [driver.CONTEXT, driver.Q_LEN, driver.KV_LEN]
        pointers += [driver.FIELDS + slot for slot in context.BATCH_SLOTS.values()]
        return Prepared(
            code, self._worker, d, where, pointers, deal.threads, items, deal.scratch_bytes
        )

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
            "machine": machine_facts(layout),
        }
        why = {"why_these_tiles": tile_facts(layout)}
        if call is None:
            return facts | why
        facts["int_bits"] = call.int_bits
        call = _one_row_each(call)
        here = code.decoded(call)
        if code.decode is not None and here.any():
            facts |= code.decode.explain(call, here, code.stages.text(DECODE))
            if here.all():
                return facts | {"path": "decode"}
            return facts | {
                "path": f"decode: {int(here.sum())} of {call.batch} entries",
                "not_modelled": "the speed, and the tiles of the entries that do not decode",
            }
        shape = code.shape(call, call.q_len)
        deal = code.deal(shape, call.threads)
        text = code.stages.text(PREFILL)
        expected = expect_prefill(code.plan, text, call, shape, deal.parts)
        facts |= why
        return facts | {
            "path": "prefill",
            "threads": deal.threads,
            "items": _items(call, call.q_len, shape, deal)[0],
            "item": f"{deal.parts.chunk_rows} rows x {deal.parts.chunk_heads} heads",
            "scratch_bytes_per_thread": deal.scratch_bytes,
            "expected": expected.facts(),
        }

    def _code(self, int_bits: int) -> Code:
        program, options = self._artifact.program, self._artifact.meta["options"]
        return code_of_width(self._codes, int_bits, lambda: Code(lower(program, options, int_bits)))


def code_of_width(codes: dict[int, T], int_bits: int, make: Callable[[], T]) -> T:
    """Return the code for integers of this width, or of more; the same to all threads.

    Parameters
    ----------
    codes : dict of int to code
        By width; takes in what is made.
    int_bits : int
        What a call needs.
    make : callable
        Compiles for this width, when a call first needs it.
    """
    if int_bits > max(codes):
        with LLVM_LOCK:
            if int_bits > max(codes):  # no other thread was faster
                codes[int_bits] = make()
    return codes.get(int_bits, codes[max(codes)])


def _one_row_each(call: Call) -> Call:
    """Return a ragged call of one row an entry, as in decoding, as a padded one of one row.

    Heads that read the same keys may then stand in as rows (`Code.shape`).
    """
    if call.q_start is None or not (call.q_len == 1).all():
        return call
    batch = call.batch
    rows = {name: x[0].swapaxes(0, 1)[:batch, :, None] for name, x in call.outputs.items()}
    q = call.q[0].swapaxes(0, 1)[:batch, :, None]
    return replace(call, q=q, outputs=rows, q_start=None)


def _items(call: Call, q_rows: Array, shape: schedule.Shape, deal: Deal) -> tuple[int, Ints]:
    """Return the number of items, and their order where entries differ, else nothing."""
    if not call.packed:
        return deal.parts.items, np.empty((0, 2), np.int64)
    order = schedule.order(q_rows * shape.heads_as_rows, call.kv_len, deal.parts.chunk_rows)
    return len(order) * shape.kv_heads * deal.parts.head_chunks, order


def _pages_meet(call: Call) -> bool:
    """Return whether keys of page n + 1 follow those of page n at the stride of keys."""
    size = call.k.shape[2]
    paged = call.pages is not None
    return paged and all(x.strides[0] == size * x.strides[2] for x in (call.k, call.v))


def _fill_padding(call: Call, empty_row: str) -> None:
    """Write the rows past q_len, which are empty (MASK-4, EMPTY-1)."""
    if call.q_start is not None:
        return
    values = {
        "out": math.nan if empty_row == "nan" else 0.0,
        "entropy": 0.0,
        "sum_p2": 0.0,
        "l": 0.0,
    }
    rows = call.q.shape[2]
    for b, q_len in enumerate(call.q_len.tolist()):
        if q_len < rows:
            for name, array in call.outputs.items():
                array[b, :, q_len:] = values.get(name, -math.inf)


def _fill_arrays(d: Ints, call: Call, heads_as_rows: int) -> None:
    """Write addresses and strides of the arrays of a call into its descriptor."""
    for field, array in ((driver.K, call.k), (driver.V, call.v)):
        d[field : field + 5] = (address(array), *array.strides)
    for name, array in (("q", call.q), *call.outputs.items()):
        if array.size > 0:
            b, h, i, *width = array.strides
            if heads_as_rows > 1:
                h, i = h * heads_as_rows, h
            field = ROW_ARRAYS[name]
            d[field : field + 1 + array.ndim] = (address(array), b, h, i, *width)


def _fill_scale(d: Ints, scale: tuple[float, float] | None) -> float:
    """Tell the driver the scale of plain logits; return c for the context."""
    if scale is None:
        return 1.0
    c, factor = scale
    d[driver.Q_FACTOR] = float_bits(factor)
    d[driver.MAX_FACTOR] = float_bits(c / abi.LOG2_E)
    return c
