"""The scalar types of PTX: what a register holds of a value, and what arithmetic sees of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
Kind = Literal["predicate", "bits", "unsigned", "signed", "float", "packed"]


@dataclass(frozen=True, slots=True)
class ScalarType:
    """One PTX type.

    Attributes
    ----------
    name : str
        As PTX spells it, without the dot: ``"f32"``.
    bits : int
        Width; a predicate has 1.
    kind : str
        ``predicate``, ``bits``, ``unsigned``, ``signed``, ``float`` or ``packed`` (two values in
        one register).
    storage : numpy.dtype
        What a register or memory holds: an unsigned integer of that width, or bool.
    value : numpy.dtype
        What arithmetic sees. It differs from `storage` for signed integers and for the floats that
        NumPy has; ``bf16``, ``tf32`` and packed types stay bits here, as operations convert them.
    """

    name: str
    bits: int
    kind: Kind
    storage: np.dtype[Any]
    value: np.dtype[Any]

    @property
    def size(self) -> int:
        """Bytes in memory."""
        return self.storage.itemsize

    def see(self, stored: Array) -> Array:
        """Return stored bits as values, without a copy."""
        return stored if stored.dtype == self.value else stored.view(self.value)

    def store(self, values: Array) -> Array:
        """Return values (or bits of this width) as the bits that a register holds."""
        return values if values.dtype == self.storage else values.view(self.storage)


def _types() -> dict[str, ScalarType]:
    found: dict[str, ScalarType] = {}

    def add(names: str, bits: int, kind: Kind, value: str = "") -> None:
        storage = np.dtype(bool) if kind == "predicate" else np.dtype(f"u{max(bits // 8, 1)}")
        for name in names.split():
            seen = np.dtype(value) if value else storage
            found[name] = ScalarType(name, bits, kind, storage, seen)

    add("pred", 1, "predicate")
    for bits in (8, 16, 32, 64):
        add(f"b{bits}", bits, "bits")
        add(f"u{bits}", bits, "unsigned")
        add(f"s{bits}", bits, "signed", f"i{bits // 8}")
    add("f16", 16, "float", "f2")
    add("f32", 32, "float", "f4")
    add("f64", 64, "float", "f8")
    add("bf16", 16, "float", "u2")
    add("tf32", 32, "float", "u4")
    add("f16x2 bf16x2 u16x2 s16x2", 32, "packed")
    add("f32x2", 64, "packed")
    add("e4m3x2 e5m2x2", 16, "packed")
    return found


TYPES: dict[str, ScalarType] = _types()
PREDICATE = TYPES["pred"]
B32, U32, S32, F32 = (TYPES[name] for name in ("b32", "u32", "s32", "f32"))
B64, U64, S64, F64 = (TYPES[name] for name in ("b64", "u64", "s64", "f64"))


def bf16_to_f32(bits: Array) -> Array:
    """Return the float32 values of bfloat16 bits (uint16)."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def f32_to_bf16(values: Array) -> Array:
    """Round float32 values to bfloat16 bits (uint16), to nearest, ties to even; NaN is 0x7fff."""
    rounded = f32_to_upper_bf16(values)
    return (rounded >> np.uint32(16)).astype(np.uint16)


def f32_to_upper_bf16(values: Array) -> Array:
    """As `f32_to_bf16`, but the bits stand in the upper half of uint32; the lower is undefined."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = bits >> np.uint32(16)
    rounded &= np.uint32(1)
    rounded += bits
    rounded += np.uint32(0x7FFF)
    nan = np.isnan(values)
    if nan.any():
        rounded[nan] = 0x7FFF_0000
    return rounded
