"""Whether neighbours slow this core down, told by a probe that is not what is measured.

Two hardware threads share the units of a core, and on a virtual machine the other one may belong to
a stranger. Nothing in the accounts of the system shows it: a loop of the interpreter, which keeps a
core issuing as fast as it can, takes nearly twice as long.
"""

from __future__ import annotations

import math
import time

# A probe that takes this many times its best had company. Alone it varies by a few hundredths; with
# company it takes 1.6 to 2 times as long.
SLOWDOWN_LIMIT = 1.15
WAIT_SECONDS = 1.0
_PROBE = range(15_000)


class Probe:
    """A short loop and the best that it ever took here."""

    def __init__(self) -> None:
        self._best = math.inf
        for _ in range(50):
            self.slowdown()

    def slowdown(self) -> float:
        """Run the probe; return its processor time over the least so far."""
        start = time.thread_time()
        sum(_PROBE)
        seconds = time.thread_time() - start
        self._best = min(self._best, seconds)
        return seconds / self._best

    def wait(self) -> float:
        """Run the probe until it has no company, for a while at most; return the last slowdown."""
        end = time.perf_counter() + WAIT_SECONDS
        while (slowdown := self.slowdown()) > SLOWDOWN_LIMIT and time.perf_counter() < end:
            time.sleep(0.002)
        return slowdown
