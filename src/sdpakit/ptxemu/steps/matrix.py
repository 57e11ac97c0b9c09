"""Steps of what warps do with matrices: ``ldmatrix``, ``stmatrix``, ``movmatrix`` and ``mma``.

Order of sums in ``mma``: the products of one instruction are added in float32 (float64 for ``f64``)
by one ``numpy.matmul`` over all warps, and the accumulator is added to their sum last. Tensor cores
add in an order, and with a precision, that PTX leaves open; so their last bits differ.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sdpakit.ptxemu import fragments
from sdpakit.ptxemu.elements import ELEMENTS, add, encode
from sdpakit.ptxemu.fragments import RegisterTile
from sdpakit.ptxemu.memory import SHARED_BASE
from sdpakit.ptxemu.operands import address
from sdpakit.ptxemu.program import Operand, Vector
from sdpakit.ptxemu.registry import Step, instruction, unsupported
from sdpakit.ptxemu.teams import WARP, Team, assemble
from sdpakit.ptxemu.words import gather, scatter

if TYPE_CHECKING:
    from sdpakit.ptxemu.machine import Lanes, Machine
    from sdpakit.ptxemu.program import Instruction

_ROW = 16  # bytes of a row of an 8x8 matrix of 16-bit elements

# --------------------------------------------------------------------------- 8x8 matrices in memory


def _matrix_count(ins: Instruction, vector: Operand) -> int:
    """Return how many 8x8 matrices ``ldmatrix`` or ``stmatrix`` moves; refuse forms we lack."""
    counts = [count for count in (1, 2, 4) if ins.has(f"x{count}")]
    if not ins.has("m8n8") or not ins.has("b16") or not counts:
        raise unsupported(ins, f"form of {ins.opcode} but m8n8 with x1, x2 or x4 and b16")
    if len(_items(vector)) != counts[0]:
        raise unsupported(
            ins, f"{ins.opcode} of {counts[0]} matrices into another number of registers"
        )
    return counts[0]


def _items(operand: Operand) -> tuple[Operand, ...]:
    return operand.items if isinstance(operand, Vector) else (operand,)


def _eights(operand: Operand) -> list[RegisterTile]:
    """Return the 8x8 matrices that registers hold, one each."""
    return [RegisterTile(fragments.row_of_eight(), item, "u2") for item in _items(operand)]


def _addressing(team: Team, machine: Machine, count: int) -> tuple[Lanes, NDArray[np.intp] | None]:
    """Return the lanes whose addresses count, 8 a matrix, and their places, None for all."""
    if count == 4:
        return team.lanes, None
    places = (np.arange(team.count)[:, None] * WARP + np.arange(8 * count)).reshape(-1)
    return machine.indices(team.lanes)[places], places


@instruction("ldmatrix")
def ldmatrix(ins: Instruction) -> Step:
    """Build a load of 8x8 matrices of 16-bit elements."""
    count = _matrix_count(ins, ins.operands[0])
    row_address = address(ins.operands[1])
    window = SHARED_BASE if ins.space == "generic" else 0
    tiles = _eights(ins.operands[0])
    transposed = ins.has("trans")

    def step(machine: Machine, lanes: Lanes) -> None:
        team = assemble(machine, ins, lanes, WARP)
        addressing, places = _addressing(team, machine, count)
        addresses = row_address(machine, team.lanes) - window
        if places is not None:
            addresses = addresses[places]
        offsets = machine.memory.read_shared(ins, addressing, addresses, _ROW)
        rows = gather(machine.memory.shared, offsets, _ROW).view(np.uint16)
        matrices = rows.reshape(team.count, count, 8, 8)
        if transposed:
            matrices = np.ascontiguousarray(matrices.swapaxes(2, 3))
        for index, tile in enumerate(tiles):
            tile.write(machine, team, matrices[:, index])

    return step


@instruction("stmatrix")
def stmatrix(ins: Instruction) -> Step:
    """Build a store of 8x8 matrices of 16-bit elements."""
    count = _matrix_count(ins, ins.operands[1])
    row_address = address(ins.operands[0])
    window = SHARED_BASE if ins.space == "generic" else 0
    tiles = _eights(ins.operands[1])
    transposed = ins.has("trans")

    def step(machine: Machine, lanes: Lanes) -> None:
        team = assemble(machine, ins, lanes, WARP)
        addressing, places = _addressing(team, machine, count)
        addresses = row_address(machine, team.lanes) - window
        if places is not None:
            addresses = addresses[places]
        matrices = np.stack([tile.read(machine, team) for tile in tiles], axis=1)
        if transposed:
            matrices = np.ascontiguousarray(matrices.swapaxes(2, 3))
        offsets = machine.memory.write_shared(ins, addressing, addresses, _ROW)
        scatter(machine.memory.shared, offsets, matrices.view(np.uint8).reshape(-1, _ROW))

    return step


@instruction("movmatrix")
def movmatrix(ins: Instruction) -> Step:
    """Build a transposition of an 8x8 matrix in registers."""
    if not (ins.has("m8n8") and ins.has("trans") and ins.has("b16")):
        raise unsupported(ins, "form of movmatrix but m8n8.trans.b16")
    (source,), (target,) = _eights(ins.operands[1]), _eights(ins.operands[0])

    def step(machine: Machine, lanes: Lanes) -> None:
        team = assemble(machine, ins, lanes, WARP)
        turned = source.read(machine, team).swapaxes(1, 2)
        target.write(machine, team, np.ascontiguousarray(turned))

    return step


# ---------------------------------------------------------------------------------------------- mma

_SHAPE = re.compile(r"m(\d+)n8k(\d+)")
# Rows and depths by the type of A; the m8n8k4 of f16 has a layout of its own, which is not here.
_SHAPES = {
    **dict.fromkeys(("f16", "bf16"), ((16, 8), (16, 16))),
    **dict.fromkeys(("s8", "u8"), ((8, 16), (16, 16), (16, 32))),
    **dict.fromkeys(("e4m3", "e5m2"), ((16, 16), (16, 32))),
    "tf32": ((16, 4), (16, 8)),
    "f64": ((8, 4), (16, 4), (16, 8), (16, 16)),
}
_SUMS = {
    "f16": ("f16", "f32"),
    "bf16": ("f32",),
    "tf32": ("f32",),
    "s8": ("s32",),
    "u8": ("s32",),
    "e4m3": ("f16", "f32"),
    "e5m2": ("f16", "f32"),
    "f64": ("f64",),
}
_MIXES = ({"s8", "u8"}, {"e4m3", "e5m2"})  # A and B may differ within these
_REFUSED = frozenset({"sp", "block_scale", "xor", "and"})


class _Form:
    """Which ``mma`` an instruction is: its shape and its types."""

    def __init__(self, ins: Instruction) -> None:
        found = [shape for part in ins.modifiers if (shape := _SHAPE.fullmatch(part))]
        kinds = ins.modifiers[-4:]
        if len(found) != 1 or any(ins.has(part) or f"{part}::" in ins.text for part in _REFUSED):
            raise unsupported(ins, "such form of mma")
        self.rows, self.depth = int(found[0][1]), int(found[0][2])
        self.result, self.left, self.right, self.addend = kinds
        if not (self._is_known() and ins.has("row") and ins.has("col")):
            known = "; ".join(
                f"{kind}: {', '.join(f'm{rows}n8k{depth}' for rows, depth in shapes)}"
                for kind, shapes in _SHAPES.items()
            )
            raise unsupported(ins, f"mma of this shape and these types (it has {known})")

    def _is_known(self) -> bool:
        if self.left not in _SHAPES or not {self.result, self.addend} <= set(_SUMS[self.left]):
            return False
        pair = {self.left, self.right}
        if len(pair) == 2 and not any(pair <= mix for mix in _MIXES):
            return False
        return (self.rows, self.depth) in _SHAPES[self.left]

    def tiles(self, ins: Instruction) -> tuple[RegisterTile, ...]:
        """Return D, A, B and C."""
        rows, depth = self.rows, self.depth
        layouts = (
            fragments.accumulator(rows, depth, self.result),
            fragments.left(rows, depth, self.left),
            fragments.right(rows, depth, self.right),
            fragments.accumulator(rows, depth, self.addend),
        )
        kinds = (self.result, self.left, self.right, self.addend)
        try:
            return tuple(
                RegisterTile(layout, operand, ELEMENTS[kind].raw)
                for layout, operand, kind in zip(layouts, ins.operands, kinds, strict=True)
            )
        except ValueError as error:
            raise unsupported(ins, f"mma with operands of other sizes ({error})") from error


@instruction("mma")
def mma(ins: Instruction) -> Step:
    """Build a product of matrices in the registers of a warp."""
    form = _Form(ins)
    result, left, right, addend = form.tiles(ins)
    decode_left, decode_right = ELEMENTS[form.left].decode, ELEMENTS[form.right].decode
    decode_addend = ELEMENTS[form.addend].decode
    saturates, flops = ins.has("satfinite"), 2 * form.rows * 8 * form.depth

    def step(machine: Machine, lanes: Lanes) -> None:
        team = assemble(machine, ins, lanes, WARP)
        a = decode_left(left.read(machine, team))
        b = decode_right(right.read(machine, team))
        c = decode_addend(addend.read(machine, team))
        total = add(np.matmul(a, b.transpose(0, 2, 1)), c, form.result, saturates=saturates)
        result.write(machine, team, encode(form.result, total))
        machine.counters.matrix_flops += flops * team.count

    return step
