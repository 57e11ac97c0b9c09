"""Facts of this machine and of the packages that matter here; unknown facts are left out."""

from __future__ import annotations

import os
import platform
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from sdpakit import __version__
from sdpakit.binding.threads import usable_cores

# Vector extensions that decide which code is emitted, in the words of the kernel of Linux.
_EXTENSIONS = ("avx2", "fma", "f16c", "avx512f", "avx512_bf16", "avx512_fp16", "amx_tile", "asimd")
_PACKAGES = ("numpy", "numba", "llvmlite", "ml_dtypes", "torch")


def facts() -> dict[str, str]:
    """Return facts of the machine by name, as text.

    Returns
    -------
    dict of str to str
        Only what could be found out.
    """
    found = {
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "processor": _cpu_field("model name"),
        "cores": f"{usable_cores()} usable of {os.cpu_count()}",
        "vector extensions": _extensions(),
        "caches": _caches(),
    }
    return {name: text for name, text in found.items() if text}


def packages() -> dict[str, str]:
    """Return the installed versions of the packages that matter here.

    Returns
    -------
    dict of str to str
        Name -> version, or "not installed".
    """
    return {"sdpakit": __version__, **{name: _version(name) for name in _PACKAGES}}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _cpu_field(field: str) -> str:
    text = _read(Path("/proc/cpuinfo"))
    match = re.search(rf"^{field}\s*:\s*(.*)$", text, re.MULTILINE)
    return match[1].strip() if match else ""


def _extensions() -> str:
    present = set((_cpu_field("flags") or _cpu_field("Features")).split())
    return " ".join(name for name in _EXTENSIONS if name in present)


def _caches() -> str:
    found = []
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        level, kind, size = (_read(index / name).strip() for name in ("level", "type", "size"))
        if kind != "Instruction" and size:
            found.append(f"L{level} {size}")
    return ", ".join(found)


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""
