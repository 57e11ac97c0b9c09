"""Cuts PTX into tokens that know where they stand, and says what was expected instead of one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from sdpakit.ptxemu.errors import PtxSyntaxError

# A dotted word may begin with a digit (``.2d``), so ``.5`` is one until it is an operand. ``::``
# joins the words of one modifier (``.shared::cta``). Blanks go with what follows them, which saves
# half of the matches. A `line` is what a preprocessor leaves: ``# 5 "kernel.cu"``.
_PATTERN = re.compile(
    r"""
    (?P<line>^[ \t]*\#[^\n]*)
  | [ \t\r\f\v]*(?:
    (?P<name>[A-Za-z][\w$]*|[_$%][\w$]+|_)
  | (?P<dotted>\.\w+(?:::\w+)*)
  | (?P<float>(?:0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}
              |\d+\.\d+(?:[eE][+-]?\d+)?|\d+\.(?!\w)|\d+[eE][+-]?\d+)(?![\w$]))
  | (?P<integer>(?:0[xX][0-9a-fA-F]+|0[bB][01]+|0[0-7]*|[1-9]\d*)U?(?![\w$]))
  | (?P<string>"[^"\n]*")
  | (?P<mark><<|>>|<=|>=|==|!=|&&|\|\||/(?![/*])|[\[\]{}(),;:+\-|@!<>=*~&^?%])
  | (?P<newline>\n)
  | (?P<comment>//[^\n]*|/\*.*?\*/)
  | (?P<wrong>\S))
    """,
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/|^[ \t]*#[^\n]*", re.DOTALL | re.MULTILINE)


class Position(NamedTuple):
    """A place in the text, both counted from 1."""

    line: int
    column: int


class Token(NamedTuple):
    """A word of PTX: `kind` is a group of the pattern or ``end``, `start` its character from 0."""

    kind: str
    text: str
    start: int
    line: int
    column: int

    @property
    def at(self) -> Position:
        """Where it begins."""
        return Position(self.line, self.column)


def without_comments(text: str) -> str:
    """Return text with a space for each comment."""
    return _COMMENT.sub(" ", text) if "/" in text or "#" in text else text


def error_at(source: str, at: Position, message: str) -> PtxSyntaxError:
    """Return a syntax error that shows the line and points at the column."""
    lines = source.split("\n")
    shown = lines[at.line - 1].replace("\t", " ") if at.line <= len(lines) else ""
    pointer = " " * (at.column - 1) + "^"
    return PtxSyntaxError(
        f"PTX line {at.line}, column {at.column}: {message}\n  {shown}\n  {pointer}"
    )


def _tokens(source: str) -> Iterator[Token]:
    line, line_start = 1, 0
    for match in _PATTERN.finditer(source):
        kind = match.lastgroup or ""
        start = match.start(kind)
        if kind == "newline":
            line, line_start = line + 1, start + 1
        elif kind in {"comment", "line"}:
            if newlines := match[kind].count("\n"):
                line, line_start = line + newlines, source.rindex("\n", start, match.end()) + 1
        else:
            token = Token(kind, match[kind], start, line, start - line_start + 1)
            if kind == "wrong":
                raise error_at(source, token.at, _what_is_wrong(source, token))
            yield token
    end = len(source)
    yield Token("end", "the end of the text", end, line, end - line_start + 1)


def _what_is_wrong(source: str, token: Token) -> str:
    if source.startswith("/*", token.start):
        return "a comment that does not end; expected '*/'"
    if token.text == '"':
        return "a string that does not end; expected '\"' before the end of the line"
    if token.text.isdigit():
        word = re.match(r"[\w$.]+", source[token.start :])
        return (
            f"{word.group() if word else token.text!r} is no number; expected a decimal, 0x, 0b or "
            "octal integer, a decimal float, 0f and 8, or 0d and 16 hexadecimal digits"
        )
    return f"unexpected character {token.text!r}; expected a word, a number or a mark of PTX"


class TokenStream:
    """The tokens of a text, read from left to right with one token looked ahead.

    Parameters
    ----------
    source : str
        PTX.

    Attributes
    ----------
    source : str
        As given.
    next : Token
        The token that comes next.
    last : Token
        The token that was taken last.

    Raises
    ------
    PtxSyntaxError
        For what is no token.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self._tokens = list(_tokens(source))
        self._index = 0
        self.next = self.last = self._tokens[0]

    def take(self) -> Token:
        """Return the next token and go past it; the end stays."""
        token = self.last = self.next
        if token.kind != "end":
            self._index += 1
            self.next = self._tokens[self._index]
        return token

    def after_next(self) -> Token:
        """Return the token after the next."""
        return self._tokens[min(self._index + 1, len(self._tokens) - 1)]

    def at(self, *texts: str) -> bool:
        """Return whether the next token is one of these; strings and the end are none."""
        return self.next.text in texts and self.next.kind not in {"string", "end"}

    def accept(self, text: str) -> bool:
        """Go past the next token if it is this one, and return whether it was."""
        if self.next.text != text or not self.at(text):  # the first is quick and decides most
            return False
        self.take()
        return True

    def expect(self, text: str, where: str) -> Token:
        """Go past a token that must be this one.

        Raises
        ------
        PtxSyntaxError
            If it is another.
        """
        if not self.at(text):
            raise self.expected(f"{text!r} {where}")
        return self.take()

    def expect_kind(self, kind: str, what: str) -> Token:
        """Go past a token that must be of a kind.

        Raises
        ------
        PtxSyntaxError
            If it is of another.
        """
        if self.next.kind != kind:
            raise self.expected(what)
        return self.take()

    def expected(self, what: str) -> PtxSyntaxError:
        """Return the error for something else than `what` at the next token."""
        found = self.next.text if self.next.kind == "end" else repr(self.next.text)
        return self.error(f"expected {what}, found {found}")

    def error(self, message: str, at: Position | None = None) -> PtxSyntaxError:
        """Return an error at a place, by default at the next token."""
        return error_at(self.source, at or self.next.at, message)
