"""The judgement of a target on a case: what it computes.

Left to `bad_calls`: cases whose right answer is a refusal. Left to `gradients`: gradients. Left to
the runner: targets that hang or take the process with them.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from sdpakit import reference
from sdpakit.conformance.bounds import bounds
from sdpakit.conformance.compare import Comparison, Receiver, compare
from sdpakit.conformance.contained import StepError, step
from sdpakit.conformance.inputs import Array, guarded, np_dtype
from sdpakit.conformance.intake import by_name
from sdpakit.conformance.model import Case, Outcome, Profile, Verdict
from sdpakit.conformance.target import AnyTarget, Target, adopt, refusal
from sdpakit.conformance.witness import Kept, Witness, same_bits
from sdpakit.errors import UnsupportedSpecError
from sdpakit.reference.operands import accum_dtype

if TYPE_CHECKING:
    from sdpakit.spec import AttentionSpec

Attention = Callable[..., Any]


def check(target: AnyTarget, case: Case) -> Outcome:
    """Judge a target on a case.

    The target is asked for those outputs of the case that it gives; the others are `unjudged`, and
    a target that gives none of them has refused. A call without much memory is made three times:
    with another v, as the case says (with `out=` if the target takes it), and once more without
    `out=`; the second is judged, the third must have its bits (DET-1), and neither may change the
    result of the first.

    Parameters
    ----------
    target : Target, object with `prepare`, or function
        What is judged; see `adopt`.
    case : Case
        Forward, refusal or gradient.

    Returns
    -------
    Outcome
        Never raises for what the target does; `KeyboardInterrupt` alone passes through. Where a
        case does not concern the target (see `concerns`) it is not `asked`, and the verdict is
        "refused", to be left out of any count.

    Raises
    ------
    ArgumentTypeError
        If `target` is nothing that can be judged.
    """
    started = time.perf_counter()
    outcome = _judged(adopt(target), case)
    return dataclasses.replace(outcome, seconds=time.perf_counter() - started)


def concerns(target: AnyTarget, case: Case) -> bool:
    """Return whether a case says anything about a target.

    A spec that contradicts itself is refused by `AttentionSpec` before a target is asked. Such a
    case is about sdpakit, and counts for targets that are sdpakit (`bad_calls` "exact") alone.

    Parameters
    ----------
    target : Target, object with `prepare`, or function
        What would be judged.
    case : Case
        Any case.

    Returns
    -------
    bool
        Whether it should be counted, for or against.
    """
    return not case.about_spec or adopt(target).bad_calls == "exact"


def _judged(target: Target, case: Case) -> Outcome:
    if case.gradients:
        from sdpakit.conformance.gradients.judge import check_gradients

        return check_gradients(target, case)
    if case.refuses:
        from sdpakit.conformance.bad_calls import check_bad_call

        return check_bad_call(target, case)
    return _check_forward(target, case)


def _check_forward(target: Target, case: Case) -> Outcome:
    try:
        asked, unjudged = within(target, case)
    except UnsupportedSpecError as error:
        return Outcome(target.name, case.id, "refused", message=str(error))
    spec = asked.attention_spec()
    try:
        attention = step("prepare", target.prepare, spec)
        found = _call(target, case, spec, attention)
    except StepError as raised:
        return verdict_of(target, case, spec, raised)
    return summed_up(target, case, found, unjudged)


def within(target: Target, case: Case) -> tuple[Case, tuple[str, ...]]:
    """Return a case that asks only for outputs that a target gives, and the outputs left out.

    Parameters
    ----------
    target : Target
        What will be asked.
    case : Case
        With a spec that holds.

    Returns
    -------
    (Case, tuple of str)
        The same case if it asks for no more.

    Raises
    ------
    UnsupportedSpecError
        If the target gives none of the outputs.
    """
    wanted = case.attention_spec().outputs
    given = tuple(name for name in wanted if name in target.outputs)
    missing = tuple(name for name in wanted if name not in given)
    if not given:
        raise refusal(target.name, f"it gives no {', '.join(missing)}")
    if not missing:
        return case, ()
    return dataclasses.replace(case, spec={**case.spec, "outputs": given}), missing


def verdict_of(target: Target, case: Case, spec: AttentionSpec, raised: StepError) -> Outcome:
    """Return the outcome where a target raised.

    Parameters
    ----------
    target, case, spec
        What was asked of whom.
    raised : StepError
        What came.

    Returns
    -------
    Outcome
        "refused" for `UnsupportedSpecError`, but "fail" where the target declares the spec; "fail"
        where it changed the process; "error" for anything else.
    """
    if raised.violation:
        return Outcome(target.name, case.id, "fail", message=raised.violation)
    if not isinstance(raised.error, UnsupportedSpecError):
        return Outcome(target.name, case.id, "error", message=str(raised))
    try:
        declared = step("declares", target.declares, spec)
    except StepError as other:
        return Outcome(target.name, case.id, "error", message=str(other))
    if declared:
        message = f"refuses a spec that it declares: {raised.error}"
        return Outcome(target.name, case.id, "fail", message=message)
    return Outcome(target.name, case.id, "refused", message=str(raised.error))


def summed_up(
    target: Target, case: Case, found: Iterable[Comparison], unjudged: tuple[str, ...] = ()
) -> Outcome:
    """Return the outcome of what was compared and complained of.

    Parameters
    ----------
    target, case
        What was asked of whom.
    found : iterable of Comparison
        At least one.
    unjudged : tuple of str
        Outputs that the target does not give.

    Returns
    -------
    Outcome
        "fail" if any of them has a message, else "ok".
    """
    parts = list(found)
    elements = [part.worst for part in parts if part.worst is not None]
    message = "; ".join(dict.fromkeys(part.message for part in parts if part.message))
    verdict: Verdict = "fail" if message else "ok"
    if message:
        message = f"{message}\n  {case.headline}"
    return Outcome(
        target.name,
        case.id,
        verdict,
        max(part.share for part in parts),
        message,
        worst=max(elements, key=lambda one: one.share, default=None),
        unjudged=unjudged,
    )


def _call(
    target: Target, case: Case, spec: AttentionSpec, attention: Attention
) -> list[Comparison]:
    operands = case.operands()
    operands.pop("dout", None)
    witness = Witness(operands)
    earlier = Kept({}) if case.heavy else Kept(_called(attention, _with_other_v(operands), spec))
    if witness.complaints():  # the operands are no longer those of the case
        return [_complaint(text) for text in witness.complaints()]
    length = operands["q"].shape[{"bhsd": 2, "bshd": 1, "thd": 0}[spec.layout]]
    receivers = receivers_of(case, spec, length) if target.takes_out else {}
    result = _called(attention, operands, spec, receivers)
    found = compared(target, case, result, spec)
    found.extend(_is_earlier(part, result, earlier) for part in found[:] if part.message)
    for name, receiver in receivers.items():
        found.append(_complaint(receiver.complaint(name)))
        if result.get(name) is not receiver.array:
            found.append(_complaint(f"{name}: the array given as out= is not what came back"))
    if not case.heavy:
        first = {n: x.copy() if isinstance(x, np.ndarray) else x for n, x in result.items()}
        for receiver in receivers.values():
            receiver.clear()
        found.extend(_same_again(_called(attention, operands, spec), first, given=bool(receivers)))
        found.extend(
            _complaint(f"{name}: the array given as out= was written to by a later call")
            for name, receiver in receivers.items()
            if not receiver.is_untouched()
        )
    found.extend(_complaint(text) for text in (*witness.complaints(), *earlier.complaints()))
    return found


def _called(
    attention: Attention,
    operands: Mapping[str, Any],
    spec: AttentionSpec,
    receivers: Mapping[str, Receiver] | None = None,
) -> dict[str, Any]:
    """Return the outputs of one call by name."""
    given = dict(operands)
    if receivers:
        given["out"] = {name: receiver.array for name, receiver in receivers.items()}
    result = step("the call", attention, **given)
    return step("reading what came back", by_name, result, spec.outputs)


def _with_other_v(operands: Mapping[str, Any]) -> dict[str, Any]:
    """Return the operands with the signs of v changed: NaN and infinities stay where they are."""
    v: Array = operands["v"]
    with np.errstate(all="ignore"):
        return {**operands, "v": guarded(-v)}


def compared(
    target: Target, case: Case, result: Mapping[str, Any], spec: AttentionSpec
) -> list[Comparison]:
    """Return how the outputs of one call compare with the reference.

    Parameters
    ----------
    target : Target
        Has the profile.
    case : Case
        A forward case.
    result : mapping of str to array
        What came.
    spec : AttentionSpec
        Has the outputs that were asked for.

    Returns
    -------
    list of Comparison
        One for each output.
    """
    detail = expected(case)
    allowed = _allowed(case, target.profile)
    found = []
    for name in spec.outputs:
        if name not in result:
            found.append(Comparison(np.inf, f"{name} did not come back"))
            continue
        right, bound = getattr(detail, name), allowed[name]
        ops = detail.operands
        right, bound = ops.to_layout(right, ops.empty_row(name)), ops.to_layout(bound)
        dtype = output_dtype(spec, name).name
        found.append(compare(name, result[name], right, bound, dtype))
    return found


def _is_earlier(part: Comparison, result: Mapping[str, Any], earlier: Kept) -> Comparison:
    """Say so where a wrong `out` is that of the call before, which had another v."""
    wrong = part.message.startswith("out[")
    # NaN and zeros alone are what many a wrong program gives whatever the operands.
    wrong = wrong and bool((np.isfinite(result["out"]) & (result["out"] != 0)).any())
    if wrong and same_bits(result["out"], earlier.results.get("out")):
        return _complaint("out has the bits of an earlier call, which had another v")
    return Comparison(0.0)


@functools.lru_cache(maxsize=8)
def expected(case: Case) -> reference.Detail:
    """Return what the reference says about a case; several targets in a row share it."""
    operands = case.operands()
    operands.pop("dout", None)
    q, k, v = (operands.pop(name) for name in "qkv")
    return reference.detail(case.attention_spec(), q, k, v, **operands)


@functools.lru_cache(maxsize=8)
def _allowed(case: Case, profile: Profile) -> dict[str, Array]:
    """Return the bounds of a case; targets of the same numerics share them."""
    return bounds(expected(case), case.bound, profile)


def output_dtype(spec: AttentionSpec, name: str) -> np.dtype[Any]:
    """Return the dtype of an output (NUM-5)."""
    if name == "out":
        return np_dtype(spec.out_dtype)
    return accum_dtype(spec)


def receivers_of(case: Case, spec: AttentionSpec, length: int) -> dict[str, Receiver]:
    """Return memory for each output of a spec, to be given as `out=`.

    Parameters
    ----------
    case : Case
        Has the sizes.
    spec : AttentionSpec
        Has outputs, dtypes and layout.
    length : int
        Query rows of an entry, or of all together in the layout thd.

    Returns
    -------
    dict of str to Receiver
        By output name.
    """
    batch, q_heads, _, _ = case.shape.pairs
    rows = {"bshd": (batch, length, q_heads), "thd": (length, q_heads)}.get(
        spec.layout, (batch, q_heads, length)
    )
    shapes = dict.fromkeys(spec.outputs, rows if spec.layout == "thd" else (batch, q_heads, length))
    full = {**shapes, "out": (*rows, case.shape.width)}
    return {name: Receiver(full[name], output_dtype(spec, name).name) for name in spec.outputs}


def _complaint(message: str) -> Comparison:
    return Comparison(np.inf if message else 0.0, message)


def _same_again(
    second: Mapping[str, Any], first: Mapping[str, Any], *, given: bool
) -> list[Comparison]:
    """Compare two calls bit by bit (DET-1), the second without `out=`."""
    how = ", without out=" if given else ""
    return [
        _complaint(f"{name} has other bits in a second call{how}")
        for name, array in first.items()
        if isinstance(array, np.ndarray) and not same_bits(array, second.get(name))
    ]
