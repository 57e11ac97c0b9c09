"""Masks and logit changes that a user writes."""

from __future__ import annotations

from typing import Any

import numpy as np

from sdpakit.conformance.cases.make import ALL, FOUR, gh, make
from sdpakit.conformance.inputs import Draw
from sdpakit.conformance.model import Case, Shape
from sdpakit.expr.functions import (
    absolute,
    exp,
    floor,
    log,
    maximum,
    minimum,
    sqrt,
    tanh,
    to_float,
    to_int,
    where,
)
from sdpakit.expr.operands import Scalar, Table
from sdpakit.logits import Alibi
from sdpakit.masks import Causal, Predicate

SLOPES = Table("slopes", "float32", 1)
BUCKETS = Table("buckets", "float32", 2)
SHAPE = Shape(batch=2, q_heads=4, kv_heads=2, q_len=21, kv_len=34)


def cases() -> list[Case]:
    """Return the cases of this family."""
    return [
        *_alibi(),
        *_tables(),
        *_indices(),
        *_numbers(),
        *_predicates(),
        *_functions(),
        *_hidden(),
    ]


def _slopes(draw: Draw) -> dict[str, Any]:
    return {"params": {"slopes": draw.array(2.0 ** -np.arange(1, 5), "float32")}}


def _alibi() -> list[Case]:
    found: list[Case] = []
    for align in ("top_left", "bottom_right"):
        found += make(
            f"expressions.alibi_{align}",
            "EXPR-1 MOD-1 MASK-2",
            "slopes of the kv head, or a distance from the row index where p is meant",
            shape=SHAPE,
            spec={"logits": Alibi("slopes", align), "mask": Causal(align)},
            recipe=_slopes,
            outputs=ALL,
            dtypes=FOUR if align == "bottom_right" else ("float32",),
        )
    found += make(
        "expressions.alibi_to_both_sides",
        "EXPR-1",
        "a distance that counts as negative on the right too",
        shape=SHAPE,
        spec={"logits": Alibi("slopes", "bottom_right")},
        recipe=_slopes,
        outputs=ALL,
    )
    found += make(
        "expressions.alibi_by_hand",
        "EXPR-1 MOD-1",
        "the user's expression applied before the scale or the cap",
        shape=SHAPE,
        spec={
            "logits": lambda x, i: x - SLOPES[i.h] * to_float(absolute(i.q - i.k)),
            "softcap": 4.0,
        },
        recipe=_slopes,
        outputs=ALL,
        dtypes=FOUR,
    )
    found += make(
        "expressions.alibi_offset",
        "EXPR-1 MASK-2",
        "an offset that the mask uses and the slopes do not",
        shape=SHAPE,
        spec={"logits": Alibi("slopes", "offset"), "mask": Causal("offset")},
        recipe=lambda draw: {**_slopes(draw), "q_offset": np.array([13, 2])},
    )
    return found


def _tables() -> list[Case]:
    found = make(
        "expressions.relative_positions",
        "EXPR-1",
        "a table indexed beyond its clamped ends, or by [k - q] from its far side",
        shape=SHAPE,
        spec={
            "logits": lambda x, i: x + BUCKETS[i.h, minimum(maximum(i.k - i.q + 8, 0), 16)],
        },
        recipe=lambda draw: {"params": {"buckets": draw.normal(4, 17, dtype="float32")}},
        outputs=ALL,
        dtypes=FOUR,
    )
    found += make(
        "expressions.logarithmic_buckets",
        "EXPR-1",
        "integer division towards zero, a shift for a division",
        shape=SHAPE,
        spec={
            "logits": lambda x, i: x + BUCKETS[i.h, minimum(absolute(i.k - i.q) // 3, 7)],
            "mask": Causal("bottom_right"),
        },
        recipe=lambda draw: {"params": {"buckets": draw.normal(4, 8, dtype="float32")}},
    )
    for dtype in ("float16", "bfloat16", "float64", "int8", "uint16"):
        found += make(
            f"expressions.table_of_{dtype}",
            "EXPR-1 MOD-1",
            "a table read in the dtype of q, or without its sign",
            shape=SHAPE,
            spec={"logits": _add_table(dtype)},
            recipe=_table_of(dtype),
        )
    return found


def _indices() -> list[Case]:
    found = make(
        "expressions.table_axis_of_size_1",
        "EXPR-1",
        "an axis of size 1 that is indexed",
        shape=SHAPE,
        spec={"logits": lambda x, i: x + Table("t", "float32", 3)[i.b, i.h, i.k]},
        recipe=lambda draw: {"params": {"t": draw.normal(2, 1, 34, dtype="float32")}},
    )
    found += make(
        "expressions.table_strided",
        "EXPR-1 SHAPE-5",
        "a table read as if it were contiguous",
        shape=SHAPE,
        spec={"logits": lambda x, i: x + Table("t", "float32", 2)[i.q, i.k]},
        recipe=lambda draw: {"params": {"t": draw.normal(34, 42, dtype="float32").T[::-2]}},
    )
    found += make(
        "expressions.table_of_tables",
        "EXPR-1",
        "an index that comes from a table",
        shape=SHAPE,
        spec={
            "logits": lambda x, i: x + BUCKETS[i.h, Table("kind", "int32", 2)[i.b, i.k]],
        },
        recipe=lambda draw: {
            "params": {
                "buckets": draw.normal(4, 5, dtype="float32"),
                "kind": draw.ints(0, 5, 2, 34),
            }
        },
    )
    return found


def _add_table(dtype: str) -> Any:
    def logits(x: Any, i: Any) -> Any:
        value = Table("t", dtype, 1)[i.k]
        return x + (value if "float" in dtype else to_float(value) * 0.01)

    return logits


def _table_of(dtype: str) -> Any:
    def recipe(draw: Draw) -> dict[str, Any]:
        if "float" in dtype:
            return {"params": {"t": draw.normal(34, dtype=dtype)}}
        low = 0 if dtype.startswith("u") else -100
        high = 60000 if dtype.startswith("u") else 100
        return {"params": {"t": draw.ints(low, high, 34, dtype=dtype)}}

    return recipe


def _numbers() -> list[Case]:
    return [
        *make(
            "expressions.run_time_numbers",
            "EXPR-1",
            "a number that is compiled in, or read as the other kind",
            shape=SHAPE,
            spec={
                "logits": lambda x, i: x * Scalar("factor") + to_float(i.k % Scalar("step", "int")),
            },
            recipe=lambda _draw: {"params": {"factor": -1.25, "step": 5}},
            outputs=ALL,
            dtypes=FOUR,
        ),
        *make(
            "expressions.infinite_number",
            "EXPR-1 MASK-6",
            "a logit of -inf from an expression, which is an absent key",
            shape=SHAPE,
            spec={"logits": lambda x, i: where((i.k + i.q) % 3 == 0, x, Scalar("low"))},
            recipe=lambda _draw: {"params": {"low": float("-inf")}},
            outputs=ALL,
            dtypes=FOUR,
        ),
    ]


def _predicates() -> list[Case]:
    found: list[Case] = []
    for name, function, catches in (
        ("strictly_left", lambda i: i.k < i.q, "<= for <"),
        ("checkerboard", lambda i: (i.q + i.k) % 2 == 0, "tiles taken for their first pair"),
        ("blocks", lambda i: i.q // 7 == i.k // 7, "a division towards zero"),
        ("negative_modulus", lambda i: (i.q - i.k) % 5 < 2, "a remainder with the sign of C"),
        ("negative_quotient", lambda i: (i.q - i.k) // 4 == -2, "a quotient towards zero"),
        ("by_batch_and_head", lambda i: i.k % 3 == (i.b + i.h) % 3, "b or h of another tile"),
        ("of_lengths", lambda i: i.k * 2 < i.kv_len - i.q_len + i.q, "padded lengths"),
        ("of_bools", lambda i: (i.k > 5) != (i.q > 9), "a comparison of conditions"),
        ("product", lambda i: i.q * i.k % 11 < 5, "products that wrap in 8 or 16 bits"),
        ("diamond", lambda i: absolute(i.q - i.k) + absolute(i.q + i.k - 30) < 22, "a bad range"),
        ("select", lambda i: where(i.h > 1, i.k, i.q) < 13, "a select taken for a whole tile"),
        ("of_a_float", lambda i: to_float(i.k) * 0.5 < to_float(i.q) + 0.25, "integer division"),
        ("to_int", lambda i: to_int(i.k > i.q) + to_int(i.k % 2 == 0) == 1, "True as -1"),
        ("minimum", lambda i: minimum(i.q, i.k) % 4 != maximum(i.q, i.k) % 4, "a bad range"),
        ("everything", lambda i: i.k >= 0, "a mask that is always True taken for None"),
        ("nothing", lambda i: i.k < 0, "a mask that is never True"),
    ):
        found += make(
            f"expressions.predicate_{name}",
            "EXPR-1 MASK-1",
            f"{catches} in a user's predicate",
            shape=SHAPE,
            spec={"mask": Predicate(function)},
            dtypes=FOUR if name == "blocks" else ("float32",),
        )
    found += make(
        "expressions.predicate_with_table",
        "EXPR-1 MASK-1",
        "a table of bool read as bits, or indexed by the row",
        shape=SHAPE,
        spec={
            "mask": Predicate(lambda i: Table("on", "bool", 2)[i.b, i.k] & (i.k <= i.pos("offset")))
        },
        recipe=lambda draw: {"params": {"on": draw.bools(2, 34)}, "q_offset": 6},
    )
    found += make(
        "expressions.predicate_large_integers",
        "EXPR-1",
        "integers beyond 2^31 that wrap, or become floats",
        shape=SHAPE,
        spec={"mask": Predicate(lambda i: (i.k * 2**33 + i.q) % 7 < (i.q * 2**32) // 2**31 % 5)},
    )
    return found


def _functions() -> list[Case]:
    found: list[Case] = []
    for name, function, catches in (
        ("exp", lambda x, i: exp(minimum(x, 2.0)) - to_float(i.k) * 0.01, "exp2 for exp"),
        ("log", lambda x, i: log(1.0 + absolute(x)) * to_float(1 + i.h), "log2 for log"),
        ("tanh", lambda x, i: 3.0 * tanh(x * 0.5) + to_float(i.q - i.k) * 0.02, "a narrow tanh"),
        ("sqrt", lambda x, i: sqrt(absolute(x) + to_float(i.k)), "an estimate of a root"),
        ("floor", lambda x, i: x + floor(to_float(i.k - i.q) * 0.25), "a cast for floor"),
        ("division", lambda x, i: x / (1.0 + to_float(i.k)), "a reciprocal estimate"),
        (
            "constant",
            lambda _x, i: where(i.k % 2 == 0, 1.0, -1.0),
            "a product that is still needed",
        ),
    ):
        found += make(
            f"expressions.function_{name}",
            "EXPR-1 MOD-1",
            f"{catches} in a user's logits",
            shape=SHAPE,
            spec={"logits": function},
            outputs=ALL,
            dtypes=FOUR if name in ("tanh", "exp") else ("float32",),
        )
    return found


def _hidden() -> list[Case]:
    found = make(
        "expressions.nan_on_the_side_not_taken",
        "EXPR-1 NUM-4",
        "where() as a blend: log of a negative number on the side that is not taken",
        shape=SHAPE,
        spec={"logits": lambda x, _i: where(x > 0.0, log(maximum(x, -1.0)), x)},
        outputs=ALL,
        bound="hard",
    )
    found += make(
        "expressions.nan_at_masked_pairs",
        "EXPR-1 MASK-3",
        "a logit expression that is NaN or infinite where the mask hides it",
        shape=SHAPE,
        spec={
            "logits": lambda x, i: x + sqrt(to_float(i.q - i.k)) / to_float(i.q + 1),
            "mask": Causal("top_left"),
        },
        outputs=ALL,
        dtypes=FOUR,
        source=gh("onnx/onnx#8068"),
    )
    found += make(
        "expressions.logits_and_bias_and_cap",
        "MOD-1 CAP-1 EXPR-1",
        "bias and expression in the other order",
        shape=SHAPE,
        spec={
            "softcap": 2.0,
            "bias": "float32",
            "logits": lambda x, i: x * x * 0.5 - to_float(i.k % 3),
            "sinks": True,
        },
        recipe=lambda draw: {
            "bias": draw.normal(4, 1, 34, dtype="float32"),
            "sinks": draw.normal(4, dtype="float32"),
        },
        outputs=ALL,
        dtypes=FOUR,
    )
    return found
