"""Cases of the kit on the cupy backend, its kernels run by the emulator of PTX.

The emulator takes some seconds for a case, so ci/test takes a part of level core, drawn across
families and dtypes; ci/gpu takes all of it.
"""

import pytest

from sdpakit.conformance import builtin_targets, cases, check

TARGETS = builtin_targets()
EVERY = {"cupy": 40, "cupy-simt": 160}  # drawn for ci/test


def of_core():
    for name, step in EVERY.items():
        found = [case for case in cases() if case.level == "core" and not case.heavy]
        if name == "cupy-simt":  # what "cupy" runs by matrix instructions
            found = [case for case in found if case.dtype in ("float16", "bfloat16")]
        for number, case in enumerate(found):
            marks = () if number % step == 0 else (pytest.mark.long,)
            yield pytest.param(case, name, id=f"{case.id}-{name}", marks=marks)


@pytest.mark.parametrize(("case", "target"), list(of_core()))
@pytest.mark.usefixtures("tools")
def test_case(case, target):
    outcome = check(TARGETS[target], case)
    assert outcome.verdict == "ok", f"{outcome.verdict}: {outcome.message}"
