"""The table of backends: plug-ins, and those that are broken."""

from __future__ import annotations

import sys
import types
from importlib.metadata import EntryPoint

import numpy as np
import pytest
from tests.api.refusals import refuses

import sdpakit as sk
from sdpakit import BackendError, BackendUnavailableError, UnknownBackendError, backends
from sdpakit.backends.interp import Interpreter

SPEC = sk.AttentionSpec(q_heads=1, head_dim=4)


class Distribution:
    """What an entry point says of the distribution that brought it."""

    def __init__(self, name):
        self.name = name


def plugin(name, value, distribution="toy-dist"):
    point = EntryPoint(name, value, backends.GROUP)
    vars(point)["dist"] = Distribution(distribution)
    return point


@pytest.fixture
def install(monkeypatch):
    """Install plug-ins whose module is `toy_backend`."""

    def put(*points, **members):
        module = types.ModuleType("toy_backend")
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, "toy_backend", module)
        monkeypatch.setattr(backends, "_plugins", lambda: points)

    return put


class Toy(Interpreter):
    name = "toy"


def test_built_in_backends_are_listed_first_and_available():
    assert backends.names()[:2] == ("numba_cpu", "interp")
    lines = {line.name: line for line in backends.status()}
    assert lines["interp"].ok
    assert lines["interp"].source == "built-in"
    assert "interp [built-in]: available" in str(backends.status())


def test_a_plug_in_compiles_when_it_is_named_and_not_by_itself(install):
    install(plugin("toy", "toy_backend:BACKEND"), BACKEND=Toy())
    x = np.ones((1, 1, 2, 4), np.float32)
    kernel = sk.compile(SPEC, backend="toy")
    np.testing.assert_array_equal(kernel(x, x, x), x)
    assert kernel.backend == "toy"
    assert "toy" not in backends.AUTO
    assert sk.compile(SPEC).backend in backends.AUTO
    assert "toy [toy-dist]: available" in str(backends.status())


BROKEN = {
    "no module": ("toy", "no_such_module:BACKEND", None, BackendUnavailableError, "ModuleNotFound"),
    "no attribute": ("toy", "toy_backend:OTHER", Toy(), BackendUnavailableError, "AttributeError"),
    "no member": ("toy", "toy_backend:BACKEND", object(), BackendError, "without availability"),
    "other name": ("toy", "toy_backend:BACKEND", Interpreter(), BackendError, "name 'interp'"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_plug_in_is_an_error_when_it_is_asked_for_and_a_line_else(install, case):
    name, value, backend, kind, got = BROKEN[case]
    install(plugin(name, value), BACKEND=backend)
    with refuses(kind, "backend 'toy'", got, "toy-dist"):
        sk.compile(SPEC, backend="toy")
    line = {line.name: line for line in backends.status()}["toy"]
    assert not line.ok
    assert got in line.reason
    assert "\n" not in str(line)
    assert sk.compile(SPEC, backend="interp").backend == "interp"
    assert sk.compile(SPEC, backend=["toy", "interp"]).backend == "interp"


def test_two_distributions_that_claim_one_name_are_refused(install):
    install(
        plugin("toy", "toy_backend:BACKEND", "first"),
        plugin("toy", "toy_backend:BACKEND", "second"),
        BACKEND=Toy(),
    )
    with refuses(BackendError, "backend 'toy'", "claimed by first and by second", "uninstall"):
        backends.get("toy")
    line = {line.name: line for line in backends.status()}["toy"]
    assert line.source == "first and second"
    assert not line.ok


def test_a_plug_in_cannot_take_the_name_of_a_built_in_backend(install):
    install(plugin("interp", "toy_backend:BACKEND"), BACKEND=Interpreter())
    with refuses(BackendError, "backend 'interp'", "sdpakit itself and by toy-dist", "uninstall"):
        backends.get("interp")


def test_a_plug_in_whose_availability_fails_is_a_line_of_the_table(install):
    class Raising(Toy):
        def availability(self):
            raise OSError("disk on fire")

    install(plugin("toy", "toy_backend:BACKEND"), BACKEND=Raising())
    line = {line.name: line for line in backends.status()}["toy"]
    assert line.reason == "disk on fire"


def test_an_unknown_name_is_an_error():
    with refuses(UnknownBackendError, "backend", "'iterp'", "did you mean 'interp'?"):
        backends.get("iterp")


def test_real_entry_points_are_read():
    assert all(isinstance(point, EntryPoint) for point in backends._plugins())
