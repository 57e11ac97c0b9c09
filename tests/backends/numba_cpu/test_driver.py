"""The worker runs where Numba cannot keep its compiled form, and says so once; descriptors."""

import ast
import pickle
from contextlib import nullcontext
from pathlib import Path

import pytest

from sdpakit.backends.numba_cpu import driver, workers
from sdpakit.backends.numba_cpu.backward import driver as backward_driver
from sdpakit.backends.numba_cpu.decode import driver as decode_driver
from sdpakit.errors import CacheWarning


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("cannot cache function '_work': no locator available for file"),
        OSError(28, "No space left on device"),
        EOFError("Ran out of input"),
        pickle.UnpicklingError("invalid load key"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_without_a_cache_it_is_compiled_anew_with_a_warning(monkeypatch, error):
    asked = []

    def njit(*_, cache=False, **__):
        asked.append(cache)
        if cache:
            raise error
        return lambda function: function

    monkeypatch.setattr(workers, "njit", njit)
    with pytest.warns(CacheWarning, match="set NUMBA_CACHE_DIR"):
        assert workers.worker.__wrapped__() is workers._work
    assert asked == [True, False]


@pytest.mark.parametrize(
    ("writable", "named", "asked"),
    [
        (False, {}, [False]),
        (True, {}, [True]),
        (False, {"XDG_CACHE_HOME": "/caches"}, [True]),
        (False, {"HOME": "/a/home"}, [True]),
    ],
)
def test_without_a_home_numba_is_not_asked_to_make_a_folder_of_that_name(
    monkeypatch, writable, named, asked
):
    """In a read-only installation it would keep the driver below "~", taken literally."""

    def nobody(_uid):
        raise KeyError("getpwuid(): uid not found")

    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in named.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("pwd.getpwuid", nobody)
    monkeypatch.setattr(workers.config, "CACHE_DIR", "")
    monkeypatch.setattr("os.access", lambda *_: writable)
    found = []
    monkeypatch.setattr(
        workers, "njit", lambda *_, cache=False, **__: found.append(cache) or (lambda work: work)
    )
    expected = pytest.warns(CacheWarning, match="Could not determine home directory")
    with nullcontext() if asked[0] else expected:
        assert workers.worker.__wrapped__() is workers._work
    assert found == asked


def test_a_fault_of_the_code_is_not_taken_for_one_of_the_cache(monkeypatch):
    def njit(*_, **__):
        raise RuntimeError("a fault of the code")

    monkeypatch.setattr(workers, "njit", njit)
    with pytest.warns(CacheWarning), pytest.raises(RuntimeError, match="a fault of the code"):
        workers.worker.__wrapped__()


@pytest.mark.parametrize("module", [driver, decode_driver, backward_driver])
def test_fields_of_a_descriptor_have_places_of_their_own(module):
    """The worker's come first, then those that the assignment at the head of the driver names."""
    source = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    fields = next(
        [name.id for name in node.targets[0].elts]
        for node in source.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Tuple)
        and node.targets[0].elts[-1].id == "FIELDS"
    )
    places = [getattr(module, name) for name in fields]
    assert places == list(range(workers.OWN_FIELDS, module.FIELDS + 1))
