"""What each peer answers at the edges: one small call a question, read into a word.

The calls go through the adapters. What a peer cannot be told is "-", what it does not take is named
by the exception that came.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from sdpakit.conformance.inputs import Array
from sdpakit.conformance.peers.asked import Call
from sdpakit.conformance.peers.peer import Peer
from sdpakit.errors import SdpakitError, UnsupportedSpecError
from sdpakit.masks import Causal, Dense
from sdpakit.spec import AttentionSpec

Reading = Callable[[Mapping[str, Any]], str]


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """One row of the table.

    Attributes
    ----------
    title, rule : str
        What is asked; what sdpakit says, with the rule.
    reading : callable
        From outputs to a word.
    spec : mapping
        For `AttentionSpec`, beyond one head of width 8 in float32.
    sizes : (int, int)
        Rows and keys.
    change : callable
        Changes the operands of a call, in place.
    heads : (int, int)
        Of q and of k; where they do not divide, the peer is called without a spec.
    """

    title: str
    rule: str
    reading: Reading
    spec: Mapping[str, Any] = field(default_factory=dict)
    sizes: tuple[int, int] = (3, 4)
    change: Callable[[dict[str, Any]], None] = lambda _operands: None
    heads: tuple[int, int] = (1, 1)


def answer(peer: Peer, question: Question) -> str:
    """Return what a peer answers.

    Parameters
    ----------
    peer : Peer
        Whom to ask.
    question : Question
        What.

    Returns
    -------
    str
        A word or two; "(array)" behind it where the mask was turned into a boolean array.
    """
    operands = _operands(question)
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            if question.heads[0] % question.heads[1]:
                return _without_spec(peer, question, operands)
            spec = _spec(question)
            found = peer.prepare(spec)(**operands)
    except UnsupportedSpecError:
        return "-"
    except Exception as error:  # noqa: BLE001 - whatever a peer raises is its answer
        return f"{type(error).__name__}"
    turned = any("array" in text for text in peer.turned(spec))
    return question.reading(found) + (" (array)" if turned else "")


def _without_spec(peer: Peer, question: Question, operands: dict[str, Any]) -> str:
    plain = dict.fromkeys(("mask", "logits", "bias", "scale", "softcap"))
    lens = dict.fromkeys(("sinks", "q_lens", "kv_lens", "equal_lens"), False)
    q_heads, kv_heads = question.heads
    sizes = {"q_heads": q_heads, "kv_heads": kv_heads, "head_dim": 8, "v_head_dim": 8}
    spec: Any = SimpleNamespace(**plain, **lens, **sizes, dtype="float32", layout="bhsd")
    try:
        found = peer.attention(Call(spec, operands["q"], operands["k"], operands["v"], {}))
    except (SdpakitError, AttributeError):
        return "-"  # the adapter needs a spec, or has refused itself
    return f"computes {np.shape(found['out'])}"


def _spec(question: Question) -> AttentionSpec:
    q_heads, kv_heads = question.heads
    fields = {"outputs": ("out", "lse"), "dtype": "float32", **question.spec}
    return AttentionSpec(q_heads=q_heads, kv_heads=kv_heads, head_dim=8, **fields)


def _operands(question: Question) -> dict[str, Any]:
    rng = np.random.default_rng(7)
    dtype = question.spec.get("dtype", "float32")
    (rows, keys), (q_heads, kv_heads) = question.sizes, question.heads
    shapes = {"q": (1, q_heads, rows, 8), "k": (1, kv_heads, keys, 8), "v": (1, kv_heads, keys, 8)}
    found: dict[str, Any] = {n: rng.standard_normal(s).astype(dtype) for n, s in shapes.items()}
    found["v"][..., 0] = np.arange(keys)
    question.change(found)
    return found


def _first(row: int) -> Reading:
    """Read the first channel of a row, in which v has the number of the key."""

    def reading(found: Mapping[str, Any]) -> str:
        return _word(np.asarray(found["out"], np.float64)[0, 0, row])

    return reading


def _word(row: Array) -> str:
    if np.isnan(row).all():
        return "NaN"
    if np.isnan(row).any():
        return "NaN in part"
    if not row.any():
        return "0"
    if row[0] == 1.5 or abs(row[0] - 1.5) < 1e-3:
        return "mean of v"
    return f"{row[0]:.4g}"


def _mean_of_keys(found: Mapping[str, Any]) -> str:
    """Read the mean number of the keys that row 0 sees."""
    return f"{float(np.asarray(found['out'], np.float64)[0, 0, 0, 0]):.4g}"


def _is_finite(found: Mapping[str, Any]) -> str:
    """Read how many rows are free of NaN."""
    rows = ~np.isnan(np.asarray(found["out"], np.float64)).any(axis=-1).ravel()
    if rows.all():
        return "unaffected"
    return "NaN" if not rows.any() else f"NaN in {int((~rows).sum())} of {rows.size} rows"


def _lse(row: int) -> Reading:
    def reading(found: Mapping[str, Any]) -> str:
        return "-" if "lse" not in found else f"{float(np.asarray(found['lse'])[0, 0, row]):.4g}"

    return reading


def _base(found: Mapping[str, Any]) -> str:
    if "lse" not in found:
        return "-"
    value = float(np.asarray(found["lse"], np.float64)[0, 0, 0])
    return {1.386: "natural", 2.0: "base 2"}.get(round(value, 3), f"{value:.4g}")


def _accuracy(found: Mapping[str, Any]) -> str:
    out = np.asarray(found["out"])
    q, k, v = (_operands(_F64)[name] for name in "qkv")
    x = q @ k.swapaxes(-1, -2) / np.sqrt(8.0)
    p = np.exp(x - x.max(axis=-1, keepdims=True))
    right = (p / p.sum(axis=-1, keepdims=True)) @ v
    return f"{np.abs(out.astype(np.float64) - right).max():.0e} in {out.dtype}"


def _poison(name: str) -> Callable[[dict[str, Any]], None]:
    def change(operands: dict[str, Any]) -> None:
        operands[name][:, :, 3] = np.nan
        operands["mask"] = np.array([[True, True, True, False]] * 3)

    return change


def _empty_row(operands: dict[str, Any]) -> None:
    operands["mask"] = np.array([[True] * 4, [False] * 4, [True] * 4])


def _bias(values: Any, dtype: str = "float32") -> Callable[[dict[str, Any]], None]:
    def change(operands: dict[str, Any]) -> None:
        operands["q"][...] = 0
        bias = np.zeros((3, 4), dtype)
        bias[1] = values
        operands["bias"] = bias

    return change


def _nan_query(operands: dict[str, Any]) -> None:
    operands["q"][0, 0, 1, 2] = np.nan


def _flat(operands: dict[str, Any]) -> None:
    operands["q"][...] = 0


def _large_products(operands: dict[str, Any]) -> None:
    operands["q"][...] = 170.0
    operands["k"][...] = 170.0
    operands["k"][0, 0, 1:] = 0.0


def _one_axis(operands: dict[str, Any]) -> None:
    operands["mask"] = np.array([True, True, True, False])
    _flat(operands)


DENSE_SPEC: Mapping[str, Any] = {"mask": Dense()}
BIAS_SPEC: Mapping[str, Any] = {"bias": "float32"}
_HALF: Mapping[str, Any] = {"dtype": "float16"}
_LOWEST = float(np.finfo(np.float32).min)
_F64 = Question(
    "error in float64", "1e-15 (NUM-1)", _accuracy, {"dtype": "float64", "outputs": ("out",)}
)

QUESTIONS: tuple[Question, ...] = (
    Question(
        "empty row of a boolean mask", "0 (EMPTY-1)", _first(1), DENSE_SPEC, (3, 4), _empty_row
    ),
    Question(
        "empty row of a bias of -inf", "0 (EMPTY-1)", _first(1), BIAS_SPEC, (3, 4), _bias(-np.inf)
    ),
    Question("lse of an empty row", "-inf (EMPTY-1)", _lse(1), DENSE_SPEC, (3, 4), _empty_row),
    Question(
        "causal 2x5, top left: row 0",
        "key 0 (MASK-2)",
        _first(0),
        {"mask": Causal("top_left")},
        (2, 5),
        _flat,
    ),
    Question(
        "causal 2x5, bottom right: row 0",
        "1.5, of keys 0 to 3 (MASK-2)",
        _mean_of_keys,
        {"mask": Causal("bottom_right")},
        (2, 5),
        _flat,
    ),
    Question(
        "causal 5x2, bottom right: row 0",
        "0 (EMPTY-1)",
        _first(0),
        {"mask": Causal("bottom_right")},
        (5, 2),
        _flat,
    ),
    Question(
        "NaN in a masked k", "unaffected (MASK-3)", _is_finite, DENSE_SPEC, (3, 4), _poison("k")
    ),
    Question(
        "NaN in a masked v", "unaffected (MASK-3)", _is_finite, DENSE_SPEC, (3, 4), _poison("v")
    ),
    Question("NaN in q, its row", "NaN (NUM-4)", _first(1), {}, (3, 4), _nan_query),
    Question(
        "a logit of +inf", "NaN (NUM-4)", _first(1), BIAS_SPEC, (3, 4), _bias([np.inf, 0, 0, 0])
    ),
    Question("scale 0", "mean of v (SCALE-2)", _first(1), {"scale": 0.0}),
    Question(
        "scale 0 and causal, row 1 of 4",
        "0.5 (SCALE-2)",
        _first(1),
        {"scale": 0.0, "mask": Causal("top_left")},
        (4, 4),
    ),
    Question(
        "scale -1 and causal",
        "no NaN (SCALE-2)",
        _is_finite,
        {"scale": -1.0, "mask": Causal("top_left")},
        (4, 4),
    ),
    Question("a row of -1e9", "mean of v (MASK-5)", _first(1), BIAS_SPEC, (3, 4), _bias(-1e9)),
    Question(
        "a row of -1e9, q in float16",
        "mean of v (MASK-5)",
        _first(1),
        {**_HALF, **BIAS_SPEC},
        (3, 4),
        _bias(-1e9),
    ),
    Question(
        "a row of finfo.min", "mean of v (MASK-5)", _first(1), BIAS_SPEC, (3, 4), _bias(_LOWEST)
    ),
    Question(
        "products of 2e5 in float16", "no NaN (NUM-1)", _is_finite, _HALF, (3, 4), _large_products
    ),
    Question("no keys", "0 (SHAPE-4)", _first(1), {}, (3, 0)),
    Question("5 query heads on 2 of k and v", "refused (SHAPE-2)", _first(1), heads=(5, 2)),
    Question(
        "mask of one axis (Lk,)", "broadcasts (MOD-1)", _is_finite, DENSE_SPEC, (3, 4), _one_axis
    ),
    _F64,
    Question("base of lse", "natural (SOFT-1)", _base, {}, (3, 4), _flat),
)
