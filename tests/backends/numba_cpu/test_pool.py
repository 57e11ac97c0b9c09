"""Threads of the CPU backend: every item once, nobody waits for a thread that does nothing."""

import gc
import os
import signal
import threading
import time

import pytest

from sdpakit.backends.numba_cpu import pool


class Items:
    """A counter of items like that of the driver, with an item that takes a while."""

    def __init__(self, count, seconds=0.0):
        self.count, self.seconds = count, seconds
        self.lock = threading.Lock()
        self.taken = 0
        self.done = 0
        self.slots = set()

    def work(self, slot):
        while True:
            with self.lock:
                if self.taken == self.count:
                    return
                self.taken += 1
                self.slots.add(slot)
            time.sleep(self.seconds)
            with self.lock:
                self.done += 1

    def is_done(self):
        return self.done == self.count


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_all_items_are_done_when_run_returns(threads):
    items = Items(40, seconds=0.001)
    pool.run(items.work, items.is_done, threads)
    assert items.done == 40
    assert items.slots <= set(range(threads))


def test_helpers_take_part_and_are_used_again():
    for _ in range(3):
        items = Items(20, seconds=0.005)
        pool.run(items.work, items.is_done, 3)
        assert items.slots == {0, 1, 2}
    assert pool.current_pool().size >= 2
    names = [thread.name for thread in threading.enumerate()]
    assert names.count("sdpakit-helper") >= pool.current_pool().size


def test_the_caller_alone_suffices_when_all_helpers_are_busy():
    release = threading.Event()
    blocked = Items(1)

    def hold(slot):
        if slot != 0:
            release.wait(30)

    holder = threading.Thread(target=pool.run, args=(hold, lambda: False, 64))
    holder.start()
    while pool.current_pool().size < 63:
        time.sleep(0.001)
    pool.run(blocked.work, blocked.is_done, 2)
    release.set()
    holder.join()
    assert blocked.done == 1


def test_a_helper_that_comes_late_does_nothing():
    items = Items(3)
    job = pool.Job(items.work, items.is_done)
    items.work(0)
    job.wait()
    items.count += 1
    job.help(1)
    assert items.done == 3


def test_an_error_of_the_caller_is_raised_after_the_items_in_flight():
    started, ended = threading.Event(), threading.Event()

    def work(slot):
        if slot == 0:
            started.wait(30)
            raise ValueError("caller")
        started.set()
        time.sleep(0.05)
        ended.set()

    with pytest.raises(ValueError, match="caller"):
        pool.run(work, lambda: False, 2)
    assert ended.is_set()


def test_calls_from_many_threads_and_from_inside_jobs():
    inner = [Items(10) for _ in range(8)]

    def outer(slot):
        pool.run(inner[slot].work, inner[slot].is_done, 3)

    pool.run(outer, lambda: False, 4)
    callers = [threading.Thread(target=outer, args=(n,)) for n in range(4, 8)]
    for thread in callers:
        thread.start()
    for thread in callers:
        thread.join()
    assert sum(items.done for items in inner[4:]) == 40
    assert inner[0].done == 10


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_child_of_fork_makes_helpers_of_its_own():
    items = Items(20, seconds=0.002)
    pool.run(items.work, items.is_done, 3)
    child = os.fork()
    if child == 0:
        items = Items(20, seconds=0.002)
        pool.run(items.work, items.is_done, 3)
        os._exit(0 if items.done == 20 and items.slots == {0, 1, 2} else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_scratch_is_aligned_and_not_shared():
    first, second = pool.take_scratch(1000, 3), pool.take_scratch(1000, 2)
    addresses = [buffer.address for buffer in first + second]
    assert all(address % pool.ALIGNMENT == 0 for address in addresses)
    distances = [abs(a - b) for n, a in enumerate(addresses) for b in addresses[:n]]
    assert min(distances) >= 1000
    pool.give_scratch(first)
    again = pool.take_scratch(1000, 3)
    assert {buffer.address for buffer in again} == set(addresses[:3])
    pool.give_scratch(second + again)


class Interrupt(BaseException):
    pass


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="the system has no interval timers")
def test_interrupts_at_any_time_lose_no_helper(monkeypatch):
    monkeypatch.setattr(pool, "_POOLS", {})

    def interrupt(*_):
        raise Interrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    interrupted = 0
    gc.disable()  # an exception in a callback of the collector would be lost
    try:
        for n in range(400):
            items = Items(3)
            try:
                signal.setitimer(signal.ITIMER_REAL, 2e-5 + n * 2e-6)
                pool.run(items.work, items.is_done, 2)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except Interrupt:
                interrupted += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        gc.enable()
    assert interrupted > 20
    both = threading.Barrier(2, timeout=60)
    pool.run(lambda slot: both.wait() if slot < 2 else None, lambda: False, 2)
    assert pool.current_pool().size <= max(1, (os.cpu_count() or 1) - 1)
