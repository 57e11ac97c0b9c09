"""Launches: from arrays and sizes to batches of blocks, and back."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from typing import Any, TypeAlias

import numpy as np

from sdpakit.ptxemu.arguments import ArgumentArrays, Named, Output, Pointer, parameter_block
from sdpakit.ptxemu.checks import Checks
from sdpakit.ptxemu.counters import Counters
from sdpakit.ptxemu.crossings import launch_writers
from sdpakit.ptxemu.device import Device
from sdpakit.ptxemu.errors import LaunchError
from sdpakit.ptxemu.limits import Sizes, launch_shape
from sdpakit.ptxemu.machine import LaunchShape, Machine
from sdpakit.ptxemu.module import Module, parse
from sdpakit.ptxemu.program import Parameter, Program
from sdpakit.ptxemu.reporting import Report
from sdpakit.ptxemu.scheduler import BLOCK_LIMIT, Scheduler
from sdpakit.ptxemu.tensormap import TensorMap

Code: TypeAlias = str | Module | Program

# More lanes in one step cost little, but each block has its registers and shared memory.
_MOST_BLOCKS = 64
_BATCH_BYTES = 256 << 20
# What a byte of shared memory takes: itself, its state, and who touched it last.
_SHARED_COST = 16


def launch(  # noqa: PLR0913 - a launch has as many sides
    code: Code,
    grid: Sizes,
    block: Sizes,
    args: Sequence[Any],
    *,
    entry: str | None = None,
    shared: int = 0,
    cluster: Sizes = (1, 1, 1),
    checks: Checks | None = None,
    profile: bool = False,
    device: Device | None = None,
    limit: int = BLOCK_LIMIT,
) -> Report:
    """Run a kernel.

    Parameters
    ----------
    code : str, Module or Program
        PTX, or what `parse` made of it.
    grid, block : int or sequence of int
        How many blocks, and threads of a block; x first, up to three sizes.
    args : sequence
        One for each parameter. A NumPy array is a pointer: it is copied to the device, and back
        when the launch succeeded, if it may be written; views of the same memory share it there.
        An `Output` starts uninitialised and must be written whole. A Python or NumPy number is
        passed by value and must be in range; bytes are a struct by value. A `TensorMap` is the
        128 bytes of one, or a pointer to them.
    entry : str, optional
        Which kernel of the module; not needed if it has one only.
    shared : int
        Bytes of dynamic shared memory.
    cluster : int or sequence of int
        Blocks of a cluster.
    checks : Checks, optional
        What to check; everything by default.
    profile : bool
        Whether to count accesses to memory: bank conflicts, sectors.
    device : Device, optional
        Where; a new one by default.
    limit : int
        How many basic blocks a batch of thread blocks may run, one after the other, before the
        kernel is said to run for ever.

    Returns
    -------
    Report
        With counters.

    Raises
    ------
    LaunchError
        If arguments or sizes do not fit the kernel.
    KernelFault
        What the kernel did wrong; no array is changed then.
    """
    program = find_program(code, entry)
    shape = launch_shape(program, grid, block, cluster, shared)
    device, checks = device or Device(), checks or Checks()
    counters = Counters(accesses=profile)
    arrays = ArgumentArrays(device, _arrays(args))
    try:
        parameters = parameter_block(program, args, partial(_value, arrays))
        scheduler = _schedulers.of(program)
        device.module_address(program)  # memory has its final size from here on
        if checks.race:
            device.writers = launch_writers(program, shape, device.arena.size)
        for blocks in _batches(program, shape):
            machine = Machine(program, shape, blocks, device, parameters, checks, counters)
            scheduler.run(machine, limit)
        if checks.unwritten:
            arrays.check_outputs()
        arrays.copy_back()
    finally:
        device.writers = None
        arrays.release()
    return Report(program, counters)


class _Schedulers:
    """Schedulers of the programs launched last, as making one takes as long as a small launch.

    Programs are told apart by identity; to compare their instructions would take long, too.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: dict[int, tuple[Program, Scheduler]] = {}

    def of(self, program: Program) -> Scheduler:
        """Return the scheduler of a program."""
        found = self._kept.pop(id(program), None) or (program, Scheduler(program))
        self._kept[id(program)] = found
        if len(self._kept) > self._most:
            del self._kept[next(iter(self._kept))]
        return found[1]


_schedulers = _Schedulers(most=16)


@lru_cache(maxsize=16)
def _parsed(ptx: str) -> Module:
    return parse(ptx)


def find_program(code: Code, entry: str | None) -> Program:
    """Return the program of an entry.

    Raises
    ------
    LaunchError
        If there is no such entry, or several and no name.
    """
    if isinstance(code, Program):
        if entry not in {None, code.name}:
            raise LaunchError(f"the program is {code.name}, not {entry}; pass its module instead")
        return code
    if not isinstance(code, (str, Module)):
        raise LaunchError(
            f"got {type(code).__name__} for the code; pass PTX as str, or what parse returned"
        )
    return (_parsed(code) if isinstance(code, str) else code).program(entry)


def _array(value: Any) -> Any:
    """Return the array that an argument is or has, else the argument."""
    value = _inside(value)
    return value.base if isinstance(value, TensorMap) else value


def _inside(value: Any) -> Any:
    return value.array if isinstance(value, Output) else value


def _arrays(args: Sequence[Any]) -> Iterator[Named]:
    for index, value in enumerate(args):
        is_output, array = isinstance(value, Output), _array(value)
        if isinstance(array, np.ndarray):
            if array.dtype.hasobject:
                raise LaunchError(f"argument {index} holds Python objects; pass numbers")
            yield Named(f"argument {index}", array, is_output)
        elif is_output:
            raise LaunchError(
                f"argument {index} is an Output of {type(array).__name__}; give it a NumPy array"
            )


def _value(arrays: ArgumentArrays, parameter: Parameter, value: Any) -> bytes | Pointer | Any:
    """Return an argument with addresses for arrays, and for tensor maps their bytes."""
    array = _array(value)
    address = arrays.address(array) if isinstance(array, np.ndarray) else array
    tensor_map = _inside(value)
    if not isinstance(tensor_map, TensorMap):
        return address
    encoded = tensor_map.encode(address)
    if parameter.size == len(encoded):
        return encoded
    return arrays.constant(f"the tensor map for {parameter.name}", encoded)


def _batches(program: Program, shape: LaunchShape) -> Iterator[list[tuple[int, int, int]]]:
    """Yield the blocks of each batch: whole clusters, each in the order of ranks."""
    inside = list(_positions(shape.cluster))
    at_once = max(_most_blocks(program, shape) // len(inside), 1)
    steps = tuple(size // step for size, step in zip(shape.grid, shape.cluster, strict=True))
    clusters = _positions(steps)
    while chosen := list(itertools.islice(clusters, at_once)):
        yield [
            (x * shape.cluster[0] + i, y * shape.cluster[1] + j, z * shape.cluster[2] + k)
            for x, y, z in chosen
            for i, j, k in inside
        ]


def _positions(sizes: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Yield all positions, x fastest."""
    for z, y, x in itertools.product(*(range(size) for size in reversed(sizes))):
        yield x, y, z


def _most_blocks(program: Program, shape: LaunchShape) -> int:
    registers = sum(kind.size for kind in program.registers)
    shared = program.dynamic_shared_start + shape.dynamic_shared
    block = shape.threads * (registers + 2 * program.local_bytes) + _SHARED_COST * shared
    return min(_MOST_BLOCKS, max(_BATCH_BYTES // max(block, 1), 1), math.prod(shape.grid))
