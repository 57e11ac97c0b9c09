"""`sdpakit cache`: the compiled code that is kept on disk."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from sdpakit.backends import diskcache
from sdpakit.backends.diskcache import DiskCache
from sdpakit.backends.gpu import cubincache
from sdpakit.backends.numba_cpu import objectcache

_CACHES = (objectcache.CACHE, cubincache.CACHE)


def show(console: Console) -> None:
    """Print where compiled code is kept, how much there is, and whether more can be added.

    Parameters
    ----------
    console : rich.console.Console
        Where to print.
    """
    for cache, place in _places(console):
        entries = cache.entries(place)
        size = sum(path.stat().st_size for path in entries)
        console.print(f"directory  {place}", soft_wrap=True)
        console.print(f"entries    {len(entries)}, {_amount(size)}")
        console.print(f"state      {_state(place)}", soft_wrap=True, markup=False)


def clear(console: Console) -> bool:
    """Remove all compiled code; kernels that are loaded keep theirs.

    Parameters
    ----------
    console : rich.console.Console
        Where to print.

    Returns
    -------
    bool
        False if something could not be removed.
    """
    done = [_clear(cache, place, console) for cache, place in _places(console)]
    return all(done)


def _clear(cache: DiskCache, place: Path, console: Console) -> bool:
    try:
        count, size = cache.clear(place)
    except OSError as error:
        console.print(f"[red]{place} could not be cleared[/]: {error}", soft_wrap=True)
        return False
    console.print(f"removed {count} files, {_amount(size)}, from {place}", soft_wrap=True)
    return True


def _places(console: Console) -> Iterator[tuple[DiskCache, Path]]:
    """Yield the caches with their directories; where there are none, say once why."""
    for cache in _CACHES:
        try:
            place = cache.directory()
        except RuntimeError as error:
            console.print(
                f"nothing is kept: {error}; set {diskcache.DIRECTORY_VARIABLE} to a directory"
            )
            return
        if place is None:
            console.print(f"nothing is kept: {diskcache.SWITCH_VARIABLE}=0 switches the cache off")
            return
        yield cache, place


def _state(place: Path) -> str:
    """Say whether entries can be added, by adding one: no permission says it for all systems."""
    there = next(path for path in (place, *place.parents) if path.exists())
    if not there.is_dir():
        return f"cannot be used: {there} is no directory"
    try:
        _try_to_add(place)
    except OSError as error:
        if there == place:
            return f"read-only: what it holds is used, and nothing is added ({error})"
        return (
            f"cannot be used ({error}); "
            f"set {diskcache.DIRECTORY_VARIABLE} to a directory that can be written"
        )
    return "ready"


def _try_to_add(place: Path) -> None:
    """Write and remove a file as the cache would, and the directories that it needs above it."""
    missing = [path for path in (place, *place.parents) if not path.exists()]
    try:
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"0")
    finally:
        for path in missing:
            if path.is_dir():
                path.rmdir()


def _amount(size: int) -> str:
    return f"{size / 2**20:.1f} MiB" if size >= 2**20 else f"{size / 2**10:.1f} KiB"
