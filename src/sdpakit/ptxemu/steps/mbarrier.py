"""mbarrier instructions, and addresses of other blocks of a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sdpakit.ptxemu.mbarriers import BARRIER_BYTES, Wait, states_pending, states_phase
from sdpakit.ptxemu.memory import SHARED_BASE, SHARED_RANK_SHIFT
from sdpakit.ptxemu.operands import Reader, address, full, read, write
from sdpakit.ptxemu.program import Address, Immediate, Instruction, Operand, Sink
from sdpakit.ptxemu.registry import Step, instruction, unsupported
from sdpakit.ptxemu.scalars import B64, PREDICATE, TYPES, U32, Array

if TYPE_CHECKING:
    from sdpakit.ptxemu.machine import Lanes, Machine

_ONE = Immediate(1)


def shared_address(ins: Instruction, operand: Operand, *, generic: bool = False) -> Reader:
    """Return a reader of addresses in the shared window.

    They are generic ones if `generic`, or if the instruction names no state space.
    """
    reader = address(operand)
    if not generic and ins.space != "generic":
        return reader
    return lambda machine, lanes: reader(machine, lanes) - SHARED_BASE


def locate(machine: Machine, ins: Instruction, lanes: Lanes, addresses: Array) -> Array:
    """Return the offsets of mbarrier objects into `Memory.shared`."""
    return machine.memory.locate_shared(ins, lanes, addresses, BARRIER_BYTES)


def _counts(operand: Operand) -> Reader:
    reader = read(operand, U32)
    return lambda machine, lanes: full(reader(machine, lanes).astype(np.int64), machine.size(lanes))


@instruction("mbarrier")
def mbarrier(ins: Instruction) -> Step:
    """All ``mbarrier`` instructions."""
    name = ins.modifiers[0]
    if "noComplete" in ins.modifiers:
        raise unsupported(ins, "mbarrier.arrive.noComplete")
    builders = {
        "init": _init,
        "inval": _inval,
        "expect_tx": _expect,
        "complete_tx": _complete,
        "arrive": _arrive,
        "arrive_drop": _arrive,
        "test_wait": _wait,
        "try_wait": _wait,
        "pending_count": _pending_count,
    }
    if name not in builders:
        raise unsupported(ins, f"mbarrier.{name}")
    return builders[name](ins)


def _init(ins: Instruction) -> Step:
    where, count = shared_address(ins, ins.operands[0]), _counts(ins.operands[1])

    def step(machine: Machine, lanes: Lanes) -> None:
        offsets = locate(machine, ins, lanes, where(machine, lanes))
        machine.mbarriers.initialise(ins, lanes, offsets, count(machine, lanes))

    return step


def _inval(ins: Instruction) -> Step:
    where = shared_address(ins, ins.operands[0])

    def step(machine: Machine, lanes: Lanes) -> None:
        offsets = locate(machine, ins, lanes, where(machine, lanes))
        machine.mbarriers.invalidate(ins, lanes, offsets)

    return step


def _expect(ins: Instruction) -> Step:
    where, transactions = shared_address(ins, ins.operands[0]), _counts(ins.operands[1])

    def step(machine: Machine, lanes: Lanes) -> None:
        offsets = locate(machine, ins, lanes, where(machine, lanes))
        machine.mbarriers.expect(ins, lanes, offsets, transactions(machine, lanes))

    return step


def _complete(ins: Instruction) -> Step:
    where, transactions = shared_address(ins, ins.operands[0]), _counts(ins.operands[1])

    def step(machine: Machine, lanes: Lanes) -> None:
        offsets = locate(machine, ins, lanes, where(machine, lanes))
        machine.mbarriers.require(ins, lanes, offsets)
        amounts, indices = transactions(machine, lanes), machine.indices(lanes)
        for index, offset in enumerate(offsets.tolist()):
            lane = indices[index : index + 1]
            machine.mbarriers.complete(ins, lane, offset, int(amounts[index]), None)

    return step


def _arrive(ins: Instruction) -> Step:
    """``arrive`` and ``arrive_drop``, with or without ``expect_tx``."""
    operands = ins.operands
    if isinstance(operands[0], Address):  # without a state, which older PTX allows
        operands = (Sink(), *operands)
    if len(operands) not in {2, 3}:
        raise unsupported(ins, f"form with {len(ins.operands)} operands")
    put, where = write(operands[0], B64), shared_address(ins, operands[1])
    last = _counts(operands[2] if len(operands) == 3 else _ONE)
    one = _counts(_ONE)
    expects, drops = "expect_tx" in ins.modifiers, ins.modifiers[0] == "arrive_drop"

    def step(machine: Machine, lanes: Lanes) -> None:
        offsets = locate(machine, ins, lanes, where(machine, lanes))
        counts = last(machine, lanes)
        if expects:
            machine.mbarriers.expect(ins, lanes, offsets, counts)
            counts = one(machine, lanes)
        states = machine.mbarriers.arrive(ins, lanes, offsets, counts, drop=drops)
        put(machine, lanes, states)

    return step


def _wait(ins: Instruction) -> Step:
    """``test_wait`` and ``try_wait``; the time that the latter may be given means nothing here."""
    by_parity = "parity" in ins.modifiers
    put, where = write(ins.operands[0], PREDICATE), shared_address(ins, ins.operands[1])
    phase = read(ins.operands[2], U32 if by_parity else B64)
    acquires = "relaxed" not in ins.modifiers

    def step(machine: Machine, lanes: Lanes) -> None:
        offsets = locate(machine, ins, lanes, where(machine, lanes))
        phases = full(phase(machine, lanes), machine.size(lanes))
        phases = phases.astype(np.int64) if by_parity else states_phase(phases)
        indices = machine.indices(lanes)
        machine.mbarriers.wait(offsets, Wait(ins, indices, phases, by_parity, put, acquires))

    return step


def _pending_count(ins: Instruction) -> Step:
    put, state = write(ins.operands[0], U32), read(ins.operands[1], B64)

    def step(machine: Machine, lanes: Lanes) -> None:
        put(machine, lanes, states_pending(state(machine, lanes)))

    return step


@instruction("mapa")
def mapa(ins: Instruction) -> Step:
    """``mapa``: the address of a shared variable in another block of the cluster."""
    kind = ins.type
    generic = ins.space == "generic"
    put, source, rank = write(ins.operands[0]), read(ins.operands[1], kind), _rank(ins)
    low = (1 << SHARED_RANK_SHIFT) - 1
    base = SHARED_BASE if generic else 0

    def step(machine: Machine, lanes: Lanes) -> None:
        offsets = (source(machine, lanes).astype(np.int64) - base) & low
        named = base + offsets + (rank(machine, lanes) + 1 << SHARED_RANK_SHIFT)
        put(machine, lanes, named.astype(kind.storage))

    return step


def _rank(ins: Instruction) -> Reader:
    reader = read(ins.operands[2], TYPES["u32"])
    return lambda machine, lanes: reader(machine, lanes).astype(np.int64)


@instruction("getctarank")
def getctarank(ins: Instruction) -> Step:
    """``getctarank``: which block of the cluster a shared address names."""
    kind = ins.type
    put, source = write(ins.operands[0], U32), read(ins.operands[1], kind)
    base = SHARED_BASE if ins.space == "generic" else 0

    def step(machine: Machine, lanes: Lanes) -> None:
        named = ((source(machine, lanes).astype(np.int64) - base) >> SHARED_RANK_SHIFT) - 1
        own = machine.special("%cluster_ctarank", lanes).astype(np.int64)
        put(machine, lanes, np.where(named < 0, own, named).astype(np.uint32))

    return step
