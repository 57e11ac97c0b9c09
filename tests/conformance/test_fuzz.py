"""Random valid specs on every backend; a failing one is shrunk and printed as a case."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from sdpakit.conformance import Case, Shape, builtin_targets, check
from sdpakit.dtypes import FLOATS
from sdpakit.expr.functions import to_float, where
from sdpakit.expr.nodes import Index, postorder
from sdpakit.expr.operands import Table
from sdpakit.logits import Alibi
from sdpakit.masks import Causal, Dense, Dilated, Document, Predicate, Prefix, Scope, Window

TARGETS = builtin_targets()
ALIGN = st.sampled_from(["top_left", "bottom_right", "offset"])
OUTPUTS = ("out", "lse", "max_logit", "entropy", "sum_p2")
COUNT = st.one_of(st.none(), st.integers(0, 40))
SLOPES = Table("slopes", "float32", 1)
LOGITS = {
    "alibi": Alibi("slopes", "bottom_right"),
    "scaled": lambda x, i: x * 0.5 - to_float((i.k - i.q) % 5),
    "picked": lambda x, i: where((i.k + i.h) % 4 == 1, -float("inf"), x + SLOPES[i.h]),
}


@st.composite
def affine(draw):
    """A comparison of small linear forms, possibly modulo something."""
    a, b, c = (draw(st.integers(-3, 3)) for _ in range(3))
    step, least = draw(st.integers(0, 6)), draw(st.integers(-20, 20))
    sign = draw(st.booleans())

    def predicate(i):
        value = i.q * a + i.k * b + i.h * c
        value = value % (step + 1) if step > 1 else value
        return value >= least % (step + 1) if sign else value < least

    return Predicate(predicate)


LEAVES = st.one_of(
    st.builds(Causal, ALIGN),
    st.builds(Window, COUNT, COUNT, ALIGN),
    st.builds(Prefix, st.one_of(st.integers(0, 60), st.just("prefix"))),
    st.just(Document("rows", "keys")),
    st.builds(Dilated, st.integers(1, 7), ALIGN),
    st.just(Dense()),
    affine(),
)
MASKS = st.recursive(
    LEAVES,
    lambda some: st.one_of(
        st.tuples(some, some).map(lambda pair: pair[0] & pair[1]),
        st.tuples(some, some).map(lambda pair: pair[0] | pair[1]),
        some.map(lambda mask: ~mask),
    ),
    max_leaves=4,
)


@st.composite
def shapes(draw):
    kv_heads = draw(st.integers(1, 2))
    return Shape(
        batch=draw(st.integers(0, 3)),
        q_heads=kv_heads * draw(st.integers(1, 3)),
        kv_heads=kv_heads,
        q_len=draw(st.integers(0, 45)),
        kv_len=draw(st.integers(0, 140)),
        head_dim=draw(st.sampled_from([1, 3, 8, 16, 33])),
        v_head_dim=draw(st.sampled_from([1, 5, 8, 16, 40])),
    )


@st.composite
def some_cases(draw):
    shape = draw(shapes())
    spec = {
        "dtype": draw(st.sampled_from(FLOATS)),
        "layout": draw(st.sampled_from(["bhsd", "bshd"])),
        "scale": draw(st.sampled_from([None, 0.0, 1.0, -0.7, 30.0])),
        "softcap": draw(st.sampled_from([None, 2.0, 50.0])),
        "mask": draw(st.none() | MASKS),
        "logits": LOGITS.get(draw(st.sampled_from(["", "", *LOGITS]))),
        "bias": draw(st.sampled_from([None, None, *FLOATS])),
        "sinks": draw(st.booleans()),
        "q_lens": draw(st.booleans()),
        "kv_lens": draw(st.booleans()),
        "outputs": draw(st.sampled_from([("out",), ("out", "lse"), OUTPUTS])),
        "empty_row": draw(st.sampled_from(["zero", "nan"])),
    }
    ones = draw(st.lists(st.booleans(), min_size=4, max_size=4))
    dims = tuple(1 if one else size for one, size in zip(ones, shape.pairs, strict=True))
    number = draw(st.integers(0, 2**20))
    case = Case(
        id=f"fuzz.{number}",
        rules=(),
        catches="whatever it finds",
        shape=shape,
        spec=spec,
        recipe=lambda source: operands(source, case, dims),
        bound="hard",
    )
    return case


def reads_offset(spec):
    """An unbounded window has an alignment that nothing reads."""
    return spec.mask is not None and Index("q_offset") in postorder(spec.mask.build(Scope()))


def operands(draw, case, dims):
    """Return what the spec of a case reads, and no more."""
    shape, spec = case.shape, case.attention_spec()
    found = {}
    for name, length in (("q_lens", shape.q_len), ("kv_lens", shape.kv_len)):
        if getattr(spec, name):
            found[name] = draw.ints(0, length + 1, shape.batch)
    if spec.bias:
        found["bias"] = draw.normal(*dims, dtype=spec.bias)
    if spec.sinks:
        found["sinks"] = draw.normal(shape.q_heads, dtype="float32")
    text = repr(spec.mask)
    if "Dense" in text:
        found["mask"] = draw.bools(*dims)
    if reads_offset(spec):
        found["q_offset"] = draw.ints(-50, 150, shape.batch)
    tables = {
        "slopes": draw.normal(shape.q_heads, dtype="float32"),
        "prefix": draw.ints(0, 60, shape.batch, dtype="int64"),
        "rows": np.sort(draw.ints(0, 4, shape.batch, shape.q_len), axis=1),
        "keys": draw.ints(0, 4, shape.batch, shape.kv_len),
    }
    read = {table.name for table in spec.tables()}
    found["params"] = {name: table for name, table in tables.items() if name in read}
    return found


@pytest.mark.parametrize(("backend", "examples"), [("interp", 60), ("numba_cpu", 12)])
def test_random_specs(backend, examples):
    @settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(some_cases())
    def judge(case):
        note(f"Case(id={case.id!r}, shape={case.shape!r}, spec={dict(case.spec)!r})")
        outcome = check(TARGETS[backend], case)
        assert outcome.verdict == "ok", f"{outcome.verdict}: {outcome.message}"

    judge()
