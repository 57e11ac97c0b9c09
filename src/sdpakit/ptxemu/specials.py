"""Special registers: where a thread is, and how large everything is."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from sdpakit.ptxemu.errors import UnsupportedInstruction
from sdpakit.ptxemu.scalars import Array
from sdpakit.ptxemu.warps import WARP

if TYPE_CHECKING:
    from sdpakit.ptxemu.machine import LaunchShape, Machine

# Returns values of the lanes of a batch, or one number that all of them see.
Source: TypeAlias = "Callable[[Machine], Array | int]"


def _lane(machine: Machine) -> Array:
    return np.asarray(machine.lane_thread % WARP)


def _position(axis: int) -> Source:
    """Return the source of ``%tid`` along an axis."""

    def source(machine: Machine) -> Array:
        x, y, z = machine.shape.block
        return np.asarray(machine.lane_thread // (1, x, x * y)[axis] % (x, y, z)[axis])

    return source


def _block(axis: int, change: Callable[[Array, int], Array]) -> Source:
    """Return the source of what follows from ``%ctaid`` and the size of the cluster."""

    def source(machine: Machine) -> Array:
        place = np.array(machine.blocks)[machine.lane_block, axis]
        return change(place, machine.shape.cluster[axis])

    return source


def _size(axis: int, sizes: Callable[[LaunchShape], tuple[int, int, int]]) -> Source:
    return lambda machine: sizes(machine.shape)[axis]


def _sources() -> dict[str, Source]:
    found: dict[str, Source] = {
        "%laneid": _lane,
        "%warpid": lambda m: np.asarray(m.lane_thread // WARP),
        "%nwarpid": lambda m: m.warps,
        "%clock": lambda m: 0,
        "%clock_hi": lambda m: 0,
        "%clock64": lambda m: 0,
        "%globaltimer": lambda m: 0,
        "%smid": lambda m: 0,
        "%nsmid": lambda m: 1,
        "%gridid": lambda m: 0,
        "%dynamic_smem_size": lambda m: m.shape.dynamic_shared,
        "%total_smem_size": lambda m: m.program.static_shared + m.shape.dynamic_shared,
        "%lanemask_eq": lambda m: 1 << _lane(m),
        "%lanemask_lt": lambda m: (1 << _lane(m)) - 1,
        "%lanemask_le": lambda m: (2 << _lane(m)) - 1,
        "%lanemask_gt": lambda m: 0xFFFFFFFF & -(2 << _lane(m)),
        "%lanemask_ge": lambda m: 0xFFFFFFFF & -(1 << _lane(m)),
        "%cluster_ctarank": lambda m: np.asarray(m.lane_block % m.shape.cluster_size),
        "%cluster_nctarank": lambda m: m.shape.cluster_size,
        "%is_explicit_cluster": lambda m: m.shape.cluster_size > 1,
    }
    for axis, name in enumerate("xyz"):
        found |= {
            f"%tid.{name}": _position(axis),
            f"%ctaid.{name}": _block(axis, lambda place, size: place),
            f"%cluster_ctaid.{name}": _block(axis, lambda place, size: place % size),
            f"%clusterid.{name}": _block(axis, lambda place, size: place // size),
            f"%ntid.{name}": _size(axis, lambda shape: shape.block),
            f"%nctaid.{name}": _size(axis, lambda shape: shape.grid),
            f"%cluster_nctaid.{name}": _size(axis, lambda shape: shape.cluster),
            f"%nclusterid.{name}": _size(axis, lambda shape: shape.clusters),
        }
    return found


_SOURCES = _sources()


class SpecialRegisters:
    """Those of a batch, each made when it is first read, as kernels read few of them."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._values: dict[str, Array] = {}

    def values(self, name: str) -> Array:
        """Return the values of all lanes, as uint64.

        Raises
        ------
        UnsupportedInstruction
            If there is no such register.
        """
        if name not in self._values:
            if name not in _SOURCES:
                raise UnsupportedInstruction(
                    f"the emulator has no special register {name}; it has "
                    f"{', '.join(sorted(_SOURCES))}"
                )
            made = np.asarray(_SOURCES[name](self._machine)).astype(np.uint64)
            self._values[name] = np.ascontiguousarray(np.broadcast_to(made, self._machine.lanes))
        return self._values[name]
