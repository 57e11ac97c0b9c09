"""Random valid cases for hypothesis: every part of a spec, sizes around tiles, hostile values."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from sdpakit.conformance.fuzz.recipe import Hostile, Operands
from sdpakit.conformance.model import Case, Shape
from sdpakit.dtypes import FLOATS
from sdpakit.expr.functions import exp, tanh, to_float, where
from sdpakit.expr.nodes import Index, postorder
from sdpakit.expr.operands import Table
from sdpakit.expr.scope import Scope
from sdpakit.logits import Alibi
from sdpakit.masks import Causal, Dense, Dilated, Document, Mask, Predicate, Prefix, Window
from sdpakit.spec import AttentionSpec

_NOTHING: frozenset[str] = frozenset()
_OUTPUTS = ("out", "lse", "max_logit", "entropy", "sum_p2")
_SLOPES = Table("slopes", "float32", 1)
# What comes first is what a case shrinks to: the plainest.
_DTYPES = ("float32", *(name for name in FLOATS if name != "float32"))
_ALIGNS = ("top_left", "bottom_right", "offset")
_COUNT = st.none() | st.integers(0, 40)

# Names stand for the functions, so that a case shrinks to the first of them.
_LOGITS: dict[str, Any] = {
    "": None,
    "scaled": lambda x, i: x * 0.5 - to_float((i.k - i.q) % 5),
    "picked": lambda x, i: where((i.k + i.h) % 4 == 1, -math.inf, x + _SLOPES[i.h]),
    "bent": lambda x, i: tanh(x) * 3.0 + exp(-to_float(i.k) * 0.125),
    "by_batch": lambda x, i: where(i.b % 2 == 0, x, -x),
}

_ORDERS = ("", "bshd", "fortran", "reversed", "sliced", "every_other", "unaligned", "read_only")
# No product of four of them leaves float32, where NUM-1 would make it an infinity.
_HOSTILE_VALUES = (math.nan, math.inf, -math.inf, 1e9, -1e9, 6e4, 1e-40, 0.0, -0.0)


@st.composite
def _affine(draw: st.DrawFn) -> Predicate:
    """Compare a small linear form, possibly modulo something, with a number."""
    a, b, c = (draw(st.integers(-3, 3)) for _ in range(3))
    step, least, below = draw(st.integers(0, 6)), draw(st.integers(-20, 20)), draw(st.booleans())

    def predicate(i: Any) -> Any:
        value = i.q * a + i.k * b + i.h * c
        value = value % (step + 1) if step > 1 else value
        return value < least if below else value >= least % (step + 1)

    return Predicate(predicate)


_LEAVES: dict[str, st.SearchStrategy[Mask]] = {
    **{f"mask Causal {align}": st.just(Causal(align)) for align in _ALIGNS},
    **{
        f"mask Window {align}": st.builds(Window, _COUNT, _COUNT, st.just(align))
        for align in _ALIGNS
    },
    "mask Prefix": st.builds(Prefix, st.integers(0, 60) | st.just("prefix")),
    "mask Document": st.just(Document("rows", "keys")),
    **{
        f"mask Dilated {align}": st.builds(Dilated, st.integers(1, 7), st.just(align))
        for align in _ALIGNS
    },
    "mask Dense": st.just(Dense()),
    "mask Predicate": _affine(),
}
_JOINS: dict[str, Callable[[tuple[Mask, Mask]], Mask]] = {
    "mask And": lambda pair: pair[0] & pair[1],
    "mask Or": lambda pair: pair[0] | pair[1],
    "mask Not": lambda pair: ~pair[0],
}


@functools.lru_cache(maxsize=16)
def _masks(without: frozenset[str]) -> st.SearchStrategy[Mask | None]:
    """Return masks that have none of some features, None among them."""
    leaves = [made for name, made in _LEAVES.items() if name not in without]
    joins = [join for name, join in _JOINS.items() if name not in without]
    if not leaves or "mask" in without:
        return st.none()

    def composed(some: st.SearchStrategy[Mask]) -> st.SearchStrategy[Mask]:
        return st.one_of(*(st.tuples(some, some).map(join) for join in joins))

    some = st.one_of(*leaves)
    return st.none() | (st.recursive(some, composed, max_leaves=4) if joins else some)


def _length(most: int, tiles: tuple[int, ...]) -> st.SearchStrategy[int]:
    """Return lengths up to `most`, often those around the sizes of tiles, and 0.

    One draw of a table: hypothesis takes what is drawn with fewer draws for simpler, 0 by itself.
    """
    around = [n + d for n in tiles for d in (-1, 0, 1)]
    often = most // (len(around) + 1)
    return st.sampled_from([*range(1, most + 1), *around * often, *[0] * often])


@st.composite
def _shapes(draw: st.DrawFn) -> Shape:
    kv_heads = draw(st.integers(1, 2))
    return Shape(
        batch=draw(st.sampled_from([1, 2, 3, 0])),
        q_heads=kv_heads * draw(st.integers(1, 3)),
        kv_heads=kv_heads,
        q_len=draw(_length(45, (16, 32, 64))),
        kv_len=draw(_length(140, (32, 96, 192))),
        head_dim=draw(st.sampled_from([1, 3, 8, 16, 33, 64, 80])),
        v_head_dim=draw(st.sampled_from([1, 5, 8, 16, 40, 64])),
    )


@st.composite
def _hostile(draw: st.DrawFn, operands: tuple[str, ...]) -> tuple[Hostile, ...]:
    one = st.builds(
        Hostile,
        operand=st.sampled_from(operands),
        value=st.sampled_from(_HOSTILE_VALUES),
        count=st.integers(1, 4),
        whole_rows=st.booleans(),
    )
    return tuple(draw(st.lists(one, max_size=3)))


def _spec(draw: st.DrawFn, *, gradients: bool, without: frozenset[str]) -> dict[str, Any]:
    """Return arguments of `AttentionSpec` beyond heads and widths."""
    outputs = [("out",)] if gradients else [("out",), ("out", "lse"), _OUTPUTS]

    def some(plain: Any, *others: Any, feature: str) -> Any:
        """Draw one of several, of which all but the first have a feature."""
        return draw(st.sampled_from([plain, *(() if feature in without else others)]))

    layout = draw(st.sampled_from(_layouts(gradients=gradients, without=without)))
    pages = not gradients and "kv_lens" not in without
    paged = pages and some(False, False, True, feature="paged")
    packed = paged or layout == "thd"
    # An array of pairs has no shape in a packed batch, and lengths have a name each (RAGGED-1).
    without = without | ({"bias", "mask Dense", "kv_lens"} if packed else _NOTHING)
    without = without | ({"q_lens"} if layout == "thd" else _NOTHING)
    return {
        "dtype": draw(st.sampled_from(_given("dtype", _DTYPES, without) or _DTYPES)),
        "layout": layout,
        "paged": paged,
        "scale": some(None, 0.0, 1.0, -0.7, 30.0, feature="scale"),
        "softcap": some(None, 2.0, 50.0, feature="softcap"),
        "mask": draw(_masks(without)),
        "logits": _logits(draw, without),
        "bias": some(None, None, *FLOATS, feature="bias"),
        "sinks": some(False, True, feature="sinks"),
        "q_lens": some(False, True, feature="q_lens"),
        "kv_lens": paged or some(False, True, feature="kv_lens"),
        "outputs": draw(st.sampled_from(outputs)),
        "batch_invariant": not gradients and some(False, True, feature="batch_invariant"),
        "empty_row": some("zero", "nan", feature="empty_row nan"),
    }


def _layouts(*, gradients: bool, without: frozenset[str]) -> tuple[str, ...]:
    """Return the layouts to draw from, the plainest first; gradients are of padded batches."""
    others = ("bshd",) if gradients else ("bshd", "thd")
    return ("bhsd", *_given("layout", others, without))


def _logits(draw: st.DrawFn, without: frozenset[str]) -> Any:
    """Return a change of the logits, None for none."""
    aligns = _given("logits Alibi", _ALIGNS, without)
    names = ["", *(name for name in _LOGITS if name and "logits" not in without)]
    name = draw(st.sampled_from([*names, *(["alibi"] if aligns else [])]))
    return Alibi("slopes", draw(st.sampled_from(aligns))) if name == "alibi" else _LOGITS[name]


def _given(feature: str, values: tuple[str, ...], without: frozenset[str]) -> tuple[str, ...]:
    """Return the values of a feature that are not left out."""
    return tuple(value for value in values if f"{feature} {value}" not in without)


def _reads_offset(spec: AttentionSpec) -> bool:
    """Return whether a call must bring `q_offset`: an unbounded window names one nobody reads."""
    if isinstance(spec.logits, Alibi) and spec.logits.align == "offset":
        return True
    return spec.mask is not None and Index("q_offset") in postorder(spec.mask.build(Scope()))


@st.composite
def cases(
    draw: st.DrawFn,
    *,
    hostile: bool = True,
    gradients: bool = False,
    without: frozenset[str] = _NOTHING,
) -> Case:
    """Return valid cases, each with a spec, a recipe and a seed.

    Parameters
    ----------
    draw : callable
        Of hypothesis.
    hostile : bool
        Whether operands may hold NaN, infinities and huge numbers.
    gradients : bool
        Whether to ask for gradients, not for outputs.
    without : frozenset of str
        Features of a spec to leave out, see `spec_features`; one dtype is always left.

    Returns
    -------
    Case
        Judged by the hard bound; the id seeds the operands.
    """
    shape, fields = draw(_shapes()), _spec(draw, gradients=gradients, without=without)
    made = Case(id="", rules=(), catches="", shape=shape, spec=fields).attention_spec()
    planted = ["q", "k", "v"]
    planted += ["bias"] * (made.bias is not None) + ["sinks"] * made.sinks + ["dout"] * gradients
    recipe = Operands(
        spread=draw(st.sampled_from([1.0, 0.0, 0.01, 30.0, 1000.0])),
        spread_v=draw(st.sampled_from([1.0, 0.0, 100.0])),
        bias=made.bias,
        ones=draw(st.tuples(*[st.booleans()] * 4)),
        dense="Dense()" in repr(made.mask),
        sinks=made.sinks,
        q_lens=made.q_lens,
        kv_lens=made.kv_lens,
        q_offset=_reads_offset(made),
        thd=made.layout == "thd",
        page_size=draw(st.sampled_from([16, 1, 7, 64])) if made.paged else 0,
        tables=tuple(table.name for table in made.tables()),
        order=draw(st.sampled_from(_ORDERS)),
        hostile=draw(_hostile(tuple(planted))) if hostile else (),
    )
    number = draw(st.integers(0, 2**16))
    return Case(
        id=f"fuzz.number_{number}.{made.dtype}",
        rules=(),  # which one it breaks is not known
        catches="",
        shape=shape,
        spec={**fields, "mask": made.mask, "logits": made.logits},
        recipe=recipe,
        bound="hard",
        gradients=gradients,
    )
