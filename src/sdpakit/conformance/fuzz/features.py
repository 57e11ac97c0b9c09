"""What a random case has beyond the plainest call, by name; and what a search learns from that.

Two things are learned: which features a target refuses, so that they are drawn less, and which
failures are known, so that one mistake does not hide all others.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sdpakit.conformance.fuzz.recipe import Operands
from sdpakit.conformance.model import Case
from sdpakit.logits import Alibi
from sdpakit.masks import And, Mask, Not, Or

_ENOUGH = 3  # refusals of a feature, and no answer, from which on it is held to be refused
_ANEW = 8  # every so many rounds all features are drawn again
_NUMBER = re.compile(r"-?\d[\d.]*(e[+-]?\d+)?")


def spec_features(fields: dict[str, Any]) -> frozenset[str]:
    """Return the features of a spec, on which a target may refuse it.

    Parameters
    ----------
    fields : dict
        Arguments of `AttentionSpec`, as a case has them.

    Returns
    -------
    frozenset of str
        "softcap", "dtype float16", "mask Causal top_left", ...
    """
    logits, mask = fields.get("logits"), fields.get("mask")
    found = {f"dtype {fields['dtype']}"}
    found |= {name for name in ("scale", "softcap", "bias") if fields.get(name) is not None}
    flags = ("sinks", "q_lens", "kv_lens", "paged", "batch_invariant")
    found |= {name for name in flags if fields.get(name)}
    if fields.get("layout", "bhsd") != "bhsd":
        found.add(f"layout {fields['layout']}")
    if fields.get("empty_row") == "nan":
        found.add("empty_row nan")
    if logits is not None:
        found.add(f"logits Alibi {logits.align}" if isinstance(logits, Alibi) else "logits")
    if mask is not None:
        found |= {"mask", *_mask_features(mask)}
    return frozenset(found)


def mask_feature(mask: Mask) -> str:
    """Return the feature that a mask, which is no join of others, stands for."""
    return " ".join(["mask", type(mask).__name__, getattr(mask, "align", None) or ""]).rstrip()


def _mask_features(mask: Mask) -> Iterator[str]:
    if isinstance(mask, (And, Or)):
        yield f"mask {type(mask).__name__}"
        yield from _mask_features(mask.a)
        yield from _mask_features(mask.b)
    elif isinstance(mask, Not):
        yield "mask Not"
        yield from _mask_features(mask.a)
    else:
        yield mask_feature(mask)


def features(case: Case) -> frozenset[str]:
    """Return the features of a case, sizes of 0 and hostile values among them.

    Parameters
    ----------
    case : Case
        A random one.

    Returns
    -------
    frozenset of str
        Without its dtype if that is float32, the plainest.
    """
    sizes = zip(("batch", "q_heads", "q_len", "kv_len"), case.shape.pairs, strict=True)
    found = {f"{name} 0" for name, size in sizes if size == 0}
    found |= spec_features(dict(case.spec)) - {"dtype float32"}
    if case.gradients:
        found.add("gradients")
    if isinstance(case.recipe, Operands):
        found |= {f"hostile {one.operand}" for one in case.recipe.hostile}
        found |= {f"order {case.recipe.order}"} if case.recipe.order else set()
    return frozenset(found)


def kind(message: str) -> str:
    """Return a failure without its numbers, NaN and infinities apart: alike for like failures.

    Parameters
    ----------
    message : str
        What is wrong with a case.

    Returns
    -------
    str
        The first thing that it says.
    """
    return _NUMBER.sub("#", message.partition("\n")[0].partition(";")[0])


@dataclass(frozen=True, slots=True)
class Known:
    """A class of failures that was found already.

    Attributes
    ----------
    kind : str
        See `kind`.
    features : frozenset of str
        Of the case that was found, shrunk: those that the failure takes.
    """

    kind: str
    features: frozenset[str]

    def covers(self, message: str, of_case: frozenset[str]) -> bool:
        """Return whether a failure, of a case with some features, is of this class."""
        return kind(message) == self.kind and self.features <= of_case


class Learned:
    """Which features of specs a target refuses, as far as a search has seen."""

    def __init__(self) -> None:
        self._refused: Counter[str] = Counter()
        self._judged: Counter[str] = Counter()

    def add(self, case: Case, *, refused: bool) -> None:
        """Count a case that was refused or judged."""
        (self._refused if refused else self._judged).update(spec_features(dict(case.spec)))

    def without(self, number: int) -> frozenset[str]:
        """Return the features that a round leaves out.

        Parameters
        ----------
        number : int
            Of the round. One feature after another is let in again, for it may have been refused
            for what came with it, and now and then all are.

        Returns
        -------
        frozenset of str
            Those that were refused several times and never judged.
        """
        if number % _ANEW == 0:
            return frozenset()
        suspects = sorted(
            name
            for name, times in self._refused.items()
            if times >= _ENOUGH and not self._judged[name]
        )
        if suspects:
            del suspects[number % len(suspects)]
        return frozenset(suspects)
