"""Whether neighbours slow this core down, told by a probe that is not what is measured.

Two hardware threads share the units of a core, and on a virtual machine the other one may belong to
a stranger. Nothing in the accounts of the system shows it: a loop of the interpreter, which keeps a
core issuing as fast as it can, takes nearly twice as long.
"""

from __future__ import annotations

import bisect
import time

# A probe that takes so many times as long as on a core without company had some. Alone it varies by
# a few hundredths, with company it takes 1.6 to 2 times as long.
SLOWDOWN_LIMIT = 1.15
# Wide vectors lower the clock of some processors, and it takes a moment to come back.
CLOCK_SECONDS = 0.003
WAIT_SECONDS = 1.0
_PROBE = range(15_000)


class Probe:
    """A short loop and how long it takes here when the core is alone."""

    def __init__(self) -> None:
        self._seconds: list[float] = []
        for _ in range(50):
            self.slowdown()

    def slowdown(self) -> float:
        """Run the probe; return its processor time over that of a core without company.

        That is the fastest twentieth of all readings: the clock of a virtual machine has now and
        then been seen to lose one.
        """
        start = time.thread_time()
        sum(_PROBE)
        taken = max(time.thread_time() - start, 1e-9)
        bisect.insort(self._seconds, taken)
        return taken / self._seconds[len(self._seconds) // 20]

    def after(self) -> float:
        """Return the slowdown behind a sample, once the clock has come back from wide vectors."""
        time.sleep(CLOCK_SECONDS)
        return min(self.slowdown(), self.slowdown())

    def wait(self) -> float:
        """Run the probe until it has no company, for a while at most; return the last slowdown."""
        end = time.perf_counter() + WAIT_SECONDS
        while (slowdown := self.slowdown()) > SLOWDOWN_LIMIT and time.perf_counter() < end:
            time.sleep(0.002)
        return slowdown
