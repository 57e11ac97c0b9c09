"""Asynchronous copies: ``cp.async``, ``cp.async.bulk(.tensor)``, and their groups."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from sdpakit.ptxemu.bulkcopies import (
    Combine,
    Destination,
    FromShared,
    GlobalSpan,
    Issue,
    Load,
    SharedSpan,
    TensorBox,
)
from sdpakit.ptxemu.errors import Misaligned, OutOfBounds
from sdpakit.ptxemu.mbarriers import BARRIER_BYTES
from sdpakit.ptxemu.operands import Reader, address, full, read
from sdpakit.ptxemu.program import Address, Immediate, Instruction, Negated, Operand, Register
from sdpakit.ptxemu.reductions import REDUCTIONS, combine
from sdpakit.ptxemu.registry import Step, instruction, unsupported
from sdpakit.ptxemu.scalars import PREDICATE, TYPES, U32, Array
from sdpakit.ptxemu.steps.mbarrier import shared_address
from sdpakit.ptxemu.tensormap import CHUNK, MAP_BYTES, EncodedMap, decode
from sdpakit.ptxemu.windows import GLOBAL_BASE, PARAM_BASE, WINDOW_SHIFT

if TYPE_CHECKING:
    from sdpakit.ptxemu.machine import Lanes, Machine

# Reads what each lane names, once for a step.
Columns: TypeAlias = "Callable[[Machine, Lanes], list[int]]"

# Where a tensor copy begins and ends in shared memory, and where a map lies.
_TILE_ALIGNMENT, _MAP_ALIGNMENT = 128, 64

_S32, _U16 = TYPES["s32"], TYPES["u16"]


@instruction("cp")
def copy(ins: Instruction) -> Step:
    """All ``cp`` instructions."""
    modifiers = ins.modifiers
    if "bulk" in modifiers:
        return _bulk(ins)
    if modifiers[0] != "async" or "reduce" in modifiers:
        raise unsupported(ins, "such copy")
    builders = {
        "ca": _chunk,
        "cg": _chunk,
        "commit_group": _commit,
        "wait_group": _wait,
        "wait_all": _wait,
        "mbarrier": _late_arrival,
    }
    if modifiers[1] not in builders:
        raise unsupported(ins, f"cp.async.{modifiers[1]}")
    return builders[modifiers[1]](ins)


# ----------------------------------------------------------------------------------- cp.async


def _chunk(ins: Instruction) -> Step:
    """``cp.async.ca`` and ``.cg``: 4, 8 or 16 bytes a thread."""
    where, source = shared_address(ins, ins.operands[0]), address(ins.operands[1])
    width = ins.operands[2]
    if not isinstance(width, Immediate) or width.value not in {4, 8, 16}:
        raise unsupported(ins, "copy of other than 4, 8 or 16 bytes")
    sizes = _source_sizes(ins, width.value)

    def step(machine: Machine, lanes: Lanes) -> None:
        offsets = machine.memory.locate_shared(ins, lanes, where(machine, lanes), width.value)
        addresses = source(machine, lanes)
        if sizes is None:
            sources = machine.memory.read_global(ins, lanes, addresses, width.value)
            machine.copies.chunks.issue(ins, lanes, offsets, sources, None, width.value)
            return
        some = sizes(machine, lanes)
        sources = _partial_sources(machine, ins, lanes, addresses, some, width.value)
        machine.copies.chunks.issue(ins, lanes, offsets, sources, some, width.value)

    return step


def _source_sizes(ins: Instruction, width: int) -> Reader | None:
    """Return a reader of how many bytes come from global memory; None if all do."""
    rest = list(ins.operands[3:])
    if "L2::cache_hint" in ins.modifiers:
        rest.pop()
    if not rest:
        return None
    operand = rest[0]
    if isinstance(operand, Negated) or _is_predicate(operand):
        ignored = read(operand, PREDICATE)
        return lambda machine, lanes: full(
            np.where(ignored(machine, lanes), 0, width), machine.size(lanes)
        )
    return _wide(read(operand, U32))


def _is_predicate(operand: Operand) -> bool:
    return isinstance(operand, Register) and operand.type is PREDICATE


def _partial_sources(
    machine: Machine, ins: Instruction, lanes: Lanes, addresses: Array, sizes: Array, width: int
) -> Array:
    """Return offsets into the arena; check just the bytes that lanes read."""
    if (bad := sizes > width).any():
        raise machine.fault(
            OutOfBounds,
            ins,
            lanes,
            f"{int(sizes[bad][0])} bytes are to be read for a copy of {width}",
            f"Give a source size from 0 to {width}.",
            bad,
        )
    indices = machine.indices(lanes)
    sources = np.zeros(len(addresses), np.int64)
    whole = sizes == width
    if whole.any():
        sources[whole] = machine.memory.read_global(ins, indices[whole], addresses[whole], width)
    for size in np.unique(sizes[~whole & (sizes > 0)]).tolist():
        some = sizes == size
        _require_aligned(machine, ins, indices[some], addresses[some], width, "the source")
        for byte in range(size):
            machine.memory.read_global(ins, indices[some], addresses[some] + byte, 1)
        sources[some] = addresses[some] - GLOBAL_BASE
    return sources


def _commit(ins: Instruction) -> Step:
    return lambda machine, lanes: machine.copies.chunks.commit(lanes)


def _wait(ins: Instruction) -> Step:
    keep = None
    if ins.modifiers[1] == "wait_group":
        keep = _constant(ins, ins.operands[0])
    return lambda machine, lanes: machine.copies.chunks.wait(lanes, keep)


def _constant(ins: Instruction, operand: Operand) -> int:
    if not isinstance(operand, Immediate):
        raise unsupported(ins, "number of groups that is no constant")
    return operand.value


def _late_arrival(ins: Instruction) -> Step:
    """``cp.async.mbarrier.arrive``."""
    where, counted = shared_address(ins, ins.operands[0]), "noinc" in ins.modifiers

    def step(machine: Machine, lanes: Lanes) -> None:
        addresses = where(machine, lanes)
        offsets = machine.memory.locate_shared(ins, lanes, addresses, BARRIER_BYTES)
        machine.copies.arrive_late(ins, lanes, offsets, counted=counted)

    return step


# ----------------------------------------------------------------------------------- bulk copies


def _bulk(ins: Instruction) -> Step:
    modifiers = ins.modifiers
    if "commit_group" in modifiers:
        return lambda machine, lanes: machine.copies.stores.commit(lanes)
    if "wait_group" in modifiers:
        return _wait_stores(ins)
    if "prefetch" in modifiers:
        return lambda machine, lanes: None
    lacking = ("im2col", "cp_mask", "tile::", "cta_group")
    unknown = [name for name in modifiers if name.startswith(lacking)]
    if unknown:
        raise unsupported(ins, f"bulk copy with .{unknown[0]}")
    if "reduce" in modifiers and "bulk_group" not in modifiers:
        raise unsupported(ins, "reduction into shared memory")
    return _store(ins) if "bulk_group" in modifiers else _load(ins)


def _wait_stores(ins: Instruction) -> Step:
    keep, read_only = _constant(ins, ins.operands[0]), "read" in ins.modifiers
    return lambda machine, lanes: machine.copies.stores.wait(
        machine, lanes, keep, read_only=read_only
    )


def _column(reader: Reader) -> Columns:
    return lambda machine, lanes: full(reader(machine, lanes), machine.size(lanes)).tolist()


def _wide(reader: Reader) -> Reader:
    return lambda machine, lanes: full(reader(machine, lanes).astype(np.int64), machine.size(lanes))


def _load(ins: Instruction) -> Step:
    """Bulk and tensor copies into shared memory, which complete on an mbarrier."""
    operands = list(ins.operands)
    if "L2::cache_hint" in ins.modifiers:
        operands.pop()
    mask = _column(read(operands.pop(), _U16)) if "multicast::cluster" in ins.modifiers else None
    where, barrier = shared_address(ins, operands[0]), shared_address(ins, operands[-1])
    other = _Tensor(ins, operands[1]) if "tensor" in ins.modifiers else _Linear(ins, operands)

    def step(machine: Machine, lanes: Lanes) -> None:
        ends = other.ends(machine, lanes)
        spans = _spans(machine, ins, lanes, where(machine, lanes), ends, other.alignment)
        barriers = machine.memory.locate_shared(ins, lanes, barrier(machine, lanes), BARRIER_BYTES)
        masks = mask(machine, lanes) if mask else [None] * len(ends)
        for lane, end, span, at, blocks in zip(
            machine.indices(lanes).tolist(), ends, spans, barriers.tolist(), masks, strict=True
        ):
            issue = Issue(machine, ins, lane)
            destinations = _destinations(issue, span, at, blocks)
            machine.copies.load(Load(issue, end.place, destinations))

    return step


def _store(ins: Instruction) -> Step:
    """Bulk and tensor copies and reductions from shared to global memory, which groups track."""
    operands = list(ins.operands)
    if "L2::cache_hint" in ins.modifiers:
        operands.pop()
    tensor = "tensor" in ins.modifiers
    other = _Tensor(ins, operands[0]) if tensor else _Linear(ins, operands, stores=True)
    where = shared_address(ins, operands[1])
    reduction = next((name for name in ins.modifiers if name in REDUCTIONS), None)
    if ("reduce" in ins.modifiers) != (reduction is not None):
        raise unsupported(ins, "such reduction")
    fixed = combine(reduction, ins.type) if reduction and not tensor else None

    def step(machine: Machine, lanes: Lanes) -> None:
        ends = other.ends(machine, lanes)
        spans = _spans(machine, ins, lanes, where(machine, lanes), ends, other.alignment)
        for lane, end, span in zip(machine.indices(lanes).tolist(), ends, spans, strict=True):
            how: Combine | None = fixed
            if reduction and isinstance(end.place, TensorBox):
                how = combine(reduction, end.place.kind)
            assert not isinstance(end.place, FromShared)
            machine.copies.stores.issue(Issue(machine, ins, lane), span, end.place, how)

    return step


@dataclass(frozen=True, slots=True)
class End:
    """The end of a lane's copy that is not the shared memory which the instruction is about."""

    place: GlobalSpan | TensorBox | FromShared
    size: int
    swizzle_bits: int = 0


class _Linear:
    """``[dst], [src], size``: bytes one after the other."""

    alignment = CHUNK

    def __init__(self, ins: Instruction, operands: list[Operand], *, stores: bool = False) -> None:
        self._ins = ins
        self._from_shared = not stores and "global" not in ins.modifiers
        other = operands[0 if stores else 1]
        self._where = shared_address(ins, other) if self._from_shared else address(other)
        self._size = _wide(read(operands[2], U32))

    def ends(self, machine: Machine, lanes: Lanes) -> list[End]:
        """Return the end of each lane."""
        addresses, sizes = self._where(machine, lanes), self._size(machine, lanes)
        bad = (sizes % CHUNK != 0) | (sizes == 0)
        if bad.any():
            raise machine.fault(
                Misaligned,
                self._ins,
                lanes,
                f"a bulk copy of {int(sizes[bad][0])} bytes",
                f"Copy a multiple of {CHUNK} bytes, and at least so many.",
                bad,
            )
        if self._from_shared:
            bare = [End(GlobalSpan(0, 0), size) for size in sizes.tolist()]
            spans = _spans(machine, self._ins, lanes, addresses, bare, CHUNK)
            return [End(FromShared(span), span.size) for span in spans]
        _require_aligned(machine, self._ins, lanes, addresses, CHUNK, "the address")
        pairs = zip(addresses.tolist(), sizes.tolist(), strict=True)
        return [End(GlobalSpan(at, size), size) for at, size in pairs]


class _Tensor:
    """A box of a tensor: ``[map, {coordinates}]``."""

    alignment = _TILE_ALIGNMENT

    def __init__(self, ins: Instruction, operand: Operand) -> None:
        if not isinstance(operand, Address):
            raise unsupported(ins, "tensor copy without coordinates")
        rank = next(name for name in ins.modifiers if name in {"1d", "2d", "3d", "4d", "5d"})
        self._ins, self._rank = ins, int(rank[0])
        if len(operand.coordinates) != self._rank:
            raise unsupported(ins, f"{rank} copy with {len(operand.coordinates)} coordinates")
        self._map = _column(address(operand))
        self._coordinates = [_column(read(item, _S32)) for item in operand.coordinates]

    def ends(self, machine: Machine, lanes: Lanes) -> list[End]:
        """Return the box of each lane."""
        maps: dict[int, EncodedMap] = {}
        ends = []
        coordinates = zip(*(column(machine, lanes) for column in self._coordinates), strict=True)
        indices = machine.indices(lanes).tolist()
        for lane, at, place in zip(indices, self._map(machine, lanes), coordinates, strict=True):
            if at not in maps:
                maps[at] = self._find(Issue(machine, self._ins, lane), at)
            tensor = maps[at]
            ends.append(End(TensorBox(tensor, place), tensor.box_bytes, tensor.swizzle_bits))
        return ends

    def _find(self, issue: Issue, at: int) -> EncodedMap:
        tensor = _tensor_map(issue, at)
        if tensor.rank != self._rank:
            raise issue.machine.fault(
                OutOfBounds,
                issue.ins,
                issue.lanes,
                f"the tensor map has {tensor.rank} dimensions, the copy {self._rank}",
                "Use the form of the copy that the map was made for.",
            )
        return tensor


def _tensor_map(issue: Issue, at: int) -> EncodedMap:
    """Return the map that lies at a generic address."""
    machine = issue.machine
    _require_aligned(
        machine, issue.ins, issue.lanes, np.array([at]), _MAP_ALIGNMENT, "the tensor map"
    )
    if at >> WINDOW_SHIFT == PARAM_BASE >> WINDOW_SHIFT:
        start = at - PARAM_BASE
        raw = machine.parameters[start : start + MAP_BYTES]
    else:
        places = at + CHUNK * np.arange(MAP_BYTES // CHUNK)
        lanes = issue.pieces(places)
        start = int(machine.memory.read_global(issue.ins, lanes, places, CHUNK)[0])
        raw = machine.device.arena[start : start + MAP_BYTES].tobytes()
    tensor = decode(raw) if len(raw) == MAP_BYTES else None
    if tensor is None:
        raise machine.fault(
            OutOfBounds,
            issue.ins,
            issue.lanes,
            f"there is no tensor map at address {at:#x}",
            "Pass a ptxemu.TensorMap, by value or by the address that it is copied to.",
        )
    return tensor


def _spans(
    machine: Machine,
    ins: Instruction,
    lanes: Lanes,
    addresses: Array,
    ends: list[End],
    alignment: int,
) -> list[SharedSpan]:
    """Return the bytes of the shared window at addresses, checked for alignment and bounds."""
    _require_aligned(machine, ins, lanes, addresses, alignment, "the shared address")
    locate = machine.memory.locate_shared
    last = np.array([end.size - CHUNK for end in ends])
    locate(ins, lanes, addresses + last, CHUNK)
    starts = locate(ins, lanes, addresses, CHUNK).tolist()
    return [
        SharedSpan(start, end.size, end.swizzle_bits)
        for start, end in zip(starts, ends, strict=True)
    ]


def _require_aligned(
    machine: Machine, ins: Instruction, lanes: Lanes, addresses: Array, alignment: int, what: str
) -> None:
    bad = addresses % alignment != 0
    if machine.checks.alignment and bad.any():
        raise machine.fault(
            Misaligned,
            ins,
            lanes,
            f"{what} {int(addresses[bad][0]):#x} is no multiple of {alignment}",
            f"Align it to {alignment} bytes.",
            bad,
        )


def _destinations(
    issue: Issue, span: SharedSpan, barrier: int, mask: int | None
) -> list[Destination]:
    """Return where a load goes: with a mask to one place in each block that it names."""
    if mask is None:
        return [Destination(span, barrier)]
    machine = issue.machine
    stride, size = machine.memory.stride, machine.shape.cluster_size
    first = int(machine.lane_block[issue.lane]) // size * size
    if mask >> size or not mask:
        raise machine.fault(
            OutOfBounds,
            issue.ins,
            issue.lanes,
            f"the mask {mask:#x} of blocks, in a cluster of {size}",
            "Set bits of blocks that the cluster has, and at least one.",
        )
    starts = [(first + rank) * stride for rank in range(size) if mask >> rank & 1]
    return [
        Destination(
            SharedSpan(start + span.start % stride, span.size, span.swizzle_bits),
            start + barrier % stride,
        )
        for start in starts
    ]
