"""Families of kernels: what each can do, and which one compiles a program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from sdpakit.backends.cupy.heads import Variant
    from sdpakit.ir.program import Program

ENTRY = "attention_forward"


@dataclass(frozen=True, slots=True)
class Geometry:
    """Sizes of a launch.

    Attributes
    ----------
    threads : int
        Of a block.
    block_q, block_k : int
        Query rows of a block, keys of a tile.
    shared_bytes : int
        Dynamic shared memory.
    """

    threads: int
    block_q: int
    block_k: int
    shared_bytes: int


class Family(Protocol):
    """One way to compute attention on a GPU."""

    name: str

    def reasons_against(self, program: Program, arch: str) -> list[str]:
        """Return why a program cannot be computed so on an architecture; empty = it can."""
        ...

    def geometry(self, program: Program) -> Geometry:
        """Return the sizes of a launch."""
        ...

    def source(self, program: Program, variant: Variant) -> str:
        """Return CUDA C++, whose entry is `ENTRY`."""
        ...


def arch_number(arch: str) -> int:
    """Return the number in the name of an architecture: 90 for "sm_90a"."""
    return int(arch.removeprefix("sm_").rstrip("a"))


def all_families() -> tuple[Family, ...]:
    """Return the families, the fastest first."""
    from sdpakit.backends.cupy.mma import Mma
    from sdpakit.backends.cupy.simt import Simt

    return Mma(), Simt()


def choose_family(program: Program, arch: str, wanted: str | None) -> Family:
    """Return the family that was asked for, or the first that can compute a program."""
    return next(
        family
        for family in all_families()
        if (wanted is None or family.name == wanted) and not family.reasons_against(program, arch)
    )
