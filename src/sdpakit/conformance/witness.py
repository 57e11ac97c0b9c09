"""What a call must leave alone: operands, the memory around them, results of other calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from sdpakit.conformance.inputs import Array
from sdpakit.dtypes import FLOATS

_LARGEST = 2**26  # bytes of memory around an operand that are worth a copy

_Form: TypeAlias = tuple[tuple[int, ...], tuple[int, ...], str]


class Witness:
    """Remembers operands, to tell after a call what became of them (SHAPE-5).

    Parameters
    ----------
    operands : mapping
        Arguments of a call; arrays in `params` too.
    """

    def __init__(self, operands: Mapping[str, Any]) -> None:
        self._params = operands.get("params")
        self._names = set(self._params or {})
        self._arrays = {name: x for name, x in _arrays(operands) if isinstance(x, np.ndarray)}
        self._before = {name: _state(x) for name, x in self._arrays.items()}

    def complaints(self) -> list[str]:
        """Return a text for each operand that is not as it was."""
        found = []
        for name, array in self._arrays.items():
            (form, values, around), now = self._before[name], _state(array)
            if now[0] != form:
                found.append(f"{name} was given another shape, strides or dtype")
            elif now[1] != values:
                found.append(f"{name} was written to")
            elif now[2] != around:
                found.append(f"memory beside {name} was written to")
        if self._params is not None and set(self._params) != self._names:
            found.append("names were added to params= or taken out of it")
        return found


def _arrays(operands: Mapping[str, Any]) -> list[tuple[str, Any]]:
    tables = operands.get("params") or {}
    return [*operands.items(), *((f"params[{name!r}]", x) for name, x in tables.items())]


def _state(array: Array) -> tuple[_Form, bytes, bytes]:
    """Return form, values, and the whole memory that an array is a part of."""
    owner = array
    while isinstance(owner.base, np.ndarray) and owner.base.nbytes <= _LARGEST:
        owner = owner.base
    around = b"" if owner is array else owner.tobytes()
    return (array.shape, array.strides, array.dtype.str), array.tobytes(), around


class Kept:
    """Results of an earlier call, which later calls must not change.

    Parameters
    ----------
    results : mapping
        Outputs by name.
    """

    def __init__(self, results: Mapping[str, Any]) -> None:
        self.results = {n: x for n, x in results.items() if isinstance(x, np.ndarray)}
        self._copies = {name: x.copy() for name, x in self.results.items()}

    def complaints(self) -> list[str]:
        """Return a text for each result that has changed since."""
        return [
            f"{name} of an earlier call was changed by a later one"
            for name, x in self.results.items()
            if not same_bits(x, self._copies[name])
        ]


def same_bits(a: Any, b: Any) -> bool:
    """Return whether two arrays agree in shape, dtype and every bit; any NaN is like another."""
    if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray):
        return False
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.dtype.name not in FLOATS:
        return a.tobytes() == b.tobytes()
    both_nan = np.isnan(a.astype(np.float64)) & np.isnan(b.astype(np.float64))
    bits = np.dtype(f"uint{8 * a.dtype.itemsize}")
    same = np.ascontiguousarray(a).view(bits) == np.ascontiguousarray(b).view(bits)
    return bool((same | both_nan).all())
