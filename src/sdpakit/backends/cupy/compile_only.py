"""What stands for a launcher where there is no device: all but the call works."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sdpakit.backends.cupy.compiled import CompiledVariants
from sdpakit.errors import BackendUnavailableError, format_error

if TYPE_CHECKING:
    from sdpakit.backends.base import Artifact, BackwardCall, Call


class CompileOnly:
    """Explains a kernel and refuses to run it."""

    def __init__(self, artifact: Artifact) -> None:
        self._compiled = CompiledVariants(artifact)

    def __call__(self, call: Call) -> None:
        """Say what is missing, and how to run the kernel without it."""
        raise _refusal()

    def explain(self, call: Call | None) -> Mapping[str, Any]:
        """Return the family and the tile."""
        return self._compiled.explain()


class CompileOnlyBackward:
    """Refuses to run gradients."""

    def forward(self, call: Call) -> Mapping[str, Any]:
        """Say what is missing."""
        raise _refusal()

    def __call__(self, call: BackwardCall) -> None:
        """Say what is missing."""
        raise _refusal()


def _refusal() -> BackendUnavailableError:
    return BackendUnavailableError(
        format_error(
            "backend 'cupy'",
            got="a call with arrays of the host",
            allowed="calls in the emulator, which needs no GPU; kernels are not launched on "
            "devices yet",
            fix="compile with options={'launcher': 'emulator'}, or use kernel.inspect('ptx')",
        )
    )
