"""Families of kernels: what each can do, and which one compiles a program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from sdpakit.backends.cupy.heads import Variant
    from sdpakit.backends.gpu.architectures import Architecture
    from sdpakit.ir.program import Program

ENTRY = "attention_forward"
MERGE = "merge_parts"  # of the parts of rows whose keys were split
MERGED_ROWS = 4  # of a block, a warp for each


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


class Operands(Protocol):
    """What families ask of a spec or a program."""

    @property
    def dtype(self) -> str:
        """Dtype of q, k, v."""
        ...

    @property
    def head_dim(self) -> int:
        """Width of q and k."""
        ...

    @property
    def v_head_dim(self) -> int:
        """Width of v."""
        ...

    @property
    def out_dtype(self) -> str:
        """Dtype of out."""
        ...


class Family(Protocol):
    """One way to compute attention on a GPU."""

    name: str

    def reasons_against(self, operands: Operands, arch: Architecture) -> list[str]:
        """Return why attention cannot be computed so on an architecture; empty = it can."""
        ...

    def geometry(self, program: Program) -> Geometry:
        """Return the sizes of a launch."""
        ...

    def source(self, program: Program, variant: Variant) -> str:
        """Return CUDA C++, whose entry is `ENTRY`."""
        ...


def all_families() -> tuple[Family, ...]:
    """Return the families, the fastest first."""
    from sdpakit.backends.cupy.mma import Mma
    from sdpakit.backends.cupy.simt import Simt

    return Mma(), Simt()


def choose_family(
    program: Program,
    arch: Architecture,
    wanted: str | None,
    families: tuple[Family, ...] | None = None,
) -> Family:
    """Return the family that was asked for, or the first that can compute a program."""
    return next(
        family
        for family in families or all_families()
        if (wanted is None or family.name == wanted) and not family.reasons_against(program, arch)
    )
