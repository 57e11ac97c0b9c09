"""Facts of the machine that the cost model starts from: cache sizes, and what a core can issue.

Nothing here is timed. Cache sizes are what the system says, or stated fallbacks. What a core issues
is a table by instruction set, as no system says it: from the instruction tables of uops.info and
the optimization manuals of Intel and AMD.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sdpakit.backends.numba_cpu.isa import Isa

LINE = 64  # bytes of a cache line

_SYSFS = Path("/sys/devices/system/cpu/cpu0/cache")
_MOST_CACHES = 8  # that Linux is asked for: L1 for data and for instructions, L2, L3 are four
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_SYSCTL = ("hw.l1dcachesize", "hw.l2cachesize", "hw.l3cachesize")


@dataclass(frozen=True, slots=True)
class Caches:
    """Bytes of the data caches that one core sees.

    Attributes
    ----------
    l1, l2, l3 : int
        Sizes; l3 is what all cores share.
    source : str
        Where they come from.
    """

    l1: int
    l2: int
    l3: int
    source: str


# What a system that says nothing is taken for: small caches, so that tiles fit into larger ones.
FALLBACK = Caches(32 << 10, 512 << 10, 8 << 20, "assumed")


@dataclass(frozen=True, slots=True)
class Core:
    """What a core starts in a cycle, in instructions on vectors of one ISA.

    Attributes
    ----------
    name : str
        What it is a table of.
    issue : int
        Instructions of any kind.
    arithmetic : int
        Multiply-adds: the peak. Other float arithmetic uses the same ports.
    vector : int
        All instructions on vectors: arithmetic, logic, integers, shuffles.
    shuffles, loads, stores : int
        Of each kind.
    adds_apart : bool
        Additions, comparisons and maxima have ports of their own.
    division : tuple of (int, int)
        Cycles of one division (or square root) of a vector of float32, of float64.
    window : int
        Instructions in flight.
    latency : int
        Cycles of a multiply-add, and about of any other arithmetic.
    """

    name: str
    issue: int
    arithmetic: int
    vector: int
    shuffles: int
    loads: int
    stores: int
    adds_apart: bool
    division: tuple[int, int]
    window: int
    latency: int


_CORES = {
    "avx512": Core("Skylake server", 4, 2, 2, 1, 2, 1, False, (10, 16), 224, 4),
    "avx2": Core("Skylake", 4, 2, 3, 1, 2, 1, False, (5, 8), 224, 4),
    "znver": Core("Zen 3", 6, 2, 4, 2, 2, 1, True, (6, 8), 256, 4),
    "neon": Core("Neoverse N1", 4, 2, 2, 2, 2, 1, False, (7, 10), 128, 4),
    "baseline": Core("Skylake", 4, 2, 3, 1, 2, 1, False, (3, 4), 224, 4),
}


def core(isa: Isa) -> Core:
    """Return what a core is taken to issue when it runs code of an ISA."""
    zen = isa.name == "avx2" and isa.cpu.startswith("znver")
    return _CORES["znver" if zen else isa.name]


@functools.cache
def caches() -> Caches:
    """Return the caches of this machine: asked once, so that all code of a process agrees."""
    linux = dict(_sysfs_sizes(_SYSFS))
    sizes = linux or dict(_sysctl_sizes())
    if 1 not in sizes or 2 not in sizes:
        return FALLBACK
    source = str(_SYSFS) if linux else "sysctl"
    return Caches(sizes[1], sizes[2], sizes.get(3, sizes[2]), source)


def _sysfs_sizes(folder: Path) -> Iterator[tuple[int, int]]:
    """Yield (level, bytes) of the data caches that Linux describes in a folder."""
    for number in range(_MOST_CACHES):
        index = folder / f"index{number}"
        level, kind, size = (_text(index / name) for name in ("level", "type", "size"))
        found = re.fullmatch(r"(\d+)([KMG]?)", size)
        if kind in ("Data", "Unified") and level.isdecimal() and found and int(found[1]):
            yield int(level), int(found[1]) * _UNITS[found[2]]


def _text(path: Path) -> str:
    """Return what a file says; nothing if it is missing, unreadable, or no text."""
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def _sysctl_sizes() -> Iterator[tuple[int, int]]:
    """Yield (level, bytes) of the data caches that macOS describes."""
    if os.name != "posix":  # there is no library of the process itself to look into
        return
    ask = getattr(ctypes.CDLL(None), "sysctlbyname", None)
    if ask is None:
        return
    for level, name in enumerate(_SYSCTL, 1):
        value, size = ctypes.c_int64(0), ctypes.c_size_t(8)
        failed = ask(name.encode(), ctypes.byref(value), ctypes.byref(size), None, 0)
        if not failed and value.value > 0:
            yield level, value.value
