"""Proofs that the integers of a call stay in range, kept by shape where no table takes part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sdpakit.ir.program import Program
from sdpakit.passes.integers import prove_integers

_MOST = 256


class Proofs:
    """Remembers the width in which the integers of a program fit, for the sizes of a call.

    Parameters
    ----------
    program : Program
        Whose expressions are proven.
    by_shape : bool
        True where the program reads no integer table: then sizes and scalars decide alone, and an
        answer is kept.
    """

    __slots__ = ("_by_shape", "_known", "_program")

    def __init__(self, program: Program, *, by_shape: bool) -> None:
        self._program = program
        self._by_shape = by_shape
        self._known: dict[tuple[Any, ...], int] = {}

    def width(
        self,
        sizes: Mapping[str, tuple[int, int]],
        scalars: Mapping[str, int | float],
        tables: Mapping[str, np.ndarray[Any, Any]],
    ) -> int:
        """Return 32 or 64, the width of lanes that holds every integer.

        Parameters
        ----------
        sizes : mapping of str to (int, int)
            Smallest and largest value of each index.
        scalars, tables : mappings by name
            Run-time numbers and arrays.

        Returns
        -------
        int
            32 or 64.

        Raises
        ------
        ArgumentError
            If an index leaves its table, a divisor may be <= 0, or a value needs more than 62 bits.
        """
        if not self._by_shape:
            return prove_integers(self._program, sizes, scalars, tables)
        key = (
            *sizes.values(),
            *scalars.values(),
            *(table.shape for table in tables.values()),
        )
        width = self._known.get(key)
        if width is None:
            width = prove_integers(self._program, sizes, scalars, tables)
            if len(self._known) >= _MOST:  # a full memory starts anew: simpler than ages, and rare
                self._known.clear()
            self._known[key] = width
        return width
