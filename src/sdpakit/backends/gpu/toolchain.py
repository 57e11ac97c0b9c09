"""Which of NVIDIA's compilers and disassemblers are here, and what to install for the others.

What a compiler says of itself is read from code that it makes: the library's own version number
names a release, not the build, and two builds of one release may emit different code.
"""

from __future__ import annotations

import functools
import importlib.util
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sdpakit.backends.gpu.libraries import Output, compile_with_nvrtc, link_with_nvjitlink
from sdpakit.errors import BackendUnavailableError

_PROBE = 'extern "C" __global__ void probe() {}\n'
_BUILD = re.compile(r"Cuda compilation tools, release [\d.]+, V([\d.]+)")
_PTX_VERSION = re.compile(r"^\.version (\d+\.\d+)", re.MULTILINE)

# The first driver of each release family on Linux: cubins of any minor release run on it ("minor
# version compatibility" in CUDA Compatibility, docs.nvidia.com/deploy/cuda-compatibility).
_FIRST_DRIVER = {12: "525", 13: "580"}


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the toolchain.

    Attributes
    ----------
    name, purpose : str
        What it is called, and what it is for.
    version : str or None
        None where it is missing.
    install : str
        The command that brings it.
    trouble : str
        Why it is missing.
    """

    name: str
    purpose: str
    version: str | None
    install: str
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Toolchain:
    """The state of all parts; equal values emit equal code.

    Attributes
    ----------
    nvrtc, nvjitlink, nvdisasm, cuobjdump : Part
        CUDA C++ to code; PTX to code; code to text; resources of code.
    ptx_version : str
        PTX ISA of what NVRTC emits, "" without NVRTC.
    """

    nvrtc: Part
    nvjitlink: Part
    nvdisasm: Part
    cuobjdump: Part
    ptx_version: str

    @property
    def parts(self) -> tuple[Part, ...]:
        """All parts."""
        return (self.nvrtc, self.nvjitlink, self.nvdisasm, self.cuobjdump)

    @property
    def driver(self) -> str:
        """The oldest driver that runs the cubins of NVRTC, "" where nobody knows.

        PTX is another matter: a driver compiles only the PTX ISA of its own release or an older
        one. So code is always compiled for the device at hand, and PTX never shipped in its place.
        """
        release = self.nvrtc.version
        return _FIRST_DRIVER.get(int(release.split(".")[0]), "") if release else ""


def require(part: Part) -> Part:
    """Return a part that is here.

    Raises
    ------
    BackendUnavailableError
        If it is missing; the message says what to install.
    """
    if part.version is None:
        raise BackendUnavailableError(
            f"{part.name} ({part.purpose}) is not there: {part.trouble}\n  remedy: {part.install}"
        )
    return part


@functools.cache
def toolchain() -> Toolchain:
    """Return what is here; asked once in a process, some 0.2 s where all of it is installed."""
    nvrtc, ptx = _compiler("nvrtc", "CUDA C++ to machine code", "nvrtc", _probe_nvrtc)
    nvjitlink, _ = _compiler("nvJitLink", "PTX to machine code", "nvjitlink", _probe_nvjitlink)
    found = _PTX_VERSION.search(ptx)
    return Toolchain(
        nvrtc=nvrtc,
        nvjitlink=nvjitlink,
        nvdisasm=_program("nvdisasm", "instructions of machine code"),
        cuobjdump=_program("cuobjdump", "resources of machine code"),
        ptx_version=found[1] if found else "",
    )


def program(name: str) -> Path | None:
    """Return where one of NVIDIA's programs is: in a wheel, in CUDA_HOME, or on the path."""
    if _has("cuda.pathfinder"):
        from cuda import pathfinder

        found = pathfinder.find_nvidia_binary_utility(name)
        if found is not None:
            return Path(found)
    on_path = shutil.which(name)
    return Path(on_path) if on_path else None


def _has(module: str) -> bool:
    """Return whether a module of CUDA's Python packages is there, without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # there is no "cuda", or it is no package
        return False


def _install(extra: str) -> str:
    return f'pip install "cuda-toolkit[{extra}]==13.*" "cuda-bindings==13.*"'


def _compiler(name: str, purpose: str, extra: str, probe: Callable[[], str]) -> tuple[Part, str]:
    """Return a compiler's part, and the text that it made of the probe."""
    install = _install(extra)
    if not _has("cuda.bindings"):
        return Part(name, purpose, None, install, "cuda-bindings is not installed"), ""
    try:
        text = probe()
    except (ImportError, OSError, RuntimeError) as error:  # missing, broken, or of another system
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        return Part(name, purpose, None, install, reason), ""
    return Part(name, purpose, _build(text), install), text


def _probe_nvrtc() -> str:
    return _worked(compile_with_nvrtc(_PROBE, "probe.cu", ["-arch=compute_75"])).ptx


def _probe_nvjitlink() -> str:
    ptx = ".version 7.0\n.target sm_75\n.address_size 64\n.visible .entry probe() { ret; }\n"
    output = link_with_nvjitlink(ptx.encode() + b"\0", "PTX", "probe.ptx", ["-arch=sm_75"])
    return _worked(output).cubin.decode("latin-1")


def _worked(output: Output) -> Output:
    if not output.ok:
        raise RuntimeError(output.log)
    return output


def _build(text: str) -> str:
    found = _BUILD.search(text)
    return found[1] if found else "unknown"


def _program(name: str, purpose: str) -> Part:
    install = f'pip install "cuda-toolkit[{name}]==13.*"'
    place = program(name)
    if place is None:
        return Part(name, purpose, None, install, "found in no wheel, CUDA_HOME or PATH")
    said = subprocess.run([place, "--version"], capture_output=True, text=True, check=False)
    return Part(name, purpose, _build(said.stdout), install)
