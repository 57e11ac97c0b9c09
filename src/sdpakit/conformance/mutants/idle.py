"""Why a core case is there although it notices no mutant."""

from __future__ import annotations

import functools

from sdpakit.conformance.cases import cases

_OF_A_SPEC = "the spec contradicts itself and is refused before a target is asked"
REASONS: dict[str, str] = {
    "gradients.of_no_values.float32": "a width of 0 leaves shapes and zeros alone to be wrong",
    "gradients.dout_zero.float32": "all gradients are 0: a NaN of 0 * inf is what would be wrong",
}


def reason_of(id_: str) -> str:
    """Return why a case is there.

    Parameters
    ----------
    id_ : str
        Of a core case or core relation that notices no mutant.

    Returns
    -------
    str
        "" if nobody said so.
    """
    return _OF_A_SPEC if id_ in _of_specs() else REASONS.get(id_, "")


@functools.cache
def _of_specs() -> frozenset[str]:
    return frozenset(case.id for case in cases("core") if case.about_spec)
