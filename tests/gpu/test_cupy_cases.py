"""Cases of the kit on the cupy backend, its kernels run by the emulator of PTX.

The emulator takes some seconds for a case, so a part of level core is drawn here, spread over
families and dtypes; `sdpakit conformance cupy cupy-simt --level core` judges all of it.
"""

import itertools

import pytest

from sdpakit.conformance import builtin_targets, cases, check

TARGETS = builtin_targets()
EVERY = {"cupy": 10, "cupy-simt": 40}


def drawn():
    for name, step in EVERY.items():
        found = [case for case in cases() if case.level == "core" and not case.heavy]
        if name == "cupy-simt":  # what "cupy" runs by matrix instructions
            found = [case for case in found if case.dtype in ("float16", "bfloat16")]
        by_family = itertools.groupby(found, key=lambda case: case.id.split(".")[0])
        for _, of_family in by_family:
            for case in list(of_family)[::step]:
                yield pytest.param(case, name, id=f"{case.id}-{name}")


@pytest.mark.parametrize(("case", "target"), list(drawn()))
@pytest.mark.usefixtures("tools")
def test_case(case, target):
    outcome = check(TARGETS[target], case)
    assert outcome.verdict == "ok", f"{outcome.verdict}: {outcome.message}"
