"""Vector code of expressions against the definition of every operation (`expr.evaluate`)."""

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tests.backends.numba_cpu.emitted import TRUE, Emitted, call_of, program_of
from tests.passes.tiles import integers, worlds

from sdpakit.backends.numba_cpu.isa import available_isas
from sdpakit.conformance.inputs import np_dtype
from sdpakit.expr.evaluate import Environment, evaluate
from sdpakit.expr.nodes import Binary, Const, Dot, Index, Load, Scalar, Select, Unary, postorder

B, H, Q, K = (Index(name) for name in "bhqk")
QUICK = settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
SPECIAL = (0.0, 0.5, -2.0, 3e38, -3e38, 1e-30, math.inf, -math.inf, math.nan)


def environment(accum, world, scalars, tables, rows, b, h, j, dot=None):
    q_len, kv_len, q_offset = (int(x[b]) for x in world)
    indices = {"b": b, "h": h, "q": rows, "k": j}
    indices |= {"q_len": q_len, "kv_len": kv_len, "q_offset": q_offset}
    return Environment(accum, indices, {"scale": 1.0, **scalars}, tables, dot)


def check(root, world, scalars, tables, *, accum="float32", int_bits=64, isa="auto", last=9, j=2):
    """Compare all lanes of one vector, of which those past row `last` repeat it."""
    number = root if root.type == "float" else Unary("to_float", root)
    program = program_of(Binary("add", number, Dot()), TRUE, accum)
    emitted = Emitted(program, root, isa, int_bits)
    rows = np.minimum(3 + np.arange(emitted.lanes), last)
    dot = np.resize(np.asarray(SPECIAL, accum), emitted.lanes)
    found = emitted.with_call(call_of(world, scalars, tables)).values(1, 1, 3, last, j, dot)
    env = environment(accum, world, scalars, tables, rows, 1, 1, j, dot)
    right = np.broadcast_to(evaluate(root, env), found.shape)
    return found, right


@QUICK
@given(integers(), worlds(), st.sampled_from([32, 64]))
def test_random_integers(root, world, int_bits):
    assume(world.q_rows > 3)
    lengths = (world.q_len, world.kv_len, world.q_offset)
    last, j = world.q_rows - 1, world.kv_rows - 1
    for node in postorder(root):
        if node.type == "int" and int_bits == 32:
            env = environment(
                "float32", lengths, world.scalars, world.tables, np.arange(3, last + 1), 1, 1, j
            )
            assume(np.abs(evaluate(node, env)).max() < 2**31)
    found, right = check(
        root, lengths, world.scalars, world.tables, int_bits=int_bits, last=last, j=j
    )
    np.testing.assert_array_equal(found, right)


@st.composite
def floats(draw, depth=3):
    """Draw a float expression of operations that have one right answer, zeros of any sign."""
    if depth == 0 or draw(st.integers(0, 3)) == 0:
        leaf = draw(st.sampled_from([Dot(), Scalar("a"), Load("t", "float16", (H, K)), None]))
        return leaf or Const(draw(st.sampled_from(SPECIAL)))
    op = draw(st.sampled_from(["neg", "abs", "sqrt", "floor", "int", "where", "add", "sub", "mul"]))
    a = draw(floats(depth - 1))
    if op == "int":
        return Unary("to_float", Binary("sub", K, Q))
    if op == "where":
        compare = draw(st.sampled_from(["lt", "le", "eq", "ne"]))
        return Select(Binary(compare, a, draw(floats(0))), draw(floats(depth - 1)), a)
    if op in ("neg", "abs", "sqrt", "floor"):
        return Unary(op, a)
    return Binary(op, a, draw(floats(depth - 1)))


@QUICK
@given(floats(), st.sampled_from(["float32", "float64"]), st.sampled_from(available_isas()))
def test_random_floats(root, accum, isa):
    tables = {"t": np.linspace(-2, 2, 10).astype(np.float16).reshape(2, 5)}
    world = ([20, 20], [5, 5], [0, 7])
    found, right = check(root, world, {"a": 0.75}, tables, accum=accum, isa=isa)
    np.testing.assert_array_equal(found, right)


@pytest.mark.parametrize("isa", available_isas())
@pytest.mark.parametrize("op", ["min", "max", "div"])
def test_operations_of_two_floats_meet_every_special_value(op, isa):
    world = ([20, 20], [5, 5], [0, 0])
    for value in SPECIAL:
        found, right = check(Binary(op, Dot(), Const(value)), world, {}, {}, isa=isa)
        np.testing.assert_array_equal(found, right)


@pytest.mark.parametrize("isa", available_isas())
@pytest.mark.parametrize("op", ["exp", "log", "tanh"])
@pytest.mark.parametrize("accum", ["float32", "float64"])
def test_functions_are_good_to_two_units_in_the_last_place(op, accum, isa):
    world = ([20, 20], [5, 5], [0, 0])
    for shift in (0.0, 0.3, 5.0, 80.0):
        root = Unary(op, Binary("add", Dot(), Const(shift)))
        found, right = check(root, world, {}, {}, accum=accum, isa=isa)
        np.testing.assert_array_max_ulp(found, right.astype(found.dtype), maxulp=2)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32"])
@pytest.mark.parametrize("lanes", [True, False], ids=["each lane", "one value"])
def test_tables_of_integers_are_read_with_any_strides(dtype, lanes):
    wide = np.random.default_rng(3).integers(-(2**31), 2**31, (4, 60)).astype(np_dtype(dtype))
    tables = {"t": wide[::-2, ::-3]}
    root = Load("t", dtype, (B, Q if lanes else K))
    if dtype == "bool":
        root = Unary("to_int", root)
    found, right = check(root, ([20, 20], [5, 5], [0, 0]), {}, tables)
    np.testing.assert_array_equal(found, right)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("isa", available_isas())
def test_tables_of_floats_are_rounded_to_the_compute_type(dtype, isa):
    values = np.random.default_rng(3).standard_normal((3, 2, 20, 5)).astype(np_dtype(dtype))
    values[1, 0, 3:7, 2] = (np.inf, -np.inf, np.nan, 0)
    root = Load("t", dtype, (B, H, Q, K))
    for table in (values, values[:, :1], values[:, :, :1], values[1:2, :, ::-1, 4:]):
        found, right = check(root, ([20, 20], [5, 5], [0, 0]), {}, {"t": table}, isa=isa)
        np.testing.assert_array_equal(found, right)


def test_an_unaligned_table():
    raw = np.zeros(8 * 20 + 1, np.uint8)[1:].view(np.float64)
    raw[:] = np.arange(20)
    found, right = check(Load("t", "float64", (Q,)), ([20] * 2, [5] * 2, [0] * 2), {}, {"t": raw})
    np.testing.assert_array_equal(found, right)


def test_a_bool_scalar_chooses():
    root = Select(Scalar("on", "bool"), Dot(), Const(1.0))
    for on in (True, False):
        found, right = check(root, ([20, 20], [5, 5], [0, 0]), {"on": on}, {})
        np.testing.assert_array_equal(found, right)


@pytest.mark.parametrize("accum", ["float32", "float64"])
@pytest.mark.parametrize("isa", available_isas())
def test_a_product_over_a_cap_takes_two_roundings(accum, isa):
    """CAP-1: the ratio of scale and cap may be out of range, what comes out counts."""
    capped = Binary("div", Binary("mul", Scalar("scale"), Dot()), Scalar("softcap"))
    world, info = ([20, 20], [30, 30], [0, 0]), np.finfo(accum)
    ratios = [(0.125, 50.0), (-0.3, 7e-3), (0.125, 1e38), (-1.0, 1e-38), (0.0, 2.0)]
    largest, least = float(info.max), float(info.smallest_normal)
    ratios += [(0.125, largest), (-1e-12, 3e38), (largest, 0.5), (-1e20, least), (0.0, least)]
    for scale, cap in ratios:
        scalars = {"scale": scale, "softcap": cap}
        found, _ = check(capped, world, scalars, {}, accum=accum, isa=isa)
        dot = np.resize(np.asarray(SPECIAL, accum), found.shape).astype(np.longdouble)
        with np.errstate(invalid="ignore"):
            exact = dot * np.longdouble(scale) / np.longdouble(cap)
            near = abs(found - exact) <= info.eps * abs(exact) + info.smallest_subnormal
        large = np.isinf(found) & (abs(exact) > info.max) & (np.sign(found) == np.sign(exact))
        assert (near | large | (found == exact) | (np.isnan(found) & np.isnan(exact))).all()


@pytest.mark.parametrize("divisor", [0.0, -0.0, np.inf, -np.inf, 1e-30, 2.0])
def test_a_users_divisor_is_no_cap(divisor):
    """Any real and both infinities are values of a `Scalar`: the quotient is that of IEEE 754."""
    root = Binary("div", Binary("mul", Scalar("scale"), Dot()), Scalar("t"))
    world, scalars = ([20, 20], [30, 30], [0, 0]), {"scale": 0.25, "t": divisor}
    found, right = check(root, world, scalars, {})
    np.testing.assert_array_equal(found, right)
