"""Facts of NVIDIA's GPU architectures, by the name that compilers know.

Limits are those of the table "Technical Specifications per Compute Capability" in the CUDA C++
Programming Guide, and the test of this module holds them against `cuda/__device/arch_traits.h`,
which NVIDIA ships. An architecture whose name ends in "a" has instructions that no other device
runs, not even a later one: code for it runs on that compute capability alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from sdpakit.errors import ArgumentError, did_you_mean, format_error, shown

_KIB = 1024

WARP = 32
"""Threads of a warp."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """What one architecture has; sizes in bytes, registers of 32 bits.

    Attributes
    ----------
    name : str
        As compilers call it: "sm_90a".
    capability : tuple of int
        (major, minor).
    shared_per_sm, shared_reserved : int
        Shared memory of a multiprocessor, and what the system takes of it for each block.
    threads_per_sm, blocks_per_sm : int
        That can be resident at once.
    features : frozenset of str
        Groups of instructions, of those that FEATURES names.
    registers_per_sm, registers_per_thread, threads_per_block : int
        The same on all of them.
    """

    name: str
    capability: tuple[int, int]
    shared_per_sm: int
    shared_reserved: int
    threads_per_sm: int
    blocks_per_sm: int
    features: frozenset[str]
    registers_per_sm: int = 65536
    registers_per_thread: int = 255
    threads_per_block: int = 1024

    @property
    def shared_per_block(self) -> int:
        """The most that a block can have, static and dynamic; above 48 KiB it must ask for it."""
        return self.shared_per_sm - self.shared_reserved

    @property
    def warps_per_sm(self) -> int:
        """Warps that can be resident at once."""
        return self.threads_per_sm // WARP

    def __str__(self) -> str:
        """Return the name."""
        return self.name


FEATURES: Mapping[str, str] = MappingProxyType(
    {
        "ldmatrix": "loads of matrix fragments from shared memory",
        "cp_async": "copies from global to shared memory that do not wait",
        "bf16_mma": "matrix products of a warp in bfloat16 and tf32 (mma.sync)",
        "fp8_mma": "matrix products of a warp in e4m3 and e5m2 (mma.sync)",
        "tma": "copies of whole tiles by one thread (cp.async.bulk), mbarrier with transactions",
        "wgmma": "matrix products of a warpgroup from shared memory (wgmma)",
        "setmaxnreg": "registers that move between warpgroups",
        "tcgen05": "matrix products of a block with accumulators in tensor memory",
    }
)
"""Groups of instructions that kernels choose by, with their meaning."""

_TURING = ("ldmatrix",)
_AMPERE = (*_TURING, "cp_async", "bf16_mma")
_ADA = (*_AMPERE, "fp8_mma")
_HOPPER = (*_ADA, "tma")
_ONLY_9_0 = ("wgmma", "setmaxnreg")
_ONLY_10 = ("setmaxnreg", "tcgen05")
_ONLY_12 = ("setmaxnreg",)

# major, minor, suffix, KiB of shared memory of a multiprocessor, its threads, its blocks, features
_TABLE = (
    (7, 5, "", 64, 1024, 16, _TURING),
    (8, 0, "", 164, 2048, 32, _AMPERE),
    (8, 6, "", 100, 1536, 16, _AMPERE),
    (8, 7, "", 164, 1536, 16, _AMPERE),
    (8, 9, "", 100, 1536, 24, _ADA),
    (9, 0, "", 228, 2048, 32, _HOPPER),
    (9, 0, "a", 228, 2048, 32, _HOPPER + _ONLY_9_0),
    (10, 0, "", 228, 2048, 32, _HOPPER),
    (10, 0, "a", 228, 2048, 32, _HOPPER + _ONLY_10),
    (10, 3, "", 228, 2048, 32, _HOPPER),
    (10, 3, "a", 228, 2048, 32, _HOPPER + _ONLY_10),
    (12, 0, "", 100, 1536, 24, _HOPPER),
    (12, 0, "a", 100, 1536, 24, _HOPPER + _ONLY_12),
)


def _row(facts: tuple[int, int, str, int, int, int, tuple[str, ...]]) -> Architecture:
    major, minor, suffix, shared, threads, blocks, has = facts
    return Architecture(
        name=f"sm_{major}{minor}{suffix}",
        capability=(major, minor),
        shared_per_sm=shared * _KIB,
        shared_reserved=_KIB if major >= 8 else 0,
        threads_per_sm=threads,
        blocks_per_sm=blocks,
        features=frozenset(has),
    )


ARCHITECTURES: Mapping[str, Architecture] = MappingProxyType(
    {row.name: row for row in map(_row, _TABLE)}
)
"""Every architecture that can be compiled for, oldest first."""


def architecture(name: str | Architecture) -> Architecture:
    """Return the architecture of a name.

    Parameters
    ----------
    name : str or Architecture
        As compilers call it, "sm_90a", or without the prefix, "90a".

    Returns
    -------
    Architecture
        Its facts.

    Raises
    ------
    ArgumentError
        If there is none of this name; the message lists all.
    """
    if isinstance(name, Architecture):
        return name
    found = ARCHITECTURES.get(f"sm_{str(name).removeprefix('sm_')}")
    if found is None:
        raise ArgumentError(
            format_error(
                "arch",
                got=shown(name),
                allowed=", ".join(ARCHITECTURES),
                fix=did_you_mean(name, ARCHITECTURES, "name the architecture of your device"),
            )
        )
    return found
