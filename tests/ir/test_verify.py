"""Every rule of well-formed programs catches the program that breaks it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sdpakit.errors import InternalError, VerifyError
from sdpakit.expr.names import LOGIT, POSITION
from sdpakit.expr.nodes import Binary, Const, Dot, Index, Load, Scalar, Unary
from sdpakit.ir.program import Program, Schedule
from sdpakit.ir.verify import RULES, verify

B, H, Q, K = (Index(name) for name in "bhqk")
PLAIN = Binary("mul", Scalar("scale"), Dot())
GOOD = Program(
    head_dim=8,
    v_head_dim=4,
    dtype="bfloat16",
    accum_dtype="float32",
    out_dtype="float16",
    logit=Binary("add", PLAIN, Load("bias", "float16", (B, H, Q, K))),
    mask=Binary("and", Binary("le", K, Q), Load("mask", "bool", (B, H, Q, K))),
    sink=Load("sinks", "float32", (H,)),
    outputs=("out", "lse"),
    empty_row="zero",
    schedule=Schedule(needs_mask=True, plain_logits=False),
)


def _logit(extra):
    return {"logit": Binary("add", GOOD.logit, extra)}


def _mask(extra):
    return {"mask": Binary("and", GOOD.mask, extra)}


def _read(table, dtype, *indices):
    load = Load(table, dtype, indices)
    return load if load.type == "float" else Unary("to_float", load)


BROKEN = [
    ("_widths", {"head_dim": 0}, "head_dim 0 is not >= 1"),
    ("_widths", {"v_head_dim": -1}, "v_head_dim -1 is not >= 0"),
    ("_dtypes", {"dtype": "int8"}, "dtype 'int8' is not one of"),
    ("_dtypes", {"out_dtype": "float8"}, "out_dtype 'float8' is not one of"),
    ("_dtypes", {"accum_dtype": "float64"}, "accum_dtype 'float64' is not 'float32'"),
    ("_outputs", {"outputs": ()}, "there are no outputs"),
    ("_outputs", {"outputs": ("lse", "lse")}, "name one twice"),
    ("_outputs", {"outputs": ("out", "mean")}, r"outputs \['mean'\] are unknown"),
    ("_outputs", {"empty_row": "one"}, "empty_row 'one' is not one of zero, nan"),
    ("_types", {"logit": Const(1)}, "logit has type int, not float"),
    ("_types", {"mask": Const(1.0)}, "mask has type float, not bool"),
    ("_types", {"sink": Const(True)}, "sink has type bool, not float"),
    ("_products", _mask(Binary("lt", Dot(), Const(1.0))), r"mask reads dot\(\)"),
    ("_products", {"sink": Dot()}, r"sink reads dot\(\)"),
    ("_sink_indices", {"sink": Load("sinks2", "float32", (Q,))}, "sink reads the index q"),
    ("_placeholders", _logit(LOGIT), "placeholder x was not replaced"),
    ("_placeholders", _mask(Binary("le", K, POSITION)), "placeholder pos was not replaced"),
    ("_loads", _logit(_read("t", "float32")), "'t' is read without an index"),
    ("_loads", _logit(_read("t", "float32", Const(1.0))), "'t' is read at a float: 1.0"),
    ("_loads", _logit(_read("bias", "float16", B, H, K, Q)), "'bias' is read as bias.float16"),
    ("_loads", {"sink": Load("sinks", "float32", (Const(0),))}, "'sinks' is read as"),
    ("_loads", {"mask": Binary("eq", Load("mask", "int8", (B, H, Q, K)), Const(1))}, "not bool"),
    ("_names", _logit(_read("bias", "float32", B, H, Q, K)), "'bias' is a table of float16 with 4"),
    (
        "_names",
        _logit(Binary("add", _read("t", "int8", Q), _read("t", "int8", Q, K))),
        "'t' is a table of int8 with 1 axes and a table of int8 with 2 axes",
    ),
    ("_names", _logit(Unary("to_float", Scalar("scale", "int"))), "'scale' is a number of type"),
    ("_names", _logit(_read("scale", "float32", H)), "'scale' is a number of type float and a tab"),
    ("_schedule", {"mask": Const(True)}, "schedule says needs_mask=True"),
    ("_schedule", {"logit": PLAIN}, "schedule says plain_logits=False"),
]


def test_a_good_program_passes():
    verify(GOOD, after="test")
    verify(replace(GOOD, sink=None, schedule=None), after="test")


@pytest.mark.parametrize(("rule", "change", "message"), BROKEN)
def test_a_broken_rule_is_named(rule, change, message):
    broken = replace(GOOD, **change)
    with pytest.raises(VerifyError, match=message):
        verify(broken, after="test")
    failing = [candidate.__name__ for candidate in RULES if list(candidate(broken))]
    assert rule in failing


def test_every_rule_has_a_program_that_breaks_it():
    assert {rule.__name__ for rule in RULES} == {rule for rule, _, _ in BROKEN}


def test_the_message_holds_all_problems_and_the_program():
    broken = replace(GOOD, head_dim=0, outputs=())
    with pytest.raises(InternalError, match=r"(?s)'fold'.*head_dim 0.*no outputs.*logit.*report"):
        verify(broken, after="fold")
