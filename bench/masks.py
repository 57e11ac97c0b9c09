"""Cost of classifying all tiles of a million queries by a million keys, for every built-in mask.

Use: python -m bench.masks

CPU time of this process, best of several; memory is the peak of what Python allocates meanwhile.
The bars are 10 ms and 1 MiB.
"""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable

import numpy as np

from sdpakit import AttentionSpec
from sdpakit.ir.build import build
from sdpakit.masks import Causal, Dense, Dilated, Document, Mask, Prefix, Window
from sdpakit.passes import run_pipeline
from sdpakit.passes.tilemap import Sizes, TileMap, tile_map

LENGTH = 1_000_000
Q_TILE, K_TILE = 128, 192

BUILT_IN: dict[str, Mask | None] = {
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
}


def _tables() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    ids = np.sort(rng.integers(0, 1000, LENGTH)).astype(np.int32)
    return {
        "doc": ids[None],
        "mixed": rng.permutation(1000).astype(np.int32)[ids][None],
        "prefix": np.array([70_000]),
        "mask": rng.random((1, 1, 1, LENGTH)) < 0.5,
    }


def million(name: str) -> Callable[[], TileMap]:
    """Return a function that classifies all tiles of one head under a built-in mask.

    Parameters
    ----------
    name : str
        Key of `BUILT_IN`.

    Returns
    -------
    callable
        Gives the counts; holds the tables, so that they are not part of what a call costs.
    """
    program, scalars = build(AttentionSpec(q_heads=1, head_dim=64, mask=BUILT_IN[name]))
    program = run_pipeline(program)
    wanted = {table.name for table in program.tables()}
    tables = {key: table for key, table in _tables().items() if key in wanted}
    length = np.array([LENGTH])
    sizes = Sizes(1, LENGTH, LENGTH, length, length, np.array([-12_345]))
    return lambda: tile_map(program, sizes, scalars, tables, q_tile=Q_TILE, k_tile=K_TILE)


def main() -> None:
    """Print one line for each mask."""
    print(f"{LENGTH:,} x {LENGTH:,}, tiles of {Q_TILE} x {K_TILE}, one head")
    print(f"{'mask':<28}{'ms':>8}{'MiB':>7}{'empty':>13}{'full':>13}{'partial':>13}")
    for name in BUILT_IN:
        count = million(name)
        seconds = min(_seconds(count) for _ in range(15))
        tracemalloc.start()
        found = count()
        peak = tracemalloc.get_traced_memory()[1] / 2**20
        tracemalloc.stop()
        print(
            f"{name:<28}{seconds * 1e3:>8.2f}{peak:>7.2f}"
            f"{found.empty:>13,}{found.full:>13,}{found.partial:>13,}"
        )


def _seconds(run: Callable[[], TileMap]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


if __name__ == "__main__":
    main()
