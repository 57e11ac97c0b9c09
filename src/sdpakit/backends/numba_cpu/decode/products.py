"""Logits of a tile, the raw products: P[row][key] = <q_row, k_key>, read from the caller's memory.

Keys lie at one stride, or a table says where each of them lies: such are kernels of their own.
Head dims are the lanes. Some keys times some rows make as many accumulators as a machine keeps in
registers, each one chain over the widths; a tree of shuffles and additions then turns them into
vectors with a product in each lane. So a product has the same bits whatever shares its block.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from sdpakit.backends.numba_cpu.decode.layout import DecodeLayout
from sdpakit.backends.numba_cpu.functions import new_function
from sdpakit.backends.numba_cpu.irtypes import Value
from sdpakit.backends.numba_cpu.microkernels import CACHE_LINE, prefetch
from sdpakit.backends.numba_cpu.packing import load_lanes
from sdpakit.backends.numba_cpu.vector import VectorEmitter

ARGUMENTS = ("k", "k_step", "n", "q", "p")


class Products:
    """Emits `products_<rows>`(k, k_step, n, q, p); for `k` see `address_of_row`.

    Parameters
    ----------
    module : llvmlite.ir.Module
        Where the function goes.
    layout : DecodeLayout
        Sizes.
    rows : int
        Rows of q that it serves.
    """

    def __init__(self, module: Any, layout: DecodeLayout, rows: int) -> None:
        b = new_function(module, layout.named(f"products_{rows}"), ARGUMENTS, result=ir.VoidType())
        self.arg: dict[str, Value] = dict(zip(ARGUMENTS, b.function.args, strict=True))
        self.e = VectorEmitter(b, layout.isa, layout.element)
        self.layout, self.rows, self.keys = layout, rows, layout.accumulators // rows
        self.step_bytes = layout.lanes * layout.panel.itemsize  # of k, for each vector of q
        self.unroll = max(2, CACHE_LINE // self.step_bytes)
        self.rounds = layout.panel.head_dim // (self.unroll * layout.lanes)

    def emit(self) -> None:
        """Emit the loop over blocks of keys; the last key is repeated where a block ends late."""
        e, arg = self.e, self.arg
        last = e.isub(arg["n"], e.c(1))
        blocks = e.b.sdiv(e.iadd(arg["n"], e.c(self.keys - 1)), e.c(self.keys))

        ahead = e.imul(arg["k_step"], e.c(self.layout.k_rows_ahead(self.keys)))
        later = e.iadd(arg["k"], ahead)

        def body(block: Value, _: list[Value]) -> Sequence[Value]:
            first = e.imul(block, e.c(self.keys))
            rows = [e.imin(e.iadd(first, e.c(i)), last) for i in range(self.keys)]
            found = [[self._key(start, row) for row in rows] for start in (arg["k"], later)]
            self._store(self._block(*found), first)
            return ()

        e.loop(blocks, body, (), "keys", guard=False)
        e.b.ret_void()

    def _key(self, start: Value, row: Value) -> Value:
        return address_of_row(self.e, self.layout, start, self.arg["k_step"], row)

    def _block(self, keys: Sequence[Value], later: Sequence[Value]) -> list[Value]:
        """Return the accumulators of a block, row by row, and prefetch as many rows of `later`."""
        e, layout = self.e, self.layout
        q, head_dim, w = e.pointer(self.arg["q"]), layout.panel.head_dim, layout.lanes

        def step(acc: list[Value], k_at: list[Value], q_at: Value, u: int, count: int) -> Any:
            dtype = layout.panel.dtype
            k = [load_lanes(e, e.offset(at, u * self.step_bytes), count, dtype) for at in k_at]
            new = []
            for r in range(self.rows):
                row = e.load(e.offset(q_at, r * layout.q_row_bytes + u * layout.vector_bytes))
                new += [e.fma(x, row, acc[r * len(k) + i]) for i, x in enumerate(k)]
            return new

        def body(i: Value, acc: list[Value]) -> Sequence[Value]:
            moved = e.imul(i, e.c(self.unroll * self.step_bytes))
            k_at = [e.offset(key, moved) for key in keys]
            q_at = e.offset(q, e.imul(i, e.c(self.unroll * layout.vector_bytes)))
            for at in later:
                for line in range(0, self.unroll * self.step_bytes, CACHE_LINE):
                    prefetch(e, e.offset(e.offset(at, moved), line), near=True)
            for u in range(self.unroll):
                acc = step(acc, k_at, q_at, u, w)
            return acc

        acc = [e.const(0.0)] * (self.rows * len(keys))
        whole = self.rounds
        if whole:
            acc = e.loop(e.c(whole), body, acc, "width", guard=False)
        for start in range(whole * self.unroll * w, head_dim, w):
            acc = step(acc, list(keys), q, start // w, min(w, head_dim - start))
        return acc

    def _store(self, acc: Sequence[Value], first: Value) -> None:
        """Store the products of a block, in pieces as long as a row has keys of it."""
        e, layout, w = self.e, self.layout, self.layout.lanes
        target = e.offset(self.arg["p"], e.imul(first, e.c(layout.esz)))
        size = min(self.keys, w)
        for g, sums in enumerate(row_sums(e, acc)):
            for lane in range(0, w, size):
                row, key = divmod(g * w + lane, self.keys)
                at = e.offset(target, row * layout.p_row_bytes + key * layout.esz)
                e.store(sums if size == w else e.shuffle(sums, sums, range(lane, lane + size)), at)


def address_of_row(
    e: VectorEmitter, layout: DecodeLayout, rows: Value, step: Value, row: Value
) -> Value:
    """Return where a row lies: `step` bytes behind the one before; of pages, there is its address.

    It is asked of rows behind the last one, too: they are fetched, not read.
    """
    at = e.iadd(rows, e.imul(row, step))
    return e.load_i64(e.pointer(at)) if layout.paged else at


def row_sums(e: VectorEmitter, vectors: Sequence[Value]) -> list[Value]:
    """Return vectors whose lanes are the sums of the lanes of each of `vectors`, in their order.

    Their number is a multiple of w. Neighbours are added inside lanes of 128 bits, then such lanes:
    a tree of the same shape for every vector.
    """
    in_lane, found = 16 // e.esz, list(vectors)
    size = 2
    while size <= e.w:
        within = size <= in_lane
        picks = [_pick(e, in_lane, parity, within=within) for parity in (0, 1)]
        pairs = zip(found[::2], found[1::2], strict=True)
        found = [e.add(*(e.shuffle(x, y, pick) for pick in picks)) for x, y in pairs]
        size *= 2
    return found


def _pick(e: VectorEmitter, in_lane: int, parity: int, *, within: bool) -> list[int]:
    """Return the even or odd elements of each 128-bit lane of two vectors, or their lanes."""
    if within:
        return [
            vector * e.w + start + x
            for start in range(0, e.w, in_lane)
            for vector in (0, 1)
            for x in range(parity, in_lane, 2)
        ]
    return [
        start + x for start in range(parity * in_lane, 2 * e.w, 2 * in_lane) for x in range(in_lane)
    ]
