"""Symbolic values: the operators that users write expressions with, and what they mean for types.

`int` meets `float` as float (literals exactly, other values through `to_float`); `/` makes floats;
`//` and `%` take integers and floor; comparisons give bool; `& | ~ ^` take bool and nothing else
does; a bool in arithmetic is an error, because `where` says better what is meant.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NoReturn, cast

from sdpakit.errors import SpecError, format_error
from sdpakit.expr.nodes import Binary, Const, Expr, Type, Unary, check_depth
from sdpakit.plain_numbers import plain_number

LANGUAGE = (
    "+ - * / // % ** (whole powers), < <= > >= == !=, & | ~ ^ between comparisons in parentheses, "
    "sdpakit.where minimum maximum exp log tanh sqrt floor absolute to_float to_int, "
    'run-time numbers Scalar("name"), elements of run-time arrays Table("name", dtype, ndim)[...]'
)
_MAX_POWER = 16
_MAX_INT = 2**62


def out_of_language(got: str, fix: str) -> SpecError:
    """Return the error of an operation that the scalar language does not have.

    Parameters
    ----------
    got : str
        What was tried.
    fix : str
        What to write instead.

    Returns
    -------
    SpecError
        To be raised.
    """
    return SpecError(format_error("mask or logit expression", got=got, allowed=LANGUAGE, fix=fix))


class Value:
    """A symbolic bool, int or float of one pair (b, h, q, k); operators build larger ones.

    Parameters
    ----------
    node : Expr
        The node that the value stands for.

    Raises
    ------
    SpecError
        If the node is nested too deep: said at once, a loop that writes it may be long.
    """

    __slots__ = ("node",)
    node: Expr

    def __init__(self, node: Expr) -> None:
        self.node = check_depth("mask or logit expression", node)

    @property
    def type(self) -> Type:
        """Type of the value: "bool", "int" or "float"."""
        return self.node.type

    def __repr__(self) -> str:
        return f"Value({self.node!r})"

    def __add__(self, other: object) -> Value:
        return arithmetic("add", self, other)

    def __radd__(self, other: object) -> Value:
        return arithmetic("add", other, self)

    def __sub__(self, other: object) -> Value:
        return arithmetic("sub", self, other)

    def __rsub__(self, other: object) -> Value:
        return arithmetic("sub", other, self)

    def __mul__(self, other: object) -> Value:
        return arithmetic("mul", self, other)

    def __rmul__(self, other: object) -> Value:
        return arithmetic("mul", other, self)

    def __truediv__(self, other: object) -> Value:
        return _divide(self, other)

    def __rtruediv__(self, other: object) -> Value:
        return _divide(other, self)

    def __floordiv__(self, other: object) -> Value:
        return _whole_division("floordiv", self, other)

    def __rfloordiv__(self, other: object) -> Value:
        return _whole_division("floordiv", other, self)

    def __mod__(self, other: object) -> Value:
        return _whole_division("mod", self, other)

    def __rmod__(self, other: object) -> Value:
        return _whole_division("mod", other, self)

    def __pow__(self, other: object) -> Value:
        return _power(self, other)

    def __rpow__(self, other: object) -> Value:
        raise out_of_language(f"{other!r} ** (symbolic value)", "write exp(x * log(base))")

    def __neg__(self) -> Value:
        return Value(Unary("neg", self.node))

    def __pos__(self) -> Value:
        return self

    def __abs__(self) -> Value:
        return Value(Unary("abs", self.node))

    def __lt__(self, other: object) -> Value:
        return arithmetic("lt", self, other)

    def __le__(self, other: object) -> Value:
        return arithmetic("le", self, other)

    def __gt__(self, other: object) -> Value:
        return arithmetic("lt", other, self)

    def __ge__(self, other: object) -> Value:
        return arithmetic("le", other, self)

    def __eq__(self, other: object) -> Value:  # type: ignore[override]  # symbolic, like NumPy's
        return arithmetic("eq", self, other)

    def __ne__(self, other: object) -> Value:  # type: ignore[override]  # symbolic
        return arithmetic("ne", self, other)

    # `==` is symbolic, so a value cannot be a key; nodes can.
    __hash__ = None  # type: ignore[assignment]  # see above

    def __and__(self, other: object) -> Value:
        return _logic("and", self, other)

    def __rand__(self, other: object) -> Value:
        return _logic("and", other, self)

    def __or__(self, other: object) -> Value:
        return _logic("or", self, other)

    def __ror__(self, other: object) -> Value:
        return _logic("or", other, self)

    def __xor__(self, other: object) -> Value:
        return _logic("ne", self, other)

    def __rxor__(self, other: object) -> Value:
        return _logic("ne", other, self)

    def __invert__(self) -> Value:
        _need_bool("~", self.node)
        return Value(Unary("not", self.node))

    def __bool__(self) -> NoReturn:
        raise out_of_language(
            "a Python if, and, or, not, in, min(), max() or a <= b <= c on a symbolic value",
            "write (a <= b) & (b <= c), where(condition, a, b) for if, minimum for min",
        )

    def __float__(self) -> NoReturn:
        raise out_of_language(
            "float(...) or a function of `math` on a symbolic value",
            "use the function of sdpakit with this name; to_float(...) converts",
        )

    def __int__(self) -> NoReturn:
        raise out_of_language("int(...) on a symbolic value", "integers stay symbolic; drop int()")

    def __index__(self) -> NoReturn:
        raise out_of_language(
            "a symbolic value as the index of a list or array, or in range()",
            "give the array at call time and read it with Table(name, dtype, ndim)[...]",
        )

    def __round__(self, digits: int | None = None) -> NoReturn:
        raise out_of_language("round(...) on a symbolic value", "write floor(x + 0.5)")

    def __iter__(self) -> NoReturn:
        raise out_of_language(
            "iteration over a symbolic value", "a value is one number of one pair"
        )

    def __getitem__(self, key: object) -> NoReturn:
        raise out_of_language(
            "[...] on a symbolic value", "only Table(name, dtype, ndim) can be indexed"
        )

    def __array_function__(
        self, function: Callable[..., Any], types: Any, args: Any, kwargs: Any
    ) -> NoReturn:
        name = getattr(function, "__name__", str(function))
        raise out_of_language(
            f"numpy.{name} on a symbolic value",
            "use the function of sdpakit, for example where(...)",
        )

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Value:
        # The operators of NumPy numbers arrive here: `np.float32(2) * x` is `2.0 * x`.
        name = str(ufunc.__name__)
        apply = _UFUNC_OPERATORS.get(name)
        if apply is None or method != "__call__" or kwargs:
            raise out_of_language(
                f"numpy.{name} on a symbolic value", "use the function of sdpakit with this meaning"
            )
        # NumPy hands its numbers over as arrays without axes.
        numbers = (x[()] if getattr(x, "shape", None) == () else x for x in inputs)
        return cast(Value, apply(*(Value(lift(number)) for number in numbers)))


_UFUNC_OPERATORS: dict[str, Callable[..., Any]] = {
    "add": operator.add, "subtract": operator.sub, "multiply": operator.mul,
    "divide": operator.truediv, "true_divide": operator.truediv,
    "floor_divide": operator.floordiv, "remainder": operator.mod,
    "less": operator.lt, "less_equal": operator.le, "greater": operator.gt,
    "greater_equal": operator.ge, "equal": operator.eq, "not_equal": operator.ne,
    "bitwise_and": operator.and_, "bitwise_or": operator.or_, "bitwise_xor": operator.xor,
    "logical_and": operator.and_, "logical_or": operator.or_,
}  # fmt: skip


def lift(value: object) -> Expr:
    """Return the node of a symbolic value, or the literal of a Python or NumPy number.

    Parameters
    ----------
    value : object
        Value, Expr, bool, int or float.

    Returns
    -------
    Expr
        The node.

    Raises
    ------
    SpecError
        For arrays and anything else, and for integers of 63 bits or more.
    """
    if isinstance(value, Value):
        return value.node
    if isinstance(value, Expr):
        return value
    number = plain_number(value)
    if number is None:
        raise out_of_language(
            f"a {type(value).__name__} as an operand",
            "arrays are given at call time: read them with Table(name, dtype, ndim)[...]",
        )
    if isinstance(number, int) and abs(number) >= _MAX_INT:
        raise out_of_language(
            f"the integer {number}", "integers must stay below 2**62; use a float"
        )
    return Const(number)


def as_float(node: Expr) -> Expr:
    """Return the node as a float: literals exactly where float64 can, others through `to_float`.

    Parameters
    ----------
    node : Expr
        Any node; a bool comes back as it is, for the operation to refuse.

    Returns
    -------
    Expr
        The float node.
    """
    if node.type != "int":
        return node
    return Const(float(node.value)) if isinstance(node, Const) else Unary("to_float", node)


def paired(a: object, b: object) -> tuple[Expr, Expr]:
    """Return two operands as nodes, an int beside a float as a float.

    Parameters
    ----------
    a, b : Value, Expr or number
        The operands.

    Returns
    -------
    tuple of Expr
        Both nodes; where the types still differ, the operation refuses them.
    """
    left, right = lift(a), lift(b)
    if {left.type, right.type} == {"int", "float"}:
        return as_float(left), as_float(right)
    return left, right


def arithmetic(op: str, a: object, b: object) -> Value:
    """Return `BINARY[op]` of two operands after their types were brought together.

    Parameters
    ----------
    op : str
        A key of `sdpakit.expr.nodes.BINARY`.
    a, b : Value, Expr or number
        The operands.

    Returns
    -------
    Value
        The result.
    """
    return Value(Binary(op, *paired(a, b)))


def _divide(a: object, b: object) -> Value:
    return Value(Binary("div", as_float(lift(a)), as_float(lift(b))))


def _whole_division(op: str, a: object, b: object) -> Value:
    left, right = lift(a), lift(b)
    if "float" in (left.type, right.type):
        raise out_of_language(
            f"{'//' if op == 'floordiv' else '%'} between {left.type} and {right.type}",
            "// and % take integers; for floats write floor(a / b)",
        )
    return Value(Binary(op, left, right))


def _power(base: Value, exponent: object) -> Value:
    if isinstance(exponent, bool) or not isinstance(exponent, int):
        raise out_of_language(
            f"a power with exponent {exponent!r}",
            "use an int from 1 to 16; sqrt(x) and exp(y * log(x)) say the rest",
        )
    if not 1 <= exponent <= _MAX_POWER:
        raise out_of_language(f"a power with exponent {exponent}", "use an exponent from 1 to 16")
    result = base
    for _ in range(exponent - 1):
        result = result * base
    return result


def _need_bool(op: str, *nodes: Expr) -> None:
    for node in nodes:
        if node.type != "bool":
            raise out_of_language(
                f"{op} on {node.type} values",
                "put each comparison in parentheses: (i.k <= i.q) & (i.k > 3), ~(i.k <= i.q)",
            )


def _logic(op: str, a: object, b: object) -> Value:
    left, right = lift(a), lift(b)
    _need_bool({"and": "&", "or": "|", "ne": "^"}[op], left, right)
    return Value(Binary(op, left, right))
