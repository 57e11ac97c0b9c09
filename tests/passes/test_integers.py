"""Proof of the integers of a call: what is refused, and the width that is found."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from tests.passes.tiles import integers, masks, worlds

from sdpakit.errors import ArgumentError
from sdpakit.expr.evaluate import Environment, evaluate
from sdpakit.expr.nodes import Binary, Const, Dot, Expr, Index, Load, Scalar, Unary, postorder
from sdpakit.ir.program import Program
from sdpakit.passes.integers import prove_integers

B, H, Q, K = (Index(name) for name in "bhqk")
N = Scalar("n", "int")
SIZES = {
    "b": (0, 1),
    "h": (0, 3),
    "q": (0, 9),
    "k": (0, 19),
    "q_len": (10, 10),
    "kv_len": (5, 20),
    "q_offset": (0, 0),
}


def _program(mask: Expr, logit: Expr | None = None) -> Program:
    return Program(
        head_dim=8,
        v_head_dim=8,
        dtype="float32",
        accum_dtype="float32",
        out_dtype="float32",
        logit=Dot() if logit is None else logit,
        mask=mask,
        sink=None,
        outputs=("out",),
        empty_row="zero",
    )


def _prove(mask, scalars=None, tables=None, logit=None, sizes=SIZES):
    return prove_integers(_program(mask, logit), sizes, scalars or {}, tables or {})


def test_small_integers_need_32_bits():
    assert _prove(Binary("le", K, Binary("add", Q, N)), {"n": 7}) == 32


@pytest.mark.parametrize("n", [2**31, -(2**31) - 1, 2**40, -(2**61)])
def test_large_scalars_need_64_bits(n):
    assert _prove(Binary("le", K, N), {"n": n}) == 64


def test_the_edges_of_32_bits():
    assert _prove(Binary("le", K, N), {"n": 2**31 - 1}) == 32
    assert _prove(Binary("le", K, N), {"n": -(2**31)}) == 32
    assert _prove(Binary("le", Const(0), Binary("add", K, N)), {"n": 2**31 - 19}) == 64


@pytest.mark.parametrize("n", [2**62, -(2**62), 2**100])
def test_values_beyond_62_bits_are_refused(n):
    with pytest.raises(ArgumentError, match=r"magnitude of up to .*\n  allowed: at most 2\*\*62"):
        _prove(Binary("le", K, N), {"n": n})


def test_values_on_the_way_to_a_range_are_refused_too():
    # k // n <= n is solved as k < n * (n + 1), which would wrap.
    mask = Binary("le", Binary("floordiv", K, N), N)
    assert _prove(mask, {"n": 2**30}) == 32
    with pytest.raises(ArgumentError, match=r"2\*\*62"):
        _prove(mask, {"n": 2**40})


@pytest.mark.parametrize("op", ["floordiv", "mod"])
@pytest.mark.parametrize("n", [0, -3])
def test_divisors_below_one_are_refused(op, n):
    mask = Binary("eq", Binary(op, K, N), Const(0))
    with pytest.raises(ArgumentError, match=rf"divisor of .*\n?.*values from {n} to {n}"):
        _prove(mask, {"n": n})


def test_divisors_of_the_logits_are_seen():
    change = Unary("to_float", Binary("mod", K, Binary("sub", Q, Const(3))))
    with pytest.raises(ArgumentError, match="values from -3 to 6"):
        _prove(Const(True), logit=Binary("add", Dot(), change))


def test_indices_outside_of_a_table_are_refused():
    near = Load("near", "float32", (Binary("sub", K, Q),))
    logit = Binary("add", Dot(), near)
    with pytest.raises(ArgumentError, match=r"(?s)'near', axis 0.*from -9 to 19.*0 to 9"):
        _prove(Const(True), tables={"near": np.zeros(10, np.float32)}, logit=logit)
    flags = Load("flags", "bool", (H, K))
    with pytest.raises(ArgumentError, match=r"(?s)'flags', axis 1.*from 0 to 19.*0 to 18"):
        _prove(flags, tables={"flags": np.zeros((4, 19), np.bool_)})


def test_plain_indices_broadcast_and_other_indices_do_not():
    tables = {"t": np.zeros((1, 1), np.bool_)}
    assert _prove(Load("t", "bool", (B, K)), tables=tables) == 32
    with pytest.raises(ArgumentError, match="axis 1"):
        _prove(Load("t", "bool", (B, Binary("add", K, Const(1)))), tables=tables)


def test_indices_that_come_from_a_table_are_proven_by_its_contents():
    index = Load("page", "int32", (K,))
    mask = Load("flags", "bool", (index,))
    page = np.arange(20, dtype=np.int32) % 7
    flags = np.ones(7, np.bool_)
    assert _prove(mask, tables={"page": page, "flags": flags}) == 32
    page[3] = 7
    with pytest.raises(ArgumentError, match=r"(?s)'flags'.*from 0 to 7"):
        _prove(mask, tables={"page": page, "flags": flags})


def test_contents_decide_the_width_of_wide_tables():
    ids = np.arange(20, dtype=np.int64)
    mask = Binary("eq", Load("ids", "int64", (K,)), N)
    assert _prove(mask, {"n": 3}, {"ids": ids}) == 32
    assert _prove(mask, {"n": 3}, {"ids": ids + 2**40}) == 64
    with pytest.raises(ArgumentError, match=r"2\*\*62"):
        _prove(mask, {"n": 3}, {"ids": ids + 2**62})
    unsigned = ids.astype(np.uint64)
    unsigned[0] = 2**63
    with pytest.raises(ArgumentError, match=r"9223372036854775808"):
        _prove(Binary("eq", Load("ids", "uint64", (K,)), N), {"n": 3}, {"ids": unsigned})


def test_calls_without_pairs_need_no_proof():
    mask = Load("flags", "bool", (K,))
    sizes = SIZES | {"k": (0, -1)}
    assert _prove(mask, tables={"flags": np.zeros(0, np.bool_)}, sizes=sizes) == 32


@settings(
    max_examples=200, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
@given(masks(), integers(), worlds())
def test_every_value_fits_the_width_that_is_proven(mask, number, world):
    logit = Binary("add", Dot(), Unary("to_float", number))
    axes = {"b": world.batch, "h": world.heads, "q": world.q_rows, "k": world.kv_rows}
    sizes = {name: (0, size - 1) for name, size in axes.items()}
    batch = {"q_len": world.q_len, "kv_len": world.kv_len, "q_offset": world.q_offset}
    sizes |= {name: (int(x.min()), int(x.max())) for name, x in batch.items()}
    scalars, program = world.scalars, _program(mask, logit)
    width = prove_integers(program, sizes, scalars, world.tables)
    shape = [(-1 if place == axis else 1) for axis in range(4) for place in range(4)]
    indices = {
        name: np.arange(size).reshape(shape[4 * axis : 4 * axis + 4])
        for axis, (name, size) in enumerate(axes.items())
    }
    indices |= {name: x.reshape(-1, 1, 1, 1) for name, x in batch.items()}
    environment = Environment("float64", indices, scalars, world.tables, np.zeros(1))
    for root in (mask, number):
        for node in postorder(root):
            if node.type == "int":
                values = evaluate(node, environment)
                assert np.abs(values).max() < 2 ** (width - 1)
