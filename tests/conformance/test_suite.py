"""Every forward case and relation on every backend."""

import pytest

from sdpakit.conformance import builtin_targets, cases, check, check_relation, relations

TARGETS = builtin_targets()
BACKENDS = ("interp", "numba_cpu")
FORWARD = [case for case in cases() if not case.gradients]


def on_every_backend():
    # The backends of one case follow each other, so that they share what the reference says.
    for case in FORWARD:
        marks = [pytest.mark.slow] if case.heavy else []
        for name in BACKENDS:
            yield pytest.param(case, name, id=f"{case.id}-{name}", marks=marks)


@pytest.mark.parametrize(("case", "backend"), list(on_every_backend()))
def test_case(case, backend, shares):
    outcome = check(TARGETS[backend], case)
    shares(outcome, case.dtype)
    assert outcome.verdict == "ok", f"{outcome.verdict}: {outcome.message}"


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("relation", "dtype"), [pytest.param(r, d, id=f"{r.id}.{d}") for r, d in relations()]
)
def test_relation(relation, dtype, backend):
    outcome = check_relation(TARGETS[backend], relation, dtype)
    assert outcome.verdict == "ok", f"{outcome.verdict}: {outcome.message}"
