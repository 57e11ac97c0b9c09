import types

import pytest
from bench import constants

from sdpakit.backends.numba_cpu.isa import select_isa
from sdpakit.backends.numba_cpu.machine import core

HERTZ = 2e9
FLOPS = 1e9


def test_constants_are_what_is_left_over_after_the_multiply_adds(monkeypatch):
    isa = select_isa()
    issue, (rows, vectors) = core(isa), isa.tile()
    lanes = isa.lanes("float32")
    ceiling = types.SimpleNamespace(work=FLOPS)
    monkeypatch.setattr("bench.ceilings.fma_ceiling", lambda dtype, threads: ceiling)
    ideal = rows * vectors * (constants.HEAD_DIM / issue.arithmetic + 1 / issue.stores)
    lines = rows * constants.HEAD_DIM * 4 / 64
    panels = constants.ROWS / (vectors * lanes)
    cycles = {
        "ceiling": FLOPS / (2 * issue.arithmetic * lanes),
        f"products of {constants.NEAR}": constants.REPEATS * (ideal + 20),
        f"products of {constants.FAR}": constants.REPEATS * (ideal + 20 + 1.5 * lines),
        f"loads of {constants.SHARED}": constants.LOADS * 120,
        f"loads of {constants.MEMORY}": constants.LOADS * 250,
        f"call of {constants.FEW_KEYS}": panels * (4000 + 100 * constants.FEW_KEYS),
        f"call of {constants.MORE_KEYS}": panels * (4000 + 100 * constants.MORE_KEYS),
    }
    found = constants.figures({name: count / HERTZ for name, count in cycles.items()})
    assert found["loop_end"] == pytest.approx(20)
    assert found["line_l2"] == pytest.approx(1.5)
    assert found["panel"] == pytest.approx(4000)
    assert found["shared_latency"] == pytest.approx(120)
    assert found["memory_latency"] == pytest.approx(250)
    assert found["gigahertz"] == pytest.approx(2.0)


def test_everything_that_is_sampled_can_be_called():
    calls = constants.calls()
    assert {"ceiling", f"products of {constants.FAR}", f"call of {constants.FEW_KEYS}"} <= set(
        calls
    )
    for name, call in calls.items():
        if name != "ceiling":
            call()
