"""Lowering: deterministic, readable, the same code for whatever differs only at run time."""

import pytest

import sdpakit as sk
from sdpakit.backends.numba_cpu.backend import BACKEND
from sdpakit.backends.numba_cpu.isa import available_isas
from sdpakit.backends.numba_cpu.lower_expr import staged_loads
from sdpakit.errors import LoweringError
from sdpakit.expr.nodes import Binary, Const, Index, Load
from sdpakit.ir.build import build
from sdpakit.passes import run_pipeline


def program_of(**fields):
    spec = sk.AttentionSpec(**{"q_heads": 2, "head_dim": 6, **fields})
    return run_pipeline(build(spec)[0])


def lowered(options=None, **fields):
    return BACKEND.lower(program_of(**fields), options or {})


CAUSAL_BIAS = {"mask": sk.Causal("top_left"), "bias": "float16", "softcap": 3.0, "sinks": True}


def test_text_and_key_are_functions_of_the_program():
    first, second = lowered(**CAUSAL_BIAS), lowered(**CAUSAL_BIAS)
    assert first.stages["llvm"] == second.stages["llvm"]
    assert first.key == second.key
    other = lowered(**CAUSAL_BIAS | {"softcap": 4.0, "scale": 0.5})
    assert other.key == first.key
    assert lowered(head_dim=7).key != lowered(head_dim=8).key
    assert len({lowered({"isa": isa}).key for isa in available_isas()}) == len(available_isas())


def test_the_generated_code_names_program_phases_and_rules():
    text = lowered(**CAUSAL_BIAS).stages["llvm"]
    for part in ("attention for every", "MASK-3", "SINK-1", "phase", "key_ranges", "tile_class"):
        assert part in text
    assert list(lowered().stages) == ["ir", "llvm", "asm"]
    assert "step" in lowered().stages["asm"]


def modules(artifact) -> set[str]:
    return {module.text() for kernel in artifact.stages._recipes for module in kernel}


def test_what_knows_neither_mask_nor_logit_is_shared():
    """So that it is compiled once, for both directions where they need the same."""
    plain = modules(lowered())
    assert len(plain) > 1
    for fields in ({"mask": sk.Window(3, 0, align="top_left")}, {"outputs": ("entropy",)}):
        assert len(modules(lowered(**fields)) - plain) == 2  # the steps of prefill and decoding
    biased = modules(lowered(**CAUSAL_BIAS))
    assert len(biased - plain) == 3  # beside the steps, products that fetch rows of the table
    assert len(biased - modules(lowered(bias="float16"))) == 2
    backward = modules(BACKEND.lower_backward(program_of(), {}))
    assert len(plain & backward) == 3  # both products, and what stores out or dQ
    other = modules(BACKEND.lower_backward(program_of(**CAUSAL_BIAS), {}))
    assert len(other - backward) == 1


def test_plain_logits_keep_the_scale_out_of_the_code():
    assert lowered().meta["plan"].is_fast
    assert lowered(mask=sk.Causal("top_left")).meta["plan"].is_fast
    assert not lowered(softcap=1.0).meta["plan"].is_fast
    assert "key_ranges" not in lowered().stages["llvm"]


def test_a_program_without_schedule_is_a_defect():
    program, _ = build(sk.AttentionSpec(q_heads=1, head_dim=4))
    with pytest.raises(LoweringError, match="without a schedule"):
        BACKEND.lower(program, {})


def test_dense_tables_are_staged_and_integers_are_not():
    b, h, q, k = (Index(name) for name in "bhqk")
    bias, ids = Load("bias", "float32", (b, h, q, k)), Load("ids", "int32", (q, k))
    moved = Load("moved", "float32", (Binary("add", q, Const(0)), q, k))
    assert staged_loads(Binary("add", bias, Load("row", "float32", (q,)))) == (bias,)
    assert staged_loads(Binary("lt", ids, ids)) == ()
    assert staged_loads(moved) == ()
    assert lowered(mask=sk.Dense(), bias="float64").meta["plan"].layout.dense == (
        "float64",
        "bool",
    )


@pytest.mark.parametrize(
    ("fields", "options", "reason"),
    [
        ({"head_dim": 1025}, {}, "head_dim=1025 > 1024"),
        ({"v_head_dim": 2000}, {}, "v_head_dim=2000 > 1024"),
        ({}, {"isa": "vax"}, "isa='vax' is none of"),
        ({}, {"block_kv": 0}, "block_kv=0 is not an int from 1 to 4096"),
        ({}, {"block_kv": True}, "block_kv=True is not an int from 1 to 4096"),
        ({}, {"block_kv": 2**40}, "block_kv=1099511627776 is not an int from 1 to 4096"),
    ],
)
def test_what_cannot_be_compiled_has_a_reason(fields, options, reason):
    spec = sk.AttentionSpec(**{"q_heads": 1, "head_dim": 4, **fields})
    with pytest.raises(sk.UnsupportedSpecError) as caught:
        sk.compile(spec, "numba_cpu", options)
    assert any(reason in text for text in caught.value.reasons["numba_cpu"])


def test_everything_else_can():
    spec = sk.AttentionSpec(q_heads=1, head_dim=1024, v_head_dim=1, dtype="bfloat16")
    for options in ({}, {"isa": "auto"}, {"isa": available_isas()[0], "block_kv": 16}):
        assert BACKEND.unsupported_reasons(spec, options) == []


def test_numba_without_its_compiler_is_reported(monkeypatch):
    assert BACKEND.availability().ok
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    state = BACKEND.availability()
    assert not state.ok
    assert state.hint == "unset it"
