"""Tiles classified by proof: which keys a tile of query rows may see, and which it must.

`key_ranges` solves the mask for k and gives the loop bounds of a q tile in O(1), `key_sets` does so
without filling the gaps of unions, and `tile_class` asks interval analysis about one tile. None
looks at pairs. All are sound whatever the run-time values are, and run over any `IntOps` (see
`passes.intervals`). Prior art: the intra-tile interval pass of torch 2.13
(`interval_mask_packing.py`), for one tile and one kind of GPU.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from sdpakit.expr.nodes import Binary, Expr, Index, Load, Select, Unary
from sdpakit.passes.intervals import Box, Intervals, IntOps, reads
from sdpakit.passes.linear import Linear, linear

T = TypeVar("T")
C = TypeVar("C")

_K = frozenset({"k"})
_PAIR = frozenset({"q", "k"})

# Nested abs, min, max, select each split a comparison in two; beyond this many splits the
# comparison is left to interval analysis, so that the work (and the code that a backend emits)
# stays linear in the size of the mask.
_MAX_SPLITS = 32

# Ranges kept of a set of keys: a union of four masks, or the complement of a union of three with
# two sides each. Each costs a vector of starts and one of ends per expression.
_MOST = 4


@dataclass(frozen=True, slots=True)
class KeyRanges(Generic[T]):
    """Half-open key ranges of a q tile, with maybe_lo <= must_lo <= must_hi <= maybe_hi.

    Attributes
    ----------
    maybe_lo, maybe_hi : T
        Every key that some row of the tile attends is inside.
    must_lo, must_hi : T
        Every key inside is attended by every row of the tile.
    """

    maybe_lo: T
    maybe_hi: T
    must_lo: T
    must_hi: T


@dataclass(frozen=True, slots=True)
class KeySets(Generic[T, C]):
    """The keys of a q tile as unions of half-open ranges: in no order, empty ones among them.

    Attributes
    ----------
    maybe : tuple of (T, T)
        Every key that some row of the tile attends is inside of one.
    must : tuple of (T, T)
        Every key inside of one is attended by every row of the tile.
    final : C
        Holds where the sets tell all that `tile_class` proves about any part of the keys.
    """

    maybe: tuple[tuple[T, T], ...]
    must: tuple[tuple[T, T], ...]
    final: C


def tile_class(mask: Expr, ops: IntOps[T, C], box: Box[T]) -> tuple[C, C]:
    """Classify one tile by interval analysis.

    Parameters
    ----------
    mask : Expr
        Bool expression.
    ops : IntOps
        The kind of integers.
    box : Box
        Range of every index, bounds included; not empty.

    Returns
    -------
    (can_true, can_false)
        EMPTY is proven where not can_true, FULL where not can_false; else the tile is PARTIAL (or
        unknown).
    """
    return Intervals(ops, box).truth(mask)


def key_ranges(mask: Expr, ops: IntOps[T, C], box: Box[T]) -> KeyRanges[T]:
    """Solve a mask for k over a tile of query rows.

    Parameters
    ----------
    mask : Expr
        Bool expression.
    ops : IntOps
        The kind of integers.
    box : Box
        `q` is the range of rows (bounds included, not empty), `k` that of all keys asked about
        (k_hi < k_lo: none), every other index is one number (lo and hi the same).

    Returns
    -------
    KeyRanges
        Inside of [k_lo, k_hi + 1). Exact (the hull of the attended keys; the very set of the keys
        that all rows attend) for comparisons that are affine in k with a constant factor and
        monotone in q, for tables sorted along k that are compared with a value that occurs in
        them, and for ands of these whose bounds move alike.
    """
    found = _Solver(ops, box, most=1).solve(mask, want=True)
    ((maybe_lo, maybe_hi),) = found.maybe
    ((lo, hi),) = found.must
    must_lo = ops.minimum(ops.maximum(lo, maybe_lo), maybe_hi)
    must_hi = ops.minimum(ops.maximum(hi, must_lo), maybe_hi)
    return KeyRanges(maybe_lo, maybe_hi, must_lo, must_hi)


def key_sets(mask: Expr, ops: IntOps[T, C], box: Box[T]) -> KeySets[T, C]:
    """Solve a mask for k over a tile of query rows, as `key_ranges` does, and keep the gaps.

    Parameters
    ----------
    mask, ops, box
        As for `key_ranges`.

    Returns
    -------
    KeySets
        Inside of [k_lo, k_hi + 1). Final for and, or and not of the comparisons for which
        `key_ranges` is exact, of remainders of what moves through all of them within the tile, and
        of what does not depend on k, as long as a few ranges tell the union. As with intervals,
        every part is looked at by itself: that a key which all rows attend is attended by some for
        one reason, by others for another, is not seen.
    """
    solver = _Solver(ops, box, most=_MOST)
    found = solver.solve(mask, want=True)
    return KeySets(found.maybe, found.must, solver.final)


@dataclass(frozen=True, slots=True)
class _Keys(Generic[T]):
    """Half-open ranges within [k_lo, k_hi + 1): around "some row", inside of "all rows"."""

    maybe: tuple[tuple[T, T], ...]
    must: tuple[tuple[T, T], ...]


class _Solver(Generic[T, C]):
    """Ranges of the keys for which a bool expression has a wanted value, at most `most` of them.

    Of an `and`, an `or` or an equality of conditions the sets tell no less than `tile_class` does
    of any part of the keys, if they do so of what is joined. `final` holds where they do, of all
    that was solved; it is not kept for one range, which fills gaps.
    """

    def __init__(self, ops: IntOps[T, C], box: Box[T], *, most: int) -> None:
        self.ops = ops
        self.most = most
        self.final = ops.true()
        self.intervals = Intervals(ops, box)
        self.first = box["k"][0]
        self.end = ops.maximum(self.first, ops.add(box["k"][1], ops.const(1)))
        self.splits = 0
        self._found: dict[tuple[Expr, bool], _Keys[T]] = {}

    def _final_where(self, condition: Callable[[], C]) -> None:
        """Note that a look at a part of the keys may tell more, but where a condition holds."""
        if self.most > 1:
            self.final = self.ops.both(self.final, condition())

    def solve(self, node: Expr, *, want: bool) -> _Keys[T]:
        """Return the ranges of the keys with `node == want`."""
        found = self._found.get((node, want))
        if found is None:
            found = self._found[node, want] = self._solve(node, want=want)
        return found

    def _solve(self, node: Expr, *, want: bool) -> _Keys[T]:
        if not reads(node, _K):
            return self._whole(self.intervals.truth(node), want=want)
        match node:
            case Unary(op="not", x=x):
                return self.solve(x, want=not want)
            case Binary(op=("and" | "or") as op, a=a, b=b):
                join = self._and if (op == "and") == want else self._or
                return join(self.solve(a, want=want), self.solve(b, want=want))
            case Binary(op=("eq" | "ne") as op, a=a, b=b) if a.type == "bool":
                return self._same(a, b, want=(op == "eq") == want)
            case Select(cond=cond, a=a, b=b):
                return self._choice(cond, self.solve(a, want=want), self.solve(b, want=want))
            case Binary(op=op, a=a, b=b) if a.type == "int":
                return self._compare(op, linear(a).plus(linear(b), -1), want=want)
        self._final_where(self.ops.false)
        return self._whole(self.intervals.truth(node), want=want)

    def _whole(self, truth: tuple[C, C], *, want: bool) -> _Keys[T]:
        """Return all keys or none, as far as the truth over the whole tile says."""
        can, cannot = truth if want else (truth[1], truth[0])
        select = self.ops.select
        return _Keys(
            ((self.first, select(can, self.end, self.first)),),
            ((self.first, select(cannot, self.first, self.end)),),
        )

    def _same(self, a: Expr, b: Expr, *, want: bool) -> _Keys[T]:
        return self._or(
            self._and(self.solve(a, want=True), self.solve(b, want=want)),
            self._and(self.solve(a, want=False), self.solve(b, want=not want)),
        )

    def _choice(self, cond: Expr, a: _Keys[T], b: _Keys[T]) -> _Keys[T]:
        self._final_where(self.ops.false)
        return self._or(
            self._and(self.solve(cond, want=True), a), self._and(self.solve(cond, want=False), b)
        )

    def _compare(self, op: str, form: Linear, *, want: bool) -> _Keys[T]:
        """Solve `form op 0` (or its negation) as one or two comparisons of the kind `form <= 0`."""
        if op == "ne":
            op, want = "eq", not want
        if op == "eq":
            join, gap = (self._and, 0) if want else (self._or, 1)
            below = self._at_most(form.plus(Linear({}, gap)))
            return join(below, self._at_most(form.times(-1).plus(Linear({}, gap))))
        strict = int(op == "lt")
        # Integers: x < 0 is x + 1 <= 0; not x <= 0 is 1 - x <= 0.
        wanted = (
            form.plus(Linear({}, strict)) if want else form.times(-1).plus(Linear({}, 1 - strict))
        )
        return self._at_most(wanted)

    def _at_most(self, form: Linear, extra: tuple[T, T] | None = None) -> _Keys[T]:
        """Solve `form + extra <= 0`; `extra` is of an interval, perhaps another in each row."""
        of_k = {atom: factor for atom, factor in form.terms.items() if reads(atom, _K)}
        others = {atom: factor for atom, factor in form.terms.items() if atom not in of_k}
        rest = self.intervals.of_linear(Linear(others, form.const))
        if extra is not None:
            rest = self.ops.add(rest[0], extra[0]), self.ops.add(rest[1], extra[1])
        if len(of_k) == 1:
            (atom, factor), *_ = of_k.items()
            solved = self._atom_at_most(atom, factor, rest)
            if solved is not None:
                return solved
        if of_k:
            self._final_where(lambda: self._covers_all_remainders(tuple(of_k)))
        lo, hi = self.intervals.of_linear(Linear(of_k, 0))
        total = self.ops.add(lo, rest[0]), self.ops.add(hi, rest[1])
        return self._whole(self.intervals.compared_to_zero("le", total), want=True)

    def _covers_all_remainders(self, atoms: tuple[Expr, ...]) -> C:
        """Return whether the interval of atoms is known to be the same for any part of the keys.

        So it is for a remainder whose dividend takes as many values in a row as there are
        remainders while q alone moves.
        """
        match atoms:
            case (Binary(op="mod", a=a, b=b),) if not reads(b, _PAIR):
                form, ops = linear(a), self.ops
                terms = {x: c for x, c in form.terms.items() if not reads(x, _K)}
                lo, hi = self.intervals.of_linear(Linear(terms, 0))
                return ops.lt(self.intervals.interval(b)[1], ops.add(ops.sub(hi, lo), ops.const(2)))
        return self.ops.false()

    def _atom_at_most(self, atom: Expr, factor: int, rest: tuple[T, T]) -> _Keys[T] | None:
        """Solve `factor * atom + rest <= 0`, or return None where no rule knows the atom."""
        match atom:
            case Index():
                return self._bounded(
                    factor, rest, lambda n: self.ops.add(n, self.ops.const(1)), lambda n: n
                )
            case Load(indices=(*leading, Index(name="k"))) if not any(
                reads(x, _PAIR) for x in leading
            ):
                return self._sorted_at_most(atom, leading, factor, rest)
            case Binary(op="floordiv", a=a, b=b) if not reads(b, _K):
                if reads(b, _PAIR):
                    self._final_where(self.ops.false)
                return self._quotient_at_most(a, self.intervals.interval(b), factor, rest)
        if self.splits >= _MAX_SPLITS:
            return None
        self.splits += 1
        match atom:
            case Unary(op="abs", x=x):
                join = self._and if factor > 0 else self._or
                self._final_where(lambda: self._is_distance(factor, rest))
                form = linear(x)
                return join(
                    self._at_most(form.times(factor), rest),
                    self._at_most(form.times(-factor), rest),
                )
            case Binary(op=("min" | "max") as op, a=a, b=b):
                join = self._and if (factor > 0) == (op == "max") else self._or
                return join(
                    self._at_most(linear(a).times(factor), rest),
                    self._at_most(linear(b).times(factor), rest),
                )
            case Select(cond=cond, a=a, b=b):
                return self._choice(
                    cond,
                    self._at_most(linear(a).times(factor), rest),
                    self._at_most(linear(b).times(factor), rest),
                )
        return None

    def _is_distance(self, factor: int, rest: tuple[T, T]) -> C:
        """Return whether `factor * abs(x) + rest <= 0` may hold, and may not.

        Intervals know that no distance is negative; the two sides of a distance do not say so.
        """
        zero = self.ops.const(0)
        return self.ops.le(rest[0], zero) if factor > 0 else self.ops.lt(zero, rest[1])

    def _limits(self, factor: int, rest: tuple[T, T]) -> tuple[T, T]:
        """Return the range of x0: `factor * x + rest <= 0` iff x <= x0 (factor > 0) or x >= x0."""
        if factor == -1:
            return rest
        ops = self.ops
        zero, size = ops.const(0), ops.const(abs(factor))
        low, high = ops.sub(zero, rest[1]), ops.sub(zero, rest[0])
        if factor != 1:
            low, high = ops.floordiv(low, size), ops.floordiv(high, size)
        # ceil(a / c) = -floor(-a / c)
        return (low, high) if factor > 0 else (ops.sub(zero, high), ops.sub(zero, low))

    def _bounded(
        self, factor: int, rest: tuple[T, T], end: Callable[[T], T], start: Callable[[T], T]
    ) -> _Keys[T]:
        """Solve `factor * x(k) + rest <= 0` for x that rises with k.

        `end(n)` is the first key with x > n, `start(n)` the first with x >= n.
        """
        low, high = self._limits(factor, rest)
        if factor > 0:
            maybe, must = self._clip(self.first, end(high)), self._clip(self.first, end(low))
        else:
            maybe, must = self._clip(start(low), self.end), self._clip(start(high), self.end)
        return _Keys((maybe,), (must,))

    def _sorted_at_most(
        self, load: Load, leading: list[Expr], factor: int, rest: tuple[T, T]
    ) -> _Keys[T]:
        ops = self.ops
        row = [self.intervals.interval(index)[0] for index in leading]
        by_search = self._bounded(
            factor,
            rest,
            lambda n: ops.upper_bound(load, row, n),
            lambda n: ops.lower_bound(load, row, n),
        )
        lo, hi = self.intervals.of_linear(Linear({load: factor}, 0))
        total = ops.add(lo, rest[0]), ops.add(hi, rest[1])
        by_range = self._whole(self.intervals.compared_to_zero("le", total), want=True)
        known = ops.is_sorted(load, row)
        self._final_where(lambda: known)
        return _Keys(
            (self._pick(known, by_search.maybe[0], by_range.maybe[0]),),
            (self._pick(known, by_search.must[0], by_range.must[0]),),
        )

    def _quotient_at_most(
        self, x: Expr, divisor: tuple[T, T], factor: int, rest: tuple[T, T]
    ) -> _Keys[T]:
        ops = self.ops
        limit = self._limits(factor, rest)
        if factor > 0:
            # floor(x / d) <= n  iff  x + 1 - d * (n + 1) <= 0
            one = ops.const(1)
            low, high = self.intervals.product(
                divisor, (ops.add(limit[0], one), ops.add(limit[1], one))
            )
            return self._at_most(linear(x), (ops.sub(one, high), ops.sub(one, low)))
        # floor(x / d) >= n  iff  d * n - x <= 0
        return self._at_most(linear(x).times(-1), self.intervals.product(divisor, limit))

    def _clip(self, lo: T, hi: T) -> tuple[T, T]:
        ops = self.ops
        lo = ops.minimum(ops.maximum(lo, self.first), self.end)
        return lo, ops.minimum(ops.maximum(hi, lo), self.end)

    def _and(self, a: _Keys[T], b: _Keys[T]) -> _Keys[T]:
        return self._few(
            [self._meet(x, y) for x in a.maybe for y in b.maybe],
            [self._meet(x, y) for x in a.must for y in b.must],
        )

    def _or(self, a: _Keys[T], b: _Keys[T]) -> _Keys[T]:
        return self._few([*a.maybe, *b.maybe], [*a.must, *b.must])

    def _few(self, maybe: list[tuple[T, T]], must: list[tuple[T, T]]) -> _Keys[T]:
        """Return sets of at most so many ranges: the last ones of each become one."""
        for ranges, join in ((maybe, self._hull), (must, self._union)):
            while len(ranges) > self.most:
                b, a = ranges.pop(), ranges.pop()
                self._final_where(functools.partial(self._are_one, a, b))
                ranges.append(join(a, b))
        return _Keys(tuple(maybe), tuple(must))

    def _meet(self, a: tuple[T, T], b: tuple[T, T]) -> tuple[T, T]:
        return self._clip(self.ops.maximum(a[0], b[0]), self.ops.minimum(a[1], b[1]))

    def _hull(self, a: tuple[T, T], b: tuple[T, T]) -> tuple[T, T]:
        ops = self.ops
        both = ops.minimum(a[0], b[0]), ops.maximum(a[1], b[1])
        without_a = self._pick(ops.eq(a[0], a[1]), b, both)
        return self._pick(ops.eq(b[0], b[1]), a, without_a)

    def _union(self, a: tuple[T, T], b: tuple[T, T]) -> tuple[T, T]:
        """Return the union where the two touch, else the longer of them."""
        ops = self.ops
        touching = self._touch(a, b)
        joined = ops.minimum(a[0], b[0]), ops.maximum(a[1], b[1])
        longer = self._pick(ops.lt(ops.sub(a[1], a[0]), ops.sub(b[1], b[0])), b, a)
        return self._pick(touching, joined, longer)

    def _touch(self, a: tuple[T, T], b: tuple[T, T]) -> C:
        return self.ops.both(self.ops.le(a[0], b[1]), self.ops.le(b[0], a[1]))

    def _are_one(self, a: tuple[T, T], b: tuple[T, T]) -> C:
        """Return whether a union of two is one range."""
        either_empty = self.ops.either(self.ops.eq(*a), self.ops.eq(*b))
        return self.ops.either(either_empty, self._touch(a, b))

    def _pick(self, cond: C, a: tuple[T, T], b: tuple[T, T]) -> tuple[T, T]:
        return self.ops.select(cond, a[0], b[0]), self.ops.select(cond, a[1], b[1])
