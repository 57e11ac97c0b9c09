"""Functions that PTX only approximates: here the nearest float or close to it."""

from __future__ import annotations

import numpy as np

from sdpakit.ptxemu.program import Instruction
from sdpakit.ptxemu.registry import Step, instruction
from sdpakit.ptxemu.scalars import Array
from sdpakit.ptxemu.steps.elementwise import Function, check_form, check_type, combine
from sdpakit.ptxemu.steps.floats import read_values, write_values

# A divisor beyond this has a subnormal reciprocal, which div.approx takes for zero.
_LARGE_DIVISOR = np.float32(2.0**126)


def _reciprocal_root(values: Array) -> Array:
    wide = values.astype(np.float64)
    return (1 / np.sqrt(wide)).astype(values.dtype)


_FUNCTIONS: dict[str, tuple[Function, tuple[str, ...]]] = {
    "rcp": (np.reciprocal, ("f32", "f64")),
    "sqrt": (np.sqrt, ("f32",)),
    "rsqrt": (_reciprocal_root, ("f32", "f64")),
    "sin": (np.sin, ("f32",)),
    "cos": (np.cos, ("f32",)),
    "lg2": (np.log2, ("f32",)),
    "ex2": (np.exp2, ("f32", "f16", "bf16", "f16x2", "bf16x2")),
    "tanh": (np.tanh, ("f32", "f16", "bf16", "f16x2", "bf16x2")),
}


@instruction("rsqrt", "sin", "cos", "lg2", "ex2", "tanh")
def of_one(ins: Instruction) -> Step:
    """Functions of one number, ``.approx{.ftz}``."""
    check_form(ins, 2, "approx", "ftz")
    kind, flush = ins.type, ins.has("ftz")
    function, types = _FUNCTIONS[ins.opcode]
    check_type(ins, kind, *types)
    if kind.name == "f64" and flush:
        function = _of_upper_word(function)
    # A subnormal exponent gives one, flushed or not: two passes less for softmax.
    reader = read_values(ins.operands[1], kind, flush=flush and ins.opcode != "ex2")
    return combine(write_values(ins.operands[0], kind, flush=flush), function, reader)


def _of_upper_word(function: Function) -> Function:
    """Return a function of float64 that sees and gives only upper words, subnormals as zeros."""

    def upper(values: Array) -> Array:
        words = values.view(np.uint64) & np.uint64(0xFFFF_FFFF_0000_0000)
        exponent = np.uint64(0x7FF0_0000_0000_0000)
        words = np.where(words & exponent, words, words & np.uint64(1 << 63))
        return words.view(np.float64)

    return lambda values: upper(function(upper(values)))


def divide(ins: Instruction) -> Step:
    """``div.approx`` and ``div.full``."""
    check_form(ins, 3, "approx", "full", "ftz")
    kind, flush = ins.type, ins.has("ftz")
    check_type(ins, kind, "f32")
    function: Function = np.divide if ins.has("full") else _approximate_quotient
    readers = (read_values(operand, kind, flush=flush) for operand in ins.operands[1:])
    return combine(write_values(ins.operands[0], kind, flush=flush), function, *readers)


def _approximate_quotient(a: Array, b: Array) -> Array:
    quotient = a / b
    large = (np.abs(b) > _LARGE_DIVISOR) & np.isfinite(b)
    if large.any():
        quotient = np.where(large, a * np.copysign(np.float32(0), b), quotient)
    return quotient
