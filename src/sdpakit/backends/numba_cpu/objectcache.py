"""Object code on disk, never a reason to fail.

Entries are checked when read and replaced as a whole when written. An entry is a header with the
digest of its content, then the content. A directory that cannot be written and a full disk mean "no
cache", with one `CacheWarning` a process; an entry that does not match its digest is treated as
missing.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import tempfile
import warnings
from pathlib import Path

from sdpakit.errors import CacheWarning

DIRECTORY_VARIABLE = "SDPAKIT_CACHE_DIR"
SWITCH_VARIABLE = "SDPAKIT_CACHE"

_MAGIC = b"sdpakit-object-1\n"
_DIGEST_BYTES = 32
_warned: set[str] = set()


def directory() -> Path | None:
    """Return where entries are kept, None if the cache is switched off (`SDPAKIT_CACHE=0`)."""
    if os.environ.get(SWITCH_VARIABLE) == "0":
        return None
    named = os.environ.get(DIRECTORY_VARIABLE)
    if named:
        return Path(named) / "cpu"
    home = Path.home()
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = home / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache")
    return base / "sdpakit" / "cpu"


def _warn_once(place: Path, error: OSError) -> None:
    if str(place) not in _warned:
        _warned.add(str(place))
        warnings.warn(
            f"compiled kernels are not kept: {place} cannot be used ({error}); "
            f"set {DIRECTORY_VARIABLE} to a directory that can be written, or {SWITCH_VARIABLE}=0",
            CacheWarning,
            stacklevel=2,
        )


def read(key: str) -> bytes | None:
    """Return the content of an entry, None if it is missing or damaged."""
    place = directory()
    if place is None:
        return None
    try:
        data = (place / f"{key}.o").read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        _warn_once(place, error)
        return None
    head = len(_MAGIC) + _DIGEST_BYTES
    content = data[head:]
    expected = _MAGIC + hashlib.sha256(content).digest()
    return content if data[:head] == expected and content else None


def write(key: str, content: bytes) -> None:
    """Keep an entry; readers see all of it or nothing."""
    place = directory()
    if place is None:
        return
    temporary: Path | None = None
    try:
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=place, prefix=f"{key[:16]}.", delete=False) as file:
            temporary = Path(file.name)
            file.write(_MAGIC + hashlib.sha256(content).digest() + content)
        temporary.replace(place / f"{key}.o")
    except OSError as error:
        if temporary is not None:
            with contextlib.suppress(OSError):
                temporary.unlink()
        _warn_once(place, error)
