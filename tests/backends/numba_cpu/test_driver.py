"""The driver works where Numba cannot keep its compiled form, and says so once."""

import pickle
from contextlib import nullcontext

import pytest

from sdpakit.backends.numba_cpu import abi, driver, workers
from sdpakit.errors import CacheWarning

NUMBERS_OF_ABI = {
    name.removeprefix("FLAG_"): value for name, value in vars(abi).items() if name.isupper()
}


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
        assert driver.worker.__wrapped__() is driver._work
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
        assert driver.worker.__wrapped__() is driver._work
    assert found == asked


def test_a_fault_of_the_code_is_not_taken_for_one_of_the_cache(monkeypatch):
    def njit(*_, **__):
        raise RuntimeError("a fault of the code")

    monkeypatch.setattr(workers, "njit", njit)
    with pytest.warns(CacheWarning), pytest.raises(RuntimeError, match="a fault of the code"):
        driver.worker.__wrapped__()


def test_fields_of_the_descriptor_have_places_of_their_own():
    places = {
        name: value
        for name, value in vars(driver).items()
        if name.isupper() and isinstance(value, int) and not name.startswith("_")
    }
    others = {"FIELDS", "OBJECT_HEAD", "CACHE_LINE", *NUMBERS_OF_ABI}
    fields = [value for name, value in places.items() if name not in others]
    assert sorted(fields) == list(range(driver.FIELDS))


def test_numbers_that_stand_in_two_files_agree():
    assert {name: getattr(driver, name) for name in NUMBERS_OF_ABI} == NUMBERS_OF_ABI
