"""What the tests of compiling ask for: the toolchain, its absence, a cache of their own."""

import pytest
from tests.gpu.presence import refuse

from sdpakit.backends import diskcache
from sdpakit.backends.gpu.toolchain import toolchain


def pytest_addoption(parser):
    parser.addoption("--update-golden", action="store_true", help="write kept texts anew")


@pytest.fixture(scope="session")
def tools():
    """The toolchain, all of it."""
    found = toolchain()
    missing = [part.name for part in found.parts if part.version is None]
    if missing:
        refuse(f"not installed: {', '.join(missing)} (pip install '.[gpu-ci]')")
    return found


@pytest.fixture
def no_tools(monkeypatch):
    """A machine on which nothing of CUDA is installed."""
    monkeypatch.setattr("sdpakit.backends.gpu.toolchain._has", lambda module: False)
    monkeypatch.setattr("shutil.which", lambda name: None)
    toolchain.cache_clear()
    yield
    toolchain.cache_clear()


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache on disk."""
    monkeypatch.setenv(diskcache.DIRECTORY_VARIABLE, str(tmp_path))
    monkeypatch.delenv(diskcache.SWITCH_VARIABLE, raising=False)
    monkeypatch.setattr(diskcache, "_warned", set())
    return tmp_path / "gpu"
