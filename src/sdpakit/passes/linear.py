"""Int expressions as sums of atoms, and what a condition says about such sums."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from sdpakit.expr.nodes import Binary, Const, Expr, Unary


@dataclass(frozen=True, slots=True)
class Linear:
    """The integer `sum(factor * atom) + const`; no atom is a sum, a difference or a multiple."""

    terms: Mapping[Expr, int]
    const: int

    def plus(self, other: Linear, factor: int = 1) -> Linear:
        """Return self + factor * other; terms that cancel vanish."""
        terms = dict(self.terms)
        for atom, c in other.terms.items():
            terms[atom] = terms.get(atom, 0) + factor * c
        kept = {atom: c for atom, c in terms.items() if c != 0}
        return Linear(kept, self.const + factor * other.const)

    def times(self, factor: int) -> Linear:
        """Return factor * self."""
        return Linear({}, 0).plus(self, factor)


@lru_cache(maxsize=1 << 12)
def linear(node: Expr) -> Linear:
    """Return an int expression as a sum of atoms with constant factors.

    Differences of correlated parts thereby keep their meaning: `(k - q) - (k + 1)` is `-q - 1`,
    whose interval is that of q alone.
    """
    match node:
        case Const(value=value):
            return Linear({}, int(value))
        case Unary(op="neg", x=x):
            return linear(x).times(-1)
        case Binary(op="add", a=a, b=b):
            return linear(a).plus(linear(b))
        case Binary(op="sub", a=a, b=b):
            return linear(a).plus(linear(b), -1)
        case Binary(op="mul", a=a, b=b):
            left, right = linear(a), linear(b)
            if not right.terms:
                return left.times(right.const)
            if not left.terms:
                return right.times(left.const)
    return Linear({node: 1}, 0)


# The terms of a sum without its constant, and the bounds of that sum, included; None: no bound.
Terms: TypeAlias = frozenset[tuple[Expr, int]]
Bounds: TypeAlias = tuple[int | None, int | None]
Facts: TypeAlias = Mapping[Terms, Bounds]


@lru_cache(maxsize=1 << 12)
def facts_of(condition: Expr, holds: bool) -> Facts:  # noqa: FBT001 - one of the two sides
    """Return what is known about sums of ints where a condition holds, or where it does not.

    Parameters
    ----------
    condition : Expr
        Bool.
    holds : bool
        Which of the two.

    Returns
    -------
    mapping of Terms to Bounds
        Every sum with its negation. Empty where nothing is known, which is always right.
    """
    match condition:
        case Unary(op="not", x=x):
            return facts_of(x, not holds)
        case Binary(op=("and" | "or") as op, a=a, b=b) if (op == "and") == holds:
            return joined(facts_of(a, holds), facts_of(b, holds))
        case Binary(op=("eq" | "ne") as op, a=a, b=b) if a.type == "int":
            same = (op == "eq") == holds
            return _between(linear(a).plus(linear(b), -1), 0, 0) if same else {}
        case Binary(op=("lt" | "le") as op, a=a, b=b) if a.type == "int":
            most = -1 if op == "lt" else 0
            form = linear(a).plus(linear(b), -1)
            return _between(form, None, most) if holds else _between(form, most + 1, None)
    return {}


def joined(first: Facts, second: Facts) -> Facts:
    """Return what is known where both are; bounds may contradict each other where nothing is.

    Parameters
    ----------
    first, second : mapping of Terms to Bounds
        See `facts_of`.

    Returns
    -------
    mapping of Terms to Bounds
        The tighter bounds.
    """
    found = dict(first)
    for terms, (lo, hi) in second.items():
        old_lo, old_hi = found.get(terms, (None, None))
        los = [bound for bound in (lo, old_lo) if bound is not None]
        his = [bound for bound in (hi, old_hi) if bound is not None]
        found[terms] = max(los, default=None), min(his, default=None)
    return found


def _between(form: Linear, lo: int | None, hi: int | None) -> Facts:
    """Return the facts of `lo <= form <= hi`, by terms without a common factor."""
    if not form.terms:
        return {}
    size = math.gcd(*form.terms.values())
    lo = None if lo is None else -((form.const - lo) // size)
    hi = None if hi is None else (hi - form.const) // size
    terms = [(atom, factor // size) for atom, factor in form.terms.items()]
    opposite = [(atom, -factor) for atom, factor in terms]
    return {
        frozenset(terms): (lo, hi),
        frozenset(opposite): (None if hi is None else -hi, None if lo is None else -lo),
    }
