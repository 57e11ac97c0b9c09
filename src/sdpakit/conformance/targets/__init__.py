"""The targets that come with sdpakit."""

from __future__ import annotations

from sdpakit.conformance.target import Target
from sdpakit.conformance.targets.compiled import Compiled
from sdpakit.conformance.targets.naive import Naive
from sdpakit.conformance.targets.oracle import Reference
from sdpakit.conformance.targets.resolve import names

__all__ = ["builtin_targets", "names"]


def builtin_targets() -> dict[str, Target]:
    """Return the targets that come with sdpakit, by name.

    Returns
    -------
    dict of str to Target
        "interp" and "numba_cpu" compile, "cupy" and "cupy-simt" do for GPUs and run in the emulator
        of PTX (the second without matrix instructions), "naive" is NumPy in accum_dtype,
        "reference" the oracle.
    """
    emulated = {"launcher": "emulator"}
    found: tuple[Target, ...] = (
        Compiled("interp"),
        Compiled("numba_cpu"),
        Compiled("cupy", emulated),
        Compiled("cupy", {**emulated, "family": "simt"}, name="cupy-simt"),
        Naive(),
        Reference(),
    )
    return {target.name: target for target in found}
