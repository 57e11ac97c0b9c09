"""Mixed load for a long time: `python -m bench.soak --seconds 600`.

Threads call kernels and backward passes of many specs and sizes at once, new specs are compiled
meanwhile, and children of fork do the same; every result is compared, bit by bit, with what one
thread alone had got, and that with the reference (the checks of the conformance kit). Resident
memory is sampled to the end. All of it happens in a process of its own, so that a crash or a hang
is a result, too. The exit status is 1 unless everything was right.
"""

from __future__ import annotations

import json as json_module
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from bench import environment

SCHEMA = "sdpakit-soak/1"
GRACE_SECONDS = 120.0  # for the checks before the clock starts, and for the last calls after it
FORK_SECONDS = 2.0
FORKED_CALLS = 5
FORK_LIMIT = 60.0
GROWTH_LIMIT = 16 * 2**20  # bytes over the second half of a run; a result of a call is smaller
FAMILIES = ("masks", "windows", "heads", "bias", "lengths", "precision", "sinks", "statistics")
EACH = 4  # cases of a family
LARGE = ((1, 8, 700, 64, "float32"), (2, 4, 300, 128, "bfloat16"), (1, 8, 1, 64, "float16"))


@dataclass(frozen=True, slots=True)
class Task:
    """A call, and the bits that it must give.

    Attributes
    ----------
    name : str
        What it computes.
    call : callable
        Computes and returns the bytes of all results; given a number of threads or None.
    right : bytes
        What it gave when nothing else ran.
    """

    name: str
    call: Callable[[int | None], bytes]
    right: bytes


@dataclass(slots=True)
class Tally:
    """What has happened so far.

    Attributes
    ----------
    calls, compiled, forks : int
        Calls of threads, kernels compiled anew under way, children.
    wrong : list of str
        Tasks whose bits were others, exceptions, and children that failed.
    resident : list of (float, int)
        Seconds since the start and bytes of resident memory.
    """

    calls: int = 0
    compiled: int = 0
    forks: int = 0
    wrong: list[str] = field(default_factory=list)
    resident: list[tuple[float, int]] = field(default_factory=list)

    def growth(self) -> int:
        """Return by how many bytes the median of the last quarter exceeds that of the third."""
        sizes = [size for _, size in self.resident] or [0]
        quarter = max(1, len(sizes) // 4)
        third, last = sorted(sizes[-2 * quarter : -quarter] or sizes[:1]), sorted(sizes[-quarter:])
        return last[len(last) // 2] - third[len(third) // 2]


def tasks() -> list[Task]:
    """Return calls of core cases of the kit and some larger ones, each judged before it is used."""
    from sdpakit.conformance import cases, check
    from sdpakit.conformance.targets.compiled import Compiled

    target = Compiled("numba_cpu")
    found = []
    for family in FAMILIES:
        own = [c for c in cases() if c.family == family and not c.refuses and not c.heavy]
        for case in random.Random(family).sample(own, min(EACH, len(own))):
            outcome = check(target, case)
            if outcome.verdict != "ok":
                raise SystemExit(f"{case.id}: {outcome.verdict}: {outcome.message}")
            found.append(_of_case(case))
    return found + [_large(*sizes) for sizes in LARGE] + [_gradient(seed) for seed in range(2)]


def _of_case(case: Any) -> Task:
    import sdpakit

    spec, operands = case.attention_spec(), case.operands()
    kernel = sdpakit.compile(spec, backend="numba_cpu")
    return _task(case.id, lambda threads: kernel(**operands, threads=threads))


def _large(batch: int, heads: int, length: int, width: int, dtype: str) -> Task:
    import sdpakit

    spec = sdpakit.AttentionSpec(
        q_heads=heads, head_dim=width, dtype=dtype, mask=sdpakit.Causal("bottom_right")
    )
    kernel = sdpakit.compile(spec, backend="numba_cpu")
    q = _normal((batch, heads, length, width), dtype)
    k = _normal((batch, heads, max(length, 500), width), dtype)
    name = f"causal {dtype} {q.shape} on {k.shape[2]} keys"
    return _task(name, lambda threads: kernel(q, k, k, threads=threads))


def _gradient(seed: int) -> Task:
    import sdpakit

    mask = sdpakit.Window(20, 0, "top_left") if seed else None
    spec = sdpakit.AttentionSpec(q_heads=4, kv_heads=2, head_dim=32, mask=mask)
    backward = sdpakit.compile_backward(spec, backend="numba_cpu")
    q, k = _normal((2, 4, 90, 32), "float32"), _normal((2, 2, 90, 32), "float32")

    def call(threads: int | None) -> Any:
        found = backward(q, k, k, q, threads=threads)
        return [found.dq, found.dk, found.dv]

    return _task(f"gradients, mask {mask}", call)


def _normal(shape: tuple[int, ...], dtype: str) -> Any:
    import ml_dtypes
    import numpy as np

    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(kind)


def _task(name: str, call: Callable[[int | None], Any]) -> Task:
    def as_bytes(threads: int | None) -> bytes:
        found = call(threads)
        arrays = found if isinstance(found, list | tuple) else [found]
        return b"".join(array.tobytes() for array in arrays)

    return Task(name, as_bytes, as_bytes(1))


def load(seconds: float, threads: int) -> Tally:
    """Put the load on this process for some seconds.

    Parameters
    ----------
    seconds : float
        How long.
    threads : int
        Threads that call at once; one more compiles, and the calling one forks.

    Returns
    -------
    Tally
        What happened.
    """
    ready, tally, stop = tasks(), Tally(), threading.Event()
    workers = [
        threading.Thread(target=_guarded, args=(tally, _call_on, ready, tally, stop, n))
        for n in range(threads)
    ]
    workers.append(threading.Thread(target=_guarded, args=(tally, _compile_on, tally, stop)))
    for worker in workers:
        worker.start()
    start = time.perf_counter()
    while (passed := time.perf_counter() - start) < seconds and not tally.wrong:
        tally.resident.append((passed, _resident_bytes()))
        time.sleep(FORK_SECONDS)
        if hasattr(os, "fork"):
            _fork(ready, tally)
    stop.set()
    for worker in workers:
        worker.join()
    return tally


def _guarded(tally: Tally, work: Callable[..., None], *arguments: Any) -> None:
    try:
        work(*arguments)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what was looked for
        tally.wrong.append(f"{type(error).__name__}: {error}")


def _call_on(ready: list[Task], tally: Tally, stop: threading.Event, seed: int) -> None:
    """Call tasks in an order of this thread's own."""
    draw = random.Random(seed)
    while not stop.is_set():
        _once(draw, ready, tally)


def _once(draw: random.Random, ready: list[Task], tally: Tally) -> None:
    task = draw.choice(ready)
    if task.call(draw.choice((None, 1, 2, 3))) != task.right:
        tally.wrong.append(f"{task.name}: other bits than alone")
    tally.calls += 1


def _compile_on(tally: Tally, stop: threading.Event) -> None:
    """Compile specs that nobody has compiled, and call each once."""
    import sdpakit

    for step in range(2, 1_000_000):
        if stop.is_set():
            return
        spec = sdpakit.AttentionSpec(q_heads=2, head_dim=16, mask=_every(step))
        x = _normal((1, 2, 40, 16), "float32")
        sdpakit.compile(spec, backend="numba_cpu")(x, x, x)
        tally.compiled += 1
        stop.wait(FORK_SECONDS)


def _every(step: int) -> Any:
    """Return a mask whose code no other number of steps shares."""
    import sdpakit

    return sdpakit.Predicate(lambda i: (i.q * step + i.k) % (step + 1) != 1)


def _fork(ready: list[Task], tally: Tally) -> None:
    """Let a child make some calls."""
    child = os.fork()
    if child == 0:
        own = Tally()
        try:
            draw = random.Random(os.getpid())
            for _ in range(FORKED_CALLS):
                _once(draw, ready, own)
        finally:
            os._exit(0 if own.calls == FORKED_CALLS and not own.wrong else 1)
    tally.forks += 1
    if (status := _waited(child)) != 0:
        tally.wrong.append(f"a child of fork ended with status {status}")


def _waited(child: int) -> int:
    """Return the exit status of a child; one that takes too long is killed."""
    end = time.perf_counter() + FORK_LIMIT
    while time.perf_counter() < end:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _resident_bytes() -> int:
    """Return the resident memory of this process; 0 where the system does not say."""
    statm = Path("/proc/self/statm")
    pages = int(statm.read_text(encoding="ascii").split()[1]) if statm.is_file() else 0
    return pages * os.sysconf("SC_PAGE_SIZE") if pages else 0


def problems(tally: Tally) -> list[str]:
    """Return in words what was wrong with a run, [] for nothing."""
    found = list(tally.wrong)
    if tally.growth() > GROWTH_LIMIT:
        found.append(f"resident memory grew by {tally.growth() / 2**20:.0f} MiB in half a run")
    return found


Seconds = Annotated[float, typer.Option(min=1.0, help="How long.")]
Threads = Annotated[int, typer.Option(min=1, help="Threads that call at once.")]
Inside = Annotated[bool, typer.Option("--inside", hidden=True)]


def main(seconds: Seconds = 600.0, threads: Threads = 6, *, inside: Inside = False) -> None:
    """Put a mixed load on the CPU backend and check every result."""
    if inside:
        tally = load(seconds, threads)
        typer.echo(json_module.dumps({**asdict(tally), "problems": problems(tally)}))
        return
    command = [sys.executable, "-m", "bench.soak", "--inside"]
    command += ["--seconds", str(seconds), "--threads", str(threads)]
    try:
        run = subprocess.run(
            command, stdout=subprocess.PIPE, text=True, check=False, timeout=seconds + GRACE_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise SystemExit(f"it hung: no end {GRACE_SECONDS:.0f} s after the last call") from None
    if run.returncode != 0:
        raise SystemExit(f"it ended with status {run.returncode}")
    record = json_module.loads(run.stdout.splitlines()[-1])
    _show(record, seconds)
    if record["problems"]:
        raise SystemExit(1)


def _show(record: dict[str, Any], seconds: float) -> None:
    path = environment.local_result("soak")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json_module.dumps({"schema": SCHEMA, **record}, indent=1), encoding="utf-8")
    sizes = [size / 2**20 for _, size in record["resident"]]
    typer.echo(
        f"{seconds:.0f} s: {record['calls']} calls by threads, {record['compiled']} specs compiled "
        f"meanwhile, {record['forks']} children of {FORKED_CALLS} calls"
    )
    typer.echo(f"resident: {sizes[0]:.0f} MiB at the start, {sizes[-1]:.0f} MiB at the end")
    for line in record["problems"] or ["every result had the bits of a call alone"]:
        typer.echo(line)
    typer.echo(f"record: {path}")


if __name__ == "__main__":
    typer.run(main)
