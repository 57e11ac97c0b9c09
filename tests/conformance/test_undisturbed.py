"""ENV-1: what a target changes in the process that judges it is said, and put right."""

import builtins
import ctypes
import math
import os
import platform
import sys
from pathlib import Path

import numpy as np
import pytest

from sdpakit.conformance import cases, check, check_relation, relations
from sdpakit.conformance.fuzz.differential import split
from sdpakit.conformance.runner import collect, run
from sdpakit.conformance.targets.naive import Naive
from sdpakit.conformance.undisturbed import Watch, loaded, watched

BY_ID = {case.id: case for case in cases()}
CASE = BY_ID["masks.causal_random.float32"]
GRADIENTS = next(case for case in cases() if case.gradients)
BAD_CALL = BY_ID["refusals.mask_shape.float32"]
RELATIONS = {f"{relation.id}.{dtype}": (relation, dtype) for relation, dtype in relations("core")}
FLUSH, ZERO, DOWN = 0x8000, 0x40, 0x2000  # bits of MXCSR
ON_X86 = pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="bits of MXCSR")


def set_bits(bits):
    """Set bits of MXCSR, as code does that is compiled with -ffast-math."""
    environment = (ctypes.c_uint32 * 64)()
    library = ctypes.CDLL(None)
    library.fegetenv(environment)
    environment[7] |= bits
    library.fesetenv(environment)


class Doing(Naive):
    """Right, and does something before it answers."""

    def __init__(self, act):
        self.act = act

    def attention(self, spec, q, k, v, **operands):
        self.act()
        return super().attention(spec, q, k, v, **operands)


class Lying(Doing):
    """Wrong, and does something that hides it."""

    def attention(self, spec, q, k, v, **operands):
        found = super().attention(spec, q, k, v, **operands)
        return {name: x * 1.5 for name, x in found.items()}


def replacing(module, name, by):
    return lambda: setattr(module, name, by)


@pytest.fixture(autouse=True)
def nothing_is_left():
    yield
    assert Watch().before == []


@pytest.mark.parametrize(
    ("module", "name", "by"),
    [
        (np, "abs", np.zeros_like),
        (np, "isnan", lambda x: np.ones(np.shape(x), bool)),
        (np, "where", lambda c, a, b: np.zeros(np.shape(c))),
        (np, "argmax", lambda x: 0),
        (np, "errstate", None),
        (np._core._methods, "umr_any", lambda *_, **__: False),
        (builtins, "max", lambda *_, **__: 0.0),
        (builtins, "all", lambda _: True),
        (builtins, "map", lambda *_: []),
        (math, "sqrt", lambda _: 1e9),
    ],
)
def test_a_function_that_the_judge_uses_is_not_replaced(module, name, by):
    right = getattr(module, name)
    outcome = check(Lying(replacing(module, name, by)), CASE)
    assert outcome.verdict == "fail"
    assert f"the call changed the process (ENV-1): {module.__name__}.{name}" in outcome.message
    assert getattr(module, name) is right
    assert check(Naive(), CASE).verdict == "ok"


def test_a_function_may_not_be_taken_away_nor_replaced_for_another_call():
    outcome = check(Doing(lambda: delattr(np, "signbit")), CASE)
    assert "numpy.signbit was replaced" in outcome.message
    outcome = check(Doing(lambda: [delattr(np, name) for name in ("abs", "sign")]), CASE)
    assert "numpy.sign, numpy.abs were replaced" in outcome.message or (
        "numpy.abs, numpy.sign were replaced" in outcome.message
    )


def test_what_was_replaced_before_the_first_step_is_said_once(monkeypatch):
    monkeypatch.setattr(np, "abs", np.zeros_like)
    outcome = check(Naive(), CASE)
    assert outcome.verdict == "fail"
    assert "before prepare, or loading the target," in outcome.message
    assert check(Naive(), CASE).verdict == "ok"


@ON_X86
@pytest.mark.parametrize(
    ("bits", "text"),
    [
        (FLUSH, "flush to zero"),
        (ZERO, "flush to zero"),
        (FLUSH | ZERO, "flush to zero"),
        (DOWN, "round to nearest"),
    ],
)
def test_arithmetic_stays_as_it_is(bits, text):
    outcome = check(Doing(lambda: set_bits(bits)), CASE)
    assert outcome.verdict == "fail"
    assert "the call changed the process (ENV-1): arithmetic" in outcome.message
    assert text in outcome.message
    factors = np.array([1e-308]), np.array([1e-5])
    assert np.multiply(*factors).tobytes() != bytes(8)
    assert check(Naive(), CASE).verdict == "ok"


@pytest.mark.parametrize("case", [GRADIENTS, BAD_CALL, CASE], ids=lambda case: case.id)
def test_every_kind_of_case_looks(case, tmp_path):
    class Moves(Naive):
        bad_calls = "builtin"

        def prepare(self, spec):
            os.chdir(tmp_path)
            return super().prepare(spec)

        def prepare_gradients(self, spec):
            os.chdir(tmp_path)
            return super().prepare_gradients(spec)

    before = Path.cwd()
    outcome = check(Moves(), case)
    assert outcome.verdict == "fail"
    assert f"the working directory became {tmp_path}" in outcome.message
    assert Path.cwd() == before


def test_a_relation_looks_after_each_call():
    target = Lying(replacing(np, "abs", np.zeros_like))
    outcome = check_relation(target, *RELATIONS["relations.changing_shapes.float32"])
    assert outcome.verdict == "fail"
    assert "numpy.abs was replaced" in outcome.message


def test_targets_that_are_held_against_each_other_are_looked_at():
    found = split([Naive(), Doing(replacing(np, "abs", np.zeros_like))], CASE)
    assert "numpy.abs was replaced" in found.message


def test_paths_and_environment_are_put_back(monkeypatch):
    monkeypatch.delenv("SDPAKIT_OF_A_TEST", raising=False)
    path, environ = list(sys.path), dict(os.environ)

    def act():
        sys.path.insert(0, "/nowhere")
        os.environ["SDPAKIT_OF_A_TEST"] = "1"
        os.environ["PATH"] += ":/nowhere"

    outcome = check(Doing(act), CASE)
    assert outcome.verdict == "fail"
    assert "sys.path was changed" in outcome.message
    assert "os.environ was changed (PATH)" in outcome.message
    added = {"SDPAKIT_OF_A_TEST": "1"}  # as libraries do that set up themselves when first called
    assert (sys.path, dict(os.environ)) == (path, environ | added)


def test_what_was_raised_besides_is_said():
    def act():
        np.abs = None
        raise RuntimeError("out of paper")

    outcome = check(Doing(act), CASE)
    assert "numpy.abs was replaced, and RuntimeError was raised" in outcome.message


def test_a_folder_that_is_gone_disturbs_nobody(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert watched("the call", lambda: 3) == 3


AT_LOAD = """
import ctypes, os, sys
import numpy as np
from sdpakit.conformance.targets.naive import Naive

sys.path.append("/nowhere/of/a/test")  # as many packages do
os.environ["SDPAKIT_OF_A_TEST"] = "1"
{}

class Target(Naive):
    name = "target"
"""
FAST = """
e, c = (ctypes.c_uint32 * 64)(), ctypes.CDLL(None)
c.fegetenv(e)
e[7] |= 0x8040
c.fesetenv(e)
"""
LOADING = "relations.loading.float32"


@pytest.mark.parametrize("isolated", [True, False])
@pytest.mark.parametrize(
    ("line", "text"),
    [
        pytest.param(FAST, "flush to zero", marks=ON_X86),
        ("np.isnan = lambda x: np.zeros(np.shape(x), bool)", "numpy.isnan was replaced"),
        ("os.chdir('/')", "the working directory became /"),
    ],
)
def test_loading_leaves_the_process_as_it_is(tmp_path, monkeypatch, isolated, line, text):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("SDPAKIT_OF_A_TEST", "0")
    file = tmp_path / "adapter.py"
    file.write_text(AT_LOAD.format(line))
    wanted = [CASE.id, LOADING]
    found = run(f"{file}:Target", wanted, relations=False, isolated=isolated, workers=1)
    of_case, of_loading = found
    assert of_case.verdict == "ok", of_case.message
    assert of_loading.verdict == "fail"
    assert "loading the target changed the process: " in of_loading.message
    assert text in of_loading.message


def test_the_note_of_a_run_says_what_loading_changed(tmp_path):
    file = tmp_path / "adapter.py"
    file.write_text(AT_LOAD.format("np.isnan = np.isinf"))
    (info,) = collect([f"{file}:Target"], ids=[CASE.id], workers=1).targets
    assert "loading it changed the process (ENV-1), which was put right: numpy.isnan" in info.note


def test_a_load_that_fails_leaves_nothing_either(tmp_path):
    def load():
        np.abs = None
        raise ImportError("no")

    with pytest.raises(ImportError):
        loaded(load)
    assert np.abs is np.absolute


def test_keys_kept_by_the_identity_of_their_array_are_noticed():
    class Packs(Naive):
        """Finds packed keys again by the address of their array."""

        def __init__(self):
            self.kept = {}

        def attention(self, spec, q, k, v, **operands):
            packed = self.kept.setdefault((k.ctypes.data, k.shape), k.copy())
            return super().attention(spec, q, packed, v, **operands)

    wanted = RELATIONS["relations.overwritten_in_place.float32"]
    outcome = check_relation(Packs(), *wanted)
    assert outcome.verdict == "fail"
    assert "after k and v were overwritten out differs" in outcome.message
    assert check_relation(Naive(), *wanted).verdict == "ok"
    assert check(Packs(), CASE).verdict == "ok"  # no case notices it
