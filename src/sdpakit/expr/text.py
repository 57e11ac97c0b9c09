"""Deterministic text of expressions, and its parser: `formula(to_text(e)) is e`.

The text is an expression of Python's grammar over typed parts: indices by name (`q`, `kv_len`),
run-time numbers as `name.kind` (`scale.float`), table elements as `name.dtype[indices]`
(`doc.int32[b, k]`), `dot()`, the operators and functions of the language, and `t0 = ...; ` before
the result for parts that occur more than once.
"""

from __future__ import annotations

import ast
import math
from collections import Counter

from sdpakit.calling import checked_call
from sdpakit.dtypes import DTYPES
from sdpakit.errors import SpecError, format_error
from sdpakit.expr.names import LOGIT, POSITION, check_name
from sdpakit.expr.nodes import (
    INDICES,
    UNARY,
    Binary,
    Const,
    Dot,
    Expr,
    Index,
    Load,
    Scalar,
    Select,
    Unary,
    postorder,
)

_INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "floordiv": "//", "mod": "%",
    "lt": "<", "le": "<=", "eq": "==", "ne": "!=", "and": "&", "or": "|",
}  # fmt: skip
_ASSOCIATIVE = ("add", "mul", "and", "or")  # printed without parentheses on the left
_FUNCTIONS = {"min": "minimum", "max": "maximum", "abs": "absolute"}
_FUNCTION_OPS = {name: op for op, name in _FUNCTIONS.items()}
# Python's parser bounds the nesting of parentheses (200) and the depth of a tree (its C stack).
_MAX_DEPTH = 24
_SHOWN = 200  # characters of a text in a message

_PLACEHOLDERS: dict[Expr, str] = {LOGIT: "x", POSITION: "pos"}
_NAMED: dict[str, Expr] = {
    **{name: Index(name) for name in INDICES},
    **{name: node for node, name in _PLACEHOLDERS.items()},
    "inf": Const(math.inf),
    "nan": Const(math.nan),
}


def to_text(root: Expr) -> str:
    """Return the text of an expression; equal structure gives equal text.

    Parameters
    ----------
    root : Expr
        Any node.

    Returns
    -------
    str
        One line that `parse` turns back into the same node.
    """
    uses = Counter(child for node in postorder(root) for child in node.children())
    written: dict[Expr, str] = {}
    depths: dict[Expr, int] = {}
    bindings: list[str] = []
    for node in postorder(root):
        written[node] = _write(node, written)
        depths[node] = 1 + max((depths[child] for child in node.children()), default=-1)
        shared = uses[node] > 1 and isinstance(node, Unary | Binary | Select)
        if node is not root and (shared or depths[node] >= _MAX_DEPTH):
            name = f"t{len(bindings)}"
            bindings.append(f"{name} = {written[node]}; ")
            written[node], depths[node] = name, 0
    return "".join(bindings) + written[root]


def _write(node: Expr, written: dict[Expr, str]) -> str:
    match node:
        case Const():
            return repr(node.value)
        case Index():
            return node.name
        case Scalar():
            return _PLACEHOLDERS.get(node) or f"{node.name}.{node.kind}"
        case Load():
            indices = ", ".join(written[index] for index in node.indices)
            return f"{node.table}.{node.dtype}[{indices}]"
        case Dot():
            return "dot()"
        case Select():
            return f"where({written[node.cond]}, {written[node.a]}, {written[node.b]})"
        case Unary():
            return _write_unary(node, written)
        case Binary():
            return _write_binary(node, written)
        case _:
            raise TypeError(f"not a node of the scalar language: {type(node).__name__}")


def _write_unary(node: Unary, written: dict[Expr, str]) -> str:
    # `-1` is a literal, so the negation of a literal has to look different.
    if node.op == "neg" and not isinstance(node.x, Const):
        return f"-{_operand(node.x, written)}"
    if node.op == "not":
        return f"~{_operand(node.x, written)}"
    return f"{_FUNCTIONS.get(node.op, node.op)}({written[node.x]})"


def _write_binary(node: Binary, written: dict[Expr, str]) -> str:
    if node.op not in _INFIX:
        return f"{_FUNCTIONS[node.op]}({written[node.a]}, {written[node.b]})"
    chained = isinstance(node.a, Binary) and node.a.op == node.op and node.op in _ASSOCIATIVE
    left = written[node.a] if chained else _operand(node.a, written)
    return f"{left} {_INFIX[node.op]} {_operand(node.b, written)}"


def _operand(node: Expr, written: dict[Expr, str]) -> str:
    """Return the text of an operand; infix operations get parentheses: no precedence matters."""
    text = written[node]
    infix = isinstance(node, Binary) and node.op in _INFIX and not text.isidentifier()
    return f"({text})" if infix else text


@checked_call
def formula(text: str) -> Expr:
    """Return the expression that a text describes; `repr` of an expression is such a call.

    Parameters
    ----------
    text : str
        Text in the form that `repr` prints, for example ``"k <= q + (kv_len - q_len)"`` or
        ``"x + slopes.float32[h] * to_float(k - q)"``. Types are not converted: write
        ``to_float(k)`` where a float is due.

    Returns
    -------
    Expr
        A value for `AttentionSpec(mask=...)` or `AttentionSpec(logits=...)`.

    Raises
    ------
    SpecError
        If the text is not an expression of the language, mixes types, or uses a reserved name.
    """
    node = parse(text)
    for part in postorder(node):
        if isinstance(part, Scalar) and part not in _PLACEHOLDERS:
            check_name("Scalar", part.name)
        elif isinstance(part, Load):
            check_name("Table", part.table)
    return node


def parse(text: str) -> Expr:
    """Return the expression that a text describes; reserved names are allowed.

    Parameters
    ----------
    text : str
        The result of `to_text`.

    Returns
    -------
    Expr
        The same node that was printed.

    Raises
    ------
    SpecError
        If the text is not an expression of the language.
    """
    if not isinstance(text, str):
        raise _bad_text(f"a {type(text).__name__}")
    try:
        return _statements(text, ast.parse(text.strip()).body)
    except SpecError:
        raise
    except (SyntaxError, RecursionError, MemoryError, ValueError) as error:
        # The chain of a RecursionError would be thousands of lines that say nothing.
        raise _bad_text(f"{_short(text)} ({error})") from None


def _statements(text: str, body: list[ast.stmt]) -> Expr:
    names = dict(_NAMED)
    for position, statement in enumerate(body):
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)]) if position + 1 < len(body):
                names[name] = _Parser(text, names).expression(statement.value)
            case ast.Expr() if position + 1 == len(body):
                return _Parser(text, names).expression(statement.value)
            case _:
                break
    raise _bad_text(_short(text))


def _short(text: str) -> str:
    return repr(text) if len(text) <= _SHOWN else f"{text[:_SHOWN]!r}..."


def _bad_text(got: str) -> SpecError:
    return SpecError(
        format_error(
            "formula",
            got=got,
            allowed="'NAME = EXPRESSION; ... EXPRESSION' over b h q k q_len kv_len q_offset, "
            "name.float, name.int, name.dtype[indices], + - * / // % < <= > >= == != & | ~, where "
            "minimum maximum exp log tanh sqrt floor absolute to_float to_int",
            fix="copy the text from the repr of a spec, or write a Python function instead",
        )
    )


class _Parser:
    """Walks the Python syntax tree of one text."""

    def __init__(self, text: str, names: dict[str, Expr]) -> None:
        self.text = text
        self.names = names

    def expression(self, tree: ast.expr) -> Expr:
        match tree:
            case ast.Constant(value=bool() | int() | float() as value):
                return Const(value)
            case ast.Name(id=name) if name in self.names:
                return self.names[name]
            case ast.Attribute(value=ast.Name(id=name), attr="int" | "float" | "bool" as kind):
                return Scalar(name, kind)
            case ast.Subscript(value=ast.Attribute(value=ast.Name(id=name), attr=dtype)):
                return self.load(tree, name, dtype)
            case ast.UnaryOp():
                return self.unary(tree)
            case ast.BinOp(left=left, op=op, right=right):
                return self.binary(tree, op, left, right)
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return self.binary(tree, op, left, right)
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
                return self.call(tree, name, args)
            case _:
                raise self.refuse(tree)

    def refuse(self, tree: ast.expr) -> SpecError:
        return _bad_text(f"{_short(ast.unparse(tree))} in {_short(self.text)}")

    def load(self, tree: ast.Subscript, table: str, dtype: str) -> Expr:
        if dtype not in DTYPES:
            raise self.refuse(tree)
        indices = tree.slice.elts if isinstance(tree.slice, ast.Tuple) else [tree.slice]
        nodes = tuple(self.expression(index) for index in indices)
        if not nodes or any(node.type != "int" for node in nodes):
            raise self.refuse(tree)
        return Load(table, dtype, nodes)

    def unary(self, tree: ast.UnaryOp) -> Expr:
        operand = tree.operand
        match tree.op, operand:
            case ast.USub(), ast.Constant(value=int() | float() as value):
                return Const(-value)
            case ast.USub(), ast.Name(id="inf"):
                return Const(-math.inf)
            case ast.USub(), _:
                return Unary("neg", self.expression(operand))
            case ast.Invert(), _:
                return Unary("not", self.expression(operand))
            case _:
                raise self.refuse(tree)

    def binary(
        self, tree: ast.expr, op: ast.operator | ast.cmpop, left: ast.expr, right: ast.expr
    ) -> Expr:
        a, b = self.expression(left), self.expression(right)
        match op:
            case ast.Gt():
                return Binary("lt", b, a)
            case ast.GtE():
                return Binary("le", b, a)
            case _ if type(op) in _AST_OPERATORS:
                return Binary(_AST_OPERATORS[type(op)], a, b)
            case _:
                raise self.refuse(tree)

    def call(self, tree: ast.expr, name: str, args: list[ast.expr]) -> Expr:
        operands = [self.expression(arg) for arg in args]
        op = _FUNCTION_OPS.get(name, name)
        match operands:
            case [] if name == "dot":
                return Dot()
            case [x] if op in UNARY:
                return Unary(op, x)
            case [a, b] if op in ("min", "max"):
                return Binary(op, a, b)
            case [cond, a, b] if name == "where":
                return Select(cond, a, b)
            case _:
                raise self.refuse(tree)


_AST_OPERATORS: dict[type[ast.operator | ast.cmpop], str] = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.FloorDiv: "floordiv",
    ast.Mod: "mod", ast.Lt: "lt", ast.LtE: "le", ast.Eq: "eq", ast.NotEq: "ne",
    ast.BitAnd: "and", ast.BitOr: "or",
}  # fmt: skip
