"""The two register tiles where nearly all the time goes: S^T = K Q^T and O^T += V^T P.

Queries are the lanes, so K and V are only ever broadcast: R rows of them against NV vectors of
queries, R * NV accumulators carried in registers through a loop. Each accumulator is one chain of
multiply-adds in rising order of d (or j), so its bits do not depend on which rows share the tile.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llvmlite import ir

from sdpakit.backends.numba_cpu.functions import declare
from sdpakit.backends.numba_cpu.irtypes import I32, PTR, Value
from sdpakit.backends.numba_cpu.layout import PanelLayout
from sdpakit.backends.numba_cpu.vector import VectorEmitter

Body = Callable[[Value, list[Value]], list[Value]]

# Multiply-adds of one vector between two jumps. More only makes the code longer.
QK_STEPS = 48
PV_STEPS = 24

CACHE_LINE = 64


def _accumulate(
    e: VectorEmitter, acc: list[Value], broadcasts: Sequence[Value], vectors: Sequence[Value]
) -> list[Value]:
    """Return acc[r][v] + broadcasts[r] * vectors[v]; broadcasts are scalars in memory order."""
    out = []
    for r, scalar in enumerate(broadcasts):
        x = e.splat(scalar)
        out += [e.fma(x, vector, acc[r * len(vectors) + v]) for v, vector in enumerate(vectors)]
    return out


def _accumulate_present(
    e: VectorEmitter, acc: list[Value], broadcasts: Sequence[Value], vectors: Sequence[Value]
) -> list[Value]:
    """As `_accumulate`, with 0 for the broadcast in lanes whose weight has the bits of -0.0."""
    bits = 8 * e.esz
    mark = e.iconst(-(1 << (bits - 1)), bits)
    absent = [e.icmp("==", e.b.bitcast(vector, e.IV(bits)), mark) for vector in vectors]
    out = []
    for r, scalar in enumerate(broadcasts):
        x = e.splat(scalar)
        for v, vector in enumerate(vectors):
            seen = e.select(absent[v], e.const(0.0), x)
            out.append(e.fma(seen, vector, acc[r * len(vectors) + v]))
    return out


@dataclass(frozen=True)
class FarRow:
    """A row of some cache lines that will be wanted soon.

    Attributes
    ----------
    address : pointer
        The first line.
    lines : int
        How many follow.
    """

    address: Value
    lines: int


def qk_tile(
    e: VectorEmitter,
    layout: PanelLayout,
    k: Value,
    qt: Value,
    ahead: Value,
    far: Sequence[FarRow] = (),
) -> list[Value]:
    """Emit the products S[r][0:W] = sum_d K[r, d] * QT[d][0:W] of R rows; return them row by row.

    Parameters
    ----------
    k : pointer
        First of R packed rows of K, `k_row_bytes` apart.
    qt : pointer
        Packed queries [D][W].
    ahead : pointer
        Memory that will be wanted soon, see `qk_rounds`.
    far : sequence of FarRow
        More of it, spread over the rounds.
    """
    rows, vectors, esz = layout.rows, layout.vectors, layout.esz
    vector_bytes = layout.lanes * esz
    unroll = QK_STEPS // rows

    def step(carried: list[Value], d: int) -> list[Value]:
        pointers, acc = carried[:3], carried[3:]
        k_at, qt_at, _ = pointers
        panel = [e.load(e.offset(qt_at, (d * vectors + v) * vector_bytes)) for v in range(vectors)]
        places = [e.offset(k_at, r * layout.k_row_bytes + d * esz) for r in range(rows)]
        scalars = [e.load(place, e.S) for place in places]
        return [*pointers, *_accumulate(e, acc, scalars, panel)]

    def body(i: Value, carried: list[Value]) -> list[Value]:
        prefetch(e, carried[2])
        for row in far:
            _prefetch_share(e, row, i, qk_rounds(layout))
        for d in range(unroll):
            carried = step(carried, d)
        strides = (unroll * esz, unroll * layout.row_bytes, CACHE_LINE)
        moved = [e.offset(at, stride) for at, stride in zip(carried[:3], strides, strict=True)]
        return [*moved, *carried[3:]]

    blocks, rest = divmod(layout.head_dim, unroll)
    carried = [k, qt, ahead, *[e.const(0.0)] * (rows * vectors)]
    if blocks:
        carried = e.loop(e.c(blocks), body, carried, "qk.d", guard=False)
    for d in range(rest):
        carried = step(carried, d)
    return carried[3:]


def qk_rounds(layout: PanelLayout) -> int:
    """Return how many cache lines of `ahead` a `qk_tile` prefetches: one in each round."""
    return layout.head_dim // (QK_STEPS // layout.rows)


def prefetch(e: VectorEmitter, address: Value, *, write: bool = False, near: bool = False) -> None:
    """Ask for the cache line at an address, mapped or not, in the first- or second-level cache."""
    function = declare(e.b.module, "llvm.prefetch.p0", ir.VoidType(), [PTR, *[I32] * 3])
    level, data = ir.Constant(I32, 3 if near else 2), ir.Constant(I32, 1)
    e.b.call(function, [address, ir.Constant(I32, int(write)), level, data])


def _prefetch_share(e: VectorEmitter, row: FarRow, i: Value, rounds: int) -> None:
    """Prefetch the lines of a row that fall to round i."""
    share = -(-row.lines // rounds)
    for n in range(share):
        line = e.imin(e.iadd(e.imul(i, e.c(share)), e.c(n)), e.c(row.lines - 1))
        prefetch(e, e.offset(row.address, e.imul(line, e.c(CACHE_LINE))))


def store_tile(
    e: VectorEmitter, layout: PanelLayout, products: Sequence[Value], s: Value, top: Sequence[Value]
) -> list[Value]:
    """Store the rows of a tile to `s`; return `top`, no NaN, raised to their maxima.

    The maximum does not see a NaN (NUM-4). It costs next to nothing here: the stores of the
    products leave the arithmetic idle.
    """
    for i, value in enumerate(products):
        e.store(value, e.offset(s, i * layout.lanes * layout.esz))
    vectors = layout.vectors
    return [_column_max(e, products[v::vectors], top[v]) for v in range(vectors)]


def _column_max(e: VectorEmitter, values: Sequence[Value], top: Value) -> Value:
    """Return the maximum of `top`, no NaN, and of the values that are none: two chains."""
    chains = [top, e.const(-math.inf)]
    for r, value in enumerate(values):
        chains[r % 2] = e.max_seen(value, chains[r % 2])
    return e.max_seen(chains[1], chains[0])


@dataclass(frozen=True)
class PvOperands:
    """Where a tile of V^T P reads and writes.

    Attributes
    ----------
    v : pointer
        First of some columns of a packed group of V [n][size].
    p : pointer
        Weights [n][W]; -0.0 marks an absent pair.
    out : pointer
        One row of OT for each of the columns.
    alpha : pointer
        Factors 2**(m_old - m_new) [W].
    n : i64
        Keys.
    """

    v: Value
    p: Value
    out: Value
    alpha: Value
    n: Value


def pv_tile(
    e: VectorEmitter,
    layout: PanelLayout,
    columns: int,
    size: int,
    operands: PvOperands,
    *,
    guarded: bool,
) -> None:
    """Emit OT[r][0:W] = OT[r][0:W] * alpha + sum_j V[j, r] * P[j][0:W] for some columns r of V.

    What a call adds is summed from zero, and joined to OT by one multiply-add: the chain of
    roundings of an element is that of one tile, and then that of the tiles.

    Parameters
    ----------
    columns, size : int
        How many columns, and how many the packed group of V has.
    guarded : bool
        Replace V by 0 where the pair is absent, so that NaN or inf there cannot reach the row
        (MASK-3).
    """
    vectors, esz = layout.vectors, layout.esz
    vector_bytes = layout.lanes * esz
    accumulate = _accumulate_present if guarded else _accumulate

    def keys(count: int) -> Body:
        def body(_: Value, carried: list[Value]) -> list[Value]:
            v_at, p_at, acc = carried[0], carried[1], carried[2:]
            for j in range(count):
                rows = [e.offset(p_at, (j * vectors + i) * vector_bytes) for i in range(vectors)]
                places = [e.offset(v_at, (j * size + r) * esz) for r in range(columns)]
                scalars = [e.load(place, e.S) for place in places]
                acc = accumulate(e, acc, scalars, [e.load(row) for row in rows])
            moved = [e.offset(v_at, count * size * esz), e.offset(p_at, count * layout.row_bytes)]
            return [*moved, *acc]

        return body

    acc = [e.const(0.0)] * (columns * vectors)
    unroll = 1 if guarded else PV_STEPS // layout.rows
    name = "pv.present" if guarded else "pv.keys"
    n = operands.n
    whole = n if unroll == 1 else e.b.sdiv(n, e.c(unroll))
    carried = e.loop(whole, keys(unroll), [operands.v, operands.p, *acc], name)
    if unroll > 1:
        carried = e.loop(e.b.srem(n, e.c(unroll)), keys(1), carried, f"{name}.rest")
    alpha = [e.load(e.offset(operands.alpha, i * vector_bytes)) for i in range(vectors)]
    for i, added in enumerate(carried[2:]):
        target = e.offset(operands.out, i * vector_bytes)
        e.store(e.fma(e.load(target), alpha[i % vectors], added), target)
