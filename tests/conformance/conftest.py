"""Collects how much of its bound each target uses, and says so at the end."""

import pytest

SHARES = pytest.StashKey[dict]()


def pytest_configure(config):
    config.stash[SHARES] = {}


@pytest.fixture
def shares(request):
    """Return a callable that records an outcome under its target and dtype."""
    worst = request.config.stash[SHARES]

    def record(outcome, dtype):
        key = (outcome.target, dtype)
        count, share, case = worst.get(key, (0, 0.0, ""))
        if outcome.share >= share:
            share, case = outcome.share, outcome.case
        worst[key] = (count + 1, share, case)

    return record


def pytest_terminal_summary(terminalreporter, config):
    worst = config.stash[SHARES]
    if not worst:
        return
    terminalreporter.section("conformance: largest error as a share of its derived bound")
    for (target, dtype), (count, share, case) in sorted(worst.items()):
        terminalreporter.write_line(f"{target:10} {dtype:9} {count:4} cases  {share:6.3f}  {case}")
