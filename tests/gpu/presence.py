"""Tests whose tools are missing are skipped, or fail where the tools were promised."""

import os

import pytest

# ci/test sets it in the environment that it made for these tests: there, nothing may be missing.
REQUIRED = "SDPAKIT_REQUIRE_CUDA_TOOLCHAIN"


def refuse(reason):
    if os.environ.get(REQUIRED):
        pytest.fail(reason)
    pytest.skip(reason)
