"""Attention as kernels compute it: tiles of keys, a running maximum, sums that are rescaled."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sdpakit.conformance.inputs import Array
from sdpakit.conformance.mutants.bases import Entry, Plain
from sdpakit.reference.operands import Operands, accum_dtype

TILE = 32  # keys


@dataclass(slots=True)
class State:
    """What a row carries from tile to tile; (Hq, Lq), and (Hq, Lq, Dv) for `acc`.

    Attributes
    ----------
    m : array
        Running maximum, -inf until a key is seen (NUM-2).
    l : array
        Sum of e = exp(x - m).
    acc : array
        Sum of e v.
    et : array
        Sum of e (x - m), for the entropy.
    ee : array
        Sum of e^2.
    """

    m: Array
    l: Array
    acc: Array
    et: Array
    ee: Array


class Tiled(Plain):
    """An online softmax in steps, each of which a mutant may replace."""

    name = "tiled"

    def entry(self, ops: Operands, b: int) -> Entry:
        """Return the outputs of batch entry b."""
        x, attended = self.logits(ops, b)
        v = ops.v[b, ops.kv_head].astype(accum_dtype(ops.spec))
        x = np.where(attended, x, -np.inf).astype(v.dtype)
        state = self.start(x, v)
        for first, last in self.tiles(x, attended):
            self.add(state, *self.tile(x, v, attended, first, last))
        return self.finish(self.results(state, ops), ops)

    def start(self, x: Array, v: Array) -> State:
        """Return the state of no key."""
        rows = np.zeros(x.shape[:2], x.dtype)
        acc = np.zeros((*x.shape[:2], v.shape[-1]), x.dtype)
        return State(np.full_like(rows, -np.inf), rows.copy(), acc, rows.copy(), rows.copy())

    def tiles(self, x: Array, attended: Array) -> list[tuple[int, int]]:
        """Return the ranges of keys to visit."""
        length = x.shape[-1]
        return [(first, min(first + TILE, length)) for first in range(0, length, TILE)]

    def tile(
        self, x: Array, v: Array, attended: Array, first: int, last: int
    ) -> tuple[Array, Array, Array]:
        """Return logits, values and pairs of a range of keys."""
        return x[..., first:last], v[:, first:last], attended[..., first:last]

    def add(self, state: State, x: Array, v: Array, attended: Array) -> None:
        """Take a tile into the state."""
        m = self.maximum(state.m, x)
        safe = self.guarded(m)
        factor = self.factor(state.m, safe)
        t = x - safe[..., None]
        e = np.exp(t)
        moved = np.where(np.isneginf(state.m), 0, state.m - safe)
        self.rescale(state, factor, moved)
        state.l += e.sum(axis=-1)
        state.et += np.where(e == 0, 0, e * t).sum(axis=-1)
        state.ee += (e * e).sum(axis=-1)
        state.acc += self.mix(e, v, attended)
        state.m = self.kept(m, safe)

    def maximum(self, m: Array, x: Array) -> Array:
        """Return the running maximum with a tile in it."""
        return np.asarray(np.maximum(m, x.max(axis=-1, initial=-np.inf)))

    def guarded(self, m: Array) -> Array:
        """Return a maximum to subtract: 0 where no key was seen."""
        return np.where(np.isneginf(m), 0, m).astype(m.dtype)

    def factor(self, old: Array, new: Array) -> Array:
        """Return by what the sums shrink when the maximum moves."""
        return np.asarray(np.exp(old - new))

    def rescale(self, state: State, factor: Array, moved: Array) -> None:
        """Bring the sums to the new maximum; `moved` is old minus new."""
        state.et = factor * (state.et + moved * state.l)
        state.ee = factor * factor * state.ee
        state.l = factor * state.l
        state.acc = factor[..., None] * state.acc

    def kept(self, m: Array, safe: Array) -> Array:
        """Return which of the two maxima the state keeps."""
        return m

    def results(self, state: State, ops: Operands) -> Entry:
        """Return the outputs of a state."""
        empty = np.isneginf(state.m)
        l = np.where(empty, 1, state.l).astype(state.l.dtype)
        share, total = self.with_sink(state, l, ops)
        out = state.acc * share[..., None] / total[..., None]
        nothing = np.nan if ops.spec.empty_row == "nan" else 0.0
        return {
            "out": np.where(empty[..., None], nothing, out),
            "lse": np.where(empty, -np.inf, state.m + np.log(l)),
            "max_logit": np.where(np.isnan(state.l) & ~empty, np.nan, state.m),
            "entropy": np.where(empty, 0.0, np.log(l) - state.et / l),
            "sum_p2": state.ee / (l * l),
        }

    def with_sink(self, state: State, l: Array, ops: Operands) -> tuple[Array, Array]:
        """Return the factor of `acc` and the denominator of `out`, the sink in them (SINK-1)."""
        if ops.sinks is None:
            return np.ones_like(l), l
        sinks = ops.sinks[:, None].astype(l.dtype)
        m = self.guarded(state.m)
        top = np.maximum(m, sinks)
        share = np.exp(m - top)
        return share, l * share + np.exp(sinks - top)
