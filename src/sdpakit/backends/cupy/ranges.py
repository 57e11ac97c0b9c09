"""Mask -> device functions that say which keys a tile of query rows needs.

    key_ranges(c, at, q_lo, q_hi)              keys that some row may see, keys that every row sees
    tile_class(c, at, q_lo, q_hi, k_lo, k_hi)  whether a pair of the tile can be true, can be false

Bounds of rows and keys are included. The rules are those of `passes.classify`; this file gives them
integers that are names in CUDA C++ (`kernels/ranges.cu` has what the names stand for).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sdpakit.backends.cupy.expressions import STORED, scalar_field, table_field
from sdpakit.backends.cupy.source import Source
from sdpakit.expr.nodes import Load, postorder
from sdpakit.passes.classify import key_ranges, tile_class

if TYPE_CHECKING:
    from sdpakit.ir.program import Program

_HEAD = "__device__ __forceinline__"
_ROWS = "const Call& c, const Place& at, i64 q_lo, i64 q_hi"


@dataclass(frozen=True, slots=True)
class CudaOps:
    """`passes.intervals.IntOps` over names of i64 and bool constants."""

    source: Source

    def _int(self, text: str) -> str:
        return self.source.define("i64", text)

    def _bool(self, text: str) -> str:
        return self.source.define("bool", text)

    def const(self, value: int) -> str:
        """Return the integer."""
        return f"i64({value}ll)"

    def true(self) -> str:
        """Return the condition that holds."""
        return "true"

    def false(self) -> str:
        """Return the condition that does not hold."""
        return "false"

    def add(self, a: str, b: str) -> str:
        """Return a + b."""
        return self._int(f"{a} + {b}")

    def sub(self, a: str, b: str) -> str:
        """Return a - b."""
        return self._int(f"{a} - {b}")

    def mul(self, a: str, b: str) -> str:
        """Return a * b."""
        return self._int(f"{a} * {b}")

    def floordiv(self, a: str, b: str) -> str:
        """Return floor(a / b), b >= 1."""
        return self._int(f"floor_division<i64>({a}, {b})")

    def minimum(self, a: str, b: str) -> str:
        """Return the smaller."""
        return self._int(f"least_of({a}, {b})")

    def maximum(self, a: str, b: str) -> str:
        """Return the larger."""
        return self._int(f"most_of({a}, {b})")

    def select(self, cond: str, a: str, b: str) -> str:
        """Return a where `cond`, else b."""
        return self._int(f"{cond} ? {a} : {b}")

    def lt(self, a: str, b: str) -> str:
        """Return a < b."""
        return self._bool(f"{a} < {b}")

    def le(self, a: str, b: str) -> str:
        """Return a <= b."""
        return self._bool(f"{a} <= {b}")

    def eq(self, a: str, b: str) -> str:
        """Return a == b."""
        return self._bool(f"{a} == {b}")

    def both(self, a: str, b: str) -> str:
        """Return a and b."""
        return self._bool(f"{a} && {b}")

    def either(self, a: str, b: str) -> str:
        """Return a or b."""
        return self._bool(f"{a} || {b}")

    def scalar(self, name: str) -> str:
        """Return the run-time scalar."""
        return f"c.{scalar_field(name)}"

    def table_range(self, load: Load, lo: Sequence[str], hi: Sequence[str]) -> tuple[str, str]:
        """Return least and largest element over a box of indices."""
        bounds = ", ".join(bound for pair in zip(lo, hi, strict=True) for bound in pair)
        found = self.source.define("Span", f"{_range_name(load)}(c, {bounds})")
        return f"{found}.lo", f"{found}.hi"

    def is_sorted(self, load: Load, leading: Sequence[str]) -> str:
        """Return whether all rows are known to ascend."""
        return f"(c.{table_field(load.table)}_ascends != 0)"

    def lower_bound(self, load: Load, leading: Sequence[str], value: str) -> str:
        """Return how many elements of a sorted row are < value."""
        table, last = table_field(load.table), len(load.indices) - 1
        steps = [f" + {index} * c.{table}_stride{axis}" for axis, index in enumerate(leading)]
        row = f"c.{table}{''.join(steps)}"
        size = f"c.{table}_size{last}"
        return self._int(
            f"lower_bound<{STORED[load.dtype]}>({row}, c.{table}_stride{last}, {size}, {value})"
        )

    def upper_bound(self, load: Load, leading: Sequence[str], value: str) -> str:
        """Return how many elements of a sorted row are <= value: integers, so < value + 1."""
        return self.lower_bound(load, leading, self.add(value, self.const(1)))


def _range_name(load: Load) -> str:
    return f"range_of_{load.table}"


def emit_ranges(source: Source, program: Program) -> None:
    """Add `key_ranges` and `tile_class` of the mask of a program."""
    for load in _read_integers(program):
        _emit_table_range(source, load)
    ops = CudaOps(source)
    source.comment("keys that some row of a tile may see (MASK-1), and keys that every row sees")
    with source.braces(f"{_HEAD} Ranges key_ranges({_ROWS})"):
        box = _box("i64(0)", ops.sub("at.keys", "1"))
        found = key_ranges(program.mask, ops, box)
        values = (found.maybe_lo, found.maybe_hi, found.must_lo, found.must_hi)
        source.line(f"return Ranges{{{', '.join(values)}}};")
    source.line()
    with source.braces(f"{_HEAD} TileClass tile_class({_ROWS}, i64 k_lo, i64 k_hi)"):
        can_true, can_false = tile_class(program.mask, ops, _box("k_lo", "k_hi"))
        source.line(f"return TileClass{{{can_true}, {can_false}}};")
    source.line()


def _box(k_lo: str, k_hi: str) -> dict[str, tuple[str, str]]:
    numbers = ("b", "h", "q_len", "kv_len", "q_offset")
    fixed = {name: (f"at.{name}", f"at.{name}") for name in numbers}
    return {**fixed, "q": ("q_lo", "q_hi"), "k": (k_lo, k_hi)}


def _read_integers(program: Program) -> list[Load]:
    """Return one load of each table of the mask that holds integers or booleans."""
    found: dict[str, Load] = {}
    for node in postorder(program.mask):
        if isinstance(node, Load) and node.type != "float":
            found.setdefault(node.table, node)
    return list(found.values())


def _emit_table_range(source: Source, load: Load) -> None:
    table, axes = table_field(load.table), range(len(load.indices))
    bounds = ", ".join(f"i64 lo{axis}, i64 hi{axis}" for axis in axes)
    source.comment(f"least and largest element of {load.table} over a box of indices")
    head = f"{_HEAD} Span {_range_name(load)}(const Call& c, {bounds})"
    with source.braces(head):
        for n in axes:
            stride, size = f"c.{table}_stride{n}", f"c.{table}_size{n}"
            source.line(f"const Axis a{n}(lo{n}, hi{n}, {stride}, {size});")
        source.line("i64 total = 1;")
        for n in axes:
            source.line(f"total = least_of(total * a{n}.count, LARGEST_SCAN + 1);")
        limits = f"c.{table}_least, c.{table}_largest"
        source.line(f"if (total == 0 || total > LARGEST_SCAN) return Span{{{limits}}};")
        source.line(f"Span found = Span{{c.{table}_largest, c.{table}_least}};")
        source.line("for (i64 n = 0; n < total; ++n) {")
        source.line("  i64 rest = n;")
        source.line(f"  u64 from = c.{table};")
        for n in reversed(axes):
            source.line(f"  from += (a{n}.first + rest % a{n}.count) * c.{table}_stride{n};")
            source.line(f"  rest /= a{n}.count;")
        source.line(f"  const i64 x = (i64)load<{STORED[load.dtype]}>(from);")
        source.line("  found = Span{least_of(found.lo, x), most_of(found.hi, x)};")
        source.line("}")
        source.line("return found;")
    source.line()
