"""Which sources have a say in IR text, and whether they still are what this process has loaded.

Their digest is part of the keys of kept code, so that an edited checkout never finds the code of an
earlier one.
"""

from __future__ import annotations

import functools
import hashlib
import os
from pathlib import Path

from sdpakit import LOADED_AT

_PACKAGE = Path(__file__).parents[2]

# All that the emitter imports; a test looks for what is missing here.
PARTS = (
    *("backends/numba_cpu", "expr", "ir", "passes"),
    *("backends/__init__.py", "backends/base.py", "backends/diskcache.py", "__init__.py"),
    *("calling.py", "dtypes.py"),
    *("errors.py", "lints.py", "logits.py", "masks.py", "plain_numbers.py", "spec.py"),
)

# A file that was changed just after it was loaded may bear a time from just before: the clocks of
# file systems go in steps of some milliseconds.
_CLOCK_STEP = 20_000_000  # nanoseconds


def paths() -> tuple[Path, ...]:
    """Return the files, in a fixed order."""
    found: list[Path] = []
    for part in PARTS:
        place = _PACKAGE / part
        found += [place] if place.suffix else sorted(place.rglob("*.py"))
    return tuple(found)


_paths = functools.cache(paths)


def digest() -> str | None:
    """Return the digest of the sources of the loaded modules.

    Returns
    -------
    str or None
        None where nobody can tell: there are no such files, or some of them may have changed since
        this process loaded them.
    """
    try:
        if any(_changed(path.stat()) for path in _paths()):
            return None
        return _digest()
    except OSError:  # an archive, or modules without sources
        return None


def _changed(status: os.stat_result) -> bool:
    newest = max(status.st_mtime_ns, status.st_ctime_ns)  # Windows has no time of a change in ctime
    return newest > LOADED_AT - _CLOCK_STEP


@functools.cache
def _digest() -> str:
    """Return the digest of the contents of all files."""
    content = hashlib.sha256()
    for path in _paths():
        data = path.read_bytes()
        content.update(b"%d\n" % len(data) + data)
    return content.hexdigest()
