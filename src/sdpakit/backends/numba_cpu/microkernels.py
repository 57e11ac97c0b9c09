"""The two register tiles where nearly all the time goes: S^T = K Q^T and O^T += V^T P.

Queries are the lanes, so K and V are only ever broadcast: R rows of them against NV vectors of queries, R * NV accumulators
carried in registers through a loop. Each accumulator is one chain of multiply-adds in rising order of d (or j), so its bits do not
depend on which rows share the tile.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from sdpakit.backends.numba_cpu.layout import PanelLayout
from sdpakit.backends.numba_cpu.vector import VectorEmitter

Value = Any

QK_UNROLL = 8
PV_UNROLL = 4


def _accumulate(
    e: VectorEmitter, acc: list[Value], broadcasts: Sequence[Value], vectors: Sequence[Value]
) -> list[Value]:
    """Return acc[r][v] + broadcasts[r] * vectors[v]; broadcasts are scalars in memory order."""
    out = []
    for r, scalar in enumerate(broadcasts):
        x = e.splat(scalar)
        out += [e.fma(x, vector, acc[r * len(vectors) + v]) for v, vector in enumerate(vectors)]
    return out


def qk_tile(
    e: VectorEmitter, layout: PanelLayout, k: Value, qt: Value, s: Value, top: Sequence[Value]
) -> list[Value]:
    """Emit S[r][0:W] = sum_d K[r, d] * QT[d][0:W] for R rows; return `top` raised to the maximum of each column.

    The maximum does not see a NaN (NUM-4). It costs next to nothing here: the stores of the products leave the arithmetic idle.

    Parameters
    ----------
    k : pointer
        First of R packed rows of K, `k_row_bytes` apart.
    qt : pointer
        Packed queries [D][W].
    s : pointer
        Where the R rows of W products go.
    top : sequence of vectors
        Maximum of each column so far, no NaN.
    """
    rows, vectors = layout.rows, layout.vectors
    vector_bytes = layout.lanes * layout.esz

    def step(acc: list[Value], k_at: Value, qt_at: Value, d: int) -> list[Value]:
        panel = [e.load(e.offset(qt_at, (d * vectors + v) * vector_bytes)) for v in range(vectors)]
        scalars = [
            e.load(e.offset(k_at, r * layout.k_row_bytes + d * layout.esz), e.S)
            for r in range(rows)
        ]
        return _accumulate(e, acc, scalars, panel)

    def body(_: Value, carried: list[Value]) -> list[Value]:
        k_at, qt_at, acc = carried[0], carried[1], carried[2:]
        for d in range(QK_UNROLL):
            acc = step(acc, k_at, qt_at, d)
        return [
            e.offset(k_at, QK_UNROLL * layout.esz),
            e.offset(qt_at, QK_UNROLL * layout.row_bytes),
            *acc,
        ]

    blocks, rest = divmod(layout.head_dim, QK_UNROLL)
    carried = [k, qt, *[e.const(0.0)] * (rows * vectors)]
    if blocks > 1:
        carried = e.loop(e.c(blocks), body, carried, "qk.d", guard=False)
    elif blocks:
        carried = body(None, carried)
    k_at, qt_at, acc = carried[0], carried[1], carried[2:]
    for d in range(rest):
        acc = step(acc, k_at, qt_at, d)
    for i, value in enumerate(acc):
        e.store(value, e.offset(s, i * vector_bytes))
    return [_column_max(e, acc[v::vectors], top[v]) for v in range(vectors)]


def _column_max(e: VectorEmitter, values: Sequence[Value], top: Value) -> Value:
    """Return the maximum of `top`, which is no NaN, and of the values that are no NaN: two chains, then one."""
    chains = [top, e.const(-math.inf)]
    for r, value in enumerate(values):
        chains[r % 2] = e.max_seen(value, chains[r % 2])
    return e.max_seen(chains[1], chains[0])


def pv_tile(
    e: VectorEmitter,
    layout: PanelLayout,
    size: int,
    v: Value,
    p: Value,
    out: Value,
    alpha: Sequence[Value],
    n: Value,
    guarded: bool,
) -> None:
    """Emit OT[r][0:W] = OT[r][0:W] * alpha + sum_j V[j, r] * P[j][0:W] for `size` columns of V.

    Parameters
    ----------
    v : pointer
        Packed group [n][size].
    p : pointer
        Weights [n][W]; -0.0 marks a pair that is absent.
    out : pointer
        `size` rows of W accumulators.
    alpha : sequence of vectors
        Factors 2**(m_old - m_new) of the NV vectors: the rescale costs nothing on the way in.
    n : i64
        Keys.
    guarded : bool
        Replace V by 0 where the pair is absent, so that NaN or inf there cannot reach the row (MASK-3).
    """
    vectors, vector_bytes = layout.vectors, layout.lanes * layout.esz

    def step(acc: list[Value], v_at: Value, p_at: Value, j: int) -> list[Value]:
        weights = [e.load(e.offset(p_at, (j * vectors + i) * vector_bytes)) for i in range(vectors)]
        scalars = [e.load(e.offset(v_at, (j * size + r) * layout.esz), e.S) for r in range(size)]
        return (_accumulate_guarded if guarded else _accumulate)(e, acc, scalars, weights)

    def keys(count: int) -> Any:
        def body(_: Value, carried: list[Value]) -> list[Value]:
            v_at, p_at, acc = carried[0], carried[1], carried[2:]
            for j in range(count):
                acc = step(acc, v_at, p_at, j)
            return [
                e.offset(v_at, count * size * layout.esz),
                e.offset(p_at, count * layout.row_bytes),
                *acc,
            ]

        return body

    acc = [
        e.mul(e.load(e.offset(out, (r * vectors + i) * vector_bytes)), alpha[i])
        for r in range(size)
        for i in range(vectors)
    ]
    unroll = 1 if guarded else PV_UNROLL
    name = "pv.absent" if guarded else "pv.keys"
    carried = [v, p, *acc]
    if unroll > 1:
        carried = e.loop(e.b.sdiv(n, e.c(unroll)), keys(unroll), carried, name)
    carried = e.loop(
        e.b.srem(n, e.c(unroll)) if unroll > 1 else n, keys(1), carried, f"{name}.rest"
    )
    for i, value in enumerate(carried[2:]):
        e.store(value, e.offset(out, i * vector_bytes))


def _accumulate_guarded(
    e: VectorEmitter, acc: list[Value], broadcasts: Sequence[Value], vectors: Sequence[Value]
) -> list[Value]:
    """As `_accumulate`, with 0 for the broadcast in lanes whose weight has the bits of -0.0."""
    bits = 8 * e.esz
    absent = [
        e.icmp("==", e.b.bitcast(x, e.IV(bits)), e.iconst(-(1 << (bits - 1)), bits))
        for x in vectors
    ]
    out = []
    for r, scalar in enumerate(broadcasts):
        x = e.splat(scalar)
        for v, vector in enumerate(vectors):
            seen = e.select(absent[v], e.const(0.0), x)
            out.append(e.fma(seen, vector, acc[r * len(vectors) + v]))
    return out
