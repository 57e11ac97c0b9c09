"""Instructions of a whole warp: shuffles, votes, matches, reductions and elections.

The scheduler runs them only when all lanes that a lane's mask names are there, or have ended. What
a lane takes from one that is not there, or that its mask does not name, is the poison of an
unwritten register.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sdpakit.ptxemu.errors import Divergence
from sdpakit.ptxemu.operands import read, write
from sdpakit.ptxemu.program import Immediate, Instruction, Operand, Pair
from sdpakit.ptxemu.registry import Step, instruction, unsupported
from sdpakit.ptxemu.scalars import B32, PREDICATE, U32, Array, ScalarType
from sdpakit.ptxemu.warps import WARP, WarpView, pack, unpack

if TYPE_CHECKING:
    from sdpakit.ptxemu.machine import Lanes, Machine

_LANE = np.arange(WARP)
_ALL = np.uint32(0xFFFFFFFF)
_POISON = np.uint32(0x7FC0DEAD)
# What a lane reads in a shuffle: the lane it names, and whether that is in range.
_Sources: TypeAlias = tuple[NDArray[np.intp], NDArray[np.bool_]]
Masks: TypeAlias = "Callable[[Machine, Lanes, WarpView], NDArray[np.uint32] | None]"


def masks_of(ins: Instruction, operand: Operand | None) -> Masks:
    """Return a reader of the masks of lanes: one a lane; None where all of them name all lanes."""
    if operand is None or (isinstance(operand, Immediate) and operand.value & 0xFFFFFFFF == _ALL):
        return lambda machine, lanes, view: None
    reader = read(operand, U32)

    def masks(machine: Machine, lanes: Lanes, view: WarpView) -> NDArray[np.uint32] | None:
        found = reader(machine, lanes)
        if (found == _ALL).all():
            return None
        if machine.checks.divergence:
            out = (found >> view.column.astype(np.uint32)) & 1 == 0
            if out.any():
                mask = int(np.broadcast_to(found, out.shape)[out][0])
                raise machine.fault(
                    Divergence,
                    ins,
                    lanes,
                    f"the lane is not in its own mask 0x{mask:08x}",
                    "name every lane that executes the instruction in its mask",
                    out,
                )
        return found

    return masks


@instruction("shfl")
def _shfl(ins: Instruction) -> Step:
    sync = ins.has("sync")
    mode = ins.modifiers[1 if sync else 0]
    if mode not in {"up", "down", "bfly", "idx"} or ins.modifiers[-1] != "b32":
        raise unsupported(ins, f"shuffle {'.'.join(ins.modifiers)}")
    result, value, offset, clamp = ins.operands[:4]
    target, in_range = _pair(result)
    source = read(value, B32)
    put, put_range = write(target), None if in_range is None else write(in_range)
    sources = _sources(mode, offset, clamp)
    masks = masks_of(ins, ins.operands[4] if sync else None)

    def step(machine: Machine, lanes: Lanes) -> None:
        view = machine.warp_views.of(lanes)
        rows = view.spread(source(machine, lanes))
        named = masks(machine, lanes, view)
        lane, valid = sources(machine, lanes, view)
        found = rows[:, lane] if lane.ndim == 1 else np.take_along_axis(rows, lane, 1)
        values = view.collect(found)
        if named is not None or not view.whole:
            values = np.where(_is_there(view, lane, named), values, _POISON)
        put(machine, lanes, values)
        if put_range is not None:
            put_range(machine, lanes, view.collect(np.broadcast_to(valid, rows.shape)))

    return step


def _pair(target: Operand) -> tuple[Operand, Operand | None]:
    """Return both results of ``d|p``, or one."""
    return (target.first, target.second) if isinstance(target, Pair) else (target, None)


def _is_there(
    view: WarpView, lane: NDArray[np.intp], masks: NDArray[np.uint32] | None
) -> NDArray[np.bool_]:
    """Return of each lane whether the one that it reads is there, and in its mask."""
    bits = view.repeat(view.present_bits)
    if masks is not None:
        bits = bits & masks
    shift = view.collect(np.broadcast_to(lane, (len(view.warps), WARP))).astype(np.uint32)
    there: NDArray[np.bool_] = (bits >> shift) & 1 != 0
    return there


def _sources(
    mode: str, offset: Operand, clamp: Operand
) -> Callable[[Machine, Lanes, WarpView], _Sources]:
    if isinstance(offset, Immediate) and isinstance(clamp, Immediate):
        fixed = _resolve(mode, np.array(offset.value & 31), np.array(clamp.value))
        return lambda machine, lanes, view: fixed
    offsets, clamps = read(offset, U32), read(clamp, U32)

    def sources(machine: Machine, lanes: Lanes, view: WarpView) -> _Sources:
        b = view.spread(offsets(machine, lanes)).astype(np.intp) & 31
        return _resolve(mode, b, view.spread(clamps(machine, lanes)).astype(np.intp))

    return sources


def _resolve(mode: str, b: NDArray[np.intp], c: NDArray[np.intp]) -> _Sources:
    """Return the lane that each lane reads by the rules of ``shfl``, and whether it is in range."""
    limit, segment = c & 31, c >> 8 & 31
    last, first = (_LANE & segment) | (limit & ~segment), _LANE & segment
    if mode == "up":
        lane = _LANE - b
        valid = lane >= last
    else:
        lane = {"down": _LANE + b, "bfly": _LANE ^ b, "idx": first | (b & ~segment)}[mode]
        valid = lane <= last
    return np.where(valid, lane, _LANE), valid


@instruction("vote")
def _vote(ins: Instruction) -> Step:
    sync = ins.has("sync")
    mode = ins.modifiers[1 if sync else 0]
    if mode not in _VOTES:
        raise unsupported(ins, f"vote {mode!r}")
    predicate, put, decide = read(ins.operands[1], PREDICATE), write(ins.operands[0]), _VOTES[mode]
    masks = masks_of(ins, ins.operands[2] if sync else None)

    def step(machine: Machine, lanes: Lanes) -> None:
        view = machine.warp_views.of(lanes)
        votes, there = pack(view.spread(predicate(machine, lanes))), view.present_bits
        named = masks(machine, lanes, view)
        if named is None:
            put(machine, lanes, view.repeat(decide(votes, there)))
        else:
            put(machine, lanes, decide(view.repeat(votes) & named, view.repeat(there) & named))

    return step


# What voters get, of the bits of those who vote yes and of those who vote.
_VOTES: dict[str, Callable[[Array, Array], Array]] = {
    "all": lambda yes, there: yes == there,
    "any": lambda yes, there: yes != 0,
    "uni": lambda yes, there: (yes == there) | (yes == 0),
    "ballot": lambda yes, there: yes,
}


@instruction("activemask")
def _activemask(ins: Instruction) -> Step:
    put = write(ins.operands[0])

    def step(machine: Machine, lanes: Lanes) -> None:
        view = machine.warp_views.of(lanes)
        put(machine, lanes, view.repeat(view.present_bits))

    return step


@instruction("elect")
def _elect(ins: Instruction) -> Step:
    target = ins.operands[0]
    if not isinstance(target, Pair):
        raise unsupported(ins, "elect without a predicate")
    put, put_predicate = write(target.first), write(target.second)
    masks = masks_of(ins, ins.operands[1])

    def step(machine: Machine, lanes: Lanes) -> None:
        view = machine.warp_views.of(lanes)
        named = masks(machine, lanes, view)
        there = view.repeat(view.present_bits)
        leader = _lowest(there if named is None else there & named)
        put(machine, lanes, leader)
        put_predicate(machine, lanes, view.column == leader)

    return step


def _lowest(bits: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return the number of the lowest bit that is set."""
    lowest = bits & (~bits + np.uint32(1))
    return np.bitwise_count(lowest - np.uint32(1)).astype(np.uint32)


@instruction("match")
def _match(ins: Instruction) -> Step:
    if ins.modifiers[0] not in {"any", "all"} or not ins.types:
        raise unsupported(ins, f"match {'.'.join(ins.modifiers)}")
    every = ins.modifiers[0] == "all"
    target, in_all = _pair(ins.operands[0])
    value, put = read(ins.operands[1], ins.type), write(target)
    put_predicate = None if in_all is None else write(in_all)
    masks = masks_of(ins, ins.operands[2])

    def step(machine: Machine, lanes: Lanes) -> None:
        view = machine.warp_views.of(lanes)
        rows = view.spread(value(machine, lanes))
        mine, row = view.collect(rows), np.repeat(rows, WARP, 0) if view.whole else rows[view.row]
        there = view.repeat(view.present_bits)
        named = masks(machine, lanes, view)
        members = there if named is None else there & named
        same = pack(row == mine[:, None]) & members
        if every:
            same = np.where(same == members, same, np.uint32(0))
        put(machine, lanes, same)
        if put_predicate is not None:
            put_predicate(machine, lanes, same != 0)

    return step


_REDUCTIONS: dict[str, tuple[np.ufunc, str]] = {
    "add": (np.add, "u32 s32"),
    "min": (np.minimum, "u32 s32 f32"),
    "max": (np.maximum, "u32 s32 f32"),
    "and": (np.bitwise_and, "b32"),
    "or": (np.bitwise_or, "b32"),
    "xor": (np.bitwise_xor, "b32"),
}


@instruction("redux")
def _redux(ins: Instruction) -> Step:
    operation, kinds = _REDUCTIONS.get(ins.modifiers[1], (np.add, ""))
    if ins.type.name not in kinds.split():
        raise unsupported(ins, f"reduction {'.'.join(ins.modifiers)}")
    kind = ins.type
    if kind.name == "f32" and not ins.has("NaN"):  # a NaN loses against a number
        operation = np.fmin if operation is np.minimum else np.fmax
    value, put = read(ins.operands[1], kind), write(ins.operands[0])
    masks, absolute = masks_of(ins, ins.operands[2]), ins.has("abs")

    def step(machine: Machine, lanes: Lanes) -> None:
        view = machine.warp_views.of(lanes)
        values = value(machine, lanes)
        rows = view.spread(np.abs(values) if absolute else values)
        named = masks(machine, lanes, view)
        if named is None and view.whole:
            result = view.repeat(operation.reduce(rows, axis=1, dtype=kind.value))
        else:
            there = view.repeat(view.present_bits)
            members = unpack(there if named is None else there & named)
            result = _reduce_some(operation, kind, rows[view.row], members)
        put(machine, lanes, result)

    return step


def _reduce_some(
    operation: np.ufunc, kind: ScalarType, rows: Array, members: NDArray[np.bool_]
) -> Array:
    """Reduce rows over their members; every row has one."""
    if operation is np.add:
        neutral = kind.value.type(0)
        total: Array = np.where(members, rows, neutral).sum(axis=1, dtype=kind.value)
        return total
    # Of the others, a member that counts twice changes nothing, but in xor, where zero is neutral.
    first = np.take_along_axis(rows, members.argmax(axis=1)[:, None], 1)
    neutral = np.zeros_like(first) if operation is np.bitwise_xor else first
    reduced: Array = operation.reduce(np.where(members, rows, neutral), axis=1)
    return reduced
