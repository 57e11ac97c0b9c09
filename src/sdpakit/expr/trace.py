"""From a Python function to an expression: the function is called once, with symbolic arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NoReturn

from sdpakit.errors import SdpakitError, SpecError, format_error
from sdpakit.expr.alignment import check_align, position
from sdpakit.expr.names import LOGIT
from sdpakit.expr.nodes import INDICES, Dot, Expr, Index, postorder
from sdpakit.expr.values import LANGUAGE, Value, as_float, lift


class Pair:
    """The argument `i` of a user's function: the indices of one pair of a query row and a key.

    Attributes
    ----------
    b, h : Value
        Batch entry and query head.
    q : Value
        Row index i, not shifted by an alignment; `pos` gives the shifted one.
    k : Value
        Key index j.
    q_len, kv_len : Value
        True lengths of batch entry b.
    q_offset : Value
        Position of row 0 of batch entry b, given at the call.
    """

    __slots__ = ()

    b = property(lambda _: Value(Index("b")))
    h = property(lambda _: Value(Index("h")))
    q = property(lambda _: Value(Index("q")))
    k = property(lambda _: Value(Index("k")))
    q_len = property(lambda _: Value(Index("q_len")))
    kv_len = property(lambda _: Value(Index("kv_len")))
    q_offset = property(lambda _: Value(Index("q_offset")))

    def pos(self, align: str | None = None) -> Value:
        """Return the position p of the row, to be compared with `k` (MASK-2).

        Parameters
        ----------
        align : {"top_left", "bottom_right", "offset"} or None
            None leaves it open, which only a spec with ``equal_lens=True`` takes.

        Returns
        -------
        Value
            Int: q, q + kv_len - q_len, or q + q_offset.

        Raises
        ------
        SpecError
            If the alignment is none of these.
        """
        return Value(position(check_align("i.pos", align)))

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)  # protocols such as copy and NumPy ask for these
        raise SpecError(
            format_error(
                "mask or logit expression",
                got=f"i.{name}",
                allowed=", ".join(f"i.{index}" for index in INDICES) + ", i.pos(align)",
                fix="use one of these",
            )
        )


def trace_mask(function: Callable[..., Any]) -> Expr:
    """Return the condition that a function of the pair computes.

    Parameters
    ----------
    function : callable
        Takes the pair `i`, returns a symbolic bool.

    Returns
    -------
    Expr
        Bool.

    Raises
    ------
    SpecError
        If the function leaves the language, takes other arguments, or returns no condition.
    """
    node = _call("mask", function, (Pair(),), "lambda i: i.k <= i.q")
    return condition(node)


def condition(node: Expr) -> Expr:
    """Return the node if it can be a mask: a bool that does not depend on the logit.

    Parameters
    ----------
    node : Expr
        Any node.

    Returns
    -------
    Expr
        The same node.
    """
    if node.type != "bool":
        raise SpecError(
            format_error(
                "mask",
                got=f"an expression of type {node.type}",
                allowed="a condition (bool): True = the pair may attend (MASK-1)",
                fix="compare: (i.k <= i.q); an additive number belongs in bias= or logits=",
            )
        )
    if not {LOGIT, Dot()}.isdisjoint(postorder(node)):
        raise SpecError(
            format_error(
                "mask",
                got="a condition that depends on the logit",
                allowed="indices, lengths, Scalar, Table",
                fix="use logits=lambda x, i: where(condition, x, -float('inf')) instead",
            )
        )
    return node


def trace_logits(function: Callable[..., Any]) -> Expr:
    """Return the changed logit that a function of the logit and the pair computes.

    Parameters
    ----------
    function : callable
        Takes the logit `x` and the pair `i`, returns a symbolic number.

    Returns
    -------
    Expr
        Float, over the placeholder `LOGIT`.

    Raises
    ------
    SpecError
        If the function leaves the language, takes other arguments, or returns no number.
    """
    node = _call("logits", function, (Value(LOGIT), Pair()), "lambda x, i: x + 0.1 * (i.k - i.q)")
    return changed_logit(node)


def changed_logit(node: Expr) -> Expr:
    """Return the node as a float if it can be a logit.

    Parameters
    ----------
    node : Expr
        Any node.

    Returns
    -------
    Expr
        Float.
    """
    if node.type == "bool" or Dot() in set(postorder(node)):
        raise SpecError(
            format_error(
                "logits",
                got="a condition (bool)" if node.type == "bool" else "an expression with dot()",
                allowed="a number made of the logit x, the indices, Scalar and Table",
                fix="write where(condition, x, other), or give the condition as mask=",
            )
        )
    return as_float(node)


def _call(where: str, function: Callable[..., Any], args: tuple[object, ...], form: str) -> Expr:
    _check_signature(where, function, args, form)
    try:
        result = function(*args)
    except SdpakitError:
        raise
    except (TypeError, AttributeError, IndexError) as error:
        # Methods and functions of other libraries meet a symbolic value and do not know it.
        raise SpecError(
            format_error(
                f"{where}: your function",
                got=f"{type(error).__name__}: {error}",
                allowed=LANGUAGE,
                fix="use these on the symbolic values; arrays are read with Table at call time",
            )
        ) from error
    if result is None:
        raise SpecError(
            format_error(where, got="a function that returned None", allowed=form, fix="return it")
        )
    return lift(result)


def _check_signature(
    where: str, function: Callable[..., Any], args: tuple[object, ...], form: str
) -> None:
    try:
        inspect.signature(function).bind(*args)
    except TypeError as error:
        raise SpecError(
            format_error(
                where,
                got=f"a function that does not take {len(args)} argument(s): {error}",
                allowed=form,
                fix=f"give the function {len(args)} parameter(s) without further required ones",
            )
        ) from error
    except ValueError:
        return  # a builtin without a signature: the call itself will tell
