"""Steps of warpgroups: ``wgmma`` and ``setmaxnreg``.

The order of sums is that of ``mma``: products of one instruction in float32 by one ``numpy.matmul``
over all warpgroups, then the accumulator; ``f16`` accumulators are rounded after each instruction.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sdpakit.ptxemu import fragments
from sdpakit.ptxemu.descriptors import CHUNK, SharedTile, decode
from sdpakit.ptxemu.elements import ELEMENTS, add, encode
from sdpakit.ptxemu.errors import Divergence
from sdpakit.ptxemu.fragments import RegisterTile
from sdpakit.ptxemu.memory import WRITTEN
from sdpakit.ptxemu.operands import Reader, read
from sdpakit.ptxemu.program import Immediate, Operand, Vector
from sdpakit.ptxemu.registry import Step, instruction, unsupported
from sdpakit.ptxemu.scalars import B64, PREDICATE, Array
from sdpakit.ptxemu.teams import WARPGROUP, Team, assemble
from sdpakit.ptxemu.words import all_equal, gather

if TYPE_CHECKING:
    from sdpakit.ptxemu.machine import Lanes, Machine
    from sdpakit.ptxemu.program import Instruction

_SHAPE = re.compile(r"m64n(\d+)k(\d+)")
_DEPTHS = {"f16": 16, "bf16": 16, "tf32": 8, "s8": 32, "u8": 32, "e4m3": 32, "e5m2": 32}
_SUMS = {
    "f16": ("f16", "f32"),
    "bf16": ("f32",),
    "tf32": ("f32",),
    "s8": ("s32",),
    "u8": ("s32",),
    "e4m3": ("f16", "f32"),
    "e5m2": ("f16", "f32"),
}
_MIXES = ({"s8", "u8"}, {"e4m3", "e5m2"})


@instruction("wgmma")
def wgmma(ins: Instruction) -> Step:
    """Build one of the instructions of asynchronous products."""
    match ins.modifiers[0]:
        case "fence":
            return _fence(ins)
        case "commit_group":
            return _commit(ins)
        case "wait_group":
            return _wait(ins)
        case "mma_async":
            return _Product(ins).step
    raise unsupported(ins, f"wgmma.{ins.modifiers[0]}")


def _fence(ins: Instruction) -> Step:
    def step(machine: Machine, lanes: Lanes) -> None:
        machine.products.fence(assemble(machine, ins, lanes, WARPGROUP))

    return step


def _commit(ins: Instruction) -> Step:
    def step(machine: Machine, lanes: Lanes) -> None:
        machine.products.commit(assemble(machine, ins, lanes, WARPGROUP))

    return step


def _wait(ins: Instruction) -> Step:
    pending = _immediate(ins, ins.operands[0])

    def step(machine: Machine, lanes: Lanes) -> None:
        machine.products.wait(assemble(machine, ins, lanes, WARPGROUP), pending)

    return step


def _immediate(ins: Instruction, operand: Operand) -> int:
    if not isinstance(operand, Immediate):
        raise unsupported(ins, "such operand where PTX wants a constant")
    return operand.value


# ----------------------------------------------------------------------------------------- products


@dataclass(frozen=True, slots=True)
class _Form:
    """Shape and types of ``wgmma.mma_async``."""

    columns: int
    depth: int
    result: str
    left: str
    right: str


def _form(ins: Instruction) -> _Form:
    shapes = [found for part in ins.modifiers if (found := _SHAPE.fullmatch(part))]
    kinds = [part for part in ins.modifiers if part in ELEMENTS]
    if len(shapes) != 1 or len(kinds) != 3 or ins.has("sp"):
        raise unsupported(ins, "such form of wgmma.mma_async")
    result, left, right = kinds
    form = _Form(int(shapes[0][1]), int(shapes[0][2]), result, left, right)
    pair = {left, right}
    mixed = len(pair) == 2 and not any(pair <= mix for mix in _MIXES)
    if (
        mixed
        or form.depth != _DEPTHS.get(left)
        or result not in _SUMS[left]
        or not (form.columns % 8 == 0 and 8 <= form.columns <= 256)
    ):
        known = ", ".join(f"m64nNk{depth} of {kind}" for kind, depth in _DEPTHS.items())
        raise unsupported(ins, f"wgmma of this shape and these types; it has {known}")
    return form


class _Product:
    """``wgmma.mma_async``: how an instruction finds its operands."""

    def __init__(self, ins: Instruction) -> None:
        self._ins = ins
        form = self._form = _form(ins)
        accumulator = fragments.warpgroup_accumulator(form.columns, form.depth, form.result)
        try:
            self._result = RegisterTile(accumulator, ins.operands[0], ELEMENTS[form.result].raw)
            left = self._left(ins.operands[1], accumulator.row_order)
        except ValueError as error:
            raise unsupported(ins, f"wgmma with operands of other sizes ({error})") from error
        self._in_registers = isinstance(left, RegisterTile)
        self._a = left
        self._inputs = left.slots if isinstance(left, RegisterTile) else frozenset()
        self._scale = read(ins.operands[3], PREDICATE)
        self._negative, transposed = self._options(ins.operands[4:])
        if isinstance(left, SharedTile):
            left.mn_major = transposed[0]
            self._a_descriptor = read(ins.operands[1], B64)
        self._b = SharedTile(
            ELEMENTS[form.right], accumulator.column_order, form.depth, mn_major=transposed[1]
        )
        self._b_descriptor = read(ins.operands[2], B64)
        self._saturates = ins.has("satfinite")
        self._decode = ELEMENTS[form.left].decode
        self._flops = 2 * 64 * form.columns * form.depth

    def _left(self, operand: Operand, rows: NDArray[np.intp]) -> RegisterTile | SharedTile:
        element = ELEMENTS[self._form.left]
        if not isinstance(operand, Vector):
            return SharedTile(element, rows, self._form.depth, mn_major=False)
        layout = fragments.warpgroup_left(self._form.depth, element.name)
        self._k = np.argsort(layout.column_order)  # shared operands have k in its natural order
        return RegisterTile(layout, operand, element.raw)

    def _options(self, operands: tuple[Operand, ...]) -> tuple[bool, tuple[bool, bool]]:
        """Return whether the product is negated, and which shared operands are MN-major."""
        values = [_immediate(self._ins, operand) for operand in operands]
        signs, majors = values[:2], values[2:]
        expected = 0
        if self._form.left in {"f16", "bf16"}:
            expected = 1 if self._in_registers else 2
        scales = 0 if self._form.result == "s32" else 2
        if len(signs) != scales or len(majors) != expected or not {*signs} <= {1, -1}:
            raise unsupported(
                self._ins,
                f"wgmma with these constants; it takes {scales} scales (1 or -1) and {expected} "
                "choices of majorness (0 or 1)",
            )
        majors = [0] * (2 - expected) + majors
        return signs.count(-1) == 1, (bool(majors[0]), bool(majors[1]))

    def step(self, machine: Machine, lanes: Lanes) -> None:
        """Issue the product."""
        ins, form = self._ins, self._form
        team = assemble(machine, ins, lanes, WARPGROUP)
        adds = self._uniform(machine, team, self._scale, "scale-d").astype(bool)
        held = machine.products.take(ins, team, self._result, self._inputs, adds)
        offsets: list[NDArray[np.int64]] = []
        a = self._read_a(machine, team, offsets)
        b = self._read_shared(machine, team, self._b, self._b_descriptor, offsets)
        products = np.matmul(a, b.transpose(0, 2, 1))
        if self._negative:
            np.negative(products, out=products)
        if adds.any():
            addend = ELEMENTS[form.result].decode(held.matrix)
            if not adds.all():
                addend = np.where(adds[:, None, None], addend, 0)
            products = add(products, addend, form.result, saturates=self._saturates)
        else:
            products = add(products, None, form.result, saturates=self._saturates)
        held.matrix = encode(form.result, products)
        machine.products.issue(
            ins, team, self._result, self._inputs, np.concatenate(offsets, axis=1)
        )
        machine.counters.matrix_flops += self._flops * team.count

    def _read_a(self, machine: Machine, team: Team, offsets: list[NDArray[np.int64]]) -> Array:
        if isinstance(self._a, SharedTile):
            return self._read_shared(machine, team, self._a, self._a_descriptor, offsets)
        values = self._decode(self._a.read(machine, team))
        return values.take(self._k, axis=2, mode="clip")

    def _read_shared(
        self,
        machine: Machine,
        team: Team,
        tile: SharedTile,
        descriptor: Reader,
        offsets: list[NDArray[np.int64]],
    ) -> Array:
        """Return matrices from shared memory; note the offsets of what was read."""
        values = self._uniform(machine, team, descriptor, "a descriptor")
        addresses = tile.addresses(decode(values))
        addresses = np.broadcast_to(addresses, (team.count, addresses.shape[1]))
        memory, first = machine.memory, team.first
        found = memory.locate_shared(self._ins, first, addresses, CHUNK)
        if not all_equal(memory.shared_state, found, CHUNK, WRITTEN):
            memory.check_read(self._ins, first, found, CHUNK)
        offsets.append(found)
        return tile.matrices(gather(memory.shared, found, CHUNK), team.count)

    def _uniform(self, machine: Machine, team: Team, reader: Reader, what: str) -> Array:
        """Return a value of each warpgroup, which its threads must agree on."""
        values = team.read(machine, reader)
        if machine.checks.divergence and (bad := values != values[:, :1]).any():
            row, column = (int(index) for index in np.argwhere(bad)[0])
            raise machine.fault(
                Divergence,
                self._ins,
                team.first[row : row + 1] + column,
                f"{what} is {values[row, column]:#x} here, but {values[row, 0]:#x} in the first "
                "thread of the warpgroup",
                "All threads of a warpgroup must give the same: compute it from the number of the "
                "warpgroup, not of the thread or warp.",
            )
        return values[:, 0]


# ---------------------------------------------------------------------------------------- registers


@instruction("setmaxnreg")
def setmaxnreg(ins: Instruction) -> Step:
    """Build a change of the register count; `PendingProducts` sees whether there are enough."""
    count = _immediate(ins, ins.operands[0])
    if count % 8 or not 24 <= count <= 256:
        raise unsupported(ins, f"setmaxnreg of {count}: PTX wants a multiple of 8 from 24 to 256")

    def step(machine: Machine, lanes: Lanes) -> None:
        team = assemble(machine, ins, lanes, WARPGROUP)
        machine.products.set_registers(ins, team, count)

    return step
