"""Functions of a driver, written in a small part of Python, -> one LLVM function without calls.

Decides which Python a driver may use: int64, float64, truth values and tuples of them, named or
not; assignments, `if`, `while`, `for` over `range` with rising steps, `continue`, `return`;
operators (`arithmetic.py`), instructions (`instructions.py`), and functions that are `inner`
themselves, which are inlined wherever they are called. A name keeps the type of its first value.
All operands of a chain of comparisons are evaluated.

The source is read when the driver is imported: what is compiled later is what was loaded, whatever
has happened to the file since.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import linecache
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from llvmlite import ir

from sdpakit.backends.numba_cpu import arithmetic
from sdpakit.backends.numba_cpu.forks import computed_once
from sdpakit.backends.numba_cpu.functions import new_function
from sdpakit.backends.numba_cpu.instructions import Instruction
from sdpakit.backends.numba_cpu.irtypes import F64, I1, I64, Value
from sdpakit.errors import InternalError

Function = TypeVar("Function", bound=Callable[..., Any])


class Inner:
    """A function of a driver.

    Parameters
    ----------
    function : callable
        A plain function of a file; only its text and its globals are used.
    """

    def __init__(self, function: Any) -> None:
        code = function.__code__
        self.name: str = function.__name__
        self.parameters: tuple[str, ...] = code.co_varnames[: code.co_argcount]
        self.globals: dict[str, Any] = function.__globals__
        self._lines = linecache.getlines(code.co_filename, self.globals)
        self._first = code.co_firstlineno - 1
        if not self._lines:
            raise InternalError(f"the driver has no source: {code.co_filename}")

    @computed_once
    def body(self) -> list[ast.stmt]:
        """Statements, without the docstring."""
        (definition,) = ast.parse("".join(inspect.getblock(self._lines[self._first :]))).body
        assert isinstance(definition, ast.FunctionDef)
        return definition.body[ast.get_docstring(definition) is not None :]

    @computed_once
    def single(self) -> frozenset[str]:
        """Names that stand for one value: parameters and locals that nothing assigns anew."""
        stored = Counter(
            node.id
            for statement in self.body
            for node in ast.walk(statement)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        )
        always = {
            node.id
            for statement in self.body
            if isinstance(statement, ast.Assign)
            for node in ast.walk(statement)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }
        parameters = set(self.parameters)
        once = {name for name in always if stored[name] == 1} - parameters
        return frozenset(once | (parameters - stored.keys()))

    @computed_once
    def returns_at_the_end(self) -> bool:
        """Whether nothing returns before the last statement."""
        nodes = (node for statement in self.body for node in ast.walk(statement))
        found = [node for node in nodes if isinstance(node, ast.Return)]
        return found == [] or found == [self.body[-1]]


def inner(function: Function) -> Function:
    """Make a function one of a driver, which compiled code alone may call."""
    return cast(Function, Inner(function))


def emit(module: Any, name: str, function: Any, **known: int) -> None:
    """Emit an `inner` function of int64 that returns nothing as `name` of a module.

    Parameters
    ----------
    module : llvmlite.ir.Module
        Where it goes.
    name : str
        Its name there.
    function : Inner
        What it does.
    **known : int
        Values of parameters of `function`, which the emitted one then lacks.

    Raises
    ------
    InternalError
        If it, or a function that it calls, says something that drivers may not say.
    """
    open_parameters = [parameter for parameter in function.parameters if parameter not in known]
    entry = new_function(module, name, open_parameters)
    b = ir.IRBuilder(entry.function.append_basic_block("body"))
    values = {parameter: I64(number) for parameter, number in known.items()}
    values.update(zip(open_parameters, b.function.args, strict=True))
    _Body(entry, b, function).run([values[parameter] for parameter in function.parameters])
    b.ret(I64(0))
    entry.branch(b.function.blocks[1])


def _each(function: Callable[..., Any], value: Any, *others: Any) -> Any:
    """Return a value, or a tuple of values in its own type, with a function applied to each."""
    if not isinstance(value, tuple):
        return function(value, *others)
    parts = [_each(function, *parts) for parts in zip(value, *others, strict=True)]
    return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)


class _Body:
    """The body of one inner function at one call.

    Parameters
    ----------
    entry : ir.IRBuilder
        At the entry of the LLVM function, where memory for names is made.
    b : ir.IRBuilder
        Where the body goes.
    function : Inner
        What is inlined.
    """

    def __init__(self, entry: Any, b: Any, function: Inner) -> None:
        self.entry, self.b, self.function = entry, b, function
        self.values: dict[str, Any] = {}
        self.slots: dict[str, Any] = {}
        self.result: Any = None  # slots of what is returned
        self.exit: Any = None
        self.next_turns: list[Any] = []  # blocks that `continue` goes to

    def run(self, arguments: Sequence[Any]) -> Any:
        """Emit the body; return what it returns."""
        for name, value in zip(self.function.parameters, arguments, strict=True):
            self.bind(name, value)
        last = self.function.body[-1]
        if self.function.returns_at_the_end:
            ends = isinstance(last, ast.Return)
            self.statements(self.function.body[: -1 if ends else None])
            return self.expression(last.value) if isinstance(last, ast.Return) else None
        self.exit = self.block("exit")
        self.statements(self.function.body)
        self.go(self.exit)
        self.b.position_at_end(self.exit)
        return None if self.result is None else _each(self.load, self.result)

    def block(self, name: str) -> Any:
        return self.b.append_basic_block(f"{self.function.name}.{name}")

    def go(self, block: Any) -> None:
        """Go on in a block, unless the code has left already."""
        if not self.b.block.is_terminated:
            self.b.branch(block)

    @contextmanager
    def inside(self, block: Any, then: Any) -> Iterator[None]:
        """Emit into a block, which another follows."""
        self.b.position_at_end(block)
        yield
        self.go(then)

    def slot(self, value: Value) -> Value:
        return self.entry.alloca(value.type)

    def load(self, slot: Value) -> Value:
        return self.b.load(slot, typ=slot.allocated_type)

    def store(self, value: Value, slot: Value) -> None:
        if value.type != slot.allocated_type:
            raise InternalError(
                f"{self.function.name}: {value.type} where {slot.allocated_type} was before"
            )
        self.b.store(value, slot)

    def bind(self, name: str, value: Any) -> None:
        """Give a name a value."""
        if name in self.function.single:
            self.values[name] = value
            return
        if name not in self.slots:
            self.slots[name] = _each(self.slot, value)
        _each(self.store, value, self.slots[name])

    def named(self, name: str) -> Any:
        """Return the value of a name of the function."""
        return self.values[name] if name in self.values else _each(self.load, self.slots[name])

    def statements(self, nodes: Sequence[ast.stmt]) -> None:
        for node in nodes:
            self.statement(node)
            if self.b.block.is_terminated:
                return

    def statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Expr(value):
                self.expression(value)
            case ast.Assign([target], value):
                self.assign(target, self.expression(value))
            case ast.AugAssign(ast.Name(name), operator, value):
                old = self.named(name)
                self.bind(name, arithmetic.binary(self.b, operator, old, self.expression(value)))
            case ast.If():
                self.if_(node)
            case ast.While(test, body, []):
                self.while_(test, body)
            case ast.For(ast.Name(name), ast.Call(ast.Name("range"), arguments, []), body, []):
                self.for_(name, [self.expression(argument) for argument in arguments], body)
            case ast.Continue():
                self.b.branch(self.next_turns[-1])
            case ast.Return(value):
                self.return_(None if value is None else self.expression(value))
            case _:
                raise self.unknown(node)

    def unknown(self, node: ast.AST) -> InternalError:
        text = ast.unparse(node)
        return InternalError(f"{self.function.name}: a driver cannot say `{text}`")

    def assign(self, target: ast.expr, value: Any) -> None:
        if isinstance(target, ast.Tuple):
            for part, one in zip(target.elts, value, strict=True):
                self.assign(part, one)
        elif isinstance(target, ast.Name):
            self.bind(target.id, value)
        else:
            raise self.unknown(target)

    def if_(self, node: ast.If) -> None:
        yes, no, after = self.block("if"), self.block("else"), self.block("endif")
        self.b.cbranch(self.truth(node.test), yes, no)
        with self.inside(yes, after):
            self.statements(node.body)
        with self.inside(no, after):
            self.statements(node.orelse)
        self.b.position_at_end(after)

    def while_(self, test: ast.expr, body: Sequence[ast.stmt]) -> None:
        again, turn, after = self.block("while"), self.block("turn"), self.block("endwhile")
        self.go(again)
        self.b.position_at_end(again)
        self.b.cbranch(self.truth(test), turn, after)
        self.next_turns.append(again)
        with self.inside(turn, again):
            self.statements(body)
        self.next_turns.pop()
        self.b.position_at_end(after)

    def for_(self, name: str, bounds: Sequence[Value], body: Sequence[ast.stmt]) -> None:
        start, end = (I64(0), bounds[0]) if len(bounds) == 1 else bounds[:2]
        step = bounds[2] if len(bounds) == 3 else I64(1)
        counter = self.slot(start)
        self.b.store(start, counter)
        again, turn, after = self.block("for"), self.block("turn"), self.block("endfor")
        increase = self.block("next")
        self.go(again)
        self.b.position_at_end(again)
        number = self.load(counter)
        self.b.cbranch(self.b.icmp_signed("<", number, end), turn, after)
        self.next_turns.append(increase)
        with self.inside(turn, increase):
            self.bind(name, number)
            self.statements(body)
        self.next_turns.pop()
        with self.inside(increase, again):
            self.b.store(self.b.add(number, step), counter)
        self.b.position_at_end(after)

    def return_(self, value: Any) -> None:
        if value is not None:
            if self.result is None:
                self.result = _each(self.slot, value)
            _each(self.store, value, self.result)
        self.b.branch(self.exit)

    def truth(self, node: ast.expr) -> Value:
        return arithmetic.truth(self.b, self.expression(node))

    def expression(self, node: ast.expr | None) -> Any:
        match node:
            case ast.Tuple(parts):
                return tuple(self.items(parts))
            case ast.BinOp(left, operator, right):
                x, y = self.expression(left), self.expression(right)
                return arithmetic.binary(self.b, operator, x, y)
            case ast.UnaryOp(operator, operand):
                return arithmetic.negated(self.b, operator, self.expression(operand))
            case ast.Compare():
                return self.comparison(node)
            case ast.BoolOp():
                return self.all_or_any(node)
            case ast.IfExp():
                return self.one_of_two(node)
            case ast.Call(callee, arguments, []):
                return self.call(self.known(callee), self.items(arguments))
            case ast.expr():
                return self.part_or_number(node)
        raise InternalError(
            f"{self.function.name}: a driver returns either always a value or never"
        )

    def part_or_number(self, node: ast.expr) -> Any:
        """Return the value of a name, of a part of what it stands for, or of a constant."""
        match node:
            case ast.Subscript(whole, ast.Constant(index)):
                return self.expression(whole)[index]
            case ast.Attribute(ast.Name(name), field) if self.is_local(name):
                return getattr(self.named(name), field)
            case ast.Name(name) if self.is_local(name):
                return self.named(name)
        value = self.known(node)
        for python, kind in ((bool, I1), (int, I64), (float, F64)):
            if isinstance(value, python):
                return kind(value)
        raise self.unknown(node)

    def items(self, nodes: Sequence[ast.expr]) -> list[Any]:
        """Return values of a list of expressions, some of them with a star."""
        found: list[Any] = []
        for node in nodes:
            if isinstance(node, ast.Starred):
                found += self.expression(node.value)
            else:
                found.append(self.expression(node))
        return found

    def is_local(self, name: str) -> bool:
        return name in self.values or name in self.slots

    def known(self, node: ast.expr) -> Any:
        """Return the object of Python that a global name, or an attribute of one, stands for."""
        match node:
            case ast.Constant(value):
                return value
            case ast.Attribute(value, name):
                return getattr(self.known(value), name)
            case ast.Name(name) if name in self.function.globals:
                return self.function.globals[name]
            case ast.Name(name) if hasattr(builtins, name):
                return getattr(builtins, name)
        raise self.unknown(node)

    def comparison(self, node: ast.Compare) -> Value:
        operands = [self.expression(one) for one in (node.left, *node.comparators)]
        found = [
            arithmetic.compared(self.b, operator, *operands[n : n + 2])
            for n, operator in enumerate(node.ops)
        ]
        holds = found[0]
        for other in found[1:]:
            holds = self.b.and_(holds, other)
        return holds

    def all_or_any(self, node: ast.BoolOp) -> Value:
        after, slot = self.block("known"), self.entry.alloca(I1)
        for number, one in enumerate(node.values, 1):
            holds = self.truth(one)
            self.b.store(holds, slot)
            if number < len(node.values):
                more = self.block("more")
                ways = (more, after) if isinstance(node.op, ast.And) else (after, more)
                self.b.cbranch(holds, *ways)
                self.b.position_at_end(more)
        self.go(after)
        self.b.position_at_end(after)
        return self.load(slot)

    def one_of_two(self, node: ast.IfExp) -> Any:
        yes, no, after = self.block("if"), self.block("else"), self.block("endif")
        self.b.cbranch(self.truth(node.test), yes, no)
        slots: Any = None
        for block, one in ((yes, node.body), (no, node.orelse)):
            with self.inside(block, after):
                value = self.expression(one)
                slots = _each(self.slot, value) if slots is None else slots
                _each(self.store, value, slots)
        self.b.position_at_end(after)
        return _each(self.load, slots)

    def call(self, callee: Any, arguments: Sequence[Any]) -> Any:
        if isinstance(callee, Inner):
            return _Body(self.entry, self.b, callee).run(arguments)
        if isinstance(callee, Instruction):
            return callee.emit(self.b, *arguments)
        if isinstance(callee, type) and issubclass(callee, tuple):
            return callee(*arguments)
        name = f"{callee.__module__}.{callee.__qualname__}"
        if name not in arithmetic.FUNCTIONS:
            raise InternalError(f"{self.function.name}: a driver cannot call {name}")
        return arithmetic.FUNCTIONS[name](self.b, *arguments)
