"""Sources of the cupy backend and what NVRTC makes of them, one module for each variant."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

from sdpakit.backends.base import Artifact, Options
from sdpakit.backends.cupy.families import all_families, choose_family
from sdpakit.backends.cupy.heads import Variant
from sdpakit.backends.gpu.architectures import ARCHITECTURES, Architecture
from sdpakit.backends.gpu.compiling import CompiledModule, compile_source
from sdpakit.backends.gpu.cubincache import compiled
from sdpakit.backends.gpu.sass import disassembly
from sdpakit.ir.printer import to_text

if TYPE_CHECKING:
    from sdpakit.ir.program import Program

# What code is compiled for that no device runs: the oldest that has all that both families use.
DEFAULT_ARCH = "sm_80"

# A product and a sum are one operation where the source says fma, and nowhere else: the bits of a
# result must not depend on what a compiler finds to join.
_OPTIONS = ("--fmad=false", "-diag-suppress=128,177")


def compile_for(arch: Architecture, source: str) -> CompiledModule:
    """Return the module of a source, from disk if it is there."""
    return compiled(compile_source, source, arch, _OPTIONS)


def lower(program: Program, options: Options) -> Artifact:
    """Return the source of the plainest variant as an artifact."""
    arch = ARCHITECTURES[cast(str, options.get("arch") or DEFAULT_ARCH)]
    family = choose_family(program, arch, options.get("family"))
    text, source = to_text(program), family.source(program, Variant())
    key = hashlib.sha256(f"{arch}\n{source}".encode()).hexdigest()
    meta = {
        "arch": arch.name,
        "family": family.name,
        "launcher": options.get("launcher") or "device",
    }
    return Artifact("cupy", key, program, Stages(text, source, arch), meta)


class Stages(Mapping[str, str | bytes]):
    """Stages of an artifact, each made when it is asked for."""

    def __init__(self, text: str, source: str, arch: Architecture) -> None:
        self._source, self._arch = source, arch
        self._makers: dict[str, Callable[[], str | bytes]] = {
            "ir": lambda: text,
            "source": lambda: source,
            "ptx": lambda: self._module().ptx,
            "cubin": lambda: self._module().cubin,
            "sass": lambda: disassembly(self._module().cubin),
            "resources": lambda: _resources(self._module()),
        }

    def _module(self) -> CompiledModule:
        return compile_for(self._arch, self._source)

    def __getitem__(self, name: str) -> str | bytes:
        return self._makers[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)


def _resources(module: CompiledModule) -> str:
    return "\n".join(
        f"{name} on {module.arch}: {found.registers} registers, "
        f"{found.frame.stack} bytes of stack, "
        f"{found.frame.spill_stores + found.frame.spill_loads} bytes spilt, "
        f"{found.shared} bytes of static shared memory, {found.barriers} barriers"
        for name, found in module.report.kernels.items()
    )


class CompiledVariants:
    """Modules of the variants of an artifact, compiled once each and kept on disk."""

    def __init__(self, artifact: Artifact) -> None:
        self._program = artifact.program
        self._arch = ARCHITECTURES[artifact.meta["arch"]]
        self.family = choose_family(self._program, self._arch, artifact.meta["family"])
        self._modules: dict[Variant, CompiledModule] = {}

    def module(self, variant: Variant) -> CompiledModule:
        """Return the module of a variant."""
        if variant not in self._modules:
            source = self.family.source(self._program, variant)
            self._modules[variant] = compile_for(self._arch, source)
        return self._modules[variant]

    def explain(self) -> dict[str, Any]:
        """Return the family, why no other, and its tile."""
        geometry = self.family.geometry(self._program)
        others = {
            family.name: family.reasons_against(self._program, self._arch)
            or ["slower, or not asked for"]
            for family in all_families()
            if family.name != self.family.name
        }
        return {
            "method": f"{self.family.name} kernel in CUDA C++ for {self._arch}",
            "not taken": others,
            "block_q": geometry.block_q,
            "block_kv": geometry.block_k,
            "threads": geometry.threads,
            "shared_bytes": geometry.shared_bytes,
        }
