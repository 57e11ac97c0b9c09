"""Wrong programs do not pass: each is caught by the cases named for it."""

import pytest
from tests.conformance.faulty import MEANING, PRECISION

from sdpakit.conformance import cases, check
from sdpakit.conformance.targets.naive import Naive

BY_ID = {case.id: case for case in cases()}
PLANTED = [
    pytest.param(fault, name, id=f"{fault.__name__}-{name}")
    for faults in (PRECISION, MEANING)
    for fault, names in faults.items()
    for name in names
]


@pytest.mark.parametrize(("fault", "name"), PLANTED)
def test_fault_is_caught(fault, name):
    outcome = check(fault(), BY_ID[name])
    assert outcome.verdict == "fail", f"{name} lets {fault.__name__} pass"
    assert outcome.share > 1.0 or "written to" in outcome.message or "was raised" in outcome.message


NAMED = sorted({n for faults in (MEANING, PRECISION) for names in faults.values() for n in names})


@pytest.mark.parametrize("name", [name for name in NAMED if not BY_ID[name].refuses])
def test_the_case_is_passed_by_what_is_right(name):
    outcome = check(Naive(), BY_ID[name])
    assert outcome.verdict == "ok", outcome.message
