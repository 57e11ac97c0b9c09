"""The reference on small rows that can be worked out by hand, and what it refuses."""

import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from sdpakit import reference
from sdpakit.errors import ArgumentError, ArgumentTypeError
from sdpakit.masks import Causal, Dense
from sdpakit.spec import AttentionSpec

SOURCE = Path(__file__).resolve().parents[2] / "src"
INF = math.inf
RNG = np.random.default_rng(0)
Q, K, V = (RNG.standard_normal(shape) for shape in ((2, 4, 3, 5), (2, 2, 6, 5), (2, 2, 6, 7)))


def one_row(logits, *, sink=None, values=None, **fields):
    """Return the results of one row with these logits; value j is (j, 1)."""
    n = len(logits)
    spec = AttentionSpec(
        q_heads=1,
        head_dim=1,
        v_head_dim=2,
        dtype="float64",
        scale=1.0,
        sinks=sink is not None,
        **fields,
    )
    k = np.array(logits, float).reshape(1, 1, n, 1)
    v = np.stack([np.arange(n), np.ones(n)], axis=1) if values is None else np.array(values)
    sinks = None if sink is None else np.array([sink])
    found = reference.attention(spec, np.ones((1, 1, 1, 1)), k, v[None, None], sinks=sinks)
    return {name: x.reshape(-1) for name, x in found.items()}


def test_two_keys_by_hand():
    found = one_row([math.log(1.0), math.log(3.0)])
    assert found["out"] == pytest.approx([0.75, 1.0])
    assert found["lse"] == pytest.approx(math.log(4.0))
    assert found["max_logit"] == pytest.approx(math.log(3.0))
    assert found["sum_p2"] == pytest.approx(10 / 16)
    assert found["entropy"] == pytest.approx(-(0.25 * math.log(0.25) + 0.75 * math.log(0.75)))


def test_one_key_has_no_entropy():
    found = one_row([-700.0])
    assert (found["entropy"], found["sum_p2"]) == (0.0, 1.0)
    assert (found["lse"], found["max_logit"]) == (-700.0, -700.0)


def test_no_key():
    found = one_row([])
    assert list(found["out"]) == [0.0, 0.0]
    assert (found["lse"], found["max_logit"]) == (-INF, -INF)
    assert (found["entropy"], found["sum_p2"]) == (0.0, 0.0)
    assert np.isnan(one_row([], empty_row="nan")["out"]).all()
    assert one_row([], empty_row="nan")["lse"] == -INF


@pytest.mark.parametrize("shift", [-1e4, -1000.0, 1000.0, 1e4])
def test_far_logits(shift):
    near, far = one_row([0.0, 1.0, -2.0]), one_row([shift, shift + 1.0, shift - 2.0])
    assert far["out"] == pytest.approx(near["out"])
    assert far["lse"] - shift == pytest.approx(near["lse"])
    assert far["entropy"] == pytest.approx(near["entropy"])


def test_minus_infinity_is_absent_and_nan_is_not():
    assert one_row([0.0, -INF, 0.0])["out"] == pytest.approx([1.0, 1.0])
    assert one_row([-INF, -INF])["lse"] == -INF
    for value in (math.nan, INF):
        found = one_row([0.0, value])
        assert all(np.isnan(x).all() for x in found.values())


def test_values_of_absent_keys_are_not_there():
    values = [[1.0, math.nan], [math.inf, math.inf]]
    found = one_row([0.0, -INF], values=values)["out"]
    assert found[0] == 1.0
    assert np.isnan(found[1])
    assert list(one_row([-INF, 0.0], values=[[math.nan] * 2, [2.0, 3.0]])["out"]) == [2.0, 3.0]


@pytest.mark.parametrize(("sink", "share"), [(0.0, 2 / 3), (-INF, 1.0), (-1e4, 1.0), (800.0, 0.0)])
def test_sink(sink, share):
    found = one_row([0.0, 0.0], sink=sink)
    assert found["out"] == pytest.approx([0.5 * share, share])
    assert found["lse"] == pytest.approx(math.log(2.0))
    assert found["sum_p2"] == pytest.approx(0.5)
    assert list(one_row([], sink=sink)["out"]) == [0.0, 0.0]


@pytest.mark.parametrize("sink", [math.nan, INF])
def test_strange_sink_reaches_out_alone(sink):
    found = one_row([0.0, 0.0], sink=sink)
    assert np.isnan(found["out"]).all()
    assert found["lse"] == pytest.approx(math.log(2.0))
    assert list(one_row([], sink=sink)["out"]) == [0.0, 0.0]


def test_order_of_scale_cap_bias_and_expression():
    spec = AttentionSpec(
        q_heads=1,
        head_dim=1,
        dtype="float64",
        scale=2.0,
        softcap=3.0,
        bias="float64",
        logits=lambda x, i: x * 10.0,
    )
    ones = np.ones((1, 1, 1, 1))
    found = reference.attention(spec, ones, 5.0 * ones, ones, bias=np.array([0.5]))
    assert found["lse"].item() == pytest.approx(10.0 * (3.0 * math.tanh(10.0 / 3.0) + 0.5))


def test_layout_and_groups():
    plain = AttentionSpec(q_heads=4, kv_heads=2, head_dim=5, v_head_dim=7, dtype="float64")
    first = reference.attention(plain, Q, K, V)
    swapped = AttentionSpec(
        q_heads=4, kv_heads=2, head_dim=5, v_head_dim=7, dtype="float64", layout="bshd"
    )
    second = reference.attention(swapped, *(x.swapaxes(1, 2) for x in (Q, K, V)))
    assert np.array_equal(first["out"], second["out"].swapaxes(1, 2))
    assert first["lse"].shape == second["lse"].shape == (2, 4, 3)
    many = AttentionSpec(q_heads=4, head_dim=5, v_head_dim=7, dtype="float64")
    third = reference.attention(many, Q, *(np.repeat(x, 2, axis=1) for x in (K, V)))
    assert np.array_equal(first["out"], third["out"])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_operands_are_exact_as_stored(dtype):
    from sdpakit.conformance.inputs import np_dtype

    stored = [x.astype(np_dtype(dtype)) for x in (Q, K, V)]
    fields = {"q_heads": 4, "kv_heads": 2, "head_dim": 5, "v_head_dim": 7}
    found = reference.attention(AttentionSpec(dtype=dtype, **fields), *stored)
    wide = [x.astype(np.float64) for x in stored]
    right = reference.attention(AttentionSpec(dtype="float64", **fields), *wide)
    for name, array in found.items():
        assert array.dtype == np.float64
        assert np.array_equal(array, right[name])


BASE = {"q_heads": 4, "kv_heads": 2, "head_dim": 5, "v_head_dim": 7, "dtype": "float64"}


@pytest.mark.parametrize(
    ("fields", "changed", "error", "match"),
    [
        ({}, {"q": Q[0]}, ArgumentError, "4 axes"),
        ({}, {"q": Q.astype(np.float32)}, ArgumentTypeError, "float32"),
        ({}, {"k": K[..., :4]}, ArgumentError, "k: got shape"),
        ({}, {"v": V[:, :, :5]}, ArgumentError, "v: got shape"),
        ({"bias": "float64"}, {}, ArgumentError, "bias: got nothing"),
        ({}, {"sinks": np.zeros(4)}, ArgumentError, "sinks: got an array"),
        ({"bias": "float64"}, {"bias": np.zeros((3, 5))}, ArgumentError, "broadcasts"),
        ({"mask": Dense()}, {"mask": np.zeros((3, 6))}, ArgumentTypeError, "bool"),
        ({"sinks": True}, {"sinks": np.zeros(3)}, ArgumentError, r"\(4,\)"),
        ({"kv_lens": True}, {"kv_lens": np.array([1, 7])}, ArgumentError, "0 to 6"),
        ({"q_lens": True}, {"q_lens": np.array([-1, 3])}, ArgumentError, "0 to 3"),
        ({"q_lens": True}, {"q_lens": np.array([1.0, 3.0])}, ArgumentTypeError, "integers"),
        ({"mask": Causal("offset")}, {"q_offset": np.zeros(3, int)}, ArgumentError, "broadcasts"),
    ],
)
def test_what_does_not_fit_is_refused(fields, changed, error, match):
    spec = AttentionSpec(**{**BASE, **fields})
    with pytest.raises(error, match=match):
        reference.attention(spec, **{"q": Q, "k": K, "v": V, **changed})


def test_nothing_of_the_compiler_is_loaded():
    code = (
        "import sys, sdpakit.reference, sdpakit.conformance; bad = [m for m in sys.modules if "
        "m.startswith(('sdpakit.ir', 'sdpakit.passes', 'sdpakit.backends', 'sdpakit.arrays', "
        "'sdpakit.binding', 'sdpakit.kernel', 'sdpakit.compiler', 'numba', 'llvmlite', 'torch'))]; "
        "print(bad); sys.exit(bool(bad))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
