"""Bulk and tensor copies: who issued them, what they move, and what happens when they land.

A *load* writes shared memory and completes on mbarriers; a *store* reads shared memory, writes
global memory and is waited for by groups. A load reads its source, and a store its, when it
lands.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sdpakit.ptxemu.clocks import Clock
from sdpakit.ptxemu.errors import MissingWait
from sdpakit.ptxemu.memory import IN_FLIGHT, UNWRITTEN, WRITTEN
from sdpakit.ptxemu.program import Instruction
from sdpakit.ptxemu.races import OpenRead
from sdpakit.ptxemu.scalars import Array, ScalarType
from sdpakit.ptxemu.tensormap import CHUNK, REPEAT, EncodedMap, chunk_order
from sdpakit.ptxemu.windows import GLOBAL_BASE
from sdpakit.ptxemu.words import Offsets, gather, scatter

if TYPE_CHECKING:
    from sdpakit.ptxemu.machine import Lanes, Machine

# What combines old and new bytes of global memory, for reductions.
Combine: TypeAlias = Callable[[Array, Array], Array]


@dataclass(frozen=True, slots=True)
class Issue:
    """The lane that issues a copy, and the instruction."""

    machine: Machine
    ins: Instruction
    lane: int

    @property
    def lanes(self) -> NDArray[np.intp]:
        """The lane, as lanes."""
        return np.array([self.lane])

    def pieces(self, addresses: Offsets) -> NDArray[np.intp]:
        """Return the lane once for each of several addresses."""
        return np.full(len(addresses), self.lane)


@dataclass(frozen=True, slots=True)
class SharedSpan:
    """`size` bytes of `Memory.shared` from `start` on, in chunks that a swizzle may have moved."""

    start: int
    size: int
    swizzle_bits: int = 0

    @property
    def chunks(self) -> Offsets:
        """Offset of each chunk, in the order of the span."""
        return self.start + CHUNK * np.arange(self.size // CHUNK)

    def read(self, machine: Machine) -> Array:
        """Return a copy of the bytes, without the swizzle."""
        data = machine.memory.shared[self.start : self.start + self.size].copy()
        return data.reshape(-1, CHUNK)[self._order()].reshape(-1)

    def write(self, machine: Machine, data: Array) -> None:
        """Set the bytes, and mark them written."""
        span = machine.memory.shared[self.start : self.start + self.size]
        span.reshape(-1, CHUNK)[self._order()] = data.reshape(-1, CHUNK)
        self.states(machine)[...] = WRITTEN

    def states(self, machine: Machine) -> Array:
        """Return the states of the bytes, no copy."""
        return machine.memory.shared_state[self.start : self.start + self.size]

    def _order(self) -> Offsets | slice:
        if not self.swizzle_bits:
            return slice(None)
        # What swizzles repeat after divides the stride of blocks, so that an offset will do.
        return chunk_order(self.start % REPEAT, self.size, self.swizzle_bits)


class GlobalSpan:
    """Bytes of global memory, one after the other."""

    def __init__(self, address: int, size: int) -> None:
        self._addresses = address + CHUNK * np.arange(size // CHUNK)

    def check(self, issue: Issue) -> None:
        """Raise if the bytes may not be read."""
        _check_readable(issue, self._addresses, CHUNK)

    def read(self, machine: Machine) -> Array:
        """Return the bytes."""
        return gather(machine.device.arena, self._addresses - GLOBAL_BASE, CHUNK).reshape(-1)

    def write(self, issue: Issue, data: Array, combine: Combine | None) -> None:
        """Set the bytes, or combine them with what is there."""
        _put(issue, self._addresses, data.reshape(-1, CHUNK), combine)


class TensorBox:
    """A box of a tensor in global memory."""

    def __init__(self, tensor: EncodedMap, coordinates: Sequence[int]) -> None:
        self._tensor = tensor
        self._box = box = tensor.place(coordinates)
        inner = max(box.high - box.low, 0)
        # Rows begin at multiples of 16 apart, so all are as well aligned as the first.
        first = int(box.addresses[0]) if len(box.addresses) else 0
        self._unit = math.gcd(CHUNK, inner, first) or CHUNK
        steps = np.arange(0, inner, self._unit)
        self._addresses = (box.addresses[:, None] + steps).reshape(-1)

    @property
    def kind(self) -> ScalarType:
        """Type of elements."""
        return self._tensor.kind

    def check(self, issue: Issue) -> None:
        """Raise if the bytes inside the tensor may not be read."""
        if self._addresses.size:
            _check_readable(issue, self._addresses, self._unit)

    def read(self, machine: Machine) -> Array:
        """Return the bytes of the box, those outside the tensor filled."""
        box = self._box
        if box.inside is None:
            whole = gather(machine.device.arena, self._addresses - GLOBAL_BASE, self._unit)
            return whole.reshape(-1)
        data = self._tensor.outside()
        if self._addresses.size:
            found = gather(machine.device.arena, self._addresses - GLOBAL_BASE, self._unit)
            data[box.inside, box.low : box.high] = found.reshape(-1, box.high - box.low)
        return data.reshape(-1)

    def write(self, issue: Issue, data: Array, combine: Combine | None) -> None:
        """Set the bytes that are inside the tensor, or combine them with what is there."""
        if self._addresses.size:
            box = self._box
            rows = data.reshape(self._tensor.rows, -1)
            if box.inside is not None:
                rows = rows[box.inside, box.low : box.high]
            _put(issue, self._addresses, rows.reshape(-1, self._unit), combine)


def _check_readable(issue: Issue, addresses: Offsets, width: int) -> None:
    lanes = issue.pieces(addresses)
    issue.machine.memory.read_global(issue.ins, lanes, addresses, width)


def _put(issue: Issue, addresses: Offsets, data: Array, combine: Combine | None) -> None:
    machine, width = issue.machine, data.shape[1]
    if combine is not None:
        _check_readable(issue, addresses, width)
        data = combine(gather(machine.device.arena, addresses - GLOBAL_BASE, width), data)
    lanes = issue.pieces(addresses)
    offsets = machine.memory.write_global(issue.ins, lanes, addresses, width)
    scatter(machine.device.arena, offsets, np.ascontiguousarray(data))


class FromShared:
    """A source in shared memory, which the asynchronous proxy reads until the copy lands."""

    def __init__(self, span: SharedSpan) -> None:
        self.span = span
        self.token: OpenRead | None = None

    def check(self, issue: Issue) -> None:
        """Raise if the bytes may not be read; from now on nobody may write them."""
        machine, chunks = issue.machine, self.span.chunks
        if not (self.span.states(machine) == WRITTEN).all():
            machine.memory.check_read(issue.ins, issue.pieces(chunks), chunks, CHUNK)
        self.token = machine.races.open_read(issue.ins, issue.lane, chunks, CHUNK)

    def read(self, machine: Machine) -> Array:
        """Return the bytes."""
        return self.span.read(machine)


Source: TypeAlias = GlobalSpan | TensorBox | FromShared
Sink: TypeAlias = GlobalSpan | TensorBox


@dataclass(slots=True, eq=False)
class Destination:
    """Where a load goes, the mbarrier (its offset) that it completes on, and its clock."""

    span: SharedSpan
    barrier: int
    clock: Clock | None = None


class Load:
    """A copy into shared memory, or into that of several blocks of a cluster."""

    def __init__(self, issue: Issue, source: Source, destinations: list[Destination]) -> None:
        self.issue, self._source, self._destinations = issue, source, destinations
        source.check(issue)
        machine, ins = issue.machine, issue.ins
        for destination in destinations:
            span = destination.span
            machine.mbarriers.require(ins, issue.lanes, np.array([destination.barrier]))
            _reserve(issue, span)
            destination.clock = machine.races.issue_write(
                ins, issue.lane, span.start, span.size, destination.barrier
            )
            machine.counters.copied_bytes += span.size

    def land(self) -> None:
        """Move the bytes and tell the mbarriers."""
        machine, ins, lanes = self.issue.machine, self.issue.ins, self.issue.lanes
        data = self._source.read(machine)
        for number, destination in enumerate(self._destinations):
            destination.span.write(machine, data)
            clock = destination.clock
            if isinstance(self._source, FromShared) and number == 0:
                clock = machine.races.land_read(self._source.token, clock)
            machine.mbarriers.complete(ins, lanes, destination.barrier, len(data), clock)


def _reserve(issue: Issue, span: SharedSpan) -> None:
    """Mark bytes as in flight; raise if others are on their way to them."""
    states = span.states(issue.machine)
    if states.any() and not ((states == WRITTEN) | (states == UNWRITTEN)).all():
        chunks = span.chunks
        issue.machine.memory.check_write(issue.ins, issue.pieces(chunks), chunks, CHUNK)
    states[...] = IN_FLIGHT


class Store:
    """A copy, or a reduction, from shared to global memory, in the group `group` of its lane."""

    def __init__(
        self, issue: Issue, span: SharedSpan, sink: Sink, combine: Combine | None, group: int
    ) -> None:
        self.issue, self.group = issue, group
        self._source, self._sink, self._combine = FromShared(span), sink, combine
        self._data: Array | None = None
        self._source.check(issue)
        issue.machine.counters.copied_bytes += span.size

    def read(self) -> None:
        """Read the source; its bytes may be written from now on."""
        if self._data is None:
            machine = self.issue.machine
            self._data = self._source.read(machine)
            machine.races.close_read(self._source.token)

    def land(self) -> None:
        """Read the source if that did not happen, and write."""
        self.read()
        assert self._data is not None
        self._sink.write(self.issue, self._data, self._combine)

    def refuse_end(self) -> None:
        """Raise if the block ends while the source is being read."""
        if self._data is None and self.issue.machine.checks.wait:
            raise self.issue.machine.fault(
                MissingWait,
                self.issue.ins,
                self.issue.lanes,
                "the thread ended without a wait for this copy, which reads shared memory",
                "End with cp.async.bulk.commit_group and cp.async.bulk.wait_group.read 0.",
            )


class StoreGroups:
    """Stores under way, by the groups of the lanes that issued them."""

    def __init__(self, machine: Machine) -> None:
        self._pending: list[Store] = []
        self._committed = np.zeros(machine.lanes, np.int64)

    def issue(
        self, issue: Issue, span: SharedSpan, sink: Sink, combine: Combine | None = None
    ) -> None:
        """Begin a store."""
        group = int(self._committed[issue.lane])
        self._pending.append(Store(issue, span, sink, combine, group))

    def commit(self, lanes: Lanes) -> None:
        """End the group of each lane."""
        self._committed[lanes] += 1

    def wait(self, machine: Machine, lanes: Lanes, keep: int, *, read_only: bool) -> None:
        """Land all but the newest `keep` groups of lanes; with `read_only` read the sources."""
        if not self._pending:
            return
        waits = np.zeros(machine.lanes, bool)
        waits[lanes] = True
        pending, self._pending = self._pending, []
        for store in pending:
            lane = store.issue.lane
            ready = waits[lane] and store.group < self._committed[lane] - keep
            if ready and not read_only:
                store.land()
                continue
            if ready:
                store.read()
            self._pending.append(store)

    def finish(self) -> None:
        """Land what is left when all threads are done."""
        for store in self._pending:
            store.refuse_end()
            store.land()
        self._pending.clear()
