"""Arguments of a launch: NumPy arrays to device memory and back, scalars to the parameter block."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds

from sdpakit.ptxemu.device import Device
from sdpakit.ptxemu.errors import LaunchError, UnwrittenOutput
from sdpakit.ptxemu.windows import ALLOCATED, CONSTANT, GLOBAL_BASE, INITIALISED, PRESENT
from sdpakit.ptxemu.program import Parameter, Program
from sdpakit.ptxemu.scalars import Array


@dataclass(frozen=True)
class Output:
    """An array that a kernel writes: its memory starts uninitialised, and every byte must be written."""

    array: Array


@dataclass(frozen=True)
class _Bound:
    """An array with its place on the device; `name` is what messages call it."""

    array: Array
    name: str
    is_output: bool
    address: int

    def on(self, memory: Array) -> Array:
        """Return the bytes of the array's elements in the arena or its state, shape (..., itemsize)."""
        array = self.array
        return np.ndarray(
            (*array.shape, array.itemsize),
            np.uint8,
            memory.data,
            self.address - GLOBAL_BASE,
            (*array.strides, 1),
        )


class ArgumentArrays:
    """The arrays among the arguments, copied to a device.

    Arrays that share memory on the host share it there, at the same distances; bytes between the
    elements of a strided view are nobody's. An array that may not be written on the host may not be
    written there.
    """

    def __init__(self, device: Device, arrays: Sequence[tuple[str, Array, bool]]) -> None:
        self._device = device
        self._bound: list[_Bound] = []
        for group in _sharing([array for _, array, _ in arrays]):
            low = min(byte_bounds(arrays[index][1])[0] for index in group)
            high = max(byte_bounds(arrays[index][1])[1] for index in group)
            root = min(byte_bounds(_owner(arrays[index][1]))[0] for index in group)
            label = " and ".join(dict.fromkeys(_label(*arrays[index]) for index in group))
            begin = device.reserve(high - low, label, phase=(low - root) % 256)
            for index in group:
                name, array, is_output = arrays[index]
                address = begin + array.ctypes.data - low
                self._bound.append(_Bound(array, name, is_output, address))
        self._addresses = {id(bound.array): bound.address for bound in self._bound}
        self._copy_in()

    def _copy_in(self) -> None:
        arena, states = self._device.arena, self._device.arena_state
        # Where arrays share memory, one with values makes it initialised and one to write makes it writeable.
        for bound in sorted(self._bound, key=_precedence):
            if bound.is_output:
                bound.on(states)[...] = ALLOCATED
            else:
                bound.on(arena)[...] = _bytes(bound.array)
                bound.on(states)[...] = PRESENT if bound.array.flags.writeable else CONSTANT

    def address(self, array: Array) -> int:
        """Return where an array of the arguments lies."""
        return self._addresses[id(array)]

    def check_outputs(self) -> None:
        """Raise if a byte of an output was not written."""
        for bound in self._bound:
            if not bound.is_output:
                continue
            missing = ~((bound.on(self._device.arena_state) & INITIALISED) != 0).all(axis=-1)
            if missing.any():
                first = tuple(int(i) for i in np.argwhere(missing)[0])
                raise UnwrittenOutput(
                    f"{int(missing.sum())} of {missing.size} elements of {bound.name} were not "
                    f"written, the first at index {first}",
                    "Write every element, or pass the array itself instead of an Output if what it "
                    "holds should stay.",
                )

    def copy_back(self) -> None:
        """Copy what the kernel left to the arrays that may be written."""
        for bound in self._bound:
            if bound.array.flags.writeable:
                raw = np.ascontiguousarray(bound.on(self._device.arena))
                bound.array[...] = raw.view(bound.array.dtype)[..., 0]


def _precedence(bound: _Bound) -> int:
    return 0 if bound.is_output else 1 + bool(bound.array.flags.writeable)


def _bytes(array: Array) -> Array:
    """Return the bytes of each element, shape (..., itemsize)."""
    return np.ascontiguousarray(array).reshape(*array.shape, 1).view(np.uint8)


def _label(name: str, array: Array, _: bool) -> str:
    return f"{name} ({array.dtype}{list(array.shape)})"


def _owner(array: Array) -> Array:
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def _sharing(arrays: Sequence[Array]) -> Iterator[list[int]]:
    """Yield the indices of arrays that are views of the same memory, or of memory that overlaps."""
    spans = sorted((*byte_bounds(_owner(array)), index) for index, array in enumerate(arrays))
    group: list[int] = []
    end = 0
    for low, high, index in spans:
        if group and low >= end:
            yield group
            group = []
        end = max(end, high) if group else high
        group.append(index)
    if group:
        yield group


def parameter_block(program: Program, values: Sequence[int | Array | bytes | Any]) -> bytes:
    """Return the parameter block for values in the order of the program's parameters."""
    if len(values) != len(program.parameters):
        raise LaunchError(
            f"{program.name} takes {len(program.parameters)} arguments "
            f"({_signature(program)}), got {len(values)}; pass one for each parameter"
        )
    block = bytearray(program.parameter_bytes)
    for index, (parameter, value) in enumerate(zip(program.parameters, values, strict=True)):
        block[parameter.offset : parameter.offset + parameter.size] = _encode(
            f"argument {index} of {program.name} ({parameter.name})", parameter, value
        )
    return bytes(block)


def _signature(program: Program) -> str:
    return ", ".join(_kind(parameter) for parameter in program.parameters)


def _kind(parameter: Parameter) -> str:
    return parameter.type.name if parameter.type else f"{parameter.size} bytes"


def _encode(what: str, parameter: Parameter, value: Any) -> bytes:
    """Return the bytes of one argument; arrays and tensor maps are addresses or bytes by now."""
    if isinstance(value, (bytes, bytearray, np.void)):
        raw = bytes(value)
        if len(raw) != parameter.size:
            raise LaunchError(f"{what} has {parameter.size} bytes, got {len(raw)}; pass as many")
        return raw
    kind = parameter.type
    if kind is None:
        if isinstance(value, np.generic) and value.nbytes == parameter.size:
            return value.tobytes()
        raise LaunchError(
            f"{what} is a struct of {parameter.size} bytes, got {type(value).__name__} {value!r}; "
            "pass bytes, or a NumPy scalar of that size"
        )
    if kind.name == "bf16" or kind.kind == "packed":
        return _encode_bits(what, parameter, value)
    if kind.kind == "float":
        return _encode_float(what, kind.name, kind.value, value)
    if isinstance(value, (float, np.floating)):
        return _encode_bits(what, parameter, value)
    return _encode_integer(what, kind.name, kind.bits, value)


def _encode_bits(what: str, parameter: Parameter, value: Any) -> bytes:
    """A NumPy scalar of another kind but the same width passes as its bits."""
    if isinstance(value, np.generic) and value.nbytes == parameter.size:
        return value.tobytes()
    raise LaunchError(
        f"{what} is {_kind(parameter)}, got {type(value).__name__} {value!r}; pass an int, or a "
        f"NumPy scalar of {parameter.size} bytes whose bits are meant"
    )


def _encode_float(what: str, name: str, dtype: np.dtype[Any], value: Any) -> bytes:
    if not isinstance(value, (float, np.floating)):
        raise LaunchError(
            f"{what} is {name}, got {type(value).__name__} {value!r}; pass a float, as in "
            f"{_float_hint(value)}"
        )
    with np.errstate(over="ignore"):
        cast = dtype.type(value)
    if math.isfinite(value) and not np.isfinite(cast):
        raise LaunchError(
            f"{what} is {name}, and {value!r} is out of its range; pass a value of at most "
            f"{np.finfo(dtype).max!s} in size"
        )
    return bytes(cast.tobytes())


def _float_hint(value: Any) -> str:
    return f"{float(value)!r}" if isinstance(value, (int, np.integer)) else "1.0"


def _encode_integer(what: str, name: str, bits: int, value: Any) -> bytes:
    if not isinstance(value, (int, np.integer, np.bool_)):
        raise LaunchError(
            f"{what} is {name}, got {type(value).__name__} {value!r}; pass an int"
            + (", or an array or device pointer" if bits == 64 else "")
        )
    number = int(value)
    # Compilers declare signed parameters as unsigned ones, so both readings of the bits are allowed
    # unless the parameter says it is signed.
    high = 1 << (bits - 1 if name.startswith("s") else bits)
    low = -(1 << (bits - 1))
    if not low <= number < high:
        raise LaunchError(f"{what} is {name}, and {number} is not in {low} to {high - 1}")
    return (number & ((1 << bits) - 1)).to_bytes(bits // 8, "little")
