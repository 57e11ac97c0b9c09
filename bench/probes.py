"""Measurements that need a fresh process: `python -m bench.probes NAME` prints one JSON object.

`bench.latency` starts them; each says in its docstring what it finds out.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

Facts = dict[str, Any]

HEAVY_MODULES = ("numpy", "numba", "llvmlite", "cupy", "torch")

_OVERHEAD_CALLS, _OVERHEAD_BATCHES = 2000, 15
_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")


class Stopwatch:
    """Processor and wall seconds since it was made."""

    def __init__(self) -> None:
        self._cpu, self._wall = time.process_time(), time.perf_counter()

    def read(self) -> dict[str, float]:
        """Return both."""
        return {"cpu": time.process_time() - self._cpu, "wall": time.perf_counter() - self._wall}


def import_time() -> Facts:
    """Say how long `import sdpakit` takes in a bare Python, and which heavy modules come along."""
    watch = Stopwatch()
    import sdpakit

    seconds = watch.read()
    heavy = [name for name in HEAVY_MODULES if name in sys.modules]
    return {"seconds": seconds, "loaded": heavy, "version": sdpakit.__version__}


def compile_specs() -> Facts:
    """Say how long several specs take to compile and to answer their first call.

    The process has imported everything and run another kernel before, so that what is left is the
    work on the new spec; whether its code is on disk already is up to the caller.
    """
    import sdpakit as sk

    watch = Stopwatch()
    first = _compile_and_call(sk, sk.AttentionSpec(q_heads=1, head_dim=16))
    return {
        "start": watch.read(),
        "start_spec": first,
        "specs": {name: _compile_and_call(sk, spec) for name, spec in _specs(sk).items()},
    }


def compile_gradients() -> Facts:
    """Say how long the code of gradients takes, all of it new, and for one more mask.

    The process has compiled gradients in float64 before, which have no machine code in common.
    """
    import sdpakit as sk

    def seconds(**fields: Any) -> dict[str, float]:
        spec = sk.AttentionSpec(q_heads=8, **fields)
        watch = Stopwatch()
        sk.compile_backward(spec, backend="numba_cpu")
        return watch.read()

    seconds(head_dim=16, dtype="float64")
    return {
        "new": seconds(head_dim=64, mask=sk.Causal("bottom_right")),
        "another mask": seconds(head_dim=64, mask=sk.Window(64, 0, align="bottom_right")),
    }


def first_use() -> Facts:
    """Say how long a fresh process takes from `import sdpakit` to the first answer."""
    watch = Stopwatch()
    import sdpakit as sk

    _compile_and_call(sk, _specs(sk)["f32 d64 causal"])
    return {"seconds": watch.read()}


def call_overhead() -> Facts:
    """Say how long the smallest sensible call takes, (1, 1, 16, 16, 64) in float32."""
    import numpy as np

    import sdpakit as sk

    q, k, v = np.random.default_rng(0).standard_normal((3, 1, 1, 16, 64), dtype=np.float32)
    kernel = _compile(sk, sk.AttentionSpec(q_heads=1, head_dim=64))
    out = np.empty_like(q)
    return {
        "allocating": _microseconds(lambda: kernel(q, k, v, threads=1)),
        "into out": _microseconds(lambda: kernel(q, k, v, out=out, threads=1)),
        "torch": _torch_microseconds(q, k, v),
    }


def sweep() -> Facts:
    """Count the modules of machine code that one spec and 50 lengths bring into the process.

    The count is taken in llvmlite, below the compiler and below Numba.
    """
    import numpy as np

    import sdpakit as sk

    rng = np.random.default_rng(0)
    lengths = [int(n) for n in rng.choice(np.arange(2, 700), 50, replace=False)]
    _compile_and_call(sk, sk.AttentionSpec(q_heads=1, head_dim=16))  # loads the driver
    with modules_made() as count:
        spec = sk.AttentionSpec(q_heads=2, head_dim=64, mask=sk.Causal("bottom_right"))
        kernel = _compile(sk, spec)
        compiled = count()
        for n in lengths:
            q = rng.standard_normal((1, 2, n, 64), dtype=np.float32)
            kernel(q, *rng.standard_normal((2, 1, 2, n + 3, 64), dtype=np.float32))
        total = count()
    return {"lengths": len(lengths), "compile": compiled, "sweep": total - compiled}


def scratch_decode(threads: int = 1) -> Facts:
    """Say how much memory 16 queries against a million keys take beyond operands and results."""
    return _memory(_forward(16, 1, 1_000_000, threads))


def scratch_decode_two_threads() -> Facts:
    """Say the same of two threads."""
    return scratch_decode(2)


def scratch_prefill(threads: int = 1) -> Facts:
    """Say how much memory a 32,768 x 32,768 call takes beyond operands and results."""
    return _memory(_forward(1, 32_768, 32_768, threads))


def scratch_prefill_two_threads() -> Facts:
    """Say the same of two threads."""
    return scratch_prefill(2)


def scratch_backward(threads: int = 1) -> Facts:
    """Say how much memory gradients of 16,384 x 16,384 take beyond operands and results."""
    return _memory(_backward(16_384, threads))


def scratch_backward_two_threads() -> Facts:
    """Say the same of two threads."""
    return scratch_backward(2)


PROBES: dict[str, Callable[[], Facts]] = {
    probe.__name__: probe
    for probe in (
        import_time,
        compile_specs,
        compile_gradients,
        first_use,
        call_overhead,
        sweep,
        scratch_decode,
        scratch_decode_two_threads,
        scratch_prefill,
        scratch_prefill_two_threads,
        scratch_backward,
        scratch_backward_two_threads,
    )
}


def _specs(sk: Any) -> dict[str, Any]:
    """Return specs that have little code in common."""
    return {
        "f32 d64 causal": sk.AttentionSpec(q_heads=8, head_dim=64, mask=sk.Causal("bottom_right")),
        "f32 d128 bias cap": sk.AttentionSpec(
            q_heads=8, head_dim=128, bias="float32", softcap=30.0
        ),
        "bf16 d128 gqa window": sk.AttentionSpec(
            q_heads=32,
            kv_heads=8,
            head_dim=128,
            dtype="bfloat16",
            mask=sk.Window(256, 0, align="bottom_right"),
        ),
        "f16 d80 statistics": sk.AttentionSpec(
            q_heads=8, head_dim=80, dtype="float16", outputs=("out", "lse", "entropy")
        ),
        "f64 d64": sk.AttentionSpec(q_heads=8, head_dim=64, dtype="float64"),
    }


def _compile(sk: Any, spec: Any) -> Any:
    """Compile for the CPU backend by name, so that no other can stand in."""
    return sk.compile(spec, backend="numba_cpu")


def _compile_and_call(sk: Any, spec: Any) -> dict[str, float]:
    """Return the seconds of compilation and first call: a compiler may leave work to the call."""
    import ml_dtypes
    import numpy as np

    dtype = np.dtype(ml_dtypes.bfloat16 if spec.dtype == "bfloat16" else spec.dtype)
    kv_heads = spec.kv_heads or spec.q_heads
    q = np.ones((1, spec.q_heads, 8, spec.head_dim), dtype)
    k = np.ones((1, kv_heads, 8, spec.head_dim), dtype)
    bias = {"bias": np.zeros((1, 1, 8, 8), np.float32)} if spec.bias else {}
    watch = Stopwatch()
    _compile(sk, spec)(q, k, k, threads=1, **bias)
    return watch.read()


def _microseconds(call: Callable[[], object]) -> float:
    """Return the median processor time of a call over batches."""
    batches = []
    for _ in range(_OVERHEAD_BATCHES):
        start = time.process_time()
        for _ in range(_OVERHEAD_CALLS):
            call()
        batches.append((time.process_time() - start) / _OVERHEAD_CALLS * 1e6)
    return median(batches)


def _torch_microseconds(q: Any, k: Any, v: Any) -> float | None:
    """Return what torch needs for the same call; None where it is not installed."""
    try:
        torch = importlib.import_module("torch")
    except ModuleNotFoundError:
        return None
    torch.set_num_threads(1)
    tensors = [torch.from_numpy(array) for array in (q, k, v)]
    with torch.no_grad():
        return _microseconds(lambda: torch.nn.functional.scaled_dot_product_attention(*tensors))


@contextmanager
def modules_made() -> Iterator[Callable[[], int]]:
    """Count the modules of machine code that llvmlite makes ready, for whoever asks it."""
    from llvmlite.binding import executionengine

    made = 0
    original = executionengine.ExecutionEngine.finalize_object

    def counted(engine: Any) -> Any:
        nonlocal made
        made += 1
        return original(engine)

    executionengine.ExecutionEngine.finalize_object = counted
    try:
        yield lambda: made
    finally:
        executionengine.ExecutionEngine.finalize_object = original


def _forward(q_heads: int, q_len: int, kv_len: int, threads: int) -> Callable[[], int]:
    """Return a call with one kv head that says how many bytes its result has."""
    import numpy as np

    import sdpakit as sk

    kernel = _compile(sk, sk.AttentionSpec(q_heads=q_heads, kv_heads=1, head_dim=64))
    rng = np.random.default_rng(0)

    def arrays(rows: int, keys: int) -> list[Any]:
        shapes = ((1, q_heads, rows, 64), (1, 1, keys, 64), (1, 1, keys, 64))
        return [rng.standard_normal(shape, dtype=np.float32) for shape in shapes]

    kernel(*arrays(1, 2), threads=threads)  # loads the driver, which is no scratch
    operands = arrays(q_len, kv_len)
    return lambda: int(kernel(*operands, threads=threads).nbytes)


def _backward(length: int, threads: int) -> Callable[[], int]:
    """Return a call for the gradients of one head that says how many bytes they have."""
    import numpy as np

    import sdpakit as sk

    backward = sk.compile_backward(sk.AttentionSpec(q_heads=1, head_dim=64), backend="numba_cpu")
    tiny = np.ones((1, 1, 2, 64), np.float32)
    backward(tiny, tiny, tiny, tiny, threads=threads)  # loads the driver, which is no scratch
    rng = np.random.default_rng(0)
    q, k, v, dout = (rng.standard_normal((1, 1, length, 64), dtype=np.float32) for _ in range(4))
    _, saved = backward.forward(q, k, v, threads=threads)

    def call() -> int:
        found = backward(q, k, v, dout, saved=saved, threads=threads)
        return sum(int(array.nbytes) for array in (found.dq, found.dk, found.dv))

    return call


def _memory(call: Callable[[], int]) -> Facts:
    """Return by how much a call raises the peak of the resident set, without its results."""
    _CLEAR.write_text("5", encoding="ascii")  # the peak starts anew (proc(5))
    before = _peak_bytes()
    watch = Stopwatch()
    results = call()
    seconds = watch.read()
    grown = _peak_bytes() - before
    return {"grown_bytes": grown - results, "result_bytes": results, "seconds": seconds}


def _peak_bytes() -> int:
    for line in _STATUS.read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"{_STATUS} has no VmHWM")


if __name__ == "__main__":
    print(json.dumps(PROBES[sys.argv[1]]()))
