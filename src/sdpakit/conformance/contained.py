"""How a target is run: what it raises comes as one exception, what it disturbs is put right again.

Decided here: what a target may print, warn of and set without harm to the run. Left to the runner:
a target that never returns, or that takes the process with it.
"""

from __future__ import annotations

import contextlib
import random
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from sdpakit.conformance.undisturbed import DisturbedError, watched

T = TypeVar("T")


class StepError(Exception):
    """A step of a target raised.

    Parameters
    ----------
    step : str
        What the target was asked for, "prepare".
    error : BaseException
        What it raised, or `DisturbedError` where it changed the process that judges it.

    Attributes
    ----------
    violation : str
        What it changed, "" where it raised something of its own.
    """

    def __init__(self, step: str, error: BaseException) -> None:
        super().__init__(step, error)
        self.step = step
        self.error = error
        self.violation = str(error) if isinstance(error, DisturbedError) else ""

    def __str__(self) -> str:
        return f"{self.step} raised {described(self.error)}{_place(self.error)}"


def described(error: BaseException) -> str:
    """Return class and text of an exception, whatever its own `__str__` does."""
    try:
        text = str(error)
    except KeyboardInterrupt:
        raise
    except BaseException as other:  # noqa: BLE001 - its text is the target's too
        text = f"(its text cannot be had: {type(other).__name__})"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _place(error: BaseException) -> str:
    """Return where an exception was raised; our own frame alone says nothing."""
    frames = traceback.extract_tb(error.__traceback__)
    if len(frames) < 2:
        return ""
    return f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})"


@contextlib.contextmanager
def contained() -> Iterator[None]:
    """Run a target so that it does not disturb the run.

    What it prints goes to stderr, where it cannot get into a report; what it warns of is no
    failure; filters of warnings, NumPy's error state and the two global random states are put back.
    """
    numbers, plain = np.random.get_state(), random.getstate()  # noqa: NPY002 - the global state
    with (
        contextlib.redirect_stdout(sys.stderr),
        warnings.catch_warnings(),
        np.errstate(),
    ):
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            np.random.set_state(numbers)  # noqa: NPY002 - the global state
            random.setstate(plain)


def step(name: str, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
    """Run one step of a target, contained.

    Parameters
    ----------
    name : str
        What the step is, for the message.
    function : callable
        Of the target.
    *args, **kwargs
        Its arguments.

    Returns
    -------
    object
        What the function returned.

    Raises
    ------
    StepError
        Whatever the function raised, `SystemExit` included, and what it changed in the process.
    KeyboardInterrupt
        As it came: that is the user, not the target.
    """
    try:
        with contained():
            return watched(name, function, *args, **kwargs)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise StepError(name, error) from error
