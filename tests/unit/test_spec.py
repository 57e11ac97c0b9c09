"""The spec: values, equality, text, and every contradiction that it refuses."""

import copy
import dataclasses
import inspect
import math
import pickle
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

import sdpakit
from sdpakit import (
    Alibi,
    AttentionSpec,
    Causal,
    Dense,
    Document,
    Predicate,
    Prefix,
    Scalar,
    Table,
    Window,
    formula,
    minimum,
)
from sdpakit.errors import SpecError
from sdpakit.expr.nodes import MAX_DEPTH, Binary, Index, Unary
from sdpakit.expr.text import parse

PUBLIC = {
    name: getattr(sdpakit, name)
    for name in sdpakit.__all__
    if name[0].isupper() or name == "formula"
}


def spec(**fields):
    return AttentionSpec(**({"q_heads": 8, "head_dim": 64} | fields))


def test_defaults():
    made = spec()
    assert made.kv_heads == 8
    assert made.v_head_dim == 64
    assert (made.dtype, made.out_dtype, made.accum_dtype) == ("float32",) * 3
    assert made.layout == "bhsd"
    assert (made.scale, made.softcap, made.mask, made.logits, made.bias) == (None,) * 5
    assert (made.sinks, made.q_lens, made.kv_lens, made.equal_lens) == (False,) * 4
    assert made.outputs == ("out",)
    assert made.empty_row == "zero"
    assert made.resolved_scale == 1 / math.sqrt(64)
    assert (made.tables(), made.scalars()) == ((), ())


@pytest.mark.parametrize(
    ("dtype", "accum"),
    [
        ("float16", "float32"),
        ("bfloat16", "float32"),
        ("float32", "float32"),
        ("float64", "float64"),
    ],
)
def test_accumulation_follows_num_1(dtype, accum):
    assert spec(dtype=dtype).accum_dtype == accum
    assert spec(dtype=dtype, accum_dtype=accum) == spec(dtype=dtype)
    assert spec(dtype=dtype).out_dtype == dtype


@pytest.mark.parametrize(
    ("q_heads", "kv_heads", "group"), [(8, 8, 1), (8, 2, 4), (8, 1, 8), (0, 0, 1), (0, 4, 1)]
)
def test_group(q_heads, kv_heads, group):
    assert spec(q_heads=q_heads, kv_heads=kv_heads).group == group


def test_numbers_of_numpy_become_those_of_python():
    made = spec(
        q_heads=np.int32(8),
        kv_heads=np.uint8(2),
        head_dim=np.int64(64),
        v_head_dim=np.int16(0),
        scale=np.float32(0.25),
        softcap=ml_dtypes.bfloat16(30),
        sinks=np.bool_(True),
    )
    plain = spec(kv_heads=2, v_head_dim=0, scale=0.25, softcap=30, sinks=True)
    assert made == plain
    assert repr(made) == repr(plain)
    kinds = [type(getattr(made, f)) for f in ("q_heads", "head_dim", "scale", "softcap", "sinks")]
    assert kinds == [int, int, float, float, bool]


@pytest.mark.parametrize("scale", [0, -1, -0.25, 1, 1e30, Fraction(1, 3), 2**70])
def test_any_finite_scale_is_a_value(scale):
    assert spec(scale=scale).resolved_scale == float(scale)


@pytest.mark.parametrize(
    "given", ["float16", np.float16, np.dtype("float16"), "torch.float16"], ids=repr
)
def test_dtypes_are_taken_by_name(given):
    made = spec(dtype=given, out_dtype=given, bias=given)
    assert (made.dtype, made.out_dtype, made.bias) == ("float16",) * 3


VARIED = [
    {},
    {"q_heads": 9},
    {"kv_heads": 2},
    {"head_dim": 32},
    {"v_head_dim": 5},
    {"dtype": "bfloat16"},
    {"out_dtype": "float64"},
    {"layout": "bshd"},
    {"scale": 0.1},
    {"scale": -0.0},
    {"softcap": 50.0},
    {"mask": Causal(align="top_left")},
    {"mask": Causal(align="bottom_right") & Window(3, None, align="offset") | ~Prefix(4)},
    {"mask": lambda i: (i.k <= i.pos("offset")) & (Table("doc", "int32", 2)[i.b, i.k] > 0)},
    {"mask": Dense() & Document()},
    {"mask": Causal(), "equal_lens": True},
    {"mask": lambda i: i.k <= i.pos(), "equal_lens": True},
    {"logits": lambda x, i: minimum(x, Scalar("top")) * 0.3 - 1e-30},
    {"logits": Alibi(align="bottom_right", dtype="bfloat16")},
    {"logits": Alibi(), "equal_lens": True},
    {"bias": "float16"},
    {"sinks": True},
    {"q_lens": True},
    {"kv_lens": True},
    {"outputs": ("lse", "out", "max_logit", "entropy", "sum_p2")},
    {"outputs": ("lse",)},
    {"empty_row": "nan"},
]


@pytest.mark.parametrize("fields", VARIED, ids=repr)
def test_specs_are_values(fields):
    made = spec(**fields)
    for again in (
        eval(repr(made), dict(PUBLIC)),
        pickle.loads(pickle.dumps(made)),
        copy.deepcopy(made),
        made.replace(),
    ):
        assert again == made
        assert hash(again) == hash(made)
        assert repr(again) == repr(made)
    assert {made: 1}[spec(**fields)] == 1


def test_replace_derives_again_what_was_left_out():
    plain = spec(q_heads=8, head_dim=64, dtype="float16")
    wider = plain.replace(head_dim=128, dtype="float64", q_heads=16)
    assert wider == spec(q_heads=16, head_dim=128, dtype="float64")
    assert (wider.v_head_dim, wider.out_dtype, wider.accum_dtype) == (128, "float64", "float64")
    assert wider.kv_heads == 16
    assert wider.resolved_scale == 1 / math.sqrt(128)


@pytest.mark.parametrize("fields", VARIED, ids=repr)
def test_replace_keeps_what_was_said(fields):
    made = spec(**fields)
    assert made.replace(empty_row="nan") == spec(**{**fields, "empty_row": "nan"})
    assert made.replace(head_dim=128) == spec(**{**fields, "head_dim": 128})
    assert made.replace(q_heads=18, kv_heads=9).kv_heads == 9


def test_replace_checks_and_names_wrong_fields():
    with pytest.raises(SpecError, match="an unknown field 'sclae'"):
        spec().replace(sclae=1.0)
    with pytest.raises(SpecError, match="q_heads"):
        spec(q_heads=8, kv_heads=4).replace(q_heads=6)


def test_the_replace_of_dataclasses_refuses_as_it_would_keep_what_was_derived():
    # A ValueError up to Python 3.12, a TypeError from 3.13 on.
    with pytest.raises((ValueError, TypeError), match="call_spec_replace_instead"):
        dataclasses.replace(spec(), head_dim=128)


@pytest.mark.skipif(not hasattr(copy, "replace"), reason="Python 3.13 and later")
def test_copy_replace_is_that_of_the_spec():
    assert copy.replace(spec(), head_dim=128).v_head_dim == 128


def test_different_specs_differ():
    made = [spec(**fields) for fields in VARIED]
    # 0.0 and -0.0 are equal numbers; everything else in the list is told apart.
    assert len(set(made)) == len({repr(one) for one in made}) == len(VARIED)


def test_repr_shows_what_was_said():
    made = spec(kv_heads=2, scale=0.3, mask=lambda i: i.k % 2 == 0, outputs=["out", "lse"])
    assert repr(made) == (
        "AttentionSpec(q_heads=8, kv_heads=2, head_dim=64, scale=0.3, "
        "mask=Predicate(formula('(k % 2) == 0')), outputs=('out', 'lse'))"
    )


def test_traced_and_written_expressions_are_equal():
    traced = spec(mask=lambda i: i.k <= i.q + 2, logits=lambda x, i: x * 2)
    assert traced == spec(mask=Predicate(formula("k <= q + 2")), logits=formula("x * 2.0"))
    assert traced == spec(mask=formula("k <= q + 2"), logits=formula("x * 2.0"))


def test_an_open_position_is_the_row_under_equal_lengths():
    made = spec(mask=lambda i: i.k <= i.pos(), logits=lambda x, i: x - i.pos(), equal_lens=True)
    assert made.mask == Predicate(formula("k <= q"))
    assert made.logits is parse("x - to_float(q)")


def test_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec().scale = 1.0


def test_run_time_operands_are_listed():
    made = spec(
        mask=Window(3, 4, align="offset") & Document() & Dense(),
        logits=lambda x, i: (
            x * Scalar("gain") + Table("slopes", "float16", 1)[i.h % Scalar("n", "int")]
        ),
        bias="float32",
        sinks=True,
        softcap=2.0,
    )
    assert made.tables() == (Table("doc", "int32", 2), Table("slopes", "float16", 1))
    assert made.scalars() == (("gain", "float"), ("n", "int"))


def test_help_shows_the_fields():
    parameters = inspect.signature(AttentionSpec).parameters
    assert list(parameters) == [field.name for field in dataclasses.fields(AttentionSpec)]
    assert all(p.kind is inspect.Parameter.KEYWORD_ONLY for p in parameters.values())


CONTRADICTIONS = {
    # heads and widths
    "heads": ({"q_heads": 8, "kv_heads": 3}, r"q_heads and kv_heads: got q_heads=8, kv_heads=3"),
    "more kv heads": ({"q_heads": 2, "kv_heads": 4}, "q_heads=2, kv_heads=4"),
    "no kv heads": ({"kv_heads": 0}, "q_heads=8, kv_heads=0"),
    "negative heads": ({"q_heads": -8}, "q_heads: got -8\n  allowed: an integer >= 0"),
    "float heads": ({"q_heads": 8.0}, r"q_heads: got 8\.0"),
    "bool heads": ({"q_heads": True}, "q_heads: got True"),
    "text heads": ({"q_heads": "8"}, r"q_heads: got '8' \(str\)"),
    "array heads": ({"kv_heads": np.array(8)}, r"kv_heads: got array\(8\) \(ndarray\)"),
    "head_dim 0": ({"head_dim": 0}, "head_dim: got 0\n  allowed: an integer >= 1"),
    "head_dim negative": ({"head_dim": -64}, "head_dim: got -64"),
    "head_dim None": ({"head_dim": None}, "head_dim: got None"),
    "v_head_dim negative": ({"v_head_dim": -1}, "v_head_dim: got -1\n  allowed: an integer >= 0"),
    "head_dim float": ({"head_dim": 64.5}, "head_dim: got 64.5"),
    # dtypes and layout
    "dtype": ({"dtype": "int8"}, r"dtype: got 'int8'\n  allowed: float16 \| bfloat16"),
    "dtype none": ({"dtype": None}, "dtype: got None"),
    "out_dtype": ({"out_dtype": "float8"}, "out_dtype: got 'float8'"),
    "accum narrower": (
        {"dtype": "float16", "accum_dtype": "float16"},
        "accum_dtype: got 'float16' with dtype='float16'\n  allowed: 'float32'",
    ),
    "accum wider": ({"accum_dtype": "float64"}, r"accum_dtype: got 'float64'(?s:.*)NUM-1"),
    "layout": ({"layout": "sbhd"}, r"layout: got 'sbhd'\n  allowed: 'bhsd' \| 'bshd' \| 'thd'"),
    "thd and q_lens": ({"layout": "thd", "q_lens": True}, "got q_lens=True(?s:.*)cu_q_lens"),
    "thd and kv_lens": ({"layout": "thd", "kv_lens": True}, "kv_lens=True with layout='thd'"),
    "thd and bias": ({"layout": "thd", "bias": "float32"}, "bias: got 'float32' with layout='thd'"),
    "thd and Dense": (
        {"layout": "thd", "mask": Dense() & Causal("top_left")},
        r"mask: got Dense\(\) with layout='thd'(?s:.*)Table",
    ),
    "paged alone": ({"paged": True}, "paged: got True with kv_lens=False"),
    "paged number": ({"paged": 16}, "paged: got a int(?s:.*)block_table="),
    "paged and bias": (
        {"paged": True, "kv_lens": True, "bias": "float32"},
        "bias: got 'float32' with paged=True",
    ),
    "paged and Dense": ({"paged": True, "kv_lens": True, "mask": Dense()}, "Dense.*paged=True"),
    "page_size": ({"page_size": 16}, "paged=True: the size of a page"),
    "layout case": ({"layout": "BHSD"}, "layout: got 'BHSD'"),
    # scale and cap
    "scale NaN": ({"scale": math.nan}, "scale: got nan\n  allowed: a finite number"),
    "scale inf": ({"scale": math.inf}, "scale: got inf"),
    "scale -inf": ({"scale": np.float32(-np.inf)}, r"scale: got .*inf"),
    "scale too large": ({"scale": 1e39}, r"scale: got 1e\+39\n  allowed: .*accum_dtype float32"),
    "scale huge int": ({"scale": 10**400}, "scale: got 1000"),
    "scale bool": ({"scale": True}, r"scale: got True \(bool\)\n  allowed: a real number or None"),
    "scale text": ({"scale": "0.125"}, r"scale: got '0\.125' \(str\)"),
    "scale array": ({"scale": np.array([0.1])}, r"scale: got array\(\[0\.1\]\) \(ndarray\)"),
    "scale complex": ({"scale": 1j}, r"scale: got 1j \(complex\)"),
    "softcap 0": ({"softcap": 0}, "softcap: got 0\n(?s:.*)0 is not 'off'"),
    "softcap negative": ({"softcap": -30.0}, r"softcap: got -30\.0\n  allowed: None, or a number"),
    "softcap NaN": ({"softcap": math.nan}, "softcap: got nan"),
    "softcap inf": ({"softcap": math.inf}, "softcap: got inf"),
    "softcap rounds to 0": ({"softcap": 1e-50}, r"softcap: got 1e-50\n.*above 0 in accum_dtype"),
    "softcap bool": ({"softcap": False}, "softcap: got False"),
    # masks and alignment
    "window": ({"mask": lambda i: Window(-1, 0).a}, "Window: left: got -1"),
    "open causal": (
        {"mask": Causal()},
        "Causal: align: got none, though q_len and kv_len may differ",
    ),
    "open window": ({"mask": Dense() & Window(1, 1)}, "Window: align: got none"),
    "open predicate": ({"mask": lambda i: i.k < i.pos()}, r"i\.pos\(align\): align: got none"),
    "open alibi": ({"logits": Alibi()}, "Alibi: align: got none"),
    "open logits": ({"logits": lambda x, i: x - i.pos()}, r"logits: i\.pos\(align\): align"),
    "equal kv_lens": (
        {"equal_lens": True, "kv_lens": True},
        "equal_lens: got True with q_lens=False",
    ),
    "equal q_lens": ({"equal_lens": True, "q_lens": True}, "allowed: both lengths or neither"),
    "mask array": (
        {"mask": np.eye(2, dtype=bool)},
        r"mask: got an array of shape \(2, 2\)(?s:.*)Dense",
    ),
    "mask flag": ({"mask": True}, r"mask: got True(?s:.*)Causal\(align="),
    "mask text": ({"mask": "causal"}, r"mask: got 'causal'(?s:.*)Causal\(align="),
    "mask class": ({"mask": Causal}, r"make an object of the class: Causal\(\.\.\.\)"),
    "mask list": ({"mask": [Causal()]}, r"mask: got \[Causal"),
    "mask alibi": ({"mask": Alibi()}, "mask: got Alibi"),
    "mask int": ({"mask": lambda i: i.k}, "mask: got an expression of type int"),
    # logits and bias
    "logits array": (
        {"logits": np.zeros((2, 2))},
        r'logits: got an array of shape(?s:.*)bias="float32"',
    ),
    "logits mask": ({"logits": Causal()}, "logits: got Causal"),
    "logits class": ({"logits": Alibi}, "logits: got <class"),
    "logits bool": ({"logits": lambda x, i: i.k < 3}, r"logits: got a condition \(bool\)"),
    "bias flag": ({"bias": True}, r'bias: got a bool(?s:.*)bias="float32"'),
    "bias array": ({"bias": np.zeros((2, 2))}, r"bias: got a ndarray(?s:.*)bias= at the call"),
    "bias dtype": ({"bias": "int32"}, r"bias: got 'int32'\n  allowed: the dtype"),
    "bias bool dtype": ({"bias": "bool"}, "bias: got 'bool'"),
    # flags
    "sinks array": (
        {"sinks": np.zeros(8)},
        r"sinks: got a ndarray\n  allowed: True \| False(?s:.*)call",
    ),
    "q_lens list": ({"q_lens": [3, 4]}, "q_lens: got a list"),
    "kv_lens int": ({"kv_lens": 1}, "kv_lens: got a int"),
    "equal_lens none": ({"equal_lens": None}, "equal_lens: got a NoneType"),
    # outputs and empty rows
    "unknown output": ({"outputs": ("out", "probs")}, r"outputs: got \('out', 'probs'\)"),
    "double output": ({"outputs": ("out", "out")}, "allowed: a tuple without repetition"),
    "no output": ({"outputs": ()}, r"outputs: got \(\)"),
    "text output": ({"outputs": "out"}, r'outputs: got .out.(?s:.*)\("out",\)'),
    "output of ints": ({"outputs": (1,)}, r"outputs: got \(1,\)"),
    "output none": ({"outputs": None}, "outputs: got None"),
    "output of lists": ({"outputs": (["out"],)}, "outputs: got"),
    "empty_row": ({"empty_row": "mean"}, r"empty_row: got 'mean'\n  allowed: 'zero' \| 'nan'"),
    "empty_row float": ({"empty_row": math.nan}, "empty_row: got nan"),
    # names of run-time operands
    "two dtypes": (
        {"mask": Document("t"), "logits": lambda x, i: x + Table("t", "float32", 1)[i.h]},
        "run-time operand 't': got",
    ),
    "two kinds": (
        {"logits": lambda x, i: x * Scalar("a") + Scalar("a", "int")},
        "run-time operand 'a': got .* and ",
    ),
    "number and array": (
        {"logits": lambda x, i: x * Scalar("a") + Table("a", "float32", 1)[i.h]},
        "run-time operand 'a': got a Scalar and a Table of this name",
    ),
    # MASK-5: finite stays finite
    "literal": ({"logits": lambda x, i: x - 1e39}, r"got the number 1e\+39\n  allowed: up to 3\.4"),
    "mask literal": ({"mask": lambda i: i.k * 1e-3 < 1e300}, r"got the number 1e\+300"),
    # fields
    "unknown field": ({"head_dims": 3}, "an unknown field 'head_dims'(?s:.*)say head_dim"),
    "name elsewhere": ({"sm_scale": 0.1}, "an unknown field 'sm_scale'(?s:.*)remedy: say scale"),
    "is_causal": ({"is_causal": True}, r"remedy: say mask=Causal\(align="),
    "length": ({"kv_len": 5}, "remedy: say nothing: the length is that of the arrays"),
    "nonsense": ({"zzz": 5}, "remedy: say one of these"),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_contradictions_are_refused(name):
    fields, message = CONTRADICTIONS[name]
    with pytest.raises(SpecError, match=message) as caught:
        spec(**fields)
    lines = str(caught.value).splitlines()
    assert ": got " in lines[0]
    assert lines[1].startswith("  allowed: ")
    assert lines[-1].startswith("  remedy: ")
    assert isinstance(caught.value, ValueError)


def test_positional_use_is_refused():
    with pytest.raises(
        SpecError, match=r"got 2 positional argument\(s\)\n  allowed: keyword .*q_heads"
    ):
        AttentionSpec(8, 64)


@pytest.mark.parametrize("missing", ["q_heads", "head_dim"])
def test_what_has_no_default_must_be_given(missing):
    fields = {"q_heads": 8, "head_dim": 64}
    del fields[missing]
    with pytest.raises(SpecError, match=f"got no {missing}"):
        AttentionSpec(**fields)


def test_an_open_alignment_shows_both_pictures():
    with pytest.raises(SpecError) as caught:
        spec(mask=Causal())
    text = str(caught.value)
    lines = [line.split("(")[0].split("0 is")[0].split() for line in text.splitlines()]
    assert [*"#....", *"####."] in lines
    assert [*"##...", *"#####"] in lines
    assert "top_left" in text
    assert "bottom_right" in text


def test_a_literal_that_float64_holds_is_fine_there():
    assert spec(dtype="float64", logits=lambda x, i: x - 1e39).logits is parse("x - 1e+39")
    assert spec(logits=lambda x, i: x - math.inf).logits is parse("x - inf")
    assert spec(logits=lambda x, i: x - 1e9).logits is parse("x - 1000000000.0")


def test_masks_nested_without_end_are_refused():
    mask = Predicate(lambda i: i.k < 0)
    for first in range(3000):
        mask = mask | Predicate(lambda i, first=first: i.k == first)
    with pytest.raises(
        SpecError, match="mask: got more than 100 masks joined one inside the other"
    ):
        spec(mask=mask)


def chain(times):
    def change(x, i):
        for _ in range(times):
            x = x * Scalar("beta")
        return x

    return change


def test_expressions_nested_without_end_are_refused_while_they_are_written():
    spec(logits=chain(MAX_DEPTH - 1))
    with pytest.raises(SpecError, match=r"nested 129 operations deep\n  allowed: at most 128"):
        spec(logits=chain(10**9))


def test_nodes_and_joined_masks_nested_too_deep_are_refused():
    node = spec(logits=chain(MAX_DEPTH - 1)).logits
    with pytest.raises(SpecError, match=r"logits: got an expression nested 129 operations deep"):
        spec(logits=Unary("tanh", node))
    deep = Index("k")
    for _ in range(100):
        deep = Binary("add", deep, Index("q"))
    mask = Predicate(Binary("lt", deep, Index("q")))
    for _ in range(50):
        mask = mask & ~Causal("top_left")
    with pytest.raises(SpecError, match=r"mask: got an expression nested \d+ operations deep"):
        spec(mask=mask)
