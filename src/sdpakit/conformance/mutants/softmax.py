"""Mutants of an online softmax: running maximum, rescaling, tiles at the border, skipped tiles."""

from __future__ import annotations

from typing import Any

import numpy as np

from sdpakit.conformance.inputs import Array
from sdpakit.conformance.mutants.bases import Entry
from sdpakit.conformance.mutants.model import Mutant, mutant, replaced
from sdpakit.conformance.mutants.tiled import TILE, State, Tiled
from sdpakit.reference.expressions import Scope
from sdpakit.reference.operands import Operands

Tile = tuple[Array, Array, Array]
Ranges = list[tuple[int, int]]


def maximum_starts_at_a_sentinel(right: Tiled, x: Array, v: Array) -> State:
    """The running maximum starts at -5e4."""
    state = right.start(x, v)
    state.m[...] = -5e4
    return state


def maximum_starts_at_zero(right: Tiled, x: Array, v: Array) -> State:
    """The running maximum starts at 0."""
    state = right.start(x, v)
    state.m[...] = 0.0
    return state


def maximum_of_the_tile(right: Tiled, m: Array, x: Array) -> Array:
    """The running maximum is that of the last tile alone."""
    return right.maximum(np.full_like(m, -np.inf), x)


def maximum_of_the_first_tile(right: Tiled, m: Array, x: Array) -> Array:
    """The maximum of the first tile is kept."""
    return np.where(np.isneginf(m), right.maximum(m, x), m)


def maximum_never_taken_out(_right: Tiled, m: Array, _x: Array) -> Array:
    """The exponential of the logit is taken as it is."""
    return np.zeros_like(m)


def maximum_of_all_rows(right: Tiled, m: Array, x: Array) -> Array:
    """The rows of a tile share one maximum."""
    found = right.maximum(m, x)
    top = found.max(axis=-1, keepdims=True, initial=-np.inf)
    return np.where(np.isneginf(found), found, top)


def empty_tile_not_guarded(_right: Tiled, m: Array) -> Array:
    """-inf is subtracted from -inf while a row has seen no key."""
    return m


def empty_tile_leaves_zero(_right: Tiled, _m: Array, safe: Array) -> Array:
    """The guarded maximum of an empty tile, 0, is kept as the true one."""
    return safe


def rescaling_forgotten(_right: Tiled, state: State, _factor: Array, _moved: Array) -> None:
    """The sums stay as they are when the maximum moves."""


def rescaling_of_the_sum_alone(right: Tiled, state: State, factor: Array, moved: Array) -> None:
    """The row sum is rescaled, the accumulator is not."""
    acc = state.acc
    right.rescale(state, factor, moved)
    state.acc = acc


def rescaling_of_the_accumulator_alone(
    right: Tiled, state: State, factor: Array, moved: Array
) -> None:
    """The accumulator is rescaled, the row sum is not."""
    l = state.l
    right.rescale(state, factor, moved)
    state.l = l


def rescaling_of_entropy_forgotten(right: Tiled, state: State, factor: Array, moved: Array) -> None:
    """The sum behind the entropy does not follow the maximum."""
    right.rescale(state, factor, np.zeros_like(moved))


def rescaling_of_squares_once(right: Tiled, state: State, factor: Array, moved: Array) -> None:
    """The sum of squares is rescaled by the factor and not by its square."""
    ee = state.ee
    right.rescale(state, factor, moved)
    state.ee = factor * ee


def rescaling_upside_down(right: Tiled, old: Array, new: Array) -> Array:
    """The sums are divided by what they should be multiplied with."""
    return np.where(np.isneginf(old), 0, np.exp(new - old)).astype(old.dtype)


def rescaling_skipped_when_small(right: Tiled, old: Array, new: Array) -> Array:
    """A maximum that moves by less than 8 is not rescaled for, yet it moves."""
    return np.where(new - old < 8.0, 1, right.factor(old, new)).astype(old.dtype)


def rescaling_in_half(right: Tiled, old: Array, new: Array) -> Array:
    """The factor of the sums is rounded to float16."""
    return right.factor(old, new).astype(np.float16).astype(old.dtype)


def tail_of_zeros(right: Tiled, x: Array, v: Array, attended: Array, first: int, last: int) -> Tile:
    """The last tile is padded with keys of zeros that take part."""
    more = first + TILE - last
    return (
        np.pad(x[..., first:last], [(0, 0), (0, 0), (0, more)]),
        np.pad(v[:, first:last], [(0, 0), (0, more), (0, 0)]),
        np.pad(attended[..., first:last], [(0, 0), (0, 0), (0, more)], constant_values=True),
    )


def tail_repeats_the_last_key(
    right: Tiled, x: Array, v: Array, attended: Array, first: int, last: int
) -> Tile:
    """Keys behind the last are clamped to it, and count."""
    at = np.minimum(np.arange(first, first + TILE), x.shape[-1] - 1)
    return x[..., at], v[:, at], attended[..., at]


def tail_lost(_right: Tiled, x: Array, _attended: Array) -> Ranges:
    """A last tile that is not full is not visited."""
    whole = range(0, x.shape[-1] - TILE + 1, TILE)
    return [(first, first + TILE) for first in whole] or [(0, x.shape[-1])]


def tail_of_one_lost(right: Tiled, x: Array, attended: Array) -> Ranges:
    """A last tile of one key is not visited."""
    found = right.tiles(x, attended)
    return found[:-1] if len(found) > 1 and x.shape[-1] % TILE == 1 else found


def first_tile_twice(right: Tiled, x: Array, attended: Array) -> Ranges:
    """The loop is unrolled once too often: with three tiles and more, the first counts twice."""
    found = right.tiles(x, attended)
    return found[:1] + found if len(found) > 2 else found


def _corners(attended: Array, first: int, last: int) -> list[Any]:
    return [attended[:, i, j] for i in (0, -1) for j in (first, last - 1)]


def tile_skipped_by_its_corners(right: Tiled, x: Array, attended: Array) -> Ranges:
    """A tile is skipped when no row sees one of its corners."""
    if not attended.size:
        return right.tiles(x, attended)
    return [
        (first, last)
        for first, last in right.tiles(x, attended)
        if np.any(_corners(attended, first, last))
    ]


def tile_skipped_by_its_first_row(right: Tiled, x: Array, attended: Array) -> Ranges:
    """Tiles that the first row does not see are skipped for all."""
    if not attended.size:
        return right.tiles(x, attended)
    return [(a, z) for a, z in right.tiles(x, attended) if attended[:, 0, a:z].any()]


def tile_full_by_its_corners(
    right: Tiled, x: Array, v: Array, attended: Array, first: int, last: int
) -> Tile:
    """A tile whose corners are seen is taken for one that is seen as a whole."""
    x, v, seen = right.tile(x, v, attended, first, last)
    if seen.size and np.all(_corners(seen, 0, last - first)):
        return np.where(seen, x, x[..., :1]), v, np.ones_like(seen)
    return x, v, seen


def tile_seen_as_by_the_last_row(
    right: Tiled, x: Array, v: Array, attended: Array, first: int, last: int
) -> Tile:
    """The mask is looked at for the last row alone."""
    x, v, seen = right.tile(x, v, attended, first, last)
    seen = np.broadcast_to(seen[:, -1:], seen.shape) if seen.size else seen
    low = np.where(np.isneginf(x), 0, x)
    return np.where(seen, low, -np.inf).astype(x.dtype), v, seen


def sink_of_every_tile(right: Tiled, state: State, l: Array, ops: Operands) -> tuple[Array, Array]:
    """The sink joins the denominator once a tile."""
    share, total = right.with_sink(state, l, ops)
    tiles = -(-ops.full_shape[3] // TILE)
    return share, l * share + tiles * (total - l * share)


def _halves(ops: Operands, b: int) -> tuple[Entry, Entry]:
    """Return the outputs of the first keys, a whole number of tiles, and of the others."""
    middle = -(-ops.full_shape[3] // (2 * TILE)) * TILE

    def part(low: int, high: int) -> Entry:
        def seen(right: Tiled, ops: Operands, scope: Scope) -> Array:
            j = scope.indices["k"]
            return np.asarray(right.visible(ops, scope) & (low <= j) & (j < high))

        return replaced(Tiled, "visible", seen).entry(ops, b)

    return part(0, middle), part(middle, ops.full_shape[3])


def split_keys_averaged(right: Tiled, ops: Operands, b: int) -> Entry:
    """Two parts of the keys are computed apart and averaged, whatever their weights."""
    if ops.full_shape[3] <= TILE:
        return right.entry(ops, b)
    first, second = _halves(ops, b)
    return {**right.entry(ops, b), "out": (first["out"] + second["out"]) / 2}


def split_keys_empty_part_counts(right: Tiled, ops: Operands, b: int) -> Entry:
    """A part of the keys that a row does not see has the weight of a logit of 0."""
    found = right.entry(ops, b)
    if ops.full_shape[3] <= TILE or ops.sinks is not None:
        return found
    parts = _halves(ops, b)
    sizes = [np.where(np.isneginf(part["lse"]), 0, part["lse"]) for part in parts]
    lse = np.logaddexp(*sizes)
    out = sum(
        np.exp(size - lse)[..., None] * part["out"] for size, part in zip(sizes, parts, strict=True)
    )
    one = np.isneginf(parts[0]["lse"]) != np.isneginf(parts[1]["lse"])
    return {**found, "out": np.where(one[..., None], out, found["out"])}


MUTANTS: tuple[Mutant, ...] = (
    mutant(
        Tiled,
        "start",
        maximum_starts_at_a_sentinel,
        "precision.all_far_below_zero.float32",
        "flashinfer-ai/flashinfer#4267",
    ),
    mutant(Tiled, "start", maximum_starts_at_zero, "empty.trailing_keys_and_low_logits.float32"),
    mutant(Tiled, "maximum", maximum_of_the_tile, "precision.falling_logits.float32"),
    mutant(Tiled, "maximum", maximum_of_the_first_tile, "precision.rising_logits.float32"),
    mutant(
        Tiled,
        "maximum",
        maximum_never_taken_out,
        "precision.large_and_close.float32 precision.lse_near_plus_1000.float32",
        "stanford-crfm/mistral#67",
    ),
    mutant(Tiled, "maximum", maximum_of_all_rows, "precision.logits_of_1e5.float32"),
    mutant(
        Tiled, "guarded", empty_tile_not_guarded, "empty.last_row.float32", "pytorch/pytorch#103749"
    ),
    mutant(Tiled, "kept", empty_tile_leaves_zero, "empty.leading_tiles_and_low_logits.float32"),
    mutant(Tiled, "rescale", rescaling_forgotten, "precision.rising_logits.float32"),
    mutant(Tiled, "rescale", rescaling_of_the_sum_alone, "precision.rising_logits.float32"),
    mutant(Tiled, "rescale", rescaling_of_the_accumulator_alone, "precision.rising_logits.float32"),
    mutant(Tiled, "rescale", rescaling_of_entropy_forgotten, "precision.unit.float32"),
    mutant(Tiled, "rescale", rescaling_of_squares_once, "precision.unit.float32"),
    mutant(Tiled, "factor", rescaling_upside_down, "precision.rising_logits.float32"),
    mutant(Tiled, "factor", rescaling_skipped_when_small, "precision.unit.float32"),
    mutant(Tiled, "factor", rescaling_in_half, "precision.unit.float32"),
    mutant(
        Tiled,
        "tile",
        tail_of_zeros,
        "precision.equal_logits_of_minus_128.float32 lengths.33_keys.float32",
        "tenstorrent/tt-metal#54833",
    ),
    mutant(Tiled, "tile", tail_repeats_the_last_key, "lengths.33_keys.float32"),
    mutant(Tiled, "tiles", tail_lost, "lengths.63_keys.float32"),
    mutant(Tiled, "tiles", tail_of_one_lost, "lengths.33_keys.float32 lengths.129_by_129.float32"),
    mutant(Tiled, "tiles", first_tile_twice, "lengths.96_by_96.float32"),
    mutant(Tiled, "tiles", tile_skipped_by_its_corners, "masks.documents_unsorted.float32"),
    mutant(Tiled, "tiles", tile_skipped_by_its_first_row, "lengths.causal_65_by_65.float32"),
    mutant(Tiled, "tile", tile_full_by_its_corners, "masks.not_of_and_or.float32"),
    mutant(Tiled, "tile", tile_seen_as_by_the_last_row, "lengths.causal_31_by_31.float32"),
    mutant(Tiled, "with_sink", sink_of_every_tile, "sinks.once_for_all_tiles.float32"),
    mutant(Tiled, "entry", split_keys_averaged, "lengths.65_keys.float32"),
    mutant(Tiled, "entry", split_keys_empty_part_counts, "lengths.causal_65_by_65.float32"),
)
