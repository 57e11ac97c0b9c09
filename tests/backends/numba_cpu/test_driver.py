"""The driver works where Numba cannot keep its compiled form, and says so once."""

import pickle

import pytest

from sdpakit.backends.numba_cpu import driver, schedule
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

    monkeypatch.setattr(driver, "njit", njit)
    with pytest.warns(CacheWarning, match="set NUMBA_CACHE_DIR"):
        assert driver.worker.__wrapped__() is driver._work
    assert asked == [True, False]


def test_a_fault_of_the_code_is_not_taken_for_one_of_the_cache(monkeypatch):
    def njit(*_, **__):
        raise RuntimeError("a fault of the code")

    monkeypatch.setattr(driver, "njit", njit)
    with pytest.warns(CacheWarning), pytest.raises(RuntimeError, match="a fault of the code"):
        driver.worker.__wrapped__()


def test_fields_of_the_descriptor_have_places_of_their_own():
    places = {
        name: value
        for name, value in vars(driver).items()
        if name.isupper() and isinstance(value, int) and not name.startswith("_")
    }
    others = {"FIELDS", "PARTIAL", "FIRST_SHIFT", "RANGE_BYTES", "CACHE_LINE", "M_UNIT"}
    fields = [value for name, value in places.items() if name not in others]
    assert sorted(fields) == list(range(driver.FIELDS))


def test_numbers_that_stand_in_two_files_agree():
    from sdpakit.backends.numba_cpu import abi

    assert (driver.PARTIAL, driver.FIRST_SHIFT) == (abi.FLAG_PARTIAL, abi.FLAG_FIRST_SHIFT)
    assert abi.FLAG_NONFINITE_V == 2  # the flag that `_pack_tile` shifts into place
    assert driver.RANGE_BYTES == schedule.RANGE_BYTES
