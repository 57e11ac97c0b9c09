"""Derivatives of expressions, again as expressions.

The derivative with respect to one leaf is carried upwards from the leaf (forward mode). So a
`Select` picks among derivatives as it picks among values, and a slope that is NaN or infinite on
the side not taken never meets a zero. Integers and booleans are constant: nothing is differentiated
through a condition, an index or `floor`.
"""

from __future__ import annotations

from sdpakit.expr.nodes import Binary, Const, Expr, Load, Select, Unary, postorder

_ONE = Const(1.0)
_ZERO = Const(0.0)


def derivative(root: Expr, leaf: Expr) -> Expr | None:
    """Return d root / d leaf.

    Parameters
    ----------
    root : Expr
        A float expression.
    leaf : Expr
        A float node without float operands: `Dot()` or a `Load`.

    Returns
    -------
    Expr or None
        Over the leaves of `root`; None where it is 0 for every pair.
    """
    slopes: dict[Expr, Expr | None] = {}
    for node in postorder(root):
        slopes[node] = _ONE if node is leaf else _slope(node, slopes)
    return slopes[root]


def float_loads(root: Expr) -> tuple[Load, ...]:
    """Return the loads of float tables in an expression, each once.

    Parameters
    ----------
    root : Expr
        Any expression.

    Returns
    -------
    tuple of Load
        Operands before what is made of them.
    """
    return tuple(
        node for node in postorder(root) if isinstance(node, Load) and node.type == "float"
    )


def _slope(node: Expr, slopes: dict[Expr, Expr | None]) -> Expr | None:
    if node.type != "float":
        return None
    match node:
        case Unary(op=op, x=x):
            return _unary(op, x, node, slopes.get(x))
        case Binary(op=op, a=a, b=b):
            return _binary(op, node, (a, slopes[a]), (b, slopes[b]))
        case Select(cond=cond, a=a, b=b):
            return _pick(cond, slopes[a], slopes[b])
    return None


def _unary(op: str, x: Expr, result: Expr, slope: Expr | None) -> Expr | None:
    if slope is None:
        return None
    match op:
        case "neg":
            return Unary("neg", slope)
        case "abs":
            return Select(Binary("lt", x, _ZERO), Unary("neg", slope), slope)
        case "exp":
            return _times(slope, result)
        case "log":
            return Binary("div", slope, x)
        case "tanh":
            return _times(slope, Binary("sub", _ONE, Binary("mul", result, result)))
        case "sqrt":
            return Binary("div", _times(slope, Const(0.5)), result)
    return None  # floor: constant between the whole numbers; to_float: of what is constant


def _binary(
    op: str, result: Expr, a: tuple[Expr, Expr | None], b: tuple[Expr, Expr | None]
) -> Expr | None:
    (left, da), (right, db) = a, b
    match op:
        case "add":
            return _sum(da, db)
        case "sub":
            return _sum(da, None if db is None else Unary("neg", db))
        case "mul":
            return _sum(_scaled(da, right), _scaled(db, left))
        case "div":  # (da - result * db) / b
            change = None if db is None else Unary("neg", _times(db, result))
            top = _sum(da, change)
            return None if top is None else Binary("div", top, right)
        case "min":
            return _pick(Binary("le", left, right), da, db)
        case "max":
            return _pick(Binary("le", right, left), da, db)
    return None


def _scaled(slope: Expr | None, factor: Expr) -> Expr | None:
    """Return slope * factor; c * ((s / c) * r) is s * r, which spares two roundings of a cap."""
    match slope:
        case None:
            return None
        case Binary(op="mul", a=Binary(op="div", a=s, b=c), b=r) if c is factor:
            return _times(s, r)
    return _times(slope, factor)


def _times(a: Expr, b: Expr) -> Expr:
    if a is _ONE:
        return b
    return a if b is _ONE else Binary("mul", a, b)


def _sum(a: Expr | None, b: Expr | None) -> Expr | None:
    if a is None or b is None:
        return a or b
    return Binary("add", a, b)


def _pick(cond: Expr, a: Expr | None, b: Expr | None) -> Expr | None:
    if a is b:
        return a
    return Select(cond, a or _ZERO, b or _ZERO)
