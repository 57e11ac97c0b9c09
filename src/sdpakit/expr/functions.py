"""The functions of the scalar language, as users call them on symbolic values."""

from __future__ import annotations

from sdpakit.calling import checked_call
from sdpakit.expr.nodes import Select, Unary
from sdpakit.expr.values import Value, arithmetic, as_float, lift, paired


@checked_call
def where(condition: object, a: object, b: object) -> Value:
    """Return `a` where the condition holds, else `b`; the other side never reaches the result.

    Parameters
    ----------
    condition : Value or bool
        A bool.
    a, b : Value or number
        Of one type; an int beside a float becomes a float.

    Returns
    -------
    Value
        Of the type of `a` and `b`.

    Raises
    ------
    SpecError
        If the types do not fit.
    """
    return Value(Select(lift(condition), *paired(a, b)))


@checked_call
def minimum(a: object, b: object) -> Value:
    """Return the smaller of two numbers; NaN if either is NaN.

    Parameters
    ----------
    a, b : Value or number
        Int or float.

    Returns
    -------
    Value
        Int if both are, else float.
    """
    return arithmetic("min", a, b)


@checked_call
def maximum(a: object, b: object) -> Value:
    """Return the larger of two numbers; NaN if either is NaN.

    Parameters
    ----------
    a, b : Value or number
        Int or float.

    Returns
    -------
    Value
        Int if both are, else float.
    """
    return arithmetic("max", a, b)


def _of_float(op: str, x: object) -> Value:
    return Value(Unary(op, as_float(lift(x))))


@checked_call
def exp(x: object) -> Value:
    """Return e to the power x, in accum_dtype.

    Parameters
    ----------
    x : Value or number
        Int or float.

    Returns
    -------
    Value
        Float.
    """
    return _of_float("exp", x)


@checked_call
def log(x: object) -> Value:
    """Return the natural logarithm: -inf at 0, NaN below.

    Parameters
    ----------
    x : Value or number
        Int or float.

    Returns
    -------
    Value
        Float.
    """
    return _of_float("log", x)


@checked_call
def tanh(x: object) -> Value:
    """Return the hyperbolic tangent.

    Parameters
    ----------
    x : Value or number
        Int or float.

    Returns
    -------
    Value
        Float.
    """
    return _of_float("tanh", x)


@checked_call
def sqrt(x: object) -> Value:
    """Return the square root, NaN below 0.

    Parameters
    ----------
    x : Value or number
        Int or float.

    Returns
    -------
    Value
        Float.
    """
    return _of_float("sqrt", x)


@checked_call
def floor(x: object) -> Value:
    """Return the largest whole number that is not above x, as a float.

    Parameters
    ----------
    x : Value or number
        Int or float.

    Returns
    -------
    Value
        Float.
    """
    return _of_float("floor", x)


@checked_call
def absolute(x: object) -> Value:
    """Return the magnitude of a number.

    Parameters
    ----------
    x : Value or number
        Int or float.

    Returns
    -------
    Value
        Of the type of x.
    """
    return Value(Unary("abs", lift(x)))


@checked_call
def to_float(x: object) -> Value:
    """Return an int or a bool (0 or 1) as a float of accum_dtype; a float comes back as it is.

    Parameters
    ----------
    x : Value or number
        Of any type.

    Returns
    -------
    Value
        Float.
    """
    node = lift(x)
    return Value(node if node.type == "float" else Unary("to_float", node))


@checked_call
def to_int(x: object) -> Value:
    """Return a bool as 0 or 1; an int comes back as it is.

    Parameters
    ----------
    x : Value or number
        Bool or int.

    Returns
    -------
    Value
        Int.

    Raises
    ------
    SpecError
        For a float: a mask decides by comparison, not by rounding.
    """
    node = lift(x)
    return Value(node if node.type == "int" else Unary("to_int", node))
