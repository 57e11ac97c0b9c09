"""What a relation is, and how a target is run for one."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from sdpakit import reference
from sdpakit.conformance.bounds import bounds
from sdpakit.conformance.contained import StepError, described, step
from sdpakit.conformance.inputs import Array, Draw
from sdpakit.conformance.intake import by_name
from sdpakit.conformance.model import Case, Level, Outcome, Profile, Shape
from sdpakit.conformance.target import AnyTarget, Target, adopt, refusal
from sdpakit.conformance.undisturbed import watched
from sdpakit.conformance.witness import same_bits
from sdpakit.errors import UnsupportedSpecError

if TYPE_CHECKING:
    from sdpakit.spec import AttentionSpec

Results: TypeAlias = dict[str, Array]
ALL = ("out", "lse", "max_logit", "entropy", "sum_p2")
SHAPE = Shape(batch=2, q_heads=4, kv_heads=2, q_len=37, kv_len=150, head_dim=16)


class Bench:
    """Runs a target for a relation.

    Parameters
    ----------
    target : Target
        What is judged.
    dtype : str
        Dtype of q, k, v.
    seed : int
        Seed of the operands.
    """

    def __init__(self, target: Target, dtype: str, seed: int) -> None:
        self.target = target
        self.dtype = dtype
        self.seed = seed

    def draw(self, shape: Shape = SHAPE) -> Draw:
        """Return a source of operands for a shape."""
        return Draw(shape, self.dtype, self.seed)

    def kernel(self, shape: Shape = SHAPE, **spec: Any) -> Callable[..., Results]:
        """Return a callable from operands to outputs by name."""
        wanted = self._case(shape, spec).attention_spec().outputs
        outputs = tuple(name for name in wanted if name in self.target.outputs)
        if not outputs:
            raise refusal(self.target.name, f"it gives no {', '.join(wanted)}")
        made = self._case(shape, {**spec, "outputs": outputs}).attention_spec()
        # Looked at after each step: what a relation compares with later must not be the target's.
        attention = watched("prepare", self.target.prepare, made)
        return lambda **operands: _Given(
            by_name(watched("the call", attention, **operands), made.outputs), self.target, outputs
        )

    def call(self, operands: Mapping[str, Any], shape: Shape = SHAPE, **spec: Any) -> Results:
        """Return the outputs of one call."""
        return self.kernel(shape, **spec)(**operands)

    def allowed(self, operands: Mapping[str, Any], shape: Shape = SHAPE, **spec: Any) -> Results:
        """Return how far two right answers to one call may be apart.

        Parameters
        ----------
        operands, shape, **spec
            The call.

        Returns
        -------
        dict of str to array
            Twice the bound of each output, in the axis order b, h, length, width.
        """
        return each(self.bound(operands, shape, **spec), lambda x: 2.0 * x)

    def bound(self, operands: Mapping[str, Any], shape: Shape = SHAPE, **spec: Any) -> Results:
        """Return the bounds of one call, in the axis order b, h, length, width."""
        made = self._case(shape, spec).attention_spec()
        return _bounds(made, _Operands(operands), self.target.profile)

    def _case(self, shape: Shape, spec: Mapping[str, Any]) -> Case:
        full = {"outputs": ALL, **spec, "dtype": self.dtype}
        return Case(id="relation", rules=(), catches="", shape=shape, spec=full)


class _Operands:
    """Operands of one call, equal where their values are."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self.given = given
        flat = {**given, **given.get("params", {})}
        flat.pop("params", None)
        self._key = tuple((name, np.shape(x), np.asarray(x).tobytes()) for name, x in flat.items())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Operands) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


@functools.lru_cache(maxsize=16)
def _bounds(spec: AttentionSpec, operands: _Operands, profile: Profile) -> Results:
    """Return the bounds of one call; targets judged one after another share them."""
    given = dict(operands.given)
    q, k, v = (given.pop(name) for name in "qkv")
    return bounds(reference.detail(spec, q, k, v, **given), "sharp", profile)


class _Given(dict[str, Array]):
    """Outputs of one call; to read one that the target does not give is to be refused."""

    def __init__(self, results: Results, target: Target, outputs: tuple[str, ...]) -> None:
        super().__init__(results)
        self._target = target
        self._outputs = outputs

    def __missing__(self, name: str) -> Array:
        if name in self._outputs:
            raise KeyError(f"{name} did not come back")
        raise refusal(self._target.name, f"it gives no {name}")


@dataclass(frozen=True, slots=True)
class Relation:
    """One relation.

    Attributes
    ----------
    id : str
        "relations.name".
    rules : tuple of str
        Rules that it shows.
    catches : str
        The wrong program that fails here.
    judge : callable
        Takes a `Bench`, returns what is wrong.
    dtypes : tuple of str
        Dtypes that it is worth running in.
    level : {"core", "full", "stress"}
        Level of the first dtype; the others are "full" at least.
    needs : str
        Name of a bool attribute that a target must have to be asked, "" for none.
    source : str
        A public report of a program that got it wrong.
    """

    id: str
    rules: tuple[str, ...]
    catches: str
    judge: Callable[[Bench], list[str]]
    dtypes: tuple[str, ...] = ("float32",)
    level: Level = "core"
    needs: str = ""
    source: str = ""


def check_relation(target: AnyTarget, relation: Relation, dtype: str) -> Outcome:
    """Judge a target on a relation.

    Parameters
    ----------
    target : Target, object with `prepare`, or function
        What is judged; see `adopt`.
    relation : Relation
        What must hold.
    dtype : str
        Dtype of q, k, v.

    Returns
    -------
    Outcome
        "refused" also where the target lacks what the relation needs.
    """
    started = time.perf_counter()
    outcome = _judged(adopt(target), relation, dtype)
    return dataclasses.replace(outcome, seconds=time.perf_counter() - started)


def _judged(target: Target, relation: Relation, dtype: str) -> Outcome:
    name = f"{relation.id}.{dtype}"
    if relation.needs and not getattr(target, relation.needs, False):
        return Outcome(target.name, name, "refused", message=f"no {relation.needs}")
    seed = sum(name.encode())
    try:
        wrong = step("the relation", relation.judge, Bench(target, dtype, seed))
    except StepError as raised:
        if isinstance(raised.error, UnsupportedSpecError):
            return Outcome(target.name, name, "refused", message=str(raised.error))
        if raised.violation:
            return Outcome(target.name, name, "fail", message=raised.violation)
        return Outcome(target.name, name, "error", message=described(raised.error))
    message = "; ".join(wrong)
    if message:
        message += f"\n  {name} ({', '.join(relation.rules)}) catches: {relation.catches}"
    return Outcome(target.name, name, "fail" if message else "ok", message=message)


def other_bits(first: Results, second: Results) -> list[str]:
    """Say which outputs of two calls have not the same bits.

    Parameters
    ----------
    first, second : dict of str to array
        Outputs by name; those of the first are compared.

    Returns
    -------
    list of str
        One text for each.
    """
    return [f"{name} has other bits" for name in first if not same_bits(first[name], second[name])]


def too_far(first: Results, second: Results, allowed: Results) -> list[str]:
    """Say which outputs of two calls differ by more than two right answers may.

    Parameters
    ----------
    first, second : dict of str to array
        Outputs by name; those of the first are compared.
    allowed : dict of str to array
        The sum of what each of the two may be off.

    Returns
    -------
    list of str
        One text for each.
    """
    wrong = []
    for name in first:
        a, b = (x[name].astype(np.float64) for x in (first, second))
        with np.errstate(invalid="ignore"):
            far = ~((np.abs(a - b) <= allowed[name]) | (a == b))
        if (far & ~(np.isnan(a) & np.isnan(b))).any():
            wrong.append(f"{name} differs in {int(far.sum())} of {far.size} elements")
    return wrong


def each(results: Results, change: Callable[[Array], Array]) -> Results:
    """Return all outputs, changed.

    Parameters
    ----------
    results : dict of str to array
        Outputs by name.
    change : callable
        From an array to an array.

    Returns
    -------
    dict of str to array
        Outputs by name.
    """
    return {name: change(x) for name, x in results.items()}


FOUR = ("float32", "float16", "bfloat16", "float64")


def relation(
    name: str, rules: str, catches: str, judge: Callable[[Bench], list[str]], **fields: Any
) -> Relation:
    """Return a relation; see `Relation` for the fields.

    Parameters
    ----------
    name, rules, catches : str
        Last part of the id; rule ids separated by blanks; the wrong program.
    judge : callable
        Takes a `Bench`, returns what is wrong.
    **fields
        Further fields.

    Returns
    -------
    Relation
        With the id "relations.name".
    """
    return Relation(f"relations.{name}", tuple(rules.split()), catches, judge, **fields)
