"""`python -m bench.constants`: what the cost model assumes and no table of instructions says.

Products of one kernel are run over keys in the first-level cache and over keys in the second, and
whole calls over few keys: what is left over after the multiply-adds is the end of a loop, the way
of a line between caches, and what a panel costs beside its keys. Loads that wait for each other say
how far away the shared cache and memory are. A cycle is what the multiply-add ceiling, sampled in
the same rounds, takes for as many multiply-adds as a core starts at once.
"""

from __future__ import annotations

import json as json_module
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer
from rich.console import Console

from bench import environment

SCHEMA = "sdpakit-constants/1"
HEAD_DIM = 128
ROWS = 1024  # of a call whose q and out stay in the second-level cache
NEAR, FAR = 1, 16  # register tiles of keys that the first-level cache holds, and that it does not
FEW_KEYS, MORE_KEYS = 24, 48
REPEATS = 1600  # register tiles in one call
SHARED, MEMORY = 4 << 20, 128 << 20  # bytes that the shared cache holds, and that it does not
LOADS = 20_000  # in one call

Samples = Mapping[str, Sequence[Any]]


def calls() -> dict[str, Callable[[], object]]:
    """Return what is sampled, by name."""
    import numpy as np

    import sdpakit
    from bench.ceilings import fma_ceiling

    spec = sdpakit.AttentionSpec(q_heads=1, head_dim=HEAD_DIM)
    kernel = sdpakit.compile(spec, backend="numba_cpu")
    rng = np.random.default_rng(0)
    q = rng.standard_normal((1, 1, ROWS, HEAD_DIM), dtype=np.float32)
    found: dict[str, Callable[[], object]] = {"ceiling": fma_ceiling("float32", 1).call}
    for tiles in (NEAR, FAR):
        found[f"products of {tiles}"] = _products(spec, tiles)
    for keys in (FEW_KEYS, MORE_KEYS):
        k, v = (rng.standard_normal((1, 1, keys, HEAD_DIM), dtype=np.float32) for _ in range(2))
        found[f"call of {keys}"] = partial(kernel, q, k, v, threads=1)
    for size in (SHARED, MEMORY):
        found[f"loads of {size}"] = _loads(size)
    return found


def _loads(size: int) -> Callable[[], object]:
    """Return a call that reads lines of so many bytes, each where the one before says."""
    import numpy as np

    from bench.ceilings import aligned
    from bench.native import chase_loop
    from sdpakit.backends.numba_cpu.machine import LINE

    memory = aligned(size)
    lines = memory.view(np.int64).reshape(-1, LINE // 8)
    order = np.random.default_rng(0).permutation(len(lines))
    lines[order, 0] = memory.ctypes.data + LINE * np.roll(order, -1)
    chase, at = chase_loop(), memory.ctypes.data

    def call() -> int:
        nonlocal at  # the next call goes on from here, to lines that were not read lately
        at = int(str(chase(at, LOADS)))
        return len(memory)  # it stays alive as long as the call may be made

    return call


def _products(spec: Any, tiles: int) -> Callable[[], object]:
    """Return a call that runs the products of a panel with some register tiles of keys."""
    from bench.ceilings import aligned
    from bench.native import repeat_loop
    from sdpakit.compiler import loaded_code

    artifact: Any = loaded_code(spec, "numba_cpu", None)[2].artifact
    layout = artifact.meta["plan"].layout
    address = artifact.stages.compiled().address(f"qk_{HEAD_DIM}")
    sizes = layout.k_tile_bytes, layout.qt_bytes, layout.tile_bytes, layout.row_bytes
    memory = [aligned(size) for size in sizes]
    for array in memory:
        array.fill(0)
    k, qt, s, top = (array.ctypes.data for array in memory)

    repeat = repeat_loop(6)

    def call() -> int:
        repeat(REPEATS // tiles, address, k, qt, qt, s, tiles, top)
        return len(memory)  # it stays alive as long as the call may be made

    return call


def figures(seconds: Mapping[str, float]) -> dict[str, float]:
    """Return the constants in cycles.

    Parameters
    ----------
    seconds : mapping of str to float
        Of one call of each of `calls`.
    """
    from bench.ceilings import fma_ceiling
    from sdpakit.backends.numba_cpu.isa import select_isa
    from sdpakit.backends.numba_cpu.machine import LINE, core

    isa = select_isa()
    issue, (rows, vectors) = core(isa), isa.tile()
    peak = 2 * issue.arithmetic * isa.lanes("float32")
    hertz = fma_ceiling("float32", 1).work / seconds["ceiling"] / peak
    near, far = (seconds[f"products of {tiles}"] * hertz / REPEATS for tiles in (NEAR, FAR))
    ideal = rows * vectors * (HEAD_DIM / issue.arithmetic + 1 / issue.stores)
    few, more = (seconds[f"call of {keys}"] * hertz for keys in (FEW_KEYS, MORE_KEYS))
    panels = ROWS / (vectors * isa.lanes("float32"))
    return {
        "loop_end": near - ideal,
        "line_l2": (far - near) / (rows * HEAD_DIM * 4 / LINE),
        "panel": (few - FEW_KEYS * (more - few) / (MORE_KEYS - FEW_KEYS)) / panels,
        "shared_latency": seconds[f"loads of {SHARED}"] * hertz / LOADS,
        "memory_latency": seconds[f"loads of {MEMORY}"] * hertz / LOADS,
        "gigahertz": hertz / 1e9,
    }


Rounds = Annotated[int, typer.Option(min=1, help="Interleaved rounds.")]
Json = Annotated[Path | None, typer.Option("--json", help="Where to write all samples.")]


def main(rounds: Rounds = 15, json: Json = None) -> None:
    """Measure the constants and write all samples."""
    prepared = environment.prepare(1)
    from bench import timing

    plan = timing.Plan(1, rounds, 0.02)
    samples = timing.measure(calls(), plan)
    seconds = {
        name: median(plan.seconds(s) for s in plan.usable(own)) for name, own in samples.items()
    }
    found = figures(seconds)
    document = {
        "schema": SCHEMA,
        "environment": environment.describe(prepared),
        "cycles": found,
        "samples": {name: [asdict(s) for s in own] for name, own in samples.items()},
    }
    path = json or environment.local_result("constants")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json_module.dumps(document, indent=1) + "\n", encoding="utf-8")
    for name, value in found.items():
        Console().print(f"{name:10} {value:8.2f}", highlight=False)
    Console().print(f"all samples: {path}", highlight=False)


if __name__ == "__main__":
    typer.run(main)
