"""How many threads a call may use, and how many CPUs the process has for them."""

from __future__ import annotations

import os

from sdpakit.binding.lengths import integer
from sdpakit.errors import ArgumentError, format_error

VARIABLE = "SDPAKIT_NUM_THREADS"


def bind_threads(threads: object) -> int:
    """Return a number of threads >= 1.

    Parameters
    ----------
    threads : int or None
        None: the environment variable SDPAKIT_NUM_THREADS, else the CPUs that this process may run
        on.

    Returns
    -------
    int
        Results do not depend on it (DET-1).

    Raises
    ------
    ArgumentTypeError, ArgumentError
        If it is no integer >= 1.
    """
    if threads is None:
        text = os.environ.get(VARIABLE)
        return usable_cores() if text is None else _positive(VARIABLE, _parse(text))
    return _positive("threads", integer("threads", threads))


def usable_cores() -> int:
    """Return how many CPUs this process may run on, at least 1."""
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1


def _parse(text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise ArgumentError(
            format_error(
                VARIABLE, got=repr(text), allowed="an integer >= 1", fix="set it so, or unset it"
            )
        ) from error


def _positive(where: str, count: int) -> int:
    if count < 1:
        raise ArgumentError(
            format_error(
                where,
                got=count,
                allowed="an integer >= 1, or nothing for all CPUs of the process",
                fix="leave it away, or name the number of threads",
            )
        )
    return count
