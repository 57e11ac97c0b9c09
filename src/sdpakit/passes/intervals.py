"""Integer intervals of expressions over a box of index values, for every kind of integer.

`IntOps` is the only thing that differs between the users: Python integers (`passes.integers`),
NumPy vectors with one element for each tile (`passes.tilemap`), and LLVM i64 values (a backend).
All of them run the rules of this file and of `passes.classify`, so a tile is classified alike
wherever the question is asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Generic, Protocol, TypeVar

from sdpakit.expr.nodes import Binary, Const, Expr, Index, Load, Scalar, Select, Unary, postorder
from sdpakit.passes.linear import Facts, Linear, facts_of, joined, linear

T = TypeVar("T")
C = TypeVar("C")

# Index name -> (smallest, largest) value, both included. Every name of `INDICES` is present.
Box = Mapping[str, tuple[T, T]]


class IntOps(Protocol[T, C]):
    """Operations on integers `T` and conditions `C`, exact within 62 bits.

    `passes.integers.prove_integers` shows before anything runs that no value, and no intermediate
    of the rules, leaves 62 bits. A `T` stands for one integer (or one for each of many tiles,
    elementwise), a `C` for one truth value. The rules never branch on a `T` or a `C`: both sides
    of a `select` are computed, so no operation may trap, whatever its operands; only the divisor
    of `floordiv` is always >= 1.
    """

    def const(self, value: int) -> T:
        """Return the integer `value`."""
        ...

    def true(self) -> C:
        """Return the condition that holds."""
        ...

    def false(self) -> C:
        """Return the condition that does not hold."""
        ...

    def add(self, a: T, b: T) -> T:
        """Return a + b."""
        ...

    def sub(self, a: T, b: T) -> T:
        """Return a - b."""
        ...

    def mul(self, a: T, b: T) -> T:
        """Return a * b."""
        ...

    def floordiv(self, a: T, b: T) -> T:
        """Return floor(a / b) for b >= 1 and a of any sign (not truncated towards zero)."""
        ...

    def minimum(self, a: T, b: T) -> T:
        """Return the smaller, signed."""
        ...

    def maximum(self, a: T, b: T) -> T:
        """Return the larger, signed."""
        ...

    def select(self, cond: C, a: T, b: T) -> T:
        """Return a where `cond` holds, else b."""
        ...

    def lt(self, a: T, b: T) -> C:
        """Return a < b, signed."""
        ...

    def le(self, a: T, b: T) -> C:
        """Return a <= b, signed."""
        ...

    def eq(self, a: T, b: T) -> C:
        """Return a == b."""
        ...

    def both(self, a: C, b: C) -> C:
        """Return the logical and."""
        ...

    def either(self, a: C, b: C) -> C:
        """Return the logical or."""
        ...

    def scalar(self, name: str) -> T:
        """Return a run-time scalar of kind int (or bool, as 0 or 1); floats are never asked for."""
        ...

    def table_range(self, load: Load, lo: Sequence[T], hi: Sequence[T]) -> tuple[T, T]:
        """Return (least, largest) element of `load.table` over a box of indices, bounds included.

        Any enclosure is right, the tightest is best; bool tables answer with 0 and 1; float tables
        are never asked for. `lo[a] == hi[a]` for an index that is one number. An axis of size 1
        whose index is a plain `Index` broadcasts: its bounds are to be ignored. Bounds outside of
        the axis are to be clamped to it (the part outside holds no pair), and where lo > hi (no
        pair at all) any answer is right as long as nothing traps.
        """
        ...

    def is_sorted(self, load: Load, leading: Sequence[T]) -> C:
        """Return whether the row `table[leading, :]` is known to ascend (equal neighbours allowed).

        False is always right. It must be False for a last axis of size 1, which broadcasts. A row
        index is one number; on an axis of size 1 with a plain `Index` it is to be ignored.
        """
        ...

    def lower_bound(self, load: Load, leading: Sequence[T], value: T) -> T:
        """Return how many elements of the sorted row `table[leading, :]` are < value.

        That is the key index of the first element >= value. Where `is_sorted` is False the answer
        is not used, but nothing may trap.
        """
        ...

    def upper_bound(self, load: Load, leading: Sequence[T], value: T) -> T:
        """Return how many elements of the sorted row `table[leading, :]` are <= value."""
        ...


# Sides of selections that are looked at by themselves; beyond it no condition narrows anything.
_MAX_SIDES = 32


@lru_cache(maxsize=1 << 12)
def reads(node: Expr, names: frozenset[str]) -> bool:
    """Return whether `node` depends on one of the indices `names`."""
    return any(isinstance(x, Index) and x.name in names for x in postorder(node))


@lru_cache(maxsize=1 << 12)
def _reads_all(node: Expr, atoms: frozenset[Expr]) -> bool:
    return atoms <= set(postorder(node))


class Intervals(Generic[T, C]):
    """Intervals of int expressions and possible truth values of bool expressions, over one box.

    Sound: every value that an expression takes at a pair of the box is inside. Float parts are
    unknown: a condition on them can be true and can be false. Each side of a selection is looked at
    under its own condition: in `where(n < 8, n, 8)` the first n is at most 7.

    Parameters
    ----------
    ops : IntOps
        The kind of integers.
    box : Box
        Range of every index, bounds included.
    """

    def __init__(self, ops: IntOps[T, C], box: Box[T]) -> None:
        self.ops = ops
        self.box = box
        self._intervals: dict[Expr, tuple[T, T]] = {}
        self._truths: dict[Expr, tuple[C, C]] = {}
        # Where a condition holds: what it says, and the intervals without it.
        self._facts: Facts = {}
        self._added: tuple[frozenset[Expr], ...] = ()
        self._outer: Intervals[T, C] | None = None
        self._sides: dict[Expr, tuple[Intervals[T, C], Intervals[T, C]]] = {}
        self._room = iter(range(_MAX_SIDES))

    def interval(self, node: Expr) -> tuple[T, T]:
        """Return (least, largest) possible value of an int expression, bounds included."""
        found = self._intervals.get(node)
        if found is None:
            if (outer := self._same_outside(node)) is not None:
                found = outer.interval(node)
            else:
                form = linear(node)
                single = form.const == 0 and form.terms == {node: 1}
                found = self._narrowed(form, self._atom(node)) if single else self.of_linear(form)
            self._intervals[node] = found
        return found

    def of_linear(self, form: Linear) -> tuple[T, T]:
        """Return the interval of a linear form."""
        ops = self.ops
        lo = hi = ops.const(form.const)
        is_zero = form.const == 0
        for atom, factor in form.terms.items():
            atom_lo, atom_hi = self.interval(atom)
            if factor < 0:
                atom_lo, atom_hi = atom_hi, atom_lo
            if factor == -1:
                lo, hi = ops.sub(lo, atom_lo), ops.sub(hi, atom_hi)
            else:
                if factor != 1:
                    scale = ops.const(factor)
                    atom_lo, atom_hi = ops.mul(scale, atom_lo), ops.mul(scale, atom_hi)
                if is_zero:
                    lo, hi = atom_lo, atom_hi
                else:
                    lo, hi = ops.add(lo, atom_lo), ops.add(hi, atom_hi)
            is_zero = False
        # The interval of a single atom is narrowed already.
        return self._narrowed(form, (lo, hi)) if len(form.terms) > 1 else (lo, hi)

    def truth(self, node: Expr) -> tuple[C, C]:
        """Return (can be true, can be false) of a bool expression."""
        found = self._truths.get(node)
        if found is None:
            outer = self._same_outside(node)
            found = self._truth(node) if outer is None else outer.truth(node)
            self._truths[node] = found
        return found

    def _same_outside(self, node: Expr) -> Intervals[T, C] | None:
        """Return the intervals without the condition of this side where it says nothing of node."""
        if self._outer is None or any(_reads_all(node, atoms) for atoms in self._added):
            return None
        return self._outer

    def _sides_of(self, cond: Expr) -> tuple[Intervals[T, C], Intervals[T, C]]:
        """Return the intervals where a condition holds, and where it does not."""
        found = self._sides.get(cond)
        if found is None:
            found = self._under(facts_of(cond, True)), self._under(facts_of(cond, False))
            self._sides[cond] = found
        return found

    def _under(self, facts: Facts) -> Intervals[T, C]:
        if not facts or next(self._room, None) is None:
            return self
        side = Intervals(self.ops, self.box)
        side._facts = joined(self._facts, facts)
        side._added = tuple(frozenset(atom for atom, _ in terms) for terms in facts)
        side._outer, side._room = self, self._room
        return side

    def _narrowed(self, form: Linear, x: tuple[T, T]) -> tuple[T, T]:
        """Return the part of an interval of a form that the conditions allow.

        Where they allow none, what comes back is still a part of it: nothing that was proven of the
        whole, such as a divisor >= 1, is lost.
        """
        if not self._facts:
            return x
        least, most = self._facts.get(frozenset(form.terms.items()), (None, None))
        ops = self.ops
        lo, hi = x
        if least is not None:
            lo = ops.minimum(ops.maximum(lo, ops.const(least + form.const)), hi)
        if most is not None:
            hi = ops.maximum(ops.minimum(hi, ops.const(most + form.const)), lo)
        return lo, hi

    def _atom(self, node: Expr) -> tuple[T, T]:
        match node:
            case Index(name=name):
                return self.box[name]
            case Scalar(name=name):
                value = self.ops.scalar(name)
                return value, value
            case Load():
                return self._load(node)
            case Select(cond=cond, a=a, b=b):
                then, other = self._sides_of(cond)
                return self._select(cond, then.interval(a), other.interval(b))
            case Unary(op="abs", x=x):
                return self._abs(self.interval(x))
            case Unary(op="to_int", x=x):
                can_true, can_false = self.truth(x)
                zero, one = self.ops.const(0), self.ops.const(1)
                return self.ops.select(can_false, zero, one), self.ops.select(can_true, one, zero)
            case Binary(op=op, a=a, b=b):
                return self._binary(op, self.interval(a), self.interval(b))
        raise AssertionError(f"no interval rule for {node!r}")

    def _load(self, node: Load) -> tuple[T, T]:
        bounds = [self.interval(index) for index in node.indices]
        return self.ops.table_range(node, [lo for lo, _ in bounds], [hi for _, hi in bounds])

    def _select(self, cond: Expr, a: tuple[T, T], b: tuple[T, T]) -> tuple[T, T]:
        ops = self.ops
        can_true, can_false = self.truth(cond)
        lo = ops.select(can_false, ops.select(can_true, ops.minimum(a[0], b[0]), b[0]), a[0])
        hi = ops.select(can_false, ops.select(can_true, ops.maximum(a[1], b[1]), b[1]), a[1])
        return lo, hi

    def _abs(self, x: tuple[T, T]) -> tuple[T, T]:
        ops = self.ops
        lo, hi = x
        zero = ops.const(0)
        return ops.maximum(zero, ops.maximum(lo, ops.sub(zero, hi))), ops.maximum(
            hi, ops.sub(zero, lo)
        )

    def _binary(self, op: str, a: tuple[T, T], b: tuple[T, T]) -> tuple[T, T]:
        ops = self.ops
        if op == "min":
            return ops.minimum(a[0], b[0]), ops.minimum(a[1], b[1])
        if op == "max":
            return ops.maximum(a[0], b[0]), ops.maximum(a[1], b[1])
        if op == "mul":
            return self.product(a, b)
        if op == "floordiv":
            return self._floordiv(a, b)
        if op == "mod":
            return self._mod(a, b)
        raise AssertionError(f"no interval rule for operation {op!r}")

    def product(self, a: tuple[T, T], b: tuple[T, T]) -> tuple[T, T]:
        """Return the interval of a product of two intervals."""
        ops = self.ops
        corners = [ops.mul(x, y) for x in a for y in b]
        lo = hi = corners[0]
        for corner in corners[1:]:
            lo, hi = ops.minimum(lo, corner), ops.maximum(hi, corner)
        return lo, hi

    def _floordiv(self, a: tuple[T, T], b: tuple[T, T]) -> tuple[T, T]:
        # Rising in a; in b (>= 1) falling for a >= 0 and rising for a < 0, so the ends of b hold
        # both extremes.
        ops = self.ops
        lo = ops.minimum(ops.floordiv(a[0], b[0]), ops.floordiv(a[0], b[1]))
        hi = ops.maximum(ops.floordiv(a[1], b[0]), ops.floordiv(a[1], b[1]))
        return lo, hi

    def _mod(self, a: tuple[T, T], b: tuple[T, T]) -> tuple[T, T]:
        # a mod b = a - d * b with d = floor(a / b): tight where d is one number, so nothing wraps.
        ops = self.ops
        low, high = self.product(self._floordiv(a, b), b)
        lo = ops.maximum(ops.const(0), ops.sub(a[0], high))
        hi = ops.minimum(ops.sub(b[1], ops.const(1)), ops.sub(a[1], low))
        return lo, hi

    def _truth(self, node: Expr) -> tuple[C, C]:
        ops = self.ops
        match node:
            case Const(value=value):
                return (ops.true(), ops.false()) if value else (ops.false(), ops.true())
            case Unary(op="not", x=x):
                can_true, can_false = self.truth(x)
                return can_false, can_true
            case Binary(op=("and" | "or") as op, a=a, b=b):
                return self._connective(op, self.truth(a), self.truth(b))
            case Binary(op="ne", a=a, b=b):
                can_true, can_false = self.truth(Binary("eq", a, b))
                return can_false, can_true
            case Binary(op="eq", a=a, b=b) if a.type == "bool":
                return self._same(self.truth(a), self.truth(b))
            case Binary(op=op, a=a, b=b) if a.type == "int":
                return self.compared_to_zero(op, self.of_linear(linear(a).plus(linear(b), -1)))
            case Select(cond=cond, a=a, b=b):
                return self._choice(self.truth(cond), self.truth(a), self.truth(b))
            case Load():
                lo, hi = self._load(node)
                return ops.lt(ops.const(0), hi), ops.lt(lo, ops.const(1))
            case Scalar(name=name):
                number = ops.scalar(name)
                return ops.lt(ops.const(0), number), ops.lt(number, ops.const(1))
        return ops.true(), ops.true()  # a comparison of floats

    def compared_to_zero(self, op: str, x: tuple[T, T]) -> tuple[C, C]:
        """Return (can be true, can be false) of `x < 0`, `x <= 0`, `x == 0`, x of an interval."""
        ops = self.ops
        lo, hi = x
        zero = ops.const(0)
        if op == "lt":
            return ops.lt(lo, zero), ops.le(zero, hi)
        if op == "le":
            return ops.le(lo, zero), ops.lt(zero, hi)
        return (
            ops.both(ops.le(lo, zero), ops.le(zero, hi)),
            ops.either(ops.lt(lo, zero), ops.lt(zero, hi)),
        )

    def _connective(self, op: str, a: tuple[C, C], b: tuple[C, C]) -> tuple[C, C]:
        ops = self.ops
        if op == "and":
            return ops.both(a[0], b[0]), ops.either(a[1], b[1])
        return ops.either(a[0], b[0]), ops.both(a[1], b[1])

    def _same(self, a: tuple[C, C], b: tuple[C, C]) -> tuple[C, C]:
        ops = self.ops
        return (
            ops.either(ops.both(a[0], b[0]), ops.both(a[1], b[1])),
            ops.either(ops.both(a[0], b[1]), ops.both(a[1], b[0])),
        )

    def _choice(self, cond: tuple[C, C], a: tuple[C, C], b: tuple[C, C]) -> tuple[C, C]:
        ops = self.ops
        return (
            ops.either(ops.both(cond[0], a[0]), ops.both(cond[1], b[0])),
            ops.either(ops.both(cond[0], a[1]), ops.both(cond[1], b[1])),
        )
