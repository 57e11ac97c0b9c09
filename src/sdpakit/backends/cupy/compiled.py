"""Sources of the cupy backend and what NVRTC makes of them, one module for each variant."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, cast

from sdpakit.backends.base import Artifact, Options
from sdpakit.backends.cupy.families import Family, choose_family
from sdpakit.backends.cupy.heads import Variant
from sdpakit.ir.printer import to_text

if TYPE_CHECKING:
    from sdpakit.ir.program import Program

DEFAULT_ARCH = "sm_80"
ARCHES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a")


def lower(program: Program, options: Options) -> Artifact:
    """Return the source of the plainest variant as an artifact."""
    arch = cast(str, options.get("arch") or DEFAULT_ARCH)
    family = choose_family(program, arch, options.get("family"))
    text, source = to_text(program), family.source(program, Variant())
    key = hashlib.sha256(f"{arch}\n{source}".encode()).hexdigest()
    meta = {"arch": arch, "family": family.name, "launcher": options.get("launcher") or "device"}
    return Artifact("cupy", key, program, {"ir": text, "source": source}, meta)


class CompiledVariants:
    """PTX of the variants of an artifact, compiled once each."""

    def __init__(self, artifact: Artifact) -> None:
        self._program, self._arch = artifact.program, artifact.meta["arch"]
        self.family: Family = choose_family(self._program, self._arch, artifact.meta["family"])
        self._ptx: dict[Variant, str] = {}

    def ptx(self, variant: Variant) -> str:
        """Return the PTX of a variant."""
        if variant not in self._ptx:
            self._ptx[variant] = _compile(self.family.source(self._program, variant), self._arch)
        return self._ptx[variant]


def _compile(src: str, arch: str) -> str:
    from cuda.bindings import nvrtc

    e, p = nvrtc.nvrtcCreateProgram(src.encode(), b"k.cu", 0, [], [])
    o = [b"-arch=" + arch.encode(), b"-std=c++17", b"--fmad=false", b"-diag-suppress=128,177"]
    (e,) = nvrtc.nvrtcCompileProgram(p, len(o), o)
    e2, n = nvrtc.nvrtcGetProgramLogSize(p)
    log = b" " * n
    nvrtc.nvrtcGetProgramLog(p, log)
    if e != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise RuntimeError(log.decode())
    e, n = nvrtc.nvrtcGetPTXSize(p)
    ptx = b" " * n
    nvrtc.nvrtcGetPTX(p, ptx)
    return ptx.decode().rstrip("\0 ")
