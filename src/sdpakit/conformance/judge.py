"""The judgement of a target on a case."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from sdpakit import errors, reference
from sdpakit.conformance.bounds import bounds
from sdpakit.conformance.compare import Comparison, Receiver, compare
from sdpakit.conformance.inputs import np_dtype
from sdpakit.conformance.model import Case, Outcome, Verdict
from sdpakit.conformance.target import Target
from sdpakit.reference.operands import accum_dtype

if TYPE_CHECKING:
    from sdpakit.spec import AttentionSpec


def output_dtype(spec: AttentionSpec, name: str) -> np.dtype[Any]:
    """Return the dtype of an output (NUM-5)."""
    if name == "out":
        return np_dtype(spec.out_dtype)
    return accum_dtype(spec)


def by_name(result: Any, outputs: tuple[str, ...]) -> dict[str, Any]:
    """Return what a target returned as a mapping from output names.

    Parameters
    ----------
    result : array, mapping or named tuple
        What came.
    outputs : tuple of str
        Outputs of the spec.

    Returns
    -------
    dict of str to array
        Whatever came under a name of `outputs`.
    """
    if isinstance(result, Mapping):
        return {name: result[name] for name in outputs if name in result}
    if hasattr(result, "_asdict"):
        return dict(result._asdict())
    return {outputs[0]: result}


@functools.lru_cache(maxsize=8)
def expected(case: Case) -> reference.Detail:
    """Return what the reference says about a case; several targets in a row share it."""
    operands = case.operands()
    operands.pop("dout", None)
    q, k, v = (operands.pop(name) for name in "qkv")
    return reference.detail(case.attention_spec(), q, k, v, **operands)


def check(target: Target, case: Case) -> Outcome:
    """Judge a target on a case.

    Parameters
    ----------
    target : Target
        What is judged.
    case : Case
        Forward cases and refusals; gradients are judged elsewhere.

    Returns
    -------
    Outcome
        Never raises for what the target does.
    """
    if case.refuses:
        return _check_refusal(target, case)
    try:
        spec = case.attention_spec()
        attention = target.prepare(spec)
        found = _call(target, case, spec, attention)
    except errors.UnsupportedSpecError as error:
        return Outcome(target.name, case.id, "refused", message=str(error))
    except Exception as error:  # noqa: BLE001 - whatever a target raises is its verdict
        text = f"{type(error).__name__}: {error}"
        return Outcome(target.name, case.id, "error", message=text)
    share = max((part.share for part in found), default=0.0)
    message = "; ".join(part.message for part in found if part.message)
    if message:
        message = f"{message}\n  {case.id} ({', '.join(case.rules)}) catches: {case.catches}"
    return Outcome(target.name, case.id, "fail" if message else "ok", share, message)


def _call(
    target: Target, case: Case, spec: AttentionSpec, attention: Callable[..., Any]
) -> list[Comparison]:
    operands = case.operands()
    operands.pop("dout", None)
    before = _snapshot(operands)
    receivers = _receivers(case, spec) if target.takes_out else {}
    given = dict(operands)
    if receivers:
        given["out"] = {name: receiver.array for name, receiver in receivers.items()}
    result = by_name(attention(**given), spec.outputs)
    found = _judge(target, case, spec, result)
    for name, receiver in receivers.items():
        found.append(_complaint(receiver.complaint(name)))
        if result.get(name) is not receiver.array:
            found.append(_complaint(f"{name}: the array given as out= is not what came back"))
    if receivers and not case.heavy:
        found.extend(_same_again(by_name(attention(**operands), spec.outputs), result))
    found.extend(_complaint(f"{name} was written to") for name in _changed(operands, before))
    return found


def _judge(
    target: Target, case: Case, spec: AttentionSpec, result: Mapping[str, Any]
) -> list[Comparison]:
    detail = expected(case)
    allowed = bounds(detail, case.bound, target.profile)
    found = []
    for name in spec.outputs:
        if name not in result:
            found.append(Comparison(np.inf, f"{name} did not come back"))
            continue
        right, bound = getattr(detail, name), allowed[name]
        if name == "out":
            right, bound = (detail.operands.to_layout(x) for x in (right, bound))
        dtype = output_dtype(spec, name).name
        found.append(compare(name, result[name], right, bound, dtype))
    return found


def _receivers(case: Case, spec: AttentionSpec) -> dict[str, Receiver]:
    batch, q_heads, q_len, _ = case.shape.pairs
    lengths = (q_len, q_heads) if spec.layout == "bshd" else (q_heads, q_len)
    shapes = dict.fromkeys(spec.outputs, (batch, q_heads, q_len))
    full = {**shapes, "out": (batch, *lengths, case.shape.width)}
    return {name: Receiver(full[name], output_dtype(spec, name).name) for name in spec.outputs}


def _complaint(message: str) -> Comparison:
    return Comparison(np.inf if message else 0.0, message)


def _same_again(second: Mapping[str, Any], first: Mapping[str, Any]) -> list[Comparison]:
    """Compare two calls bit by bit (DET-1), the second without `out=`."""
    return [
        _complaint(f"{name} has other bits in a second call, without out=")
        for name, array in first.items()
        if not same_bits(array, second.get(name))
    ]


def same_bits(a: Any, b: Any) -> bool:
    """Return whether two arrays agree in shape, dtype and every bit; any NaN is like another."""
    if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray):
        return False
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    both_nan = np.isnan(a.astype(np.float64)) & np.isnan(b.astype(np.float64))
    bits = np.dtype(f"uint{8 * a.dtype.itemsize}")
    same = np.ascontiguousarray(a).view(bits) == np.ascontiguousarray(b).view(bits)
    return bool((same | both_nan).all())


def _snapshot(operands: Mapping[str, Any]) -> dict[str, bytes]:
    arrays = {**operands, **operands.get("params", {})}
    return {
        name: np.array(x, copy=True).tobytes()
        for name, x in arrays.items()
        if isinstance(x, np.ndarray)
    }


def _changed(operands: Mapping[str, Any], before: Mapping[str, bytes]) -> list[str]:
    after = _snapshot(operands)
    return [name for name in before if after[name] != before[name]]


def _check_refusal(target: Target, case: Case) -> Outcome:
    wanted = getattr(errors, case.refuses)
    receiver: dict[str, Receiver] = {}
    try:
        spec = case.attention_spec()
        attention = target.prepare(spec)
        operands = case.operands()
        if target.takes_out and "out" not in operands:
            receiver = _receivers(case, spec)
            operands["out"] = {name: item.array for name, item in receiver.items()}
        attention(**operands)
    except wanted as error:
        return _judge_refusal(target, case, error, receiver)
    except errors.UnsupportedSpecError as error:
        return Outcome(target.name, case.id, "refused", message=str(error))
    except Exception as error:  # noqa: BLE001 - whatever a target raises is its verdict
        text = f"{type(error).__name__} in place of {case.refuses}: {error}"
        return Outcome(target.name, case.id, "error", message=text)
    message = f"no {case.refuses} was raised\n  {case.id} catches: {case.catches}"
    return Outcome(target.name, case.id, "fail", message=message)


def _judge_refusal(
    target: Target, case: Case, error: Exception, receivers: Mapping[str, Receiver]
) -> Outcome:
    text = str(error)
    complaints = [
        *([] if re.search(case.match, text) else [f"the message has no {case.match!r}: {text}"]),
        *(["the message is not of ERR-1"] if "remedy:" not in text else []),
        *(f"{name} was written to" for name, r in receivers.items() if not r.is_untouched()),
    ]
    verdict: Verdict = "fail" if complaints else "ok"
    return Outcome(target.name, case.id, verdict, message="; ".join(complaints))
