"""The interpreter against attention written out with loops over rows and keys, in float64."""

from __future__ import annotations

import math
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

from sdpakit import Alibi, AttentionSpec, Causal, Dense
from sdpakit.ir import interp
from sdpakit.ir.build import build
from sdpakit.passes import run_pipeline

STATISTICS = ("lse", "max_logit", "entropy", "sum_p2")
ALL = ("out", *STATISTICS)
INF, NAN = math.inf, math.nan


def _dtype(name):
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def _call(spec, rows, keys, *, seed=0, batch=2, tables=None, **lengths):
    program, scalars = build(spec)
    rng = np.random.default_rng(seed)

    def operand(heads, length, width):
        return rng.standard_normal((batch, heads, length, width)).astype(_dtype(spec.dtype))

    shape = (batch, spec.q_heads, rows)
    outputs = {}
    for name in spec.outputs:
        dtype = spec.out_dtype if name == "out" else spec.accum_dtype
        width = (program.v_head_dim,) if name == "out" else ()
        outputs[name] = np.full((*shape, *width), 99.0).astype(_dtype(dtype))
    return SimpleNamespace(
        program=run_pipeline(program),
        q=operand(spec.q_heads, rows, spec.head_dim),
        k=operand(spec.kv_heads, keys, spec.head_dim),
        v=operand(spec.kv_heads, keys, program.v_head_dim),
        outputs=outputs,
        tables=tables or {},
        scalars=scalars,
        q_len=np.asarray(lengths.get("q_len", [rows] * batch)),
        kv_len=np.asarray(lengths.get("kv_len", [keys] * batch)),
        q_offset=np.asarray(lengths.get("q_offset", [0] * batch)),
        q_start=None,
        kv_start=None,
        pages=None,
    )


def _run(call):
    interp.run(call.program, call)
    return call.outputs


def _row(logits, values, sink=-INF):
    """Return the outputs of one row from the logits and values of its present keys."""
    width = values.shape[1] if values.ndim == 2 else 0
    present = [(x, v) for x, v in zip(logits, values, strict=True) if x != -INF]
    if not present:
        return np.zeros(width), -INF, -INF, 0.0, 0.0
    m = max(x for x, _ in present)
    total = math.fsum(math.exp(x - m) for x, _ in present)
    lse = m + math.log(total)
    p = [math.exp(x - lse) for x, _ in present]
    share = 0.0 if sink - lse > 700 else 1.0 / (1.0 + math.exp(sink - lse))
    out = sum(w * share * np.asarray(v, float) for w, (_, v) in zip(p, present, strict=True))
    entropy = math.fsum(-w * math.log(w) for w in p if w > 0.0)
    return out, lse, m, entropy, math.fsum(w * w for w in p)


def _expected(call, logit, visible, sinks=None):
    """Return all outputs by loops; `logit(b, h, i, j, dot)` and `visible(b, h, i, j)` by hand."""
    batch, heads, rows, _ = call.q.shape
    group = heads // call.k.shape[1]
    q, k, v = (x.astype(float) for x in (call.q, call.k, call.v))
    found = {name: np.zeros((batch, heads, rows)) for name in STATISTICS}
    found["out"] = np.zeros((batch, heads, rows, v.shape[3]))
    for b, h, i in np.ndindex(batch, heads, rows):
        keys = [j for j in range(k.shape[2]) if visible(b, h, i, j)]
        dots = [float(q[b, h, i] @ k[b, h // group, j]) for j in keys]
        logits = [logit(b, h, i, j, dot) for j, dot in zip(keys, dots, strict=True)]
        sink = -INF if sinks is None else float(sinks[h])
        results = _row(logits, v[b, h // group][keys], sink)
        for name, value in zip(ALL, results, strict=True):
            found[name][b, h, i] = value
    return found


def _bounds(call, largest_logit):
    """Return a bound of the error of each output, of all rows together.

    A logit comes from D products and about eight further operations on terms that are no larger
    than `largest_logit` in sum, so it is off by at most e = (D + 8) u largest_logit. A weight is
    off by the factor expm1(2 e), and by one rounding for each key in the sum and a few more: r.
    """
    u = float(np.finfo(call.program.accum_dtype).eps) / 2
    keys = call.k.shape[2]
    e = (call.q.shape[3] + 8) * u * largest_logit
    r = 2 * math.expm1(2 * e) + 4 * (keys + 4) * u
    spread = 2 * largest_logit + math.log(keys)
    return {
        "out": r * float(np.nanmax(np.abs(call.v.astype(float)), initial=0.0)),
        "lse": e + r + 4 * u * spread,
        "max_logit": e,
        "entropy": (r + 4 * u) * (spread + 2),
        "sum_p2": 3 * r,
    }


def _assert_close(call, expected, largest_logit):
    bounds = _bounds(call, largest_logit)
    for name, values in _run(call).items():
        got, want = values.astype(float), expected[name]
        assert np.array_equal(np.isneginf(got), np.isneginf(want)), name
        finite = np.isfinite(want)
        assert (np.abs(got[finite] - want[finite]) <= bounds[name]).all(), name


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_everything_at_once(dtype):
    spec = AttentionSpec(
        q_heads=4,
        kv_heads=2,
        head_dim=8,
        v_head_dim=5,
        dtype=dtype,
        out_dtype="float64" if dtype == "float64" else "float32",
        softcap=3.0,
        bias="float32",
        logits=Alibi(align="bottom_right"),
        mask=Causal("bottom_right") & Dense(),
        sinks=True,
        q_lens=True,
        kv_lens=True,
        outputs=ALL,
    )
    rng = np.random.default_rng(1)
    tables = {
        "bias": rng.standard_normal((1, 4, 1, 11)).astype(np.float32),
        "mask": rng.random((2, 1, 7, 11)) < 0.7,
        "slopes": np.array([0.5, 0.25, 0.0, -0.125], np.float32),
        "sinks": np.array([0.5, -INF, 3.0, -2.0]).astype(spec.accum_dtype),
    }
    call = _call(spec, 7, 11, tables=tables, q_len=[7, 4], kv_len=[9, 2])

    def off(b):
        return int(call.kv_len[b] - call.q_len[b])

    def logit(b, h, i, j, dot):
        x = 3.0 * math.tanh(dot / math.sqrt(8) / 3.0) + float(tables["bias"][0, h, 0, j])
        return x + float(tables["slopes"][h]) * (j - i - off(b))

    def visible(b, h, i, j):
        inside = i < call.q_len[b] and j < call.kv_len[b]
        return inside and j <= i + off(b) and tables["mask"][b, 0, i, j]

    products = np.abs(call.q.astype(float)).max() * np.abs(call.k.astype(float)).max() * 8
    bias = np.abs(tables["bias"]).max() + 0.5 * 18
    _assert_close(call, _expected(call, logit, visible, tables["sinks"]), products + bias)


def _plain(**changes):
    return AttentionSpec(**({"q_heads": 1, "head_dim": 4, "scale": 1.0, "outputs": ALL} | changes))


def test_rows_in_blocks(monkeypatch):
    monkeypatch.setattr(interp, "_MAX_PAIRS", 20)
    call = _call(_plain(mask=Causal("top_left")), 9, 9)
    want = _expected(call, lambda b, h, i, j, dot: dot, lambda b, h, i, j: j <= i)
    largest = np.abs(call.q).max() * np.abs(call.k).max() * 4
    _assert_close(call, want, float(largest))


def test_absent_keys_reach_nothing_whatever_they_hold():
    spec = _plain(mask=Causal("top_left"))
    clean, poisoned = _call(spec, 4, 6), _call(spec, 4, 6)
    poisoned.k[:, :, 4:] = NAN
    poisoned.v[:, :, 4:] = INF
    # Key 3 is seen by row 3 alone.
    poisoned.v[:, :, 3, 1] = NAN
    a, b = _run(clean), _run(poisoned)
    for name in STATISTICS:
        assert np.array_equal(a[name], b[name])
    assert np.array_equal(a["out"][:, :, :3], b["out"][:, :, :3])
    assert np.isnan(b["out"][:, :, 3, 1]).all()
    assert np.array_equal(a["out"][:, :, 3, 2:], b["out"][:, :, 3, 2:])


@pytest.mark.parametrize("where", ["q", "k", "bias", "+inf"])
def test_a_row_with_a_nan_is_nan_and_no_other(where):
    spec = _plain(bias="float32", mask=Causal("top_left"))
    call = _call(spec, 3, 3, tables={"bias": np.zeros((1, 1, 3, 3), np.float32)})
    if where == "q":
        call.q[:, :, 2] = NAN
    elif where == "k":
        call.k[:, :, 2] = NAN
    else:
        call.tables["bias"][0, 0, 2, 1] = NAN if where == "bias" else INF
    for values in _run(call).values():
        assert np.isnan(values[:, :, 2]).all()
        assert np.isfinite(values[:, :, :2]).all()


@pytest.mark.parametrize("empty_row", ["zero", "nan"])
@pytest.mark.parametrize("sink", [None, 1.0, NAN, INF, -INF])
def test_empty_rows(empty_row, sink):
    spec = _plain(mask=Causal("offset"), empty_row=empty_row, sinks=sink is not None)
    tables = {} if sink is None else {"sinks": np.array([sink], np.float32)}
    found = _run(_call(spec, 2, 3, tables=tables, q_offset=[-1, -1]))
    nothing = NAN if empty_row == "nan" else 0.0
    assert np.array_equal(found["out"][:, :, 0], np.full((2, 1, 4), nothing), equal_nan=True)
    for name, value in zip(STATISTICS, (-INF, -INF, 0.0, 0.0), strict=True):
        assert (found[name][:, :, 0] == value).all()
    # Row 1 has one key: entropy 0, sum_p2 1; a sink of NaN or +inf spoils `out` alone.
    assert (found["entropy"][:, :, 1] == 0.0).all()
    assert (found["sum_p2"][:, :, 1] == 1.0).all()
    assert np.isfinite(found["lse"][:, :, 1]).all()
    assert np.isnan(found["out"][:, :, 1]).all() == (sink is not None and not sink < INF)


def test_a_row_of_bias_minus_infinity_is_empty():
    call = _call(_plain(bias="float32"), 2, 3, tables={"bias": np.zeros((1, 1, 2, 3), np.float32)})
    call.tables["bias"][0, 0, 1] = -INF
    found = _run(call)
    assert (found["out"][:, :, 1] == 0.0).all()
    assert np.isneginf(found["lse"][:, :, 1]).all()
    assert np.isfinite(found["lse"][:, :, 0]).all()


@pytest.mark.parametrize("level", [-1e9, float(np.finfo(np.float32).min), 3e38])
def test_a_row_of_equal_large_logits_is_the_mean(level):
    call = _call(_plain(bias="float32"), 1, 4, tables={"bias": np.full((1, 1, 1, 4), level, "f4")})
    call.q[...] = 0.0
    found, bounds = _run(call), _bounds(call, 0.0)  # the logits are exact
    mean = call.v.astype(float).mean(axis=2, keepdims=True)
    assert (np.abs(found["out"] - mean) <= bounds["out"]).all()
    assert (np.abs(found["entropy"] - math.log(4)) <= bounds["entropy"]).all()


def test_logits_further_apart_than_the_largest_number_have_an_entropy():
    largest = float(np.finfo(np.float32).max)
    bias = np.array([[[[-largest, -largest, largest, -largest]]]], np.float32)
    call = _call(_plain(bias="float32"), 1, 4, tables={"bias": bias})
    call.q[...] = 0.0
    assert (_run(call)["entropy"] == 0.0).all()


@pytest.mark.parametrize("sink", [-1e4, 80.0, 1e4])
def test_sinks_far_from_the_logits(sink):
    call = _call(_plain(sinks=True), 1, 3, tables={"sinks": np.array([sink], np.float32)})
    want = _expected(call, lambda b, h, i, j, dot: dot, lambda *_: True)
    largest = float(np.abs(call.q).max() * np.abs(call.k).max() * 4)
    out, lse = _run(call)["out"].astype(float), want["lse"][..., None]
    share = np.exp(-np.logaddexp(0.0, sink - lse))
    # An error of the logits changes the share by that factor once more.
    assert (np.abs(out - want["out"] * share) <= 2 * _bounds(call, largest)["out"] * share).all()


def test_output_is_rounded_once():
    call = _call(_plain(dtype="float32", out_dtype="float16"), 3, 5)
    half = _run(call)["out"].copy()
    full = _call(_plain(dtype="float32", out_dtype="float32"), 3, 5)
    assert np.array_equal(half, _run(full)["out"].astype(np.float16))


@pytest.mark.parametrize("width", [0, 1])
def test_narrow_values_and_outputs_that_were_not_asked_for(width):
    call = _call(_plain(v_head_dim=width, outputs=("out", "sum_p2")), 2, 3)
    found = _run(call)
    assert set(found) == {"out", "sum_p2"}
    assert found["out"].shape == (2, 1, 2, width)
    assert (found["sum_p2"] < 1.0).all()
