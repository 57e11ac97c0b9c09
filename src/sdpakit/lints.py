"""Scales that look like known mistakes: one table, one warning, nothing is ever changed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from sdpakit.errors import ScaleWarning, warn_user

# Two scales count as the same if one may be the other rounded to float16.
RELATIVE_TOLERANCE = 2.0**-11


@dataclass(frozen=True, slots=True)
class Widths:
    """The numbers that a scale can be derived from, rightly or wrongly.

    Attributes
    ----------
    q_heads, kv_heads : int
        Numbers of heads.
    head_dim, v_head_dim : int
        Widths D and Dv.
    """

    q_heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int


@dataclass(frozen=True, slots=True)
class Mistake:
    """A wrong scale, and how it comes about.

    Attributes
    ----------
    name : str
        Key of the lint.
    scale : float
        The value that the mistake gives.
    cause : str
        What the value is.
    """

    name: str
    scale: float
    cause: str


def mistakes(widths: Widths) -> Iterator[Mistake]:
    """Yield the table of known mistakes for these widths, the likeliest first.

    Parameters
    ----------
    widths : Widths
        Of the spec.

    Yields
    ------
    Mistake
        One for each row of the table that applies.
    """
    d = widths.head_dim
    model = widths.q_heads * d
    if model:
        cause = f"1/sqrt({model}), of the model width q_heads * head_dim = {widths.q_heads} * {d}"
        yield Mistake("model_width", 1 / math.sqrt(model), cause)
    kv = widths.kv_heads * d
    if kv:
        cause = f"1/sqrt({kv}), of the width of all kv heads, {widths.kv_heads} * {d}"
        yield Mistake("kv_width", 1 / math.sqrt(kv), cause)
    if widths.v_head_dim:
        cause = f"1/sqrt({widths.v_head_dim}), of v_head_dim, the width of v"
        yield Mistake("v_head_dim", 1 / math.sqrt(widths.v_head_dim), cause)
    yield from _padded(d)
    cause = f"1/{d} = (1/sqrt({d}))^2, the factor applied twice"
    yield Mistake("double_division", 1 / d, cause)
    yield Mistake("inverted", math.sqrt(d), f"sqrt({d}), the inverse of the factor")
    cause = f"log2(e)/sqrt({d}), the factor of a kernel that works with powers of two"
    yield Mistake("base_two", math.log2(math.e) / math.sqrt(d), cause)


def _padded(head_dim: int) -> Iterator[Mistake]:
    widths = {-(-head_dim // multiple) * multiple for multiple in (8, 16, 32, 64, 128)}
    widths.add(1 << (head_dim - 1).bit_length())
    for width in sorted(widths - {head_dim}):
        cause = f"1/sqrt({width}), of head_dim padded from {head_dim} to {width}"
        yield Mistake("padded_width", 1 / math.sqrt(width), cause)


def find_mistake(scale: float | None, widths: Widths) -> Mistake | None:
    """Return the mistake that a scale looks like.

    Parameters
    ----------
    scale : float or None
        As given in the spec; None and 1.0 (folded into weights, FOLD-1) are never a mistake.
    widths : Widths
        Of the spec.

    Returns
    -------
    Mistake or None
        The first of the table that fits, None for 1/sqrt(head_dim) and whatever fits nothing.
    """
    if scale is None or scale <= 0 or _same(scale, 1.0):
        return None
    if _same(scale, 1 / math.sqrt(widths.head_dim)):
        return None
    return next((m for m in mistakes(widths) if _same(scale, m.scale)), None)


def _same(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=RELATIVE_TOLERANCE)


def describe(scale: float, mistake: Mistake, head_dim: int) -> str:
    """Return the text of the warning: the mistake, and its effect on the temperature as a number.

    Parameters
    ----------
    scale : float
        As given.
    mistake : Mistake
        What it looks like.
    head_dim : int
        Width D.

    Returns
    -------
    str
        What came, what SCALE-1 says, the effect, the remedy.
    """
    right = 1 / math.sqrt(head_dim)
    spread = scale / right
    effect = "flatter" if spread < 1 else "sharper"
    return (
        f"scale={scale:.6g} is {mistake.cause}.\n"
        f"  SCALE-1: 1/sqrt(head_dim) = 1/sqrt({head_dim}) = {right:.6g}, the width of one head\n"
        f"  effect: softmax temperature {1 / spread:.4g} times the intended one; logits of "
        f"independent unit-variance entries have standard deviation {spread:.4g} instead of 1 "
        f"({effect} attention)\n"
        "  remedy: leave scale out; if it is meant, silence sdpakit.ScaleWarning "
        "(nothing was changed)"
    )


def warn_of_scale(
    scale: float | None, q_heads: int, kv_heads: int, head_dim: int, v_head_dim: int
) -> None:
    """Issue a `ScaleWarning` if the scale looks wrong.

    Parameters
    ----------
    scale : float or None
        As given in the spec.
    q_heads, kv_heads, head_dim, v_head_dim : int
        Of the spec.
    """
    found = find_mistake(scale, Widths(q_heads, kv_heads, head_dim, v_head_dim))
    if scale is not None and found is not None:
        warn_user(describe(scale, found, head_dim), ScaleWarning)
