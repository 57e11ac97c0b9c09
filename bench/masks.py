"""Cost of classifying all tiles of a million queries by a million keys: built-in masks, and joined.

Use: `python -m bench.masks`. Processor time, and the peak of what Python allocates meanwhile. The
same masks are classified over fewer keys first, and the counts held against the pairs one by one.
"""

from __future__ import annotations

import shlex
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from bench import environment
from bench.calm import Probe
from bench.figures import Figure, Record, calm_of, typical
from sdpakit import AttentionSpec
from sdpakit.ir.build import build
from sdpakit.masks import Causal, Dense, Dilated, Document, Mask, Prefix, Window
from sdpakit.passes import run_pipeline
from sdpakit.passes.tilemap import Sizes, TileMap, tile_map

Array = np.ndarray[Any, np.dtype[Any]]

LENGTH = 1_000_000
CHECKED_LENGTH = 6000
Q_TILE, K_TILE = 128, 192
MILLISECONDS, MEGABYTES = 10.0, 1.0
_REPEATS = 15

MASKS: dict[str, Mask | None] = {
    "none": None,
    "causal, top_left": Causal("top_left"),
    "causal, bottom_right": Causal("bottom_right"),
    "causal, offset": Causal("offset"),
    "window": Window(1024, 64, "bottom_right"),
    "window, one side": Window(1024, None, "top_left"),
    "prefix": Prefix(5000),
    "prefix, one for each entry": Prefix("prefix"),
    "documents, ascending": Document(),
    "documents in any order": Document("mixed"),
    "dilated": Dilated(7, "top_left"),
    "dense, one row for all": Dense(),
    "causal & window": Causal("top_left") & Window(4096, 0, "top_left"),
    "causal & documents": Causal("top_left") & Document(),
    "causal | prefix": Causal("top_left") | Prefix(5000),
    "sink + window": Window(1024, 0, "top_left") | Prefix(4),
    "sink + window, bottom_right": Window(1024, 64, "bottom_right") | Prefix(5000),
    "window & prefix": Window(1024, 64, "bottom_right") & Prefix(500_000),
    "causal & (window | prefix)": Causal("top_left") & (Window(1024, 64, "top_left") | Prefix(4)),
    "not window": ~Window(1024, 64, "bottom_right"),
    "documents & (window | prefix)": Document() & (Window(1024, 64, "top_left") | Prefix(4)),
    "not (window | prefix | documents)": ~(
        Window(1024, 0, "bottom_right") | Prefix(4) | Document()
    ),
    "window | dilated": Window(1024, 0, "top_left") | Dilated(7, "top_left"),
}

# What masks show, of rows q and keys k; documents are ids in ascending order.
TRUTH: dict[str, Callable[[Array, Array, Array], Array]] = {
    "causal, top_left": lambda q, k, _: k <= q,
    "window": lambda q, k, _: (k >= q - 1024) & (k <= q + 64),
    "prefix": lambda q, k, _: (k < 5000) & (q >= 0),
    "documents, ascending": lambda q, k, ids: ids[q] == ids[k],
    "sink + window": lambda q, k, _: ((k >= q - 1024) & (k <= q)) | (k < 4),
    "dilated": lambda q, k, _: (q - k) % 7 == 0,
    "causal & (window | prefix)": lambda q, k, _: (k <= q) & ((k >= q - 1024) | (k < 4)),
    "not window": lambda q, k, _: (k < q - 1024) | (k > q + 64),
    "documents & (window | prefix)": lambda q, k, ids: (
        (ids[q] == ids[k]) & (((k >= q - 1024) & (k <= q + 64)) | (k < 4))
    ),
    "not (window | prefix | documents)": lambda q, k, ids: (
        ((k < q - 1024) | (k > q)) & (k >= 4) & (ids[q] != ids[k])
    ),
    "window | dilated": lambda q, k, _: ((k >= q - 1024) & (k <= q)) | ((q - k) % 7 == 0),
}
EXACT = (
    "causal, top_left",
    "window",
    "prefix",
    "documents, ascending",
    "sink + window",
    "causal & (window | prefix)",
    "not window",
)


def _tables(length: int) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    ids = np.sort(rng.integers(0, max(length // 1000, 1), length)).astype(np.int32)
    return {
        "doc": ids[None],
        "mixed": rng.permutation(1000).astype(np.int32)[ids][None],
        "prefix": np.array([70_000]),
        "mask": rng.random((1, 1, 1, length)) < 0.5,
    }


def million(name: str) -> Callable[[], TileMap]:
    """Return a function that classifies a million by a million; see `classifier`."""
    return classifier(name, LENGTH)


def classifier(name: str, length: int) -> Callable[[], TileMap]:
    """Return a function that classifies all tiles of one head under a built-in mask.

    Parameters
    ----------
    name : str
        Key of `MASKS`.
    length : int
        Rows and keys, at most a million.

    Returns
    -------
    callable
        Gives the counts; holds the tables, so that they are not part of what a call costs.
    """
    program, scalars = build(AttentionSpec(q_heads=1, head_dim=64, mask=MASKS[name]))
    program = run_pipeline(program)
    wanted = {table.name for table in program.tables()}
    tables = {key: table for key, table in _tables(length).items() if key in wanted}
    whole = np.array([length])
    sizes = Sizes(1, length, length, whole, whole, np.array([-12_345]))
    return lambda: tile_map(program, sizes, scalars, tables, q_tile=Q_TILE, k_tile=K_TILE)


def excess(name: str) -> tuple[int, int]:
    """Return how many tiles too many count as decided, and how many count as partial for nothing.

    Of `CHECKED_LENGTH` rows and keys. The first is 0 for a sound analysis, the second as well for
    an exact one.
    """
    found = classifier(name, CHECKED_LENGTH)()
    k = np.arange(CHECKED_LENGTH)
    ids = _tables(CHECKED_LENGTH)["doc"][0]
    empty = full = total = 0
    for start in range(0, CHECKED_LENGTH, Q_TILE):
        shown = TRUTH[name](k[start : start + Q_TILE, None], k[None], ids)
        counts = np.add.reduceat(shown.sum(axis=0), np.arange(0, len(k), K_TILE))
        sizes = shown.shape[0] * np.diff([*range(0, len(k), K_TILE), len(k)])
        empty += int((counts == 0).sum())
        full += int((counts == sizes).sum())
        total += len(counts)
    beyond = max(0, found.empty - empty) + max(0, found.full - full) + abs(found.total - total)
    return beyond, max(0, empty - found.empty) + max(0, full - found.full)


def figures_of(name: str, neighbours: Probe) -> list[Figure]:
    """Return time, memory and mistakes of one mask of `MASKS`."""
    count = million(name)
    milliseconds, slowdowns = [], []
    for _ in range(_REPEATS):
        slowdown = neighbours.wait()
        milliseconds.append(1e3 * _seconds(count))
        slowdowns.append(max(slowdown, neighbours.slowdown()))
    tracemalloc.start()
    found = count()
    peak = tracemalloc.get_traced_memory()[1] / 1e6
    tracemalloc.stop()
    detail = {"empty": found.empty, "full": found.full, "partial": found.partial}
    figures = [
        Figure(
            name,
            "ms",
            typical(milliseconds, slowdowns),
            None,
            MILLISECONDS,
            milliseconds,
            detail,
            calm=calm_of(slowdowns),
        ),
        Figure(f"{name}: memory", "MB", peak, None, MEGABYTES, [peak], detail),
    ]
    if name in TRUTH:
        beyond, partial = (float(count) for count in excess(name))
        title = f"{name}: tiles decided wrongly"
        figures.append(Figure(title, "", beyond, 0.0, 0.0, [beyond], detail))
        limit = 0.0 if name in EXACT else None
        title = f"{name}: tiles left partial for nothing"
        figures.append(Figure(title, "", partial, None, limit, [partial], detail))
    return figures


def _seconds(run: Callable[[], TileMap]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


Json = Annotated[Path | None, typer.Option("--json", help="Where to write all samples.")]
Require = Annotated[str | None, typer.Option(help="Fail unless kept at this level: floor, goal.")]


def main(json: Json = None, require: Require = None) -> None:
    """Classify all tiles of a million queries by a million keys under every built-in mask."""
    if require not in (None, "floor", "goal"):
        raise typer.BadParameter(f"require: got {require!r}\n  allowed: floor, goal")
    command = shlex.join(["python", "-m", "bench.masks", *sys.argv[1:]])
    record, neighbours = Record(environment.prepare(1), command), Probe()
    figures = [figure for name in MASKS for figure in figures_of(name, neighbours)]
    sys.exit(record.finish(figures, json or environment.local_result("masks"), require))


if __name__ == "__main__":
    typer.run(main)
