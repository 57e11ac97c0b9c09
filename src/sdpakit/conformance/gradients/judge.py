"""The judgement of a target on a gradient case."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sdpakit.conformance.compare import Comparison, compare
from sdpakit.conformance.contained import StepError, step
from sdpakit.conformance.gradients.bounds import gradient_bounds
from sdpakit.conformance.gradients.wanted import gradient_operands
from sdpakit.conformance.inputs import Array
from sdpakit.conformance.intake import as_array
from sdpakit.conformance.judge import expected, summed_up
from sdpakit.conformance.model import Case, Outcome, Profile
from sdpakit.conformance.target import Target
from sdpakit.conformance.witness import Kept, Witness, same_bits
from sdpakit.errors import UnsupportedSpecError
from sdpakit.reference.gradients import gradients


def check_gradients(target: Target, case: Case) -> Outcome:
    """Judge the gradients of a target on a case.

    The call is made twice: the first result is judged, the second must have its bits (DET-1) in
    memory of its own, and neither may write to an operand, `dout` included.

    Parameters
    ----------
    target : Target
        What is judged.
    case : Case
        A gradient case.

    Returns
    -------
    Outcome
        "refused" where the target has no gradients, or not of this spec.
    """
    operands = case.operands()
    try:
        backward = step("prepare_gradients", target.prepare_gradients, case.attention_spec())
        found = _call(target, case, backward, operands)
    except StepError as raised:
        if isinstance(raised.error, UnsupportedSpecError):
            return Outcome(target.name, case.id, "refused", message=str(raised.error))
        if raised.violation:
            return Outcome(target.name, case.id, "fail", message=raised.violation)
        return Outcome(target.name, case.id, "error", message=str(raised))
    return summed_up(target, case, found)


def expected_gradients(case: Case) -> dict[str, Array]:
    """Return the gradients of a case as the reference has them.

    Parameters
    ----------
    case : Case
        A gradient case.

    Returns
    -------
    dict of str to array
        Float64, by name; made once for several targets in a row.
    """
    return _expected(case)


@functools.lru_cache(maxsize=8)
def _expected(case: Case) -> dict[str, Array]:
    return gradients(expected(case), case.operands()["dout"])


@functools.lru_cache(maxsize=8)
def _allowed(case: Case, profile: Profile) -> dict[str, Array]:
    """Return the bounds of a case; targets of the same numerics share them."""
    operands = case.operands()
    wanted = gradient_operands(case.attention_spec(), operands)
    return gradient_bounds(
        expected(case),
        operands["dout"],
        {name: like.dtype.name for name, like in wanted.items()},
        case.bound,
        profile,
        exact=expected_gradients(case),
    )


def _call(
    target: Target, case: Case, backward: Callable[..., Any], operands: Mapping[str, Any]
) -> list[Comparison]:
    witness = Witness(operands)
    first = step("the gradients", backward, **operands)
    if not isinstance(first, Mapping):
        return [Comparison(np.inf, f"gradients came as a {type(first).__name__}, not by name")]
    first = step("reading what came back", _read, first)
    kept = Kept(first)
    found = compared(target, case, first, operands)
    if not case.heavy:
        again = step("the gradients", backward, **operands)
        second = step("reading what came back", _read, again if isinstance(again, Mapping) else {})
        for name, array in kept.results.items():
            if not same_bits(array, second.get(name)):
                found.append(Comparison(np.inf, f"{name} has other bits in a second call"))
            elif array.size and np.may_share_memory(array, second[name]):
                # Both calls are alike, so that the bits do not tell whether one wrote over another.
                found.append(Comparison(np.inf, f"{name} of two calls is the same memory"))
    found.extend(Comparison(np.inf, text) for text in (*witness.complaints(), *kept.complaints()))
    return found


def _read(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return gradients as NumPy arrays, those of another library too."""
    return {name: as_array(array) for name, array in result.items()}


def compared(
    target: Target, case: Case, result: Mapping[str, Any], operands: Mapping[str, Any]
) -> list[Comparison]:
    """Return how gradients compare with those of the reference.

    Parameters
    ----------
    target : Target
        Has the profile.
    case : Case
        A gradient case.
    result : mapping of str to array
        What came.
    operands : mapping
        Of the call.

    Returns
    -------
    list of Comparison
        One for each gradient that is wanted, and one for each that is not and came.
    """
    wanted = gradient_operands(case.attention_spec(), operands)
    dtypes = {name: like.dtype.name for name, like in wanted.items()}
    exact = expected_gradients(case)
    allowed = _allowed(case, target.profile.of(case.dtype))
    found = [
        compare(name, result[name], exact[name], allowed[name], dtype)
        if name in result
        else Comparison(np.inf, f"{name} did not come back")
        for name, dtype in dtypes.items()
    ]
    found.extend(
        Comparison(np.inf, f"{name} came back, of which there is no operand")
        for name in result
        if name not in dtypes
    )
    return found
