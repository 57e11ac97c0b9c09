"""Proof, before a call runs, that its integers stay in range: indices, divisors, values.

The rules are those that classify tiles (`passes.intervals`, `passes.classify`), run once over the
whole call with Python's unbounded integers. A tile is a part of that box, so whatever a backend
computes in 64 bits for a tile lies inside what was seen here, intermediate values included.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sdpakit.errors import ArgumentError, format_error
from sdpakit.expr.nodes import Binary, Expr, Index, Load, postorder
from sdpakit.passes.classify import key_ranges, tile_class
from sdpakit.passes.intervals import Box, Intervals
from sdpakit.passes.tables import Array, dtype_limits, integer_limits

if TYPE_CHECKING:
    from sdpakit.ir.program import Program

_WIDEST = 2**62 - 1


@dataclass(slots=True)
class PythonOps:
    """`IntOps` over Python integers that remembers the largest magnitude it has computed.

    Attributes
    ----------
    scalars : mapping of str to number
        Run-time scalars.
    limits : mapping of str to (int, int)
        Least and largest element of every int or bool table.
    lengths : mapping of str to int
        Size of the last axis of every table.
    widest : int
        Largest magnitude seen.
    """

    scalars: Mapping[str, int | float]
    limits: Mapping[str, tuple[int, int]]
    lengths: Mapping[str, int]
    widest: int = field(default=0)

    def _seen(self, value: int) -> int:
        self.widest = max(self.widest, abs(value))
        return value

    def const(self, value: int) -> int:
        """Return the integer."""
        return self._seen(value)

    def true(self) -> bool:
        """Return True."""
        return True

    def false(self) -> bool:
        """Return False."""
        return False

    def add(self, a: int, b: int) -> int:
        """Return a + b."""
        return self._seen(a + b)

    def sub(self, a: int, b: int) -> int:
        """Return a - b."""
        return self._seen(a - b)

    def mul(self, a: int, b: int) -> int:
        """Return a * b."""
        return self._seen(a * b)

    def floordiv(self, a: int, b: int) -> int:
        """Return floor(a / b); b < 1 is reported elsewhere."""
        return a // max(b, 1)

    def minimum(self, a: int, b: int) -> int:
        """Return the smaller."""
        return min(a, b)

    def maximum(self, a: int, b: int) -> int:
        """Return the larger."""
        return max(a, b)

    def select(self, cond: bool, a: int, b: int) -> int:  # noqa: FBT001 - the protocol's order
        """Return a where `cond`, else b."""
        return a if cond else b

    def lt(self, a: int, b: int) -> bool:
        """Return a < b."""
        return a < b

    def le(self, a: int, b: int) -> bool:
        """Return a <= b."""
        return a <= b

    def eq(self, a: int, b: int) -> bool:
        """Return a == b."""
        return a == b

    def both(self, a: bool, b: bool) -> bool:  # noqa: FBT001 - the protocol's order
        """Return a and b."""
        return a and b

    def either(self, a: bool, b: bool) -> bool:  # noqa: FBT001 - the protocol's order
        """Return a or b."""
        return a or b

    def scalar(self, name: str) -> int:
        """Return the run-time scalar."""
        return self._seen(int(self.scalars[name]))

    def table_range(self, load: Load, lo: Sequence[int], hi: Sequence[int]) -> tuple[int, int]:
        """Return the limits of the whole table."""
        least, largest = self.limits[load.table]
        return self._seen(least), self._seen(largest)

    def is_sorted(self, load: Load, leading: Sequence[int]) -> bool:
        """Return True, so that the search is walked through; `_Solver` computes both ways."""
        return True

    def lower_bound(self, load: Load, leading: Sequence[int], value: int) -> int:
        """Return an index as large as any search can."""
        return self.lengths[load.table]

    def upper_bound(self, load: Load, leading: Sequence[int], value: int) -> int:
        """Return an index as large as any search can."""
        return self.lower_bound(load, leading, value)


def prove_integers(
    program: Program,
    sizes: Mapping[str, tuple[int, int]],
    scalars: Mapping[str, int | float],
    tables: Mapping[str, Array],
) -> int:
    """Prove that all integers of a call are in range, and return the width they need.

    Parameters
    ----------
    program : Program
        The program that the call runs.
    sizes : mapping of str to (int, int)
        Least and largest value of every index (`INDICES`), both included; largest < least where
        there is none.
    scalars : mapping of str to number
        Values of the run-time scalars.
    tables : mapping of str to array
        The run-time tables, with the rank of their loads.

    Returns
    -------
    int
        32 where every int of every expression fits in 32 bits, signed, for every pair; else 64.

    Raises
    ------
    ArgumentError
        If an index of a table may be outside of it, a divisor may be < 1, or a value may need more
        than 62 bits.
    """
    if any(sizes[name][1] < sizes[name][0] for name in ("b", "h", "q", "k")):
        return 32
    whole = {name: table for name, table in tables.items() if table.dtype.kind in "iub"}
    loose = _Proof(sizes, scalars, tables, {name: dtype_limits(t) for name, t in whole.items()})
    if loose.check(program) is None and loose.width == 32:
        return 32
    # What the dtypes allow was not enough: look at what the tables hold.
    exact = {name: integer_limits(t) if t.size else (0, 0) for name, t in whole.items()}
    proof = _Proof(sizes, scalars, tables, exact)
    problem = proof.check(program)
    if problem is not None:
        raise ArgumentError(problem)
    return proof.width


class _Proof:
    """One walk over a program; `check` returns what is wrong, `width` what the pairs need."""

    def __init__(
        self,
        sizes: Mapping[str, tuple[int, int]],
        scalars: Mapping[str, int | float],
        tables: Mapping[str, Array],
        limits: Mapping[str, tuple[int, int]],
    ) -> None:
        self.width = 32
        self._tables = tables
        self._box: Box[int] = dict(sizes)
        self._ops = PythonOps(
            scalars, limits, {name: t.shape[-1] if t.ndim else 1 for name, t in tables.items()}
        )
        self._intervals = Intervals(self._ops, self._box)

    def check(self, program: Program) -> str | None:
        """Return the message of the first thing that is wrong, or None."""
        for root in program.roots():
            for node in postorder(root):
                problem = self._node(node)
                if problem is not None:
                    return problem
        tile_class(program.mask, self._ops, self._box)
        key_ranges(program.mask, self._ops, self._box)
        return self._too_wide(program.mask)

    def _node(self, node: Expr) -> str | None:
        if isinstance(node, Load):
            problem = self._load(node)
            if problem is not None:
                return problem
        if node.type != "int":
            return None
        if isinstance(node, Binary) and node.op in ("floordiv", "mod"):
            lo, hi = self._intervals.interval(node.b)
            if lo < 1:
                return format_error(
                    f"divisor of {node!r}",
                    got=f"values from {lo} to {hi}, as far as is known",
                    allowed="integers that are provably at least 1",
                    fix="give a positive number, or write maximum(divisor, 1)",
                )
        lo, hi = self._intervals.interval(node)
        if lo < -(2**31) or hi >= 2**31:
            self.width = 64
        return self._too_wide(node)

    def _too_wide(self, node: Expr) -> str | None:
        if self._ops.widest <= _WIDEST:
            return None
        return format_error(
            f"integers of {node!r}",
            got=f"a magnitude of up to {self._ops.widest}",
            allowed=f"at most 2**62 - 1 = {_WIDEST}, on the way to the result too",
            fix="give smaller numbers (an unbounded window side is None, not a huge count)",
        )

    def _load(self, node: Load) -> str | None:
        shape = self._tables[node.table].shape
        for axis, (index, size) in enumerate(zip(node.indices, shape, strict=True)):
            if size == 1 and isinstance(index, Index):
                continue  # broadcasts
            lo, hi = self._intervals.interval(index)
            if lo < 0 or hi >= size:
                return format_error(
                    f"table {node.table!r}, axis {axis}",
                    got=f"the index {index!r}, which cannot be shown to stay inside: as far as is "
                    f"known it goes from {lo} to {hi}",
                    allowed=f"0 to {size - 1} for the shape {shape}",
                    fix="clamp the index with minimum(maximum(index, 0), size - 1), or give a "
                    "larger table",
                )
        return None
