"""What vector hardware the host has, and which of it generated code may use."""

from __future__ import annotations

import functools
import os
import platform
from dataclasses import dataclass
from typing import Literal

from sdpakit.backends.numba_cpu.forks import LLVM_LOCK
from sdpakit.errors import ArgumentError, format_error

Element = Literal["float32", "float64"]

ENVIRONMENT_VARIABLE = "SDPAKIT_CPU_ISA"


@dataclass(frozen=True, slots=True)
class Isa:
    """A set of instructions that code is generated for.

    Attributes
    ----------
    name : str
        "baseline", "avx2", "avx512" or "neon".
    vector_bytes, registers : int
        Width and number of the vector registers.
    fma : bool
        A fused multiply-add exists. Without it `llvm.fma` would become a call into libm.
    half : bool
        float16 <-> float32 is an instruction. Without it `fpext` on half would become a library
        call.
    rounding : bool
        floor and ceil are instructions (SSE 4.1 and later).
    scalef : bool
        AVX-512: 2**floor(t) * p and t - floor(t) are one instruction each.
    cpu, features : str
        Target of LLVM. A lowered ISA names a generic CPU, so that no instruction of the host slips
        in.
    """

    name: str
    vector_bytes: int
    registers: int
    fma: bool
    half: bool
    rounding: bool
    scalef: bool
    cpu: str
    features: str

    def lanes(self, element: Element) -> int:
        """Return the number of elements in one vector register."""
        return self.vector_bytes // (4 if element == "float32" else 8)

    def tile(self) -> tuple[int, int]:
        """Return the register tile: rows R and vectors NV.

        R * NV registers accumulate, NV hold queries, and one or two a broadcast.

        12 x 2 leaves 6 of 32 registers, 6 x 2 leaves 4 of 16: LLVM allocates both without a spill.
        Smaller tiles load more for each multiply-add, and more rows of fewer vectors are bound by
        broadcasts.
        """
        return (12, 2) if self.registers >= 32 else (6, 2)


def _x86_isas(cpu: str, flags: dict[str, bool], features: str) -> dict[str, Isa]:
    """Return the x86 ISAs that a CPU of these flags can run, lowest first.

    Only the best one is tuned for the CPU; a lower one is for x86-64 at large.
    """
    found = {"baseline": Isa("baseline", 16, 16, False, False, False, False, "x86-64", "")}
    if all(flags.get(name, False) for name in ("avx2", "fma", "f16c", "bmi2", "lzcnt", "movbe")):
        found["avx2"] = Isa("avx2", 32, 16, True, True, True, False, "x86-64-v3", "")
    if "avx2" in found and all(
        flags.get(f"avx512{name}", False) for name in ("f", "bw", "dq", "vl", "cd")
    ):
        found["avx512"] = Isa("avx512", 64, 32, True, True, True, True, cpu, features)
    elif "avx2" in found:
        found["avx2"] = Isa("avx2", 32, 16, True, True, True, False, cpu, features)
    return found


@functools.cache
def _host_isas() -> dict[str, Isa]:
    with LLVM_LOCK:
        import llvmlite.binding as llvm

        cpu, flags = llvm.get_host_cpu_name(), llvm.get_host_cpu_features()
    machine = platform.machine().lower()
    if machine in ("x86_64", "amd64"):
        return _x86_isas(cpu, dict(flags), flags.flatten())
    if machine in ("aarch64", "arm64"):
        return {"neon": Isa("neon", 16, 32, True, True, True, False, cpu, flags.flatten())}
    # An architecture that nobody measured: LLVM splits 16-byte vectors as the machine needs.
    return {"baseline": Isa("baseline", 16, 16, False, False, False, False, cpu, flags.flatten())}


def available_isas() -> tuple[str, ...]:
    """Return the names of the ISAs that the host can run, lowest first."""
    return tuple(_host_isas())


def select_isa(name: str | None = None) -> Isa:
    """Return the ISA to generate code for.

    Parameters
    ----------
    name : str or None
        One of `available_isas()`, "auto" for the best of them, None for the value of the
        environment variable `SDPAKIT_CPU_ISA` (unset: "auto").

    Raises
    ------
    ArgumentError
        If the host cannot run the named ISA, or nothing has that name.
    """
    where = "cpu isa" if name is not None else ENVIRONMENT_VARIABLE
    asked = name if name is not None else os.environ.get(ENVIRONMENT_VARIABLE, "") or "auto"
    isas = _host_isas()
    if asked == "auto":
        return isas[available_isas()[-1]]
    if asked not in isas:
        raise ArgumentError(
            format_error(
                where,
                got=repr(asked),
                allowed="auto | " + " | ".join(isas) + " (what this host can run)",
                fix="choose one of these, or unset it to use the best",
            )
        )
    return isas[asked]
