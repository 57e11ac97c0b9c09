"""Relations between calls: one after another, at once, with `out=`."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from sdpakit.conformance.cases.make import gh
from sdpakit.conformance.contained import described
from sdpakit.conformance.inputs import np_dtype, with_strides
from sdpakit.conformance.model import Shape
from sdpakit.conformance.relations.bench import (
    FOUR,
    Bench,
    Relation,
    other_bits,
    relation,
    too_far,
)
from sdpakit.conformance.undisturbed import at_load
from sdpakit.dtypes import ACCUM_DTYPE
from sdpakit.expr.operands import Scalar
from sdpakit.masks import Causal, Window

_PATIENCE = 30.0  # seconds for a child that calls one small kernel


def _one_after_another(bench: Bench) -> list[str]:
    """Call kernels that differ in run-time values alone, and then in reverse order."""
    given = bench.draw().qkv()
    specs: list[dict[str, Any]] = [
        {"scale": 0.5},
        {"scale": 2.0},
        {"scale": 0.5, "softcap": 3.0},
        {"scale": 0.5, "softcap": 9.0},
        {"mask": Window(3, 0, "bottom_right")},
        {"mask": Window(40, 7, "bottom_right")},
    ]
    first = [bench.call(given, **spec) for spec in specs]
    again = [bench.call(given, **spec) for spec in reversed(specs)]
    wrong = [text for a, b in zip(first, reversed(again), strict=True) for text in other_bits(a, b)]
    if any(not other_bits(a, b) for a, b in ((first[0], first[1]), (first[2], first[3]))):
        wrong.append("a changed scale or cap changed nothing")
    return wrong


def _changing_shapes(bench: Bench) -> list[str]:
    """Call one kernel with other lengths and batches, longer and shorter, and then as at first."""
    kernel = bench.kernel(mask=Causal("bottom_right"))
    shapes = [(1, 5, 60), (2, 37, 150), (1, 1, 9), (3, 64, 64), (1, 130, 20), (1, 5, 60)]
    calls = [
        bench.draw(Shape(batch, 4, 2, q_len, kv_len, 16)).qkv() for batch, q_len, kv_len in shapes
    ]
    found = [kernel(**given) for given in calls]
    wrong = other_bits(found[0], found[-1])
    for shape, given, result in zip(shapes[:2], calls, found, strict=False):
        of_call: dict[str, Any] = {
            "shape": Shape(shape[0], 4, 2, *shape[1:], 16),
            "mask": Causal("bottom_right"),
        }
        wrong += too_far(result, bench.call(given, **of_call), bench.allowed(given, **of_call))
    return wrong


def _run_time_number(bench: Bench) -> list[str]:
    """Change a number of params= between two calls."""
    given = bench.draw().qkv()
    kernel = bench.kernel(logits=lambda x, i: x * Scalar("factor") + 0.0 * i.k)
    results = [kernel(**given, params={"factor": f}) for f in (1.0, -2.0, 1.0)]
    wrong = other_bits(results[0], results[2])
    return wrong if other_bits(results[0], results[1]) else [*wrong, "the number is ignored"]


def _thread_counts(bench: Bench) -> list[str]:
    given = bench.draw().qkv()
    kernel = bench.kernel(mask=Causal("bottom_right"))
    results = [kernel(**given, threads=n) for n in (1, 2, 3, 8)]
    return [text for other in results[1:] for text in other_bits(results[0], other)]


def _at_once(bench: Bench) -> list[str]:
    """Call two kernels from eight threads of the caller."""
    given = bench.draw().qkv()
    kernels = [bench.kernel(mask=Causal(a)) for a in ("bottom_right", "top_left")]
    alone = [kernel(**given) for kernel in kernels]
    wrong: list[str] = []

    def work(number: int) -> None:
        for _ in range(3):
            try:
                wrong.extend(other_bits(alone[number % 2], kernels[number % 2](**given)))
            except Exception as error:  # noqa: BLE001 - a thread's exception would be lost
                wrong.append(described(error))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return wrong


def _many_at_once(bench: Bench) -> list[str]:
    """Call six kernels of other masks and sizes from sixteen threads, many times."""
    masks = [Causal("bottom_right"), Causal("top_left"), Window(9, 3, "top_left"), None]
    shapes = [Shape(1, 2, 1, q_len, kv_len, 16) for q_len, kv_len in ((1, 300), (65, 65), (7, 1))]
    calls = []
    for mask, shape in itertools.product(masks, shapes):
        given, kernel = bench.draw(shape).qkv(), bench.kernel(shape, mask=mask)
        calls.append((kernel, given, kernel(**given)))
    wrong: list[str] = []

    def work(number: int) -> None:
        for turn in range(60):
            kernel, given, alone = calls[(number + turn) % len(calls)]
            wrong.extend(other_bits(alone, kernel(**given)))

    with ThreadPoolExecutor(16) as pool:
        for done in [pool.submit(work, number) for number in range(16)]:
            done.result()
    return wrong


def _after_fork(bench: Bench) -> list[str]:
    """Call a kernel in a forked child, as a loader of data does, and again in its parent."""
    if not hasattr(os, "fork"):
        return []
    given = bench.draw().qkv()
    kernel = bench.kernel(mask=Causal("bottom_right"))
    first = kernel(**given)
    ended, child = _in_child(lambda: not other_bits(first, kernel(**given)))
    wrong = [] if ended else ["a forked child did not come to an end"]
    if ended and not child:
        wrong.append("a forked child gets other bits, or none")
    return wrong + other_bits(first, kernel(**given))


def _in_child(judge: Callable[[], bool]) -> tuple[bool, bool]:
    """Return whether a forked child ended in time, and whether it found the judgement true."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if judge() else 1
        finally:
            os._exit(code)  # the child must not go on with the run of its parent
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return True, status == 0
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False, False


def _strided_out(bench: Bench) -> list[str]:
    given = bench.draw().qkv()
    kernel = bench.kernel()
    plain = kernel(**given)
    wrong: list[str] = []
    for order in ("bshd", "reversed", "sliced", "channels_first", "every_other", "unaligned"):
        out = with_strides(np.zeros_like(plain["out"]), order=order)
        result = kernel(**given, out={"out": out})
        if result["out"] is not out:
            wrong.append(f"{order}: out= is not what came back")
        wrong.extend(f"{order}: {text}" for text in other_bits(plain, result))
    return wrong


def _out_of_some(bench: Bench) -> list[str]:
    """Give arrays for some outputs; a bare array stands for `out` alone."""
    given = bench.draw().qkv()
    plain = bench.call(given)
    lse = np.zeros(plain["lse"].shape, np_dtype(ACCUM_DTYPE[bench.dtype]))
    found = bench.kernel()(**given, out={"lse": lse})
    wrong = other_bits(plain, found)
    if found["lse"] is not lse:
        wrong.append("the array given for lse is not what came back")
    out = np.zeros_like(plain["out"])
    alone = bench.kernel(outputs=("out",))(**given, out=out)
    if alone["out"] is not out:
        wrong.append("the array given for out is not what came back")
    return wrong + too_far({"out": plain["out"]}, alone, bench.allowed(given))


def _overwritten(bench: Bench) -> list[str]:
    """Overwrite k and v where they lie, and call again with the same array objects."""
    given, other = bench.draw().qkv(), Bench(bench.target, bench.dtype, bench.seed + 1).draw().qkv()
    kernel = bench.kernel(mask=Causal("bottom_right"))
    kernel(**given)
    for name in "kv":
        given[name][...] = other[name]
    found = kernel(**given)
    fresh = kernel(q=given["q"], k=other["k"], v=other["v"])
    allowed = bench.allowed(given, mask=Causal("bottom_right"))
    return [f"after k and v were overwritten {text}" for text in too_far(fresh, found, allowed)]


def _loaded(bench: Bench) -> list[str]:
    """Look at what loading the target left behind, and what its first call does."""
    if changes := at_load(bench.target):
        return [f"loading the target changed the process: {text}" for text in changes]
    bench.call(bench.draw().qkv())
    return []


CALLS: tuple[Relation, ...] = (
    relation(
        "one_after_another",
        "SCALE-1 CAP-1 MASK-2",
        "values kept from an earlier kernel",
        _one_after_another,
        source=gh("openvinotoolkit/openvino!31365"),
    ),
    relation(
        "changing_shapes",
        "SHAPE-1",
        "sizes kept from an earlier call",
        _changing_shapes,
        source=gh("pytorch/pytorch#148545"),
    ),
    relation(
        "overwritten_in_place",
        "SHAPE-5 DET-1",
        "packed keys or values that are kept by the identity or address of their array",
        _overwritten,
    ),
    relation(
        "loading",
        "ENV-1",
        "a library that sets flush to zero, or replaces functions of others, when it is loaded",
        _loaded,
    ),
    relation("run_time_number", "EXPR-1", "a number kept from an earlier call", _run_time_number),
    relation(
        "thread_counts",
        "DET-1",
        "bits that depend on the number of threads",
        _thread_counts,
        dtypes=FOUR,
        needs="takes_threads",
    ),
    relation("calls_at_once", "DET-1", "state of a call", _at_once, needs="takes_threads"),
    relation(
        "many_calls_at_once",
        "DET-1",
        "state that two kernels share",
        _many_at_once,
        level="stress",
        needs="takes_threads",
    ),
    relation(
        "after_fork",
        "DET-1",
        "threads or locks that a forked child waits for",
        _after_fork,
        level="full",
        needs="takes_threads",
    ),
    relation(
        "strided_out",
        "OUT-1",
        "out= written as if it were contiguous",
        _strided_out,
        dtypes=FOUR,
        needs="takes_out",
    ),
    relation(
        "out_of_some", "OUT-1", "an output that out= does not name", _out_of_some, needs="takes_out"
    ),
)
