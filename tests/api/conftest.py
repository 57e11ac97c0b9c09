"""Small operands and a kernel that must not be launched."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest


@pytest.fixture
def qkv() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """q (2, 4, 5, 8), k (2, 2, 7, 8), v (2, 2, 7, 6) of float32."""
    rng = np.random.default_rng(20)
    shapes = ((2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 6))
    q, k, v = (rng.standard_normal(shape, dtype=np.float32) for shape in shapes)
    return q, k, v


@pytest.fixture
def never_launched():
    """Replace the launcher of a kernel by one that fails: a refused call must not reach it."""

    class LaunchedError(AssertionError):
        pass

    def launch(call: Any) -> None:
        raise LaunchedError("the kernel was launched")

    def guard(kernel):
        kernel._launcher = launch
        return kernel

    return guard
