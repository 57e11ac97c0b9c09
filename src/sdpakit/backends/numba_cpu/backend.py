"""The numba_cpu backend: SIMD micro-kernels and drivers by llvmlite, a worker by Numba."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import TYPE_CHECKING

from sdpakit.backends.base import Availability, Capabilities, Options
from sdpakit.backends.numba_cpu.forks import LLVM_LOCK
from sdpakit.dtypes import FLOATS
from sdpakit.spec import LAYOUTS, OUTPUTS

if TYPE_CHECKING:
    from sdpakit.backends.base import Artifact, BackwardLauncher, Launcher
    from sdpakit.ir.program import Program
    from sdpakit.spec import AttentionSpec

# The packed queries and the accumulator of one panel are this wide; beyond it they leave the
# second-level cache together with the smallest tile.
MAX_HEAD_DIM = 1024

# Each thread packs whole tiles: at the widest heads one of so many keys takes 32 MiB (twice that in
# float64), far beyond any use.
LARGEST_BLOCK_KV = 4096


class NumbaCpuBackend:
    """See `sdpakit.backends.base.Backend`. Nothing heavy is imported before `lower`.

    Options: "isa" (what `sdpakit info` lists; default: the best of the host) and "block_kv" (keys
    of a tile, at most `LARGEST_BLOCK_KV`; the bits of results depend on it).
    """

    name = "numba_cpu"

    def availability(self) -> Availability:
        """Say whether Numba and llvmlite are installed and may compile."""
        for package in ("numba", "llvmlite"):
            if find_spec(package) is None:
                return Availability(
                    ok=False, reason=f"no {package}", hint=f"python -m pip install {package}"
                )
        if os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
            return Availability(ok=False, reason="NUMBA_DISABLE_JIT is set", hint="unset it")
        return Availability(ok=True)

    def capabilities(self) -> Capabilities:
        """Return what can be compiled."""
        return Capabilities(
            dtypes=frozenset(FLOATS),
            max_head_dim=MAX_HEAD_DIM,
            outputs=frozenset(OUTPUTS),
            options=frozenset(("isa", "block_kv")),
            gradients=True,
            layouts=frozenset(LAYOUTS),
            paged=True,
        )

    def unsupported_reasons(self, spec: AttentionSpec, options: Options) -> list[str]:
        """Return which values of options cannot be honoured; every spec can be compiled."""
        return _refused_options(options)

    def lower(self, program: Program, options: Options) -> Artifact:
        """Return LLVM IR; integers of expressions are 32 bits wide (see `launcher`)."""
        with LLVM_LOCK:
            from sdpakit.backends.numba_cpu.lower import lower

        return lower(program, options)

    def load(self, artifact: Artifact) -> Launcher:
        """Compile, or take machine code from the disk."""
        with LLVM_LOCK:
            from sdpakit.backends.numba_cpu.launcher import CpuLauncher

        return CpuLauncher(artifact)

    def lower_backward(self, program: Program, options: Options) -> Artifact:
        """Return LLVM IR of the gradients."""
        with LLVM_LOCK:
            from sdpakit.backends.numba_cpu.backward.lower import lower_backward

        return lower_backward(program, options)

    def load_backward(self, artifact: Artifact) -> BackwardLauncher:
        """Compile, or take machine code from the disk."""
        with LLVM_LOCK:
            from sdpakit.backends.numba_cpu.backward.launcher import CpuBackward

        return CpuBackward(artifact)


def _refused_options(options: Options) -> list[str]:
    from sdpakit.backends.numba_cpu.isa import available_isas

    reasons = []
    isa = options.get("isa")
    if isa not in (None, "auto", *available_isas()):
        reasons.append(f"isa={isa!r} is none of {', '.join(available_isas())} (what this host has)")
    block_kv = options.get("block_kv")
    if block_kv is not None and (
        type(block_kv) is not int or not 1 <= block_kv <= LARGEST_BLOCK_KV
    ):
        reasons.append(f"block_kv={block_kv!r} is not an int from 1 to {LARGEST_BLOCK_KV}")
    return reasons


BACKEND = NumbaCpuBackend()
