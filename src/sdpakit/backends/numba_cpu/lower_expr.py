"""Scalar language -> vector IR: evaluates an expression for the pairs of one vector.

Either the query row varies over the lanes or the key does. A value that does not depend on it stays
a scalar of the IR (integers as i64) and is splat where it meets a vector; vectors hold integers in
lanes of `int_bits`. Nothing is guarded here: the call has proven that every load lies inside its
table, that divisors are positive and that integers fit their lanes (`sdpakit.passes.integers`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from llvmlite import ir

from sdpakit.backends.numba_cpu.context import BATCH_SLOTS, ContextLayout
from sdpakit.backends.numba_cpu.irtypes import F64, I64, Value
from sdpakit.errors import LoweringError
from sdpakit.expr.nodes import (
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

if TYPE_CHECKING:
    from sdpakit.backends.numba_cpu.vector import Lanes

_FLOAT_BINARY = {"add": "add", "sub": "sub", "mul": "mul", "div": "div", "min": "min", "max": "max"}
_INT_BINARY = {
    "add": "iadd",
    "sub": "isub",
    "mul": "imul",
    "floordiv": "floordiv",
    "mod": "mod",
    "min": "imin",
    "max": "imax",
}
_BOOL_BINARY = {"and": "and_", "or": "or_"}
_COMPARE = {"lt": "<", "le": "<=", "eq": "==", "ne": "!="}
_FLOAT_UNARY = {op: op for op in ("neg", "abs", "exp", "log", "tanh", "sqrt", "floor")}
_INT_UNARY = {"neg": "ineg", "abs": "iabs"}


def staged_loads(root: Expr) -> tuple[Load, ...]:
    """Return the loads of an expression that a panel step may stage: dense tables [.., q, k].

    They are contiguous along keys, while queries are the lanes; integers are left out, as lanes of
    the element would round them.
    """
    return tuple(
        node
        for node in postorder(root)
        if isinstance(node, Load)
        and node.type != "int"
        and node.indices[-2:] == (Index("q"), Index("k"))
        and not any(_reads_pair(index) for index in node.indices[:-2])
    )


def _reads_pair(index: Expr) -> bool:
    return any(node in (Index("q"), Index("k")) for node in postorder(index))


def _is_capped_ratio(node: Expr) -> bool:
    """Return whether a node is scale * dot / softcap, with the scalars of the spec.

    Of a user's scalar the ratio may be infinite or NaN.
    """
    match node:
        case Binary(
            op="div", a=Binary(op="mul", a=Scalar(name="scale"), b=Dot()), b=Scalar(name="softcap")
        ):
            return True
    return False


def _evaluated_first(node: Expr) -> Iterable[Expr]:
    """Return the operands whose values a node asks for."""
    return () if _is_capped_ratio(node) else node.children()


def is_vector(value: Value) -> bool:
    """Return whether the value has lanes."""
    return isinstance(value.type, ir.VectorType)


class Walker:
    """Evaluates expressions for the pairs of `lanes`.

    Parameters
    ----------
    context : ContextLayout
        Where scalars and tables are found.
    lanes : Lanes
        Indices of the pairs and where to emit.
    dot : value, optional
        What `Dot()` is.
    staged : sequence of Load
        Loads whose values the step reads in a way of its own (`lanes.dense`).
    """

    def __init__(
        self, context: ContextLayout, lanes: Lanes, dot: Value = None, staged: Sequence[Load] = ()
    ) -> None:
        self.context = context
        self.lanes = lanes
        self.e = lanes.e
        self.dot = dot
        self.staged = staged
        self.values: dict[Expr, Value] = {}

    def evaluate(self, root: Expr) -> Value:
        """Return the value of `root`: a vector where what varies over the lanes enters it."""
        for node in postorder(root, _evaluated_first):
            if node not in self.values:
                self.values[node] = self._node(node)
        return self.values[root]

    def evaluate_vector(self, root: Expr) -> Value:
        """Return the value of `root` as a vector."""
        return self._vector(self.evaluate(root))

    def _node(self, node: Expr) -> Value:
        match node:
            case Const(value=value):
                return self._const(value)
            case Index(name=name):
                return self._index(name)
            case Scalar(name=name, kind=kind):
                return self._scalar(name, kind)
            case Load():
                return self._load(node)
            case Dot():
                return self.dot
            case Unary(op=op, x=x):
                return self._unary(op, x.type, self.values[x])
            case Binary() if _is_capped_ratio(node):
                return self._capped_ratio()
            case Binary(op=op, a=a, b=b):
                return self._binary(op, a.type, self.values[a], self.values[b])
            case Select(cond=cond, a=a, b=b):
                return self._select(self.values[cond], self.values[a], self.values[b])
        raise LoweringError(f"numba_cpu cannot lower {type(node).__name__}: {node!r}")

    def _const(self, value: bool | int | float) -> Value:  # noqa: FBT001 - a literal may be one
        if isinstance(value, bool):
            return ir.Constant(ir.IntType(1), int(value))
        return self.e.c(value) if isinstance(value, int) else ir.Constant(self.e.S, value)

    def _index(self, name: str) -> Value:
        if name in BATCH_SLOTS:
            array = self.e.load_ctx_int(self.lanes.ctx, BATCH_SLOTS[name])
            return self.e.load_i64(self._offset(array, self.lanes.b, self.e.c(8)))
        return {"b": self.lanes.b, "h": self.lanes.h, "q": self.lanes.q, "k": self.lanes.j}[name]

    def _scalar(self, name: str, kind: str) -> Value:
        slot = self.context.scalar_slots[name]
        if kind == "float":
            return self.e.load_ctx_float(self.lanes.ctx, slot)
        number = self.e.load_ctx_int(self.lanes.ctx, slot)
        return number if kind == "int" else self.e.icmp("!=", number, self.e.c(0))

    def _capped_ratio(self) -> Value:
        """Return scale * dot / softcap (CAP-1) without a division for each vector.

        As many roundings: the ratio is one of float64. It may be out of range of the element where
        the result is not, so it is two factors: the second a power of two, and the first below 1,
        lest a product overflow, unless that power is at its limit.
        """
        e, b, slots = self.e, self.e.b, self.context.scalar_slots
        scale, cap = (
            e.load_ctx_double(self.lanes.ctx, slots[name]) for name in ("scale", "softcap")
        )
        most, largest = (512, 2.0**1023) if e.element == "float64" else (126, 2.0**127)
        with b.goto_entry_block():
            exponent = b.and_(b.bitcast(b.fdiv(scale, cap), I64), e.c(0x7FF << 52))
            power = e.min(e.max(b.bitcast(exponent, F64), F64(2.0**-most)), F64(2.0**most))
            first = b.fdiv(b.fdiv(b.fmul(scale, F64(0.5)), power), cap)
            first = e.narrow(e.min(e.max(first, F64(-largest)), F64(largest)))
            second = e.narrow(b.fmul(power, F64(2.0)))
        return e.mul(e.mul(self.dot, self._vector(first)), self._vector(second))

    def _offset(self, address: Value, index: Value, stride: Value) -> Value:
        return self.e.iadd(address, self.e.imul(index, stride))

    def _load(self, node: Load) -> Value:
        if node in self.staged:
            return self.lanes.dense(self.staged.index(node))
        address, lanes = self._place(node, [self.values[index] for index in node.indices])
        if lanes is None:
            return self.e.load_value(node.dtype, address)
        value = self.e.gather(node.dtype, address, lanes)
        return self.e.resize_int(value, self.lanes.int_bits) if node.type == "int" else value

    def _place(self, node: Load, indices: Sequence[Value]) -> tuple[Value, Value | None]:
        """Return the address of an element, and what has to be added to it in each lane."""
        slots = self.context.table_slots[node.table]
        address = self.e.load_ctx_int(self.lanes.ctx, slots.base)
        lanes: Value = None
        for slot, index in zip(slots.strides, indices, strict=False):
            stride = self.e.load_ctx_int(self.lanes.ctx, slot)
            if not is_vector(index):
                address = self._offset(address, index, stride)
                continue
            offsets = self.e.imul(self.e.resize_int(index, 64), self.e.splat(stride))
            lanes = offsets if lanes is None else self.e.iadd(lanes, offsets)
        return address, lanes

    def locate(self, node: Load) -> tuple[Value, Value, Value]:
        """Return where a table [.., q, k] starts for this batch entry and head.

        Returns
        -------
        address, q_stride, k_stride : i64
            Address of the element of row 0 and key 0, bytes to the next row and to the next key.
        """
        address, _ = self._place(node, [self.evaluate(index) for index in node.indices[:-2]])
        strides = self.context.table_slots[node.table].strides[-2:]
        q_stride, k_stride = (self.e.load_ctx_int(self.lanes.ctx, slot) for slot in strides)
        return address, q_stride, k_stride

    def _vector(self, value: Value) -> Value:
        """Return the value with lanes; scalar integers are narrowed to the width of the lanes."""
        if is_vector(value):
            return value
        width = getattr(value.type, "width", 1)
        if width > self.lanes.int_bits:
            value = self.e.b.trunc(value, ir.IntType(self.lanes.int_bits))
        return self.e.splat(value)

    def _match(self, *values: Value) -> list[Value]:
        """Return the values with lanes where any of them has lanes."""
        if any(is_vector(value) for value in values):
            return [self._vector(value) for value in values]
        return list(values)

    def _unary(self, op: str, kind: str, x: Value) -> Value:
        if op == "not":
            return self.e.not_(x)
        if op == "to_float":
            return self.e.to_float(x)
        if op == "to_int":
            return self.e.to_int(x, self.lanes.int_bits if is_vector(x) else 64)
        name = (_FLOAT_UNARY if kind == "float" else _INT_UNARY)[op]
        return getattr(self.e, name)(x)

    def _binary(self, op: str, kind: str, a: Value, b: Value) -> Value:
        a, b = self._match(a, b)
        if op in _COMPARE:
            compare = self.e.fcmp if kind == "float" else self.e.icmp
            return compare(_COMPARE[op], a, b)
        names = {"float": _FLOAT_BINARY, "int": _INT_BINARY, "bool": _BOOL_BINARY}[kind]
        return getattr(self.e, names[op])(a, b)

    def _select(self, cond: Value, a: Value, b: Value) -> Value:
        if is_vector(cond):
            a, b = self._vector(a), self._vector(b)
        else:
            a, b = self._match(a, b)
        return self.e.select(cond, a, b)
