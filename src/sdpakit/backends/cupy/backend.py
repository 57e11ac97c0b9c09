"""The cupy backend: raw CUDA C++ kernels, compiled by NVRTC."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from sdpakit.backends.base import Availability, Capabilities, Options
from sdpakit.dtypes import FLOATS
from sdpakit.spec import LAYOUTS, OUTPUTS

if TYPE_CHECKING:
    from sdpakit.backends.base import Artifact, Launcher
    from sdpakit.ir.program import Program
    from sdpakit.spec import AttentionSpec

# The accumulator of one row in 16 threads: in float64 the widest fills the registers of a thread.
MAX_HEAD_DIM = 1024
LAUNCHERS = ("device", "emulator")
FAMILIES = ("mma", "simt")


class CupyBackend:
    """See `sdpakit.backends.base.Backend`.

    Options: "launcher" ("device", or "emulator", which runs the very PTX of a kernel on NumPy
    arrays and needs no GPU) and "arch" (such as "sm_80", what the code is compiled for).
    """

    name = "cupy"

    def availability(self) -> Availability:
        """Say whether kernels can be compiled; whether there is a device shows when one is run."""
        if find_spec("cuda") is None or find_spec("cuda.bindings") is None:
            return Availability(
                ok=False,
                reason="no CUDA compiler for Python (cuda.bindings, NVRTC)",
                hint="python -m pip install 'sdpakit[cuda13]'",
            )
        return Availability(ok=True)

    def capabilities(self) -> Capabilities:
        """Return what can be compiled."""
        return Capabilities(
            dtypes=frozenset(FLOATS),
            max_head_dim=MAX_HEAD_DIM,
            outputs=frozenset(OUTPUTS),
            options=frozenset(("launcher", "arch", "family")),
            layouts=frozenset(LAYOUTS),
            paged=True,
        )

    def unsupported_reasons(self, spec: AttentionSpec, options: Options) -> list[str]:
        """Return which values of options cannot be honoured; every spec can be compiled."""
        from sdpakit.backends.cupy.compiled import ARCHES

        reasons = []
        for name, allowed in (
            ("launcher", LAUNCHERS),
            ("arch", tuple(ARCHES)),
            ("family", FAMILIES),
        ):
            value = options.get(name)
            if value is not None and value not in allowed:
                reasons.append(f"{name}={value!r} is none of {', '.join(allowed)}")
        return reasons

    def lower(self, program: Program, options: Options) -> Artifact:
        """Return CUDA C++; what calls decide (`simt.Variant`) is as in the plainest call."""
        from sdpakit.backends.cupy.compiled import lower

        return lower(program, options)

    def load(self, artifact: Artifact) -> Launcher:
        """Return a launcher, which compiles a variant when a call first needs it."""
        from sdpakit.backends.cupy.emulated import EmulatorLauncher

        return EmulatorLauncher(artifact)


BACKEND = CupyBackend()
