"""The judgement of cases whose right answer is a refusal (ERR-1).

There are two kinds. A spec that contradicts itself is refused by `AttentionSpec`, before a target
is asked: such a case (`Case.about_spec`) concerns targets that are sdpakit and no others. A call
that does not fit its spec is refused by the target, judged by what it says of itself in
`Target.bad_calls`:

- "exact": the class that the case names, and a message of the form of ERR-1.
- "builtin": a `ValueError` or `TypeError` from the call, whatever it says. From `prepare` it is an
  error: the spec is sound.
- "unchecked": the case is not put to the target, and counts as refused.

In each of the three nothing may have been written, neither to operands nor to `out=`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from sdpakit import errors
from sdpakit.conformance.compare import Receiver
from sdpakit.conformance.contained import StepError, step
from sdpakit.conformance.judge import receivers_of, verdict_of, within
from sdpakit.conformance.model import Case, Outcome, Verdict
from sdpakit.conformance.target import Target
from sdpakit.conformance.witness import Witness
from sdpakit.errors import UnsupportedSpecError


def check_bad_call(target: Target, case: Case) -> Outcome:
    """Judge a target on a case that must be refused.

    Parameters
    ----------
    target : Target
        What is judged.
    case : Case
        With `refuses`.

    Returns
    -------
    Outcome
        "ok" for a refusal in the right way; never raises for what the target does.
    """
    if case.about_spec:
        return _check_spec(target, case)
    reason = _not_asked(target, case)
    if reason:
        return Outcome(target.name, case.id, "refused", message=f"{target.name}: {reason}")
    try:
        asked, _ = within(target, case)
    except UnsupportedSpecError as error:
        return Outcome(target.name, case.id, "refused", message=str(error))
    return _check_call(target, asked)


def _not_asked(target: Target, case: Case) -> str:
    """Return why a case is not put to a target, "" if it is."""
    if target.bad_calls == "unchecked":
        return "it does not check calls"
    if not target.takes_out and "out" in case.operands():
        return "it takes no out="
    return ""


def _check_spec(target: Target, case: Case) -> Outcome:
    if target.bad_calls != "exact":
        message = "not asked: the case is about AttentionSpec, not about a target"
        return Outcome(target.name, case.id, "refused", message=message, asked=False)
    try:
        case.attention_spec()
    except errors.SpecError as error:
        return _outcome(target, case, _of_message(case, error))
    return _nothing_raised(target, case)


def _check_call(target: Target, case: Case) -> Outcome:
    spec, operands = case.attention_spec(), case.operands()
    receivers: dict[str, Receiver] = {}
    if target.takes_out and "out" not in operands:
        receivers = receivers_of(case, spec, case.shape.q_len)
    given = {name: receiver.array for name, receiver in receivers.items()}
    witness = Witness(operands)
    try:
        attention = step("prepare", target.prepare, spec)
        step("the call", attention, **operands, **({"out": given} if given else {}))
    except StepError as raised:
        if not _is_fitting(target, case, raised):
            return _unfitting(target, case, raised)
        complaints = _of_message(case, raised.error) if target.bad_calls == "exact" else []
        complaints += witness.complaints() + _written(receivers)
        return _outcome(target, case, complaints)
    return _nothing_raised(target, case)


def _is_fitting(target: Target, case: Case, raised: StepError) -> bool:
    if target.bad_calls == "exact":
        return isinstance(raised.error, getattr(errors, case.refuses))
    return raised.step != "prepare" and isinstance(raised.error, (ValueError, TypeError))


def _unfitting(target: Target, case: Case, raised: StepError) -> Outcome:
    if raised.violation or isinstance(raised.error, UnsupportedSpecError):
        return verdict_of(target, case, case.attention_spec(), raised)
    message = f"{raised}, in place of {_wanted(target, case)}"
    return Outcome(target.name, case.id, "error", message=message)


def _wanted(target: Target, case: Case) -> str:
    if target.bad_calls == "exact":
        return case.refuses
    return "a ValueError or TypeError from the call"


def _nothing_raised(target: Target, case: Case) -> Outcome:
    message = f"no {_wanted(target, case).removeprefix('a ')} was raised"
    return _outcome(target, case, [message])


def _written(receivers: Mapping[str, Receiver]) -> list[str]:
    return [f"out={name} was written to" for name, r in receivers.items() if not r.is_untouched()]


def _of_message(case: Case, error: BaseException) -> list[str]:
    text = str(error)
    return [
        *([] if re.search(case.match, text) else [f"the message has no {case.match!r}: {text}"]),
        *(["the message is not of ERR-1"] if "remedy:" not in text else []),
    ]


def _outcome(target: Target, case: Case, complaints: list[str]) -> Outcome:
    verdict: Verdict = "fail" if complaints else "ok"
    message = "; ".join(complaints)
    if message:
        message = f"{message}\n  {case.headline}"
    return Outcome(target.name, case.id, verdict, message=message)
