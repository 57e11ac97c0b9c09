"""The soak finds what it looks for: wrong bits, exceptions, dead children, growing memory."""

import os

import pytest
from bench import soak
from bench.soak import GROWTH_LIMIT, Tally, Task


def right(threads):
    return b"right"


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(soak, "FORK_SECONDS", 0.05)
    monkeypatch.setattr(soak, "_compile_on", lambda tally, stop: None)

    def use(*calls):
        monkeypatch.setattr(soak, "tasks", lambda: [Task("it", call, b"right") for call in calls])

    return use


def test_a_run_of_right_answers_has_no_problems(quick):
    quick(right)
    tally = soak.load(0.3, threads=2)
    assert tally.calls > 0
    assert tally.forks > 0
    assert tally.resident
    assert soak.problems(tally) == []


def test_other_bits_are_found_and_end_the_run(quick):
    quick(lambda threads: b"wrong" if threads == 2 else b"right")
    assert "it: other bits than alone" in soak.problems(soak.load(30.0, threads=2))


def test_an_exception_is_found(quick):
    def refuse(threads):
        raise MemoryError("no more")

    quick(refuse)
    assert "MemoryError: no more" in soak.problems(soak.load(30.0, threads=1))


def test_a_child_that_fails_is_found(quick):
    parent = os.getpid()
    quick(lambda threads: b"right" if os.getpid() == parent else b"wrong")
    assert "a child of fork ended with status 1" in soak.problems(soak.load(30.0, threads=1))


def test_a_child_that_hangs_is_killed(monkeypatch):
    monkeypatch.setattr(soak, "FORK_LIMIT", 0.1)
    child = os.fork()
    if child == 0:
        while True:
            os.sched_yield()
    assert soak._waited(child) == -9


def test_memory_that_grows_is_found():
    grown = Tally(resident=[(float(n), n * GROWTH_LIMIT) for n in range(8)])
    assert "grew by" in soak.problems(grown)[0]
    flat = Tally(resident=[(float(n), 100 + n % 2) for n in range(8)])
    assert soak.problems(flat) == []
