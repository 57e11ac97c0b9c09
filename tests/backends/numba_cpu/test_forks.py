"""A fork while other threads are at work: the child compiles, and never hangs."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from tests.backends.numba_cpu.kernels import function, of_text

import sdpakit as sk
from sdpakit import compiler
from sdpakit.backends import diskcache
from sdpakit.backends.numba_cpu import codegen, forks, workers
from sdpakit.backends.numba_cpu.isa import select_isa
from sdpakit.backends.numba_cpu.layout import PanelLayout

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")

SECONDS = 60  # a child that takes longer hangs


def child_does(work) -> int:
    """Fork; return the status of a child that does `work`, and is ended if it hangs."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(SECONDS)
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class Elsewhere:
    """A thread that does `work` for as long as the body of the with statement runs."""

    def __init__(self, work):
        self._stop, self._working = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, args=(work,))

    def _run(self, work):
        while not self._stop.is_set():
            work(self._working.set)

    def __enter__(self):
        self._thread.start()
        assert self._working.wait(SECONDS)
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv(diskcache.DIRECTORY_VARIABLE, str(tmp_path))


def compile_answer(number: int) -> None:
    text = f"define i64 @answer() {{\nentry:\n  ret i64 {number}\n}}\n"
    code = codegen.compile_kernel(of_text(text), select_isa())
    assert function(code, "answer", 0, ctypes.c_int64)() == number


def spec_of(head_dim: int) -> sk.AttentionSpec:
    return sk.AttentionSpec(q_heads=1, head_dim=head_dim)


def attend(head_dim: int) -> None:
    """Compile and call; weights of 1/4 make every average exact."""
    q, k, v = np.zeros((3, 1, 1, 4, head_dim), np.float32)
    k += 1.0
    v += 3.0
    kernel = sk.compile(spec_of(head_dim), backend="numba_cpu")
    np.testing.assert_array_equal(kernel(q, k, v), v)


def test_a_child_compiles_while_a_thread_of_the_parent_was_compiling():
    attend(4)  # the driver is loaded
    head_dims = iter(range(20, 120))

    def compile_another(working):
        working()
        attend(next(head_dims))

    with Elsewhere(compile_another):
        assert [child_does(lambda: compile_answer(7)) for _ in range(5)] == [0] * 5


def test_a_child_compiles_the_very_spec_that_a_thread_was_compiling(monkeypatch):
    attend(4)
    monkeypatch.setenv(diskcache.SWITCH_VARIABLE, "0")

    def compile_spec(working):
        compiler.clear()
        codegen.clear_loaded()
        working()
        attend(21)

    with Elsewhere(compile_spec):
        assert child_does(lambda: attend(21)) == 0


def test_a_fork_waits_until_the_worker_is_built(monkeypatch):
    started, built = threading.Event(), []

    def slow(made=workers.worker):
        started.set()
        time.sleep(0.3)
        built.append(True)
        return made()

    monkeypatch.setattr(workers, "worker", slow)
    compiler.clear()
    thread = threading.Thread(target=attend, args=(5,))
    thread.start()
    assert started.wait(SECONDS)
    assert child_does(lambda: built[0]) == 0
    thread.join()


def test_a_child_compiles_though_somebody_else_was_inside_llvm():
    """A collector that disposes of a module, or a user of Numba, takes the lock of LLVM alone."""
    from llvmlite.binding import ffi

    def dispose(working):
        with ffi.lib._lock:
            working()
            time.sleep(0.05)

    with Elsewhere(dispose):
        assert [child_does(lambda: compile_answer(8)) for _ in range(3)] == [0] * 3


def test_locks_are_free_after_a_fork():
    assert child_does(lambda: None) == 0
    found = []

    def take():
        found.append(forks.LLVM_LOCK.acquire(timeout=SECONDS))
        forks.LLVM_LOCK.release()

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    assert found == [True]


WHO_COMPILES_LOGS = """
import os, sys, threading, time
from sdpakit.backends.numba_cpu import forks
import logging
held = threading.Event()
def compile_and_log():
    with forks.LLVM_LOCK:
        held.set()
        time.sleep(0.3)
        logging.getLogger("numba.somewhere")
threading.Thread(target=compile_and_log, daemon=True).start()
held.wait()
child = os.fork()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
os._exit(0)
"""


def test_a_fork_and_a_thread_that_compiles_and_logs_do_not_wait_for_each_other():
    """`logging` takes its own lock before a fork, and must not do so before ours is held."""
    done = subprocess.run([sys.executable, "-c", WHO_COMPILES_LOGS], timeout=SECONDS, check=False)
    assert done.returncode == 0


def test_values_computed_once_are_kept_in_the_instance():
    layout = PanelLayout(select_isa(), "float32", "float32", 5, 6)
    assert "block_kv" not in layout.__dict__
    assert layout.block_kv == layout.__dict__["block_kv"]
    assert PanelLayout.block_kv.__doc__ == "Keys Bc of a tile."
