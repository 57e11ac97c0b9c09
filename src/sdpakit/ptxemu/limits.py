"""What an architecture and an entry allow a launch to be."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np

from sdpakit.ptxemu.errors import LaunchError
from sdpakit.ptxemu.machine import LaunchShape
from sdpakit.ptxemu.program import Program

Sizes: TypeAlias = int | Sequence[int]

_KIB = 1024
_STATIC_SHARED = 48 * _KIB
_MOST_GRID = (2**31 - 1, 65535, 65535)
_MOST_BLOCK = (1024, 1024, 64)
_MOST_THREADS = 1024
_MOST_CLUSTER = 16  # more than 8 needs an attribute of the kernel, which a launch can set
_CLUSTERS_FROM = 90
# KiB of shared memory that a block can have, from each architecture to the next.
_SHARED = {
    0: 48,
    70: 96,
    75: 64,
    80: 163,
    86: 99,
    87: 163,
    88: 99,
    90: 227,
    120: 99,
}


def launch_shape(
    program: Program, grid: Sizes, block: Sizes, cluster: Sizes, shared: int
) -> LaunchShape:
    """Return the sizes of a launch.

    Raises
    ------
    LaunchError
        If they are not what the architecture and the entry allow.
    """
    given = _three("cluster", cluster, (_MOST_CLUSTER,) * 3)
    shape = LaunchShape(
        _three("grid", grid, _MOST_GRID),
        _three("block", block, _MOST_BLOCK),
        _cluster(program, given),
        shared,
    )
    _check_threads(program, shape)
    _check_cluster(program, shape)
    _check_shared(program, shared)
    return shape


def _three(name: str, sizes: Sizes, most: tuple[int, int, int]) -> tuple[int, int, int]:
    given = tuple(sizes) if isinstance(sizes, Iterable) else (sizes,)
    if not 1 <= len(given) <= 3 or not all(isinstance(size, (int, np.integer)) for size in given):
        raise LaunchError(f"{name} is {sizes!r}; give an int, or one to three of them, x first")
    x, y, z = (*(int(size) for size in given), 1, 1)[:3]
    if any(not 1 <= size <= limit for size, limit in zip((x, y, z), most, strict=True)):
        raise LaunchError(f"{name} is {(x, y, z)}; each size must be from 1 to {most}")
    return x, y, z


def _cluster(program: Program, given: tuple[int, int, int]) -> tuple[int, int, int]:
    required = program.limits.cluster
    if required is None or given == required:
        return given
    if given != (1, 1, 1):
        raise LaunchError(
            f"cluster is {given}, but {program.name} says .reqnctapercluster {required}; launch it "
            "with that cluster, or without naming one"
        )
    return required


def _check_threads(program: Program, shape: LaunchShape) -> None:
    name, limits = program.name, program.limits
    if shape.threads > _MOST_THREADS:
        raise LaunchError(
            f"block is {shape.block}, {shape.threads} threads; no block has more than "
            f"{_MOST_THREADS}, so use a smaller one and a larger grid"
        )
    if limits.required_threads is not None and shape.block != limits.required_threads:
        raise LaunchError(
            f"block is {shape.block}, but {name} says .reqntid {limits.required_threads}; launch "
            "it with that block"
        )
    most = limits.max_threads
    if most is not None and shape.threads > math.prod(most):
        raise LaunchError(
            f"block is {shape.block}, {shape.threads} threads, but {name} says .maxntid {most}; "
            f"use at most {math.prod(most)} threads, or compile it for more (__launch_bounds__)"
        )


def _check_cluster(program: Program, shape: LaunchShape) -> None:
    if shape.cluster_size == 1:
        return
    if shape.cluster_size > _MOST_CLUSTER:
        raise LaunchError(
            f"cluster is {shape.cluster}, {shape.cluster_size} blocks; use at most {_MOST_CLUSTER}"
        )
    if _architecture(program) < _CLUSTERS_FROM:
        raise LaunchError(
            f"cluster is {shape.cluster}, but {program.target} has no clusters; compile for "
            f"sm_{_CLUSTERS_FROM} or later, or leave the cluster out"
        )
    if any(size % step for size, step in zip(shape.grid, shape.cluster, strict=True)):
        raise LaunchError(
            f"grid {shape.grid} is not whole clusters of {shape.cluster}; make each size of the "
            "grid a multiple of the cluster's, and guard the blocks that are too many"
        )


def _check_shared(program: Program, shared: int) -> None:
    if shared < 0:
        raise LaunchError(f"shared is {shared!r}; give the bytes of dynamic shared memory")
    static = program.static_shared
    if static > _STATIC_SHARED:
        raise LaunchError(
            f"{program.name} has {static} bytes of static shared memory; no more than "
            f"{_STATIC_SHARED} can be static, so use dynamic memory (extern __shared__, `shared=`)"
        )
    most = _KIB * next(
        size for since, size in reversed(_SHARED.items()) if since <= _architecture(program)
    )
    if static + shared > most:
        raise LaunchError(
            f"{program.name} would have {static + shared} bytes of shared memory ({static} static, "
            f"{shared} dynamic), but a block on {program.target} has {most} at most; use smaller "
            "tiles or fewer stages"
        )


def _architecture(program: Program) -> int:
    found = re.search(r"\d+", program.target)
    return int(found.group()) if found else 0
