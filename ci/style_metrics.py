"""Measure how a Python tree is written and fail where a bar is broken.

Use: python ci/style_metrics.py PATH

One line for each figure with its bar; below a broken bar stand the places that break it.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
NESTING = (ast.For, ast.AsyncFor, ast.While, ast.If, ast.With, ast.AsyncWith, ast.Try, ast.Match)
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
LEFTOVER = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
CATCH_ALL = {"Exception", "BaseException"}


@dataclass(frozen=True)
class Function:
    """One function or method, with what the bars ask about it."""

    place: str
    lines: int
    nesting: int
    typed: bool


@dataclass
class Tree:
    """Everything measured about a tree of files; places are `path:line name`."""

    files: list[tuple[str, int]] = field(default_factory=list)
    functions: list[Function] = field(default_factory=list)
    public: int = 0
    undocumented: list[str] = field(default_factory=list)
    leftovers: list[str] = field(default_factory=list)
    swallowed: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Bar:
    """A figure, the limit it is held to, and the places that push it over."""

    name: str
    value: float
    limit: float
    places: list[str]
    unit: str = ""
    at_least: bool = False

    @property
    def broken(self) -> bool:
        """Whether the figure is on the wrong side of its limit."""
        return self.value < self.limit if self.at_least else self.value > self.limit

    def line(self) -> str:
        """Return the figure, its limit and the verdict as one line of text."""
        sign = ">=" if self.at_least else "<="
        value, limit = f"{self.value:.4g}{self.unit}", f"{sign} {self.limit:g}{self.unit}"
        return f"{'BROKEN' if self.broken else 'ok':7}{self.name:32}{value:>9}   {limit}"


def nesting_depth(node: ast.AST, depth: int = 0) -> int:
    """Return how many blocks lie inside one another below `node`; an `elif` adds none."""
    deepest = depth
    for child in ast.iter_child_nodes(node):
        if isinstance(child, SCOPES):
            continue
        is_elif = isinstance(node, ast.If) and isinstance(child, ast.If) and node.orelse == [child]
        deeper = isinstance(child, NESTING) and not is_elif
        deepest = max(deepest, nesting_depth(child, depth + deeper))
    return deepest


def is_typed(node: FunctionNode) -> bool:
    """Return whether all parameters (but self and cls) and the result have a type."""
    spec = node.args
    parameters = [*spec.posonlyargs, *spec.args, *spec.kwonlyargs]
    parameters += [extra for extra in (spec.vararg, spec.kwarg) if extra is not None]
    named = [p for p in parameters if p.arg not in ("self", "cls")]
    return node.returns is not None and all(p.annotation is not None for p in named)


def swallows(node: ast.AST) -> bool:
    """Return whether `node` catches everything and says nothing, or has a bare `except`."""
    if isinstance(node, ast.ExceptHandler):
        if node.type is None:
            return True
        silent = all(
            isinstance(step, ast.Pass | ast.Continue)
            or (isinstance(step, ast.Expr | ast.Return) and isinstance(step.value, ast.Constant))
            for step in node.body
        )
        return silent and bool(CATCH_ALL & names_in(node.type))
    if isinstance(node, ast.Call) and "suppress" in names_in(node.func):
        return any(CATCH_ALL & names_in(argument) for argument in node.args)
    return False


def names_in(node: ast.AST) -> set[str]:
    """Return every name and attribute name below `node`."""
    found = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    return found | {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}


def public_definitions(tree: ast.Module) -> Iterator[FunctionNode | ast.ClassDef]:
    """Yield public classes, functions and methods, those inside functions left out."""
    for holder in ast.walk(tree):
        if isinstance(holder, ast.Module | ast.ClassDef):
            for node in holder.body:
                if isinstance(node, FunctionNode | ast.ClassDef) and not node.name.startswith("_"):
                    yield node


def measure_file(path: Path, into: Tree) -> None:
    """Add the figures of one file to `into`."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    tree = ast.parse(text)
    into.files.append((str(path), len(lines)))
    into.leftovers += [f"{path}:{n}" for n, line in enumerate(lines, 1) if LEFTOVER.search(line)]
    for node in public_definitions(tree):
        into.public += 1
        if ast.get_docstring(node) is None:
            into.undocumented.append(f"{path}:{node.lineno} {node.name}")
    if ast.get_docstring(tree) is None:
        into.undocumented.append(f"{path}:1 (module)")
    into.public += 1
    for node in ast.walk(tree):
        if isinstance(node, FunctionNode):
            place = f"{path}:{node.lineno} {node.name}"
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            into.functions.append(Function(place, length, nesting_depth(node), is_typed(node)))
        if swallows(node):
            into.swallowed.append(f"{path}:{getattr(node, 'lineno', 0)}")


def measure(root: Path) -> Tree:
    """Measure every Python file below `root`."""
    tree = Tree()
    for path in sorted(root.rglob("*.py")):
        measure_file(path, tree)
    return tree


def percent(part: int, whole: int) -> float:
    """Return a share in per cent; of nothing, 0."""
    return 100 * part / whole if whole else 0.0


def nine_tenths(values: list[int]) -> int:
    """Return the value that nine tenths of all values do not pass."""
    return sorted(values)[int(0.9 * (len(values) - 1))] if values else 0


def bars(tree: Tree) -> list[Bar]:
    """Return every bar with the figure of this tree."""
    functions = sorted(tree.functions, key=lambda f: -f.lines)
    long = [f"{f.place} ({f.lines})" for f in functions if f.lines > 60]
    longish = [f"{f.place} ({f.lines})" for f in functions if f.lines > 30]
    deep = [f"{f.place} ({f.nesting})" for f in functions if f.nesting > 3]
    untyped = [f.place for f in functions if not f.typed]
    large = [f"{name} ({n})" for name, n in tree.files if n > 600]
    largish = [f"{name} ({n})" for name, n in tree.files if n > 400]
    count, lengths = len(functions), [f.lines for f in functions]
    sizes = [n for _, n in tree.files]
    documented = 100 - percent(len(tree.undocumented), tree.public)
    return [
        Bar(
            "typed functions", 100 - percent(len(untyped), count), 100, untyped, "%", at_least=True
        ),
        Bar("public docstrings", documented, 98, tree.undocumented, "%", at_least=True),
        Bar("function length, 90 %", nine_tenths(lengths), 30, longish),
        Bar("functions over 60 lines", percent(len(long), count), 1, long, "%"),
        Bar("functions nested over 3 deep", percent(len(deep), count), 1, deep, "%"),
        Bar("file length, 90 %", nine_tenths(sizes), 400, largish),
        Bar("file length, longest", max(sizes, default=0), 600, large),
        Bar("TODO, FIXME, XXX, HACK", len(tree.leftovers), 0, tree.leftovers),
        Bar("bare or swallowed exceptions", len(tree.swallowed), 0, tree.swallowed),
    ]


def main(arguments: list[str]) -> int:
    """Print the figures of a tree; 1 if a bar is broken, 2 if there is nothing to measure."""
    if len(arguments) != 1 or not Path(arguments[0]).is_dir():
        print(__doc__)
        return 2
    tree = measure(Path(arguments[0]))
    if not tree.functions:
        print(f"no function found below {arguments[0]}")
        return 2
    lines = sum(n for _, n in tree.files)
    print(f"{len(tree.files)} files, {lines} lines, {len(tree.functions)} functions")
    for bar in bars(tree):
        print(bar.line())
        for place in bar.places if bar.broken else []:
            print(f"         {place}")
    return int(any(bar.broken for bar in bars(tree)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
