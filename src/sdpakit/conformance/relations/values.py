"""Relations between the values of two calls: what may be exchanged, folded, split or appended."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from sdpakit.conformance.inputs import Array
from sdpakit.conformance.model import Shape
from sdpakit.conformance.relations.bench import (
    FOUR,
    SHAPE,
    Bench,
    Relation,
    Results,
    each,
    other_bits,
    relation,
    too_far,
)
from sdpakit.dtypes import ACCUM_DTYPE
from sdpakit.folding import fold_scale
from sdpakit.masks import Causal, Dense, Document, Predicate, Window


def _permuted_keys(bench: Bench) -> list[str]:
    given = bench.draw().qkv()
    order = np.random.default_rng(bench.seed).permutation(SHAPE.kv_len)
    other = {**given, "k": given["k"][:, :, order], "v": given["v"][:, :, order]}
    return too_far(bench.call(given), bench.call(other), bench.allowed(given))


def _permuted_entries(bench: Bench) -> list[str]:
    given = bench.draw().qkv()
    first = bench.call(given)
    second = bench.call({name: x[::-1] for name, x in given.items()})
    return other_bits(first, each(second, lambda x: x[::-1]))


def _doubled_batch(bench: Bench) -> list[str]:
    given = bench.draw().qkv()
    twice = {name: np.concatenate([x, x]) for name, x in given.items()}
    shape = Shape(4, 4, 2, SHAPE.q_len, SHAPE.kv_len, SHAPE.head_dim)
    second = bench.call(twice, shape)
    first = bench.call(given)
    halves = (each(second, lambda x: x[:2]), each(second, lambda x: x[2:]))
    return [text for half in halves for text in other_bits(first, half)]


def _alone(bench: Bench) -> list[str]:
    given = bench.draw().qkv()
    whole = bench.call(given)
    shape = Shape(1, 4, 2, SHAPE.q_len, SHAPE.kv_len, SHAPE.head_dim)
    alone = bench.call({name: x[1:] for name, x in given.items()}, shape)
    return other_bits(each(whole, lambda x: x[1:]), alone)


def _duplicated_heads(bench: Bench) -> list[str]:
    given = bench.draw().qkv()
    more = {**given, **{name: np.repeat(given[name], 2, axis=1) for name in "kv"}}
    shape = Shape(2, 4, 4, SHAPE.q_len, SHAPE.kv_len, SHAPE.head_dim)
    return too_far(bench.call(given), bench.call(more, shape), bench.allowed(given))


def _power_of_two(bench: Bench) -> list[str]:
    given = bench.draw().qkv()
    factor = given["q"].dtype.type(4)
    other = {**given, "q": given["q"] * factor}
    return other_bits(bench.call(given, scale=0.3), bench.call(other, scale=0.3 / 4))


def _folded(bench: Bench) -> list[str]:
    rng = np.random.default_rng(bench.seed)
    tokens = rng.standard_normal((2, SHAPE.q_len, 24)).astype(np.float32)
    w_q, w_k = (rng.standard_normal((24, 4 * 16)).astype(np.float32) for _ in range(2))
    v = rng.standard_normal((2, 4, SHAPE.q_len, 16)).astype(np.float32)
    shape = Shape(2, 4, 4, SHAPE.q_len, SHAPE.q_len, 16)

    def heads(weights: Array) -> Array:
        return (tokens @ weights).reshape(2, SHAPE.q_len, 4, 16).swapaxes(1, 2)

    plain = bench.call({"q": heads(w_q), "k": heads(w_k), "v": v}, shape)
    wrong = []
    for how in ("query", "both"):
        folded = fold_scale(w_q, w_k, 16, how=how)  # 16**-0.25 is a power of two: same bits
        given = {"q": heads(folded[0]), "k": heads(folded[1]), "v": v}
        wrong += [
            f"{how}: {text}" for text in other_bits(plain, bench.call(given, shape, scale=1.0))
        ]
    return wrong


def _same_mask(first: Any, second: Any, more: Callable[[Bench], dict[str, Any]]) -> Any:
    """Return a judge of two ways to say one mask."""

    def judge(bench: Bench) -> list[str]:
        given = bench.draw().qkv()
        a = bench.call({**given, **more(bench).get("first", {})}, mask=first)
        b = bench.call({**given, **more(bench).get("second", {})}, mask=second)
        return other_bits(a, b)

    return judge


def _tri(_bench: Bench) -> dict[str, Any]:
    dense = np.tri(SHAPE.q_len, SHAPE.kv_len, SHAPE.kv_len - SHAPE.q_len, dtype=bool)
    return {"second": {"mask": dense}}


def _blocks(bench: Bench) -> dict[str, Any]:
    rng = np.random.default_rng(bench.seed)
    rows, keys = (np.sort(rng.integers(0, 4, (2, n)), axis=1) for n in (37, 150))
    ids = {"rows": rows.astype(np.int32), "keys": keys.astype(np.int32)}
    dense = (rows[:, :, None] == keys[:, None, :])[:, None]
    return {"first": {"params": ids}, "second": {"mask": dense}}


def _nothing_more(_bench: Bench) -> dict[str, Any]:
    return {}


def _appended_keys(bench: Bench) -> list[str]:
    given = bench.draw().qkv()
    longer = {
        **given,
        **{
            name: np.concatenate([x, np.full_like(x[:, :, :70], np.nan)], axis=2)
            for name, x in given.items()
            if name != "q"
        },
        "kv_lens": np.full(2, SHAPE.kv_len),
    }
    shape = Shape(2, 4, 2, SHAPE.q_len, SHAPE.kv_len + 70, SHAPE.head_dim)
    second = bench.call(longer, shape, kv_lens=True)
    return too_far(bench.call(given), second, bench.allowed(given))


def _shifted_logits(bench: Bench) -> list[str]:
    given = bench.draw().qkv()
    spec: dict[str, Any] = {"bias": "float32"}
    bias = np.zeros((SHAPE.q_len, 1), np.float32)
    first = bench.call({**given, "bias": bias}, **spec)
    moved = {**given, "bias": bias + np.float32(64.0)}
    second = bench.call(moved, **spec)
    shift = {"lse": 64.0, "max_logit": 64.0}
    back = {name: x.astype(np.float64) - shift.get(name, 0.0) for name, x in second.items()}
    return too_far(first, back, bench.allowed(moved, **spec))


def _merged_parts(bench: Bench) -> list[str]:
    """MERGE-1: two disjoint key sets, one of them without a key for some rows."""
    given = bench.draw().qkv()
    spec: dict[str, Any] = {"mask": Causal("offset"), "outputs": ("out", "lse")}
    spec["out_dtype"] = ACCUM_DTYPE[bench.dtype]  # parts that are not rounded before they merge
    cut, offset = 61, 40
    parts, errors_of = [], []
    for keys, shift in ((slice(0, cut), 0), (slice(cut, None), cut)):
        some = {**given, "k": given["k"][:, :, keys], "v": given["v"][:, :, keys]}
        some["q_offset"] = np.full(2, offset - shift)
        shape = Shape(2, 4, 2, SHAPE.q_len, some["k"].shape[2], SHAPE.head_dim)
        parts.append(bench.call(some, shape, **spec))
        errors_of.append(bench.bound(some, shape, **spec))
    whole = {**given, "q_offset": np.full(2, offset)}
    allowed = _merged_error(parts, errors_of)
    own = bench.bound(whole, **spec)
    total = {name: own[name] + allowed[name] for name in ("out", "lse")}
    return too_far(bench.call(whole, **spec), merge(*parts), total)


def _merged_error(parts: list[Results], errors_of: list[Results]) -> Results:
    """Return how far a merge can be off: shares move by twice the error of an lse."""
    lse = merge(*parts)["lse"]
    guard = np.where(np.isneginf(lse), 0.0, lse)
    empty = [np.isneginf(part["lse"]) for part in parts]
    off = [np.where(e, 0.0, x["lse"]) for e, x in zip(empty, errors_of, strict=True)]
    worst = np.maximum(*off)
    out = np.zeros(parts[0]["out"].shape)
    for part, x in zip(parts, errors_of, strict=True):
        share = np.exp(part["lse"].astype(np.float64) - guard)[..., None]
        moved = np.abs(part["out"].astype(np.float64)) * np.expm1(2.0 * worst)[..., None]
        out = out + share * (x["out"] + moved)
    return {"out": out, "lse": worst}


def merge(a: Results, b: Results) -> Results:
    """Return the state of two disjoint key sets together (MERGE-1), in float64.

    Parameters
    ----------
    a, b : dict of str to array
        "out" and "lse" of each.

    Returns
    -------
    dict of str to array
        "out" and "lse" of both; the empty state (0, -inf) changes nothing.
    """
    left, right = (x["lse"].astype(np.float64) for x in (a, b))
    lse = np.logaddexp(left, right)
    guard = np.where(np.isneginf(lse), 0.0, lse)
    of_a, of_b = (
        np.exp(x["lse"].astype(np.float64) - guard)[..., None] * x["out"].astype(np.float64)
        for x in (a, b)
    )
    return {"out": of_a + of_b, "lse": lse}


def _layouts(bench: Bench) -> list[str]:
    given = bench.draw().qkv()
    swapped = {name: x.swapaxes(1, 2) for name, x in given.items()}
    second = bench.call(swapped, layout="bshd")
    second["out"] = second["out"].swapaxes(1, 2)
    return other_bits(bench.call(given), second)


def _fewer_rows(bench: Bench) -> list[str]:
    given = bench.draw().qkv()
    spec: dict[str, Any] = {"mask": Causal("top_left")}
    whole = bench.call(given, **spec)
    lens = {**given, "q_lens": np.array([SHAPE.q_len, 20])}
    some = bench.call(lens, q_lens=True, **spec)
    return other_bits(each(whole, lambda x: x[0]), each(some, lambda x: x[0])) + other_bits(
        each(whole, lambda x: x[1, :, :20]), each(some, lambda x: x[1, :, :20])
    )


def _rows_alone(bench: Bench) -> list[str]:
    """Compute some rows of a call one by one, and a few together, over the same keys."""
    shape = Shape(batch=2, q_heads=4, kv_heads=2, q_len=37, kv_len=700, head_dim=16)
    given = bench.draw(shape).qkv()
    wrong = []
    for mask in (None, Causal("offset")):
        spec: dict[str, Any] = {"mask": mask, "batch_invariant": True}

        def rows(first: int, count: int, spec: dict[str, Any] = spec) -> Results:
            q = given["q"][:, :, first : first + count]
            offset = {} if spec["mask"] is None else {"q_offset": np.full(2, 640 + first)}
            some = dataclasses.replace(shape, q_len=count)
            return bench.call({**given, "q": q, **offset}, some, **spec)

        whole = rows(0, shape.q_len)
        for first, count in ((0, 1), (20, 1), (33, 4)):
            part = {name: x[:, :, first : first + count] for name, x in whole.items()}
            wrong += [
                f"rows {first} to {first + count - 1} alone: {text}"
                for text in other_bits(part, rows(first, count))
            ]
    return wrong


VALUES: tuple[Relation, ...] = (
    relation(
        "permuted_keys", "SOFT-1", "keys that count by their place", _permuted_keys, dtypes=FOUR
    ),
    relation("permuted_entries", "DET-1", "entries that know their place", _permuted_entries),
    relation(
        "doubled_batch", "DET-1", "bits that depend on the batch", _doubled_batch, dtypes=FOUR
    ),
    relation("entry_alone", "DET-1", "bits that depend on the batch", _alone),
    relation(
        "duplicated_heads", "SHAPE-2", "a group that is not heads repeated", _duplicated_heads
    ),
    relation(
        "power_of_two",
        "SCALE-1",
        "a scale applied where rounding sees it",
        _power_of_two,
        dtypes=FOUR,
    ),
    relation("folded_scale", "FOLD-1 SCALE-1", "a factor applied twice, or not", _folded),
    relation(
        "causal_is_dense",
        "MASK-1 MASK-2",
        "tiles skipped that count",
        _same_mask(Causal("bottom_right"), Dense(), _tri),
        dtypes=FOUR,
    ),
    relation(
        "causal_is_window",
        "MASK-2",
        "an open side that is closed",
        _same_mask(Causal("top_left"), Window(None, 0, "top_left"), _nothing_more),
    ),
    relation(
        "causal_is_predicate",
        "MASK-2 EXPR-1",
        "a predicate judged otherwise than a mask",
        _same_mask(
            Causal("bottom_right"),
            Predicate(lambda i: ~(i.k > i.pos("bottom_right"))),
            _nothing_more,
        ),
    ),
    relation(
        "documents_are_blocks",
        "MASK-7",
        "borders of documents off by one",
        _same_mask(Document("rows", "keys"), Dense(), _blocks),
    ),
    relation(
        "appended_keys", "MASK-3 MASK-4", "masked keys that count", _appended_keys, dtypes=FOUR
    ),
    relation(
        "shifted_logits",
        "SOFT-1 MOD-1",
        "a constant that moves out or the statistics",
        _shifted_logits,
    ),
    relation(
        "merged_parts",
        "MERGE-1",
        "an lse that does not merge, or an empty part that counts",
        _merged_parts,
        dtypes=FOUR,
    ),
    relation(
        "layouts", "SHAPE-1 SHAPE-5", "axes swapped for some operands and not others", _layouts
    ),
    relation(
        "rows_alone",
        "DET-2",
        "few rows that another kernel takes, or whose keys are split, though the spec forbids it",
        _rows_alone,
        dtypes=FOUR,
    ),
    relation("fewer_rows", "MASK-4 DET-1", "rows that depend on how many there are", _fewer_rows),
)
