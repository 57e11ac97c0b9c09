"""What a run is made in: threads and core, and the facts that a reader of results needs.

Nothing here imports NumPy, since libraries read their thread counts once, while they are loaded.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "NUMBA_NUM_THREADS",
)

# Set on some hosts for the sake of old OpenBLAS builds; together they make a current one use slower
# kernels, which would flatter us against NumPy.
_OPENBLAS_OVERRIDES = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")

_PACKAGES = ("sdpakit", "numpy", "numba", "llvmlite", "ml_dtypes", "torch", "onnxruntime", "onnx")


@dataclass(frozen=True, slots=True)
class Preparation:
    """What `prepare` did to the process.

    Attributes
    ----------
    threads : int
        Threads that every target is told to use.
    cores : list of int
        Cores that the process may run on.
    removed : dict of str to str
        Variables that were taken out of the environment, with their values.
    in_time : bool
        False where NumPy had been imported before, so that its BLAS may not have followed.
    """

    threads: int
    cores: list[int]
    removed: dict[str, str]
    in_time: bool


def prepare(threads: int, core: int | None = None) -> Preparation:
    """Fix the threads of every library and, for one thread, pin the process to one core.

    Parameters
    ----------
    threads : int
        Threads of every target.
    core : int or None
        Core for a run of one thread; None takes the last one that the process may use, since
        interrupts and other work tend to sit on the first.

    Returns
    -------
    Preparation
        What was done, for the record.
    """
    for name in _THREAD_VARIABLES:
        os.environ[name] = str(threads)
    removed = {name: os.environ.pop(name) for name in _OPENBLAS_OVERRIDES if name in os.environ}
    if threads == 1 and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0)) if core is None else core})
    return Preparation(threads, available_cores(), removed, "numpy" not in sys.modules)


def share_cores(count: int) -> None:
    """Keep this process and its children on so many cores, the last ones.

    Raises
    ------
    RuntimeError
        If there are fewer.
    """
    cores = available_cores()
    if len(cores) < count:
        raise RuntimeError(f"{count} threads need as many cores; this process may use {cores}")
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, set(cores[-count:]))


def available_cores() -> list[int]:
    """Return the cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def local_result(label: str) -> Path:
    """Return a new path under bench/results/local, a folder that stays out of the repository."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    return ROOT / "bench" / "results" / "local" / f"{stamp}-{label}.json"


def describe(preparation: Preparation) -> dict[str, Any]:
    """Return everything about machine, versions and checkout that a result depends on."""
    return {
        "machine": machine(),
        "versions": versions(),
        "git": git_state(),
        "process": asdict(preparation),
        "blas": blas_libraries(),
        "variables": {
            name: value
            for name, value in sorted(os.environ.items())
            if name in _THREAD_VARIABLES or name.startswith("SDPAKIT_")
        },
    }


def machine() -> dict[str, Any]:
    """Return the processor's name and caches, the number of cores and the system."""
    return {
        "processor": _processor_name(),
        "architecture": platform.machine(),
        "cores": os.cpu_count(),
        "caches": _caches(),
        "system": f"{platform.system()} {platform.release()}",
    }


def versions() -> dict[str, str | None]:
    """Return the versions of Python and of the packages in use; None = not installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            # A checkout on PYTHONPATH has no metadata, and may have been imported all the same.
            found[name] = getattr(sys.modules.get(name), "__version__", None)
    return found


def git_state(root: Path = ROOT) -> dict[str, Any]:
    """Return the commit and whether files differ from it; None where git cannot say."""

    def ask(*arguments: str) -> str | None:
        try:
            answer = subprocess.run(
                ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True
            )
        except (OSError, subprocess.CalledProcessError):
            return None
        return answer.stdout.strip()

    changes = ask("status", "--porcelain")
    return {"commit": ask("rev-parse", "HEAD"), "dirty": None if changes is None else bool(changes)}


def blas_libraries() -> list[Mapping[str, Any]] | None:
    """Return the loaded BLAS libraries and their kernels; None without threadpoolctl."""
    try:
        threadpoolctl = importlib.import_module("threadpoolctl")
    except ModuleNotFoundError:
        return None
    keys = ("internal_api", "version", "architecture", "num_threads")
    return [
        {key: entry.get(key) for key in keys}
        for entry in threadpoolctl.threadpool_info()
        if entry.get("user_api") == "blas"
    ]


def _processor_name() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor()
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found.group(1) if found else platform.processor()


def _caches() -> dict[str, str]:
    folder = Path("/sys/devices/system/cpu/cpu0/cache")
    caches = {}
    for entry in sorted(folder.glob("index*")):
        level, kind, size = (
            (entry / name).read_text(encoding="utf-8").strip() for name in ("level", "type", "size")
        )
        caches[f"L{level} {kind.lower()}"] = size
    return caches
