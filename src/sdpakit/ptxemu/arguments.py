"""Arguments of a launch: arrays to the device and back, all others to the parameter block."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from numpy.lib.array_utils import byte_bounds

from sdpakit.ptxemu.device import Device
from sdpakit.ptxemu.errors import LaunchError, UnwrittenOutput
from sdpakit.ptxemu.program import Parameter, Program
from sdpakit.ptxemu.scalars import Array
from sdpakit.ptxemu.tensormap import TensorMap
from sdpakit.ptxemu.windows import ALLOCATED, CONSTANT, GLOBAL_BASE, INITIALISED, PRESENT

# Memory of drivers begins at multiples of it; that of NumPy, which is not, is placed as if it did.
_ALIGNMENT = 256


@dataclass(frozen=True)
class Output:
    """An array that a kernel has to write whole; what it holds before cannot be read.

    Parameters
    ----------
    array : numpy.ndarray or TensorMap
        Where the results go; a tensor map stands for its array.
    """

    array: Array | TensorMap


class Pointer(int):
    """The address of an array, which no other argument may take by mistake."""


@dataclass(frozen=True)
class Named:
    """An array among the arguments; `name` is what messages call it."""

    name: str
    array: Array
    is_output: bool

    @property
    def label(self) -> str:
        """The name with type and shape."""
        return f"{self.name} ({self.array.dtype}{[*self.array.shape]})"

    @property
    def owner(self) -> tuple[int, int]:
        """First and last address of the memory that the array is a view of."""
        array = self.array
        while isinstance(array.base, np.ndarray):
            array = array.base
        return byte_bounds(array)


class ArgumentArrays:
    """The arrays among the arguments, copied to a device.

    Arrays that share memory on the host share it there. Bytes between the elements of a strided
    view are nobody's, and an array that may not be written here may not be written there.
    """

    def __init__(self, device: Device, arrays: Iterable[Named]) -> None:
        self._device = device
        self._addresses: dict[int, int] = {}
        self._reserved: list[int] = []
        self._arrays = list(arrays)
        for group in _sharing(self._arrays):
            self._place(group)
        self._copy_in()

    def _place(self, group: Sequence[Named]) -> None:
        bounds = [byte_bounds(named.array) for named in group]
        low, high = min(low for low, _ in bounds), max(high for _, high in bounds)
        begin = min(named.owner[0] for named in group)
        label = " and ".join(dict.fromkeys(named.label for named in group))
        size = max(high - low, 0)
        address = self._device.reserve(size, label, phase=(low - begin) % _ALIGNMENT)
        self._reserved.append(address)
        for named in group:
            self._addresses[id(named.array)] = address + named.array.ctypes.data - low

    def _copy_in(self) -> None:
        # Where arrays share memory, values make it initialised, and one to be written writeable.
        for named in sorted(self._arrays, key=_precedence):
            states = self._elements(named.array, self._device.arena_state)
            if named.is_output:
                states[...] = ALLOCATED
                continue
            raw = np.ascontiguousarray(named.array).reshape(*named.array.shape, 1)
            self._elements(named.array, self._device.arena)[...] = raw.view(np.uint8)
            states[...] = PRESENT if named.array.flags.writeable else CONSTANT

    def _elements(self, array: Array, memory: Array) -> Array:
        """Return an array's bytes in the arena, or their states, shape (..., itemsize), no copy."""
        offset = self._addresses[id(array)] - GLOBAL_BASE
        shape, strides = (*array.shape, array.itemsize), (*array.strides, 1)
        return np.ndarray(shape, np.uint8, memory.data, offset, strides)

    def address(self, array: Array) -> Pointer:
        """Return where an array is."""
        return Pointer(self._addresses[id(array)])

    def constant(self, label: str, contents: bytes) -> Pointer:
        """Return where bytes are that the kernel can read."""
        address = self._device.reserve(len(contents), label)
        self._reserved.append(address)
        self._device.bytes(address, len(contents))[...] = np.frombuffer(contents, np.uint8)
        self._device.state(address, len(contents))[...] = CONSTANT
        return Pointer(address)

    def check_outputs(self) -> None:
        """Raise if an element of an output was not written, or not whole."""
        for named in self._arrays:
            if not named.is_output:
                continue
            states = self._elements(named.array, self._device.arena_state)
            unwritten = states & INITIALISED == 0
            if unwritten.any():
                missing = unwritten.any(axis=-1)
                first = tuple(np.argwhere(missing)[0].tolist())
                raise UnwrittenOutput(
                    f"{int(missing.sum())} of {missing.size} elements of {named.label} were not "
                    f"written, the first at index {first}",
                    "Write every element; if what the array holds should stay, pass it as it is, "
                    "not as an Output.",
                )

    def copy_back(self) -> None:
        """Copy what the kernel left to all arrays that may be written."""
        for named in self._arrays:
            if named.array.flags.writeable:
                raw = np.ascontiguousarray(self._elements(named.array, self._device.arena))
                named.array[...] = raw.view(named.array.dtype)[..., 0]

    def release(self) -> None:
        """Give their memory on the device back."""
        for address in self._reserved:
            self._device.free(address)


def _precedence(named: Named) -> int:
    return 0 if named.is_output else 1 + bool(named.array.flags.writeable)


def _sharing(arrays: Sequence[Named]) -> Iterator[list[Named]]:
    """Yield the arrays that are views of the same memory, or of memory that overlaps."""
    group: list[Named] = []
    end = 0
    for named in sorted(arrays, key=lambda named: named.owner):
        low, high = named.owner
        if group and low >= end:
            yield group
            group = []
        end = max(end, high) if group else high
        group.append(named)
    if group:
        yield group


def parameter_block(
    program: Program, args: Sequence[Any], value: Callable[[Parameter, Any], Any]
) -> bytes:
    """Return the parameter block.

    Parameters
    ----------
    program : Program
        Which has parameters.
    args : sequence
        One for each of them.
    value : callable
        Gives the address of an array, and the bytes of a tensor map, for a parameter and argument.

    Raises
    ------
    LaunchError
        If there are not as many, or one is not of its parameter's type or range.
    """
    if len(args) != len(program.parameters):
        wanted = ", ".join(_kind(parameter) for parameter in program.parameters)
        raise LaunchError(
            f"{program.name} has {len(program.parameters)} parameters ({wanted}), but got "
            f"{len(args)} arguments; pass one for each"
        )
    block = bytearray(program.parameter_bytes)
    for index, (parameter, given) in enumerate(zip(program.parameters, args, strict=True)):
        encoded = _Encoder(program, index, parameter).encode(value(parameter, given))
        block[parameter.offset : parameter.offset + parameter.size] = encoded
    return bytes(block)


def _kind(parameter: Parameter) -> str:
    return parameter.type.name if parameter.type else f"{parameter.size} bytes"


@dataclass(frozen=True)
class _Encoder:
    """Turns one argument into the bytes of its parameter."""

    program: Program
    index: int
    parameter: Parameter

    def encode(self, value: Any) -> bytes:
        kind, size = self.parameter.type, self.parameter.size
        if isinstance(value, (bytes, bytearray)):
            if len(value) != size:
                self._refuse(f"got {len(value)} bytes", f"pass {size}")
            return bytes(value)
        if kind is None or (kind.kind in {"bits", "packed"} and _is_other_scalar(value)):
            return self._same_size(value)
        if kind.kind == "float":
            return self._float(kind.value, value)
        return self._integer(value)

    def _refuse(self, what: str, remedy: str) -> NoReturn:
        raise LaunchError(
            f"argument {self.index} of {self.program.name} ({self.parameter.name}) is "
            f"{_kind(self.parameter)}, but {what}; {remedy}"
        )

    def _same_size(self, value: Any) -> bytes:
        """Take a NumPy scalar of the same size as its bits."""
        if not isinstance(value, np.generic) or value.nbytes != self.parameter.size:
            self._refuse(
                f"got {_shown(value)}",
                f"pass {self.parameter.size} bytes, or a NumPy scalar of that size",
            )
        return value.tobytes()

    def _float(self, dtype: np.dtype[Any], value: Any) -> bytes:
        if not isinstance(value, (float, np.floating)):
            hint = "a float"
            if isinstance(value, (int, np.integer)) and not isinstance(value, Pointer):
                hint = repr(float(value))
            self._refuse(f"got {_shown(value)}", f"pass {hint}")
        with np.errstate(over="ignore"):
            cast = dtype.type(value)
        if math.isfinite(value) and not math.isfinite(cast):
            self._refuse(f"{value!r} is too large for it", f"pass at most {np.finfo(dtype).max}")
        return bytes(cast.tobytes())

    def _integer(self, value: Any) -> bytes:
        assert self.parameter.type is not None
        bits, name = self.parameter.type.bits, self.parameter.type.name
        if not isinstance(value, (int, np.integer, np.bool_)):
            hint = "an int, an array or an address" if bits == 64 else "an int"
            self._refuse(f"got {_shown(value)}", f"pass {hint}")
        if isinstance(value, Pointer) and bits != 64:
            self._refuse(
                "got an array, which is a pointer of 64 bits",
                "check the order of the arguments; pass a number by value as an int",
            )
        number = int(value)
        # Compilers declare parameters that are signed in the source as unsigned, so negative
        # numbers pass for both; large ones pass unless the parameter says it is signed.
        low, high = -(1 << bits - 1), (1 << bits - name.startswith("s")) - 1
        if not low <= number <= high:
            self._refuse(f"{number} is out of its range", f"pass {low} to {high}")
        return (number & (1 << bits) - 1).to_bytes(bits // 8, "little")


def _is_other_scalar(value: Any) -> bool:
    return isinstance(value, np.generic) and not isinstance(value, (np.integer, np.bool_))


def _shown(value: Any) -> str:
    if isinstance(value, Pointer):
        return "an array, which is a pointer"
    return f"{type(value).__name__} {value!r}"
