"""What `pytest --pyargs sdpakit.conformance --sdpakit-target NAME` collects: one test a case."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sdpakit.conformance.pytest_plugin import items

if TYPE_CHECKING:
    import pytest

    from sdpakit.conformance.pytest_plugin import CheckItem


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make one test of each target and case.

    Parameters
    ----------
    metafunc : pytest.Metafunc
        Of `test_case`.
    """
    metafunc.parametrize("check", items(metafunc.config))


def test_case(check: CheckItem) -> None:
    """Judge one target on one case.

    Parameters
    ----------
    check : CheckItem
        Judges when it is called.
    """
    check()
