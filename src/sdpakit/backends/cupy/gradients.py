"""What kernels of gradients ask of a program besides its logit, as CUDA C++.

Sums of tables and of sinks are kept in accum_dtype, C order, and rounded by the launcher.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from sdpakit.backends.cupy.expressions import emit_function, emit_index
from sdpakit.backends.cupy.source import Source
from sdpakit.expr.derivative import derivative, float_loads
from sdpakit.expr.nodes import Const, Dot, Expr, Index, Load

if TYPE_CHECKING:
    import numpy as np

    from sdpakit.ir.program import Program

Array: TypeAlias = "np.ndarray[Any, Any]"
AXES = ("b", "h", "q")


@dataclass(frozen=True, slots=True)
class TableGradient:
    """A table that the logit reads, with the derivative by each of its loads.

    Attributes
    ----------
    table : str
        Its name.
    loads : tuple of (Load, Expr)
        Where pairs read, and d logit / d load.
    """

    table: str
    loads: tuple[tuple[Load, Expr], ...]

    @property
    def entry(self) -> str:
        """Name of its kernel."""
        return f"gradient_of_{self.table}"

    @property
    def sums(self) -> str:
        """What the fields of its sums begin with."""
        return f"sums_{self.table}"

    def owned(self, shape: tuple[int, ...]) -> dict[str, bool]:
        """Return for b, h and q whether pairs that differ in it never share an element.

        They do not if every load has that index, as it is, for the same axis of the table, and the
        axis is not broadcast.
        """
        return {name: bool(self._axes_of(name, shape)) for name in AXES}

    def _axes_of(self, name: str, shape: tuple[int, ...]) -> list[int]:
        index = Index(name)
        return [
            axis
            for axis, size in enumerate(shape)
            if size > 1 and all(load.indices[axis] is index for load, _ in self.loads)
        ]

    def distinct(self, number: int, shape: tuple[int, ...]) -> bool:
        """Return whether the pairs of one head read elements of their own through a load."""
        indices = self.loads[number][0].indices
        kept = {index for index, size in zip(indices, shape, strict=True) if size > 1}
        return {Index("q"), Index("k")} <= kept

    def fields(self) -> Iterator[tuple[str, str]]:
        """Yield type and name of the fields that its kernel reads."""
        yield "u64", self.sums
        for axis in range(len(self.loads[0][0].indices)):
            yield "i64", f"{self.sums}_stride{axis}"
        for name in AXES:
            yield "i64", f"{self.sums}_by_{name}"
        for number in range(len(self.loads)):
            yield "i64", f"{self.sums}_distinct{number}"

    def values(self, sums: Array, address: int) -> Mapping[str, int]:
        """Return the values of these fields for an array of sums."""
        found = {self.sums: address}
        for axis, (stride, size) in enumerate(zip(sums.strides, sums.shape, strict=True)):
            found[f"{self.sums}_stride{axis}"] = stride // sums.itemsize if size > 1 else 0
        for name, owns in self.owned(sums.shape).items():
            found[f"{self.sums}_by_{name}"] = int(owns)
        for number in range(len(self.loads)):
            found[f"{self.sums}_distinct{number}"] = int(self.distinct(number, sums.shape))
        return found


def table_gradients(program: Program) -> tuple[TableGradient, ...]:
    """Return the tables on whose elements the logit depends."""
    found: dict[str, list[tuple[Load, Expr]]] = {}
    for load in float_loads(program.logit):
        slope = derivative(program.logit, load)
        if slope is not None:
            found.setdefault(load.table, []).append((load, slope))
    return tuple(TableGradient(table, tuple(loads)) for table, loads in found.items())


def emit_slopes(source: Source, program: Program) -> None:
    """Add the derivative by <q, k>, and for each table its derivatives and the elements read."""
    slope = derivative(program.logit, Dot())
    source.line(f"constexpr bool HAS_SLOPE = {'false' if slope is None else 'true'};")
    pair = ("i64 q", "i64 k")
    emit_function(source, "slope_of", slope or Const(0.0), (*pair, "accum_t dot"))
    for table in table_gradients(program):
        for number, (load, by_load) in enumerate(table.loads):
            name = f"{table.table}_{number}"
            emit_function(source, f"slope_by_{name}", by_load, (*pair, "accum_t dot"))
            strides = [f"c.{table.sums}_stride{axis}" for axis in range(len(load.indices))]
            emit_index(source, f"element_of_{name}", load.indices, strides, pair)


def emit_table_kernels(source: Source, program: Program) -> None:
    """Add a kernel for each table, behind the text of `kernels/simt_tables.cu`."""
    for table in table_gradients(program):
        head = f'extern "C" __global__ void __launch_bounds__(THREADS, 2) {table.entry}'
        with source.braces(f"{head}(const __grid_constant__ Call c)"):
            source.line("__shared__ Shared shared;")
            source.line("__shared__ Scattered part;")
            by = ", ".join(f"c.{table.sums}_by_{name}" for name in AXES)
            source.line(f"const Owned owned = owned_by_block(c, {by});")
            for number in range(len(table.loads)):
                name = f"{table.table}_{number}"
                source.line("gradient_of_table(")
                source.line(
                    f"    c, shared, part, owned, c.{table.sums}, c.{table.sums}_distinct{number},"
                )
                at = "const Place& at, i64 q, i64 k"
                dot = f"slope_by_{name}(c, at, q, k, dot)"
                source.line(f"    [&]({at}, accum_t dot) {{ return {dot}; }},")
                source.line(f"    [&]({at}) {{ return element_of_{name}(c, at, q, k); }});")
        source.line()
