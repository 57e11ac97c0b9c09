"""Object code on disk, and the names under which it is found; never a reason to fail.

Entries are checked when read and replaced as a whole when written. An entry is a header with the
digest of its key and its content, then the content. No home, a directory that cannot be written and
a full disk mean "no cache", with one `CacheWarning` a process; what does not match its digest, and
what is no regular file, is treated as missing.
"""

from __future__ import annotations

import contextlib
import enum
import hashlib
import os
import re
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from sdpakit.errors import CacheWarning, warn_user

DIRECTORY_VARIABLE = "SDPAKIT_CACHE_DIR"
SWITCH_VARIABLE = "SDPAKIT_CACHE"

_MAGIC = b"sdpakit-object-2\n"
_DIGEST_BYTES = 32
_ENTRY = re.compile(r"[0-9a-f]{64}\.(o|name)")
_UNFINISHED = re.compile(r"[0-9a-f]{16}\..+")
# A file that was begun so long ago, in seconds, is one that nobody will finish.
_ABANDONED = 3600.0
_warned: set[str] = set()


class Kind(enum.Enum):
    """What an entry holds: object code, or the key of an entry with object code."""

    OBJECT = "o"
    NAME = "name"


def directory() -> Path | None:
    """Return where entries are kept, None if the cache is switched off (`SDPAKIT_CACHE=0`).

    Raises
    ------
    RuntimeError
        If the user has no home directory and no variable names another place.
    """
    if os.environ.get(SWITCH_VARIABLE) == "0":
        return None
    named = os.environ.get(DIRECTORY_VARIABLE)
    return Path(named) / "cpu" if named else _platform_directory() / "sdpakit" / "cpu"


def _platform_directory() -> Path:
    """Return where a user's programs keep what they can make again."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    named = os.environ.get("LOCALAPPDATA" if sys.platform == "win32" else "XDG_CACHE_HOME")
    if named:
        return Path(named)
    local = ("AppData", "Local") if sys.platform == "win32" else (".cache",)
    return Path.home().joinpath(*local)


def _usable_directory() -> Path | None:
    """Return `directory()`, None with a warning where there is no home."""
    try:
        return directory()
    except RuntimeError as error:  # containers run with user ids that nobody has named
        _warn_once("the user's cache directory", error)
        return None


def _warn_once(place: str, error: Exception) -> None:
    if place not in _warned:
        _warned.add(place)
        warn_user(
            f"compiled kernels are not kept: {place} cannot be used ({error}); "
            f"set {DIRECTORY_VARIABLE} to a directory that can be written, or {SWITCH_VARIABLE}=0",
            CacheWarning,
        )


def _header(key: str, content: bytes) -> bytes:
    """Return what binds a content to its key, so that an entry under another name is not taken."""
    return _MAGIC + hashlib.sha256(key.encode() + b"\0" + content).digest()


def _regular_bytes(path: Path) -> bytes:
    """Return the bytes of a file, none if it is a pipe, a device or a directory."""
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
    descriptor = os.open(path, flags)  # without O_NONBLOCK a pipe that nobody writes to would block
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return b""
        with open(descriptor, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(descriptor)


def read(key: str, kind: Kind = Kind.OBJECT) -> bytes | None:
    """Return the content of an entry, None if it is missing or damaged."""
    place = _usable_directory()
    if place is None:
        return None
    try:
        data = _regular_bytes(place / f"{key}.{kind.value}")
    except FileNotFoundError:
        return None
    except OSError as error:
        _warn_once(str(place), error)
        return None
    head = len(_MAGIC) + _DIGEST_BYTES
    content = data[head:]
    return content if data[:head] == _header(key, content) else None


def write(key: str, content: bytes, kind: Kind = Kind.OBJECT) -> None:
    """Keep an entry; readers see all of it or nothing."""
    place = _usable_directory()
    if place is None:
        return
    temporary: Path | None = None
    try:
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=place, prefix=f"{key[:16]}.", delete=False) as file:
            temporary = Path(file.name)
            file.write(_header(key, content) + content)
        temporary.replace(place / f"{key}.{kind.value}")
    except OSError as error:
        if temporary is not None:
            with contextlib.suppress(OSError):
                temporary.unlink()
        _warn_once(str(place), error)


def entries(place: Path) -> list[Path]:
    """Return the files of all entries in a directory, [] where there is none."""
    return [path for path in _files(place) if _ENTRY.fullmatch(path.name)]


def clear(place: Path) -> tuple[int, int]:
    """Remove every entry of a directory, and what writers that died have left there.

    Whoever has loaded an entry keeps it. Other files are not touched.

    Returns
    -------
    int, int
        Number and bytes of the files that were removed.

    Raises
    ------
    OSError
        If one cannot be removed.
    """
    count = size = 0
    for path in _files(place):
        with contextlib.suppress(FileNotFoundError):  # another process was faster
            status = path.stat()
            is_old = time.time() - status.st_mtime > _ABANDONED
            if _ENTRY.fullmatch(path.name) or (_UNFINISHED.fullmatch(path.name) and is_old):
                path.unlink()
                count, size = count + 1, size + status.st_size
    return count, size


def _files(place: Path) -> Iterator[Path]:
    if place.is_dir():
        yield from sorted(path for path in place.iterdir() if path.is_file())
