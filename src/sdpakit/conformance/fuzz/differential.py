"""Several targets on one case: who agrees with whom."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sdpakit.conformance.bounds import bounds
from sdpakit.conformance.inputs import Array
from sdpakit.conformance.intake import by_name
from sdpakit.conformance.judge import expected
from sdpakit.conformance.model import Case
from sdpakit.conformance.target import Target
from sdpakit.conformance.undisturbed import watched
from sdpakit.errors import UnsupportedSpecError


@dataclass(frozen=True, slots=True)
class Split:
    """How the answers to one case fall apart.

    Attributes
    ----------
    answered : int
        Targets that did not refuse.
    message : str
        Which targets are on which side and where they differ; "" if all agree.
    """

    answered: int
    message: str


@dataclass(frozen=True, slots=True, eq=False)
class _Answer:
    """What one target said: `out` in float64 and how far off it may be, or what it raised."""

    name: str
    out: Array | None
    bound: Array | None
    raised: str = ""


def split(targets: Sequence[Target], case: Case) -> Split:
    """Ask several targets for `out` and group them by what they say.

    Parameters
    ----------
    targets : sequence of Target
        At least two.
    case : Case
        A forward case.

    Returns
    -------
    Split
        Two answers agree where they have NaN and infinities in the same places and differ by no
        more than the sum of their bounds. The reference is named with the side that it is on.
    """
    only_out = dataclasses.replace(case, spec={**case.spec, "outputs": ("out",)})
    answers = [answer for target in targets if (answer := _asked(target, only_out)) is not None]
    sides: list[list[_Answer]] = []
    for answer in answers:
        side = next((side for side in sides if _agree(side[0], answer)), None)
        if side is None:
            sides.append([answer])
        else:
            side.append(answer)
    return Split(len(answers), _told(sides, _right(only_out)) if len(sides) > 1 else "")


def _asked(target: Target, case: Case) -> _Answer | None:
    """Return the answer of a target, None if it refuses the spec."""
    try:
        attention = watched("prepare", target.prepare, case.attention_spec())
        result = by_name(watched("the call", attention, **case.operands()), ("out",))
        out = np.asarray(result["out"]).astype(np.float64)
    except UnsupportedSpecError:
        return None
    except Exception as error:  # noqa: BLE001 - whatever a target raises is its answer
        return _Answer(target.name, None, None, f"{type(error).__name__}: {error}")
    detail = expected(case)
    allowed = bounds(detail, case.bound, target.profile)["out"]
    return _Answer(target.name, out, detail.operands.to_layout(allowed))


def _right(case: Case) -> _Answer:
    detail = expected(case)
    out = detail.operands.to_layout(detail.out)
    return _Answer("the reference", out, np.zeros(out.shape))


def _agree(a: _Answer, b: _Answer) -> bool:
    if a.out is None or b.out is None:
        return a.out is b.out  # two that raise are on one side
    return a.out.shape == b.out.shape and not _apart(a, b).any()


def _apart(a: _Answer, b: _Answer) -> Array:
    """Return where two answers of one shape differ by more than their bounds together."""
    assert a.out is not None
    assert b.out is not None
    assert a.bound is not None
    assert b.bound is not None
    with np.errstate(all="ignore"):
        near = np.abs(a.out - b.out) <= a.bound + b.bound
    same = (a.out == b.out) | (np.isnan(a.out) & np.isnan(b.out))
    return np.asarray(~(near | same))


def _told(sides: list[list[_Answer]], right: _Answer) -> str:
    counts = " to ".join(str(len(side)) for side in sides)
    lines = [f"out splits {counts}:"]
    for side in sides:
        names = [answer.name for answer in side]
        if _agree(side[0], right):
            names.append(f"({right.name})")
        lines.append(f"  {', '.join(names)}{_shown(side[0], sides[0][0])}")
    return "\n".join(lines)


def _shown(answer: _Answer, first: _Answer) -> str:
    """Say what one side answered, at the first place where it leaves the first side."""
    if answer.out is None:
        return f": raised {answer.raised}"
    if answer is first or first.out is None:
        return f": shape {answer.out.shape}"
    if answer.out.shape != first.out.shape:
        return f": shape {answer.out.shape}, not {first.out.shape}"
    places = _apart(answer, first)
    at = tuple(int(n) for n in np.argwhere(places)[0])
    return (
        f": {int(places.sum())} of {places.size} elements differ; "
        f"out{list(at)} = {answer.out[at]:.9g}, {first.name} has {first.out[at]:.9g}"
    )
