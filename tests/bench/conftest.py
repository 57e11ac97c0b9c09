import pytest


class Alone:
    """A probe that never has company: tests do not wait for a quiet machine."""

    def wait(self):
        return 1.0

    slowdown = wait


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    monkeypatch.setattr("bench.timing.Probe", Alone)
    return Alone
