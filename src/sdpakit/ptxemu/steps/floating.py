"""Float arithmetic that is rounded exactly, and what only looks at bits of floats."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from sdpakit.ptxemu import rounding
from sdpakit.ptxemu.operands import write
from sdpakit.ptxemu.program import Instruction
from sdpakit.ptxemu.registry import Step, instruction, unsupported
from sdpakit.ptxemu.rounding import DIRECTIONS, Exact
from sdpakit.ptxemu.scalars import PREDICATE, Array, ScalarType
from sdpakit.ptxemu.steps import approximations
from sdpakit.ptxemu.steps.elementwise import (
    Function,
    bits_type,
    check_form,
    check_type,
    combine,
    combine_ufunc,
    sources,
)
from sdpakit.ptxemu.steps.floats import (
    HALVES,
    canonical,
    computed_as,
    element,
    read_values,
    rectified,
    saturated,
    write_values,
)

_ALL = ("f16", "bf16", "f16x2", "bf16x2", "f32", "f64")
_WITH_PAIRS = (*_ALL, "f32x2")


@dataclass(frozen=True)
class _Operation:
    """An operation of floats.

    Attributes
    ----------
    nearest : callable
        Rounds to nearest; of float32 or float64.
    exact_f32, exact_f64 : callable
        The exact result, of float64; the former of those that hold float32.
    addends : callable or None
        What is added last, for sums: it decides the sign of a zero.
    """

    nearest: Function
    exact_f32: Callable[..., Exact]
    exact_f64: Callable[..., Exact]
    addends: Callable[..., tuple[Array, Array]] | None = None

    def rounded(self, kind: ScalarType, direction: str) -> Function:
        """Return the function that rounds in a direction."""
        if direction == "rn":
            return self.nearest
        dtype = computed_as(kind)
        exact_of = self.exact_f64 if kind.name == "f64" else self.exact_f32

        def function(*values: Array) -> Array:
            wide = [value.astype(np.float64) for value in values]
            exact = exact_of(*wide)
            result = rounding.round_to(exact, dtype, direction)
            if direction == "rm" and self.addends is not None:
                result = rounding.signed_zeros(result, exact, *self.addends(*wide))
            return result

        return function


def _exact_difference(a: Array, b: Array) -> Exact:
    return rounding.exact_sum(a, -b)


def _exact_reciprocal(a: Array) -> Exact:
    return rounding.exact_quotient(np.ones_like(a), a)


_ADD = _Operation(np.add, rounding.exact_sum, rounding.exact_sum, lambda a, b: (a, b))
_SUBTRACT = _Operation(np.subtract, _exact_difference, _exact_difference, lambda a, b: (a, -b))
_MULTIPLY = _Operation(np.multiply, rounding.exact_product_f32, rounding.exact_product)
_DIVIDE = _Operation(np.divide, rounding.exact_quotient, rounding.exact_quotient)
_RECIPROCAL = _Operation(np.reciprocal, _exact_reciprocal, _exact_reciprocal)
_ROOT = _Operation(np.sqrt, rounding.exact_root, rounding.exact_root)
_FMA = _Operation(
    rounding.fma_f32, rounding.exact_fma_f32, rounding.exact_fma, lambda a, b, c: (a * b, c)
)
_FMA_OF_F64, _FMA_OF_HALVES = (
    replace(_FMA, nearest=nearest) for nearest in (rounding.fma_f64, rounding.fma_for_half)
)


def _build(ins: Instruction, operation: _Operation, sources_count: int, *types: str) -> Step:
    check_form(ins, sources_count + 1, *DIRECTIONS, "ftz", "sat", "relu")
    target, kind = ins.types[0], ins.types[-1]
    check_type(ins, kind, *types)
    flush = ins.has("ftz")
    # With two types, all but the last source are of the second: add.f32.f16 d, a, c.
    kinds = [kind] * (sources_count - 1) + [target]
    readers = [
        read_values(operand, each, flush=flush)
        for operand, each in zip(ins.operands[1:], kinds, strict=True)
    ]
    direction = next((modifier for modifier in ins.modifiers if modifier in DIRECTIONS), "rn")
    if operation is _FMA and element(target) != "f32":
        operation = _FMA_OF_HALVES if target.name in HALVES else _FMA_OF_F64
    function = _clamped(ins, operation.rounded(target, direction))
    if isinstance(function, np.ufunc) and target.name in ("f32", "f64") and not flush:
        return combine_ufunc(ins.operands[0], target, function, *readers)
    return combine(write_values(ins.operands[0], target, flush=flush), function, *readers)


def _clamped(ins: Instruction, function: Function) -> Function:
    if ins.has("sat"):
        return lambda *values: saturated(function(*values))
    if ins.has("relu"):
        return lambda *values: rectified(function(*values))
    return function


def add(ins: Instruction) -> Step:
    """``add`` of floats."""
    return _build(ins, _ADD, 2, *_WITH_PAIRS)


def subtract(ins: Instruction) -> Step:
    """``sub`` of floats."""
    return _build(ins, _SUBTRACT, 2, *_WITH_PAIRS)


def multiply(ins: Instruction) -> Step:
    """``mul`` of floats."""
    return _build(ins, _MULTIPLY, 2, *_WITH_PAIRS)


@instruction("fma")
def multiply_add(ins: Instruction) -> Step:
    """``fma``, and ``mad`` of floats, which is the same since sm_20."""
    return _build(ins, _FMA, 3, *_WITH_PAIRS)


def divide(ins: Instruction) -> Step:
    """``div`` of floats."""
    if ins.has("approx", "full"):
        return approximations.divide(ins)
    return _build(ins, _DIVIDE, 2, "f32", "f64")


@instruction("rcp")
def _reciprocal(ins: Instruction) -> Step:
    if ins.has("approx"):
        return approximations.of_one(ins)
    return _build(ins, _RECIPROCAL, 1, "f32", "f64")


@instruction("sqrt")
def _root(ins: Instruction) -> Step:
    if ins.has("approx"):
        return approximations.of_one(ins)
    return _build(ins, _ROOT, 1, "f32", "f64")


# --------------------------------------------------------------------------------- minimum, maximum


def minimum(ins: Instruction) -> Step:
    """``min{.ftz}{.NaN}`` of two or three floats; -0 is less than +0."""
    return _extreme(ins, np.minimum if ins.has("NaN") else np.fmin, smaller=True)


def maximum(ins: Instruction) -> Step:
    """``max{.ftz}{.NaN}`` of two or three floats; +0 is greater than -0."""
    return _extreme(ins, np.maximum if ins.has("NaN") else np.fmax, smaller=False)


def _extreme(ins: Instruction, ufunc: np.ufunc, *, smaller: bool) -> Step:
    check_form(ins, (3, 4), "ftz", "NaN")
    kind, flush = ins.type, ins.has("ftz")
    check_type(ins, kind, *_ALL)

    def of_two(a: Array, b: Array) -> Array:
        result = ufunc(a, b)
        if not result.all():
            first = np.signbit(a) == smaller
            result = np.where((a == 0) & (b == 0), np.where(first, a, b), result)
        return canonical(result)

    readers = [read_values(operand, kind, flush=flush) for operand in ins.operands[1:]]
    put = write_values(ins.operands[0], kind)
    if len(readers) == 2:
        return combine(put, of_two, *readers)
    return combine(put, lambda a, b, c: of_two(of_two(a, b), c), *readers)


# -------------------------------------------------------------------------------------------- signs


def _sign_bits(kind: ScalarType) -> Array:
    sign = 0x8000_8000 if kind.kind == "packed" else 1 << (kind.bits - 1)
    return np.array([sign], kind.storage)


def absolute(ins: Instruction) -> Step:
    """``abs`` of floats."""
    return _change_sign(ins, np.bitwise_and, ~_sign_bits(ins.type))


def negate(ins: Instruction) -> Step:
    """``neg`` of floats."""
    return _change_sign(ins, np.bitwise_xor, _sign_bits(ins.type))


def _change_sign(ins: Instruction, ufunc: np.ufunc, mask: Array) -> Step:
    check_form(ins, 2, "ftz")
    kind = ins.type
    if ins.has("ftz"):
        function = np.absolute if ufunc is np.bitwise_and else np.negative
        put = write_values(ins.operands[0], kind)
        return combine(put, function, read_values(ins.operands[1], kind, flush=True))
    bits = bits_type(kind)
    return combine_ufunc(
        ins.operands[0], bits, ufunc, *sources(ins, bits), lambda machine, lanes: mask
    )


@instruction("copysign")
def _copysign(ins: Instruction) -> Step:
    """Give the second the sign of the first."""
    check_form(ins, 3)
    bits, sign = bits_type(ins.type), _sign_bits(ins.type)
    return combine(
        write(ins.operands[0]), lambda a, b: (a & sign) | (b & ~sign), *sources(ins, bits)
    )


def _is_normal(values: Array) -> Array:
    result: Array = np.isfinite(values) & (np.abs(values) >= np.finfo(values.dtype).smallest_normal)
    return result


def _is_subnormal(values: Array) -> Array:
    result: Array = (values != 0) & (np.abs(values) < np.finfo(values.dtype).smallest_normal)
    return result


_TESTS: dict[str, Function] = {
    "finite": np.isfinite,
    "infinite": np.isinf,
    "number": lambda values: ~np.isnan(values),
    "notanumber": np.isnan,
    "normal": _is_normal,
    "subnormal": _is_subnormal,
}


@instruction("testp")
def _testp(ins: Instruction) -> Step:
    check_form(ins, 2, *_TESTS)
    check_type(ins, ins.type, "f32", "f64")
    test = next((_TESTS[modifier] for modifier in ins.modifiers if modifier in _TESTS), None)
    if test is None:
        raise unsupported(ins, "testp without a test")
    return combine(write(ins.operands[0], PREDICATE), test, *sources(ins, ins.type))
