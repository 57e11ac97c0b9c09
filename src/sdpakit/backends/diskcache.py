"""Compiled code on disk, for every backend that keeps some; never a reason to fail.

Entries are checked when read and replaced as a whole when written. An entry is a header with the
digest of its key and its content, then the content. No home, a directory that cannot be written and
a full disk mean "no cache", with one `CacheWarning` a process; what does not match its digest, and
what is no regular file, is treated as missing.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sdpakit.errors import CacheWarning, warn_user

DIRECTORY_VARIABLE = "SDPAKIT_CACHE_DIR"
SWITCH_VARIABLE = "SDPAKIT_CACHE"

_DIGEST_BYTES = 32
_KEY = r"[0-9a-f]{64}"
_UNFINISHED = re.compile(r"[0-9a-f]{16}\..+")
# A file that was begun so long ago, in seconds, is one that nobody will finish.
_ABANDONED = 3600.0
_warned: set[str] = set()


@dataclass(frozen=True, slots=True)
class DiskCache:
    """The entries of one backend, in a folder of their own.

    Attributes
    ----------
    folder : str
        Name below the directory of all caches.
    magic : bytes
        What entries begin with; another form of their content has another.
    endings : tuple of str
        Kinds of entries, as endings of file names.
    """

    folder: str
    magic: bytes
    endings: tuple[str, ...]

    def directory(self) -> Path | None:
        """Return where entries are kept, None if caches are switched off (`SDPAKIT_CACHE=0`).

        Raises
        ------
        RuntimeError
            If the user has no home directory and no variable names another place.
        """
        if os.environ.get(SWITCH_VARIABLE) == "0":
            return None
        named = os.environ.get(DIRECTORY_VARIABLE)
        return (Path(named) if named else _platform_directory() / "sdpakit") / self.folder

    def read(self, key: str, ending: str) -> bytes | None:
        """Return the content of an entry, None if it is missing or damaged."""
        place = self._usable_directory()
        if place is None:
            return None
        try:
            data = _regular_bytes(place / f"{key}.{ending}")
        except FileNotFoundError:
            return None
        except OSError as error:
            _warn_once(str(place), error)
            return None
        head = len(self.magic) + _DIGEST_BYTES
        content = data[head:]
        return content if data[:head] == self._header(key, content) else None

    def write(self, key: str, content: bytes, ending: str) -> None:
        """Keep an entry; readers see all of it or nothing."""
        place = self._usable_directory()
        if place is None:
            return
        temporary: Path | None = None
        try:
            place.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(
                dir=place, prefix=f"{key[:16]}.", delete=False
            ) as file:
                temporary = Path(file.name)
                file.write(self._header(key, content) + content)
            temporary.replace(place / f"{key}.{ending}")
        except OSError as error:
            if temporary is not None:
                with contextlib.suppress(OSError):
                    temporary.unlink()
            _warn_once(str(place), error)

    def entries(self, place: Path) -> list[Path]:
        """Return the files of all entries in a directory, [] where there is none."""
        return [path for path in _files(place) if self._is_entry(path)]

    def clear(self, place: Path) -> tuple[int, int]:
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
                if self._is_entry(path) or (_UNFINISHED.fullmatch(path.name) and is_old):
                    path.unlink()
                    count, size = count + 1, size + status.st_size
        return count, size

    def _usable_directory(self) -> Path | None:
        """Return `directory()`, None with a warning where there is no home."""
        try:
            return self.directory()
        except RuntimeError as error:  # containers run with user ids that nobody has named
            _warn_once("the user's cache directory", error)
            return None

    def _header(self, key: str, content: bytes) -> bytes:
        """Return what binds a content to its key: an entry under another name is not taken."""
        return self.magic + hashlib.sha256(key.encode() + b"\0" + content).digest()

    def _is_entry(self, path: Path) -> bool:
        return bool(re.fullmatch(rf"{_KEY}\.({'|'.join(self.endings)})", path.name))


def _platform_directory() -> Path:
    """Return where a user's programs keep what they can make again."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    named = os.environ.get("LOCALAPPDATA" if sys.platform == "win32" else "XDG_CACHE_HOME")
    if named:
        return Path(named)
    local = ("AppData", "Local") if sys.platform == "win32" else (".cache",)
    return Path.home().joinpath(*local)


def _warn_once(place: str, error: Exception) -> None:
    if place not in _warned:
        _warned.add(place)
        warn_user(
            f"compiled kernels are not kept: {place} cannot be used ({error}); "
            f"set {DIRECTORY_VARIABLE} to a directory that can be written, or {SWITCH_VARIABLE}=0",
            CacheWarning,
        )


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


def _files(place: Path) -> Iterator[Path]:
    if place.is_dir():
        yield from sorted(path for path in place.iterdir() if path.is_file())
