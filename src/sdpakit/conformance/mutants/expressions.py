"""Mutants of users' expressions: integers of C, blended choices, tables, ALiBi."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from sdpakit.conformance.inputs import Array
from sdpakit.conformance.mutants.bases import Call, Plain, respec
from sdpakit.conformance.mutants.model import Mutant, mutant
from sdpakit.expr.nodes import Binary, Const, Expr, Index, Load, Select, Unary, postorder
from sdpakit.logits import Alibi
from sdpakit.masks import Mask, Predicate
from sdpakit.reference.expressions import Scope, param
from sdpakit.reference.masks import offset
from sdpakit.reference.operands import Operands

if TYPE_CHECKING:
    from sdpakit.spec import AttentionSpec

Change = Callable[[Expr], Expr]


def _rebuilt(root: Expr, change: Change) -> Expr:
    """Return an expression in which each node, operands first, is what `change` makes of it."""
    made: dict[Expr, Expr] = {}
    for node in postorder(root):
        match node:
            case Unary():
                new: Expr = Unary(node.op, made[node.x])
            case Binary():
                new = Binary(node.op, made[node.a], made[node.b])
            case Select():
                new = Select(made[node.cond], made[node.a], made[node.b])
            case Load():
                new = Load(node.table, node.dtype, tuple(made[index] for index in node.indices))
            case _:
                new = node
        made[node] = change(new)
    return made[root]


def _everywhere(spec: AttentionSpec, change: Change) -> AttentionSpec:
    """Return a spec whose change of the logits is rewritten."""
    if spec.logits is None or isinstance(spec.logits, Alibi):
        return spec
    return respec(spec, logits=_rebuilt(spec.logits, change))


def _in_masks(mask: Mask, change: Change) -> Mask:
    return Predicate(_rebuilt(mask.condition, change)) if isinstance(mask, Predicate) else mask


def _quotient(a: Expr, b: Expr) -> Expr:
    down = Unary("neg", Binary("floordiv", Unary("neg", a), b))
    return Select(Binary("lt", a, Const(0)), down, Binary("floordiv", a, b))


def quotient_towards_zero(mask: Mask) -> Mask:
    """A quotient of integers is rounded towards zero, as in C."""

    def change(node: Expr) -> Expr:
        if isinstance(node, Binary) and node.op == "floordiv":
            return _quotient(node.a, node.b)
        return node

    return _in_masks(mask, change)


def remainder_of_the_dividend(mask: Mask) -> Mask:
    """A remainder has the sign of the dividend, as in C."""

    def change(node: Expr) -> Expr:
        if isinstance(node, Binary) and node.op == "mod":
            return Binary("sub", node.a, Binary("mul", _quotient(node.a, node.b), node.b))
        return node

    return _in_masks(mask, change)


def integers_of_32_bits(mask: Mask) -> Mask:
    """Integers wrap at 2^31."""

    def change(node: Expr) -> Expr:
        if isinstance(node, Binary) and node.op == "mul" and node.type == "int":
            moved = Binary("add", node, Const(2**31))
            return Binary("sub", Binary("mod", moved, Const(2**32)), Const(2**31))
        return node

    return _in_masks(mask, change)


def minimum_is_the_first(mask: Mask) -> Mask:
    """The smaller of two integers is always the first."""

    def change(node: Expr) -> Expr:
        return node.a if isinstance(node, Binary) and node.op == "min" else node

    return _in_masks(mask, change)


def predicate_of_the_first_head(mask: Mask) -> Mask:
    """A predicate is worked out once, for batch entry 0 and head 0."""

    def change(node: Expr) -> Expr:
        return Const(0) if isinstance(node, Index) and node.name in ("b", "h") else node

    return _in_masks(mask, change)


def predicate_ignored(mask: Mask) -> Mask:
    """A predicate is accepted and ignored."""
    return Predicate(lambda i: i.k >= 0) if isinstance(mask, Predicate) else mask


def choice_blends(spec: AttentionSpec, given: dict[str, Any]) -> Call:
    """A choice is a sum of products, so that NaN comes through from the side not taken."""

    def change(node: Expr) -> Expr:
        if not isinstance(node, Select) or node.type != "float":
            return node
        yes = Unary("to_float", node.cond)
        no = Unary("to_float", Unary("not", node.cond))
        return Binary("add", Binary("mul", yes, node.a), Binary("mul", no, node.b))

    return _everywhere(spec, change), given


def floor_towards_zero(spec: AttentionSpec, given: dict[str, Any]) -> Call:
    """A floor cuts towards zero."""

    def change(node: Expr) -> Expr:
        if not isinstance(node, Unary) or node.op != "floor":
            return node
        up = Unary("neg", Unary("floor", Unary("neg", node.x)))
        return Select(Binary("lt", node.x, Const(0.0)), up, node)

    return _everywhere(spec, change), given


def logarithm_base_2(spec: AttentionSpec, given: dict[str, Any]) -> Call:
    """A logarithm is to the base 2."""

    def change(node: Expr) -> Expr:
        if not isinstance(node, Unary) or node.op != "log":
            return node
        return Binary("div", node, Const(float(np.log(2.0))))

    return _everywhere(spec, change), given


def tanh_by_its_series(spec: AttentionSpec, given: dict[str, Any]) -> Call:
    """A tanh is x - x^3 / 3."""

    def change(node: Expr) -> Expr:
        if not isinstance(node, Unary) or node.op != "tanh":
            return node
        cube = Binary("mul", node.x, Binary("mul", node.x, node.x))
        return Binary("sub", node.x, Binary("div", cube, Const(3.0)))

    return _everywhere(spec, change), given


def user_logits_dropped(spec: AttentionSpec, given: dict[str, Any]) -> Call:
    """A change of the logits is accepted and ignored."""
    return respec(spec, logits=None), given


def user_logits_in_half(right: Plain, ops: Operands, scope: Scope, x: Array) -> Array:
    """What the user makes of a logit is rounded to float16."""
    found = right.user_logits(ops, scope, x)
    if ops.spec.logits is None:
        return found
    return found.astype(np.float16).astype(x.dtype)


def _tables(given: dict[str, Any], change: Callable[[Array], Array]) -> dict[str, Any]:
    tables = given.get("params") or {}
    made = {name: change(x) if isinstance(x, np.ndarray) else x for name, x in tables.items()}
    return {**given, "params": made} if made else given


def tables_in_half(spec: AttentionSpec, given: dict[str, Any]) -> Call:
    """Float tables are rounded to float16."""

    def change(table: Array) -> Array:
        return table if table.dtype.kind in "iub" else table.astype(np.float16).astype(table.dtype)

    return spec, _tables(given, change)


def tables_in_memory_order(spec: AttentionSpec, given: dict[str, Any]) -> Call:
    """Tables are read as if their memory were in order."""
    return spec, _tables(given, lambda table: np.resize(_memory(table), table.shape))


def _memory(table: Array) -> Array:
    """Return the elements from the start of an array on, as they lie in memory."""
    base = table.base
    if not isinstance(base, np.ndarray) or base.dtype != table.dtype or table.flags.c_contiguous:
        return table
    flat = base.ravel(order="K")
    start = table.__array_interface__["data"][0] - base.__array_interface__["data"][0]
    return flat[max(start // table.itemsize, 0) :]


class numbers_of_the_first_call:  # noqa: N801 - its name is that of the mutant
    """Run-time numbers are those of the first call."""

    def __init__(self) -> None:
        self._first: dict[str, Any] = {}

    def __call__(self, spec: AttentionSpec, given: dict[str, Any]) -> Call:
        """Return the call with the numbers of the first; see `Plain.change`."""
        params = given.get("params") or {}
        for name in params:
            if np.ndim(params[name]) == 0:
                self._first.setdefault(name, params[name])
        return spec, {**given, "params": {**params, **self._first}} if params else given


def _alibi(
    right: Plain, ops: Operands, scope: Scope, x: Array, distance: Callable[[Any, Any], Any]
) -> Array:
    logits = ops.spec.logits
    if not isinstance(logits, Alibi):
        return right.user_logits(ops, scope, x)
    slopes = np.asarray(param(scope, logits.slopes)).astype(scope.accum)[:, None, None]
    p = scope.indices["q"] + offset(logits.align, scope)
    return np.asarray(x + slopes * distance(scope.indices["k"], p).astype(scope.accum))


def alibi_of_the_distance(right: Plain, ops: Operands, scope: Scope, x: Array) -> Array:
    """ALiBi takes the distance to keys on the right as negative too."""
    return _alibi(right, ops, scope, x, lambda j, p: -np.abs(j - p))


def alibi_of_the_key(right: Plain, ops: Operands, scope: Scope, x: Array) -> Array:
    """ALiBi adds slope * j: the same weights, another lse."""
    return _alibi(right, ops, scope, x, lambda j, p: j + 0 * p)


def alibi_top_left(spec: AttentionSpec, given: dict[str, Any]) -> Call:
    """ALiBi counts from the first row whatever its alignment."""
    if isinstance(spec.logits, Alibi):
        spec = respec(spec, logits=Alibi(spec.logits.slopes, "top_left"))
    return spec, given


MUTANTS: tuple[Mutant, ...] = (
    mutant(
        Plain, "rewrite", quotient_towards_zero, "expressions.predicate_negative_quotient.float32"
    ),
    mutant(
        Plain,
        "rewrite",
        remainder_of_the_dividend,
        "expressions.predicate_negative_modulus.float32",
    ),
    mutant(Plain, "rewrite", integers_of_32_bits, "expressions.predicate_large_integers.float32"),
    mutant(Plain, "rewrite", minimum_is_the_first, "expressions.predicate_minimum.float32"),
    mutant(
        Plain,
        "rewrite",
        predicate_of_the_first_head,
        "expressions.predicate_by_batch_and_head.float32",
    ),
    mutant(Plain, "rewrite", predicate_ignored, "expressions.predicate_checkerboard.float32"),
    mutant(Plain, "change", choice_blends, "expressions.nan_on_the_side_not_taken.float32"),
    mutant(Plain, "change", floor_towards_zero, "expressions.function_floor.float32"),
    mutant(Plain, "change", logarithm_base_2, "expressions.function_log.float32"),
    mutant(Plain, "change", tanh_by_its_series, "expressions.function_tanh.float32"),
    mutant(Plain, "change", user_logits_dropped, "expressions.relative_positions.float32"),
    mutant(Plain, "user_logits", user_logits_in_half, "expressions.relative_positions.float32"),
    mutant(Plain, "change", tables_in_half, "expressions.table_of_float64.float32"),
    mutant(Plain, "change", tables_in_memory_order, "expressions.table_strided.float32"),
    mutant(Plain, "change", numbers_of_the_first_call, "relations.run_time_number.float32"),
    mutant(Plain, "user_logits", alibi_of_the_distance, "expressions.alibi_to_both_sides.float32"),
    mutant(Plain, "user_logits", alibi_of_the_key, "expressions.alibi_top_left.float32"),
    mutant(Plain, "change", alibi_top_left, "expressions.alibi_bottom_right.float32"),
)
