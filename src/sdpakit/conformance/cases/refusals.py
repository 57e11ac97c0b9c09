"""What must be refused, before anything runs, and how (ERR-1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sdpakit.conformance.cases.make import gh, make
from sdpakit.conformance.inputs import Array, Draw
from sdpakit.conformance.model import Case, Shape
from sdpakit.expr.operands import Table
from sdpakit.masks import Causal, Dense, Predicate, Window

SOURCES = {"mask_shape": "ml-explore/mlx#1842", "mask_heads": "lucidrains/vit-pytorch#71"}
NAN, INF = float("nan"), float("inf")
SPEC, CALL, KIND = "SpecError", "ArgumentError", "ArgumentTypeError"


def cases() -> list[Case]:
    """Return the cases of this family."""
    return [
        *_specs(),
        *_shapes(),
        *_operands(),
        *_lengths(),
        *_packed(),
        *_integers(),
        *_out(),
    ]


def _refused(
    name: str, rules: str, error: str, match: str, *, recipe: Any = None, **fields: Any
) -> list[Case]:
    return make(
        f"refusals.{name}",
        f"ERR-1 {rules}".strip(),
        "bad input that is computed with, clamped, or trapped on",
        recipe=recipe,
        refuses=error,
        match=match,
        **fields,
    )


def _specs() -> list[Case]:
    found: list[Case] = []
    for name, rules, match, spec in (
        ("scale_nan", "SCALE-2", "scale", {"scale": NAN}),
        ("scale_infinite", "SCALE-2", "scale", {"scale": -INF}),
        ("softcap_zero", "CAP-1", "softcap", {"softcap": 0.0}),
        ("softcap_negative", "CAP-1", "softcap", {"softcap": -1.0}),
        ("softcap_nan", "CAP-1", "softcap", {"softcap": NAN}),
        ("softcap_infinite", "CAP-1", "softcap", {"softcap": INF}),
        ("alignment_left_open", "MASK-2", r"# \. \. \. \.", {"mask": Causal()}),
        ("window_alignment_left_open", "MASK-2", "align", {"mask": Window(2, 0)}),
        ("accum_dtype", "NUM-1", "accum_dtype", {"accum_dtype": "float64"}),
        ("layout", "SHAPE-1", "layout", {"layout": "sbhd"}),
        ("ragged_lengths_twice", "RAGGED-1", "cu_q_lens", {"layout": "thd", "q_lens": True}),
        ("ragged_bias", "RAGGED-1", "pairs", {"layout": "thd", "bias": "float32"}),
        ("ragged_dense", "RAGGED-1", r"Dense\(\)", {"layout": "thd", "mask": Dense()}),
        ("paged_without_lengths", "PAGED-1", "kv_lens", {"paged": True}),
        ("outputs_unknown", "STAT-1", "outputs", {"outputs": ("out", "weights")}),
        ("empty_row", "EMPTY-1", "empty_row", {"empty_row": "mean"}),
        ("mask_of_an_array", "MASK-1", r"Dense\(\)", {"mask": np.ones((5, 7), bool)}),
        ("bias_of_bool", "MOD-1", "bias", {"bias": "bool"}),
    ):
        found += _refused(name, rules, SPEC, match, spec=spec)
    for name, shape, match, source in (
        ("heads_not_divisible", Shape(q_heads=5, kv_heads=2), "kv_heads", "keras-team/keras!23081"),
        ("no_kv_heads", Shape(q_heads=4, kv_heads=0), "kv_heads", "pytorch/pytorch!191325"),
        ("no_width", Shape(head_dim=0), "head_dim", "pytorch/pytorch#141218"),
    ):
        rule = "SHAPE-3" if name == "no_width" else "SHAPE-2"
        found += _refused(name, rule, SPEC, match, shape=shape, source=gh(source))
    return found


def _shapes() -> list[Case]:
    found: list[Case] = []
    for name, match, recipe in (
        ("width_of_k", r"\bk\b.*head_dim|head_dim", lambda d: {"k": d.normal(1, 2, 7, 9)}),
        ("batch_of_v", "batch", lambda d: {"v": d.normal(2, 2, 7, 8)}),
        ("keys_of_v", "kv_len", lambda d: {"v": d.normal(1, 2, 6, 8)}),
        ("heads_of_q", "q_heads", lambda d: {"q": d.normal(1, 3, 5, 8)}),
        ("axes_of_q", "4 axes", lambda d: {"q": d.normal(2, 5, 8)}),
        ("layout_of_q", "bshd", lambda d: {"q": d.normal(1, 5, 2, 8)}),
    ):
        found += _refused(
            name, "SHAPE-1", CALL, match, recipe=recipe, source=gh("pytorch/pytorch#141229")
        )
    for name, recipe in (
        ("dtype_of_q", lambda d: {"q": d.normal(1, 2, 5, 8, dtype="float16")}),
        ("dtype_of_v", lambda d: {"v": d.normal(1, 2, 7, 8, dtype="float64")}),
        ("list_for_k", lambda d: {"k": d.k().tolist()}),
        ("foreign_byte_order", lambda d: {"q": d.q().astype(">f4")}),
    ):
        found += _refused(name, "SHAPE-1", KIND, "[qkv]:", recipe=recipe)
    return found


def _operands() -> list[Case]:
    dense: Mapping[str, Any] = {"mask": Dense()}
    bias: Mapping[str, Any] = {"bias": "float32"}
    sinks: Mapping[str, Any] = {"sinks": True}
    found: list[Case] = []
    for name, rules, error, match, spec, recipe in (
        ("mask_shape", "MASK-1", CALL, "broadcasts", dense, lambda d: {"mask": d.bools(5, 5)}),
        (
            "mask_heads",
            "MASK-1",
            CALL,
            "broadcasts",
            dense,
            lambda d: {"mask": d.bools(1, 3, 5, 7)},
        ),
        ("mask_of_floats", "MASK-1", KIND, "bias=", dense, lambda d: {"mask": d.normal(5, 7)}),
        ("mask_missing", "MASK-1", CALL, "mask", dense, None),
        ("mask_not_asked", "ERR-1", CALL, "mask", {}, lambda d: {"mask": d.bools(5, 7)}),
        ("bias_shape", "MOD-1", CALL, "broadcasts", bias, lambda d: {"bias": d.normal(7, 5)}),
        ("bias_missing", "MOD-1", CALL, "bias", bias, None),
        ("bias_not_asked", "ERR-1", CALL, "bias", {}, lambda d: {"bias": d.normal(5, 7)}),
        (
            "bias_dtype",
            "MOD-1",
            KIND,
            "bias",
            bias,
            lambda d: {"bias": d.normal(7, dtype="float16")},
        ),
        (
            "bias_too_large",
            "MASK-5",
            CALL,
            "1e[+]?300",
            {"bias": "float64"},
            lambda d: {"bias": d.array([-1e300], "float64")},
        ),
        ("sinks_shape", "SINK-1", CALL, "sinks", sinks, lambda d: {"sinks": d.normal(3)}),
        ("sinks_missing", "SINK-1", CALL, "sinks", sinks, None),
        ("offset_missing", "MASK-2", CALL, "q_offset", {"mask": Causal("offset")}, None),
        ("offset_not_asked", "ERR-1", CALL, "q_offset", {}, lambda _d: {"q_offset": 3}),
        (
            "offset_of_a_float",
            "MASK-2",
            KIND,
            "q_offset",
            {"mask": Causal("offset")},
            lambda _d: {"q_offset": 1.5},
        ),
        ("params_unknown", "ERR-1", CALL, "params", {}, lambda _d: {"params": {"x1": 2.0}}),
    ):
        source = gh(SOURCES[name]) if name in SOURCES else ""
        found += _refused(
            name, rules.replace("ERR-1", ""), error, match, spec=spec, recipe=recipe, source=source
        )
    return found


def _lengths() -> list[Case]:
    lens: Mapping[str, Any] = {"kv_lens": True}
    found: list[Case] = []
    for name, error, spec, given in (
        ("lens_too_long", CALL, lens, {"kv_lens": np.array([8])}),
        ("lens_negative", CALL, lens, {"kv_lens": np.array([-1])}),
        ("lens_shape", CALL, lens, {"kv_lens": np.array([3, 3])}),
        ("lens_of_floats", KIND, lens, {"kv_lens": np.array([3.0])}),
        ("lens_missing", CALL, lens, {}),
        ("lens_not_asked", CALL, {}, {"kv_lens": np.array([3])}),
        ("q_lens_too_long", CALL, {"q_lens": True}, {"q_lens": np.array([6])}),
    ):
        found += _refused(
            name, "MASK-4", error, "lens", spec=spec, recipe=lambda _draw, given=given: given
        )
    found += _refused(
        "lens_promised_equal",
        "MASK-2 MASK-4",
        CALL,
        "equal_lens",
        shape=Shape(q_len=5, kv_len=6),
        spec={"mask": Causal(), "equal_lens": True},
    )
    return found


def _packed() -> list[Case]:
    """Offsets that are none (RAGGED-1), and block tables that lead nowhere (PAGED-1)."""
    thd: Mapping[str, Any] = {"layout": "thd"}
    paged: Mapping[str, Any] = {"paged": True, "kv_lens": True}
    found: list[Case] = []
    for name, error, match, ends in (
        ("beyond_the_data", CALL, r"cu_q_lens\[2\] = 7", {"cu_q_lens": (0, 2, 7)}),
        ("not_from_0", CALL, "begin at 0", {"cu_kv_lens": (1, 2, 7)}),
        ("descend", CALL, "do not descend", {"cu_kv_lens": (0, 5, 4)}),
        ("negative", CALL, r"cu_q_lens\[1\] = -1", {"cu_q_lens": (0, -1, 5)}),
        ("of_another_batch", CALL, "batch", {"cu_kv_lens": (0, 3, 5, 7)}),
        ("missing", CALL, "cu_kv_lens", {"cu_kv_lens": None}),
        ("of_floats", KIND, "cu_q_lens", {"cu_q_lens": (0.0, 2.0, 5.0)}),
        ("as_lengths", CALL, "q_lens", {"q_lens": (2, 3)}),
    ):
        source = "Dao-AILab/flash-attention#1773" if name == "beyond_the_data" else ""
        found += _refused(
            f"offsets_{name}",
            "RAGGED-1",
            error,
            match,
            spec=thd,
            recipe=_given({"cu_q_lens": (0, 2, 5), "cu_kv_lens": (0, 4, 7), **ends}),
            source=gh(source) if source else "",
        )
    for name, match, given in (
        ("past_the_pages", r"block_table\[0, 1\] = 4", {"block_table": ((0, 4), (1, 2))}),
        ("negative", r"block_table\[1, 0\] = -1", {"block_table": ((0, 3), (-1, 2))}),
        ("of_another_batch", "batch = 2", {"block_table": ((0, 1),)}),
        ("too_short", r"kv_lens\[0\] = 6", {"block_table": ((0,), (1,))}),
        ("missing", "block_table", {"block_table": None}),
        ("with_offsets", "cu_kv_lens", {"cu_kv_lens": (0, 4, 7)}),
    ):
        found += _refused(
            f"pages_{name}",
            "PAGED-1",
            CALL,
            match,
            shape=Shape(batch=2),
            spec=paged,
            recipe=_given({"block_table": ((0, 3), (1, -9)), "kv_lens": (6, 4), **given}, pages=4),
        )
    return found


def _given(arrays: Mapping[str, Any], pages: int = 0) -> Any:
    """Return a recipe of arrays, and of k and v in so many pages of 4 keys."""

    def recipe(draw: Draw) -> dict[str, Any]:
        found = {name: None if x is None else np.array(x) for name, x in arrays.items()}
        if pages:
            for name in "kv":
                found[name] = draw.normal(pages, 4, draw.shape.kv, draw.shape.head_dim)
        return {name: x for name, x in found.items() if x is not None}

    return recipe


def _integers() -> list[Case]:
    table = Table("t", "float32", 1)
    values = {"params": {"t": np.zeros(4, np.float32)}}
    found: list[Case] = []
    for name, spec, match, given in (
        ("index_past_the_table", {"logits": lambda x, i: x + table[i.k]}, "t", values),
        ("index_before_the_table", {"logits": lambda x, i: x + table[i.k - i.q]}, "t", values),
        (
            "integers_of_63_bits",
            {"mask": Predicate(lambda i: i.k * 2**40 * (i.q + 2**22) > 0)},
            "62",
            {},
        ),
    ):
        found += _refused(
            name, "EXPR-1", CALL, match, spec=spec, recipe=lambda _draw, given=given: given
        )
    return found


def _out() -> list[Case]:
    found: list[Case] = []
    for name, error, match, recipe in (
        ("out_shape", CALL, "shape", lambda d: {"out": d.normal(1, 2, 5, 9)}),
        ("out_dtype", KIND, "float16", lambda d: {"out": d.normal(1, 2, 5, 8, dtype="float16")}),
        ("out_of_q", CALL, "overlap", _out_is_q),
        ("out_in_v", CALL, "overlap", _out_in_v),
        ("out_read_only", CALL, "read-only", _read_only_out),
        ("out_stride_0", CALL, "share memory", _repeated_out),
    ):
        found += make(
            f"refusals.{name}",
            "ERR-1 OUT-1",
            "results written to memory that cannot take them",
            recipe=recipe,
            outputs=("out",),
            refuses=error,
            match=match,
        )
    return found


def _out_is_q(draw: Draw) -> dict[str, Array]:
    q = draw.q()
    return {"q": q, "out": q}


def _out_in_v(draw: Draw) -> dict[str, Array]:
    v = draw.v()
    return {"v": v, "out": v[:, :, :5]}


def _read_only_out(draw: Draw) -> dict[str, Array]:
    out = draw.normal(1, 2, 5, 8)
    out.flags.writeable = False
    return {"out": out}


def _repeated_out(draw: Draw) -> dict[str, Array]:
    row = draw.normal(1, 2, 1, 8)
    return {"out": np.lib.stride_tricks.as_strided(row, (1, 2, 5, 8), (*row.strides[:2], 0, 4))}
