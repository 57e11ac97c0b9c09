"""Kept code is found by what determines its text: nothing that has a say may be left out."""

import dataclasses
import importlib.util
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from llvmlite import ir

import sdpakit as sk
from sdpakit import compiler
from sdpakit.backends import diskcache
from sdpakit.backends.numba_cpu import abi, codegen, driver, recipes, sources
from sdpakit.backends.numba_cpu.backend import BACKEND
from sdpakit.backends.numba_cpu.backward import driver as backward_driver
from sdpakit.backends.numba_cpu.costs import choice
from sdpakit.backends.numba_cpu.decode import driver as decode_driver
from sdpakit.backends.numba_cpu.isa import available_isas
from sdpakit.backends.numba_cpu.recipes import described
from sdpakit.errors import InternalError
from sdpakit.expr.nodes import Binary, Const, Expr, Index, Scalar
from sdpakit.ir.build import build
from sdpakit.passes import run_pipeline

RICH = {
    "mask": sk.Causal("top_left"),
    "bias": "float16",
    "sinks": True,
    "outputs": ("out", "entropy"),
}


def artifact(options=None, *, gradients=False, **fields):
    spec = sk.AttentionSpec(**{"q_heads": 2, "head_dim": 6, **fields})
    program = run_pipeline(build(spec)[0])
    return (BACKEND.lower_backward if gradients else BACKEND.lower)(program, options or {})


DRIVERS = (driver, decode_driver, backward_driver)


def modules_of(options, gradients):
    kernels = artifact(options, gradients=gradients, **RICH).stages._recipes
    drivers = [module.WALK for module in DRIVERS]
    return [module for kernel in (*kernels, *drivers) for module in kernel]


def variants(value):
    """Yield values that differ from a value in one place, however deep it lies."""
    match value:
        case bool():
            yield not value
        case int():
            yield value + 1
        case str():
            yield f"{value}x"
        case None:
            yield 1
        case Expr():
            yield Binary("add", value, Const(1.0)) if value.type == "float" else Const(value=False)
        case tuple():
            yield (*value, "more")
            for n, part in enumerate(value):
                yield from ((*value[:n], other, *value[n + 1 :]) for other in variants(part))
        case _:
            for field in dataclasses.fields(value):
                for other in variants(getattr(value, field.name)):
                    yield dataclasses.replace(value, **{field.name: other})


@pytest.mark.parametrize("gradients", [False, True])
def test_every_field_of_a_plan_is_part_of_the_key(gradients):
    plan = artifact(gradients=gradients, **RICH).meta["plan"]
    others = [described(other) for other in variants(plan)]
    assert len(others) > 30
    assert len({described(plan), *others}) == 1 + len(others)


def test_every_option_is_part_of_the_key():
    options = [{}, {"block_kv": 24}, {"block_kv": 48}]
    options += [{"isa": isa} for isa in available_isas()[:-1]]
    for gradients in (False, True):
        keys = {artifact(given, gradients=gradients, **RICH).key for given in options}
        assert len(keys) == len(options)


@pytest.mark.parametrize("gradients", [False, True])
def test_no_text_asks_the_machine(monkeypatch, gradients):
    """What the model of costs chose for it is named in the arguments, where the key can see it."""
    options = [{"isa": isa} for isa in available_isas()]
    modules = [module for given in options for module in modules_of(given, gradients)]

    def asked(_widths):
        raise AssertionError("a text depends on the caches of this machine")

    monkeypatch.setattr(choice, "block_kv", asked)
    assert all("define" in module.emit(*module.arguments) for module in modules)


@pytest.mark.parametrize("module", DRIVERS, ids=lambda module: module.__name__.split(".")[-2])
def test_builds_of_python_that_share_a_cache_share_the_code_that_fits_both(module, monkeypatch):
    """Where the head of an object has another size, a driver that reads arrays is another one."""
    monkeypatch.setattr(abi, "OBJECT_HEAD", abi.OBJECT_HEAD + 16)
    spec = importlib.util.spec_from_file_location(module.__name__, module.__file__)
    other = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(other)
    (mine,), (theirs,) = module.WALK, other.WALK
    reads_arrays = module is not backward_driver
    assert (mine.emit(*mine.arguments) != theirs.emit(*theirs.arguments)) == reads_arrays
    assert (mine.description != theirs.description) == reads_arrays


def test_plain_values_are_told_apart():
    values = [1, 1.0, True, "1", None, "None", (), ("",), ("1",), ("1", "2"), ("1', '2",)]
    values += [0.0, -0.0, Index("q"), "q", "<q>", Scalar("a", "int"), Scalar("a"), Const(1)]
    values += [Const(1.0), Const(value=True)]
    assert len({described(value) for value in values}) == len(values)


@pytest.mark.parametrize("value", [np.float64(1), [1], {}, int, object(), lambda: 1], ids=repr)
def test_what_has_no_text_makes_no_key(value):
    with pytest.raises(InternalError, match="no key"):
        described((1, value))


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv(diskcache.DIRECTORY_VARIABLE, str(tmp_path))
    monkeypatch.setattr(sources, "digest", lambda: "these")
    monkeypatch.delenv(diskcache.SWITCH_VARIABLE, raising=False)
    forget()


def forget():
    """Forget what a new process would not know."""
    compiler.clear()
    codegen.clear_loaded()
    recipes._text.cache_clear()


def attend():
    """Return whether LLVM had something to do, and results of both directions."""
    before = codegen.compile_count()
    rng = np.random.default_rng(0)
    q, k, v, dout = rng.standard_normal((4, 1, 2, 5, 6), dtype=np.float32)
    fields = {"q_heads": 2, "head_dim": 6, "mask": sk.Causal("top_left"), "bias": "float32"}
    spec, bias = sk.AttentionSpec(**fields), np.ones((1, 2, 5, 5), np.float32)
    kernel = sk.compile(spec, backend="numba_cpu")
    backward = sk.compile_backward(spec, backend="numba_cpu")
    out, saved = backward.forward(q, k, v, bias=bias)
    found = backward(q, k, v, dout, bias=bias, saved=saved)
    arrays = [kernel(q, k, v, bias=bias), out, found.dq, found.dk, found.dv, found.dbias]
    return codegen.compile_count() > before, [array.tobytes() for array in arrays], kernel


def test_code_from_the_disk_has_the_same_bits_and_needs_no_text(cache, monkeypatch):
    made = []
    start = ir.Module.__init__
    monkeypatch.setattr(
        ir.Module, "__init__", lambda self, *a, **k: made.append(1) or start(self, *a, **k)
    )
    compiled, cold, _ = attend()
    assert compiled
    assert made
    forget()
    made.clear()
    compiled, warm, kernel = attend()
    assert not compiled
    assert made == []
    assert warm == cold
    assert "define" in kernel.inspect("llvm")  # made now
    assert made


def run(code: str, source: Path, cache: Path) -> str:
    variables = {**os.environ, "PYTHONPATH": str(source), "SDPAKIT_CACHE_DIR": str(cache)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_whatever_the_emitter_imports_has_a_say_in_the_key(tmp_path):
    package = Path(sk.__file__).parent
    code = (
        "import sys\n"
        "import sdpakit.backends.numba_cpu.lower, sdpakit.backends.numba_cpu.backward.lower\n"
        "print(*(m.__file__ for n, m in sys.modules.items() if n.split('.')[0] == 'sdpakit'))"
    )
    loaded = set(run(code, package.parent, tmp_path).split())
    assert len(loaded) > 50
    assert loaded <= set(map(str, sources.paths()))


COMPILES = """
import sdpakit as sk
from sdpakit.backends.numba_cpu import codegen, recipes
from sdpakit.backends.numba_cpu.backend import BACKEND
from sdpakit.ir.build import build
from sdpakit.passes import run_pipeline
spec = sk.AttentionSpec(q_heads=1, head_dim=1)
code = BACKEND.lower(run_pipeline(build(spec)[0]), {"block_kv": 12}).stages.compiled()
print(codegen.compile_count(), recipes._text.cache_info().misses)
"""


def test_an_edited_checkout_never_finds_code_of_its_earlier_state(tmp_path):
    """An edit makes every text anew, and LLVM compiles those that came out differently."""
    source, cache = tmp_path / "src", tmp_path / "cache"
    shutil.copytree(Path(sk.__file__).parent, source / "sdpakit")
    assert run(COMPILES, source, cache).split()[0] == "1"
    assert run(COMPILES, source, cache) == "0 0\n"
    module = source / "sdpakit/backends/numba_cpu/module.py"
    text = module.read_text()
    for old, new, compiled in (
        ("Sequence[str], module", "Sequence[str],  module", "0"),
        ("queries, ", "query rows, ", "1"),
    ):
        assert old in text
        module.write_text(text.replace(old, new))
        first = run(COMPILES, source, cache).split()
        assert first[0] == compiled
        assert int(first[1]) > 1
        assert run(COMPILES, source, cache) == "0 0\n"


def test_a_process_whose_sources_changed_trusts_no_name(monkeypatch):
    """It runs what it had loaded, which is not what a digest of the files would stand for."""
    now = time.time_ns()
    monkeypatch.setattr(sources, "LOADED_AT", now + 10**12)
    assert sources.digest() is not None
    monkeypatch.setattr(sources, "LOADED_AT", 0)
    assert sources.digest() is None


def test_without_sources_there_is_no_digest(monkeypatch, tmp_path):
    monkeypatch.setattr(sources, "_paths", lambda: (tmp_path / "gone.py",))
    assert sources.digest() is None
