"""Comparisons and choices: ``setp``, ``set``, ``selp``, ``slct``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sdpakit.ptxemu.operands import Reader, read, write
from sdpakit.ptxemu.program import Instruction, Pair, Sink
from sdpakit.ptxemu.registry import Step, instruction, unsupported
from sdpakit.ptxemu.scalars import PREDICATE, TYPES, Array, ScalarType
from sdpakit.ptxemu.steps.elementwise import (
    Function,
    bits_type,
    check_form,
    check_type,
    combine,
    combine_ufunc,
    put_pairs,
)
from sdpakit.ptxemu.steps.floats import F32, element, half_rounding, read_values

if TYPE_CHECKING:
    from sdpakit.ptxemu.machine import Lanes, Machine


def _either_nan(a: Array, b: Array) -> Array:
    return np.isnan(a) | np.isnan(b)


_OF_ALL: dict[str, Function] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
_OF_UNSIGNED: dict[str, Function] = {
    "lo": np.less,
    "ls": np.less_equal,
    "hi": np.greater,
    "hs": np.greater_equal,
}
# With a NaN the first six are false here, even `ne`, and those with a `u` are true.
_OF_FLOATS: dict[str, Function] = {
    "ne": lambda a, b: (a < b) | (a > b),
    "equ": lambda a, b: ~((a < b) | (a > b)),
    "neu": np.not_equal,
    "ltu": lambda a, b: ~(a >= b),
    "leu": lambda a, b: ~(a > b),
    "gtu": lambda a, b: ~(a <= b),
    "geu": lambda a, b: ~(a < b),
    "num": lambda a, b: ~_either_nan(a, b),
    "nan": _either_nan,
}
_FLOATS = frozenset({"f16", "bf16", "f16x2", "bf16x2", "f32", "f64"})
_JOIN = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}
_COMPARISONS = tuple({**_OF_ALL, **_OF_UNSIGNED, **_OF_FLOATS})


def _comparison(ins: Instruction, kind: ScalarType) -> Function:
    """Return the comparison that an instruction names for a type."""
    known = dict(_OF_ALL)
    if kind.name in _FLOATS:
        known |= _OF_FLOATS
    elif kind.kind == "bits":
        known = {name: _OF_ALL[name] for name in ("eq", "ne")}
    elif kind.kind == "unsigned":
        known |= _OF_UNSIGNED
    for modifier in ins.modifiers:
        if modifier in known:
            return known[modifier]
    raise unsupported(ins, f"such comparison of {kind.name}, only {', '.join(known)}")


def _reader(ins: Instruction, position: int, kind: ScalarType) -> Reader:
    if kind.name in _FLOATS:
        return read_values(ins.operands[position], kind, flush=ins.has("ftz"))
    return read(ins.operands[position], kind)


def _joined(ins: Instruction) -> np.ufunc | None:
    return next((_JOIN[modifier] for modifier in ins.modifiers if modifier in _JOIN), None)


@instruction("setp")
def _setp(ins: Instruction) -> Step:
    check_form(ins, (3, 4), *_COMPARISONS, *_JOIN, "ftz")
    kind, target = ins.type, ins.operands[0]
    compare = _comparison(ins, kind)
    a, b = _reader(ins, 1, kind), _reader(ins, 2, kind)
    if isinstance(target, Pair) or len(ins.operands) == 4 or kind.kind == "packed":
        return _general_setp(ins, compare, a, b)
    if isinstance(compare, np.ufunc):
        return combine_ufunc(target, PREDICATE, compare, a, b)
    return combine(write(target), compare, a, b)


def _general_setp(ins: Instruction, compare: Function, a: Reader, b: Reader) -> Step:
    """Two results (the comparison and its opposite, or of both halves), joined with a predicate."""
    target = ins.operands[0]
    first, second = (target.first, target.second) if isinstance(target, Pair) else (target, Sink())
    put, put_second = write(first, PREDICATE), write(second, PREDICATE)
    packed, join = ins.type.kind == "packed", _joined(ins)
    if (join is None) != (len(ins.operands) == 3):
        raise unsupported(ins, "setp with a predicate and no .and, .or, .xor, or the reverse")
    c = read(ins.operands[3], PREDICATE) if join is not None else None

    def step(machine: Machine, lanes: Lanes) -> None:
        lanes = machine.quick(lanes)
        result = compare(a(machine, lanes), b(machine, lanes))
        results = (result[:, 0], result[:, 1]) if packed else (result, ~result)
        if join is not None and c is not None:
            # Read before the first result is written: it may be the same register.
            other = c(machine, lanes).copy()
            results = join(results[0], other), join(results[1], other)
        put(machine, lanes, results[0])
        put_second(machine, lanes, results[1])

    return step


@instruction("set")
def _set(ins: Instruction) -> Step:
    """Compare; true is all ones, or 1.0 where the result is a float."""
    check_form(ins, (3, 4), *_COMPARISONS, *_JOIN, "ftz")
    target, kind = ins.types[0], ins.types[-1]
    compare, join = _comparison(ins, kind), _joined(ins)
    if (join is None) != (len(ins.operands) == 3):
        raise unsupported(ins, "set with a predicate and no .and, .or, .xor, or the reverse")
    readers = [_reader(ins, 1, kind), _reader(ins, 2, kind)]
    packed = kind.kind == "packed"
    true = _true(TYPES[element(target)] if target.kind == "packed" else target, packed=packed)
    put = put_pairs(ins.operands[0], kind) if packed else write(ins.operands[0])
    if join is None:
        return combine(put, lambda a, b: compare(a, b) * true, *readers)
    joined = join

    def function(a: Array, b: Array, c: Array) -> Array:
        result: Array = joined(compare(a, b), c[:, None] if packed else c) * true
        return result

    return combine(put, function, *readers, read(ins.operands[3], PREDICATE))


def _true(kind: ScalarType, *, packed: bool) -> Array:
    """Return what a true comparison gives, as bits; of each half if `packed`."""
    if kind.name in ("f16", "bf16"):
        return half_rounding(kind.name, "rn")(np.ones(1, F32))
    if kind.kind == "float":
        return np.ones(1, kind.value).view(kind.storage)
    return ~np.zeros(1, np.uint16 if packed else kind.storage)


@instruction("selp")
def _selp(ins: Instruction) -> Step:
    check_form(ins, 4)
    kind = bits_type(ins.type)
    a, b = read(ins.operands[1], kind), read(ins.operands[2], kind)
    put, p = write(ins.operands[0]), read(ins.operands[3], PREDICATE)
    return combine(put, np.where, p, a, b)


@instruction("slct")
def _slct(ins: Instruction) -> Step:
    """Choose the first if the third is not negative (-0 is not, NaN is)."""
    check_form(ins, 4, "ftz")
    kind, condition = bits_type(ins.types[0]), ins.types[-1]
    check_type(ins, condition, "s32", "f32")
    a, b = read(ins.operands[1], kind), read(ins.operands[2], kind)
    c = _reader(ins, 3, condition)

    def function(x: Array, y: Array, z: Array) -> Array:
        return np.where(z >= 0, x, y)

    return combine(write(ins.operands[0]), function, a, b, c)
