"""`sdpakit cache`: the compiled code that is kept on disk."""

from __future__ import annotations

import tempfile
from pathlib import Path

from rich.console import Console

from sdpakit.backends.numba_cpu import objectcache


def show(console: Console) -> None:
    """Print where compiled code is kept, how much there is, and whether more can be added.

    Parameters
    ----------
    console : rich.console.Console
        Where to print.
    """
    place = _place(console)
    if place is None:
        return
    entries = objectcache.entries(place)
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
    place = _place(console)
    if place is None:
        return True
    try:
        count, size = objectcache.clear(place)
    except OSError as error:
        console.print(f"[red]{place} could not be cleared[/]: {error}", soft_wrap=True)
        return False
    console.print(f"removed {count} files, {_amount(size)}, from {place}", soft_wrap=True)
    return True


def _place(console: Console) -> Path | None:
    try:
        place = objectcache.directory()
    except RuntimeError as error:
        console.print(
            f"nothing is kept: {error}; set {objectcache.DIRECTORY_VARIABLE} to a directory"
        )
        return None
    if place is None:
        console.print(f"nothing is kept: {objectcache.SWITCH_VARIABLE}=0 switches the cache off")
    return place


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
            f"set {objectcache.DIRECTORY_VARIABLE} to a directory that can be written"
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
