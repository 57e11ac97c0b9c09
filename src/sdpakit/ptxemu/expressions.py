"""Parses operands, and the constant expressions that stand for integers."""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable

from sdpakit.ptxemu.lexer import Token, TokenStream
from sdpakit.ptxemu.program import FloatImmediate, Immediate, Sink
from sdpakit.ptxemu.syntax import Both, Braces, Brackets, Not, Parentheses, Reference, TreeOperand

_PLAIN_ENDS = frozenset({",", ";", "}", "]"})
_UNSIGNED_64 = (1 << 64) - 1


def _divide(left: int, right: int) -> int:
    """Divide as C does, towards zero."""
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


# Precedence and meaning of the binary operators of constant expressions, as in C.
_BINARY: dict[str, tuple[int, Callable[[int, int], int]]] = {
    "||": (1, lambda a, b: int(bool(a or b))),
    "&&": (2, lambda a, b: int(bool(a and b))),
    "|": (3, operator.or_),
    "^": (4, operator.xor),
    "&": (5, operator.and_),
    "==": (6, lambda a, b: int(a == b)),
    "!=": (6, lambda a, b: int(a != b)),
    "<": (7, lambda a, b: int(a < b)),
    "<=": (7, lambda a, b: int(a <= b)),
    ">": (7, lambda a, b: int(a > b)),
    ">=": (7, lambda a, b: int(a >= b)),
    "<<": (8, lambda a, b: (a << b) & _UNSIGNED_64),
    ">>": (8, operator.rshift),
    "+": (9, operator.add),
    "-": (9, operator.sub),
    "*": (10, operator.mul),
    "/": (10, _divide),
    "%": (10, lambda a, b: a - b * _divide(a, b)),
}
_SIGNS: dict[str, Callable[[int], int]] = {
    "-": operator.neg,
    "+": operator.pos,
    "~": operator.invert,
    "!": lambda value: int(not value),
}


def constant(stream: TokenStream, lowest: int = 1) -> int:
    """Parse a constant integer expression whose operators bind at least as tightly as `lowest`.

    Raises
    ------
    PtxSyntaxError
        If there is none.
    """
    value = _unary(stream)
    while stream.next.kind == "mark" and stream.next.text in _BINARY:
        precedence, apply = _BINARY[stream.next.text]
        if precedence < lowest:
            break
        sign = stream.take()
        right = constant(stream, precedence + 1)
        if sign.text in "/%" and right == 0:
            raise stream.error("division by zero in a constant", sign.at)
        value = apply(value, right)
    return value


def _unary(stream: TokenStream) -> int:
    token = stream.next
    if token.kind == "mark" and token.text in _SIGNS:
        stream.take()
        return _SIGNS[token.text](_unary(stream))
    if stream.accept("("):
        value = constant(stream)
        stream.expect(")", "after a constant expression")
        return value
    if stream.accept("WARP_SZ"):
        return 32
    return integer(stream.expect_kind("integer", "an integer"))


def integer(token: Token) -> int:
    """Return the value of an integer token."""
    text = token.text.rstrip("U")
    if len(text) > 1 and text[0] == "0" and text.isdigit():
        return int(text, 8)
    return int(text, 0)


def is_float(token: Token) -> bool:
    """Return whether a token can be a float; ``.5`` looks like a modifier to the lexer."""
    return token.kind == "float" or (token.kind == "dotted" and token.text[1:].isdigit())


def floating(token: Token, *, negative: bool = False) -> FloatImmediate:
    """Return the value of a float token."""
    text, kind = token.text, token.text[1:2].lower()
    if kind in {"f", "d"}:
        width = 32 if kind == "f" else 64
        bits = int(text[2:], 16) ^ (negative << (width - 1))
        layout = ("<I", "<f") if width == 32 else ("<Q", "<d")
        value: float = struct.unpack(layout[1], struct.pack(layout[0], bits))[0]
        return FloatImmediate(value, bits, width)
    return FloatImmediate(-float(text) if negative else float(text), None, 64)


def operand(stream: TokenStream) -> TreeOperand:
    """Parse one operand, with ``|`` and a second one if there is.

    Raises
    ------
    PtxSyntaxError
        If there is none.
    """
    first = _single(stream)
    if isinstance(first, Reference | Sink) and stream.accept("|"):
        return Both(first, _single(stream))
    return first


def _single(stream: TokenStream) -> TreeOperand:
    token = stream.next
    if token.kind == "name" and token.text != "WARP_SZ":
        return reference(stream) if token.text != "_" else _sink(stream)
    if is_float(token):
        return floating(stream.take())
    if token.kind == "integer" or stream.at("-", "+", "~", "(", "WARP_SZ"):
        if token.text == "-" and is_float(stream.after_next()):
            stream.take()
            return floating(stream.take(), negative=True)
        return Immediate(constant(stream, lowest=4))  # a `|` would belong to a pair
    if stream.accept("["):
        return _brackets(stream)
    if stream.accept("{"):
        return Braces(operands(stream, "}"))
    if stream.accept("!"):
        return Not(_single(stream))
    raise stream.expected("an operand (a register, a number, a variable, '[', '{' or '!')")


def _sink(stream: TokenStream) -> Sink:
    stream.take()
    return Sink()


def reference(stream: TokenStream) -> Reference:
    """Parse a name with its component, offset or index.

    Raises
    ------
    PtxSyntaxError
        If there is no name.
    """
    name = stream.expect_kind("name", "a name")
    if stream.next.text in _PLAIN_ENDS:  # most names stand alone
        return Reference(name.text, name.at)
    component, offset, element = "", 0, 0
    if stream.next.kind == "dotted":
        component = stream.take().text[1:]
    if stream.accept("["):
        element = constant(stream)
        stream.expect("]", "after an index")
    while stream.at("+", "-"):
        sign = 1 if stream.take().text == "+" else -1
        offset += sign * constant(stream, lowest=10)
    return Reference(name.text, name.at, component, offset, element)


def _brackets(stream: TokenStream) -> Brackets:
    if stream.next.kind == "name" and stream.next.text != "WARP_SZ":
        base: Reference | Immediate = reference(stream)
    else:
        base = Immediate(constant(stream))
    coordinates: tuple[TreeOperand, ...] = ()
    if stream.accept(","):
        coordinates = _coordinates(stream)
    stream.expect("]", "at the end of an address")
    return Brackets(base, coordinates)


def _coordinates(stream: TokenStream) -> tuple[TreeOperand, ...]:
    stream.expect("{", "before the coordinates of a tensor copy")
    return operands(stream, "}")


def operands(stream: TokenStream, end: str) -> tuple[TreeOperand, ...]:
    """Parse operands with commas between them, up to and past `end`.

    Raises
    ------
    PtxSyntaxError
        If something else stands there.
    """
    found: list[TreeOperand] = []
    while not stream.accept(end):
        if found and not stream.accept(","):
            raise stream.expected(f"',' or {end!r} after an operand")
        found.append(operand(stream))
    return tuple(found)


def call_operands(stream: TokenStream) -> tuple[TreeOperand, ...]:
    """Parse the operands of a call, up to and past the semicolon: lists stand in parentheses.

    Raises
    ------
    PtxSyntaxError
        If something else stands there.
    """
    found: list[TreeOperand] = []
    while not stream.accept(";"):
        if found and not stream.accept(","):
            raise stream.expected("',' or ';' after an operand of a call")
        if stream.accept("("):
            found.append(Parentheses(operands(stream, ")")))
        else:
            found.append(operand(stream))
    return tuple(found)
