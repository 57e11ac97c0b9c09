"""Random valid cases for hypothesis: every part of a spec, sizes around tiles, hostile values."""

from __future__ import annotations

import math
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

_OUTPUTS = ("out", "lse", "max_logit", "entropy", "sum_p2")
_SLOPES = Table("slopes", "float32", 1)
_ALIGN = st.sampled_from(["top_left", "bottom_right", "offset"])
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


_LEAVES = st.one_of(
    st.builds(Causal, _ALIGN),
    st.builds(Window, _COUNT, _COUNT, _ALIGN),
    st.builds(Prefix, st.integers(0, 60) | st.just("prefix")),
    st.just(Document("rows", "keys")),
    st.builds(Dilated, st.integers(1, 7), _ALIGN),
    st.just(Dense()),
    _affine(),
)


def _composed(some: st.SearchStrategy[Mask]) -> st.SearchStrategy[Mask]:
    pairs = st.tuples(some, some)
    return st.one_of(
        pairs.map(lambda pair: pair[0] & pair[1]),
        pairs.map(lambda pair: pair[0] | pair[1]),
        some.map(lambda mask: ~mask),
    )


_MASKS = st.recursive(_LEAVES, _composed, max_leaves=4)


def _length(most: int, tiles: tuple[int, ...]) -> st.SearchStrategy[int]:
    """Return lengths up to `most`, and those around the sizes of tiles."""
    around = [n + d for n in tiles for d in (-1, 0, 1)]
    return st.integers(0, most) | st.sampled_from(around)


@st.composite
def _shapes(draw: st.DrawFn) -> Shape:
    kv_heads = draw(st.integers(1, 2))
    return Shape(
        batch=draw(st.integers(0, 3)),
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


def _spec(draw: st.DrawFn, *, gradients: bool) -> dict[str, Any]:
    """Return arguments of `AttentionSpec` beyond heads and widths."""
    outputs = [("out",)] if gradients else [("out",), ("out", "lse"), _OUTPUTS]
    logits = draw(st.sampled_from([*_LOGITS, "alibi"]))
    return {
        "dtype": draw(st.sampled_from(FLOATS)),
        "layout": draw(st.sampled_from(["bhsd", "bshd"])),
        "scale": draw(st.sampled_from([None, 0.0, 1.0, -0.7, 30.0])),
        "softcap": draw(st.sampled_from([None, 2.0, 50.0])),
        "mask": draw(st.none() | _MASKS),
        "logits": Alibi("slopes", draw(_ALIGN)) if logits == "alibi" else _LOGITS[logits],
        "bias": draw(st.sampled_from([None, None, *FLOATS])),
        "sinks": draw(st.booleans()),
        "q_lens": draw(st.booleans()),
        "kv_lens": draw(st.booleans()),
        "outputs": draw(st.sampled_from(outputs)),
        "empty_row": draw(st.sampled_from(["zero", "nan"])),
    }


def _reads_offset(spec: AttentionSpec) -> bool:
    """Return whether a call must bring `q_offset`: an unbounded window names one nobody reads."""
    if isinstance(spec.logits, Alibi) and spec.logits.align == "offset":
        return True
    return spec.mask is not None and Index("q_offset") in postorder(spec.mask.build(Scope()))


@st.composite
def cases(draw: st.DrawFn, *, hostile: bool = True, gradients: bool = False) -> Case:
    """Return valid cases, each with a spec, a recipe and a seed.

    Parameters
    ----------
    draw : callable
        Of hypothesis.
    hostile : bool
        Whether operands may hold NaN, infinities and huge numbers.
    gradients : bool
        Whether to ask for gradients, not for outputs.

    Returns
    -------
    Case
        Judged by the hard bound; the id seeds the operands.
    """
    shape, fields = draw(_shapes()), _spec(draw, gradients=gradients)
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
        tables=tuple(table.name for table in made.tables()),
        order=draw(st.sampled_from(_ORDERS)),
        hostile=draw(_hostile(tuple(planted))) if hostile else (),
    )
    number = draw(st.integers(0, 2**16))
    return Case(
        id=f"fuzz.number_{number}.{made.dtype}",
        rules=("NUM-6",),
        catches="whatever a random spec shows",
        shape=shape,
        spec={**fields, "mask": made.mask, "logits": made.logits},
        recipe=recipe,
        bound="hard",
        gradients=gradients,
    )
