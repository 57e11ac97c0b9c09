"""Relations between calls: one after another, at once, with `out=`."""

from __future__ import annotations

import threading
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
from sdpakit.dtypes import ACCUM_DTYPE
from sdpakit.expr.operands import Scalar
from sdpakit.masks import Causal, Window


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
    """Call one kernel with other lengths and batches, and then as at first."""
    kernel = bench.kernel(mask=Causal("bottom_right"))
    shapes = [(2, 37, 150), (1, 1, 9), (3, 64, 64), (1, 130, 20), (2, 37, 150)]
    calls = [
        bench.draw(Shape(batch, 4, 2, q_len, kv_len, 16)).qkv() for batch, q_len, kv_len in shapes
    ]
    found = [kernel(**given) for given in calls]
    allowed = bench.allowed(calls[0], mask=Causal("bottom_right"))
    wrong = other_bits(found[0], found[-1])
    fresh = bench.call(calls[0], mask=Causal("bottom_right"))
    return wrong + too_far(found[0], fresh, allowed)


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
