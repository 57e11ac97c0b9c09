"""Parses a PTX module into its tree: directives, functions and statements."""

from __future__ import annotations

from collections.abc import Callable

from sdpakit.ptxemu.declarations import SPACES, parameters, registers, skip_attribute, variables
from sdpakit.ptxemu.expressions import call_operands, constant, operands, reference
from sdpakit.ptxemu.lexer import Position, Token, TokenStream, without_comments
from sdpakit.ptxemu.program import Limits
from sdpakit.ptxemu.syntax import (
    Body,
    Code,
    Function,
    Label,
    Reference,
    Statement,
    TargetList,
    Tree,
    TreeOperand,
    Variable,
)

_LINKAGE = frozenset({".visible", ".extern", ".weak", ".common"})
_TABLES = frozenset({".branchtargets", ".calltargets", ".callprototype"})
# What the performance directives of a function say: how many numbers follow, at most.
_TUNING = {
    ".maxntid": 3,
    ".reqntid": 3,
    ".reqnctapercluster": 3,
    ".minnctapersm": 1,
    ".maxnctapersm": 1,
    ".maxnreg": 1,
    ".maxclusterrank": 1,
    ".abi_preserve": 1,
    ".abi_preserve_control": 1,
    ".explicitcluster": 0,
    ".blocksareclusters": 0,
    ".noreturn": 0,
}


def parse_tree(source: str) -> Tree:
    """Parse a module.

    Parameters
    ----------
    source : str
        PTX.

    Returns
    -------
    Tree
        What was written.

    Raises
    ------
    PtxSyntaxError
        If it is no PTX.
    """
    return _ModuleParser(TokenStream(source.rstrip("\0"))).parse()


class _ModuleParser:
    def __init__(self, stream: TokenStream) -> None:
        self.stream = stream
        self.version = self.target = ""
        self.variables: list[Variable] = []
        self.functions: list[Function] = []
        self.aliases: dict[str, str] = {}
        self.directives: dict[str, Callable[[], None]] = {
            ".version": self._version,
            ".target": self._target,
            ".address_size": self._address_size,
            ".alias": self._alias,
        }

    def parse(self) -> Tree:
        stream = self.stream
        while stream.next.kind != "end":
            if stream.next.text in self.directives:
                self.directives[stream.take().text]()
            elif not skip_directive(stream):
                self._item()
        if not self.target:
            raise stream.error("the module has no '.target', so it is no PTX")
        return Tree(
            stream.source,
            self.version,
            self.target,
            tuple(self.variables),
            tuple(self.functions),
            self.aliases,
        )

    def _version(self) -> None:
        self.version = self.stream.expect_kind("float", "a version such as 8.7").text

    def _target(self) -> None:
        self.target = self.stream.expect_kind("name", "an architecture such as sm_90a").text
        while self.stream.accept(","):
            self.stream.expect_kind("name", "an option of the target")

    def _address_size(self) -> None:
        at = self.stream.next.at
        if constant(self.stream) != 64:
            raise self.stream.error("expected '.address_size 64'; the emulator has no other", at)

    def _alias(self) -> None:
        name = self.stream.expect_kind("name", "a function").text
        self.stream.expect(",", "between the names of an alias")
        self.aliases[name] = self.stream.expect_kind("name", "a function").text
        self.stream.expect(";", "after an alias")

    def _item(self) -> None:
        stream, external = self.stream, False
        while stream.next.text in _LINKAGE:
            external |= stream.take().text == ".extern"
        if stream.at(".entry", ".func"):
            self.functions.append(self._function(is_entry=stream.take().text == ".entry"))
        elif stream.next.text in SPACES and stream.next.text not in {".reg", ".param"}:
            storage = SPACES[stream.take().text]
            self.variables.extend(variables(stream, storage, external=external))
        else:
            raise stream.expected("a directive, '.entry', '.func' or a variable of the module")

    def _function(self, *, is_entry: bool) -> Function:
        stream = self.stream
        skip_attribute(stream)
        results = () if is_entry else parameters(stream)
        name = stream.expect_kind("name", "the name of a function")
        formal = parameters(stream)
        limits = _limits(stream)
        body = None
        if not stream.accept(";"):
            start = stream.expect(
                "{", "before the body of a function, or ';' after its declaration"
            )
            body = _body(stream, start.at)
        return Function(name.text, is_entry, results, formal, body, limits, name.at)


def skip_directive(stream: TokenStream) -> bool:
    """Go past a directive that says nothing about what happens, and return whether there was one.

    ``.loc`` and ``.file`` have no end mark, so what they may hold is read word by word.

    Raises
    ------
    PtxSyntaxError
        If it is malformed.
    """
    if stream.accept(".loc"):
        for _ in range(3):
            constant(stream)
        while stream.accept(","):
            _skip_origin(stream)
    elif stream.accept(".file"):
        constant(stream)
        stream.expect_kind("string", "the name of a file")
        while stream.accept(","):
            constant(stream)
    elif stream.accept(".pragma"):
        stream.expect_kind("string", "the text of a pragma")
        while stream.accept(","):
            stream.expect_kind("string", "the text of a pragma")
        stream.expect(";", "after a pragma")
    elif stream.accept(".section"):
        _skip_section(stream)
    else:
        return False
    return True


def _skip_origin(stream: TokenStream) -> None:
    """Go past ``function_name label+4`` or ``inlined_at 1 2 3`` of a ``.loc``."""
    if stream.accept("inlined_at"):
        for _ in range(3):
            constant(stream)
        return
    stream.expect("function_name", "or 'inlined_at' after the comma of '.loc'")
    reference(stream)


def _skip_section(stream: TokenStream) -> None:
    if stream.next.kind not in {"dotted", "name"}:
        raise stream.expected("the name of a section")
    stream.take()
    start = stream.expect("{", "before the contents of a section")
    depth = 1
    while depth:
        if stream.next.kind == "end":
            raise stream.error("a section that does not end; expected '}'", start.at)
        depth += {"{": 1, "}": -1}.get(stream.take().text, 0)


def _limits(stream: TokenStream) -> Limits:
    found: dict[str, tuple[int, int, int]] = {}
    while True:
        name = stream.next.text
        if name in _TUNING:
            stream.take()
            found[name] = _sizes(stream, _TUNING[name])
        elif not skip_directive(stream):
            break
    return Limits(found.get(".maxntid"), found.get(".reqntid"), found.get(".reqnctapercluster"))


def _sizes(stream: TokenStream, most: int) -> tuple[int, int, int]:
    sizes = [constant(stream)] if most else []
    while len(sizes) < most and stream.accept(","):
        sizes.append(constant(stream))
    x, y, z = (*sizes, 1, 1, 1)[:3]
    return x, y, z


def _body(stream: TokenStream, start: Position) -> Body:
    """Parse statements up to and past the closing brace of the one at `start`."""
    found: list[Statement] = []
    while not stream.accept("}"):
        token = stream.next
        if token.kind == "end":
            raise stream.error("a body that does not end; expected '}'", start)
        if stream.accept("{"):
            found.append(_body(stream, token.at))
        elif token.kind == "dotted":
            found.extend(_directive(stream))
        elif token.kind == "name" and stream.after_next().text == ":":
            found.append(_label(stream))
        elif token.kind == "name" or token.text == "@":
            found.append(_code(stream))
        elif not stream.accept(";"):
            raise stream.expected("an instruction, a label, a declaration, '{' or '}'")
    return Body(tuple(found))


def _directive(stream: TokenStream) -> list[Statement]:
    if skip_directive(stream):
        return []
    external = stream.accept(".extern")
    token = stream.next
    if token.text not in SPACES:
        raise stream.expected("a declaration ('.reg', '.shared', ...), '.loc' or '.pragma'")
    stream.take()
    if token.text == ".reg":
        return [registers(stream)]
    return [*variables(stream, SPACES[token.text], external=external)]


def _label(stream: TokenStream) -> Statement:
    name = stream.take()
    stream.take()
    if stream.next.text not in _TABLES:
        return Label(name.text, name.at)
    kind = stream.take().text
    if kind != ".branchtargets":
        while not stream.accept(";"):  # read past; the linker refuses calls that need it
            if stream.take().kind == "end":
                raise stream.expected(f"';' after {kind!r}")
        return TargetList(name.text, (), name.at)
    labels: list[Reference] = []
    while not stream.accept(";"):
        if labels:
            stream.expect(",", "or ';' after a label")
        labels.append(reference(stream))
    return TargetList(name.text, tuple(labels), name.at)


def _code(stream: TokenStream) -> Code:
    first = stream.next
    guard, negated = None, False
    if stream.accept("@"):
        negated = stream.accept("!")
        guard = reference(stream)
    opcode = stream.expect_kind("name", "an opcode")
    modifiers: list[str] = []
    while stream.next.kind == "dotted":
        modifiers.append(stream.take().text[1:])
    found = _operands(stream, opcode)
    text = " ".join(without_comments(stream.source[first.start : stream.last.start]).split())
    return Code(opcode.text, tuple(modifiers), found, guard, negated, first.at, text)


def _operands(stream: TokenStream, opcode: Token) -> tuple[TreeOperand, ...]:
    if opcode.text == "call":
        return call_operands(stream)
    return operands(stream, ";")
