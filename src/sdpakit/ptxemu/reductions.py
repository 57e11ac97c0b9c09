"""What a reducing copy does with two values: one that lies there and one that comes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sdpakit.ptxemu.scalars import TYPES, Array, ScalarType, bf16_to_f32, f32_to_bf16

REDUCTIONS = ("add", "min", "max", "inc", "dec", "and", "or", "xor")


def _inc(old: Array, new: Array) -> Array:
    return np.where(old >= new, 0, old + 1).astype(old.dtype)


def _dec(old: Array, new: Array) -> Array:
    return np.where((old == 0) | (old > new), new, old - 1).astype(old.dtype)


# fmin and fmax: of a number and a NaN, the number is the result.
_FUNCTIONS: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "min": np.fmin,
    "max": np.fmax,
    "inc": _inc,
    "dec": _dec,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def combine(name: str, kind: str | ScalarType) -> Callable[[Array, Array], Array]:
    """Return the function of two arrays of bytes that a reduction of a type is."""
    of = TYPES[kind] if isinstance(kind, str) else kind
    function = _FUNCTIONS[name]

    def combined(old: Array, new: Array) -> Array:
        pair = (np.ascontiguousarray(values).view(of.storage) for values in (old, new))
        with np.errstate(all="ignore"):
            if of.name == "bf16":
                before, after = (bf16_to_f32(bits) for bits in pair)
                return f32_to_bf16(function(before, after)).view(np.uint8)
            before, after = (of.see(bits) for bits in pair)
            return of.store(function(before, after)).view(np.uint8)

    return combined
