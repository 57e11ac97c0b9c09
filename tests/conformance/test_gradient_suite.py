"""Every gradient case on every backend; those of level "core" are the quick part."""

import pytest

from sdpakit.conformance import builtin_targets, cases
from sdpakit.conformance.gradients.judge import check_gradients

TARGETS = builtin_targets()
BACKENDS = ("interp", "numba_cpu")


def on_every_backend():
    # The backends of one case follow each other, so that they share what the reference says.
    for case in cases(family="gradients"):
        marks = [] if case.level == "core" and not case.heavy else [pytest.mark.slow]
        for name in BACKENDS:
            yield pytest.param(case, name, id=f"{case.id}-{name}", marks=marks)


@pytest.mark.parametrize(("case", "backend"), list(on_every_backend()))
def test_case(case, backend, shares):
    outcome = check_gradients(TARGETS[backend], case)
    shares(outcome, case.dtype)
    assert outcome.verdict == "ok", f"{outcome.verdict}: {outcome.message}"
