"""Launching: limits, arguments, batches of blocks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from sdpakit.ptxemu.arguments import ArgumentArrays, Output, parameter_block
from sdpakit.ptxemu.checks import Checks
from sdpakit.ptxemu.counters import Counters
from sdpakit.ptxemu.device import Device
from sdpakit.ptxemu.errors import LaunchError
from sdpakit.ptxemu.machine import LaunchShape, Machine
from sdpakit.ptxemu.program import Program

Code: TypeAlias = Any
Sizes: TypeAlias = int | Sequence[int]

# Lanes in step cost little more than one, but their registers and shared memory take room.
_MOST_BLOCKS = 64
_BATCH_BYTES = 256 << 20


@dataclass(frozen=True)
class Report:
    """What a launch did."""

    counters: Counters


def launch(
    code: Code,
    grid: Sizes,
    block: Sizes,
    args: Sequence[Any],
    *,
    entry: str | None = None,
    shared: int = 0,
    cluster: Sizes = (1, 1, 1),
    checks: Checks | None = None,
) -> Report:
    """Run a kernel on NumPy arrays."""
    return launch_on(
        Device(), code, grid, block, args,
        entry=entry, shared=shared, cluster=cluster, checks=checks,
    )  # fmt: skip


def launch_on(
    device: Device,
    code: Code,
    grid: Sizes,
    block: Sizes,
    args: Sequence[Any],
    *,
    entry: str | None = None,
    shared: int = 0,
    cluster: Sizes = (1, 1, 1),
    checks: Checks | None = None,
) -> Report:
    """Run a kernel on a device."""
    from sdpakit.ptxemu.scheduler import Scheduler

    program = find_program(code, entry)
    shape = LaunchShape(_three(grid), _three(block), _three(cluster), shared)
    checks = checks or Checks()
    arrays = [
        (f"argument {index}", value.array, True)
        if isinstance(value, Output)
        else (f"argument {index}", value, False)
        for index, value in enumerate(args)
        if isinstance(value, (np.ndarray, Output))
    ]
    bound = ArgumentArrays(device, arrays)
    values = [
        bound.address(value.array if isinstance(value, Output) else value)
        if isinstance(value, (np.ndarray, Output))
        else value
        for value in args
    ]
    parameters = parameter_block(program, values)
    counters = Counters()
    scheduler = Scheduler(program)
    for blocks in _batches(program, shape):
        scheduler.run(Machine(program, shape, blocks, device, parameters, checks, counters))
    if checks.unwritten:
        bound.check_outputs()
    bound.copy_back()
    return Report(counters)


def find_program(code: Code, entry: str | None) -> Program:
    """Return the program of an entry of PTX text, a module, or a program as it is."""
    if isinstance(code, Program):
        return code
    from sdpakit.ptxemu.module import parse

    module = parse(code) if isinstance(code, str) else code
    names = list(module.entries)
    if entry is None and len(names) == 1:
        return module.program(names[0])
    if entry not in names:
        raise LaunchError(
            f"no entry {entry!r}; the module has {names}; name one of them (`entry=`)"
        )
    return module.program(entry)


def _three(sizes: Sizes) -> tuple[int, int, int]:
    given = (sizes,) if isinstance(sizes, int) else tuple(sizes)
    x, y, z = (*given, 1, 1)[:3]
    return x, y, z


def _batches(program: Program, shape: LaunchShape) -> Iterator[list[tuple[int, int, int]]]:
    """Yield the blocks of each batch: clusters whole, in the order of ranks."""
    clusters = [range(0, size, step) for size, step in zip(shape.grid, shape.cluster, strict=True)]
    inside = [
        (x, y, z)
        for z in range(shape.cluster[2])
        for y in range(shape.cluster[1])
        for x in range(shape.cluster[0])
    ]
    batch: list[tuple[int, int, int]] = []
    most = max(_most_blocks(program, shape) // len(inside), 1) * len(inside)
    for cz in clusters[2]:
        for cy in clusters[1]:
            for cx in clusters[0]:
                batch += [(cx + x, cy + y, cz + z) for x, y, z in inside]
                if len(batch) >= most:
                    yield batch
                    batch = []
    if batch:
        yield batch


def _most_blocks(program: Program, shape: LaunchShape) -> int:
    registers = sum(kind.size for kind in program.registers)
    memory = program.dynamic_shared_start + shape.dynamic_shared
    needed = shape.threads * (registers + program.local_bytes) + 16 * memory
    return min(_MOST_BLOCKS, max(_BATCH_BYTES // max(needed, 1), 1), math.prod(shape.grid))
