"""compile: which backend is taken and why, what is compiled once, and what is refused."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from tests.api.refusals import refuses

import sdpakit as sk
from sdpakit import (
    ArgumentError,
    ArgumentTypeError,
    BackendUnavailableError,
    UnknownBackendError,
    UnsupportedSpecError,
    backends,
    compiler,
)
from sdpakit.backends.base import Availability
from sdpakit.backends.interp import Interpreter

SPEC = sk.AttentionSpec(q_heads=1, head_dim=4)


class Fake(Interpreter):
    """A backend that computes with the interpreter and says what a test wants to hear."""

    def __init__(self, name, *, ok=True, reasons=(), options=()):
        self.name, self.ok, self.reasons, self.known = name, ok, reasons, options
        self.lowered = 0

    def availability(self):
        return Availability(self.ok, "no such device", "buy one")

    def capabilities(self):
        return replace(super().capabilities(), max_head_dim=64, options=frozenset(self.known))

    def unsupported_reasons(self, spec, options):
        return list(self.reasons)

    def lower(self, program, options):
        self.lowered += 1
        return super().lower(program, options)


@pytest.fixture
def fakes(monkeypatch):
    """Make `sdpakit.backends` know some backends, and no others."""
    compiler.clear()

    def install(*made):
        table = {fake.name: fake for fake in made}
        monkeypatch.setattr(backends, "_BUILTIN", {fake.name: "" for fake in made})
        monkeypatch.setattr(backends, "_plugins", lambda: ())
        monkeypatch.setattr(backends, "_load", lambda name, target, source: table[name])
        monkeypatch.setattr(backends, "AUTO", tuple(table))
        return made

    yield install
    compiler.clear()


# ------------------------------------------------------------------ selection


def test_auto_takes_the_first_that_can_and_says_why_not_another(fakes):
    fakes(Fake("one", ok=False), Fake("two", reasons=["head_dim=4 < 5"]), Fake("three"))
    kernel = sk.compile(SPEC)
    assert kernel.backend == "three"
    facts = kernel.explain()
    assert facts["passed_over"] == {
        "one": "not available: no such device (buy one)",
        "two": "head_dim=4 < 5",
    }
    assert facts["why"] == "first of 'auto' that can compile this spec here"
    assert "one  not available: no such device" in str(facts).replace("one    ", "one  ")


def test_names_in_order_of_wish_are_tried_in_that_order(fakes):
    fakes(Fake("one"), Fake("two"))
    assert sk.compile(SPEC, backend=["two", "one"]).backend == "two"
    assert sk.compile(SPEC, backend=("one",)).explain()["why"] == "named by the caller"


def test_a_named_backend_is_never_replaced(fakes):
    fakes(Fake("one", reasons=["too wide", "too deep"]), Fake("two"))
    with pytest.raises(UnsupportedSpecError, match="one: too wide; too deep") as caught:
        sk.compile(SPEC, backend="one")
    assert caught.value.reasons == {"one": ["too wide", "too deep"]}


def test_every_asked_backend_gives_its_reasons(fakes):
    fakes(Fake("one", ok=False), Fake("two", reasons=["too wide"]), Fake("three"))
    with pytest.raises(UnsupportedSpecError) as caught:
        sk.compile(SPEC, backend=["one", "two"])
    assert caught.value.reasons == {
        "one": ["not available: no such device (buy one)"],
        "two": ["too wide"],
    }
    text = str(caught.value)
    assert repr(SPEC) in text
    assert "\n  two: too wide\n  remedy: " in text


@pytest.mark.parametrize("asked", ["one", ["one", "two"]])
def test_backends_that_cannot_run_here_say_what_to_do(fakes, asked):
    fakes(Fake("one", ok=False), Fake("two", ok=False))
    with refuses(BackendUnavailableError, "backend", "one: not available: no such device", "hint"):
        sk.compile(SPEC, backend=asked)


def test_an_unknown_name_is_refused_with_the_nearest_one():
    with refuses(UnknownBackendError, "backend", "'numba_gpu'", "did you mean 'numba_cpu'?"):
        sk.compile(SPEC, backend="numba_gpu")
    with refuses(UnknownBackendError, "backend", "'x'", "use one of these names"):
        sk.compile(SPEC, backend=["interp", "x"])


@pytest.mark.parametrize("backend", [None, 3, [], ["interp", 3], b"interp", {"interp"}])
def test_what_is_no_name_is_refused(backend):
    with refuses(ArgumentTypeError, "backend", repr(backend), "name one of"):
        sk.compile(SPEC, backend=backend)


@pytest.mark.parametrize("spec", [None, "causal", {"q_heads": 1}, sk.AttentionSpec])
def test_what_is_no_spec_is_refused(spec):
    with refuses(ArgumentTypeError, "spec", type(spec).__name__, "compile(AttentionSpec(...))"):
        sk.compile(spec, backend="interp")


# ------------------------------------------------------------------ options


def test_options_reach_the_backend_and_are_part_of_the_key(fakes):
    (fake,) = fakes(Fake("one", options=("tile",)))
    kernel = sk.compile(SPEC, options={"tile": 8})
    assert kernel.options == {"tile": 8}
    sk.compile(SPEC, options={"tile": 16})
    sk.compile(SPEC, options={"tile": 8})
    assert fake.lowered == 2


def test_an_option_that_nobody_knows_is_refused(fakes):
    fakes(Fake("one", options=("tile",)), Fake("two"))
    with refuses(ArgumentError, "options", "unknown option 'tiles'", "did you mean 'tile'?"):
        sk.compile(SPEC, options={"tiles": 8})
    with refuses(ArgumentError, "options", "unknown option 'x'", "leave 'x' away"):
        sk.compile(SPEC, backend="two", options={"x": 1})


def test_an_option_of_another_backend_passes_this_one_over(fakes):
    fakes(Fake("one"), Fake("two", options=("tile",)))
    kernel = sk.compile(SPEC, options={"tile": 8})
    assert kernel.backend == "two"
    assert kernel.explain()["passed_over"] == {"one": "no option 'tile'"}


@pytest.mark.parametrize(
    ("declared", "reason"),
    [
        ({"dtypes": frozenset({"float64"})}, ("no dtype float32", "no out_dtype float32")),
        ({"max_head_dim": 3}, ("head_dim=4 > 3", "v_head_dim=4 > 3")),
        ({"outputs": frozenset({"lse"})}, ("no output 'out'",)),
    ],
    ids=str,
)
def test_what_a_backend_does_not_declare_it_is_not_asked(fakes, declared, reason):
    one, _ = fakes(Fake("one", reasons=("asked all the same",)), Fake("two"))
    less = replace(one.capabilities(), **declared)
    one.capabilities = lambda: less
    assert sk.compile(SPEC).explain()["passed_over"] == {"one": "; ".join(reason)}


@pytest.mark.parametrize("options", [3, ["tile"], {3: 4}])
def test_options_are_a_mapping_from_names(options):
    with refuses(ArgumentTypeError, "options", type(options).__name__, "options={'name': value}"):
        sk.compile(SPEC, backend="interp", options=options)


def test_options_are_plain_values():
    with refuses(ArgumentTypeError, "options['tile']", "[8] (list)", "plain value"):
        sk.compile(SPEC, backend="interp", options={"tile": [8]})


# ------------------------------------------------------------------ cache


def test_fifty_lengths_through_one_kernel_are_one_compilation(fakes):
    (fake,) = fakes(Fake("one"))
    before = compiler.stats()
    spec = sk.AttentionSpec(q_heads=1, head_dim=4, mask=sk.Causal("bottom_right"))
    kernel = sk.compile(spec)
    for length in range(1, 51):
        x = np.ones((1, 1, length, 4), np.float32)
        assert kernel(x, x, x).shape == x.shape
    assert fake.lowered == 1
    assert compiler.stats().compilations - before.compilations == 1


def test_specs_that_differ_in_run_time_values_share_their_code(fakes):
    (fake,) = fakes(Fake("one"))
    for left in (1, 2, 3):
        for scale in (None, 0.5, -1.0):
            mask = sk.Window(left, 0, "bottom_right")
            spec = sk.AttentionSpec(q_heads=left, head_dim=4, mask=mask, scale=scale, softcap=left)
            sk.compile(spec)
    assert fake.lowered == 1
    assert compiler.stats().cached == 1
    sk.compile(sk.AttentionSpec(q_heads=1, head_dim=4, mask=mask))
    assert fake.lowered == 2


def test_shared_code_still_uses_the_values_of_each_spec():
    x = np.arange(12, dtype=np.float32).reshape(1, 1, 3, 4)
    mask = {left: sk.Window(left, 0, "top_left") for left in (0, 1)}
    own, both = (
        sk.compile(sk.AttentionSpec(q_heads=1, head_dim=4, mask=mask[left], scale=0.0), "interp")
        for left in (0, 1)
    )
    np.testing.assert_array_equal(own(x, x, x), x)
    np.testing.assert_array_equal(both(x, x, x)[0, 0, 1], (x[0, 0, 0] + x[0, 0, 1]) / 2)


def test_eight_threads_that_ask_at_once_compile_once(fakes):
    (fake,) = fakes(Fake("one"))
    together = threading.Barrier(8)

    def ask(_):
        together.wait()
        return sk.compile(SPEC)

    with ThreadPoolExecutor(8) as pool:
        kernels = list(pool.map(ask, range(8)))
    assert fake.lowered == 1
    assert len({id(kernel._launcher) for kernel in kernels}) == 1


def test_a_failed_compilation_is_tried_again_and_blocks_nobody(fakes):
    class Moody(Fake):
        def lower(self, program, options):
            if self.lowered == 0:
                self.lowered = 1
                raise RuntimeError("bad day")
            return super().lower(program, options)

    fakes(Moody("one"))
    with pytest.raises(RuntimeError, match="bad day"):
        sk.compile(SPEC)
    assert sk.compile(SPEC).backend == "one"


def test_clear_forgets_code_but_not_the_counters(fakes):
    (fake,) = fakes(Fake("one"))
    before = compiler.stats().compilations
    kernel = sk.compile(SPEC)
    compiler.clear()
    assert compiler.stats().cached == 0
    sk.compile(SPEC)
    assert fake.lowered == 2
    assert compiler.stats().compilations == before + 2
    x = np.ones((1, 1, 2, 4), np.float32)
    np.testing.assert_array_equal(kernel(x, x, x), x)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform has no fork")
def test_a_child_process_compiles_though_the_lock_was_held_at_the_fork():
    held, release = threading.Event(), threading.Event()

    def hold():
        with compiler._CACHE._lock:
            held.set()
            release.wait(30)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(30)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if sk.compile(SPEC, backend="interp").backend == "interp" else 2
        finally:
            os._exit(code)
    release.set()
    holder.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
