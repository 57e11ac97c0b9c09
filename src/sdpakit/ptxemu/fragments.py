"""How registers hold matrices: the fragment layouts of ``mma``, ``wgmma`` and ``ldmatrix``.

A layout is a pair of tables: thread t of the warp or warpgroup holds as its value v (from low to
high, register after register) the element in row ``rows[t, v]`` and column ``columns[t, v]``. The
tables are those of figures in the PTX ISA; each layout names the caption of its figure.

A product does not care in which order rows and columns are, if only both operands and the result
agree. So tiles are *packed* here in the order in which threads hold them: rows as they first appear
value by value, columns as they first appear thread by thread. In that order, what a register has of
all threads lies at a constant stride in the matrix, and a matrix is gathered from registers by
one strided copy each, with no permutation of elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sdpakit.ptxemu.elements import ELEMENTS
from sdpakit.ptxemu.operands import read, write
from sdpakit.ptxemu.program import Operand, Register, Vector
from sdpakit.ptxemu.scalars import B32, B64, Array

if TYPE_CHECKING:
    from sdpakit.ptxemu.machine import Machine
    from sdpakit.ptxemu.teams import Team

Table = NDArray[np.intp]

# What captions of the PTX ISA call the types of A and B.
_TYPES = {
    **dict.fromkeys(("f16", "bf16"), ".f16 / .bf16"),
    **dict.fromkeys(("s8", "u8", "e4m3", "e5m2"), ".u8 / .s8"),
    "tf32": ".tf32",
    "f64": ".f64",
}


@dataclass(frozen=True)
class Fragment:
    """One layout.

    Parameters
    ----------
    figure : str
        Caption of the figure of the PTX ISA that has it.
    rows, columns : numpy.ndarray
        Of each thread (first axis) and value.
    per_register : int
        Values in a register.
    """

    figure: str
    rows: Table
    columns: Table
    per_register: int

    @cached_property
    def row_order(self) -> Table:
        """The rows of the matrix, in the order of a packed tile."""
        return _first_seen(self.rows.T)

    @cached_property
    def column_order(self) -> Table:
        """The columns of the matrix, in the order of a packed tile."""
        return _first_seen(self.columns)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the matrix."""
        return len(self.row_order), len(self.column_order)

    @property
    def threads(self) -> int:
        """How many threads hold it together."""
        return len(self.rows)

    @property
    def registers(self) -> int:
        """How many registers of a thread hold it."""
        return int(self.rows.shape[1]) // self.per_register

    @cached_property
    def places(self) -> tuple[slice, ...]:
        """Of each register: where its words, one a thread, are among those of a packed tile."""
        row, column = np.argsort(self.row_order), np.argsort(self.column_order)
        element = row[self.rows] * self.shape[1] + column[self.columns]
        grouped = element.reshape(self.threads, self.registers, self.per_register)
        together = grouped == grouped[:, :, :1] + np.arange(self.per_register)
        word = grouped[:, :, 0] // self.per_register
        step = word[1] - word[0]
        if not (together.all() and (np.diff(word, axis=0) == step).all()):
            raise ValueError(f"{self.figure}: registers have no constant stride")
        last = word[-1] + 1
        return tuple(
            slice(int(a), int(b), int(c)) for a, b, c in zip(word[0], last, step, strict=True)
        )


def _first_seen(values: Table) -> Table:
    """Return the distinct values in the order in which they first appear."""
    found, first = np.unique(values, return_index=True)
    return found[np.argsort(first)]


class RegisterTile:
    """A matrix operand: a layout, and the registers of an instruction that hold it.

    Parameters
    ----------
    fragment : Fragment
        The layout.
    operand : Operand
        Registers as PTX has them: a vector, or one register alone.
    dtype : str or numpy.dtype
        What the elements are, as NumPy sees them in registers.

    Attributes
    ----------
    order : tuple of int
        Slots of the registers, in order; -1 for what is no register.
    slots : frozenset of int
        The same slots.
    """

    def __init__(
        self, fragment: Fragment, operand: Operand, dtype: str | np.dtype[np.generic]
    ) -> None:
        items: Sequence[Operand] = operand.items if isinstance(operand, Vector) else (operand,)
        if len(items) != fragment.registers:
            raise ValueError(f"{len(items)} registers instead of {fragment.registers}")
        self.fragment, self.dtype = fragment, np.dtype(dtype)
        self._word = B64 if self.dtype.itemsize == 8 else B32
        self._items = items
        self._readers = [read(item, self._word) for item in items]
        self.order = tuple(item.slot if isinstance(item, Register) else -1 for item in items)
        self.slots = frozenset(self.order) - {-1}

    @property
    def _words(self) -> int:
        rows, columns = self.fragment.shape
        return rows * columns // self.fragment.per_register

    def read(self, machine: Machine, team: Team) -> Array:
        """Return the matrices of a team's members, packed: shape (members, rows, columns)."""
        words = np.empty((team.count, self._words), self._word.storage)
        for place, slot, reader in zip(
            self.fragment.places, self.order, self._readers, strict=True
        ):
            if slot >= 0 and machine.registers[slot].dtype == words.dtype:
                words[:, place] = team.take(machine.registers[slot])
            else:
                words[:, place] = team.read(machine, reader)
        return words.view(self.dtype).reshape(team.count, *self.fragment.shape)

    def write(self, machine: Machine, team: Team, matrices: Array) -> None:
        """Set the registers to packed matrices."""
        words = matrices.reshape(team.count, -1).view(self._word.storage)
        for place, slot, item in zip(self.fragment.places, self.order, self._items, strict=True):
            if slot >= 0 and machine.registers[slot].dtype == words.dtype:
                team.put(machine.registers[slot], words[:, place])
            else:
                write(item)(machine, team.lanes, words[:, place].reshape(-1))


# ------------------------------------------------------------------------------------------ layouts


def _threads_and_values(threads: int, values: int) -> tuple[Table, Table, Table, Table]:
    """Return warp, group ("groupID") and place in the group of threads, and the values as a row."""
    thread = np.arange(threads)[:, None]
    lane = thread % 32
    return thread // 32, lane // 4, lane % 4, np.arange(values)[None, :]


def _layout(figure: str, rows: Table, columns: Table, per_register: int) -> Fragment:
    whole = np.broadcast_arrays(rows, columns)
    return Fragment(figure, whole[0].copy(), whole[1].copy(), per_register)


@lru_cache(maxsize=64)
def left(rows: int, depth: int, kind: str) -> Fragment:
    """Return the layout of A of ``mma`` with `rows` rows (8 or 16) and `depth` columns."""
    values, per_register = rows * depth // 32, ELEMENTS[kind].per_register
    _, group, place, value = _threads_and_values(32, values)
    register, halves = value // per_register, rows // 8
    return _layout(
        f"MMA .m{rows}n8k{depth} fragment layout for matrix A with {_TYPES[kind]} type",
        group + 8 * (register % halves),
        per_register * (place + 4 * (register // halves)) + value % per_register,
        per_register,
    )


@lru_cache(maxsize=64)
def right(rows: int, depth: int, kind: str) -> Fragment:
    """Return the layout of B of ``mma``, as a matrix of 8 rows (n) and `depth` columns (k)."""
    per_register = ELEMENTS[kind].per_register
    _, group, place, value = _threads_and_values(32, depth // 4)
    register = value // per_register
    return _layout(
        f"MMA .m{rows}n8k{depth} fragment layout for matrix B with {_TYPES[kind]} type",
        group + 0 * value,
        per_register * (place + 4 * register) + value % per_register,
        per_register,
    )


@lru_cache(maxsize=64)
def accumulator(rows: int, depth: int, kind: str) -> Fragment:
    """Return the layout of C and D of ``mma``, a matrix of 8 columns."""
    _, group, place, value = _threads_and_values(32, rows // 4)
    return _layout(
        f"MMA .m{rows}n8k{depth} fragment layout for accumulator matrix C/D",
        group + 8 * (value // 2),
        2 * place + value % 2,
        ELEMENTS[kind].per_register,
    )


@lru_cache(maxsize=64)
def warpgroup_left(depth: int, kind: str) -> Fragment:
    """Return the layout of A of ``wgmma`` in registers: 16 rows a warp, as in A of ``mma``."""
    per_register = ELEMENTS[kind].per_register
    warp, group, place, value = _threads_and_values(128, depth // 2)
    register = value // per_register
    return _layout(
        f"WGMMA .m64nNk{depth} register fragment layout for matrix A",
        16 * warp + group + 8 * (register % 2),
        per_register * (place + 4 * (register // 2)) + value % per_register,
        per_register,
    )


@lru_cache(maxsize=64)
def warpgroup_accumulator(columns: int, depth: int, kind: str) -> Fragment:
    """Return the layout of D of ``wgmma``: 16 rows a warp, as in those of ``mma`` side by side."""
    warp, group, place, value = _threads_and_values(128, columns // 2)
    return _layout(
        f"WGMMA .m64nNk{depth} register fragment layout for accumulator matrix D",
        16 * warp + group + 8 * (value // 2 % 2),
        8 * (value // 4) + 2 * place + value % 2,
        ELEMENTS[kind].per_register,
    )


@lru_cache(maxsize=1)
def row_of_eight() -> Fragment:
    """Return the layout of one 8x8 matrix of ``ldmatrix``, ``stmatrix`` and ``movmatrix``."""
    _, group, place, value = _threads_and_values(32, 2)
    return _layout(
        "ldmatrix fragment layout for one 8x8 matrix with 16-bit elements",
        group + 0 * value,
        2 * place + value,
        2,
    )
