"""Mutants that take bad calls: computed with, clamped, cast, trapped on (ERR-1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from sdpakit.conformance.inputs import np_dtype
from sdpakit.conformance.mutants.bases import Wrapped
from sdpakit.conformance.mutants.model import Mutant, mutant
from sdpakit.errors import ArgumentError, ArgumentTypeError

if TYPE_CHECKING:
    from sdpakit.spec import AttentionSpec

Kernel = Callable[..., Any]
_WRONG = (ArgumentError, ArgumentTypeError)


def bad_calls_give_zeros(kernel: Kernel, spec: AttentionSpec, given: dict[str, Any]) -> Any:
    """A call that does not fit gives zeros."""
    try:
        return kernel(**given)
    except _WRONG:
        return {name: np.zeros(1) for name in spec.outputs}


def bad_calls_break_off(kernel: Kernel, spec: AttentionSpec, given: dict[str, Any]) -> Any:
    """A call that does not fit ends in an assertion."""
    try:
        return kernel(**given)
    except _WRONG as error:
        raise AssertionError("shape mismatch") from error


def messages_without_a_remedy(kernel: Kernel, spec: AttentionSpec, given: dict[str, Any]) -> Any:
    """A message says that something is wrong, and not what to do."""
    try:
        return kernel(**given)
    except ArgumentError as error:
        raise ArgumentError("invalid argument") from error
    except ArgumentTypeError as error:
        raise ArgumentTypeError("invalid argument") from error


def lengths_clamped(kernel: Kernel, spec: AttentionSpec, given: dict[str, Any]) -> Any:
    """Lengths out of range are clamped."""
    axis = 1 if spec.layout == "bshd" else 2
    for name, of in (("q_lens", "q"), ("kv_lens", "k")):
        lens = given.get(name)
        if isinstance(lens, np.ndarray) and lens.dtype.kind in "iu" and np.ndim(given[of]) == 4:
            given[name] = np.clip(lens.astype(np.int64), 0, given[of].shape[axis])
    return kernel(**given)


def operands_not_asked_for_dropped(
    kernel: Kernel, spec: AttentionSpec, given: dict[str, Any]
) -> Any:
    """Operands that the spec did not ask for are ignored."""
    asked = {
        "bias": spec.bias is not None,
        "mask": spec.mask is not None,
        "q_offset": spec.mask is not None,
        "kv_lens": spec.kv_lens,
        "q_lens": spec.q_lens,
    }
    return kernel(**{name: x for name, x in given.items() if asked.get(name, True)})


def operands_cast(kernel: Kernel, spec: AttentionSpec, given: dict[str, Any]) -> Any:
    """Operands of another dtype are cast in silence."""
    for name in "qkv":
        given[name] = np.asarray(given[name]).astype(np_dtype(spec.dtype))
    if isinstance(given.get("bias"), np.ndarray) and spec.bias:
        given["bias"] = given["bias"].astype(np_dtype(spec.bias))
    return kernel(**given)


def numbers_cut_to_integers(kernel: Kernel, spec: AttentionSpec, given: dict[str, Any]) -> Any:
    """Lengths and offsets that are floats are cut to integers."""
    for name in ("q_lens", "kv_lens"):
        if isinstance(given.get(name), np.ndarray):
            given[name] = given[name].astype(np.int64)
    if isinstance(given.get("q_offset"), float):
        given["q_offset"] = int(given["q_offset"])
    return kernel(**given)


def unsigned_lengths_refused(kernel: Kernel, spec: AttentionSpec, given: dict[str, Any]) -> Any:
    """Lengths of an unsigned dtype cannot be subtracted from one another."""
    for name in ("q_lens", "kv_lens"):
        lens = given.get(name)
        if isinstance(lens, np.ndarray) and lens.dtype.kind == "u":
            raise TypeError("float64 cannot be interpreted as an index")
    return kernel(**given)


def out_copied_to(kernel: Kernel, spec: AttentionSpec, given: dict[str, Any]) -> Any:
    """The result is copied to out= with whatever casts and broadcasts it takes."""
    out = given.get("out")
    if not isinstance(out, np.ndarray):
        return kernel(**given)
    result = kernel(**{name: x for name, x in given.items() if name != "out"})
    found = np.resize(np.asarray(result[0] if isinstance(result, tuple) else result), out.shape)
    if out.flags.writeable:
        out[...] = found.astype(out.dtype)
    return out


MUTANTS: tuple[Mutant, ...] = (
    mutant(
        Wrapped,
        "call",
        bad_calls_give_zeros,
        "refusals.width_of_k.float32 refusals.lens_too_long.float32",
        "pytorch/pytorch#141229",
    ),
    mutant(Wrapped, "call", bad_calls_break_off, "refusals.mask_shape.float32"),
    mutant(Wrapped, "call", messages_without_a_remedy, "refusals.mask_heads.float32"),
    mutant(
        Wrapped,
        "call",
        lengths_clamped,
        "refusals.lens_too_long.float32 refusals.lens_negative.float32",
    ),
    mutant(Wrapped, "call", operands_not_asked_for_dropped, "refusals.bias_not_asked.float32"),
    mutant(
        Wrapped, "call", operands_cast, "refusals.dtype_of_q.float32 refusals.dtype_of_v.float32"
    ),
    mutant(
        Wrapped,
        "call",
        numbers_cut_to_integers,
        "refusals.lens_of_floats.float32 refusals.offset_of_a_float.float32",
    ),
    mutant(Wrapped, "call", unsigned_lengths_refused, "masks.unsigned_lens.float32"),
    mutant(
        Wrapped, "call", out_copied_to, "refusals.out_shape.float32 refusals.out_read_only.float32"
    ),
)
