"""What a relation is, and how a target is run for one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from sdpakit import errors, reference
from sdpakit.conformance.bounds import bounds
from sdpakit.conformance.inputs import Array, Draw
from sdpakit.conformance.judge import by_name, same_bits
from sdpakit.conformance.model import Case, Level, Outcome, Shape
from sdpakit.conformance.target import Target

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
        made = self._case(shape, spec).attention_spec()
        attention = self.target.prepare(made)
        return lambda **operands: by_name(attention(**operands), made.outputs)

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
        given = dict(operands)
        q, k, v = (given.pop(name) for name in "qkv")
        return bounds(reference.detail(made, q, k, v, **given), "sharp", self.target.profile)

    def _case(self, shape: Shape, spec: Mapping[str, Any]) -> Case:
        full = {"outputs": ALL, **spec, "dtype": self.dtype}
        return Case(id="relation", rules=(), catches="", shape=shape, spec=full)


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
    level : {"core", "full"}
        Level of the first dtype; the others are "full".
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


def check_relation(target: Target, relation: Relation, dtype: str) -> Outcome:
    """Judge a target on a relation.

    Parameters
    ----------
    target : Target
        What is judged.
    relation : Relation
        What must hold.
    dtype : str
        Dtype of q, k, v.

    Returns
    -------
    Outcome
        "refused" also where the target lacks what the relation needs.
    """
    name = f"{relation.id}.{dtype}"
    if relation.needs and not getattr(target, relation.needs, False):
        return Outcome(target.name, name, "refused", message=f"no {relation.needs}")
    seed = sum(name.encode())
    try:
        wrong = relation.judge(Bench(target, dtype, seed))
    except errors.UnsupportedSpecError as error:
        return Outcome(target.name, name, "refused", message=str(error))
    except Exception as error:  # noqa: BLE001 - whatever a target raises is its verdict
        return Outcome(target.name, name, "error", message=f"{type(error).__name__}: {error}")
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
