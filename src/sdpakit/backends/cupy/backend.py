"""The cupy backend: raw CUDA C++ kernels, compiled by NVRTC."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sdpakit.backends.base import Availability, Capabilities, Options
from sdpakit.dtypes import FLOATS
from sdpakit.spec import LAYOUTS, OUTPUTS

if TYPE_CHECKING:
    from sdpakit.backends.base import Artifact, BackwardLauncher, Launcher
    from sdpakit.ir.program import Program
    from sdpakit.spec import AttentionSpec

# The accumulator of one row in 16 threads: in float64 the widest fills the registers of a thread.
MAX_HEAD_DIM = 1024
LAUNCHERS = ("device", "emulator")
FAMILIES = ("mma", "simt")


class CupyBackend:
    """See `sdpakit.backends.base.Backend`.

    Options: "launcher" ("device", or "emulator", which runs the very PTX of a kernel on NumPy
    arrays and needs no GPU), "arch" (such as "sm_80", what the code is compiled for) and "family"
    ("mma" or "simt"; the fastest that can).
    """

    name = "cupy"

    def availability(self) -> Availability:
        """Say whether kernels can be compiled; whether there is a device shows when one is run."""
        from sdpakit.backends.gpu.toolchain import toolchain

        nvrtc = toolchain().nvrtc
        if nvrtc.version is None:
            return Availability(ok=False, reason=f"no NVRTC: {nvrtc.trouble}", hint=nvrtc.install)
        return Availability(ok=True)

    def capabilities(self) -> Capabilities:
        """Return what can be compiled."""
        return Capabilities(
            dtypes=frozenset(FLOATS),
            max_head_dim=MAX_HEAD_DIM,
            outputs=frozenset(OUTPUTS),
            options=frozenset(("launcher", "arch", "family")),
            gradients=True,
            layouts=frozenset(LAYOUTS),
            paged=True,
        )

    def unsupported_reasons(self, spec: AttentionSpec, options: Options) -> list[str]:
        """Return which values of options cannot be honoured; every spec can be compiled."""
        from sdpakit.backends.gpu.architectures import ARCHITECTURES

        reasons = _unsuited_family(spec, options)
        for name, allowed in (
            ("launcher", LAUNCHERS),
            ("arch", tuple(ARCHITECTURES)),
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
        if artifact.meta["launcher"] == "emulator":
            from sdpakit.backends.cupy.emulated import EmulatorLauncher

            return EmulatorLauncher(artifact)
        from sdpakit.backends.cupy.compile_only import CompileOnly

        return CompileOnly(artifact)

    def lower_backward(self, program: Program, options: Options) -> Artifact:
        """Return CUDA C++ of the gradients."""
        from sdpakit.backends.cupy.backward import lower_backward

        return lower_backward(program, options)

    def load_backward(self, artifact: Artifact) -> BackwardLauncher:
        """Return a launcher of the gradients."""
        if artifact.meta["launcher"] == "emulator":
            from sdpakit.backends.cupy.emulated_backward import EmulatorBackward

            return EmulatorBackward(artifact)
        from sdpakit.backends.cupy.compile_only import CompileOnlyBackward

        return CompileOnlyBackward()


def _unsuited_family(spec: AttentionSpec, options: Options) -> list[str]:
    """Return why the family that was asked for cannot compute a spec."""
    from sdpakit.backends.cupy.compiled import DEFAULT_ARCH
    from sdpakit.backends.cupy.families import all_families
    from sdpakit.backends.gpu.architectures import ARCHITECTURES

    arch = ARCHITECTURES.get(options.get("arch") or DEFAULT_ARCH)
    return [
        f"family {family.name!r}: {reason}"
        for family in all_families()
        if family.name == options.get("family") and arch is not None
        for reason in family.reasons_against(spec, arch)
    ]


BACKEND = CupyBackend()
